"""Claims: evaluation, comparison, and shrinking of counterexamples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddlib.verification.framework.blame import locate_error
from ddlib.verification.report import Check, Counterexample, Place

Point = Mapping[str, float | int]
"""Point at which a claim is evaluated: times by name, and ``distribution``, the seed of one (0 is
uniform).
"""


class Comparison(NamedTuple):
    """Numbers that must be equal according to a claim."""

    quantity: str
    axes: tuple[str, ...]
    """Names of the tensors' indices."""
    got: Tensor
    expected: Tensor
    allowed: Tensor | float
    """Largest difference that rounding, quadrature or chance can explain."""
    labels: Mapping[str, Tensor] = {}
    """For tensors over a list of cases: labels of each case, indexed by the first index."""
    message: str = ""
    """Message printed for the largest difference, instead of the numbers; a format string with
    ``{got}``, ``{expected}`` and the names of the point."""
    hint: str = ""
    """Suggested fix if they differ."""


Ask = Callable[[Any, Point], Iterable[Comparison]]
"""Function that evaluates a claim about an object at a point."""

FLOAT64 = "compute functions of time in float64, t.to(torch.float64), from constants in float64"
"""Advice on rounding errors of float32."""


def condition(quantity: str, holds: bool, message: str, hint: str = "") -> Comparison:
    """Return a comparison that fails with the message ``message`` unless ``holds``."""
    message, hint = (text.replace("{", "{{").replace("}", "}}") for text in (message, hint))
    return Comparison(
        quantity, (), torch.tensor(float(holds)), torch.tensor(1.0), 0.0, message=message, hint=hint
    )


def of_dtype(quantity: str, answer: Tensor, dtype: torch.dtype) -> Comparison:
    """Return a comparison that checks the dtype of a result."""
    message = f"{quantity} is {answer.dtype}, must be {dtype}"
    return condition(
        f"dtype of {quantity}",
        answer.dtype == dtype,
        message,
        f"compute in float64 and end with .to({dtype})",
    )


@dataclass(frozen=True)
class Claim:
    """A property of every correct object of a kind."""

    topic: str
    name: str
    proves: str
    tolerance: str
    ask: Ask
    points: Sequence[Point] = ({},)
    more: Sequence[Point] = ()
    """Additional points at level "full"."""
    applies: Callable[[Any], str] = lambda subject: ""
    """Returns the reason why the claim does not apply to an object; empty if it applies."""
    rests_on: tuple[str, ...] = ()
    """Names of claims that this one presupposes; if they fail, its failure follows from theirs."""
    means: str = ""
    """Explanation of a failure for the author of the object."""

    def check(
        self, subject: Any, full: bool, smaller: Callable[[], Iterator[Any]] = lambda: iter(())
    ) -> Check:
        """Evaluate the claim at every point.

        If it fails, search for a simpler point and a smaller object.
        """
        check = Check(self.topic, self.name, self.proves, self.tolerance, None)
        if reason := self._reason(subject):
            return replace(check, note=reason)
        worst = 0.0
        worst_at = ""
        compared = 0
        for point in [*self.points, *(self.more if full else ())]:
            outcome = _compare(self.ask, subject, point)
            compared += outcome.compared
            if outcome.counterexample is not None:
                smallest = _shrink(self.ask, subject, point, outcome, smaller)
                return replace(
                    check,
                    ok=False,
                    compared=compared,
                    worst=smallest.worst,
                    counterexample=smallest.counterexample,
                    note=smallest.error,
                    place=smallest.place,
                    means=self.means,
                )
            if outcome.worst > worst:
                worst = outcome.worst
                worst_at = outcome.worst_at
        if compared == 0:
            return replace(check, note="no case at the given points")
        return replace(check, ok=True, compared=compared, worst=worst, worst_at=worst_at)

    def _reason(self, subject: Any) -> str:
        with suppress(Exception):  # the evaluation of the claim will report the error
            return self.applies(subject)
        return ""


class _Outcome(NamedTuple):
    worst: float
    worst_at: str
    compared: int
    counterexample: Counterexample | None
    error: str = ""
    place: Place | None = None


class _ShapeError(ValueError):
    """A result with another shape than the expected one."""


def _compare(ask: Ask, subject: Any, point: Point) -> _Outcome:
    worst = 0.0
    worst_at = ""
    compared = 0
    try:
        for comparison in ask(subject, point):
            share, first = _shares(comparison)
            compared += share.numel()
            if first is not None:
                counterexample = _counterexample(subject, point, comparison, first)
                return _Outcome(float(share.max()), "", compared, counterexample)
            if share.numel() and float(share.max()) > worst:
                worst = float(share.max())
                place = _place(point, comparison, _index(int(share.argmax()), share.shape))
                worst_at = (
                    " at " + ", ".join(f"{k} = {v:.6g}" for k, v in place.items()) if place else ""
                )
    except _ShapeError as error:
        return _no_answer(subject, point, compared, str(error), message=str(error))
    except Exception as error:  # any exception counts as a failure
        line, advice = locate_error(error, subject)
        return _no_answer(
            subject, point, compared, f"raised {type(error).__name__}: {error}", line, hint=advice
        )
    return _Outcome(worst, worst_at, compared, None)


def _no_answer(
    subject: Any, point: Point, compared: int, error: str, place: Place | None = None, **texts: str
) -> _Outcome:
    nan = float("nan")
    infinity = float("inf")
    counterexample = Counterexample(
        repr(subject), dict(point), "an answer", nan, nan, infinity, **texts
    )
    return _Outcome(infinity, "", compared, counterexample, error, place)


def _shares(comparison: Comparison) -> tuple[Tensor, tuple[int, ...] | None]:
    """Return errors relative to the tolerance, and the first index above it (the worst if there is
    a message).
    """
    got = comparison.got.detach().to(torch.float64)
    expected = comparison.expected.detach().to(torch.float64)
    if got.shape != expected.shape:
        raise _ShapeError(
            f"{comparison.quantity} has shape {tuple(got.shape)}, must be {tuple(expected.shape)}"
        )
    allowed = torch.as_tensor(comparison.allowed, dtype=torch.float64).expand_as(got)
    error = torch.where(got == expected, 0.0, (got - expected).abs())  # infinities may be equal
    # not error > allowed: NaN fails
    fails = ~(error <= allowed)
    share = torch.where(error == 0, 0.0, error / allowed).nan_to_num(torch.inf, posinf=torch.inf)
    if not bool(fails.any()):
        return share, None
    first = int(share.argmax()) if comparison.message else int(fails.flatten().nonzero()[0])
    return share, _index(first, share.shape)


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), tuple(shape)))


def _place(point: Point, comparison: Comparison, index: tuple[int, ...]) -> dict[str, float | int]:
    labels = {name: values[index[0]].item() for name, values in comparison.labels.items()}
    return {**point, **labels} | {
        axis: i for axis, i in zip(comparison.axes, index, strict=False) if axis
    }


def _counterexample(
    subject: Any, point: Point, comparison: Comparison, index: tuple[int, ...]
) -> Counterexample:
    allowed = torch.as_tensor(comparison.allowed, dtype=torch.float64).expand(comparison.got.shape)
    place = _place(point, comparison, index)
    expected = float(comparison.expected[index])
    got = float(comparison.got[index])
    message, hint = (
        text.format(**place, expected=expected, got=got)
        for text in (comparison.message, comparison.hint)
    )
    hint = hint or _precision(comparison, expected, got)
    return Counterexample(
        repr(subject),
        place,
        comparison.quantity,
        expected,
        got,
        float(allowed[index]),
        message,
        hint,
    )


def _precision(comparison: Comparison, expected: float, got: float) -> str:
    """Return a hint if an error has the size of float32 rounding, else an empty string."""
    dtypes = [tensor.dtype for tensor in (comparison.got, comparison.expected)]
    if torch.float64 in dtypes and (torch.float32 in dtypes):
        return f"{dtypes[0]} against {dtypes[1]}: {FLOAT64}"
    size = max(abs(expected), abs(got))
    if size and 1e-9 < abs(got - expected) / size < 2.5e-7:
        return f"the error has the size of float32 rounding: {FLOAT64}"
    return ""


def _shrink(
    ask: Ask, subject: Any, point: Point, outcome: _Outcome, smaller: Callable[[], Iterator[Any]]
) -> _Outcome:
    """Reproduce a failure on the smallest object, at the roundest times and with the simplest
    distribution.
    """
    for candidate in smaller():
        attempt = _compare(ask, candidate, point)
        same_failure = attempt.place == outcome.place and bool(attempt.error) == bool(outcome.error)
        if attempt.counterexample is not None and same_failure:
            subject = candidate
            outcome = attempt
            break
    for name in ("distribution", "s", "u", "t"):
        for value in _simpler(point[name]) if name in point else ():
            rounder = {**point, name: value}
            attempt = _compare(ask, subject, rounder)
            if (
                attempt.counterexample is not None
                and attempt.error == outcome.error
                and _is_ordered(rounder)
            ):
                point = rounder
                outcome = attempt
                break
    return outcome


def _simpler(value: float | int) -> Iterator[float | int]:
    """Yield smaller seeds, or rounder times strictly inside (0, 1).

    0 and 1 need no simplification.
    """
    if isinstance(value, int):
        yield from range(value)
    elif 0 < value < 1:
        for candidate in (
            0.5,
            0.25,
            0.75,
            0.1,
            0.9,
            *(round(value, digits) for digits in range(2, 6)),
        ):
            if candidate == value:
                return
            if 0 < candidate < 1:
                yield candidate


def _is_ordered(point: Point) -> bool:
    times = [point[name] for name in ("s", "u", "t") if name in point]
    return all(early < late for early, late in pairwise(times))
