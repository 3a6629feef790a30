"""``dd.verify``: numerical verification of processes, their parts, samplers, correctors, guidance and weightings."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ddlib.arguments import Part
from ddlib.guidance import Guidance
from ddlib.hierarchies import Hierarchy
from ddlib.paces import Pace
from ddlib.processes import ForwardProcess
from ddlib.samplers import Corrector, Sampler
from ddlib.schedules import Schedule
from ddlib.times import TimeDensity
from ddlib.utils.validation import require
from ddlib.verification.claims import arguments, hierarchy, schedule
from ddlib.verification.claims.objective import bound, edges, learned, paces, times, tree_softmax, weighting
from ddlib.verification.claims.processes import (
    at_size,
    coupling,
    discrete,
    draws,
    numerics,
    per_position_times,
    process,
    reverse,
)
from ddlib.verification.claims.samplers import blocks, corrector, guidance, kernel, likelihood, particles, sampler
from ddlib.verification.framework.claim import Claim, Comparison, Point, stated
from ddlib.verification.framework.dependencies import explained
from ddlib.verification.report import Check, Report
from ddlib.weightings import Weighting

LARGE = 50
"""Largest vocabulary that is verified as given; larger ones are verified on a small copy."""
ENUMERATED = 160
"""Largest state space without a small copy that is verified by all claims; larger ones by the claims of any size."""
_REDUCED = 24

_PROCESS_CLAIMS = (
    *process.CLAIMS,
    *reverse.CLAIMS,
    *bound.CLAIMS,
    *discrete.CLAIMS,
    *tree_softmax.CLAIMS,
    *edges.CLAIMS,
    *numerics.CLAIMS,
    *draws.CLAIMS,
    *coupling.CLAIMS,
    *times.PROCESS_CLAIMS,
    *per_position_times.CLAIMS,
    *arguments.CLAIMS,
)
_SIZE_CLAIMS = (*at_size.CLAIMS, *arguments.SIZE_CLAIMS)
_SAMPLER_CLAIMS = (*sampler.CLAIMS, *blocks.CLAIMS)


@torch.no_grad()
def verify(
    subject: ForwardProcess | Schedule | Hierarchy | TimeDensity | Pace | Sampler | Corrector | Guidance | Weighting,
    level: str = "quick",
    *,
    on: ForwardProcess | None = None,
) -> Report:
    """Verify an object numerically: confirm its claims, or return the smallest counterexample found.

    A process is verified together with its schedule and its hierarchy. The claims are: schedule, levels, generator,
    transitions and marginals belong to one chain; the posterior follows from Bayes's rule; the bound is a bound and
    tight; draws follow their distributions; float32 suffices. Schedules, hierarchies, densities of times, paces,
    samplers and correctors can be verified by themselves; a guidance with its process and parts; a weighting on a fixed
    list of processes.

    For a vocabulary of more than 50 tokens, the claims are checked on a small copy (``process.small_copy``), which the
    note of the report describes. The given process is checked additionally by the claims that are cheap at its size:
    rows, Chapman-Kolmogorov, derivative of transitions against the rates, marginals, posterior, draws, and, for up to
    1,000 states, that the bound of a drawn distribution is its entropy. Beyond 1,000 states these claims only multiply
    drawn vectors; beyond 4,096 no transition matrix is built. A process of more than 160 states without a small copy is
    checked by these claims only.

    Draws are seeded, so results are reproducible.

    Args:
        subject: the object; not modified.
        level: "quick" (a few seconds) or "full" (more points, longer integrals).
        on: for a sampler, the process to run it on; default one of every supported kind.

    Raises:
        TypeError: another kind of object, or a sampler that does not support the process ``on``.
        ValueError: unknown level.

    Example:
        >>> import ddlib as dd
        >>> dd.verify(dd.schedules.Linear()).ok
        True
    """
    require(level in ("quick", "full"), f"level is {level!r}, must be 'quick' or 'full'")
    if on is not None and not (isinstance(on, ForwardProcess) and isinstance(subject, Sampler)):
        raise TypeError(f"on is {on!r}, must be a process, and the subject a sampler")
    for kind, run in _KINDS.items():
        if isinstance(subject, kind):
            start = time.perf_counter()
            with _one_thread():
                checks, note = run(subject, level == "full") if on is None else _on(subject, on, level == "full")
            return Report(repr(subject), level, tuple(checks), time.perf_counter() - start, note)
    raise TypeError(
        f"subject is {subject!r}, must be a process, schedule, hierarchy or sampler of ddlib, a density of times, a "
        "pace, a corrector, a guidance or a weighting"
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Context manager that limits torch to one thread: for small tensors more threads are slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _ask(
    claims: Sequence[Claim], subject: Any, full: bool, smaller: Callable[[], Iterator[Any]] = lambda: iter(())
) -> list[tuple[Claim, Check]]:
    return [(claim, claim.check(subject, full, smaller)) for claim in claims if claim.points or full]


def _process(given: ForwardProcess, full: bool) -> tuple[list[Check], str]:
    if not hasattr(given, "num_states"):
        raise TypeError(f"{type(given).__name__} has no states: call super().__init__(vocab_size, num_states) first")
    given = given if given.device.type == "cpu" else copy.deepcopy(given).to("cpu")
    try:
        subject = _small_enough(given)
    except (TypeError, ValueError):
        raise
    except Exception:  # an error in small_copy is reported like any other failure
        return explained(_ask([_REDUCES], given, full)), ""
    whole = given if subject is None else subject
    parts: tuple[tuple[Any, Any, Sequence[Claim]], ...] = (
        (Schedule, whole.schedule, schedule.CLAIMS),
        (Hierarchy, None if subject is None else subject.hierarchy, hierarchy.CLAIMS),
    )
    results = []
    for kind, part, claims in parts:
        if isinstance(part, kind):
            results += _ask(claims, part, full)
    if subject is None:
        results += _ask(_SIZE_CLAIMS, given, full)
        return explained(results), f"no reduction: {given.num_states} states checked as given"
    results += _ask(_PROCESS_CLAIMS, subject, full, lambda: _smaller(subject))
    if learned.parameters(subject):
        results += _ask(learned.CLAIMS, subject, full, lambda: _smaller(subject))
    if subject is given:
        return explained(results), ""
    if isinstance(given.hierarchy, Hierarchy):
        results += _ask(hierarchy.AT_SIZE, given.hierarchy, full)
    return explained(
        results + _ask(_SIZE_CLAIMS, given, full)
    ), f"verified on its reduction {subject!r}, and at its size as given"


def _small_enough(given: ForwardProcess) -> ForwardProcess | None:
    """Return the process or its small copy, small enough for every claim; None if it is large and has no small copy."""
    if given.vocab_size <= LARGE:
        return given
    try:
        reduced = given.small_copy(_REDUCED)
    except TypeError:  # the class has no small copy
        return given if given.num_states <= ENUMERATED else None
    if type(reduced) is not type(given):
        raise TypeError(f"{type(given).__name__}.small_copy gives a {type(reduced).__name__}, must give its own kind")
    return reduced


def _reduces(given: ForwardProcess, point: Point) -> Iterator[Comparison]:
    yield stated("reduced", isinstance(given.small_copy(_REDUCED), ForwardProcess), "small_copy gives no process")


_REDUCES = Claim("as given", "reduced", "a large process gives a small one of its kind", "exactly", _reduces)


def _smaller(subject: ForwardProcess) -> Iterator[ForwardProcess]:
    """Yield smaller processes of the same class, smallest first."""
    for size in range(1, min(subject.vocab_size, 8)):
        try:
            yield subject.small_copy(size)
        except Exception:  # a missing small copy is not a counterexample
            continue


def _schedule(subject: Schedule, full: bool) -> tuple[list[Check], str]:
    return explained(_ask((*schedule.CLAIMS, *arguments.PART_CLAIMS), subject, full)), ""


def _hierarchy(given: Hierarchy, full: bool) -> tuple[list[Check], str]:
    large = given.vocab_size > LARGE
    subject = given.small_copy(_REDUCED) if large else given
    note = f"verified on its reduction {subject!r}, and at its size as given" if large else ""
    at_its_size = _ask(hierarchy.AT_SIZE, given, full) if large else []
    return explained(_ask((*hierarchy.CLAIMS, *arguments.PART_CLAIMS), subject, full) + at_its_size), note


def _times(subject: TimeDensity, full: bool) -> tuple[list[Check], str]:
    return explained(_ask((*times.CLAIMS, *arguments.PART_CLAIMS), subject, full)), ""


def _pace(subject: Pace, full: bool) -> tuple[list[Check], str]:
    return explained(_ask((*paces.CLAIMS, *arguments.PART_CLAIMS), subject, full)), ""


def _sampler(subject: Sampler, full: bool) -> tuple[list[Check], str]:
    checks, note = _served("sampler", sampler.runs(subject), _SAMPLER_CLAIMS, full)
    checks += _served("step", kernel.runs(subject), kernel.CLAIMS, full)[0]
    return checks + _further(subject, None, full) + _made_again(subject, full), note


def _on(subject: Any, process: ForwardProcess, full: bool) -> tuple[list[Check], str]:
    checks, note = _served("sampler", sampler.runs(subject, process), _SAMPLER_CLAIMS, full)
    return checks + _further(subject, process, full), note


def _further(subject: Sampler, process: ForwardProcess | None, full: bool) -> list[Check]:
    """Check claims that hold for some samplers only: likelihoods and rewards."""
    modules = {"likelihood": likelihood, "reward": particles}
    return [c for name, m in modules.items() for c in _served(name, m.runs(subject, process), m.CLAIMS, full)[0]]


def _corrector(subject: Corrector, full: bool) -> tuple[list[Check], str]:
    checks, note = _served("corrector", corrector.runs(subject), corrector.CLAIMS, full)
    return checks + _made_again(subject, full), note


def _guidance(subject: Guidance, full: bool) -> tuple[list[Check], str]:
    return explained(_ask(guidance.CLAIMS, subject, full)), ""


def _weighting(subject: Weighting, full: bool) -> tuple[list[Check], str]:
    checks, note = _served("weighting", weighting.runs(subject), weighting.CLAIMS, full)
    return checks + _made_again(subject, full), note


def _made_again(subject: Part, full: bool) -> list[Check]:
    return explained(_ask(arguments.PART_CLAIMS, subject, full))


def _served(what: str, served: Sequence[Any], claims: Sequence[Claim], full: bool) -> tuple[list[Check], str]:
    """Check the claims on each process that a subject supports."""
    names = ", ".join(type(one.process).__name__ for one in served)
    checks = []
    for one in served:
        section = f"{what} on {type(one.process).__name__}"
        results = _ask(claims, one, full)
        checks += explained([(claim, replace(check, room=section)) for claim, check in results])
    return checks, f"run on {names}"


_KINDS: dict[type, Callable[[Any, bool], tuple[list[Check], str]]] = {
    ForwardProcess: _process,
    Schedule: _schedule,
    Hierarchy: _hierarchy,
    TimeDensity: _times,
    Pace: _pace,
    Sampler: _sampler,
    Corrector: _corrector,
    Guidance: _guidance,
    Weighting: _weighting,
}
