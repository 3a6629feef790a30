"""Progress bars of training runs, or plain lines."""

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

SECONDS_PER_LINE = 30.0


class TrainingBar:
    """Loss, tokens/s and time left.

    One bar on a terminal, elsewhere a line every tenth of the run and every 30 s.

    Speed and time left are means since the bar was made, without the time excluded by
    ``leave_out``.

    Args:
        console: the console that shows it.
        name: label in front of the number of steps.
        steps: steps of the whole run.
        done: steps that were made before.
        about: description of the loss, shown beside it.
        unit: unit of the loss.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        steps: int,
        done: int = 0,
        about: str = "",
        unit: str = "nats/token",
    ) -> None:
        self._console = console
        self._name = name
        self._steps = steps
        self._done = done
        self._about = f" ({about})" if about else ""
        self._unit = unit
        self._smooth: float | None = None
        self.tokens = 0
        """Seen in training."""
        self.note = ""
        """Shown behind the speed."""
        self._mark = self._line = time.perf_counter()
        self.seconds = 0.0
        """Spent in training."""
        self._bar = _display(console)
        self._task = self._bar.add_task(name, total=steps, completed=done, state=f"{done}/{steps}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)

    def leave_out(self) -> None:
        """Exclude the time since the last step from the training time."""
        self._mark = time.perf_counter()

    def step(self, number: int, loss: float, tokens: int) -> None:
        """Show that ``number`` steps are made, the last one of so many tokens."""
        now = time.perf_counter()
        self.seconds = self.seconds + now - self._mark
        self._mark = now
        self.tokens += tokens
        self._smooth = loss if self._smooth is None else 0.95 * self._smooth + 0.05 * loss
        left = timedelta(
            seconds=round((self._steps - number) * self.seconds / (number - self._done))
        )
        loss = f"loss {self._smooth:.3f} {self._unit}{self._about}"
        state = f"{number}/{self._steps}  {loss}  {self.speed:,.0f} tokens/s{self.note}  {left}"
        self._bar.update(self._task, completed=number, state=state)
        tenth = number * 10 // self._steps > (number - 1) * 10 // self._steps
        if not self._console.is_terminal and (tenth or now - self._line >= SECONDS_PER_LINE):
            self._line = now
            self._console.print(f"  {self._name} {state} left", markup=False, soft_wrap=True)


def _display(console: Console) -> Progress:
    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[state]}", markup=False),
    )
    return Progress(*columns, console=console, expand=True, disable=not console.is_terminal)
