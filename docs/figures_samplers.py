"""Draw one sequence under every sampler into docs/images/samplers.png: ``python
docs/figures_samplers.py``.
"""

import math
from pathlib import Path

import torch
from torch import Tensor

import ddlib as dd
from ddlib import plot
from ddlib.plot.colors import Band
from ddlib.plot.trajectories import image
from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler

PATH = Path(__file__).parent / "images" / "samplers.png"
LENGTH, WORDS, STEPS = 32, 12, 40
KINDS = [
    Band("its final token", plot.BLUE, "-"),
    Band("another token", plot.VERMILION, "-"),
    Band("cluster", plot.ORANGE, "-"),
    Band("mask", plot.DARK, "-"),
]


def processes() -> dict[str, ForwardProcess]:
    """Processes by title; each sampler is drawn with the first one that it supports."""
    return {
        "clusters, xi = 0.9": dd.presets.hdlm([i // 3 for i in range(WORDS)], xi=0.9),
        "GIDD": dd.presets.gidd(WORDS, 0.3),
    }


def denoiser(z: Tensor, t: Tensor) -> Tensor:
    """Return logits that are peaked at the first position and become uniform towards the last
    one.
    """
    generator = torch.Generator().manual_seed(3)
    sure = torch.linspace(5, 0, z.shape[1])[:, None]
    return (sure * torch.randn(z.shape[1], WORDS, generator=generator)).expand(len(z), -1, -1)


def path(process: ForwardProcess, sampler: Sampler) -> Tensor:
    """States of one sequence after every step, (STEPS + 1, LENGTH)."""
    seen: list[Tensor] = []
    dd.sample(
        process,
        denoiser,
        (1, LENGTH),
        sampler,
        STEPS,
        generator=torch.Generator().manual_seed(0),
        on_step=lambda k, t, z: seen.append(z[0].clone()),
    )
    return torch.stack(seen)


def kinds(process: ForwardProcess, states: Tensor) -> Tensor:
    """Index into ``KINDS`` of every state."""
    level = process.level_of(states)
    word = torch.where(states == states[-1], 0, 1)
    above = torch.where(states == process.num_states - 1, 3, 2)
    return torch.where(level == 0, word, above)


def draw(where: Path) -> None:
    """Draw one panel for every sampler of ddlib."""
    names = dd.registry.built_in("samplers")
    figure, panels = plot.panels(math.ceil(len(names) / 4), 4, size=(3.2, 2.6))
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for name, axes in zip(names, panels, strict=False):
        sampler = dd.registry.get("samplers", name).examples()[0]
        for title, process in processes().items():
            try:
                states = path(process, sampler)
            except TypeError:  # the sampler does not support this process
                continue
            image(torch.linspace(1, 0, len(states)), kinds(process, states), KINDS, axes)
            axes.set_title(f"{name}: {title}", loc="left", fontweight="bold", fontsize=9)
            axes.get_legend().remove()
            axes.set(
                xlabel="position in the sequence", ylabel="t  (noise \u2192 data)", yticks=[0, 1]
            )
            break
    from matplotlib.patches import Patch

    handles = [Patch(color=band.colour, label=band.name) for band in KINDS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(KINDS), frameon=False)
    figure.savefig(where)


if __name__ == "__main__":
    draw(PATH)
