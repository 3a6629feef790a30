"""What verification says: one line per check, and the smallest counterexample where one failed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Counterexample:
    """One place where a claim does not hold."""

    subject: str
    """What it was found on: the object given, or a smaller one of its kind."""
    where: Mapping[str, float | int]
    """Times, words, states, the seed of the word law."""
    quantity: str
    expected: float
    got: float
    allowed: float
    """By how much the two may differ; infinity where an exception was raised."""

    def __str__(self) -> str:
        place = ", ".join(f"{name} = {value:.17g}" for name, value in self.where.items())
        if self.allowed == float("inf"):
            return f"no answer at {place or 'any time'}"
        return f"{self.quantity} at {place or 'any time'}: expected {self.expected:.12g}, got {self.got:.12g}"


@dataclass(frozen=True)
class Check:
    """One claim, and whether it held."""

    room: str
    """schedule, hierarchy, process, reverse, objective, numerics, draws, as given, or sampler."""
    name: str
    proves: str
    tolerance: str
    """What the claim is held to, in words."""
    ok: bool | None
    """None where the claim does not apply; ``note`` says why."""
    compared: int = 0
    """Numbers held against each other."""
    worst: float = 0.0
    """The largest error found, as a share of what is allowed."""
    worst_at: str = ""
    counterexample: Counterexample | None = None
    note: str = ""

    def __str__(self) -> str:
        verdict = {True: "ok  ", False: "FAIL", None: "  - "}[self.ok]
        line = f"  {verdict} {self.name:<24} {self.proves}"
        if self.ok is None:
            return f"{line}\n       does not apply: {self.note}"
        if self.ok:
            return f"{line}\n       held to {self.tolerance}; worst case {self.worst:.1e} of that{self.worst_at}"
        lines = [line, f"       held to {self.tolerance}"]
        if self.counterexample is not None:
            lines += [f"       on {self.counterexample.subject}", f"       {self.counterexample}"]
        return "\n".join(lines + ([f"       {self.note}"] if self.note else []))


@dataclass(frozen=True)
class Report:
    """What ``verify`` found."""

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
        """The checks that failed."""
        return tuple(check for check in self.checks if check.ok is False)

    def __str__(self) -> str:
        lines = [f"{self.subject}, level {self.level}"]
        lines += [self.note] if self.note else []
        room = ""
        for check in self.checks:
            lines += [check.room] if check.room != room else []
            room = check.room
            lines.append(str(check))
        applied = [check for check in self.checks if check.ok is not None]
        held = sum(check.ok is True for check in applied)
        verdict = "verified" if self.ok else "NOT VERIFIED"
        return "\n".join([*lines, f"{verdict}: {held} of {len(applied)} checks hold ({self.seconds:.1f} s)"])

    def to_json(self) -> str:
        """The report as JSON; numbers that JSON lacks become strings."""
        return json.dumps(_plain({**asdict(self), "ok": self.ok}), indent=2, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value
