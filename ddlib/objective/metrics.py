"""Reported metrics from numbers per token, each with its unit and its standard error."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.utils.validation import check_shape, require

INDEPENDENT = "independent"
STRATIFIED = "stratified"


@dataclass(frozen=True)
class Measure:
    """A number, its standard error and its unit."""

    value: float
    standard_error: float
    unit: str
    method: str = INDEPENDENT
    """Assumption of the error on the draws: "independent", or "stratified", one time in each slice
    of [0, 1].
    """
    caveat: str = ""
    """Reason why the error is too small, and the remedy; empty where intervals have their nominal
    coverage.
    """

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.standard_error:.4f} {self.unit}" + (
            f" ({self.caveat})" if self.caveat else ""
        )

    @classmethod
    def ratio(
        cls,
        amount: Float[Tensor, "N"] | Float[Tensor, "N K"],
        size: Float[Tensor, "N"] | Int64[Tensor, "N"],
        unit: str,
        times: Float[Tensor, "N"] | Float[Tensor, "N K"] | None = None,
        batch: Int64[Tensor, "N"] | None = None,
    ) -> "Measure":
        """Compute sum(amount) / sum(size) over independent sequences, with the standard error of a
        ratio estimate.

        With ``times`` that were drawn in strata, the error excludes the variation of the amount
        with time, which the strata remove. It is computed from differences of neighbours in time,
        which contain the choice of sequences and the noise alone; the usual error, without
        ``times``, contains the variation with time as well and is too large. For several draws of
        one sequence, the variance that they share and the rest are estimated separately.

        The error of a single sequence is NaN.

        Args:
            amount: (N,) amount of each sequence; or (N, K), one per draw, whose mean counts.
            size: (N,) denominators. A sequence with size and amount 0, as one of padding alone, is
                left out.
            unit: unit of the ratio.
            times: times of the draws, in the shape of ``amount``; each column is stratified
                separately. None for independent times, for means over draws, and for amounts
                without times.
            batch: (N,) index of the batch within which the times were stratified; None for a single
                batch.

        Raises:
            ValueError: times of another shape, or a batch without times.
        """
        require(
            batch is None or times is not None,
            "batch is given and times is None, must be given: batch refers to stratified times",
        )
        # on one device: times are on that of a bound's tokens
        amount = amount.cpu()
        size = size.cpu()
        times, batch = (None if each is None else each.cpu() for each in (times, batch))
        counted = (size != 0) | (amount != 0).view(len(amount), -1).any(1)
        if not bool(counted.all()):  # it would count as a sequence without any deviation
            amount = amount[counted]
            size = size[counted]
            times, batch = (None if each is None else each[counted] for each in (times, batch))
        amount = amount[:, None] if amount.ndim == 1 else amount
        value = amount.mean(1).sum() / size.sum()
        n = len(amount)
        residual = amount - value * size[:, None]
        variance = residual.mean(1).square().sum() / max(n - 1, 1)
        method = INDEPENDENT
        if times is not None:
            times = times[:, None] if times.ndim == 1 else times
            check_shape(
                "times", times, tuple(amount.shape), f"that of amount, {tuple(amount.shape)}"
            )
            apart = variance_in_strata(
                residual, times, torch.zeros(n, dtype=torch.int64) if batch is None else batch
            )
            if apart is not None:
                variance = apart
                method = STRATIFIED
        error = math.sqrt(float(variance) * n) / float(size.sum()) if n > 1 else math.nan
        return cls(float(value), error, unit, method)


def variance_in_strata(
    residual: Float[Tensor, "N K"], times: Float[Tensor, "N K"], batch: Int64[Tensor, "N"]
) -> Float[Tensor, ""] | None:
    r"""Variance of a sequence's mean over draws, without the part explained by time.

    None without neighbours in time.

    In each draw :math:`d_i = r_i - r_{j(i)}` for the sequence j(i) that is next in time within the
    batch, or the one before for the last. Smooth variation with time cancels in it. With the
    variance S that the draws of a sequence share and the remaining variance E,

    .. math:: E[d_i^2] = 2 (S + E), \qquad E[d_i d_i'] = (1 + [j(i) = j'(i)])\, S

    in one draw (Rice, 1984) and between two, and the mean of K draws has the variance S + E / K.

    Keyed times are stratified in blocks of 2^k rows: of six rows, four have a quarter of the time
    each and two a half. So neighbours are determined within such blocks too. Their differences have
    more variance, by 7/12 of the square of slope times width. A seventh of this, 1/12, is the
    variance of a time within its slice; it is added to E.
    """
    near, known = _next_in_time(times, batch)
    if not bool(known.any()):
        return None
    apart = torch.where(known, residual - residual.gather(0, near), 0.0)
    whole = apart.square().sum() / (2 * known.sum())
    inside, has = _next_in_time(times, _blocks(batch))
    wide = torch.where(has, residual - residual.gather(0, inside), 0.0).square().sum() / (
        2 * has.sum()
    )
    uneven = (wide - whole).clamp_min(0) / 7
    draws = residual.shape[1]
    if draws == 1:
        return whole + uneven
    shared = torch.zeros((), dtype=apart.dtype)
    count = torch.zeros((), dtype=apart.dtype)
    for one in range(draws):
        for other in range(one):
            both = known[:, one] & known[:, other]
            shared = shared + (apart[:, one] * apart[:, other]).sum()
            count = (
                count + (both.double() + (both & (near[:, one] == near[:, other])).double()).sum()
            )
    between = (shared / count).clamp(torch.zeros_like(whole), whole)
    return between + (whole - between + uneven) / draws


def _blocks(batch: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
    """Number the blocks of 2^k rows of all batches.

    A single row that remains joins the block before it.
    """
    _, number, sizes = batch.unique(return_inverse=True, return_counts=True)
    order = number.argsort(stable=True)
    size = sizes[number]
    place = torch.empty_like(number).scatter(
        0, order, torch.arange(len(number)) - (sizes.cumsum(0) - sizes)[number[order]]
    )
    # the highest bit that is set in the batch's size and not in the row's index is the size of its
    # block
    rows = 2 ** (place ^ size).double().log2().floor().long()
    before = size & ~1
    return number * 2**32 + torch.where((rows == 1) & (before > 0), before & -before, rows)


def _next_in_time(
    times: Float[Tensor, "N K"], batch: Int64[Tensor, "N"]
) -> tuple[Int64[Tensor, "N K"], Bool[Tensor, "N K"]]:
    """Return the next sequence in time within the batch for each draw of each sequence, and True
    where there is one.
    """
    order = times.argsort(dim=0, stable=True)
    order = order.gather(0, batch[order].argsort(dim=0, stable=True))
    owner = batch[order]
    edge = torch.ones_like(owner[:1], dtype=torch.bool)
    change = owner[1:] != owner[:-1]
    last = torch.cat([change, edge])
    first = torch.cat([edge, change])
    beside = torch.where(last, order.roll(1, 0), order.roll(-1, 0))
    near = torch.empty_like(order).scatter(0, order, beside)
    return near, torch.empty_like(last).scatter(0, order, ~(first & last))
