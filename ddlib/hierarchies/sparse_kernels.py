"""Transition kernels with few parents for each child: sparse and banded matrices."""

from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.hierarchies.kernels import Dense, Kernel, check_parents, log_of_mass, stochastic
from ddlib.utils.categorical import draw
from ddlib.utils.validation import check_count, require

_DENSE = 2**20
"""Largest number of entries up to which a sparse kernel is multiplied as a dense matrix, which is faster."""

_BLOCK = 256
"""Number of parents of a block of a band."""


class Sparse(Kernel):
    """Kernel with a few parents for each child, stored as their indices and probabilities.

    Args:
        index: (children, k) parents of each child; an index may repeat where its probability is 0.
        probability: (children, k) their probabilities; rows sum to 1.
        num_parents: number of parents; by default the largest index plus 1.

    Raises:
        ValueError: shapes that differ, an index outside [0, num_parents), and as ``Dense``.

    Example:
        >>> Sparse([[0, 1], [1, 0]], [[0.7, 0.3], [1.0, 0.0]]).matrix()
        tensor([[0.7000, 0.3000],
                [0.0000, 1.0000]], dtype=torch.float64)
    """

    def __init__(self, index: Any, probability: Any, num_parents: int | None = None) -> None:
        super().__init__()
        index = torch.as_tensor(index).to(torch.int64).clone()
        values = torch.as_tensor(probability, dtype=torch.float64).clone()
        require(
            index.ndim == 2 and index.shape == values.shape,
            f"index has shape {tuple(index.shape)} and probability {tuple(values.shape)}, must both be (children, k)",
        )
        count = int(index.max()) + 1 if num_parents is None else check_count("num_parents", num_parents)
        low, high = int(index.min()), int(index.max())
        require(low >= 0 and high < count, f"index holds {low if low < 0 else high}, must be in [0, {count})")
        self.index, self.values = index, stochastic(values, "probability")
        self.num_children, self.num_parents = len(index), count
        self.parents = index.gather(1, values.argmax(1, keepdim=True)).squeeze(1)
        check_parents(torch.zeros(count, dtype=torch.float64).index_add(0, index.flatten(), values.flatten()), "index")

    def plain_values(self) -> Any:
        return {
            "index": self.index.tolist(),
            "probability": self.values.tolist(),
            "num_parents": self.num_parents,
        }

    @property
    def mixes(self) -> bool:
        return self.index.shape[1] >= self.num_parents and super().mixes

    def row(self, child: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n parents"]:
        empty = self.values.new_zeros(*child.shape, self.num_parents)
        return empty.scatter_add(-1, self.index[child], self.values[child])

    def column(self, parent: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n children"]:
        distinct, which = parent.unique(return_inverse=True)
        place = torch.full((self.num_parents,), -1, device=parent.device)
        place[distinct] = torch.arange(len(distinct), device=parent.device)
        row = place[self.index]
        child, slot = (row >= 0).nonzero(as_tuple=True)
        found = self.values.new_zeros(len(distinct), self.num_children)
        entries = (row[child, slot], child), self.values[child, slot]
        return found.index_put(*entries, accumulate=True)[which]

    def entry(self, child: Int64[Tensor, "*n"], parent: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.where(self.index[child] == parent[..., None], self.values[child], 0.0).sum(-1)

    def push(self, law: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        if self.num_children * self.num_parents <= _DENSE:
            return law @ self.matrix().to(law.dtype)
        places = torch.stack(
            [self.index.flatten(), torch.arange(self.num_children, device=law.device).repeat_interleave(self._width)]
        )
        shape = self.num_parents, self.num_children
        values = self.values.flatten().to(law.dtype)
        upwards = torch.sparse_coo_tensor(places, values, shape, check_invariants=False)  # indices were checked before
        flat = law.reshape(-1, self.num_children)
        return torch.sparse.mm(upwards, flat.mT).mT.reshape(*law.shape[:-1], self.num_parents)

    def sample(self, child: Int64[Tensor, "*n"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return self.index[child, draw(self.values[child], u)]

    def then(self, upper: Kernel) -> Kernel:
        if not isinstance(upper, Sparse) or self.num_children * upper.num_parents <= _DENSE:
            return upper.after(self.matrix())
        block = max(1, _DENSE // max(upper.num_children, upper.num_parents))
        found = []
        for children in torch.arange(self.num_children, device=self.device).split(block):
            mass = upper.push(self.row(children))  # dense rows, a few at a time
            found.append(mass.topk(int((mass > 0).sum(1).max())))
        width = max(values.shape[1] for values, _ in found)
        values, index = (
            torch.cat([pad(part, (0, width - part.shape[1])) for part in each]) for each in zip(*found, strict=True)
        )
        product = Sparse(index, values, upper.num_parents)
        return product if 2 * width < upper.num_parents else Dense(product.matrix())

    @property
    def _terms(self) -> int:
        return self.index.numel()

    def _log_push_of(self, log_probs: Float[Tensor, "n children"]) -> Float[Tensor, "n parents"]:
        terms = (log_probs[..., None] + self.values.log().to(log_probs.dtype)).flatten(1)
        index = self.index.flatten().expand_as(terms)
        zero = terms.new_zeros(len(terms), self.num_parents)
        highest = (zero - torch.inf).scatter_reduce(1, index, terms.detach(), "amax")
        shift = torch.where(highest > -torch.inf, highest, 0.0)
        return log_of_mass(zero.scatter_add(1, index, (terms - shift.gather(1, index)).exp()), shift)

    @property
    def _width(self) -> int:
        return self.index.shape[1]


class Banded(Sparse):
    """Kernel between two levels of one ordered alphabet, whose steps have given weights.

    Args:
        size: number of states of each level.
        weights: (2 w + 1,) weights of the steps -w, ..., w, at least 0, in any unit; at most ``size`` of them.
        cyclic: True if the first state follows the last. Otherwise rows at the ends are normalised over the steps that
            stay inside.

    Raises:
        TypeError: size no integer.
        ValueError: an even number of weights, more than ``size``, or a negative one; all 0 inside a row.

    Example:
        >>> Banded(3, [1.0, 2.0, 1.0]).matrix()
        tensor([[0.6667, 0.3333, 0.0000],
                [0.2500, 0.5000, 0.2500],
                [0.0000, 0.3333, 0.6667]], dtype=torch.float64)
    """

    def __init__(self, size: int, weights: Any, cyclic: bool = False) -> None:
        steps = torch.as_tensor(weights, dtype=torch.float64)
        check_count("size", size)
        require(
            steps.ndim == 1 and len(steps) % 2 == 1 and len(steps) <= (size if cyclic else 2 * size - 1),
            f"weights has shape {tuple(steps.shape)}, must be an odd number of weights that the {size} states hold",
        )
        require(bool((steps >= 0).all()), f"weights holds {float(steps.min())}, must be at least 0")
        reach = len(steps) // 2
        target = torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)
        inside = torch.ones_like(target, dtype=torch.bool) if cyclic else (target >= 0) & (target < size)
        values = torch.where(inside, steps, 0.0)
        require(bool((values.sum(1) > 0).all()), "weights are 0 for all steps that stay inside, must leave some")
        index = target % size if cyclic else target.clamp(0, size - 1)
        super().__init__(index, values / values.sum(1, keepdim=True), size)
        self.weights, self.cyclic = steps.clone(), cyclic

    def push(self, law: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        size, reach = self.num_children, len(self.weights) // 2
        if size**2 <= _DENSE:
            return super().push(law)
        # dense products of blocks: parents [256 b, 256 (b + 1)) with all children within reach
        children = torch.arange(-reach, -(-size // _BLOCK) * _BLOCK + reach, device=law.device)
        child = children % size if self.cyclic else children.clamp(0, size - 1)
        span = _BLOCK + 2 * reach
        step = torch.arange(_BLOCK, device=law.device) - torch.arange(span, device=law.device)[:, None] + 2 * reach
        here = child.unfold(0, span, _BLOCK)[..., None]
        inside = (
            (step >= 0) & (step <= 2 * reach) & (self.cyclic | (here == children.unfold(0, span, _BLOCK)[..., None]))
        )
        blocks = torch.where(inside, self.values[here, step.clamp(0, 2 * reach)], 0.0).to(law.dtype)
        found = torch.einsum("...bs,bsc->...bc", law[..., child].unfold(-1, span, _BLOCK), blocks)
        return found.flatten(-2)[..., :size]

    def plain_values(self) -> Any:
        return {"size": self.num_children, "weights": self.weights.tolist(), "cyclic": self.cyclic}
