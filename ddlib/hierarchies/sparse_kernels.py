"""Transition kernels with few parents for each child: sparse and banded matrices."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.hierarchies.kernels import Dense, Kernel, check_parents, log_sum, stochastic
from ddlib.hierarchies.maps import Map
from ddlib.utils.categorical import draw
from ddlib.utils.precision import product
from ddlib.utils.validation import check_count, require

_DENSE = 2**20
"""Largest number of entries up to which a sparse kernel is multiplied as a dense matrix, which is
faster.
"""

_BLOCK = 256
"""Number of parents of a block of a band."""


class Sparse(Kernel):
    """Kernel with a few parents for each child, stored as their indices and probabilities.

    Args:
        index: (children, k) parents of each child; an index may repeat where its probability is 0.
        probability: (children, k) their probabilities; rows sum to 1.
        num_parents: number of parents; by default the largest index plus 1.

    Raises:
        TypeError: an index that is not of integers.
        ValueError: shapes that differ, an index outside [0, num_parents), and as ``Dense``.

    Example:
        >>> Sparse([[0, 1], [1, 0]], [[0.7, 0.3], [1.0, 0.0]]).matrix()
        tensor([[0.7000, 0.3000],
                [0.0000, 1.0000]], dtype=torch.float64)
    """

    def __init__(self, index: Any, probability: Any, num_parents: int | None = None) -> None:
        super().__init__()
        index = torch.as_tensor(index)
        if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
            raise TypeError(
                f"index has dtype {index.dtype}, must be integers: the parents of each child"
            )
        index = index.to(torch.int64).clone()
        values = torch.as_tensor(probability, dtype=torch.float64).clone()
        require(
            index.ndim == 2 and index.shape == values.shape,
            f"index has shape {tuple(index.shape)} and probability {tuple(values.shape)}, must "
            "both be (children, k)",
        )
        count = (
            int(index.max()) + 1 if num_parents is None else check_count("num_parents", num_parents)
        )
        low = int(index.min())
        high = int(index.max())
        require(
            low >= 0 and high < count,
            f"index holds {low if low < 0 else high}, must be in [0, {count})",
        )
        self.index = index
        self.values = stochastic(values, "probability")
        self.num_children = len(index)
        self.num_parents = count
        self.parents = index.gather(1, values.argmax(1, keepdim=True)).squeeze(1)
        check_parents(
            torch.zeros(count, dtype=torch.float64).index_add(0, index.flatten(), values.flatten()),
            "index",
        )
        # a band has many entries of 0 at its ends
        used = (self.values.flatten() > 0).nonzero()[:, 0]
        parent = index.flatten()[used]
        self._by_parent = used[parent.argsort(stable=True)]
        children = torch.bincount(parent, minlength=count)
        self._first = pad(children.cumsum(0), (1, 0))
        self._most = int(children.max())
        ordered = torch.where(self.values > 0, index, -1).sort(1).values
        self._repeats = bool(((ordered.diff(dim=1) == 0) & (ordered[:, 1:] >= 0)).any())

    def plain_values(self) -> Any:
        return {
            "index": self.index.tolist(),
            "probability": self.values.tolist(),
            "num_parents": self.num_parents,
        }

    @property
    def parents_of_all(self) -> Bool[Tensor, "parents"]:
        if self._repeats:
            return super().parents_of_all
        return self._first.diff() == self.num_children

    def row(self, child: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n parents"]:
        zeros = self.values.new_zeros(*child.shape, self.num_parents)
        return zeros.scatter_add(-1, self.index[child], self.values[child])

    def column(self, parent: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n children"]:
        child, probability = self._below(parent)
        return self.values.new_zeros(*parent.shape, self.num_children).scatter_add(
            -1, child, probability
        )

    def entry(
        self, child: Int64[Tensor, "*n"], parent: Int64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n"]:
        return torch.where(self.index[child] == parent[..., None], self.values[child], 0.0).sum(-1)

    def push(self, probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        if self.num_children * self.num_parents <= _DENSE:
            return product(probs, self.matrix().to(probs.dtype))
        # transposed: a sparse factor stands on the left
        places = torch.stack(
            [
                self.index.flatten(),
                torch.arange(self.num_children, device=probs.device).repeat_interleave(self._width),
            ]
        )
        shape = self.num_parents, self.num_children
        values = self.values.flatten().to(probs.dtype)
        # indices were checked before
        upwards = torch.sparse_coo_tensor(places, values, shape, check_invariants=False)
        flat = probs.reshape(-1, self.num_children)
        return product(upwards, flat.mT).mT.reshape(*probs.shape[:-1], self.num_parents)

    def at_parents(
        self, child: Int64[Tensor, "*n"], *values: Float[Tensor, "*n parents"]
    ) -> tuple[Float[Tensor, "*n k"], ...]:
        index = self.index[child]
        part = self.values[child]
        probs = self.row(child).gather(-1, index) if self._repeats else part
        return probs, part, *(each.gather(-1, index) for each in values)

    def sample(self, child: Int64[Tensor, "*n"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return self.index[child, draw(self.values[child], u)]

    def compose(self, upper: Kernel) -> Kernel:
        # to the mask: all rows are equal
        if isinstance(upper, Map) and (upper.num_parents == 1 or upper.keep == 0):
            parents = torch.arange(self.num_children, device=self.device) % upper.num_parents
            return Map(parents, upper.num_parents, upper.keep, upper.spread)
        if not isinstance(upper, Sparse) or self.num_children * upper.num_parents <= _DENSE:
            return upper.after(self.matrix())
        block = max(1, _DENSE // max(upper.num_children, upper.num_parents))
        chunks = []
        for children in torch.arange(self.num_children, device=self.device).split(block):
            mass = upper.push(self.row(children))  # dense rows, a few at a time
            chunks.append(mass.topk(int((mass > 0).sum(1).max())))
        width = max(values.shape[1] for values, _ in chunks)
        values, index = (
            torch.cat([pad(part, (0, width - part.shape[1])) for part in each])
            for each in zip(*chunks, strict=True)
        )
        product = Sparse(index, values, upper.num_parents)
        return product if 2 * width < upper.num_parents else Dense(product.matrix())

    def _below(
        self, parent: Int64[Tensor, "*n"]
    ) -> tuple[Int64[Tensor, "*n k"], Float64[Tensor, "*n k"]]:
        """Return the children of each parent, and their probabilities to have it.

        Padded by children with 0.
        """
        place = self._first[parent][..., None] + torch.arange(self._most, device=parent.device)
        inside = place < self._first[parent + 1][..., None]
        entry = self._by_parent[place.clamp_max(len(self._by_parent) - 1)]
        return entry // self._width, torch.where(inside, self.values.flatten()[entry], 0.0)

    @property
    def _terms(self) -> int:
        return self._most

    def _log_mass(
        self,
        log_probs: Float[Tensor, "N children"],
        row: Int64[Tensor, "n"],
        parent: Int64[Tensor, "n"],
    ) -> Float[Tensor, "n"]:
        child, probability = self._below(parent)
        return log_sum(log_probs.flatten()[row[:, None] * self.num_children + child], probability)

    @property
    def _width(self) -> int:
        return self.index.shape[1]


class Banded(Sparse):
    """Kernel between two levels of one ordered alphabet, whose steps have given weights.

    Args:
        size: number of states of each level.
        weights: (2 w + 1,) weights of the steps -w, ..., w, at least 0, in any unit; at most
            ``size`` of them if cyclic, else 2 ``size`` - 1.
        cyclic: True if the first state follows the last. Otherwise rows at the ends are normalised
            over the steps that stay inside.

    Raises:
        TypeError: size not an integer.
        ValueError: an even number of weights, too many, or a negative one; all 0 inside a row.

    Example:
        >>> Banded(3, [1.0, 2.0, 1.0]).matrix()
        tensor([[0.6667, 0.3333, 0.0000],
                [0.2500, 0.5000, 0.2500],
                [0.0000, 0.3333, 0.6667]], dtype=torch.float64)
    """

    def __init__(self, size: int, weights: Any, cyclic: bool = False) -> None:
        steps = torch.as_tensor(weights, dtype=torch.float64)
        check_count("size", size)
        limit = size if cyclic else 2 * size - 1
        require(
            steps.ndim == 1 and len(steps) % 2 == 1 and len(steps) <= limit,
            f"weights has shape {tuple(steps.shape)}, must be (n,) with n odd and at most {limit} "
            f"for {size} states",
        )
        require(bool((steps >= 0).all()), f"weights holds {float(steps.min())}, must be at least 0")
        reach = len(steps) // 2
        target = torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)
        inside = (
            torch.ones_like(target, dtype=torch.bool) if cyclic else (target >= 0) & (target < size)
        )
        values = torch.where(inside, steps, 0.0)
        require(
            bool((values.sum(1) > 0).all()),
            "weights are 0 for all steps that stay within the states, must be positive for at "
            "least one",
        )
        index = target % size if cyclic else target.clamp(0, size - 1)
        mass = values.sum(1)
        super().__init__(index, values / mass[:, None], size)
        self.weights = steps.clone()
        self.cyclic = cyclic
        self._steps = steps / steps.sum()
        self._scale = steps.sum() / mass
        self._even = float(self._scale.max()) < 1e6  # else products of scale and step may underflow

    def push(self, probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        if not self._in_blocks:
            return super().push(probs)
        return self._join(self._product(self._pieces(probs * self._scale.to(probs.dtype), 0.0)))

    def _shift(self, log_probs: Float[Tensor, "*n children"]) -> tuple[Tensor, Tensor]:
        if not self._in_blocks:
            return super()._shift(log_probs)
        pieces = self._pieces(log_probs + self._scale.log().to(log_probs.dtype), -torch.inf)
        highest = torch.stack([piece.detach().amax(-1, keepdim=True) for piece in pieces]).amax(0)
        # of each block: far from it a mass may be tiny
        highest = torch.where(highest.isfinite(), highest, 0.0)
        mass = self._product([(piece - highest).exp() for piece in pieces])
        return self._join(mass), self._join(highest.expand_as(mass))

    @property
    def _in_blocks(self) -> bool:
        return self.num_children**2 > _DENSE and self._even

    @property
    def _reach(self) -> int:
        return max(1, len(self.weights) // 2)

    def _pieces(self, values: Float[Tensor, "*n children"], fill: float) -> Sequence[Tensor]:
        """Return the last children of the block below each block, its own, and the first of the
        block above.
        """
        reach = self._reach
        size = max(_BLOCK, self._reach)
        if self.cyclic:
            values = torch.cat([values[..., -reach:], values, values[..., :reach]], -1)
        blocks = pad(values, (0, -values.shape[-1] % size), value=fill).unflatten(-1, (-1, size))
        below = pad(blocks[..., :-1, size - reach :], (0, 0, 1, 0), value=fill)
        return below, blocks, pad(blocks[..., 1:, :reach], (0, 0, 0, 1), value=fill)

    def _product(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the masses of the parents of each block, from the probabilities of its
        ``_pieces``.
        """
        reach = self._reach
        size = max(_BLOCK, self._reach)
        place = (
            torch.arange(size, device=self.device)
            - torch.arange(-reach, size + reach, device=self.device)[:, None]
        )
        place = place + len(self._steps) // 2
        inside = (place >= 0) & (place < len(self._steps))
        weights = torch.where(inside, self._steps[place.clamp(0, len(self._steps) - 1)], 0.0)
        # all blocks have this one Toeplitz matrix, as steps do not depend on the place
        parts = weights.to(pieces[0].dtype).split([reach, size, reach])
        below, inside_block, above = map(product, pieces, parts)
        return below + inside_block + above

    def _join(self, blocks: Float[Tensor, "*n m k"]) -> Float[Tensor, "*n parents"]:
        start = self._reach if self.cyclic else 0
        return blocks.flatten(-2)[..., start : start + self.num_parents]

    def plain_values(self) -> Any:
        return {"size": self.num_children, "weights": self.weights.tolist(), "cyclic": self.cyclic}
