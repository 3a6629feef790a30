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
    given,
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
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition
from ddlib.verification.framework.dependencies import evaluate_claims, explain
from ddlib.verification.report import Check

ENUMERATED = 160
"""Largest state space without a small copy that is verified by all claims; larger ones by the
claims of any size.
"""

CLAIMS = (
    *process.CLAIMS,
    *reverse.CLAIMS,
    *bound.CLAIMS,
    *consistency.CLAIMS,
    *discrete.CLAIMS,
    *tree_softmax.CLAIMS,
    *edges.CLAIMS,
    *given.CLAIMS,
    *numerics.CLAIMS,
    *sampled_states.CLAIMS,
    *times.PROCESS_CLAIMS,
    *per_position_times.CLAIMS,
    *arguments.CLAIMS,
)
SIZE_CLAIMS = (*at_size.CLAIMS, *numerics.SIZE_CLAIMS, *arguments.SIZE_CLAIMS)


def verify(original: ForwardProcess, full: bool) -> tuple[list[Check], str]:
    """Check a process with its schedule and hierarchy, or its small copy and itself by the claims
    of any size.
    """
    if not hasattr(original, "num_states"):
        raise TypeError(
            f"{type(original).__name__} has no states: call "
            "super().__init__(vocab_size, num_states) first"
        )
    original = original if original.device.type == "cpu" else copy.deepcopy(original).to("cpu")
    try:
        subject = _small_enough(original)
    except (TypeError, ValueError):
        raise
    except Exception:  # an error in small_copy is reported like any other failure
        return explain(evaluate_claims([_REDUCES], original, full)), ""
    verified = original if subject is None else subject
    results = []
    for part in verified.schedules:
        if isinstance(part, Schedule):
            results += evaluate_claims(schedule.CLAIMS, part, full)
    if subject is not None and isinstance(subject.hierarchy, Hierarchy):
        results += evaluate_claims(hierarchy.CLAIMS, subject.hierarchy, full)
    if subject is None:
        results += evaluate_claims(SIZE_CLAIMS, original, full)
        return explain(results), f"no reduction: {original.num_states} states verified as given"
    results += evaluate_claims(CLAIMS, subject, full, lambda: _smaller(subject))
    if subject is original:
        return explain(results), ""
    if isinstance(original.hierarchy, Hierarchy):
        results += evaluate_claims(hierarchy.AT_SIZE, original.hierarchy, full)
    results += evaluate_claims(SIZE_CLAIMS, original, full)
    return explain(results), f"verified on its reduction {subject!r}, and at its size as given"


def _small_enough(original: ForwardProcess) -> ForwardProcess | None:
    """Return the process or its small copy, small enough for every claim.

    None if it is large and has no small copy.
    """
    if original.vocab_size <= LARGE:
        return original
    try:
        reduced = original.small_copy(REDUCED)
    except TypeError:  # the class has no small copy
        return original if original.num_states <= ENUMERATED else None
    if type(reduced) is not type(original):
        message = f"{type(original).__name__}.small_copy returns a {type(reduced).__name__}"
        raise TypeError(f"{message}, must return its own class")
    return reduced


def _reduces(original: ForwardProcess, point: Point) -> Iterator[Comparison]:
    yield condition(
        "reduced",
        isinstance(original.small_copy(REDUCED), ForwardProcess),
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
