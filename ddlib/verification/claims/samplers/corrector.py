"""Claims about correctors with the exact denoiser of a known distribution."""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess, unchanged
from ddlib.samplers import Corrector, SamplingContext
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.typing import Tokens
from ddlib.utils.categorical import draw
from ddlib.utils.random import Generator, KeyedGenerator, rand
from ddlib.verification.claims.samplers.sampler import PAIR, WORD, processes
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, frequencies, tally
from ddlib.verification.framework.oracle import exact_cavity

_DRAWS, _STEP, _SHORT = 4000, 0.2, 0.002


class Correction(NamedTuple):
    """A corrector and a process to run it on."""

    corrector: Corrector
    process: ForwardProcess

    def run(self, law: Tensor, rows: int, generator: Generator, compact: bool = True) -> SamplingContext:
        """Return the context of a ``sample`` call with the exact denoiser of the joint ``law``."""
        network = ModelWrapper(self.process, exact_cavity(self.process, law), compact=compact)
        free = torch.ones(rows, law.ndim, dtype=torch.bool)
        return SamplingContext(
            self.process, network, unchanged, torch.linspace(1, 0, 6, dtype=torch.float64), free, generator
        )

    def states(self, law: Tensor, t: float, rows: int, generator: Generator) -> Tokens:
        """Draw states at ``t`` of sequences from ``law``, (rows, L)."""
        u = rand((rows,), generator, torch.device("cpu"))
        tokens = torch.unravel_index(draw(law.flatten().expand(rows, -1), u), law.shape)
        return self.process.sample(torch.stack(tokens, 1), at(t, rows), generator)

    def corrected(self, run: SamplingContext, z: Tokens, t: float, step: float = _STEP) -> Tokens:
        """Return the states after one correction, as after a step of this length."""
        return self.corrector.correct(run, z, at(t, len(z)), at(step, len(z)))


def corrections(corrector: Corrector) -> list[Correction]:
    """Return cases of the corrector with each supported kind of process.

    Raises:
        ValueError: no process is supported.
    """
    served = [Correction(corrector, process) for process in processes() if _serves(corrector, process)]
    if not served:
        raise ValueError(f"{corrector!r} raises TypeError for masked, hierarchical and uniform processes alike")
    return served


def _serves(corrector: Corrector, process: ForwardProcess) -> bool:
    try:
        corrector.check(process)
    except TypeError:
        return False
    return True


def _kept(case: Correction, point: Point, law: Tensor) -> Iterator[Comparison]:
    """Check that each position of a sequence still follows q_t after a correction."""
    t, generator = float(point["t"]), torch.Generator().manual_seed(1)
    z = case.states(law, t, _DRAWS, generator)
    z = case.corrected(case.run(law, _DRAWS, generator), z, t)
    axes = range(law.ndim)
    marginals = torch.stack([law.sum([k for k in axes if k != i]) if law.ndim > 1 else law for i in axes])
    chance = case.process.predictive(marginals[None], at(t))[0]
    counts = tally(z, case.process.num_states)
    yield frequencies("draws of z", ("position", "z"), counts, chance, _DRAWS)


def _word(case: Correction, point: Point) -> Iterator[Comparison]:
    yield from _kept(case, point, WORD)


def _words(case: Correction, point: Point) -> Iterator[Comparison]:
    yield from _kept(case, point, PAIR)


def _joint(case: Correction, point: Point) -> Iterator[Comparison]:
    t, size = float(point["t"]), case.process.num_states
    generator = torch.Generator().manual_seed(2)
    z, run = case.states(PAIR, t, _DRAWS, generator), case.run(PAIR, _DRAWS, generator)
    for _ in range(8):  # so that small errors add up
        z = case.corrected(run, z, t, _STEP if case.corrector.exact_joint else _SHORT)
    rows = case.process.predictive(torch.eye(4, dtype=torch.float64)[None], at(t))[0]
    counts = tally(size * z[:, :1] + z[:, 1:], size * size).view(size, size)
    yield frequencies("draws of two dependent states", ("z_0", "z_1"), counts, rows.T @ PAIR @ rows, _DRAWS)


def _calls(case: Correction, point: Point) -> Iterator[Comparison]:
    calls, generator = count(), torch.Generator().manual_seed(3)
    exact = exact_cavity(case.process, PAIR)

    def counted(z: Tensor, t: Tensor) -> Tensor:
        next(calls)
        return exact(z, t)

    run = case.run(PAIR, 64, generator)
    run = SamplingContext(**{**vars(run), "predict": ModelWrapper(case.process, counted)})
    z = case.corrected(run, case.states(PAIR, 0.6, 64, generator), 0.6)
    yield Comparison("states", ("example", "position"), z, z.clamp(0, case.process.num_states - 1), 0.0)
    first = next(calls)
    tokens = case.corrector.end(run, case.states(PAIR, 0.0, 64, generator))
    yield Comparison("words", ("example", "position"), tokens, tokens.clamp(0, case.process.vocab_size - 1), 0.0)
    most, most_end = case.corrector.max_model_calls, case.corrector.max_finalize_calls
    used = torch.tensor([first, next(calls) - first - 1])
    yield Comparison(
        f"network calls, at most {most} of a correction and {most_end} in the end", ("0: a correction, 1: the end",),
        used, used.minimum(torch.tensor([most, most_end])), 0.0,
    )  # fmt: skip


def _repeats(case: Correction, point: Point) -> Iterator[Comparison]:
    generator = torch.Generator().manual_seed(4)
    rows = 12
    z, tokens = (case.states(PAIR, t, rows, generator) for t in (0.6, 0.0))

    def keyed(index: Tensor) -> Tensor:
        key = KeyedGenerator(seed=1, step=2, index=index)
        run = case.run(PAIR, len(index), key)
        there = case.corrected(run, case.corrected(run, z[index], 0.6), 0.6)
        return torch.cat([there, case.corrector.end(run, tokens[index])], 1)

    whole = keyed(torch.arange(rows))
    yield Comparison("states drawn again", ("example", "position"), keyed(torch.arange(rows)), whole, 0.0)
    parts = torch.cat([keyed(one) for one in torch.arange(rows).split(1)])
    yield Comparison("states of an example in another batch", ("example", "position"), parts, whole, 0.0)


def _shifting(case: Correction) -> str:
    return "" if case.corrector.exact_marginals else f"{type(case.corrector).__name__} says that it keeps no law"


def _approximate(case: Correction) -> str:
    return (
        ""
        if case.corrector.consistent_joint
        else f"{type(case.corrector).__name__} says that its texts are approximate"
    )


_TIMES = ({"t": 0.3}, {"t": 0.7})

CLAIMS = (
    Claim("corrector", "one token", "a position keeps its distribution q_t", "binomial bounds, false alarm 1e-6",
          _word, _TIMES, ({"t": 0.1}, {"t": 0.95}), _shifting),
    Claim("corrector", "two tokens", "each of two dependent positions keeps its distribution q_t",
          "binomial bounds, false alarm 1e-6", _words, _TIMES, ({"t": 0.1}, {"t": 0.95}), _approximate,
          rests_on=("one token",)),
    Claim("corrector", "joint law", "two dependent positions keep their joint distribution, if only after short steps",
          "binomial bounds, false alarm 1e-6", _joint, _TIMES, ({"t": 0.1}, {"t": 0.95}), _approximate,
          rests_on=("two tokens",)),
    Claim("corrector", "network calls", "no more than it says", "exactly", _calls),
    Claim("corrector", "keyed noise", "the same noise draws the same states, in any batch", "exactly", _repeats),
)  # fmt: skip
