"""Work on the data of training steps, one step ahead of the network.

With CUDA it is done by a thread on a separate stream, so that the device has it ready when the
network needs it, and the host waits for none of its numbers. Elsewhere it is done in the same
thread. Its numbers depend on neither.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")
Result = TypeVar("Result")


class Worker(Protocol):
    """What does work for another time."""

    def submit(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Begin some work; return the function that waits for its result, or raises its error."""

    def close(self) -> None:
        """Wait for the work that was begun, whose results are not needed any more."""


class SameThread:
    """Does work at once."""

    def submit(self, work: Callable[[], Result]) -> Callable[[], Result]:
        future = Future[Result]()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future.result

    def close(self) -> None:
        """Do nothing: all work is done."""


class SideStream:
    """Does work in a thread, on a stream of a CUDA device beside the current one.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # constants of the process may be on their way to the device
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")

    def submit(self, work: Callable[[], Result]) -> Callable[[], Result]:
        return partial(self._receive, self._thread.submit(self._launch, work))

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _launch(self, work: Callable[[], Result]) -> tuple[Result, torch.cuda.Event]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            result = work()
            return result, self._stream.record_event()

    def _receive(self, future: "Future[tuple[Result, torch.cuda.Event]]") -> Result:
        result, ready = future.result()
        current = torch.cuda.current_stream(self._device)
        current.wait_event(ready)
        # their memory must not be used again on the other stream before this one has read it
        for tensor in tensors_of(result):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return result


def worker_for(device: torch.device) -> Worker:
    """Return the worker for data of a device."""
    return SideStream(device) if device.type == "cuda" else SameThread()


def read_ahead(
    items: Iterator[Item], work: Callable[[Item, int], Result], first: int, worker: Worker
) -> Iterator[Result]:
    """Yield the result of ``work`` for each item, while that for the next item is computed.

    An error is raised in place of the result that it prevents.

    Args:
        items: data of the steps; only the worker reads them.
        work: function of the data of a step and its number.
        first: number of the first step.
        worker: what does the work.
    """

    def next_results(number: int) -> list[Result]:
        return [work(item, number) for item in islice(items, 1)]

    try:
        coming = worker.submit(partial(next_results, first))
        while results := coming():
            first += 1
            coming = worker.submit(partial(next_results, first))
            yield results[0]
    finally:
        worker.close()


def tensors_of(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in nested containers and attributes, but those of modules, each once."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, nn.Module | type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts: Any = vars(value).values() if hasattr(value, "__dict__") else ()
    if isinstance(value, Mapping):
        parts = [*parts, *value.values()]
    elif isinstance(value, list | tuple | set):
        parts = [*parts, *value]
    for part in parts:
        yield from tensors_of(part, seen)
