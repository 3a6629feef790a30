"""Base class of training objectives, and the objects of a run that they take."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

import ddlib as dd
from recipes.config import Recipe
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.objectives.noising import NoisyBatch
from recipes.engine.parallel import World

if TYPE_CHECKING:  # help of a recipe imports this module, and reading data takes seconds to import
    from recipes.data import Prepared


@dataclass(frozen=True)
class Setting:
    """Objects of a run."""

    recipe: Recipe
    world: World
    data: "Prepared"
    process: dd.processes.ForwardProcess
    network: Network
    pace: dd.paces.Pace
    micro: int
    """Rows of a micro-batch."""
    padded: bool
    """Whether the vocabulary has padding, which a loss may count."""


class Objective(dd.parts.Part):
    """Training objective of a recipe, ``loss.kind``; its arguments are the other keys of ``loss``.

    A subclass implements ``prepare`` and ``loss``. The engine calls ``check`` when the recipe is
    built, ``check_network`` before any work, ``begin`` once, and in each step ``ahead``,
    ``prepare``, for each micro-batch ``before`` and ``loss``, and ``after``. The total of ``loss``
    is what is minimised; engine, optimizer, average of the weights, distribution and checkpoints
    are the same for all objectives.
    """

    unit: ClassVar[str] = "nats/token"
    """Unit of the loss in messages."""
    fixed_sizes: ClassVar[bool] = False
    """Whether the loss computes in fixed sizes after ``fix_sizes``, so that a step can be a graph.

    Each class states it for itself, since it may have another loss than its base.
    """
    setting: Setting
    """Objects of the run, from ``begin`` on."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.fixed_sizes = vars(cls).get("fixed_sizes", False)

    @classmethod
    def write_out(cls, values: dict[str, Any], process: str) -> dict[str, Any]:
        """Return the plain values of an objective with those that the kind of process decides."""
        return values

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError unless the objective fits the other values of the recipe."""

    def check_process(self, process: dd.processes.ForwardProcess) -> None:
        """Raise ValueError unless the process supports the objective."""

    def check_network(self, model: nn.Module, recipe: Recipe) -> None:
        """Raise ValueError unless the network has the capabilities that the objective requires."""

    @property
    def network_values(self) -> Mapping[str, Any]:
        """Values of the network that the objective adds to those of the recipe."""
        return {}

    def begin(self, setting: Setting) -> None:
        """Take the objects of a run."""
        self.setting = setting

    def batches(self, stream: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
        """Return the micro-batches of each step from those of the text."""
        return stream

    def ahead(self, batches: list[Batch], step: int) -> list[Any]:
        """Return the micro-batches of a step with what depends on (seed, step, example) alone.

        The engine calls it one step ahead, while the network computes the step before: with CUDA
        from another thread, on another stream. So it must neither read the network's weights nor
        what earlier steps change, nor change what others read; that is what ``prepare`` is for.

        Args:
            batches: micro-batches of the text, on the device.
            step: number of the step.
        """
        return batches

    @abstractmethod
    def prepare(self, batches: list[Any], step: int) -> list[NoisyBatch]:
        """Return the micro-batches of a step, from the result of ``ahead``, as the network takes
        them.

        Random numbers depend on (seed, step, example) alone, not on the layout of the run.
        """

    def before(
        self, noisy: NoisyBatch, averaged: Callable[[], AbstractContextManager[None]]
    ) -> NoisyBatch:
        """Return a micro-batch with what is evaluated without gradient before its pass.

        Args:
            noisy: the micro-batch.
            averaged: context manager in which the network has the averaged weights.
        """
        return noisy

    def fix_sizes(self, noisy: NoisyBatch) -> NoisyBatch:
        """Return a micro-batch whose loss computes in sizes that do not depend on its states, for
        ``hardware.graph: step``.

        For a class with ``fixed_sizes``. It must draw nothing in Python, and read no
        value of the device.
        """
        return noisy

    @abstractmethod
    def loss(
        self, noisy: NoisyBatch, network: Network, scale: Tensor
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B L"]]:
        """Return ``scale`` times the sum of the loss over the tokens in ``noisy.mask``, and the
        loss of each token, without gradient.

        NaN, with NaN gradients, where the output of the network is not finite.
        """

    def after(self) -> None:
        """Change the state of the objective after a step of the optimizer."""

    def tensors(self) -> dict[str, Any]:
        """Return the state for a checkpoint; empty without state."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of ``tensors``."""

    def numbers_to_log(self) -> dict[str, float]:
        """Return further numbers of the last step by name, the same in every process."""
        return {}

    def remarks(self, noisy: NoisyBatch) -> list[str]:
        """Return messages for the user after the first step, whose last micro-batch is
        ``noisy``.
        """
        return []

    def cause(self, noisy: list[NoisyBatch], losses: list[Tensor]) -> str:
        """Return which token of a step has a loss that is not finite, and why."""
        return "the loss or its gradient is not finite"

    def about(self, padded: bool = True) -> str:
        """Describe the objective in a few words.

        Args:
            padded: whether sequences have padding at all.
        """
        return repr(self)
