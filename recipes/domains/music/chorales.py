"""Bach chorales on a time grid, from the corpus of the package ``music21``."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recipes.data.packaged import check_limit, digests, package_path
from recipes.data.sequences import Ragged, Sequences
from recipes.domains.music.pitches import HOLD, REST, alphabet, symbol_of

LOWEST, HIGHEST = 36, 81
"""Lowest and highest MIDI pitch of the four voices: C2 and A5."""

PARTS = ("Soprano", "Alto", "Tenor", "Bass")
Voices = Literal["soprano", "four"]


@dataclass(frozen=True, kw_only=True)
class Chorales:
    """Chorales of J. S. Bach: the 403 pieces of the corpus that have a soprano, alto, tenor and
    bass.

    A symbol stands for one step of the grid: the pitch that begins, "hold" for the pitch before, or
    "rest". Four voices are interleaved: soprano, alto, tenor and bass of a step, then those of the
    next one. Repeats are not expanded. Pieces are read by music21, in half a minute for all.

    Args:
        voices: the soprano alone, or all four voices.
        steps: steps of a quarter note: 4 is a grid of sixteenths. A note that begins within a step
            begins at the next one.
        limit: number of pieces, the first ones by name; all by default.

    Raises:
        ValueError: unknown voices, a number of steps below 1, a limit below 1.
    """

    voices: Voices = "soprano"
    steps: int = 4
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.voices not in ("soprano", "four"):
            raise ValueError(f"voices={self.voices!r}: must be soprano or four")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: must be at least 1")
        check_limit(self.limit)

    def load(self) -> Sequences:
        """Return one sequence for each piece.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        names = PARTS if self.voices == "four" else PARTS[:1]
        symbols = alphabet(LOWEST, HIGHEST)
        number = {symbol: index for index, symbol in enumerate(symbols)}
        pieces: list[np.ndarray] = []
        for file in _files():
            parts = read_parts(file, names)
            if parts is not None:
                end = max(part.highestTime for part in parts)
                lines = [on_grid(part, math.ceil(end * self.steps), self.steps) for part in parts]
                pieces.append(
                    np.array([[number[symbol] for symbol in line] for line in lines]).T.ravel()
                )
            if len(pieces) == self.limit:
                break
        ids = Ragged(np.concatenate(pieces).astype(np.int16), np.cumsum([0, *map(len, pieces)]))
        return Sequences(ids=ids, symbols=symbols, separator=" ", voices=len(names))

    def identity(self) -> dict[str, str]:
        """Return the hash of each piece's file, by its name."""
        return digests(_files())


def read_parts(file: Path, names: tuple[str, ...]) -> list[Any] | None:
    """Return the parts of a score of these names, or None if it lacks one.

    Nothing is cached on disk.
    """
    from music21 import converter

    reader = converter.Converter()
    reader.parseFile(file, forceSource=True, storePickle=False)
    parts = {part.partName: part for part in reader.stream.parts}
    return [parts[name] for name in names] if all(name in parts for name in names) else None


def on_grid(part: Any, length: int, steps: int) -> list[str]:
    """Return the symbols of a part of music21 on a grid.

    Args:
        part: a part; of a chord its highest note is taken.
        length: number of steps.
        steps: steps of a quarter note.
    """
    line = [REST] * length
    tied = part.stripTies()
    for note in tied.flatten().notes:
        # the steps at whose beginning the note sounds
        first, end = (
            math.ceil(time * steps) for time in (note.offset, note.offset + note.quarterLength)
        )
        if first < min(end, length):
            line[first:end] = [HOLD] * (min(end, length) - first)
            line[first] = symbol_of(max(pitch.midi for pitch in note.pitches))
    return line


def _files() -> list[Path]:
    folder = package_path("music21", "corpus/bach", "the chorales of music21", "music21")
    return sorted(folder.glob("*.mxl"))
