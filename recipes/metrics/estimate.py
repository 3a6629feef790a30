"""Estimates of an evaluation, with their standard errors and the part due to time and noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import ddlib as dd
from recipes.metrics.bound import Terms
from recipes.metrics.references import Alphabets

if TYPE_CHECKING:  # help of a recipe imports this module, and reading data takes seconds to import
    from recipes.data import Prepared

_TERMS = ("diffusion", "prior", "reconstruction")


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error, and the part of it due to time and noise."""

    value: float
    error: float
    """Standard error over sequences.

    It includes the variance of times and noise that remains after averaging over
    replicates."""
    noise: float | None
    """Standard error over replicates: the same texts, other times and noise.

    None for a single replicate.
    """
    unit: str

    @classmethod
    def of(cls, whole: dd.Measure, replicates: Sequence[dd.Measure]) -> "Estimate":
        values = torch.tensor([one.value for one in replicates], dtype=torch.float64)
        noise = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else None
        return cls(whole.value, whole.standard_error, noise, whole.unit)

    def scale(self, factor: float, unit: str, value: float | None = None) -> "Estimate":
        """Multiply errors by ``factor``, and the value too unless another is given."""
        noise = None if self.noise is None else self.noise * factor
        return Estimate(
            self.value * factor if value is None else value, self.error * factor, noise, unit
        )

    def perplexity(self, unit: str) -> "Estimate":
        """Return exp of nats."""
        value = math.exp(self.value)
        return self.scale(value, unit, value)


def bits(data: "Prepared") -> tuple[str, str]:
    """Return the name and the unit of bits per token.

    Where sequences have a shape a token is a dimension.
    """
    return (
        ("bits_per_dimension", "bits/dimension") if data.shape else ("bits_per_token", "bits/token")
    )


def in_units(per_token: Estimate, data: "Prepared", given: int = 0) -> dict[str, Estimate]:
    """Convert nats per token to all units.

    ``given`` tokens of each document are known, and cost nothing.

    Bits per byte are those of text without given tokens alone.
    """
    name, unit = bits(data)
    result = {
        "nats_per_token": per_token,
        name: per_token.scale(1 / math.log(2), unit),
        "perplexity": per_token.perplexity("per token"),
    }
    if not data.is_text and data.layout.fields and not data.validation.has_given:
        size = len(data.layout.positions)
        result["bits_per_row"] = per_token.scale(size / math.log(2), "bits/row")
    if data.is_text and not data.validation.has_given:
        result["bits_per_byte"] = per_token.scale(
            data.validation.bits_per_byte(1.0, given), "bits/byte"
        )
    return result


def by_label(replicates: Sequence[Terms], data: "Prepared") -> dict[str, Estimate]:
    """Return the bound in nats per token of the sequences of each class, by its name.

    Empty without labels.
    """
    labels = replicates[0].labels
    result = {}
    for number, name in enumerate(() if labels is None else data.classes):
        if int((mine := labels == number).sum()) > 1:
            of_label = [one.at(mine) for one in replicates]
            result[name] = Estimate.of(
                Terms.average(of_label).per_token, [one.per_token for one in of_label]
            )
    return result


def by_field(replicates: Sequence[Terms], alphabets: Alphabets) -> dict[str, Estimate]:
    """Return the bound of each field in bits per value, by its name; empty for one alphabet.

    A field of which everything is given has none.
    """
    whole = Terms.average(replicates)
    result = {}
    for number, name in enumerate(alphabets.names):
        if not int(whole.field_tokens[:, number].sum()):
            continue
        nats = Estimate.of(whole.of_field(number), [one.of_field(number) for one in replicates])
        result[name] = nats.scale(1 / math.log(2), "bits/value")
    return result


def estimates(replicates: Sequence[Terms], data: "Prepared", given: int = 0) -> dict[str, Estimate]:
    """Return the bound in its units, with the terms at padding where there is some, then its three
    terms; ``given`` as in ``in_units``.
    """
    whole = Terms.average(replicates)
    result = in_units(
        Estimate.of(whole.per_token, [one.per_token for one in replicates]), data, given
    )
    if (with_padding := whole.with_padding) is not None:
        each = [one.with_padding for one in replicates]
        result["nats_per_token_with_padding"] = Estimate.of(with_padding, each)
    for number, name in enumerate(_TERMS):
        result[name] = Estimate.of(whole.term(number), [one.term(number) for one in replicates])
    return result
