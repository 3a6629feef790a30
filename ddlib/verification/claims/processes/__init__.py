"""Claims about forward processes, together with their schedule, hierarchy, bound and losses."""

import copy
from collections.abc import Iterator
from contextlib import suppress

from ddlib.hierarchies import Hierarchy
from ddlib.processes import ForwardProcess
from ddlib.schedules import Schedule
from ddlib.verification.claims import arguments, hierarchy, schedule
from ddlib.verification.claims.objective import (
    bound,
    consistency,
    edges,
    times,
    tree_softmax,
)
from ddlib.verification.claims.processes import (
    at_size,
    discrete,
    numerics,
    per_position_times,
    process,
    reverse,
    sampled_states,
)
from ddlib.verification.framework.cases import LARGE, REDUCED
from ddlib.verification.framework.claim import Claim, Comparison, Point, stated
from ddlib.verification.framework.dependencies import evaluate_claims, explained
from ddlib.verification.report import Check

ENUMERATED = 160
"""Largest state space without a small copy that is verified by all claims.

Larger ones by the claims of any size.
"""

CLAIMS = (
    *process.CLAIMS,
    *reverse.CLAIMS,
    *bound.CLAIMS,
    *consistency.CLAIMS,
    *discrete.CLAIMS,
    *tree_softmax.CLAIMS,
    *edges.CLAIMS,
    *numerics.CLAIMS,
    *sampled_states.CLAIMS,
    *times.PROCESS_CLAIMS,
    *per_position_times.CLAIMS,
    *arguments.CLAIMS,
)
SIZE_CLAIMS = (*at_size.CLAIMS, *numerics.SIZE_CLAIMS, *arguments.SIZE_CLAIMS)


def verify(given: ForwardProcess, full: bool) -> tuple[list[Check], str]:
    """Check a process with its schedule and hierarchy, or its small copy and itself by the claims
    of any size.
    """
    if not hasattr(given, "num_states"):
        raise TypeError(
            f"{type(given).__name__} has no states: call super().__init__(vocab_size, num_states) "
            "first"
        )
    given = given if given.device.type == "cpu" else copy.deepcopy(given).to("cpu")
    try:
        subject = _small_enough(given)
    except (TypeError, ValueError):
        raise
    except Exception:  # an error in small_copy is reported like any other failure
        return explained(evaluate_claims([_REDUCES], given, full)), ""
    whole = given if subject is None else subject
    results = []
    for each in whole.schedules:
        if isinstance(each, Schedule):
            results += evaluate_claims(schedule.CLAIMS, each, full)
    if subject is not None and isinstance(subject.hierarchy, Hierarchy):
        results += evaluate_claims(hierarchy.CLAIMS, subject.hierarchy, full)
    if subject is None:
        results += evaluate_claims(SIZE_CLAIMS, given, full)
        return explained(results), f"no reduction: {given.num_states} states verified as given"
    results += evaluate_claims(CLAIMS, subject, full, lambda: _smaller(subject))
    if subject is given:
        return explained(results), ""
    if isinstance(given.hierarchy, Hierarchy):
        results += evaluate_claims(hierarchy.AT_SIZE, given.hierarchy, full)
    results += evaluate_claims(SIZE_CLAIMS, given, full)
    return explained(results), f"verified on its reduction {subject!r}, and at its size as given"


def _small_enough(given: ForwardProcess) -> ForwardProcess | None:
    """Return the process or its small copy, small enough for every claim.

    None if it is large and has no small copy.
    """
    if given.vocab_size <= LARGE:
        return given
    try:
        reduced = given.small_copy(REDUCED)
    except TypeError:  # the class has no small copy
        return given if given.num_states <= ENUMERATED else None
    if type(reduced) is not type(given):
        found = f"{type(given).__name__}.small_copy returns a {type(reduced).__name__}"
        raise TypeError(f"{found}, must return its own class")
    return reduced


def _reduces(given: ForwardProcess, point: Point) -> Iterator[Comparison]:
    yield stated(
        "reduced",
        isinstance(given.small_copy(REDUCED), ForwardProcess),
        "small_copy returns no process",
    )


_REDUCES = Claim(
    "as given",
    "reduced",
    "small_copy of a large process is a small one of its class",
    "exactly",
    _reduces,
)


def _smaller(subject: ForwardProcess) -> Iterator[ForwardProcess]:
    """Yield smaller processes of the same class, smallest first."""
    for size in range(1, min(subject.vocab_size, 8)):
        with suppress(Exception):  # a missing small copy is not a counterexample
            yield subject.small_copy(size)
