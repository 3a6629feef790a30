"""Draw the figures of the concept pages into docs/images/concepts: ``python
docs/figures_concepts.py``.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Patch
from torch import Tensor

import ddlib as dd

IMAGES = Path(__file__).parent / "images" / "concepts"
LABEL = "t  (0 = data, 1 = noise)"


def need(path: Path) -> None:
    """Draw the share of positions whose loss needs no logits, some logits and all logits, at gamma
    = 1.
    """
    process = dd.presets.hdlm([0, 0, 1, 1, 2, 2])
    t = torch.linspace(0, 1, 201, dtype=torch.float64)
    figure, (axes,) = dd.plot.panels(size=(6.4, 3.6))
    axes.stackplot(
        t,
        process.occupancies(t).T.numpy(),
        colors=(dd.plot.GREY, dd.plot.GREEN, dd.plot.DARK),
        alpha=0.5,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=LABEL, ylabel="share of positions")
    places = {
        "tokens: no logits\n1/2 over all times": (0.27, 0.3),
        "clusters: logits\nof their own tokens\n1/4": (0.5, 0.66),
        "masks: all logits\n1/4": (0.83, 0.85),
    }
    for text, (x, y) in places.items():
        axes.text(x, y, text, ha="center", va="center")
    figure.savefig(path)


def digits(path: Path) -> None:
    """Draw the relative error of the mask's probability near t = 0, for the plain formula and for
    ddlib.
    """
    process = dd.presets.hdlm([0, 0, 1, 1, 2, 2])
    t = torch.logspace(-10, -0.3, 400, dtype=torch.float64)

    def error(values: Tensor, at: Tensor) -> Tensor:
        # t + (1 - t) log(1 - t) = sum over k >= 2 of t^k / (k (k - 1)), without cancellation
        k = torch.arange(2, 200, dtype=torch.float64)
        exact = (at.double()[:, None] ** k / (k * (k - 1))).sum(-1)
        return (values.double() / exact - 1).abs().clamp_min(1e-17)

    figure, (axes,) = dd.plot.panels(size=(6.4, 3.6))
    for at, name, color in (
        (t.float(), "as written, float32", dd.plot.VERMILION),
        (t, "as written, float64", dd.plot.ORANGE),
    ):
        written = at + (1 - at) * (1 - at).log()
        axes.loglog(t, error(written, at), color=color, label=name, linewidth=1)
    axes.loglog(
        t, error(process.occupancies(t)[:, 2], t), color=dd.plot.BLUE, label="ddlib", linewidth=1
    )
    axes.axhline(1, color=dd.plot.GREY, linewidth=0.8, linestyle=":")
    axes.set(xlabel=LABEL, ylabel="relative error of the mask's probability", ylim=(1e-17, 1e12))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)


def product(path: Path) -> None:
    """Draw the noise of a token of each field of a product, and the numbers of its states, as the
    example of the page has them.
    """
    linear = dd.schedules.Linear()
    blur = dd.hierarchies.Blur(5, [1.0])
    fields = {
        "age, 5 groups: Blur": dd.processes.Hierarchical(blur, linear),
        "city, 7 names: Masked": dd.processes.Masked(7, linear),
        "member, yes or no: Uniform": dd.processes.Uniform(2, linear),
    }
    t = torch.linspace(0, 1, 201, dtype=torch.float64)
    figure = plt.figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplot_mosaic([list(fields), ["states"] * 3], height_ratios=[3, 1])
    strip = axes["states"]
    first = 0
    for gap, (name, process) in enumerate(fields.items()):
        token = process.vocab_size // 2
        levels = process.level_of(torch.arange(process.num_states)).tolist()
        blurred = [dd.plot.ORANGE] * (max(levels) - 1)
        by_level = (dd.plot.BLUE, *blurred, dd.plot.DARK)
        colors = [by_level[level] for level in levels]
        others = [state for state in range(len(levels)) if state != token]
        shares = process.marginal(torch.full((len(t), 1), token), t)[:, 0]
        shades = [dd.plot.VERMILION if levels[state] == 0 else colors[state] for state in others]
        axes[name].stackplot(
            t,
            shares[:, [token, *others]].T.numpy(),
            colors=[dd.plot.BLUE, *shades],
            edgecolor="white",
            linewidth=0.4,
        )
        axes[name].set(xlim=(0, 1), ylim=(0, 1), title=name, xlabel="t")
        for state, color in enumerate(colors, start=first):
            strip.bar(state + gap, 1, 0.9, color=color)
            strip.text(state + gap, 0.5, str(state), ha="center", va="center", color="white")
        middle = first + gap + (len(levels) - 1) / 2
        strip.text(middle, 1.15, name.split(",")[0], ha="center")
        first += len(levels)
    axes[next(iter(fields))].set_ylabel("probability of a state")
    kinds = {"token": dd.plot.BLUE, "another token": dd.plot.VERMILION}
    kinds |= {"blurred value": dd.plot.ORANGE, "mask": dd.plot.DARK}
    patches = [Patch(color=color, label=name) for name, color in kinds.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
    strip.set(xlim=(-1, first + len(fields) - 1), ylim=(0, 1.6), ylabel="states of z")
    strip.set(xticks=[], yticks=[])
    strip.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)


FIGURES = {"need.png": need, "digits.png": digits, "product.png": product}

if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw(IMAGES / name)
        print("images", IMAGES.name, name, sep="/")
