"""Range checks for numeric configuration fields."""


def at_least(least: float, **values: float) -> None:
    """Raise ValueError naming the first value below ``least``."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def share(**values: float) -> None:
    """Raise ValueError naming the first value outside [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value}: must lie in [0, 1)")
