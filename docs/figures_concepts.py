"""Draw the figures of the concept pages into docs/images/concepts: ``python
docs/figures_concepts.py``.
"""

from pathlib import Path

import torch
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


FIGURES = {"need.png": need, "digits.png": digits}

if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw(IMAGES / name)
        print("images", IMAGES.name, name, sep="/")
