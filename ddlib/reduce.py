"""The one place where numbers per token become numbers to report, each with its unit and its standard error."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.checks import check_mask, check_shape, require
from ddlib.typing import PaddingMask, PerToken


def mean_per_token(values: PerToken, mask: PaddingMask | None = None) -> Float[Tensor, ""]:
    """Mean over all tokens, or over those where ``mask`` is True; differentiable."""
    if mask is None:
        return values.mean()
    check_mask("mask", mask, values.shape)
    return torch.where(mask, values, 0.0).sum() / mask.sum()


@dataclass(frozen=True)
class Measure:
    """A number, its standard error and its unit."""

    value: float
    standard_error: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.standard_error:.4f} {self.unit}"

    @classmethod
    def ratio(cls, amount: Tensor, size: Tensor, unit: str) -> "Measure":
        """sum(amount) / sum(size) over independent sequences, with the standard error of a ratio estimate.

        NaN as the error of a single sequence.
        """
        value = amount.sum() / size.sum()
        n = len(amount)
        residual = (amount - value * size).square().sum() / max(n - 1, 1)
        error = math.sqrt(float(residual) * n) / float(size.sum()) if n > 1 else math.nan
        return cls(float(value), error, unit)


class Tally:
    """Adds up bounds over a corpus and reports them per token, per sequence and per byte.

    The standard error is over sequences, so it holds both the choice of texts and the choice of times and noise. For
    stratified times it is on the safe side.

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

    def add(
        self,
        nats: PerToken,
        mask: PaddingMask | None = None,
        num_bytes: Int64[Tensor, "B"] | None = None,
    ) -> None:
        """Adds a batch of sequences.

        Args:
            nats: (B, L) nats per token.
            mask: (B, L) bool, True at the tokens that count.
            num_bytes: (B,) bytes of UTF-8 text that the counted tokens of each sequence stand for.

        Raises:
            ValueError: NaN or infinite nats, bad shapes, or bytes given for some batches only.
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
        if num_bytes is not None:
            check_shape("num_bytes", num_bytes, (len(nats),), f"(B,) = ({len(nats)},)")
            require(bool((num_bytes > 0).all()), "num_bytes must be positive for every sequence")
            self._bytes.append(num_bytes.to("cpu", torch.float64))
        self._nats.append(nats.sum(1))
        self._tokens.append(mask.sum(1).to(torch.float64))

    @property
    def per_token(self) -> Measure:
        """Nats per token."""
        return Measure.ratio(self._all(self._nats), self._all(self._tokens), "nats/token")

    @property
    def per_sequence(self) -> Measure:
        """Nats per sequence."""
        nats = self._all(self._nats)
        return Measure.ratio(nats, torch.ones_like(nats), "nats/sequence")

    @property
    def bits_per_byte(self) -> Measure:
        """Bits per byte of UTF-8 text."""
        require(len(self._bytes) > 0, "bits per byte need num_bytes, which no batch gave")
        return Measure.ratio(self._all(self._nats) / math.log(2), self._all(self._bytes), "bits/byte")

    @property
    def perplexity(self) -> Measure:
        """exp of nats per token; its error by the delta method."""
        nats = self.per_token
        return Measure(math.exp(nats.value), math.exp(nats.value) * nats.standard_error, "perplexity/token")

    def _all(self, parts: list[Tensor]) -> Tensor:
        require(len(self._nats) > 0, "the tally is empty: nothing was added")
        return torch.cat(parts)
