"""Cases: a part under verification and a small process to run it on, with a known distribution of
the tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, identity
from ddlib.samplers import SamplingContext
from ddlib.samplers.runtime.model import Model
from ddlib.samplers.sampling import sample
from ddlib.typing import Denoiser
from ddlib.utils.random import Generator
from ddlib.utils.validation import require
from ddlib.verification.framework.claim import Claim
from ddlib.verification.framework.dependencies import evaluate_claims, explain
from ddlib.verification.framework.reference import exact_cavity
from ddlib.verification.report import Check

LARGE, REDUCED = 50, 24
"""Largest vocabulary that is verified as given, and the vocabulary of the small copy in place of a
larger one.
"""

TOKEN = torch.tensor([0.45, 0.10, 0.25, 0.20], dtype=torch.float64)
"""Distribution of one token."""
PAIR = torch.tensor(
    [
        [0.30, 0.01, 0.02, 0.01],
        [0.01, 0.02, 0.15, 0.01],
        [0.02, 0.20, 0.01, 0.02],
        [0.01, 0.01, 0.02, 0.18],
    ],
    dtype=torch.float64,
)
"""Joint distribution of two dependent tokens."""
_FEW = 8
"""Vocabulary size of the small copy of a process with more than twice as many tokens."""


class Case(NamedTuple):
    """A part under verification, and a process to run it on."""

    subject: Any
    process: ForwardProcess

    def __repr__(self) -> str:
        return f"{self.subject!r} on {self.process!r}"

    @property
    def token(self) -> Tensor:
        """Distribution of one token."""
        return over(TOKEN, self.process.vocab_size)

    @property
    def pair(self) -> Tensor:
        """Joint distribution of two tokens."""
        return over(PAIR, self.process.vocab_size)

    def draw(
        self,
        joint: Tensor,
        rows: int,
        generator: Generator,
        steps: int | Tensor = 48,
        **options: Any,
    ) -> Tensor:
        """Draw sequences by the sampler, with the exact denoiser of a joint distribution, (rows,
        L).
        """
        denoiser = exact_cavity(self.process, joint)
        shape = (rows, joint.ndim)
        return sample(
            self.process, denoiser, shape, self.subject, steps, generator=generator, **options
        )

    def context(
        self, joint: Tensor, rows: int, generator: Generator, steps: int, compact: bool = False
    ) -> SamplingContext:
        """Return the context of a ``sample`` call with the exact denoiser of a joint
        distribution.
        """
        times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        denoiser = exact_cavity(self.process, joint)
        return context(
            self.process, denoiser, (rows, joint.ndim), times, generator, compact=compact
        )


def context(
    process: ForwardProcess,
    denoiser: Denoiser,
    shape: Sequence[int],
    times: Tensor,
    generator: Generator,
    meaning: Parameterization = "cavity",
    compact: bool = False,
) -> SamplingContext:
    """Return the context of a ``sample`` call without a prompt."""
    network = Model(process, denoiser, meaning, compact)
    return SamplingContext(
        process, network, identity, times, torch.ones(*shape, dtype=torch.bool), generator
    )


def over(distribution: Tensor, tokens: int) -> Tensor:
    """Extend a distribution of tokens, or of pairs of tokens, to another vocabulary size by
    tiling.
    """
    tiled = distribution.repeat((-(-tokens // 4),) * distribution.ndim)[
        (slice(tokens),) * distribution.ndim
    ]
    return tiled / tiled.sum()


def few(process: ForwardProcess) -> ForwardProcess:
    """Return the process, or its small copy if it is large."""
    return process if process.vocab_size <= 2 * _FEW else process.small_copy(_FEW)


def supported_cases(
    subject: Any,
    processes: Iterable[ForwardProcess],
    check: Callable[[ForwardProcess], object],
    refusals: tuple[type[Exception], ...] = (TypeError,),
    none: str = "",
) -> list[Case]:
    """Return a case for each process that the part supports.

    Args:
        subject: the part.
        processes: the processes.
        check: a function that raises for processes that the part does not support.
        refusals: classes of the errors by which it does; any other error is raised.
        none: the end of the message if there is no case; empty if there need not be any.

    Raises:
        ValueError: no process is supported.
    """
    cases = []
    for process in processes:
        with suppress(*refusals):
            check(process)
            cases.append(Case(subject, process))
    require(bool(cases) or not none, f"{subject!r} {none}")
    return cases


def on_cases(
    topic: str, cases: Sequence[Case], claims: Sequence[Claim], full: bool
) -> tuple[list[Check], str]:
    """Check the claims on each case, and return the checks and a note that lists the processes.

    The checks of a case are in the section "what on its process".
    """
    checks = []
    for case in cases:
        section = f"{topic} on {type(case.process).__name__}"
        results = evaluate_claims(claims, case, full)
        checks += explain([(claim, replace(check, topic=section)) for claim, check in results])
    return checks, f"run on {', '.join(type(case.process).__name__ for case in cases)}"


def case_verifier(
    topic: str,
    runs: Callable[[Any], Sequence[Case]],
    claims: Sequence[Claim],
    part_claims: Sequence[Claim],
) -> Callable[[Any, bool], tuple[list[Check], str]]:
    """Return the ``verify`` of a kind of parts: claims on each of the cases ``runs(part)``, and
    claims of the part.
    """

    def verify(subject: Any, full: bool) -> tuple[list[Check], str]:
        checks, note = on_cases(topic, runs(subject), claims, full)
        # after the cases are gone, since a part may cache something for processes that exist
        return checks + explain(evaluate_claims(part_claims, subject, full)), note

    return verify


def needs(guarantee: str, otherwise: str) -> Callable[[Case], str]:
    """Return an ``applies`` for claims about parts with a guarantee.

    ``otherwise`` follows their class.

    If there are several guarantees, separated by spaces, one of them must be given.
    """

    def applies(case: Case) -> str:
        guarantees = case.subject.guarantees
        if any(getattr(guarantees, name) for name in guarantee.split()):
            return ""
        return f"{type(case.subject).__name__} {otherwise}"

    return applies


def at_length(length: int, applies: Callable[[Case], str] | None = None) -> Callable[[Case], str]:
    """Return an ``applies`` for claims about samplers of sequences of this length, on top of
    another one.
    """

    def fits(case: Case) -> str:
        try:
            case.subject.check_length(length)
        except ValueError as error:
            return f"{type(case.subject).__name__} is for sequences of other lengths: {error}"
        return "" if applies is None else applies(case)

    return fits
