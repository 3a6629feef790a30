"""Checks of the numbers that networks are made with."""


def check_least(least: int, **values: int) -> None:
    """Raise ValueError for a number below ``least``."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def check_states(num_states: int, vocab_size: int) -> None:
    """Raise ValueError unless all tokens, at least one, are states."""
    check_least(1, vocab_size=vocab_size)
    if vocab_size > num_states:
        raise ValueError(
            f"vocab_size={vocab_size}: tokens are states, so it must be <= num_states={num_states}"
        )


def check_shares(**values: float) -> None:
    """Raise ValueError for a probability outside [0, 1)."""
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name}={value}: must lie in [0, 1)")
