"""Tables of Markdown, for pages of studies in use."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from scipy.stats import t as student

END = "<!-- end of tables -->"
MISSING = "not yet run"
"""Text of a cell that is not measured yet."""


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(values: Sequence[float], digits: int = 3, sign: str = "") -> str:
    """Return the mean with the half-width of its 95 % t interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:{sign}.{digits}f}, one seed" if values else MISSING
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{mean(values):{sign}.{digits}f} ± {half:.{digits}f}"
