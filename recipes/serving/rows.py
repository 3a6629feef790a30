"""Rows of network calls, lent to requests in the order of their arrival."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition


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
