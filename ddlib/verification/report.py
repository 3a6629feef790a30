"""What verification says: the checks that hold in short, then every failure with its smallest counterexample."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

WIDTH = 120
_INDENT = 7 * " "


@dataclass(frozen=True)
class Place:
    """A line of the author's code."""

    file: str
    line: int
    method: str
    code: str

    def __str__(self) -> str:
        return f"{self.method}, {self.file}, line {self.line}" + (f": {self.code}" if self.code else "")


@dataclass(frozen=True)
class Counterexample:
    """One place where a claim does not hold."""

    subject: str
    """What it was found on: the object given, or a smaller one of its kind."""
    where: Mapping[str, float | int]
    """Times, tokens, states, the seed of the token distribution."""
    quantity: str
    expected: float
    got: float
    allowed: float
    """By how much the two may differ; infinity where there was no answer to compare."""
    says: str = ""
    """What is wrong, in tokens, where two numbers would not say it."""
    hint: str = ""
    """What to write, or where to look, where that can be told."""

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 12) -> str:
        """Place and numbers in so many digits, or in as many more as it takes to tell the two numbers apart."""
        place = ", ".join(f"{name} = {_exactly(value)}" for name, value in self.where.items()) or "any time"
        if self.says:
            return self.says
        if self.allowed == math.inf:
            return f"no answer at {place}"
        return f"{self.quantity} at {place}: {self._numbers(digits)}"

    def _numbers(self, digits: int) -> str:
        off = abs(self.got - self.expected)
        if math.isnan(self.got) and math.isnan(self.expected):
            return "nan, and so is what it is held to"
        if off == 0:
            return f"{self.got:.{digits}g} as expected, but the tolerance came out as {self.allowed:.3g}"
        while f"{self.expected:.{digits}g}" == f"{self.got:.{digits}g}":
            digits += 1
        text = f"expected {self.expected:.{digits}g}, got {self.got:.{digits}g}"
        close = off < math.inf and off <= 1e-6 * max(abs(self.expected), abs(self.got))
        return text + (f" (off by {off:.2g}, allowed {self.allowed:.2g})" if close else "")


@dataclass(frozen=True)
class Check:
    """One claim, and whether it held."""

    room: str
    """schedule, hierarchy, process, reverse, objective, numerics, draws, as given, or the kind of what was verified."""
    name: str
    proves: str
    tolerance: str
    """What the claim is held to, in tokens."""
    ok: bool | None
    """None where the claim does not apply; ``note`` says why."""
    compared: int = 0
    """Numbers held against each other."""
    worst: float = 0.0
    """The largest error found, as a share of what is allowed."""
    worst_at: str = ""
    counterexample: Counterexample | None = None
    note: str = ""
    """Why the claim does not apply, or the exception that kept the object from answering."""
    place: Place | None = None
    """The author's line that raised."""
    means: str = ""
    """What its failure means, in tokens."""
    follows: str = ""
    """The label of the failure that explains this one; mend that first."""

    @property
    def label(self) -> str:
        """Room and name, one of a kind within a report."""
        return f"{self.room}: {self.name}"

    def __str__(self) -> str:
        verdict = {True: "ok  ", False: "FAIL", None: "  - "}[self.ok]
        line = f"  {verdict} {self.name:<24} {self.proves}"
        if self.ok is None:
            return f"{line}\n       does not apply: {self.note}"
        if self.ok:
            return f"{line}\n       held to {self.tolerance}; worst case {self.worst:.1e} of that{self.worst_at}"
        found, after = self.counterexample, [f"follows from {self.follows}"] if self.follows else []
        if found is None:
            return _indented(line, [f"held to {self.tolerance}", self.note, *after])
        if found.says or self.note:
            lines = [f"on {found.subject}", str(found), self.note, f"in {self.place}" if self.place else ""]
        else:
            lines = [f"held to {self.tolerance}", f"on {found.subject}", str(found), self.means]
        return _indented(line, [*dict.fromkeys(lines), found.hint, *after])

    def in_short(self) -> str:
        """Why it failed, in one line."""
        found = "" if self.counterexample is None else self.counterexample.text(digits=6)
        return (self.note or found) + (f", in {self.place}" if self.place else "")


@dataclass(frozen=True)
class Report:
    """What ``verify`` found. Printed, it names the checks that hold and shows the failures, causes first."""

    subject: str
    level: str
    checks: tuple[Check, ...]
    seconds: float
    note: str = ""
    """How the object was made small enough, if it was."""

    @property
    def ok(self) -> bool:
        """Whether every claim that applies held."""
        return all(check.ok is not False for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed: first those that no other explains, the one that explains most before all."""
        failed = [check for check in self.checks if check.ok is False]
        causes = [check for check in failed if not check.follows]
        causes.sort(key=lambda check: -len(self.followers(check)))
        return (*causes, *(check for check in failed if check.follows))

    def followers(self, check: Check) -> tuple[Check, ...]:
        """The failures that a failure explains."""
        return tuple(other for other in self.checks if other.follows == check.label)

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """The report as it is printed: what holds by name, failures in full, the verdict.

        Args:
            verbose: every check with what it proves, what it is held to and its worst case, before the failures.
        """
        lines = [f"{self.subject}, level {self.level}"]
        lines += [self.note] if self.note else []
        lines += self._in_full() if verbose else self._by_name()
        return "\n".join([*lines, *([] if self.ok else ["", self.refutation, ""]), self._verdict()])

    @property
    def refutation(self) -> str:
        """The failures alone: each cause in full, and under it what follows from it, in short."""
        return "\n".join(self._refuted(check) for check in self.failures if not check.follows)

    def to_json(self) -> str:
        """The report as JSON; numbers that JSON lacks become strings."""
        return json.dumps(_plain({**asdict(self), "ok": self.ok}), indent=2, allow_nan=False)

    def _in_full(self) -> list[str]:
        lines, room = [], ""
        for check in self.checks:
            lines += [check.room] if check.room != room else []
            room = check.room
            lines.append(str(check))
        return lines

    def _by_name(self) -> list[str]:
        held: dict[str, list[str]] = {}
        for check in self.checks:
            if check.ok:
                held.setdefault(check.room, []).append(check.name)
        lines = [_wrapped(f"  ok   {room}: ", names) for room, names in held.items()]
        apart = [check.name for check in self.checks if check.ok is None]
        return [*lines, *([_wrapped("    -  do not apply: ", apart)] if apart else [])]

    def _refuted(self, cause: Check) -> str:
        same: list[str] = []
        mute: list[str] = []
        told: dict[str, list[str]] = {}
        for check in self.followers(cause):
            if check.place and check.place == cause.place:
                same.append(check.name)
            elif check.note and not check.place:
                mute.append(check.name)
            else:
                told.setdefault(check.in_short(), []).append(check.name)
        lines = [str(cause)]
        if same:
            lines.append(_wrapped(f"{_INDENT}{_counted(same, 'more check ends', 'more checks end')} there: ", same))
        if told:
            count = _counted([name for names in told.values() for name in names], "failure", "failures")
            lines.append(f"{_INDENT}{count} that may follow from it:")
        for why, names in told.items():
            name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            lines.append(f"{_INDENT}  {name}: {why}")
        if mute:
            lines.append(
                _wrapped(
                    f"{_INDENT}{_counted(mute, 'check', 'checks')} without an answer, perhaps because of it: ", mute
                )
            )
        return "\n".join(lines)

    def _verdict(self) -> str:
        applied = [check for check in self.checks if check.ok is not None]
        held = f"{sum(check.ok is True for check in applied)} of {len(applied)} checks hold"
        if self.ok:
            return f"verified: {held} ({self.seconds:.1f} s)"
        causes = [check for check in self.failures if not check.follows]
        follow = len(self.failures) - len(causes)
        failures = _counted(causes, "failure", "failures") + (f", {follow} that may follow" if follow else "")
        return f"NOT VERIFIED: {failures}; {held} ({self.seconds:.1f} s)"


def _counted(things: Sequence[object], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


def _exactly(number: float) -> str:
    """A number in as few digits as tell it from any other."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _indented(first: str, lines: Sequence[str]) -> str:
    return "\n".join([first, *(_INDENT + line for line in lines if line)])


def _wrapped(first: str, names: Sequence[str]) -> str:
    """Names after a beginning, in lines of at most ``WIDTH``; a name is not broken."""
    words = ", ".join(name.replace(" ", "\0") for name in names)
    return textwrap.fill(
        words, WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False
    ).replace("\0", " ")  # fmt: skip


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value
