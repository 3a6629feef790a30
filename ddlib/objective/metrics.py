"""Reported metrics from numbers per token, each with its unit and its standard error."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.typing import PaddingMask, PerToken, Times
from ddlib.utils.validation import check_mask, check_shape, check_times, require

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


class Tally:
    """Sum of bounds over a corpus, reported per token, per sequence and per byte.

    The standard error is over sequences, so it includes both the choice of sequences and that of
    times and noise. With the ``times`` of stratified draws, as ``dd.bound`` returns them, it
    excludes the variation with time; without them it is too large rather than too small.

    Example:
        >>> tally = Tally()
        >>> tally.add(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), num_bytes=torch.tensor([6, 10]))
        >>> print(tally.per_token, tally.per_sequence, sep="; ")
        2.5000 ± 1.0000 nats/token; 5.0000 ± 2.0000 nats/sequence
    """

    def __init__(self) -> None:
        self._nats: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._bytes: list[Tensor] = []
        self._times: list[Tensor] = []

    def add(
        self,
        nats: PerToken,
        mask: PaddingMask | None = None,
        num_bytes: Int64[Tensor, "B"] | None = None,
        times: Times | None = None,
    ) -> None:
        """Add a batch of sequences.

        Args:
            nats: (B, L) nats per token.
            mask: (B, L) bool, True at the tokens that count.
            num_bytes: (B,) bytes of UTF-8 text that the counted tokens of each sequence stand for.
            times: (B,) times of the draws, if they were drawn in strata within the batch; not for
                means over draws.

        Raises:
            TypeError, ValueError: NaN or infinite nats, bad shapes, times outside [0, 1], or bytes
                or times given for some batches only.
        """
        check_shape("nats", nats, (None, None), "(B, L)")
        nats = nats.detach().to("cpu", torch.float64)
        mask = torch.ones_like(nats, dtype=torch.bool) if mask is None else mask.cpu()
        check_mask("mask", mask, nats.shape)
        nats = torch.where(mask, nats, 0.0)
        require(bool(nats.isfinite().all()), "nats holds NaN or infinity, must be finite")
        require(
            not self._nats or (num_bytes is None) == (not self._bytes),
            "num_bytes must be given for every batch or for none",
        )
        require(
            not self._nats or (times is None) == (not self._times),
            "times must be given for every batch or for none",
        )
        if times is not None:
            check_times("times", times, len(nats))
        if num_bytes is not None:
            check_shape("num_bytes", num_bytes, (len(nats),), f"(B,) = ({len(nats)},)")
            require(bool((num_bytes > 0).all()), "num_bytes must be positive for every sequence")
            self._bytes.append(num_bytes.to("cpu", torch.float64))
        if times is not None:
            self._times.append(times.to("cpu", torch.float64))
        self._nats.append(nats.sum(1))
        self._tokens.append(mask.sum(1).to(torch.float64))

    @property
    def per_token(self) -> Measure:
        """Nats per token."""
        return self._over(self._all(self._tokens), "nats/token")

    @property
    def per_sequence(self) -> Measure:
        """Nats per sequence."""
        return self._over(torch.ones_like(self._all(self._nats)), "nats/sequence")

    @property
    def bits_per_byte(self) -> Measure:
        """Bits per byte of UTF-8 text."""
        require(len(self._bytes) > 0, "bits per byte require num_bytes, which no batch has")
        return self._over(self._all(self._bytes) * math.log(2), "bits/byte")

    @property
    def perplexity(self) -> Measure:
        """Perplexity, exp of nats per token; its error by the delta method."""
        nats = self.per_token
        value = math.exp(nats.value)
        return Measure(value, value * nats.standard_error, "perplexity/token", nats.method)

    def _over(self, size: Tensor, unit: str) -> Measure:
        nats = self._all(self._nats)
        if not self._times:
            return Measure.ratio(nats, size, unit)
        batch = torch.cat(
            [torch.full((len(part),), number) for number, part in enumerate(self._nats)]
        )
        return Measure.ratio(nats, size, unit, self._all(self._times), batch)

    def _all(self, parts: list[Tensor]) -> Tensor:
        require(len(self._nats) > 0, "the tally is empty: nothing was added")
        return torch.cat(parts)
