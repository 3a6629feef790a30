"""Graceful stop on SIGTERM (from a scheduler) or SIGINT (from the keyboard)."""

import signal
from types import FrameType, TracebackType
from typing import Self


class Signals:
    """Context in which SIGTERM and SIGINT are recorded instead of killing.

    A second SIGINT kills as usual.
    """

    requested = False
    """Whether a signal arrived."""

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(
        self, kind: type | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])
