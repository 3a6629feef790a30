"""Exponentials of rate matrices with high relative accuracy in every entry."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes.level_transitions import normalise_rows, short_step, terms_of
from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import require

_TINY = 1e-290
"""Probabilities below this count as zero when a chain is tested for having reached its limit."""

_LONG = 184
"""Duration, in units of the fastest exit, from which one block of the series suffices for the
remainder below 1: paths
of probability above 1e-290 have at most 900 jumps in it, and more than 33 of them are in a
remainder with a probability of at most 1e-17."""

_RECENT_MATRICES = 64
"""Largest number of the latest results that a ``MatrixExponential`` keeps."""
_RECENT_BYTES = 2**27
"""Their largest size in bytes."""


class MatrixExponential(Float64Module):
    r"""Transition matrices :math:`\exp(\sigma G)` of a chain with the constant rate matrix G, for
    up to 1,000 states.

    With :math:`u = 1 / \Lambda`, :math:`\Lambda` the largest exit rate, and :math:`\sigma = u (f +
    \sum_k d_k 4^k)`, :math:`0 \le f < 1`, :math:`d_k \in \{0, 1, 2, 3\}`,

    .. math:: \exp(\sigma G) = \exp(f u G) \prod_{d_k > 0} \exp(d_k 4^k u G)

    The first factor is the uniformised series :math:`e^{-f} \sum_k f^k P^k / k!` with :math:`P = I
    + u G`; the others come from a table that is extended when a larger :math:`\sigma` is first
    used. All factors are products of non-negative matrices whose rows are normalised after each
    product, so nothing cancels: off-diagonal entries keep their relative accuracy, and with them
    slow transitions between groups of states that mix fast. The series has as many terms as the
    longest paths between states require; probabilities below 1e-290 may be returned as 0.

    At an infinite :math:`\sigma` the limit of the chain is returned, found by squaring until no
    entry changes. No duration is truncated, however slowly a chain mixes.

    The results of the last 64 durations are kept (at most 128 MiB), so that a loss, a bound or a
    sampling step that evaluates several functions of one time computes its exponential once. The
    matrix has no gradient; durations have.

    Args:
        matrix: (n, n) rates per unit of :math:`\sigma`, row = from; off-diagonal entries >= 0, rows
            sum to 0.

    Raises:
        ValueError: a matrix that is not square, holds a negative rate, NaN or infinity, or rows
            that do not sum to 0.

    Example:
        >>> exponential = MatrixExponential(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
        >>> exponential(torch.tensor([0.0, math.inf]).double())
        tensor([[[1.0000, 0.0000],
                 [0.0000, 1.0000]],
        <BLANKLINE>
                [[0.5000, 0.5000],
                 [0.5000, 0.5000]]], dtype=torch.float64)
    """

    matrix: Tensor

    def __init__(self, matrix: Sequence[Sequence[float]] | Tensor) -> None:
        super().__init__()
        self.matrix = check_rates("matrix", matrix)
        self._derived: dict[int, _Derived] = {}

    def forward(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        r"""Compute exp(sigma G) for every duration.

        Args:
            sigma: durations of any shape, in [0, inf].

        Returns:
            (..., n, n) transition matrices, row = from; rows sum to 1.

        Raises:
            TypeError: durations that are not a tensor.
        """
        if not isinstance(sigma, Tensor):
            raise TypeError(
                f"sigma is {sigma!r}, must be a tensor of durations, such as torch.tensor([0.5])"
            )
        if sigma.numel() == 0:
            return self.matrix.new_zeros(*sigma.shape, *self.matrix.shape)
        # a matrix made in inference mode could not be used in a later call that needs gradients
        with torch.inference_mode(False), torch.no_grad():
            # each stream of a GPU has its own: results of another one may not be complete
            stream = torch.cuda.current_stream(self.matrix.device) if self.matrix.is_cuda else None
            key = 0 if stream is None else stream.cuda_stream
            derived = self._derived.get(key) or _Derived(self.matrix)
            self._derived = self._derived | {key: derived}
            matrices = [derived.at(value) for value in sigma.detach().double().flatten().tolist()]
        result = torch.stack(matrices).view(*sigma.shape, *self.matrix.shape)
        if sigma.requires_grad:  # d exp(sigma G) / d sigma = exp(sigma G) G
            result = result + (sigma - sigma.detach())[..., None, None] * (result @ self.matrix)
        return result

    def largest_change(self, sigma: float) -> float:
        """Return the largest change of a transition probability after the duration ``sigma``."""
        now, limit = self(self.matrix.new_tensor([sigma, math.inf]))
        return float((now - limit).abs().max())

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._derived = {}
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_derived": {}}


class _Derived:
    """Values derived from a rate matrix: terms of the series, the table of factors, the latest
    results.

    Threads share it: the table and the latest results are replaced as a whole, never changed in
    place.
    """

    def __init__(self, matrix: Float64[Tensor, "n n"]) -> None:
        self.fastest, self.terms = terms_of(matrix)
        self.blocks = blocks_of(self.terms)
        self.table: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
        self.recent: dict[float, Tensor] = {}

    def at(self, sigma: float) -> Float64[Tensor, "n n"]:
        """Return exp(sigma G), from the latest results where it is among them."""
        recent = dict(self.recent)
        power = recent.pop(sigma, None)
        if power is None:
            power = self.compute(sigma)
        most = max(1, min(_RECENT_MATRICES, _RECENT_BYTES // (8 * power.numel())))
        self.recent = dict([*recent.items(), (sigma, power)][-most:])
        return power

    def compute(self, sigma: float) -> Float64[Tensor, "n n"]:
        scaled = sigma * self.fastest
        if math.isinf(scaled):
            return self._limit()
        whole = math.floor(scaled)
        result = self._short(scaled - whole, 1 if whole >= _LONG else self.blocks)
        places = (whole.bit_length() + 1) // 2
        table = self._factors(places)
        for place in range(places):
            if place == len(table):
                return table[-1][-1]  # the chain has reached its limit before 4^place
            digit = whole >> 2 * place & 3
            if digit:
                result = normalise_rows(result @ table[place][digit - 1])
        return result

    def _short(self, step: float, blocks: int) -> Tensor:
        return short_step(self.terms.new_tensor(step), self.terms, blocks)

    def _factors(self, places: int) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """Return the table for this number of places, or for fewer if the chain reaches its limit
        before that.
        """
        table = self.table
        while len(table) < places:
            if table:
                one, _, three = table[-1]
                once = normalise_rows(three @ one)
                if is_settled(three, once):
                    break
            else:
                once = self._short(1.0, self.blocks)
            twice = normalise_rows(once @ once)
            table = (*table, (once, twice, normalise_rows(twice @ once)))
        self.table = table
        return table

    def _limit(self) -> Tensor:
        table = self.table
        before = table[-1][-1] if table else self._short(1.0, self.blocks)
        # ends: every entry has its limit, or is below 1e-290, after some 2,000 doublings at most
        while True:
            after = normalise_rows(before @ before)
            if is_settled(before, after):
                return after
            before = after


def blocks_of(terms: Float64[Tensor, "k n n"]) -> int:
    r"""Return the number of blocks of ``short_step`` after which no probability above 1e-290
    changes.

    Walks from i to j consist of a simple path and of loops, so with r_k = (P^k)_ij, r_k is at most
    the sum of r_m (k choose m) over the lengths m < S of simple paths. So 17 terms behind the
    longest simple path that counts suffice in a step of duration 1, and a path of more than 152
    jumps has a probability below 1e-290 in it. Which paths count depends on the rates. Later terms
    have the largest share in the longest step, of duration 1.
    """
    most = math.ceil((min(terms.shape[1] - 1, 152) + 17) / (len(terms) - 1))
    step = terms.new_ones(())
    complete = short_step(step, terms, most)
    for blocks in range(1, most):
        change = (short_step(step, terms, blocks) - complete).abs()
        if bool(((change <= 1e-15 * complete) | (complete < _TINY)).all()):
            return blocks
    return most


def check_rates(name: str, matrix: Sequence[Sequence[float]] | Tensor) -> Float64[Tensor, "n n"]:
    """Return a rate matrix in float64, its diagonal recomputed so that rows sum to 0 to the last
    digit.

    Args:
        name: of the argument, for error messages.
        matrix: (n, n) rates, row = from, of any dtype; rows sum to 0 within the rounding error of
            its dtype.

    Raises:
        ValueError: not square, NaN, negative rates, or rows that do not sum to 0.
    """
    matrix = matrix if isinstance(matrix, Tensor) else torch.as_tensor(matrix, dtype=torch.float64)
    rounding = torch.finfo(matrix.dtype).eps if matrix.is_floating_point() else 0.0
    matrix = matrix.to(torch.float64)
    require(
        matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.numel() > 0,
        f"{name} has shape {tuple(matrix.shape)}, must be square (S, S) and not empty",
    )
    require(bool(matrix.isfinite().all()), f"{name} holds NaN or infinity, must be finite")
    off_diagonal = matrix - torch.diag(matrix.diagonal())
    require(
        bool((off_diagonal >= 0).all()),
        f"{name} holds the rate {float(off_diagonal.min())}, must be >= 0",
    )
    excess = matrix.sum(1)
    worst = int(excess.abs().argmax())
    allowed = max(1e-9, rounding) * float(off_diagonal.max()) * len(matrix)
    require(
        abs(float(excess[worst])) <= allowed,
        f"{name} row {worst} sums to {float(excess[worst])}, must sum to 0 within {allowed:.2g}: "
        "compute the diagonal from the other rates in the dtype that is passed",
    )
    return off_diagonal - torch.diag(off_diagonal.sum(1))


def is_settled(before: Float64[Tensor, "m m"], after: Float64[Tensor, "m m"]) -> bool:
    """Return whether no probability above 1e-290 changed by more than rounding, relative to itself.

    A slow transition shows in entries that are small and still grow, or still fall, by a factor; so
    an absolute difference would not do.
    """
    rounding = 1e-14 * math.sqrt(len(before)) + 1e-13
    same = (after - before).abs() <= rounding * after
    return bool((same | (torch.maximum(before, after) < _TINY)).all())
