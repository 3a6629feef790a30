"""What a network may be able to do besides ``(z, t) -> logits``, and the refusal where a recipe asks for more.

With ``ddlib.typing.SplitDenoiser`` the output layer and the loss are computed together, without all logits.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from ddlib.paces import Pace
from ddlib.typing import OwnTimes
from recipes.config import own_times


@runtime_checkable
class Blocks(Protocol):
    """Its work is done by modules that are alike: they are compiled, recomputed and sharded one by one."""

    blocks: nn.ModuleList


@runtime_checkable
class Packs(Protocol):
    """It reads several sequences in one row: its call and its ``features`` take the offsets as a third argument."""

    def pack(self, cu_seqlens: Tensor) -> Any:
        """What those may take in their place, made once per batch."""
        ...


@runtime_checkable
class ClusterHead(Protocol):
    """It has a second head, over the clusters of the finest level; built with the argument ``num_clusters``."""

    def features_with_clusters(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """What the output layer reads, and the logits of the clusters."""
        ...


@runtime_checkable
class Starts(Protocol):
    """It can begin at statistics of its text."""

    dim: int

    def start_at(self, log_probs: Tensor, vectors: Tensor) -> None:
        """Takes log-probabilities of the words (V,) and embeddings of the states (S, dim)."""
        ...


@runtime_checkable
class Steps(Protocol):
    """What it is trained to do changes on the way."""

    def at_step(self, step: int) -> None:
        """Takes note of the step 0, 1, ... that comes next."""
        ...


T = TypeVar("T")


def able(model: nn.Module, ability: type[T], asked: str, needs: str) -> T:
    """The network, if it can.

    Args:
        model: the network.
        ability: one of the above.
        asked: the field of the recipe that asks for it, and its value.
        needs: the names that the network must have.

    Raises:
        ValueError: it cannot; names all three.
    """
    if not isinstance(model, ability):
        raise ValueError(f"{asked}: not with {type(model).__name__}, which has no {needs}")
    return model


def served(pace: Pace, length: int, model: nn.Module) -> Pace:
    """The pace, if the network can be told its times.

    Raises:
        ValueError: texts of this length have a time per position, and it takes one per text.
    """
    if own_times(pace, length):
        asked = f"pace={pace!r}, which gives positions times of their own"
        if not able(model, OwnTimes, asked, "own_times").own_times:
            raise ValueError(f"{asked}: not with {type(model).__name__}, whose own_times is False")
    return pace


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The modules that are treated one by one: its blocks, or the whole network."""
    return list(model.blocks) if isinstance(model, Blocks) else [model]
