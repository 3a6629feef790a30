"""Reports of verification: passed checks in short, failures with their smallest counterexamples."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

WIDTH = 120
_INDENT = 7 * " "


@dataclass(frozen=True)
class Place:
    """A line of code of the verified object."""

    file: str
    line: int
    method: str
    code: str

    def __str__(self) -> str:
        return f"{self.method}, {self.file}, line {self.line}" + (
            f": {self.code}" if self.code else ""
        )


@dataclass(frozen=True)
class Counterexample:
    """A point where a claim does not hold."""

    subject: str
    """Object on which it was found: the given one, or a smaller one of the same class."""
    where: Mapping[str, float | int]
    """Times, tokens, states, seed of the token distribution."""
    quantity: str
    expected: float
    got: float
    allowed: float
    """Largest allowed difference; infinity if there was no result to compare."""
    message: str = ""
    """Description of the error, if two numbers are not enough."""
    hint: str = ""
    """Suggested fix, if known."""

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 12) -> str:
        """Format place and numbers with ``digits`` digits, or more if needed to distinguish the two
        numbers.
        """
        place = (
            ", ".join(f"{name} = {_shortest(value)}" for name, value in self.where.items())
            or "any time"
        )
        if self.message:
            return self.message
        if self.allowed == math.inf:
            return f"no result at {place}"
        return f"{self.quantity} at {place}: {self._numbers(digits)}"

    def _numbers(self, digits: int) -> str:
        off = abs(self.got - self.expected)
        if math.isnan(self.got) and math.isnan(self.expected):
            return "expected nan, got nan"
        if off == 0:
            return f"{self.got:.{digits}g} as expected, but the tolerance is {self.allowed:.3g}"
        while f"{self.expected:.{digits}g}" == f"{self.got:.{digits}g}":
            digits += 1
        text = f"expected {self.expected:.{digits}g}, got {self.got:.{digits}g}"
        close = off < math.inf and off <= 1e-6 * max(abs(self.expected), abs(self.got))
        return text + (f" (off by {off:.2g}, allowed {self.allowed:.2g})" if close else "")


@dataclass(frozen=True)
class Check:
    """Result of one claim."""

    topic: str
    """schedule, hierarchy, process, reverse, objective, numerics, draws, as given, or the kind of
    the subject.
    """
    name: str
    proves: str
    tolerance: str
    """Description of the tolerance."""
    ok: bool | None
    """None if the claim does not apply; ``note`` has the reason."""
    compared: int = 0
    """Number of compared values."""
    worst: float = 0.0
    """Largest error, relative to the tolerance."""
    worst_at: str = ""
    counterexample: Counterexample | None = None
    note: str = ""
    """Reason why the claim does not apply, or the exception that was raised."""
    place: Place | None = None
    """Line of the object's code that raised."""
    means: str = ""
    """Explanation of a failure."""
    follows: str = ""
    """Label of the failure that explains this one and should be fixed first."""

    @property
    def label(self) -> str:
        """Section and name; unique within a report."""
        return f"{self.topic}: {self.name}"

    def __str__(self) -> str:
        verdict = {True: "ok  ", False: "FAIL", None: "  - "}[self.ok]
        line = f"  {verdict} {self.name:<24} {self.proves}"
        if self.ok is None:
            return f"{line}\n       does not apply: {self.note}"
        if self.ok:
            return (
                f"{line}\n       tolerance {self.tolerance}; error at most {self.worst:.1e} of "
                f"it{self.worst_at}"
            )
        counterexample = self.counterexample
        after = [f"follows from {self.follows}"] if self.follows else []
        if counterexample is None:
            return _indent(line, [f"tolerance {self.tolerance}", self.note, *after])
        if counterexample.message or self.note:
            lines = [
                f"on {counterexample.subject}",
                str(counterexample),
                self.note,
                f"in {self.place}" if self.place else "",
            ]
        else:
            lines = [
                f"tolerance {self.tolerance}",
                f"on {counterexample.subject}",
                str(counterexample),
                self.means,
            ]
        return _indent(line, [*dict.fromkeys(lines), counterexample.hint, *after])

    def in_short(self) -> str:
        """Format the reason of the failure in one line."""
        counterexample = "" if self.counterexample is None else self.counterexample.text(digits=6)
        return (self.note or counterexample) + (f", in {self.place}" if self.place else "")


@dataclass(frozen=True)
class Report:
    """Result of ``verify``. Printed, it lists the passed checks and shows the failures, causes
    first.
    """

    subject: str
    level: str
    checks: tuple[Check, ...]
    seconds: float
    note: str = ""
    """Note on the smaller copy that was verified, if any."""

    @property
    def ok(self) -> bool:
        """True if every applicable claim holds."""
        return all(check.ok is not False for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """Failed checks: first those that no other failure explains, sorted by the number of
        failures they explain.
        """
        failed = [check for check in self.checks if check.ok is False]
        causes = [check for check in failed if not check.follows]
        causes.sort(key=lambda check: -len(self.followers(check)))
        return (*causes, *(check for check in failed if check.follows))

    def followers(self, check: Check) -> tuple[Check, ...]:
        """Return the failures that a failure explains."""
        return tuple(other for other in self.checks if other.follows == check.label)

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """Format the report: names of passed checks, failures in full, the verdict.

        Args:
            verbose: whether to print every check with its claim, tolerance and worst case before
                the failures.
        """
        lines = [f"{self.subject}, level {self.level}"]
        lines += [self.note] if self.note else []
        lines += self._in_full() if verbose else self._by_name()
        return "\n".join([*lines, *([] if self.ok else ["", self.refutation, ""]), self._verdict()])

    @property
    def refutation(self) -> str:
        """The failures only, as a string: each cause in full, followed by the failures it explains
        in short.
        """
        return "\n".join(
            self._format_refutation(check) for check in self.failures if not check.follows
        )

    def to_json(self) -> str:
        """Format the report as JSON; infinities and NaN become strings."""
        return json.dumps(_plain({**asdict(self), "ok": self.ok}), indent=2, allow_nan=False)

    def _in_full(self) -> list[str]:
        sections = groupby(self.checks, lambda check: check.topic)
        return [line for topic, checks in sections for line in (topic, *map(str, checks))]

    def _by_name(self) -> list[str]:
        passed: dict[str, list[str]] = {}
        for check in self.checks:
            if check.ok:
                passed.setdefault(check.topic, []).append(check.name)
        lines = [_wrap(f"  ok   {topic}: ", names) for topic, names in passed.items()]
        apart = [check.name for check in self.checks if check.ok is None]
        return [*lines, *([_wrap("    -  do not apply: ", apart)] if apart else [])]

    def _format_refutation(self, cause: Check) -> str:
        at_this_line: list[str] = []
        unanswered: list[str] = []
        reasons: dict[str, list[str]] = {}
        for check in self.followers(cause):
            if check.place and check.place == cause.place:
                at_this_line.append(check.name)
            elif check.note and not check.place:
                unanswered.append(check.name)
            else:
                reasons.setdefault(check.in_short(), []).append(check.name)
        lines = [str(cause)]
        if at_this_line:
            count = _count(at_this_line, "more check fails", "more checks fail")
            lines.append(_wrap(f"{_INDENT}{count} at this line: ", at_this_line))
        if reasons:
            count = _count(
                [name for names in reasons.values() for name in names], "failure", "failures"
            )
            lines.append(f"{_INDENT}{count} that may follow from it:")
        for why, names in reasons.items():
            name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            lines.append(f"{_INDENT}  {name}: {why}")
        if unanswered:
            count = _count(unanswered, "check", "checks")
            lines.append(
                _wrap(f"{_INDENT}{count} without a result, possibly because of it: ", unanswered)
            )
        return "\n".join(lines)

    def _verdict(self) -> str:
        applied = [check for check in self.checks if check.ok is not None]
        passed = f"{sum(check.ok is True for check in applied)} of {len(applied)} checks pass"
        if self.ok:
            return f"verified: {passed} ({self.seconds:.1f} s)"
        causes = [check for check in self.failures if not check.follows]
        follow = len(self.failures) - len(causes)
        failures = _count(causes, "failure", "failures") + (
            f", {follow} that may follow" if follow else ""
        )
        return f"NOT VERIFIED: {failures}; {passed} ({self.seconds:.1f} s)"


def _count(things: Sequence[object], singular: str, plural: str) -> str:
    return f"{len(things)} {singular if len(things) == 1 else plural}"


def _shortest(number: float) -> str:
    """Format a number with as few digits as identify it."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _indent(first: str, lines: Sequence[str]) -> str:
    return "\n".join([first, *(_INDENT + line for line in lines if line)])


def _wrap(first: str, names: Sequence[str]) -> str:
    """Format a list of names after ``first``, in lines of at most ``WIDTH``.

    Names are not broken.
    """
    listed = ", ".join(name.replace(" ", "\0") for name in names)
    lines = textwrap.fill(
        listed, WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value
