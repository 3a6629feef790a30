"""Density of training times: a registered one, or the optimal one of the process."""

import warnings

import ddlib as dd

UNIFORM, OPTIMAL = "uniform", "optimal"
"""Name of the uniform density; and of the one that ``process.time_density`` finds for the run's
sequence length.
"""

IN_STRATA = 0.2
"""Share of the integrand's mean that remains random under stratified times: sequences differ from
each other.
"""


def check_times(place: str, kind: str) -> None:
    """Raise ValueError, with the place, unless ``kind`` names a density of times and its
    arguments.
    """
    if kind not in (UNIFORM, OPTIMAL):
        dd.build("times", kind, place=place)


def time_density(
    kind: str,
    process: dd.processes.ForwardProcess,
    length: int,
    chance: float = 1.0,
    pace: dd.paces.Pace | None = None,
) -> dd.times.TimeDensity | None:
    """Build the density that a recipe names; None for the uniform one, which has weight 1.

    A large process without a smaller equivalent copy has no optimal density: it gets the uniform
    one, and a warning.

    Args:
        kind: ``optimal``, or as ``python -m ddlib`` lists densities, such as
            ``bell:mean=-1,spread=2``.
        process: the noise.
        length: tokens of a sequence.
        chance: argument of ``process.time_density``; ``IN_STRATA`` for the bound of many sequences.
        pace: the schedule of positions, which decides the ones that share a time; None: all.

    Raises:
        ValueError: as in ``check_times``; a length that the pace does not support.
    """
    length = length if pace is None else length // pace.parts(length)
    if kind == OPTIMAL:
        try:
            return process.time_density(length, chance=chance)
        except TypeError as error:
            warnings.warn(
                f"times are uniform, and errors may be too small: {error}",
                UserWarning,
                stacklevel=2,
            )
            return None
    return None if kind == UNIFORM else dd.build("times", kind, place="times")
