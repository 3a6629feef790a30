"""Guard against a loss that rises far above that of the uniform model and stays there."""

import math

LIMIT = 3
"""Multiple of the uniform model's loss, log V, above which training diverges."""
PATIENCE = 500
"""Consecutive steps above the limit after which a run stops."""
SMOOTHING = 0.95
"""Share of the average before in the moving average of the loss, over some twenty steps."""


class DivergedError(RuntimeError):
    """Training diverged; the checkpoints from before are kept."""


class DivergenceGuard:
    """Moving average of the training loss, and how long it has been above the limit.

    The loss is that of all processes together, so each of them comes to the same result. A loss
    that never was below the limit has another scale, and stops nothing.

    Args:
        vocab_size: number of tokens V.
        rate: largest learning rate, for messages.
        patience: consecutive steps above the limit after which ``add`` raises.
    """

    def __init__(self, vocab_size: int, rate: float, patience: int = PATIENCE) -> None:
        self._limit = LIMIT * math.log(max(vocab_size, 2))
        self._rate = rate
        self._patience = patience
        self._average: float | None = None
        self._was_below = False
        self._reported = False
        self._above = 0

    def add(self, number: int, loss: float) -> str | None:
        """Take the loss of a step, after which ``number`` are made.

        Returns:
            a message the first time that the average is above the limit, else None.

        Raises:
            DivergedError: it was above in each of the last steps, and below before.
        """
        before = loss if self._average is None else self._average
        self._average = SMOOTHING * before + (1 - SMOOTHING) * loss
        if self._average <= self._limit:
            self._was_below = True
            self._above = 0
            return None
        self._above += 1
        what = (
            f"step {number}: the loss is {self._average:.3g}, more than {LIMIT} times that of the "
            "uniform model"
        )
        advice = f"a lower optimizer.lr than {self._rate:g} may help"
        if self._was_below and self._above >= self._patience:
            raise DivergedError(
                f"{what}, and was in all of the last {self._above} steps: training diverged; "
                f"{advice}. Nothing was saved after this step, and the checkpoint of the best "
                "bound is kept"
            )
        if self._reported:
            return None
        self._reported = True
        return f"{what}: training diverges; {advice}"
