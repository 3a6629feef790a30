"""Layout of sequences of symbols: what a prepared folder, and a model that was trained on it, keep
of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from recipes.data.fields import Field
from recipes.data.names import END, PAD

TEMPLATE = "chat_template.jinja"
"""Name of the file with the chat template of a tokenizer of text."""


@dataclass(frozen=True)
class Layout:
    """Facts about sequences of symbols that their folder keeps, and every model that was trained on
    it.
    """

    kind: str
    """Kind of the source."""
    shape: tuple[int, ...] = ()
    """Shape of one sequence; () for none."""
    values: tuple[int, ...] = ()
    """Value of grey or colour of each symbol, for pictures."""
    classes: tuple[str, ...] = ()
    """Names of the classes of the labels."""
    separator: str = ""
    """What is printed between two symbols."""
    ends: bool = False
    """Whether a sequence has an end symbol, and padding behind it."""
    end: str = END
    """Name of the end symbol."""
    pad: str = PAD
    """Name of padding."""
    template: str = ""
    """Chat template that formatted the sequences; "" for none."""
    voices: int = 1
    """Number of voices of music, which are interleaved."""
    lengths: Mapping[int, int] | None = None
    """Number of training sequences of each length, in symbols; 0 for one of validation alone."""
    fields: tuple[Field, ...] = ()
    """Alphabets of the positions, where there are several; () for one alphabet."""
    positions: tuple[str, ...] = ()
    """Name of the field of each position."""
    names: tuple[str, ...] = ()
    """Name of each position, where the source states them; see ``headings``."""
    present_from: tuple[int, ...] = ()
    """Least token of the first position with which each position is present; () where all always
    are.
    """
    recipe: str = "owt mdlm"
    """Command and variant that train on the sequences, behind ``python -m recipes.``."""
    contexts: tuple[tuple[tuple[int, ...], int], ...] = ()
    """Given tokens at the front of training sequences, each with the number of its sequences, where
    samples take them; () where nothing is given.
    """

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Layout":
        """Return the layout of plain values, as in the file ``manifest.json``."""
        parts = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        lengths = {int(length): count for length, count in (parts.get("lengths") or {}).items()}
        fields = tuple(Field.read(one) for one in parts.get("fields", ()))
        contexts = tuple((tuple(tokens), count) for tokens, count in parts.get("contexts", ()))
        return cls(**parts | {"lengths": lengths, "fields": fields, "contexts": contexts})

    def plain(self) -> dict[str, Any]:
        """Return plain values for ``read``."""
        return asdict(self)

    @property
    def by_position(self) -> list[Field]:
        """Field of each position; [] for one alphabet."""
        by_name = {one.name: one for one in self.fields}
        return [by_name[name] for name in self.positions]

    @cached_property
    def headings(self) -> tuple[str, ...]:
        """Name of each position: that of the source, or that of its field, with a number where the
        field has several.
        """
        if self.names:
            return self.names
        counts = Counter(self.positions)
        seen = Counter[str]()
        result = []
        for name in self.positions:
            result.append(name if counts[name] == 1 else f"{name}[{seen[name]}]")
            seen[name] += 1
        return tuple(result)

    @property
    def values_of_fields(self) -> dict[str, int]:
        """Number of each value of each field, as "name=value"."""
        values = [f"{field.name}={symbol}" for field in self.fields for symbol in field.symbols]
        return {value: number for number, value in enumerate(values)}

    @property
    def is_row(self) -> bool:
        """True if each position has a field of its own, as a column of a table."""
        return len(self.fields) == len(self.positions) > 0

    @property
    def is_picture(self) -> bool:
        """True if a sequence can be drawn as a picture: it has a shape, and symbols have values."""
        return bool(self.shape and self.values)

    @property
    def fixed(self) -> int | None:
        """Length of every sequence; None where lengths differ, or sequences have an end."""
        lengths = list(self.lengths or ())
        return lengths[0] if len(lengths) == 1 and not self.ends else None

    def draw_length(self, seed: int, number: int, least: int = 1, most: int | None = None) -> int:
        """Draw the length of a sample as training sequences have it.

        It depends on (seed, number) alone.

        Args:
            seed: seed of the draw.
            number: number of the sample.
            least: shorter lengths are left out; where none is left this is the length.
            most: longer ones count as this length.
        """
        cut = [
            (min(length, most or length), count)
            for length, count in sorted((self.lengths or {}).items())
        ]
        allowed = [(length, count) for length, count in cut if length >= least and count]
        if not allowed:
            return least
        return allowed[draw_in_proportion([count for _, count in allowed], seed, number)][0]


def draw_in_proportion(counts: Sequence[int], seed: int, number: int) -> int:
    """Draw an index in proportion to the counts; it depends on (seed, number) alone."""
    share = np.random.Generator(np.random.Philox(key=seed, counter=number)).random()
    total = np.cumsum(counts)
    return int(np.searchsorted(total, share * total[-1], side="right"))
