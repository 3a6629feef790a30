"""A training step as one CUDA graph: forward and backward pass, optimizer, average.

A step of a small network launches thousands of short operations, for which the device waits. A
graph launches them at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddlib.contrib import Captured, CaptureError
from ddlib.typing import Steps, implements
from recipes.config import Hardware, Recipe
from recipes.engine.objectives.base import Objective
from recipes.engine.objectives.noising import NoisyBatch
from recipes.engine.parallel import World

ORDINARY = 3
"""Steps before the recorded one, in which libraries allocate what they keep."""


class Numbers(NamedTuple):
    """Numbers of a step that the host computes; tensors on the device in a graph."""

    rate: float | Tensor
    """Learning rate."""
    decay: float | Tensor
    """Decay of the average of the weights."""
    stop: float | Tensor
    """1 if this process received a signal to stop, else 0."""


Passes = Callable[[Sequence[NoisyBatch], Numbers], tuple[Tensor, list[Tensor]]]
"""Work of a step on the device: from micro-batches to the numbers of the step and the loss of each
token, of each micro-batch.
"""


class CapturedPasses:
    """Work of a step that is recorded in the fourth step of a run, and then replayed.

    The steps before it do the same operations, so a run that resumes computes the same numbers.

    Args:
        passes: the work, whose sizes depend on the shapes of the micro-batches alone.
        objective: the training objective.
        optimizers: those of the run.
        device: of the run.
    """

    def __init__(
        self,
        passes: Passes,
        objective: Objective,
        optimizers: Sequence[torch.optim.Optimizer],
        device: torch.device,
    ) -> None:
        self._passes = passes
        self._objective = objective
        self._optimizers = optimizers
        self._device = device
        self._done = 0
        self._noisy: Sequence[NoisyBatch] = ()
        self.captured = Captured(self._compute, warm_up=0)

    def __call__(
        self, noisy: Sequence[NoisyBatch], numbers: Numbers
    ) -> tuple[Tensor, list[Tensor]]:
        self._noisy = noisy
        tensors = [*self._on_device(numbers), *(value for part in noisy for value in _read(part))]
        function = self._compute if self._done < ORDINARY else self.captured
        self._done += 1
        try:
            with self._recordable(numbers.rate):
                values, losses = function(*tensors)
        except CaptureError as error:
            raise ValueError(
                "hardware.graph='step': not with this process, loss and network, whose step waits "
                f"for the device or is of other sizes each time; must be 'blocks'. {error}"
            ) from error
        # a graph writes the next step's results to the same memory
        return values.clone(), [one.clone() for one in losses]

    def _on_device(self, numbers: Numbers) -> Iterator[Tensor]:
        # AdamW on CUDA reads its rate in float32
        dtypes = Numbers(torch.float32, torch.float64, torch.float64)
        for value, dtype in zip(numbers, dtypes, strict=True):
            kind = dtype if self._device.type == "cuda" else torch.float64
            yield torch.full((), value, dtype=kind, device=self._device)

    def _compute(self, *tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
        rest = iter(tensors[len(Numbers._fields) :])
        noisy = [_rebuild(part, rest) for part in self._noisy]
        numbers = Numbers(*tensors[: len(Numbers._fields)])
        return self._passes([self._objective.fix_sizes(part) for part in noisy], numbers)

    @contextmanager
    def _recordable(self, rate: float | Tensor) -> Iterator[None]:
        """Return a context in which the optimizers may be recorded; after it their state is that of
        an ordinary step.
        """
        groups = [group for one in self._optimizers for group in one.param_groups]
        for group in groups:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in groups:
                group.update(capturable=False, lr=rate)


def _names(part: NoisyBatch) -> Iterator[str]:
    """Yield the names of the fields that are tensors."""
    for field in fields(part):
        if isinstance(getattr(part, field.name), Tensor):
            yield field.name


def _read(part: NoisyBatch) -> Iterator[Tensor]:
    for name in _names(part):
        yield getattr(part, name)


def _rebuild(part: NoisyBatch, tensors: Iterator[Tensor]) -> NoisyBatch:
    """Return a micro-batch with other tensors."""
    return replace(part, **{name: next(tensors) for name in _names(part)})


def say_without_graph(hardware: Hardware, world: World) -> list[str]:
    """Return a message if a step is to be a graph on a device that has none."""
    if hardware.graph != "step" or world.device.type == "cuda":
        return []
    return [
        "hardware.graph: step has no effect without CUDA, but that the loss computes all logits: "
        "leave it out"
    ]


def check_graph(recipe: Recipe, world: World, model: nn.Module) -> None:
    """Raise ValueError unless a whole step of the run can be one graph."""
    if recipe.hardware.graph != "step":
        return
    reasons = {
        f"{world.size} processes, whose gradients are exchanged": world.size > 1,
        "optimizer.muon=True, whose steps are not recorded": recipe.optimizer.muon,
        "data.packed=True, whose documents have other lengths in each step": recipe.data.packed,
        f"{type(model).__name__}, whose training depends on the step": implements(model, Steps),
        f"loss.kind={recipe.loss['kind']!r}, whose loss is not one of fixed sizes": (
            not recipe.objective().fixed_sizes
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"hardware.graph='step': not with {reason}; must be 'blocks'")
