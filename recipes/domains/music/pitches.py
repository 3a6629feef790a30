"""Symbols of music on a time grid: a pitch that begins, a pitch that is held, a rest."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

HOLD = "hold"
REST = "rest"
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
RESTING, HOLDING, NOISY = -1, -2, -3
"""Numbers of the two symbols that are not pitches, and of a noisy state."""


def symbol_of(pitch: int) -> str:
    """Return the name of a MIDI pitch; 60 is C4.

    Example:
        >>> symbol_of(61)
        'C#4'
    """
    return f"{NAMES[pitch % 12]}{pitch // 12 - 1}"


def alphabet(lowest: int, highest: int) -> tuple[str, ...]:
    """Return the symbols hold and rest, then all pitches from ``lowest`` to ``highest``."""
    return (HOLD, REST, *map(symbol_of, range(lowest, highest + 1)))


def pitch_classes_of(symbols: Sequence[str]) -> list[int]:
    """Return the class of each symbol, as parents of a tree: 0 to 11 for C to B, then hold and
    rest.
    """
    others = {HOLDING: len(NAMES), RESTING: len(NAMES) + 1}
    return [others.get(pitch, pitch % len(NAMES)) for pitch in midi_of(symbols).tolist()]


def midi_of(symbols: Sequence[str]) -> Int[np.ndarray, " V"]:
    """Return the MIDI pitch of each symbol, -1 for a rest, -2 for a held pitch.

    Raises:
        ValueError: a symbol that is none of these.
    """
    numbers = {symbol_of(pitch): pitch for pitch in range(128)} | {HOLD: HOLDING, REST: RESTING}
    for symbol in symbols:
        if symbol not in numbers:
            raise ValueError(
                f"symbol {symbol!r}: must be {HOLD}, {REST} or a pitch such as C4 or F#3"
            )
    return np.array([numbers[symbol] for symbol in symbols], dtype=np.int64)


def sounding(
    ids: Int[np.ndarray, " L"], symbols: Sequence[str], voices: int
) -> tuple[Int[np.ndarray, "voices T"], Int[np.ndarray, "voices T"]]:
    """Return the pitch that sounds in each voice and step, and whether it begins there.

    A hold at the beginning or behind a rest is a rest. Incomplete last steps are dropped.

    Args:
        ids: one sequence, the voices of a step one behind the other; ids of V and more are noisy
            states.
        symbols: names of the symbols.
        voices: number of voices.

    Returns:
        pitches: MIDI pitch, -1 for a rest, -3 for a noisy state and holds behind it.
        begins: 1 where a pitch begins, else 0.

    Raises:
        ValueError: fewer than one voice, negative ids, an unknown symbol.
    """
    if voices < 1:
        raise ValueError(f"voices={voices}: must be at least 1")
    ids = np.asarray(ids)
    if ids.ndim != 1 or (ids < 0).any():
        raise ValueError(f"ids of shape {ids.shape}: must be one sequence of ids, none negative")
    midi = np.append(midi_of(symbols), NOISY)
    steps = len(ids) // voices
    pitches = midi[np.minimum(ids[: steps * voices], len(symbols))].reshape(steps, voices).T.copy()
    begins = (pitches >= 0).astype(np.int64)
    held = np.full(voices, RESTING)
    for step in range(steps):
        now = pitches[:, step]
        held = np.where(now == HOLDING, held, now)
        pitches[:, step] = held
    return pitches, begins
