"""Evaluation of several claims, and dependencies between their failures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddlib.verification.framework.claim import Claim
from ddlib.verification.report import Check


def evaluate_claims(
    claims: Sequence[Claim],
    subject: Any,
    full: bool,
    smaller: Callable[[], Iterator[Any]] = lambda: iter(()),
) -> list[tuple[Claim, Check]]:
    """Evaluate claims about an object, without those that have points at level "full" only if the
    level is another.
    """
    return [
        (claim, claim.check(subject, full, smaller)) for claim in claims if claim.points or full
    ]


def verifier(*claims: Claim) -> Callable[[Any, bool], tuple[list[Check], str]]:
    """Return the ``verify`` of a kind of objects: the checks of these claims, and an empty note."""
    return lambda subject, full: (explain(evaluate_claims(claims, subject, full)), "")


def explain(evaluate_claims: Sequence[tuple[Claim, Check]]) -> list[Check]:
    """Set ``Check.follows`` of each failure that another failure explains, and return the checks.

    Exceptions of one kind from one line are one failure, that of the first check. Any other failure
    follows from a failed claim among those that it rests on, directly or indirectly, even if the
    claims in between hold.
    """
    beneath = {claim.name: claim.rests_on for claim, _ in evaluate_claims}
    failed = {check.name: check for _, check in evaluate_claims if check.ok is False}
    first: dict[tuple[str, object], str] = {}
    leader = {}
    for name, check in failed.items():
        key = (check.note.partition(":")[0], check.place) if check.place else (name, None)
        leader[name] = first.setdefault(key, name)
    above = {
        name: {leader[other] for other in _reach(beneath, name) if other in failed} - {name}
        for name in set(leader.values())
    }
    causes = {name: _cause(above, leader[name], failed) for name in failed}
    return [
        replace(check, follows=failed[causes[check.name]].label)
        if check.name in failed and causes[check.name] != check.name
        else check
        for _, check in evaluate_claims
    ]


def _reach(edges: Mapping[str, Iterable[str]], name: str) -> set[str]:
    """Return a name and all names that its edges lead to, directly or indirectly."""
    reached = {name}
    waiting = [name]
    while waiting:
        new = {*edges.get(waiting.pop(), ())} - reached
        reached |= new
        waiting += new
    return reached


def _cause(above: Mapping[str, set[str]], name: str, failed: Mapping[str, Check]) -> str:
    """Return the root failure from which a failure follows.

    The first evaluated one if there are several.
    """
    reached = _reach(above, name)
    return min(
        (other for other in failed if other in reached), key=lambda other: bool(above[other])
    )
