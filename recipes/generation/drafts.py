"""Live display of noisy sequences during sampling."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from recipes.console import render_states
from recipes.console.screen import on_its_way
from recipes.embeddings.naming import cluster_names
from recipes.model_io import LoadedModel

SNAPSHOTS = 6
"""Number of states of a trajectory that are shown."""

Render = Callable[[int, Tensor], Text]
Listener = Callable[[int, Tensor, Tensor], None]


class Drafts:
    """Current state of some sequences: redrawn in place on a terminal; elsewhere a line for each
    that has changed.

    The display is removed at the end, so that the finished texts can be printed in its place.

    Args:
        console: the console.
        names: names of the sequences, by row.
        render: converts the states of a row to text, given its number.
    """

    def __init__(self, console: Console, names: Sequence[str], render: Render) -> None:
        self._console = console
        self._names = names
        self._render = render
        self._before: list[str | None] = [None] * len(names)
        self._live = Live(
            console=console, auto_refresh=False, transient=True, vertical_overflow="ellipsis"
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, k: int, t: Tensor, z: Tensor) -> None:
        """Show the states after a step; the signature is that of ``on_step`` in ``dd.sample``."""
        lines = []
        for number, (name, when, states) in enumerate(
            zip(self._names, mean_times(t), z.cpu(), strict=False)
        ):
            text = self._render(number, states)
            line = Text.assemble((name, "bold"), "  ", on_its_way(when, text))
            lines.append(line)
            if not self._console.is_terminal and text.plain != self._before[number]:
                self._console.print(line, soft_wrap=True)
            self._before[number] = text.plain
        if self._console.is_terminal:
            self._live.update(Group(*lines), refresh=True)


def mean_times(t: Tensor) -> list[float]:
    """Return the mean time of each row, of times (B,) or of those of each position, (B, L)."""
    return t.double().reshape(len(t), -1).mean(1).tolist()


class Trace(list[tuple[float, Tensor]]):
    """Times and states of one row after each step; ``keep`` is an ``on_step``."""

    def keep(self, place: int, length: int, k: int, t: Tensor, z: Tensor) -> None:
        """Append the first states of the row at ``place``."""
        self.append((float(t[place].mean()), z[place, :length].cpu()))


def renderer_of(saved: LoadedModel) -> Callable[[Tensor], Text]:
    """Return the function that renders a noisy sequence of a model."""
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)
    return lambda z: render_states(saved.process, saved.tokenizer, z, names)


def tell(listeners: Sequence[Listener], k: int, t: Tensor, z: Tensor) -> None:
    """Call several functions after a step."""
    for listener in listeners:
        listener(k, t, z)


def show(saved: LoadedModel, trace: Sequence[tuple[float, Tensor]], console: Console) -> None:
    """Print states of one sample, from noise to tokens."""
    render = renderer_of(saved)
    for number in (
        torch.linspace(0, len(trace) - 1, min(SNAPSHOTS, len(trace))).round().int().tolist()
    ):
        t, states = trace[number]
        console.print(on_its_way(t, render(states)))
