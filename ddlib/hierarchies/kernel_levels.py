"""Hierarchies with arbitrary stochastic kernels between their levels."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from ddlib.config.part import record_maker
from ddlib.hierarchies.base import Hierarchy, reduction
from ddlib.hierarchies.kernels import Dense, Kernel
from ddlib.hierarchies.maps import to_masks
from ddlib.hierarchies.sparse_kernels import Banded, Sparse
from ddlib.utils.validation import check_count, check_flag, check_number, require


class Kernels(Hierarchy):
    r"""Hierarchy of any row-stochastic matrices.

    ``K_i(parent|child)`` between levels i and i + 1 (theory section 16).

    The bound, the posterior and the samplers need no more than one column of a kernel for each
    position and one product of a distribution with it. Fused losses and child logits are for trees.

    Args:
        kernels: one for each edge, tokens first, up to the mask or to the last level below it, from
            which the edge to the mask is implied: a ``Dense``, ``Sparse``, ``Banded`` or ``Map``;
            or plain values, a matrix or a mapping of the arguments of ``Sparse`` or ``Banded``.
        speed: one number per edge, the edge to the mask last. Default all 1.

    Raises:
        TypeError: a kernel of another kind.
        ValueError: kernels that do not chain; rows that are not distributions; bad speeds.

    Example:
        >>> hierarchy = Kernels([Dense([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])])
        >>> hierarchy.levels
        (3, 2, 1)
    """

    def __init__(
        self,
        kernels: Sequence[Any],
        speed: Sequence[float] | None = None,
    ) -> None:
        if isinstance(kernels, Kernel | Mapping | str) or not isinstance(kernels, Sequence):
            raise TypeError(
                f"kernels is a {type(kernels).__name__}, must be a list of one kernel for each edge"
            )
        edges = [kernel_of(each, f"kernels[{i}]") for i, each in enumerate(kernels)]
        super().__init__(_to_mask(edges), speed)
        self.declare(speed=speed)

    @property
    def kernels(self) -> list[Any]:
        """The kernels as plain values, that to the mask included."""
        return [kernel.plain_values() for kernel in self.maps]

    @classmethod
    def examples(cls) -> Sequence[Self]:
        rows = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]]
        soft = Sparse([[0, 1], [1, 0], [1, 0]], [[0.6, 0.4], [1.0, 0.0], [0.5, 0.5]])
        return [cls([Dense(rows)]), cls([Dense(rows), soft], speed=[0.7, 1.3, 2.0])]


class Blur(Kernels):
    r"""Levels over one ordered alphabet: value, blurred value, more blurred value, ..., mask.

    Level i holds the token after Gaussian steps with the standard deviation ``widths[i - 1]``,
    rounded to the alphabet. So nearby values take each other's place, as in ordinal or discretised
    Gaussian noise, but the level shows how much noise a position has: structured noise whose time
    is known (compare SCUD, arXiv 2506.08316).

    Args:
        size: number of tokens V, in order, e.g. 256 grey values.
        widths: standard deviation of each blurred level, in tokens, increasing.
        cyclic: True if the first value follows the last: hours, angles, pitches of an octave.
        speed: as in ``Kernels``, one per edge: ``len(widths) + 1`` numbers.

    Raises:
        TypeError, ValueError: a size below 2; no width, one below 0.1, or widths that do not
            increase.

    Example:
        >>> blur = Blur(16, widths=[1.0, 4.0])
        >>> blur.levels
        (16, 16, 16, 1)
    """

    def __init__(
        self,
        size: int,
        widths: Sequence[float],
        cyclic: bool = False,
        speed: Sequence[float] | None = None,
    ) -> None:
        check_count("size", size, 2)
        check_flag("cyclic", cyclic)
        require(
            not isinstance(widths, str) and len(widths) > 0,
            f"widths is {widths!r}, must be a list of one standard deviation for each blurred "
            "level",
        )
        checked = [
            check_number(f"widths[{i}]", each, 0.1, 1e6, "a width of at least 0.1 tokens")
            for i, each in enumerate(widths)
        ]
        for i, (low, high) in enumerate(pairwise(checked)):
            require(low < high, f"widths[{i + 1}] is {high:g}, must be above widths[{i}] = {low:g}")
        steps = [math.sqrt(high**2 - low**2) for low, high in pairwise([0.0, *checked])]
        super().__init__([_gaussian(size, step, cyclic) for step in steps], speed)
        self.size = size
        self.widths = tuple(checked)
        self.cyclic = cyclic

    def small_copy(self, vocab_size: int) -> Self:
        """Return a blur of fewer values, with widths in proportion."""
        check_count("vocab_size", vocab_size, 2)
        size = max(2, min(self.vocab_size, vocab_size // len(self.widths)))
        scale = max(size / self.vocab_size, 0.4 / self.widths[0])
        widths = [width * scale for width in self.widths]
        small = Blur(size, widths, self.cyclic, self.speeds)
        named_copy: Self = record_maker(small, reduction, hierarchy=self, vocab_size=vocab_size)
        return named_copy

    @staticmethod
    def from_similarity(
        matrix: Any, temperatures: Sequence[float], speed: Sequence[float] | None = None
    ) -> Kernels:
        r"""Return levels of an alphabet with a similarity, e.g. amino acids: :math:`K_i \propto
        \exp(S / T_i)`.

        Args:
            matrix: (V, V) similarity S of each pair of tokens, in any unit, e.g. ``blosum62()``.
            temperatures: T_i of the edge to each blurred level, in the unit of S, increasing.
            speed: as in ``Kernels``.

        Raises:
            ValueError: not square, not finite; no temperature, or temperatures that are not
                positive and increasing.
        """
        values = torch.as_tensor(matrix, dtype=torch.float64)
        require(
            values.ndim == 2
            and values.shape[0] == values.shape[1]
            and bool(values.isfinite().all()),
            f"matrix has shape {tuple(values.shape)}, must be square (V, V) and finite",
        )
        require(
            len(temperatures) > 0, "temperatures is empty, must hold one for each blurred level"
        )
        for i, each in enumerate(temperatures):
            check_number(f"temperatures[{i}]", each, 1e-6, 1e6, "a positive temperature")
            require(
                i == 0 or each > temperatures[i - 1],
                f"temperatures[{i}] is {each:g}, must be above temperatures[{i - 1}] = "
                f"{temperatures[i - 1]:g}",
            )
        return Kernels([Dense((values / each).softmax(1)) for each in temperatures], speed)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(5, [1.0]), cls(6, [0.8, 2.0], cyclic=True, speed=[2.0, 1.0, 0.7])]


class Soft(Kernels):
    """Clusters that share their tokens: a token belongs to several clusters, with probabilities.

    Args:
        memberships: (V, C) probability of each cluster given the token, rows sum to 1; or a mapping
            of the arguments of ``Sparse``, for a few clusters per token of many.
        speed: one number for each of the two edges. Default all 1.

    Raises:
        TypeError, ValueError: as ``Kernels``.

    Example:
        >>> Soft([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]).levels
        (3, 2, 1)
    """

    def __init__(self, memberships: Any, speed: Sequence[float] | None = None) -> None:
        super().__init__([kernel_of(memberships, "memberships")], speed)

    @property
    def memberships(self) -> Any:
        """The probabilities of clusters given tokens as plain values."""
        return self.maps[0].plain_values()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8], [0.0, 1.0]])]


def kernel_of(given: Any, name: str) -> Kernel:
    """Return a kernel, or build one: ``Dense`` of a matrix, ``Sparse`` or ``Banded`` of a mapping
    of its arguments.

    Raises:
        TypeError, ValueError: not a kernel; as the classes, with the name of the argument.
    """
    if isinstance(given, Kernel):
        return given
    if given is None or isinstance(given, str | bool | int | float):
        raise TypeError(
            f"{name} is {given!r}, must be a Kernel, a matrix, or a mapping of a kernel's arguments"
        )
    try:
        if isinstance(given, Mapping):
            return (Banded if "weights" in given else Sparse)(**given)
        return Dense(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _to_mask(kernels: list[Kernel]) -> list[Kernel]:
    require(
        len(kernels) > 0, "kernels is empty, must contain at least one, an edge of the hierarchy"
    )
    last = kernels[-1]
    below = kernels[:-1] if last.num_parents == 1 else kernels
    top = last.num_children if last.num_parents == 1 else last.num_parents
    return [*below, to_masks(top)]


def _gaussian(size: int, width: float, cyclic: bool) -> Kernel:
    """Gaussian steps of one width; dense where the band would hold most of the matrix."""
    reach = min(max(1, math.ceil(6 * width)), (size - 1) // 2 if cyclic else size - 1)
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    # the probability that a step ends there, after any number of turns
    if cyclic and 2 * reach + 1 >= size // 2:
        turns = (
            torch.arange(-math.ceil(6 * width / size) - 1, math.ceil(6 * width / size) + 2) * size
        )
        distance = torch.arange(size)[:, None] - torch.arange(size)
        circle = _density(distance[..., None] + turns, width).sum(-1)
        return Dense(circle / circle.sum(1, keepdim=True))
    banded = Banded(size, _density(steps, width), cyclic)
    return Dense(banded.matrix()) if 2 * (2 * reach + 1) >= size else banded


def _density(step: Tensor, width: float) -> Tensor:
    return torch.exp(-0.5 * (step.to(torch.float64) / width) ** 2)
