"""Optional capabilities of a network besides ``(z, t) -> logits``, with the error where a recipe
requires one.

With ``ddlib.typing.SplitDenoiser`` the output layer and the loss are computed together, without all
logits.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from ddlib.paces import Pace
from ddlib.typing import OwnTimes, implements
from recipes.config import own_times


@runtime_checkable
class HasBlocks(Protocol):
    """Network made of similar modules, which are compiled, recomputed and sharded one by one."""

    blocks: nn.ModuleList


@runtime_checkable
class CompilesTrunk(Protocol):
    """Network that can compile all its blocks as one graph."""

    def compile_trunk(self) -> None:
        """Compile them."""
        ...


@runtime_checkable
class Packs(Protocol):
    """Network for packed sequences: its call and its ``features`` take the offsets as a third
    argument.
    """

    def pack(self, cu_seqlens: Tensor) -> Any:
        """Return metadata that may replace the offsets, computed once per batch."""
        ...


@runtime_checkable
class ClusterHead(Protocol):
    """Network with a second head, over the clusters of the finest level.

    Built with the argument ``num_clusters``.
    """

    def features_with_clusters(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output layer's input, and the logits of the clusters."""
        ...


@runtime_checkable
class Starts(Protocol):
    """Network with an initialisation from statistics of the training text."""

    dim: int

    def start_at(self, log_probs: Tensor, vectors: Tensor) -> None:
        """Initialise from log-probabilities of the tokens (V,) and embeddings of the states (S,
        dim).
        """
        ...


T = TypeVar("T")


def able(model: nn.Module, ability: type[T], option: str, needs: str) -> T:
    """Return the network if it has the capability.

    Args:
        model: the network.
        ability: one of the protocols above.
        option: the field of the recipe that requires it, and its value.
        needs: the names that the network must have.

    Raises:
        ValueError: it lacks them; the message names all three.
    """
    if not implements(model, ability):
        raise ValueError(f"{option}: not with {type(model).__name__}, which has no {needs}")
    return model


def supported_pace(pace: Pace, length: int, model: nn.Module) -> Pace:
    """Return the pace, if the network supports its times.

    Raises:
        ValueError: sequences of this length have a time per position, and it takes one per
            sequence.
    """
    if own_times(pace, length):
        setting = f"pace={pace!r}, which has a separate time for each position"
        if not able(model, OwnTimes, setting, "own_times").own_times:
            raise ValueError(
                f"{setting}: not with {type(model).__name__}, whose own_times is False"
            )
    return pace


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the modules that are treated one by one: its blocks, or the whole network."""
    return list(model.blocks) if implements(model, HasBlocks) else [model]
