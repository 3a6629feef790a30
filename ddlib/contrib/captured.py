"""Functions of tensors that are recorded once and replayed: CUDA graphs.

A step of a small network launches hundreds of short operations, and the device waits for the host.
A graph launches all of them at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

Function = Callable[..., Any]
"""Function of tensors that returns tensors in tuples, lists or mappings, or none."""


class Recording(Protocol):
    """Recorded call of a function without arguments, which reads and writes the same memory."""

    def replay(self) -> Any:
        """Run it again and return its results, which are in the same memory each time."""


Record = Callable[[Callable[[], Any], torch.device, int], Recording]
"""Factory of a recording, from a function, its device, and the number of calls before."""


class CaptureError(RuntimeError):
    """Error for a function that cannot be recorded, such as one that reads a value of the
    device.
    """


class CudaRecording:
    """CUDA graph of a function, whose operations must wait for no value of the device.

    Args:
        function: of no arguments.
        device: the device.
        warm_up: number of calls before, in which libraries allocate what they keep.

    Raises:
        CaptureError: an operation that cannot be a part of a graph.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, warm_up: int) -> None:
        stream = torch.cuda.Stream(device)
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(warm_up):
                function()
        current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # another thread may copy data to the device meanwhile
        try:
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._results = function()
        except RuntimeError as error:
            raise CaptureError(f"no CUDA graph can be made: {error}") from error

    def replay(self) -> Any:
        self._graph.replay()
        return self._results


class Rerun:
    """Recording without a graph: each replay calls the function and copies its results.

    So whatever reads the results sees them change as those of a graph do.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, warm_up: int) -> None:
        self._function = function
        self._results: Any = None

    def replay(self) -> Any:
        results = self._function()
        if self._results is None:
            self._results = results
        for old, new in zip(tensors_in(self._results), tensors_in(results), strict=True):
            old.copy_(new)
        return self._results


def record_on(function: Callable[[], Any], device: torch.device, warm_up: int) -> Recording:
    """Record a function: a graph on a CUDA device, else calls."""
    kind = CudaRecording if device.type == "cuda" else Rerun
    return kind(function, device, warm_up)


class Captured:
    """Function of tensors that is recorded at its first call with each shape, and then replayed.

    The results of a call are in memory that the next call with these shapes overwrites. What the
    function reads beside its arguments must stay in its memory, as weights do that are changed in
    place; what it computes in Python is that of the recorded call.

    Args:
        function: of tensors; its sizes depend on the shapes of these alone, and it reads no value.
        warm_up: number of calls before a graph is recorded; 0 for a function that changes what it
            reads, which must have been called before.
        record: factory of recordings.

    Example:
        >>> double = Captured(lambda x: 2 * x)
        >>> first = double(torch.ones(2))
        >>> double(torch.zeros(2)), first
        (tensor([0., 0.]), tensor([0., 0.]))
    """

    def __init__(self, function: Function, warm_up: int = 3, record: Record = record_on) -> None:
        self._function = function
        self._warm_up = warm_up
        self._record = record
        self._recordings: dict[Any, tuple[Sequence[Tensor], Recording]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        key = tuple((one.shape, one.dtype, one.device) for one in inputs)
        if key not in self._recordings:
            copies = [one.clone() for one in inputs]
            call = partial(self._function, *copies)
            recording = self._record(call, inputs[0].device, self._warm_up)
            self._recordings[key] = copies, recording
        buffers, recording = self._recordings[key]
        for buffer, value in zip(buffers, inputs, strict=True):
            buffer.copy_(value)
        return recording.replay()

    @property
    def number(self) -> int:
        """Number of recordings, one for each combination of shapes."""
        return len(self._recordings)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
