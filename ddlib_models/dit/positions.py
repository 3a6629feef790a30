"""Positions of a sequence: rotary angles along the sequence or over rows and columns, or learned
vectors.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.layers import turns


class PositionEncoding(ABC):
    """How a network depends on positions: angles that turn queries and keys, or vectors added to
    the embeddings.

    Attributes:
        shape: rows and columns of a picture, (H, W); the maximal length alone, (L,); () without a
            limit.
    """

    shape: tuple[int, ...]

    @abstractmethod
    def angles(self, index: Int[Tensor, " L"]) -> Float[Tensor, "L half"] | None:
        """Return the angle in radians of each position (row) in each plane (column).

        None for no rotation.
        """

    def add_to(self, x: Float[Tensor, "B L D"], index: Int[Tensor, " L"]) -> Float[Tensor, "B L D"]:
        """Return the embeddings with the vectors of their positions added, if there are any."""
        return x

    def check_length(self, length: int, prefix: bool = False) -> None:
        """Raise ValueError for a sequence of another length than the shape has positions.

        Args:
            length: number of positions, those of a cache included.
            prefix: whether the beginning of a sequence will do, as in a network with blocks.
        """
        size = math.prod(self.shape)
        if not self.shape or length == size or (length < size and (prefix or len(self.shape) == 1)):
            return
        rule = "at most" if prefix or len(self.shape) == 1 else "exactly"
        raise ValueError(f"z has {length} positions: must have {rule} {size}, shape={self.shape}")


@dataclass(frozen=True)
class Rotary(PositionEncoding):
    """Rotary positions along the sequence (RoPE, Su et al. 2021, arXiv 2104.09864), of any length.

    Position p turns plane k of a head by p * 10000^(-2 k / K), k < K/2.

    Args:
        head_dim: width K of a head, even.
    """

    head_dim: int
    shape: tuple[int, ...] = ()

    def angles(self, index: Int[Tensor, " L"]) -> Float[Tensor, "L half"]:
        return turns(index, self.head_dim)


@dataclass(frozen=True)
class Rotary2D(PositionEncoding):
    """Rotary positions in two dimensions, for pictures in raster order: position p is in row p //
    W, column p % W.

    The first half of a head's planes turns by the row, the second by the column, each with all
    frequencies 100^(-4 k / K), k < K/4: attention depends on differences of rows and of columns.
    Axial RoPE as in EVA-02 (Fang et al. 2023, arXiv 2303.11331) and Heo et al. (2024, arXiv
    2403.13298), with the base of the latter: sides of a picture are shorter than sequences, and
    10000 would leave half of the planes almost at rest.

    Args:
        head_dim: width K of a head, a multiple of 4.
        shape: rows H and columns W.
    """

    head_dim: int
    shape: tuple[int, ...]

    def angles(self, index: Int[Tensor, " L"]) -> Float[Tensor, "L half"]:
        width = self.shape[1]
        rows = index // width
        columns = index % width
        return torch.cat(
            [turns(place, self.head_dim // 2, base=100.0) for place in (rows, columns)], dim=-1
        )


class Learned(nn.Embedding, PositionEncoding):
    """One learned vector per position, added to the embedding of its state; nothing is rotated.

    The vectors start normal with standard deviation 0.02, as in vision transformers. A table of
    zeros makes the network independent of positions.

    Args:
        shape: (H, W) of pictures in raster order, or the maximal length (L,).
        dim: width D.
    """

    def __init__(self, shape: tuple[int, ...], dim: int) -> None:
        super().__init__(math.prod(shape), dim)
        self.shape = shape

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def angles(self, index: Int[Tensor, " L"]) -> None:
        return None

    def add_to(self, x: Float[Tensor, "B L D"], index: Int[Tensor, " L"]) -> Float[Tensor, "B L D"]:
        return x + self(index)


def positions_of(name: str, shape: Sequence[int], dim: int, head_dim: int) -> PositionEncoding:
    """Return the positions of this name: "rope", "rope2d" or "learned".

    Args:
        name: their name.
        shape: (H, W) for "rope2d"; (H, W) or (L,) for "learned"; () for "rope".
        dim: width D.
        head_dim: width K of a head.

    Raises:
        TypeError: a shape of other numbers than int.
        ValueError: naming the argument, its value and the rule it breaks.
    """
    sides = {"rope": (), "rope2d": (2,), "learned": (1, 2)}
    if name not in sides:
        raise ValueError(f"positions={name!r}: must be one of {', '.join(sides)}")
    ints = isinstance(shape, Sequence) and all(
        isinstance(side, int) and not isinstance(side, bool) for side in shape
    )
    if not ints:
        raise TypeError(f"shape={shape!r}: must be ints, (H, W) or (L,), or ()")
    if name == "rope":
        if len(shape):
            raise ValueError(
                f"shape={tuple(shape)}: must be () with positions='rope', which supports any length"
            )
        return Rotary(head_dim)
    if len(shape) not in sides[name] or min(shape) < 1:
        rule = "(H, W)" if name == "rope2d" else "(H, W) or (L,)"
        raise ValueError(
            f"shape={tuple(shape)}: must be {rule}, each at least 1, with positions={name!r}"
        )
    if name == "learned":
        return Learned(tuple(shape), dim)
    if head_dim % 4:
        raise ValueError(
            f"dim/heads={head_dim}: positions='rope2d' rotates pairs of dimensions, half of them "
            "by rows and half by "
            "columns, so it must be a multiple of 4"
        )
    return Rotary2D(head_dim, tuple(shape))
