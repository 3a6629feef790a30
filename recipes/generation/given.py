"""Values that samples have, by the names of their positions: ``--given``."""

import csv
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple, Self

import torch
from jaxtyping import Int
from torch import Tensor

from recipes.data.fields import MISSING
from recipes.data.layout import Layout, draw_in_proportion

LISTED = 12
"""Number of names that a message lists."""


class Value(NamedTuple):
    """Value of a position."""

    token: int
    text: str | None
    """The value as it was written; None for a missing one."""


def read_values(layout: Layout, text: str) -> dict[int, Value]:
    """Return values by position.

    Args:
        layout: layout of the data.
        text: "age=40,sex=F"; a value with a comma is quoted as in CSV: '"city=New York, NY"'. ""
            gives nothing.

    Raises:
        ValueError: not of that form, no such position, a value that its field lacks or that is
            given twice; all are given.
    """
    values: dict[int, Value] = {}
    pieces = next(csv.reader([text], skipinitialspace=True)) if text.strip() else []
    for piece in pieces:
        name, value = _pair(layout, piece)
        place = layout.headings.index(name)
        if place in values:
            raise ValueError(f"given: {name!r} is given twice")
        one = layout.by_position[place]
        try:
            token = one.token(value or MISSING)
        except ValueError as error:
            comma = one.cells is None and any("," in symbol for symbol in one.symbols)
            quoted = f"; with a comma it is quoted with its name, '\"{name}=A, B\"'" * comma
            raise ValueError(f"given: {error}{quoted}") from error
        values[place] = Value(token, None if value in ("", MISSING) else value)
    if values and len(values) == len(layout.positions):
        raise ValueError(f"given: {text!r} gives every value, nothing would be drawn")
    return values


def _pair(layout: Layout, piece: str) -> tuple[str, str]:
    """Return the name and the value of "name=value"; a name may contain "="."""
    names = [name for name in layout.headings if piece.startswith(f"{name}=")]
    if names:
        name = max(names, key=len)
        return name, piece.removeprefix(f"{name}=").strip()
    name, sign, value = (part.strip() for part in piece.partition("="))
    if not sign:
        raise ValueError(f"given: {piece!r} must be NAME=VALUE, several with commas between")
    if name in layout.headings:
        return name, value
    near = get_close_matches(name, layout.headings, 1)
    known = ", ".join(map(repr, layout.headings[:LISTED]))
    more = len(layout.headings) - LISTED
    known += f" and {more} more" if more > 0 else ""
    hint = f"did you mean {near[0]!r}?" if near else f"there are {known}"
    raise ValueError(f"given: no value is named {name!r}; {hint}")


@dataclass(frozen=True)
class Conditions:
    """Given tokens of samples: at the front those of training sequences, and stated values
    anywhere.

    The front is drawn from the training sequences that have the stated values there. It must then
    be determined if values behind it are stated, as the model has no distribution of the front.
    """

    fronts: Sequence[tuple[tuple[int, ...], int]] = ()
    """Fronts with the stated values, each with the number of its training sequences; () for
    none.
    """
    tokens: Mapping[int, int] = field(default_factory=dict)
    """Stated token of each position."""

    @classmethod
    def of(cls, layout: Layout | None, text: str | None = None) -> Self:
        """Return the conditions of ``--given``.

        Warns where no training sequence has such a front.

        Raises:
            ValueError: as in ``read_values``; a position that is absent, a front that is not
                determined.
        """
        if layout is None:
            return cls()
        tokens = {place: value.token for place, value in read_values(layout, text or "").items()}
        lead = len(layout.contexts[0][0]) if layout.contexts else 0
        fronts = Counter[tuple[int, ...]]()
        for context, count in layout.contexts:
            if all(tokens.get(place, token) == token for place, token in enumerate(context)):
                fronts[context] += count
        unseen = bool(lead) and not fronts
        if unseen:
            for context, count in layout.contexts:
                front = tuple(tokens.get(place, token) for place, token in enumerate(context))
                fronts[front] += count
        for place in tokens if layout.present_from else ():
            least = layout.present_from[place]
            fronts = Counter({front: n for front, n in fronts.items() if front[0] >= least})
            if not fronts:
                first = layout.by_position[0]
                raise ValueError(
                    f"given: {layout.headings[place]!r} is absent, must be given "
                    f"{first.name}={first.symbols[least]} or more"
                )
        behind = [place for place in tokens if place >= lead]
        open_places = [place for place in range(lead) if len({one[place] for one in fronts}) > 1]
        if behind and open_places:
            name = layout.headings[open_places[0]]
            raise ValueError(
                f"given: {layout.headings[behind[0]]!r} without {name!r}, which the model does not "
                "draw: both must be given"
            )
        if unseen:
            warnings.warn(
                f"given={text!r}: no training sequence has these values in front, the model was "
                "not trained on them",
                stacklevel=2,
            )
        return cls(tuple(fronts.items()), tokens)

    def states(self, seed: int, number: int, free: int) -> Int[Tensor, " n"]:
        """Return the states at the front of a sample, up to its last given one.

        They depend on (seed, number) alone.

        Args:
            seed: seed of the draw of the front.
            number: number of the sample.
            free: state of a position that is drawn.
        """
        front: tuple[int, ...] = ()
        if self.fronts:
            counts = [count for _, count in self.fronts]
            front = self.fronts[draw_in_proportion(counts, seed, number)][0]
        last = max(self.tokens, default=-1)
        states = torch.full((max(last + 1, len(front)),), free)
        states[: len(front)] = torch.tensor(front, dtype=torch.int64)
        for place, token in self.tokens.items():
            states[place] = token
        return states
