"""Sequences shown and saved as music: a piano roll, by matplotlib, and a MIDI file, by music21."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from ddlib.plot import BLUE, GREEN, ORANGE, VERMILION
from recipes.domains.music.pitches import NOISY, sounding, symbol_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from music21.stream import Score

COLOURS = (VERMILION, ORANGE, GREEN, BLUE)
"""Colours of the voices, the highest first."""
NOISE = "#4B3F8F"
"""Colour of a noisy state, as in pictures."""


def piano_roll(
    ids: Int[np.ndarray, " L"],
    symbols: Sequence[str],
    *,
    voices: int = 1,
    steps: int = 4,
    title: str = "",
) -> "Figure":
    """Return the piano roll of a sequence.

    Time from left to right, pitch upwards, a bar for each note.

    Args:
        ids: ids of the symbols, the voices of a step one behind the other; ids of V and more are
            noisy states, drawn as a stripe at the bottom.
        symbols: their names, as in ``recipes.domains.music.pitches``.
        voices: number of voices.
        steps: steps of a quarter note.
        title: title of the figure.

    Raises:
        ValueError: fewer than one voice or step, negative ids, an unknown symbol, no complete step.
    """
    return piano_rolls([ids], symbols, voices=voices, steps=steps, titles=[title])


def piano_rolls(
    sequences: Sequence[Int[np.ndarray, " L"]],
    symbols: Sequence[str],
    *,
    voices: int = 1,
    steps: int = 4,
    titles: Sequence[str] = (),
) -> "Figure":
    """Return the piano rolls of several sequences, one below the other.

    Arguments and errors as in ``piano_roll``.

    Raises:
        ValueError: also for no sequences, or a wrong number of titles.
    """
    from matplotlib.figure import Figure

    titles = titles or [f"sample {number}" for number in range(len(sequences))]
    if not len(sequences) or len(titles) != len(sequences):
        raise ValueError(
            f"there are {len(sequences)} sequences and {len(titles)} titles: must be the same "
            "number, at least 1"
        )
    longest = max(len(np.asarray(ids)) for ids in sequences) // max(voices, 1)
    size = (min(max(longest / 16, 5), 16), 3.6 * len(sequences))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(sequences), squeeze=False)[:, 0]
    for axes, ids, title in zip(rows, sequences, titles, strict=True):
        _draw(axes, _read(ids, symbols, voices, steps), steps)
        axes.set(title=title, xlabel="quarter notes", ylabel="pitch")
    return figure


def score(
    ids: Int[np.ndarray, " L"], symbols: Sequence[str], *, voices: int = 1, steps: int = 4
) -> "Score":
    """Return a sequence as a score of music21, one part for each voice.

    Args:
        ids: as in ``piano_roll``; noisy states become rests.
        symbols: their names.
        voices: number of voices.
        steps: steps of a quarter note.

    Raises:
        ModuleNotFoundError: music21 is not installed.
        ValueError: as ``piano_roll``.
    """
    try:
        from music21 import note, stream
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a MIDI file is written by music21; run: pip install music21"
        ) from error

    whole = stream.Score()
    for pitches, begins in zip(*_read(ids, symbols, voices, steps), strict=True):
        part = stream.Part()
        for pitch, first, end in _notes(pitches, begins, rests=True):
            length = (end - first) / steps
            part.append(
                note.Note(pitch, quarterLength=length)
                if pitch >= 0
                else note.Rest(quarterLength=length)
            )
        whole.insert(0, part)
    return whole


def write_midi(
    path: Path | str,
    ids: Int[np.ndarray, " L"],
    symbols: Sequence[str],
    *,
    voices: int = 1,
    steps: int = 4,
) -> None:
    """Write a sequence as a MIDI file, one track for each voice.

    Arguments and errors as in ``score``.
    """
    score(ids, symbols, voices=voices, steps=steps).write("midi", fp=str(path))


def _draw(
    axes: "Axes", read: tuple[Int[np.ndarray, "voices T"], Int[np.ndarray, "voices T"]], steps: int
) -> None:
    lines = [_notes(*line) for line in zip(*read, strict=True)]
    pitches = [pitch for notes in lines for pitch, _, _ in notes if pitch >= 0]
    lowest, highest = (min(pitches), max(pitches)) if pitches else (60, 72)
    for voice, notes in enumerate(lines):
        for pitch, first, end in notes:
            noisy = pitch == NOISY
            place = (
                (lowest - 2 - voice / len(lines), 1 / len(lines)) if noisy else (pitch - 0.4, 0.8)
            )
            width = end - first - (0 if noisy else 0.12)  # a gap between repeated notes
            colour = NOISE if noisy else COLOURS[voice % len(COLOURS)]
            axes.broken_barh([(first / steps, width / steps)], place, facecolors=colour)
    chord = [
        pitch
        for pitch in range(128)
        if pitch % 12 in (0, 4, 7) and lowest - 1 <= pitch <= highest + 1
    ]
    axes.set_yticks(chord, [symbol_of(pitch) for pitch in chord])
    axes.set(xlim=(0, read[0].shape[1] / steps), ylim=(lowest - 3.2, highest + 1.2))
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)


def _read(
    ids: Int[np.ndarray, " L"], symbols: Sequence[str], voices: int, steps: int
) -> tuple[Int[np.ndarray, "voices T"], Int[np.ndarray, "voices T"]]:
    if steps < 1:
        raise ValueError(f"steps={steps}: must be at least 1")
    pitches, begins = sounding(ids, symbols, voices)
    if not pitches.shape[1]:
        raise ValueError(
            f"the sequence has {len(np.asarray(ids))} symbols, must have one for each of {voices} "
            "voices"
        )
    return pitches, begins


def _notes(
    pitches: Int[np.ndarray, " T"], begins: Int[np.ndarray, " T"], rests: bool = False
) -> list[tuple[int, int, int]]:
    """Return the notes of a voice as (pitch, first step, step behind the last).

    Noisy states too, rests on request.
    """
    starts = np.flatnonzero((begins == 1) | (np.diff(pitches, prepend=-9) != 0))
    ends = [*starts[1:], len(pitches)]
    notes = [
        (int(pitches[first]), int(first), int(end)) for first, end in zip(starts, ends, strict=True)
    ]
    return [one for one in notes if rests or one[0] >= 0 or one[0] == NOISY]
