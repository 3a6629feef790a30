"""Joint network calls of calls of ``sample`` that differ in length, options and steps."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Condition, Event, Lock, Thread
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ddlib.samplers.sampling import Plan
from ddlib.typing import Denoiser, JoinsCaches, TakesPadding, Tokens, implements
from ddlib.utils.validation import check_count

ALIGNED = 16
"""Rows times positions of a call are a multiple of it, if a number of rows allows that: products on
a CPU compute the last few rows by other instructions, and the rounding of a row there depends on
its place.
"""
BY_ROWS = ("__call__", "features", "step_distribution", "extend")
"""Evaluations that are joined; those with a cache if it is joined (``typing.JoinsCaches``)."""
ALONE = ("prefill", "prefill_around")
WRAPPERS = ("after", "with_label", "with_padding")
"""Methods of denoisers that return another denoiser."""

Drawn = TypeVar("Drawn")
Mode = tuple[str, torch.dtype, bool]
"""Arguments of ``torch.autocast``."""


class Batcher:
    """Joint network calls of several drawings; a drawing is a call of ``sample`` in its thread.

    Each drawing has its own sampler, options and number of steps. Once all of them wait for the
    network, their calls are grouped by length and computed together. So drawings join and leave
    between two calls.

    Joint calls have few shapes (rows, length). Shorter sequences are padded, and padding is not
    attended to; empty rows repeat another one. At one shape the output of a sequence does not
    depend on the others, nor on its row, so it has the tokens that it has alone. Products of
    another shape are rounded in another way.

    Calls with cached keys and values are joined if the denoiser pads caches
    (``typing.JoinsCaches``); others, and those that fill a cache, are computed one after the other.

    Args:
        denoiser: ``(z, t) -> logits``, in evaluation mode.
        rows: rows of a joint call, best a multiple of 8: with others the rounding of a row of a
            product may depend on its place. Or several numbers, of which each call has the smallest
            that suffices: less work, and the rounding may depend on the number of drawings.
        lengths: positions of a joint call: the smallest number that suffices. Longer sequences, and
            those of a denoiser without padding (``typing.TakesPadding``), are not padded, and
            joined with those of their length.

    Raises:
        TypeError, ValueError: numbers below 1, or no number of rows.

    Example:
        >>> import ddlib as dd
        >>> process, uniform = dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4)
        >>> with dd.contrib.Batcher(uniform) as batcher, batcher.join() as denoiser:
        ...     dd.sample(process, denoiser, (1, 8), steps=4).shape
        torch.Size([1, 8])
    """

    def __init__(
        self, denoiser: Denoiser, rows: int | Sequence[int] = 16, lengths: Sequence[int] = ()
    ) -> None:
        sizes = rows if isinstance(rows, Sequence) else [rows]
        if not sizes:
            raise ValueError("rows is empty, must hold a number of rows")
        self.denoiser = denoiser
        self.rows = sorted(check_count("rows", size) for size in sizes)
        self.lengths = sorted(check_count("lengths", length) for length in lengths)
        self._turn = Lock()  # drawings compute one at a time: more would compete for the cores
        self._changed = Condition()
        self._running = 0
        self._waiting: list[_Call] = []
        self._closed = False
        self._worker = Thread(target=self._work, args=(torch.get_num_threads(),), daemon=True)
        self._worker.start()

    def join(self) -> "Session":
        """Return the session of a drawing: its context gives the denoiser for the thread that
        enters it.

        From then on the others wait until it calls the denoiser, or leaves.
        """
        return Session(self)

    def run(self, draws: Sequence[Callable[[Denoiser], Drawn]]) -> list[Drawn]:
        """Return the results of functions of the joined denoiser, each in a thread of its own.

        At most as many run at a time as a joint call has rows; the next one begins when one ends.

        Raises:
            Exception: what one of them raises; the others are cancelled.
        """
        count = min(max(len(draws), 1), self.rows[-1])
        sessions = [self.join() for _ in draws]
        with ThreadPoolExecutor(
            count, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        ) as pool:
            runs = [
                pool.submit(each._apply, draw) for each, draw in zip(sessions, draws, strict=True)
            ]
            try:
                ended = wait(runs, return_when=FIRST_EXCEPTION).done
                errors = [error for run in ended if (error := run.exception()) is not None]
            finally:
                for session in sessions:
                    session.cancel()
        if errors:
            raise errors[0]
        return [run.result() for run in runs]

    def close(self) -> None:
        """End all drawings: what they wait for, or their next call, raises CancelledError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enter(self) -> None:
        with self._changed:
            self._running += 1
        self._turn.acquire()

    def _leave(self) -> None:
        self._turn.release()
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _evaluate(self, call: "_Call") -> Any:
        """Return the output of a call, for which others may compute meanwhile."""
        with self._changed:
            self._check(call.session)
            self._waiting.append(call)
            self._running -= 1
            self._changed.notify_all()
        self._turn.release()
        try:
            call.done.wait()
        finally:
            self._withdraw([call])  # if this thread is interrupted
            self._turn.acquire()
        self._check(call.session)
        if call.error is not None:
            raise call.error
        return call.output

    def _check(self, session: "Session") -> None:
        if session.cancelled or self._closed:
            raise CancelledError("the drawing was cancelled, or its batcher was closed")

    def _withdraw(self, calls: "Sequence[_Call]") -> None:
        """Take calls out of the queue."""
        with self._changed:
            queued = [call for call in self._waiting if call in calls]
            self._waiting = [call for call in self._waiting if call not in queued]
            self._end(queued)

    def _end(self, calls: "Sequence[_Call]") -> None:
        with self._changed:
            self._running += len(calls)
            for call in calls:
                call.done.set()

    @torch.no_grad()
    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)  # of this thread
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._running == 0 < len(self._waiting)
                )
                if self._closed:
                    self._withdraw(self._waiting)
                    return
                calls = self._waiting
                self._waiting = []
            groups: dict[Hashable, list[_Call]] = {}
            for call in calls:
                groups.setdefault(call.key, []).append(call)
            for group in groups.values():
                self._compute(group)

    def _compute(self, calls: "Sequence[_Call]") -> None:
        """Compute calls together or, if this fails, one by one: no drawing fails because of
        another.
        """
        try:
            outputs = self._outputs(calls)
        except BaseException as error:  # raised by the drawing
            if len(calls) > 1:
                for call in calls:
                    self._compute([call])
                return
            calls[0].error = error
            outputs = [None]
        for call, output in zip(calls, outputs, strict=True):
            call.output = output
        self._end(calls)

    def _outputs(self, calls: "Sequence[_Call]") -> list[Any]:
        first = calls[0]
        if not first.columns:
            return [first.evaluate({})]
        columns = {name: torch.cat([one.columns[name] for one in calls]) for name in first.columns}
        total, length = columns["0"].shape
        cache = None if first.join is None else first.join([one.cache for one in calls])
        outputs = []
        for start in range(0, total, self.rows[-1]):
            end = min(start + self.rows[-1], total)
            index = torch.arange(start, start + self._size(end - start, length))
            index = index.clamp_max(end - 1).to(columns["0"].device)
            arguments = {name: column[index] for name, column in columns.items()}
            if cache is not None:
                arguments["cache"] = cache.rows(index)
            output = first.evaluate(arguments)
            outputs.append(output[: end - start])
        rows = torch.cat(outputs).split([len(call.columns["0"]) for call in calls])
        # copies: the rounding of a product may depend on the place of its operands in memory
        return [part[:, : call.length].clone() for part, call in zip(rows, calls, strict=True)]

    def _size(self, rows: int, length: int) -> int:
        """Return the number of rows of a joint call."""
        enough = [size for size in self.rows if size >= rows]
        return next((size for size in enough if size * length % ALIGNED == 0), enough[-1])


class Session:
    """Place of a drawing in a ``Batcher``, from ``Batcher.join``; a context that gives its
    denoiser.
    """

    def __init__(self, batcher: Batcher) -> None:
        self.cancelled = False
        self._batcher = batcher
        self._call: _Call | None = None

    def cancel(self) -> None:
        """End the drawing, from any thread: what it waits for, or its next call, raises
        CancelledError.
        """
        self.cancelled = True
        if self._call is not None:
            self._batcher._withdraw([self._call])

    def __enter__(self) -> Denoiser:
        self._batcher._enter()
        return _Joined(self, self._batcher.denoiser)

    def __exit__(self, *error: object) -> None:
        self._batcher._leave()

    def _apply(self, draw: Callable[[Denoiser], Drawn]) -> Drawn:
        with self as denoiser:
            return draw(denoiser)

    def run(self, plan: Plan) -> Tokens:
        """Draw the tokens of a plan of the same denoiser, in this thread."""
        return self._apply(lambda denoiser: with_denoiser(plan, denoiser).run())

    def _evaluate(
        self, denoiser: Denoiser, method: str, z: Tensor, *args: Any, **options: Any
    ) -> Any:
        """Return the result of a method of a denoiser, computed together with those of others."""
        function = getattr(denoiser, method)
        mode = _autocast(z.device)
        named = {str(place): value for place, value in enumerate((z, *args))} | options
        columns = {name: value for name, value in named.items() if value is not None}
        cache = columns.pop("cache", None)
        shape = None
        if cache is not None and implements(denoiser, JoinsCaches):
            shape = denoiser.cache_shape(cache, z.shape[1])
        self._call = _Call(self, partial(function, z, *args, **options), mode, object())
        if (
            method in BY_ROWS
            and (cache is None or shape is not None)
            and all(isinstance(one, Tensor) and len(one) == len(z) for one in columns.values())
        ):
            join = None
            size = 0
            if shape is None:
                pads = implements(denoiser, TakesPadding) and denoiser.takes_padding
                columns = self._padded(columns, pads)
            else:
                size = next((one for one in self._batcher.lengths if one >= shape[1]), shape[1])
                size = size if shape[1] else 0
                join = partial(denoiser.join_caches, size=size)
            shapes = [
                (name, value.dtype, value.device, value.shape[1:])
                for name, value in columns.items()
            ]
            key = id(denoiser), method, mode, tuple(shapes), shape and shape[0], size
            self._call = _Call(self, function, mode, key, columns, z.shape[1], cache, join)
        return self._batcher._evaluate(self._call)

    def _padded(self, columns: Mapping[str, Tensor], allowed: bool) -> dict[str, Tensor]:
        """Return the arguments at the positions of a joint call, with the places of padding."""
        z = columns["0"]
        lengths = [length for length in self._batcher.lengths if length >= z.shape[1]]
        if not allowed or not lengths:
            return dict(columns)
        more = lengths[0] - z.shape[1]
        columns = {"present": torch.ones_like(z, dtype=torch.bool), **columns}
        return {
            name: pad(value, (0, 0) * (value.ndim - 2) + (0, more))
            if value.shape[1:2] == z.shape[1:]
            else value
            for name, value in columns.items()
        }


class _Joined:
    """Denoiser of a drawing: another one, whose evaluations are joined with those of others."""

    def __init__(self, session: Session, denoiser: Denoiser) -> None:
        self._session = session
        self._denoiser = denoiser
        self.__qualname__ = getattr(denoiser, "__qualname__", type(denoiser).__qualname__)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._session._evaluate(self._denoiser, "__call__", *args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._denoiser, name)
        if name in (*BY_ROWS, *ALONE):
            return partial(self._session._evaluate, self._denoiser, name)
        if name in WRAPPERS:
            return lambda *args, **options: _Joined(self._session, value(*args, **options))
        return self._features_at if name == "features_at" else value

    def _features_at(self, z: Tensor, t: Tensor, positions: Tensor, **options: Any) -> Tensor:
        # the number of positions would be one of the shape, and differs between drawings
        features: Tensor = self.features(z, t, **options)
        return features.take_along_dim(positions[..., None], 1)


@dataclass(eq=False)
class _Call:
    """An evaluation that a drawing waits for."""

    session: Session
    function: Callable[..., Any]
    mode: Mode
    key: Hashable
    """Equal for calls that are computed together."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """Arguments with a row for each sequence, by place or name; empty if the function has them."""
    length: int = 0
    cache: Any = None
    join: Callable[[Sequence[Any]], Any] | None = None
    """Joins caches; None without one."""
    done: Event = field(default_factory=Event)
    output: Any = None
    error: BaseException | None = None

    def evaluate(self, columns: Mapping[str, Tensor]) -> Any:
        args = [value for name, value in columns.items() if name.isdigit()]
        options = {name: value for name, value in columns.items() if not name.isdigit()}
        with torch.autocast(*self.mode):
            return self.function(*args, **options)


def sample_together(
    plans: Sequence[Plan], rows: int | Sequence[int] = 16, lengths: Sequence[int] = ()
) -> list[Tokens]:
    """Draw the tokens of several calls of ``sample``, with joint calls of the network.

    The calls may differ in everything but the process: shapes, seeds, samplers, steps, prompts,
    temperatures and other controls. Give each call seeds or a generator of its own: one that
    several share is used in no fixed order.

    Args:
        plans: checked calls, from ``dd.plan``. Those of one denoiser, the same object, are drawn
            together; at most as many at a time as there are rows.
        rows: as in ``Batcher``.
        lengths: as in ``Batcher``.

    Returns:
        the tokens of each call.

    Raises:
        TypeError, ValueError: as in ``Batcher``; what the first failing call raises.
    """
    tokens: dict[int, Tokens] = {}
    denoisers = {id(plan.network.denoiser): plan.network.denoiser for plan in plans}
    for denoiser in denoisers.values():
        places = [k for k, plan in enumerate(plans) if plan.network.denoiser is denoiser]
        mode = _autocast(plans[places[0]].free.device)
        with Batcher(denoiser, rows, lengths) as batcher:
            drawn = batcher.run([partial(_draw, plans[k], mode) for k in places])
        tokens |= zip(places, drawn, strict=True)
    return [tokens[k] for k in range(len(plans))]


def _draw(plan: Plan, mode: Mode, denoiser: Denoiser) -> Tokens:
    with torch.autocast(*mode):
        return with_denoiser(plan, denoiser).run()


def with_denoiser(plan: Plan, denoiser: Denoiser) -> Plan:
    """Return a checked call with another form of its denoiser, such as that of a ``Session``."""
    network = copy(plan.network)
    network.denoiser = denoiser
    return replace(plan, network=network)


def _autocast(device: torch.device) -> Mode:
    """Return the arguments of ``torch.autocast`` that set what is set in this thread."""
    kind = device.type
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
