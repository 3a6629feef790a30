"""Sum of bounds over a corpus."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.objective.bound import Bound
from ddlib.objective.metrics import Measure
from ddlib.typing import PaddingMask, PerToken, Times
from ddlib.utils.validation import check_mask, check_shape, check_times, require


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
        self._caveat: Callable[[], str] = str

    def add(
        self,
        nats: Bound | PerToken,
        mask: PaddingMask | None = None,
        num_bytes: Int64[Tensor, "B"] | None = None,
        times: Times | None = None,
    ) -> None:
        """Add a batch of sequences.

        Args:
            nats: a bound, with its mask, times and caveat; or (B, L) nats per token.
            mask: (B, L) bool, True at the tokens that count; not with a bound. For ``bound.total``
                it is ``bound.mask``, without which the tokens outside count as 0 nats.
            num_bytes: (B,) bytes of UTF-8 text that the counted tokens of each sequence stand for.
            times: (B,) times of the draws, if they were drawn in strata within the batch; not for
                means over draws, nor with a bound.

        Raises:
            TypeError, ValueError: NaN or infinite nats, bad shapes, times outside [0, 1], or bytes
                or times given for some batches only.
        """
        if isinstance(nats, Bound):
            require(
                mask is None and times is None,
                "mask or times is given with a bound, must be None: those of the bound are used",
            )
            mask = nats.mask
            times = nats.times
            self._caveat = nats.caveat
            nats = nats.total
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
        error = value * nats.standard_error
        return Measure(value, error, "perplexity/token", nats.method, nats.caveat)

    def _over(self, size: Tensor, unit: str) -> Measure:
        nats = self._all(self._nats)
        times = self._all(self._times) if self._times else None
        parts = [torch.full((len(part),), number) for number, part in enumerate(self._nats)]
        batch = torch.cat(parts) if self._times else None
        return replace(Measure.ratio(nats, size, unit, times, batch), caveat=self._caveat())

    def _all(self, parts: list[Tensor]) -> Tensor:
        require(len(self._nats) > 0, "the tally is empty: nothing was added")
        return torch.cat(parts)
