"""Metrics of music: histograms of pitch classes, intervals and durations, and their distance to
those of the data.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from recipes.domains.music.pitches import sounding

CLASSES = 12
WIDEST = 12
"""Semitones of the widest interval of the histogram; wider ones count as it."""
LONGEST = 32
"""Steps of the longest note of the histogram; longer ones count as it."""


def pitch_classes(
    sequences: Sequence[Int[np.ndarray, " L"]], symbols: Sequence[str], voices: int = 1
) -> Float[np.ndarray, "12"]:
    """Return the share of the notes of each pitch class, C first.

    Args:
        sequences: ids of each piece, the voices of a step one behind the other.
        symbols: names of the symbols, as in ``recipes.domains.music.pitches``.
        voices: number of voices.

    Raises:
        ValueError: no notes, unknown symbols, ids that are negative or noisy states.
    """
    pitches = [pitch for notes in _notes(sequences, symbols, voices) for pitch, _ in notes]
    return _shares(np.array(pitches, dtype=np.int64) % CLASSES, CLASSES, "notes")


def intervals(
    sequences: Sequence[Int[np.ndarray, " L"]], symbols: Sequence[str], voices: int = 1
) -> Float[np.ndarray, "25"]:
    """Return the share of each interval between two notes that follow each other in a voice, rests
    passed over.

    The entries are -12 to 12 semitones, upwards positive; wider intervals count as these. Arguments
    and errors are those of ``pitch_classes``; there must be a voice with two notes.
    """
    steps = [
        np.diff([pitch for pitch, _ in notes])
        for notes in _notes(sequences, symbols, voices)
        if len(notes) > 1
    ]
    values = np.concatenate(steps) if steps else np.array([], dtype=np.int64)
    return _shares(np.clip(values, -WIDEST, WIDEST) + WIDEST, 2 * WIDEST + 1, "intervals")


def durations(
    sequences: Sequence[Int[np.ndarray, " L"]], symbols: Sequence[str], voices: int = 1
) -> Float[np.ndarray, "32"]:
    """Return the share of the notes of each duration: 1 to 32 steps, longer ones count as 32.

    Arguments and errors are those of ``pitch_classes``.
    """
    lengths = [length for notes in _notes(sequences, symbols, voices) for _, length in notes]
    return _shares(np.minimum(np.array(lengths, dtype=np.int64), LONGEST) - 1, LONGEST, "notes")


def distance(left: Float[np.ndarray, " n"], right: Float[np.ndarray, " n"]) -> float:
    """Return the total variation distance of two histograms: 0 for equal ones, 1 if they share no
    entry.

    Raises:
        ValueError: histograms of different sizes, negative or non-finite shares, shares that do not
            add up to 1.
    """
    left = np.asarray(left, dtype=np.float64)
    right = np.asarray(right, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise ValueError(
            f"histograms have the shapes {left.shape} and {right.shape}, must have the same one, "
            "(n,)"
        )
    for name, one in (("left", left), ("right", right)):
        if not np.isfinite(one).all() or (one < 0).any() or abs(one.sum() - 1) > 1e-6:
            raise ValueError(
                f"{name}: must be shares that add up to 1, got a sum of {one.sum():.6g}"
            )
    return float(np.abs(left - right).sum() / 2)


def measure(
    samples: Sequence[Int[np.ndarray, " L"]],
    data: Sequence[Int[np.ndarray, " L"]],
    symbols: Sequence[str],
    voices: int = 1,
) -> dict[str, float]:
    """Return the distances of the three histograms of samples to those of the data.

    Args:
        samples: ids of each sample.
        data: ids of each piece.
        symbols: names of the symbols.
        voices: number of voices.

    Returns:
        ``pitch_class_distance``, ``interval_distance`` and ``duration_distance``, each in [0, 1].

    Raises:
        ValueError: as ``pitch_classes`` and ``intervals``.
    """
    named = {"pitch_class": pitch_classes, "interval": intervals, "duration": durations}
    return {
        f"{name}_distance": distance(
            histogram(samples, symbols, voices), histogram(data, symbols, voices)
        )
        for name, histogram in named.items()
    }


def _notes(
    sequences: Sequence[Int[np.ndarray, " L"]], symbols: Sequence[str], voices: int
) -> list[list[tuple[int, int]]]:
    """Return the notes of each voice of each piece as (pitch, duration in steps)."""
    events = []
    for number, ids in enumerate(sequences):
        ids = np.asarray(ids)
        if ids.size and ids.max() >= len(symbols):
            raise ValueError(
                f"sequence {number} contains id {ids.max()}, must be below {len(symbols)}"
            )
        for pitches, begins in zip(*sounding(ids, symbols, voices), strict=True):
            starts = np.flatnonzero(begins)
            # a note ends where another or a rest begins
            ends = np.flatnonzero((begins == 1) | (pitches < 0))
            ends = np.append(ends, len(pitches))
            following = ends[np.searchsorted(ends, starts, side="right")]
            events.append(
                list(zip(pitches[starts].tolist(), (following - starts).tolist(), strict=True))
            )
    return events


def _shares(entries: Int[np.ndarray, " n"], size: int, what: str) -> Float[np.ndarray, " m"]:
    if not len(entries):
        raise ValueError(f"the sequences contain no {what}")
    return np.bincount(entries, minlength=size) / len(entries)
