"""Claims about samplers with the exact denoiser of a known distribution."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from ddlib.presets import hdlm_levels
from ddlib.processes import ForwardProcess, Masked, Uniform, unchanged
from ddlib.samplers import Sampler, SamplingContext, State, sample
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.schedules import Cosine, Linear
from ddlib.utils.random import Generator, KeyedGenerator
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import frequencies, tally
from ddlib.verification.framework.oracle import exact_cavity

WORD = torch.tensor([0.45, 0.10, 0.25, 0.20], dtype=torch.float64)
PAIR = torch.tensor(
    [[0.30, 0.01, 0.02, 0.01], [0.01, 0.02, 0.15, 0.01], [0.02, 0.20, 0.01, 0.02], [0.01, 0.01, 0.02, 0.18]],
    dtype=torch.float64,
)
_STEPS, _DRAWS, _ROWS = 48, 4000, 24
_FEW = 8
"""Vocabulary size of the small copy of a process with more than twice as many tokens."""


def over(law: Tensor, words: int) -> Tensor:
    """Extend a distribution of tokens, or of pairs of tokens, to another vocabulary size by tiling."""
    tiled = law.repeat((-(-words // 4),) * law.ndim)[(slice(words),) * law.ndim]
    return tiled / tiled.sum()


class SamplerCase(NamedTuple):
    """A sampler and a process to run it on."""

    sampler: Sampler
    process: ForwardProcess

    @property
    def word(self) -> Tensor:
        """Distribution of one token."""
        return over(WORD, self.process.vocab_size)

    @property
    def pair(self) -> Tensor:
        """Joint distribution of two tokens."""
        return over(PAIR, self.process.vocab_size)

    def draw(
        self, law: Tensor, rows: int, generator: Generator, steps: int | None = _STEPS, **options: object
    ) -> Tensor:
        """Draw sequences with the exact denoiser of the joint ``law``, (rows, L)."""
        denoiser = exact_cavity(self.process, law)
        shape = (rows, law.ndim)
        return sample(self.process, denoiser, shape, self.sampler, steps, generator=generator, **options)  # type: ignore[arg-type]


def processes() -> tuple[ForwardProcess, ...]:
    """Return one process of every kind, over four tokens."""
    return (
        Masked(4, Cosine()),
        hdlm_levels([[0, 1, 1, 2], [0, 0, 1]], xi=[0.7, 0.8], speed=[1.0, 2.0, 0.7]),
        Uniform(4, Linear()),
    )


def few(process: ForwardProcess) -> ForwardProcess:
    """Return the process, or its small copy if it is large."""
    return process if process.vocab_size <= 2 * _FEW else process.small_copy(_FEW)


def runs(sampler: Sampler, on: ForwardProcess | None = None) -> list[SamplerCase]:
    """Return cases of the sampler with each supported kind of process, or with the given one.

    Raises:
        TypeError: the given process is not supported.
        ValueError: no process is supported.
    """
    if on is not None:
        run = SamplerCase(sampler, few(on))
        if (refusal := _refusal(run)) is not None:
            raise refusal
        return [run]
    served = [run for run in (SamplerCase(sampler, process) for process in processes()) if _refusal(run) is None]
    if not served:
        raise ValueError(f"{sampler!r} raises TypeError for masked, hierarchical and uniform processes alike")
    return served


def _refusal(run: SamplerCase) -> TypeError | None:
    """Return the error if the process is not supported."""
    try:
        run.draw(run.word, 1, torch.Generator().manual_seed(0), 2)
    except TypeError as error:
        return error
    except Exception:  # supported, but with an error that the claims will report
        return None
    return None


def _one_word(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    probs = run.word
    tokens = run.draw(probs, _DRAWS, torch.Generator().manual_seed(1), int(point["steps"]))
    inside = tokens.clamp(0, len(probs) - 1)
    yield Comparison("words", ("example", "position"), tokens, inside, 0.0)
    yield frequencies("draws of a word", ("position", "x"), tally(tokens, len(probs)), probs[None], _DRAWS)


def _on_the_way(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    """Check the states at each time of the grid: remasking must balance unmasking."""
    seen: list[Comparison] = []
    steps, keep = int(point["steps"]), _seen(run, run.word[None, None], seen)
    run.draw(run.word, _DRAWS, torch.Generator().manual_seed(5), steps, on_step=keep)
    yield from seen


def _seen(
    run: SamplerCase, words: Tensor, into: list[Comparison], every: int = 1
) -> Callable[[int, Tensor, Tensor], None]:
    """Return a callback for ``on_step`` that compares the states after every ``every`` steps with q_t.

    ``words`` (1, L, V) are the distributions of the tokens.
    """

    def keep(k: int, t: Tensor, z: Tensor) -> None:
        if (k + 1) % every == 0:
            probs, counts = run.process.predictive(words, t[:1])[0], tally(z, run.process.num_states)
            into.append(frequencies(f"draws of z at t = {float(t[0]):.3g}", ("position", "z"), counts, probs, _DRAWS))

    return keep


def _off_the_grid(run: SamplerCase) -> str:
    return _discretised(run) or (
        "" if run.sampler.on_time_grid else "its states are those of events, at no time of the grid"
    )


def _discretised(run: SamplerCase) -> str:
    return "" if run.sampler.exact_marginals else f"{type(run.sampler).__name__} says that its steps are approximate"


def hurried(run: SamplerCase) -> str:
    """Return the reason why sequences need not follow the joint distribution; empty if they must."""
    return "" if run.sampler.consistent_joint else f"{type(run.sampler).__name__} says that its texts are approximate"


def _no_draw(run: SamplerCase) -> str:
    """Return the reason why draws are not checked: neither marginals nor the joint distribution converge."""
    draws = run.sampler.exact_marginals or run.sampler.consistent_joint
    return "" if draws else f"{type(run.sampler).__name__} says that its words are no draws"


def _two_words(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    # rates may diverge near the data, so steps are concentrated there
    grid = torch.linspace(1, 0, int(point["steps"]) + 1, dtype=torch.float64) ** 2
    joint, size = run.pair, run.process.vocab_size
    seen: list[Comparison] = []
    keep = _seen(run, torch.stack([joint.sum(1), joint.sum(0)])[None], seen, len(grid) // 5)
    timed = {"steps": None, "times": grid} if run.sampler.by_times else {"steps": len(grid) - 1}
    watched = {"on_step": keep if run.sampler.on_time_grid else None}
    tokens = run.draw(joint, _DRAWS, torch.Generator().manual_seed(2), **timed, **watched)  # type: ignore[arg-type]
    yield from seen
    counts = tally((size * tokens[:, :1] + tokens[:, 1:]), size * size).view(size, size)
    yield frequencies("draws of two dependent words", ("x_0", "x_1"), counts, joint, _DRAWS)


def _prompts(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    size, given = run.process.vocab_size, min(1, run.process.vocab_size - 1)
    tokens = run.draw(run.pair, _DRAWS, torch.Generator().manual_seed(3), 96, prompt=torch.tensor([given]))
    yield Comparison("the prompt", ("example",), tokens[:, 0], torch.full((_DRAWS,), given), 0.0)
    evidence = run.process.token_likelihood(torch.arange(size)[None], torch.tensor([0.5], dtype=torch.float64))[0]
    if not torch.equal(evidence > 0, torch.eye(size) > 0):
        return  # a token is not certain evidence in this process: the prompt is only exact evidence as t -> 0
    probs = run.pair[given] / run.pair[given].sum()
    yield frequencies("draws given a prompt", ("position", "x"), tally(tokens[:, 1:], size), probs[None], _DRAWS)


def _calls(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    steps, calls = int(point["steps"]), count()
    exact = exact_cavity(run.process, run.pair)

    def counted(z: Tensor, t: Tensor) -> Tensor:
        next(calls)
        return exact(z, t)

    tokens = sample(run.process, counted, (16, 2), run.sampler, steps, generator=torch.Generator().manual_seed(4))
    used = torch.tensor(next(calls))
    most = run.sampler.max_model_calls * steps + run.sampler.max_finalize_calls
    yield Comparison(f"network calls, at most {most} in {steps} steps", (), used, used.clamp_max(most), 0.0)
    yield Comparison("words", ("example", "position"), tokens, tokens.clamp(0, run.process.vocab_size - 1), 0.0)


def _repeats(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    def keyed(rows: slice) -> Tensor:
        index = torch.arange(4)[rows]
        return run.draw(run.pair, len(index), KeyedGenerator(seed=1, step=2, index=index), 8)

    whole = keyed(slice(0, 4))
    yield Comparison("words drawn again", ("example", "position"), keyed(slice(0, 4)), whole, 0.0)
    parts = torch.cat([keyed(slice(0, 1)), keyed(slice(1, 4))])
    yield Comparison("words of an example in another batch", ("example", "position"), parts, whole, 0.0)


def _halfway(run: SamplerCase, steps: int) -> tuple[SamplingContext, State]:
    """Return context and state of rows with keyed noise, after half of the steps."""
    network = ModelWrapper(run.process, exact_cavity(run.process, run.pair))
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    noise = KeyedGenerator(seed=1, step=3, index=torch.arange(_ROWS))
    call = SamplingContext(run.process, network, unchanged, times, torch.ones(_ROWS, 2, dtype=torch.bool), noise)
    state = run.sampler.init(call)
    for k in range(steps // 2):
        state = run.sampler.step(call, state, k)
    return call, state


def _picked(run: SamplerCase, point: Point) -> Iterator[Comparison]:
    steps, rows = int(point["steps"]), torch.arange(_ROWS) * 5 % (_ROWS - 1)  # one row twice, one not at all
    call, state = _halfway(run, steps)
    assert isinstance(call.generator, KeyedGenerator)
    noise = copy.copy(call.generator)  # at the same position of its streams
    noise.index = noise.index[rows]
    subset, picked = replace(call, free=call.free[rows], generator=noise), run.sampler.select_rows(state, rows)
    for k in range(steps // 2, steps):
        state, picked = run.sampler.step(call, state, k), run.sampler.step(subset, picked, k)
    tokens = run.sampler.finalize(call, state)[rows]
    yield Comparison("words of a row", ("row", "position"), run.sampler.finalize(subset, picked), tokens, 0.0)


def _unpicked(run: SamplerCase) -> str:
    call, state = _halfway(run, 2)
    try:
        run.sampler.select_rows(state, torch.arange(len(call.free)))
    except TypeError as error:
        return str(error)
    return ""


CLAIMS = (
    Claim("sampler", "one word", "a token follows its distribution", "binomial bounds, false alarm 1e-6", _one_word,
          ({"steps": _STEPS},), ({"steps": 200},), _no_draw),
    Claim("sampler", "few steps", "a token follows its distribution after one step and after three",
          "binomial bounds, false alarm 1e-6", _one_word, ({"steps": 1}, {"steps": 3}), applies=_discretised,
          rests_on=("one word",)),
    Claim("sampler", "on the way", "the state of a token follows q_t at every time of the grid",
          "binomial bounds, false alarm 1e-6", _on_the_way, ({"steps": 6},), ({"steps": 24},), _off_the_grid,
          rests_on=("one word",)),
    Claim("sampler", "two words", "two dependent tokens follow their joint distribution, and on the way each its q_t",
          "binomial bounds, false alarm 1e-6",
          _two_words, ({"steps": 100},), ({"steps": 400},), hurried, rests_on=("one word",)),
    Claim("sampler", "prompt", "the prompt stands and conditions the rest", "binomial bounds, false alarm 1e-6",
          _prompts, applies=hurried, rests_on=("two words",)),
    Claim("sampler", "network calls", "no more than max_model_calls, and tokens even after one step", "exactly", _calls,
          ({"steps": 1}, {"steps": 5})),
    Claim("sampler", "keyed noise", "the same noise draws the same tokens, in any batch", "exactly", _repeats),
    Claim("sampler", "rows picked", "a row goes on the same wherever it is put, and however often", "exactly", _picked,
          ({"steps": 12},), applies=_unpicked, rests_on=("keyed noise",)),
)  # fmt: skip
