"""Claims about correctors with the exact denoiser of a known distribution."""

from collections.abc import Iterator
from functools import partial
from itertools import count

import torch
from torch import Tensor

from ddlib.samplers import Corrector, SamplingContext
from ddlib.samplers.runtime.model import Model
from ddlib.typing import Tokens
from ddlib.utils.categorical import draw
from ddlib.utils.random import Generator, KeyedGenerator, rand
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.claims.samplers.sampler import SUPPORTS, processes
from ddlib.verification.framework.cases import (
    PAIR,
    TOKEN,
    Case,
    case_verifier,
    needs,
    supported_cases,
)
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, compare_draws, compare_joint_draws, in_any_batch
from ddlib.verification.framework.reference import exact_cavity

_DRAWS = 4000
_STEP = 0.2
_SHORT = 0.002


def runs(corrector: Corrector) -> list[Case]:
    """Return cases of the corrector with each supported kind of process.

    Errors as ``supported_cases``.
    """
    return supported_cases(corrector, processes(), corrector.check, none=SUPPORTS)


def _context(case: Case, joint: Tensor, rows: int, generator: Generator) -> SamplingContext:
    return case.context(joint, rows, generator, 5, compact=True)


def _states(case: Case, joint: Tensor, t: float, rows: int, generator: Generator) -> Tokens:
    """Draw states at ``t`` of sequences from ``joint``, (rows, L)."""
    u = rand((rows,), generator, torch.device("cpu"))
    tokens = torch.unravel_index(draw(joint.flatten().expand(rows, -1), u), joint.shape)
    return case.process.sample(torch.stack(tokens, 1), at(t, rows), generator)


def _correct(case: Case, run: SamplingContext, z: Tokens, t: float, step: float = _STEP) -> Tokens:
    """Return the states after one correction, as after a step of this length."""
    corrected: Tokens = case.subject.correct(run, z, at(t, len(z)), at(step, len(z)))
    return corrected


def _marginals(joint: Tensor, case: Case, point: Point) -> Iterator[Comparison]:
    """Check that each position of a sequence still follows q_t after a correction."""
    t = float(point["t"])
    generator = torch.Generator().manual_seed(1)
    z = _states(case, joint, t, _DRAWS, generator)
    z = _correct(case, _context(case, joint, _DRAWS, generator), z, t)
    axes = range(joint.ndim)
    marginals = torch.stack(
        [joint.sum([k for k in axes if k != i]) if joint.ndim > 1 else joint for i in axes]
    )
    chance = case.process.predictive(marginals[None], at(t))[0]
    yield compare_draws("draws of z", ("position", "z"), z, chance)


def _joint(case: Case, point: Point) -> Iterator[Comparison]:
    t = float(point["t"])
    generator = torch.Generator().manual_seed(2)
    z = _states(case, PAIR, t, _DRAWS, generator)
    run = _context(case, PAIR, _DRAWS, generator)
    for _ in range(8):  # so that small errors add up
        z = _correct(case, run, z, t, _STEP if case.subject.guarantees.exact_joint else _SHORT)
    rows = case.process.predictive(torch.eye(4, dtype=torch.float64)[None], at(t))[0]
    yield compare_joint_draws(
        "draws of two dependent states", ("z_0", "z_1"), z, rows.T @ PAIR @ rows
    )


def _calls(case: Case, point: Point) -> Iterator[Comparison]:
    calls = count()
    generator = torch.Generator().manual_seed(3)
    exact = exact_cavity(case.process, PAIR)

    def counting_network(z: Tensor, t: Tensor) -> Tensor:
        next(calls)
        return exact(z, t)

    run = _context(case, PAIR, 64, generator)
    run = SamplingContext(**{**vars(run), "network": Model(case.process, counting_network)})
    z = _correct(case, run, _states(case, PAIR, 0.6, 64, generator), 0.6)
    yield Comparison(
        "states", ("example", "position"), z, z.clamp(0, case.process.num_states - 1), 0.0
    )
    first = next(calls)
    tokens = case.subject.end(run, _states(case, PAIR, 0.0, 64, generator))
    yield Comparison(
        "tokens", ("example", "position"), tokens, tokens.clamp(0, case.process.vocab_size - 1), 0.0
    )
    most_step = case.subject.guarantees.max_model_calls
    most_end = case.subject.guarantees.max_finalize_calls
    used = torch.tensor([first, next(calls) - first - 1])
    yield Comparison(
        f"network calls, at most {most_step} per correction and {most_end} at the end",
        ("0: a correction, 1: the end",),
        used,
        used.minimum(torch.tensor([most_step, most_end])),
        0.0,
    )


def _repeats(case: Case, point: Point) -> Iterator[Comparison]:
    generator = torch.Generator().manual_seed(4)
    rows = 12
    z, tokens = (_states(case, PAIR, t, rows, generator) for t in (0.6, 0.0))

    def correct_twice(index: Tensor, noise: KeyedGenerator) -> Tensor:
        run = _context(case, PAIR, len(index), noise)
        states = _correct(case, run, _correct(case, run, z[index], 0.6), 0.6)
        return torch.cat([states, case.subject.end(run, tokens[index])], 1)

    yield from in_any_batch("states", correct_twice, rows)


_shifting = needs("exact_marginals", "keeps no distribution")
_approximate = needs("consistent_joint", "has approximate sequences")

_TIMES = ({"t": 0.3}, {"t": 0.7})

CLAIMS = (
    Claim(
        "corrector",
        "one token",
        "a position keeps its distribution q_t",
        "binomial bounds, false alarm 1e-6",
        partial(_marginals, TOKEN),
        _TIMES,
        ({"t": 0.1}, {"t": 0.95}),
        _shifting,
    ),
    Claim(
        "corrector",
        "two tokens",
        "each of two dependent positions keeps its distribution q_t",
        "binomial bounds, false alarm 1e-6",
        partial(_marginals, PAIR),
        _TIMES,
        ({"t": 0.1}, {"t": 0.95}),
        _approximate,
        rests_on=("one token",),
    ),
    Claim(
        "corrector",
        "joint distribution",
        "two dependent positions keep their joint distribution, after short steps",
        "binomial bounds, false alarm 1e-6",
        _joint,
        _TIMES,
        ({"t": 0.1}, {"t": 0.95}),
        _approximate,
        rests_on=("two tokens",),
    ),
    Claim("corrector", "network calls", "at most max_model_calls", "exactly", _calls),
    Claim(
        "corrector",
        "keyed noise",
        "the same noise draws the same states, in any batch",
        "exactly",
        _repeats,
    ),
)

verify = case_verifier("corrector", runs, CLAIMS, PART_CLAIMS)
