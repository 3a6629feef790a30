"""From which density a run draws its times: a registered one, or the process's own."""

import warnings

import ddlib as dd
from ddlib import parts

UNIFORM, OPTIMAL = "uniform", "optimal"
"""Every time alike; and no part, the density that ``process.time_density`` finds for texts of the run's length."""

IN_STRATA = 0.2
"""What the strata of times leave of the bound's mean to chance when many texts are measured: what they differ by."""


def check_times(place: str, kind: str) -> None:
    """Raises ValueError, with the place, unless ``kind`` names a density of times and its arguments."""
    if kind not in (UNIFORM, OPTIMAL):
        parts.build("times", kind, place=place)


def time_density(
    kind: str,
    process: dd.processes.ForwardProcess,
    length: int,
    chance: float = 1.0,
    pace: dd.paces.Pace | None = None,
) -> dd.times.TimeDensity | None:
    """The density that a recipe names; None for the uniform one, which nothing need be multiplied by.

    A large process that offers no reduction to fewer words has none of its own: it gets the uniform one, and a warning.

    Args:
        kind: ``optimal``, or as ``python -m ddlib`` lists densities, such as ``bell:mean=-1,spread=2``.
        process: the noise.
        length: tokens of a sequence.
        chance: of ``process.time_density``; ``IN_STRATA`` for the bound of many texts.
        pace: which positions share a time; None is all.

    Raises:
        ValueError: as ``check_times``; a length that the pace cannot serve.
    """
    length = length if pace is None else length // pace.parts(length)
    if kind == OPTIMAL:
        try:
            return process.time_density(length, chance=chance)
        except TypeError as error:
            warnings.warn(f"times are uniform, errors may be too small: {error}", UserWarning, stacklevel=2)
            return None
    return None if kind == UNIFORM else parts.build("times", kind, place="times")
