"""Limits of speeds and powers."""

from collections.abc import Sequence

from ddlib.utils.validation import check_number

LOW, HIGH = 1e-3, 1e3
"""Limits of all values."""
RULE = "in [0.001, 1000]"
"""Text of the limits."""


def check_positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return the values as floats after checking the limits.

    Error messages name value i ``name[i]``.
    """
    return tuple(
        check_number(f"{name}[{i}]", value, LOW, HIGH, RULE) for i, value in enumerate(values)
    )
