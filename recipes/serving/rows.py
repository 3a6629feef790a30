"""Rows of network calls, lent to requests in the order of their arrival."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from recipes.config import at_least


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server."""

    rows: int = 16
    """Texts that are drawn at once: rows of every network call, whether or not there are as many
    requests.
    """
    waiting: int = 64
    """Requests in the queue; further ones get 429."""
    seconds: float = 300.0
    """Time of a request, the wait included; then it gets 504, and its rows are free."""

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, waiting=self.waiting)
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds={self.seconds}: must be a positive number of seconds")


class Rows:
    """A number of rows, of which every request gets as many as it has texts.

    A request of many rows is not overtaken by later ones of few.

    Args:
        number: number of rows.
    """

    def __init__(self, number: int) -> None:
        self.free = number
        self._changed = Condition()
        self._queue: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._queue)

    @contextmanager
    def lent(self, count: int, check: Callable[[], None]) -> Iterator[None]:
        """Wait for rows, and hold them inside the block.

        Args:
            count: number of rows, at most those of the server.
            check: is called while it waits, and raises to leave the queue.
        """
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                while self._queue[0] is not ticket or self.free < count:
                    check()
                    self._changed.wait(1.0)
                self.free -= count
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.free += count
                self._changed.notify_all()
