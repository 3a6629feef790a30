"""``dd.verify``: numerical verification of processes, samplers, the parts of both, guidance and
weightings.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ddlib.contrib import Length
from ddlib.guidance import Guidance
from ddlib.hierarchies import Hierarchy
from ddlib.paces import Pace
from ddlib.processes import ForwardProcess
from ddlib.samplers import Corrector, Sampler
from ddlib.schedules import Schedule
from ddlib.times import TimeDensity
from ddlib.utils.imports import import_quietly
from ddlib.utils.validation import require, without_rough_checks
from ddlib.verification.kinds import KINDS
from ddlib.verification.report import Report
from ddlib.weightings import Weighting


@torch.no_grad()
def verify(
    subject: (
        ForwardProcess
        | Schedule
        | Hierarchy
        | TimeDensity
        | Pace
        | Sampler
        | Corrector
        | Length
        | Guidance
        | Weighting
    ),
    level: str = "quick",
    *,
    on: ForwardProcess | None = None,
) -> Report:
    """Verify an object numerically: confirm its claims, or return the smallest counterexample
    found.

    A process is verified together with its schedule and its hierarchy. The claims are: schedule,
    levels, generator, transitions and marginals belong to one chain; the posterior follows from
    Bayes's rule; the bound is a bound and tight; draws follow their distributions; float32
    suffices. Schedules, hierarchies, densities of times, paces, samplers, correctors and rules for
    lengths can be verified by themselves; a guidance with its process and parts; a weighting on a
    fixed list of processes.

    For a vocabulary of more than 50 tokens, the claims are checked on a small copy
    (``process.small_copy``), which the note of the report describes. The given process is checked
    additionally by the claims that are cheap at its size: rows, Chapman-Kolmogorov, derivative of
    transitions against the rates, marginals, posterior, draws, and, for up to 1,000 states, that
    the bound of a drawn distribution is its entropy. Beyond 1,000 states these claims only multiply
    drawn vectors; beyond 4,096 no transition matrix is built. A process of more than 160 states
    without a small copy is checked by these claims only.

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
    for kind in KINDS.values():
        if isinstance(subject, kind.base):
            start = time.perf_counter()
            run = import_quietly(f"ddlib.verification.claims.{kind.claims}").verify
            processes = () if on is None else (on,)
            with _one_thread(), without_rough_checks():
                checks, note = run(subject, level == "full", *processes)
            return Report(repr(subject), level, tuple(checks), time.perf_counter() - start, note)
    raise TypeError(
        f"subject is {subject!r}, must be a process, schedule, hierarchy or sampler of ddlib, a "
        "density of times, a "
        "pace, a corrector, a rule for lengths, a guidance or a weighting"
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Context manager that limits torch to one thread: for small tensors more threads are slower on
    a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
