"""Steps of a sampling call as an iterator."""

from collections.abc import Callable, Iterator
from queue import Queue
from threading import Event, Semaphore, Thread

import torch
from torch import Tensor

Step = tuple[int, Tensor, Tensor]
"""Number of the step, -1 at the start; times; states: the arguments of ``on_step``."""


class _StoppedError(Exception):
    """The iterator was closed before the call ended."""


def follow(run: Callable[[Callable[[int, Tensor, Tensor], None]], object]) -> Iterator[Step]:
    """Yield the steps of a sampling call, which waits in a thread of its own after each of them.

    An iterator that is closed early stops the call.

    Args:
        run: makes the call, given its ``on_step``.

    Raises:
        Exception: what the call raises.
    """
    steps: Queue[Step | BaseException | None] = Queue(1)
    resumed = Semaphore(0)
    stopped = Event()
    threads = torch.get_num_threads()

    def on_step(k: int, t: Tensor, z: Tensor) -> None:
        steps.put((k, t, z))
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
