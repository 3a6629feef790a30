"""Steps of a sampling call as an iterator."""

from collections.abc import Callable, Iterator
from queue import Queue
from threading import Event, Semaphore, Thread
from typing import Any

import torch


class _StoppedError(Exception):
    """The iterator was closed before the call ended."""


def follow(run: Callable[[Callable[..., None]], object]) -> Iterator[tuple[Any, ...]]:
    """Yield the steps of a sampling call, the arguments of its ``on_step``.

    The call waits in a thread of its own after each of them. An iterator that is closed early stops
    it.

    Args:
        run: makes the call, given its ``on_step``; or several calls of which one is made at a time.

    Raises:
        Exception: what the call raises.
    """
    steps: Queue[tuple[Any, ...] | BaseException | None] = Queue(1)
    resumed = Semaphore(0)
    stopped = Event()
    threads = torch.get_num_threads()

    def on_step(*step: Any) -> None:
        if not stopped.is_set():
            steps.put(step)
            resumed.acquire()
        if stopped.is_set():
            raise _StoppedError

    def work() -> None:
        torch.set_num_threads(threads)  # of this thread, whose sums are rounded as the caller's
        try:
            run(on_step)
            steps.put(None)
        except _StoppedError:
            pass
        except BaseException as error:  # raised by the iterator
            steps.put(error)

    worker = Thread(target=work, daemon=True)
    worker.start()
    try:
        while (step := steps.get()) is not None:
            if isinstance(step, BaseException):
                raise step
            yield step
            resumed.release()
    finally:
        stopped.set()
        resumed.release()
        worker.join()
