"""Pictures of the study of output layers, from its result file."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from ddlib import plot
from studies.heads.models import ADAPTIVE, AR, FLAT, HDLM, MASKS, Arm
from studies.heads.pages import Entry, Found, classes, paired, part_of, runs_of
from studies.heads.sizes import Sizes
from studies.heads.text import TREES

COLOURS = {
    FLAT: plot.DARK,
    ADAPTIVE: plot.ORANGE,
    "semantic": plot.VERMILION,
    "random": "#8CD3A8",
    "frequency": plot.GREEN,
}
"""Colour of each output layer."""
LAYERS = {FLAT: "tokens", ADAPTIVE: "adaptive softmax"} | {
    tree: f"children, {tree} tree" for tree in TREES
}
"""Name of each output layer in a legend."""
SHOWN = {
    Arm(MASKS, FLAT): (plot.DARK, "masks, one logit per token"),
    Arm(MASKS, ADAPTIVE): (plot.ORANGE, "masks, adaptive softmax"),
    Arm(HDLM, FLAT): ("#56B4E9", "HDLM, one logit per token"),
    Arm(HDLM, "semantic"): (plot.BLUE, "HDLM, one logit per child"),
    Arm(MASKS, "semantic"): (plot.VERMILION, "masks, one logit per child"),
}
"""Arms of the picture on the front page, each with its colour and its name there."""
SHADES = ("#DDE6ED", "#A9C3D6", "#5B94BC", plot.BLUE)
"""Colour of each class of tokens, the most frequent first."""


def draw(result: Entry, sizes: Sizes, images: Path) -> None:
    """Write ``heads.png`` and ``equal.png`` into a folder.

    Args:
        result: content of the result file.
        sizes: sizes of the study.
        images: folder of the pictures.
    """
    found = runs_of(result)
    costs = result["costs"]
    figure, (left, right) = plot.panels(1, 2, size=(5.6, 4.2))
    masks = {Arm(MASKS, head): (COLOURS[head], LAYERS[head]) for head in LAYERS}
    _curves(left, found, costs, masks)
    left.set_title("masks", loc="left", fontweight="bold")
    _parts(right, found, sizes)
    figure.savefig(images / "heads.png")
    alone, (axes,) = plot.panels(size=(5.8, 4.3))
    _curves(axes, found, costs, SHOWN)
    axes.set_title("GPT-2's 50,257 tokens on one core", loc="left", fontweight="bold")
    alone.savefig(images / "equal.png")


def _curves(
    axes: Any,
    found: Found,
    costs: Mapping[str, Mapping[str, float]],
    shown: Mapping[Arm, tuple[str, str]],
) -> None:
    """Draw the nats of each seed over the processor seconds of its steps."""
    for arm, (colour, label) in shown.items():
        for place, (_, run) in enumerate(sorted(found.get(arm, {}).items())):
            steps, nats = zip(*run["curve"], strict=True)
            seconds = [costs[arm.name]["seconds"] * step for step in steps]
            name = label if place == 0 else "_"
            axes.plot(seconds, nats, "o-", color=colour, markersize=3, linewidth=1.2, label=name)
    axes.set(xlabel="processor seconds", ylabel="held-out bound, nats per token")
    axes.legend(frameon=False, fontsize=8)


def _parts(axes: Any, found: Found, sizes: Sizes) -> None:
    """Draw the part of each class of tokens in the difference from the layer over tokens."""
    rows = [Arm(process, head) for process in (MASKS, AR) for head in LAYERS if head != FLAT]
    names = classes(sizes)
    width = 0.8 / len(names)
    for place, (name, shade) in enumerate(zip(names, SHADES, strict=True)):
        seeds = [paired(found, arm, Arm(arm.process, FLAT), part_of(place)) for arm in rows]
        heights = [mean(values) if values else 0.0 for values in seeds]
        lefts = [row + width * place - 0.4 for row in range(len(rows))]
        axes.bar(lefts, heights, width, align="edge", color=shade, label=name)
        for left, values in zip(lefts, seeds, strict=True):
            axes.plot([left + width / 2] * len(values), values, ".", color=plot.DARK, markersize=3)
    axes.axhline(0, color=plot.GREY, linewidth=0.8)
    labels = [f"{arm.process}\n{arm.head}" for arm in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.set_ylabel("difference from tokens, nats per token")
    axes.set_title("equal steps, parts by rank of the token", loc="left", fontweight="bold")
    axes.margins(y=0.16)  # room for the legend
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right")
