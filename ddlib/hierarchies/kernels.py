"""Transition kernels between two levels: base class, and dense matrices."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ddlib.utils.categorical import draw
from ddlib.utils.precision import Float64Module, product
from ddlib.utils.validation import require, visible

_TERMS = 2**22
"""Largest number of logarithms at once."""


class Kernel(Float64Module):
    r"""Row-stochastic matrix :math:`K(\text{parent}|\text{child})` between two adjacent levels
    (theory section 16).

    A subclass implements ``row``, ``column``, ``push`` and ``compose``; the other methods have
    defaults that build rows.
    """

    num_children: int
    """Number of states of the lower level."""
    num_parents: int
    """Number of states of the upper level."""
    parents: Tensor
    """The likeliest parent of each child, (children,) int64."""

    def plain_values(self) -> Any:
        """Return numbers, lists and mappings from which ``kernel_of`` builds the kernel."""
        return self.matrix().tolist()

    @property
    def plain(self) -> bool:
        """True only if every child has one parent, ``parents``.

        False is right for any kernel, and slower.
        """
        return False

    @property
    def one_pass(self) -> bool:
        """True if ``log_push`` is one pass over its input: a loss then computes it at all
        positions.
        """
        return False

    @property
    def parents_of_all(self) -> Bool[Tensor, "parents"]:
        """True at parents that every child may have, (parents,)."""
        return (self.matrix() > 0).all(0)

    @property
    def xi(self) -> str:
        """Probability of the likeliest parent, formatted for printing.

        A range if it differs between children.
        """
        if self.parents.is_meta:
            return "meta"
        likeliest = self.entry(torch.arange(self.num_children, device=self.device), self.parents)
        low = float(likeliest.min())
        high = float(likeliest.max())
        return f"{low:.4g}" if high - low < 1e-9 else f"{low:.3g} to {high:.3g}"

    @abstractmethod
    def row(self, child: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n parents"]:
        """Return K(parent | child) for every parent."""

    @abstractmethod
    def column(self, parent: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n children"]:
        """Return K(parent | child) for every child."""

    @abstractmethod
    def push(self, probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        """Return the distribution of the parent if the child has the distribution ``probs``."""

    @abstractmethod
    def compose(self, upper: "Kernel") -> "Kernel":
        """Return the product of this kernel and ``upper``, the kernel of the next edge."""

    def after(self, matrix: Float64[Tensor, "below children"]) -> "Kernel":
        """Return the product of a matrix from a lower level and this kernel."""
        return Dense(self.push(matrix))

    def entry(
        self, child: Int64[Tensor, "*n"], parent: Int64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n"]:
        """Return K(parent | child), elementwise."""
        return self.row(child).gather(-1, parent[..., None]).squeeze(-1)

    def matrix(self) -> Float64[Tensor, "children parents"]:
        """Return the dense matrix."""
        return self.row(torch.arange(self.num_children, device=self.device))

    def log_push(self, log_probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        """Compute ``push`` in the log domain: finite wherever the mass is positive, however small.

        On an accelerator, where that takes a synchronisation, masses are clamped instead, unless
        ``debug(True)`` was called: results are at least the largest of ``log_probs`` (in a band: of
        those nearby) minus 87.3 in float32, 708.4 in float64, and lose digits from 15.9, or 36,
        plus the logarithm of the number of terms above that.
        """
        mass, highest = self._shift(log_probs)
        tiny = torch.finfo(mass.dtype).tiny
        eps = torch.finfo(mass.dtype).eps
        result = mass.clamp_min(tiny).log() + highest
        small = mass.detach() < tiny * self._terms / eps  # lower masses may lack digits
        if not visible(small) or not bool(small.any()):
            return result
        rows = log_probs.reshape(-1, self.num_children)
        row, parent = (
            each.split(max(1, _TERMS // self._terms))
            for each in small.flatten(0, -2).nonzero().unbind(1)
        )
        exact = [
            checkpoint(self._log_mass, rows, *pairs, use_reentrant=False, preserve_rng_state=False)
            for pairs in zip(row, parent, strict=True)
        ]
        return result.masked_scatter(small, torch.cat(exact))

    def log_mass(
        self, log_probs: Float[Tensor, "*n children"], parent: Int64[Tensor, "*n"]
    ) -> Float[Tensor, "*n"]:
        """Compute ``log_push`` at one parent for each row, from its column.

        Exact on every device.
        """
        row = torch.arange(parent.numel(), device=parent.device)
        return self._log_mass(log_probs.reshape(-1, self.num_children), row, parent.flatten()).view(
            parent.shape
        )

    def at_parents(
        self, child: Int64[Tensor, "*n"], *values: Float[Tensor, "*n parents"]
    ) -> tuple[Float[Tensor, "*n k"], ...]:
        """Return a child's probabilities, and ``values``, at the parents it may have and perhaps at
        others.

        Returns:
            The probability of each parent, its share in this entry where a parent has several, then
            ``values``.
        """
        probs = self.row(child)
        return probs, probs, *values

    def sample(self, child: Int64[Tensor, "*n"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Draw a parent for each child from the uniforms ``u`` in [0, 1), by inversion."""
        return draw(self.row(child), u)

    def restrict(
        self, children: Int64[Tensor, "kept"], parents: Int64[Tensor, "kept_parents"]
    ) -> "Kernel":
        """Return the kernel between subsets of children and parents, its rows normalised.

        Each keeps some mass.
        """
        matrix = self.row(children)[:, parents]
        return Dense(matrix / matrix.sum(1, keepdim=True))

    @property
    def device(self) -> torch.device:
        """Device of the constants."""
        return next(value for _, value in self.constants()).device

    @property
    def _terms(self) -> int:
        """Number of terms of the mass of a parent."""
        return self.num_children

    def _shift(self, log_probs: Float[Tensor, "*n children"]) -> tuple[Tensor, Tensor]:
        """Return masses of parents, of which the largest is not far below 1, and the logarithm of
        their unit.
        """
        highest = log_probs.detach().amax(-1, keepdim=True)
        highest = torch.where(highest.isfinite(), highest, 0.0)
        return self.push((log_probs - highest).exp()), highest

    def _log_mass(
        self,
        log_probs: Float[Tensor, "N children"],
        row: Int64[Tensor, "n"],
        parent: Int64[Tensor, "n"],
    ) -> Float[Tensor, "n"]:
        """Return the log-mass of a parent in a row, for pairs of both."""
        return log_sum(log_probs[row], self.column(parent))


class Dense(Kernel):
    """Kernel given as a matrix.

    Args:
        matrix: (children, parents) probabilities, row = child; rows sum to 1.

    Raises:
        ValueError: not two axes, a negative or non-finite entry, a row that does not sum to 1
            within 1e-6, or a parent that no child has.

    Example:
        >>> Dense([[0.9, 0.1], [0.2, 0.8]]).push(torch.tensor([0.5, 0.5]))
        tensor([0.5500, 0.4500])
    """

    def __init__(self, matrix: Any) -> None:
        super().__init__()
        values = torch.as_tensor(matrix, dtype=torch.float64).clone()
        require(
            values.ndim == 2, f"matrix has shape {tuple(values.shape)}, must be (children, parents)"
        )
        self.values = stochastic(values, "matrix")
        check_parents(self.values.sum(0), "matrix")
        self.num_children, self.num_parents = self.values.shape
        self.parents = self.values.argmax(1)

    def row(self, child: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n parents"]:
        return self.values[child]

    def column(self, parent: Int64[Tensor, "*n"]) -> Float64[Tensor, "*n children"]:
        return self.values.mT[parent]

    def entry(
        self, child: Int64[Tensor, "*n"], parent: Int64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n"]:
        return self.values[child, parent]

    def push(self, probs: Float[Tensor, "*n children"]) -> Float[Tensor, "*n parents"]:
        return product(probs, self.values.to(probs.dtype))

    def compose(self, upper: Kernel) -> Kernel:
        return upper.after(self.values)


def information(kernel: Kernel, child: Int64[Tensor, "n"]) -> float:
    """Return the mutual information of a uniform child and its parent, in nats: H(parent) -
    H(parent | child).

    Args:
        kernel: the distribution of the parent given the child.
        child: (n,) children over which the conditional entropy is averaged; all, or some of many.
    """
    uniform = torch.full(
        (kernel.num_children,), 1 / kernel.num_children, dtype=torch.float64, device=child.device
    )
    marginal = kernel.push(uniform)
    rows = kernel.row(child)
    return float(torch.special.entr(marginal).sum() - torch.special.entr(rows).sum(-1).mean())


def log_sum(log_probs: Float[Tensor, "n k"], weights: Float64[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Return the logarithm of the weighted sum of probabilities.

    -inf with gradient 0 where it is 0.
    """
    terms = log_probs + weights.log().to(log_probs.dtype)
    highest = terms.detach().amax(-1)
    shift = torch.where(highest > -torch.inf, highest, 0.0)
    mass = (terms - shift[:, None]).exp().sum(-1)
    # the inner where keeps the gradient of the branch that is not taken finite
    return torch.where(mass > 0, torch.where(mass > 0, mass, 1.0).log() + shift, -torch.inf)


def stochastic(values: Float64[Tensor, "children k"], name: str) -> Float64[Tensor, "children k"]:
    """Return the rows, normalised to the last digit, after the check that they are
    distributions.
    """
    if values.is_meta:
        return values
    require(values.numel() > 0, f"{name} has shape {tuple(values.shape)}, must not be empty")
    require(bool(values.isfinite().all()), f"{name} holds NaN or infinity, must be probabilities")
    worst = int(values.amin(1).argmin())
    require(
        bool((values >= 0).all()),
        f"{name} row {worst} holds {float(values.min())}, must be at least 0",
    )
    total = values.sum(1)
    worst = int((total - 1).abs().argmax())
    require(
        abs(float(total[worst]) - 1) < 1e-6,
        f"{name} row {worst} sums to {float(total[worst]):.9g}, must sum to 1",
    )
    exact = abs(float(total[worst]) - 1) < 1e-14 * values.shape[1]
    # a second normalisation would change the last digit
    return values if exact else values / total[:, None]


def check_parents(mass: Float64[Tensor, "parents"], name: str) -> None:
    """Raise ValueError unless every parent has some mass."""
    empty = (mass == 0).nonzero().flatten().tolist()
    require(
        not empty,
        f"{name} gives state {empty[:5]} of the upper level no child, every state must have one",
    )
