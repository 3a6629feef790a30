"""Numbers that an evaluation reports: each with how far it may be off, and how much of that is time and noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import ddlib as dd
from recipes.data import Prepared
from recipes.measure.terms import Terms

_TERMS = ("diffusion", "prior", "reconstruction")


@dataclass(frozen=True)
class Estimate:
    """A number, how far it may be off, and how much of that is time and noise."""

    value: float
    error: float
    """Standard error over sequences: other texts, and what is left of the noise after averaging over replicates."""
    noise: float | None
    """Standard error over replicates: the same texts, other times and noise. None of a single replicate."""
    unit: str

    @classmethod
    def of(cls, whole: dd.Measure, replicates: Sequence[dd.Measure]) -> "Estimate":
        values = torch.tensor([one.value for one in replicates], dtype=torch.float64)
        noise = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else None
        return cls(whole.value, whole.standard_error, noise, whole.unit)

    def scaled(self, factor: float, unit: str, value: float | None = None) -> "Estimate":
        """Errors times ``factor``, and the value too unless another is given."""
        noise = None if self.noise is None else self.noise * factor
        return Estimate(self.value * factor if value is None else value, self.error * factor, noise, unit)


def estimates(replicates: Sequence[Terms], data: Prepared) -> dict[str, Estimate]:
    """The bound in its units, then its three terms."""
    whole = Terms.average(replicates)
    per_token = Estimate.of(whole.per_token, [one.per_token for one in replicates])
    perplexity = math.exp(per_token.value)
    found = {
        "nats_per_token": per_token,
        "perplexity": per_token.scaled(perplexity, "per token", perplexity),
        "bits_per_byte": per_token.scaled(data.validation.bits_per_byte(1.0), "bits/byte"),
    }
    for number, name in enumerate(_TERMS):
        found[name] = Estimate.of(whole.term(number), [one.term(number) for one in replicates])
    return found
