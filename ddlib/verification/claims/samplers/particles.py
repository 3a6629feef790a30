"""Claims about particles with any inner sampler: the reward tilts the distribution of sequences as
stated.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers import Particles, Sampler
from ddlib.samplers.controls import WholeBatch
from ddlib.samplers.sampling import sample
from ddlib.utils.random import KeyedGenerator
from ddlib.verification.claims.samplers.sampler import runs as sampler_cases
from ddlib.verification.framework.cases import Case
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import compare_joint_draws, in_any_batch
from ddlib.verification.framework.reference import exact_cavity, sequences

_DRAWS = 6000
_MANY = 32
_TEXTS = 2000
_ALONE = 12
_ERRORS = 6.0
_SCALE, _ESS = 0.7, 0.9
"""Not 1, since then the scale has no effect, or every row resamples."""


class Prefers:
    """Reward of two positions for the claims: a value per state and position, and their product."""

    def __init__(self, process: ForwardProcess) -> None:
        generator = torch.Generator().manual_seed(8)
        self.likes = (
            2 * torch.rand(process.num_states, generator=generator, dtype=torch.float64) - 1
        )

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        likes = self.likes[z]
        return (1 - t / 2) * (likes.sum(-1) + likes.prod(-1))


def runs(sampler: Sampler, on: ForwardProcess | None = None) -> list[Case]:
    """Return cases of particles, with a mild reward, on the processes of the claims about samplers.

    The reward of the given sampler may require another vocabulary, or tilt too strongly for a
    statistical test.
    """
    if not isinstance(sampler, Particles):
        return []
    return [run._replace(subject=_mild(sampler, run.process)) for run in sampler_cases(sampler, on)]


def _mild(sampler: Particles, process: ForwardProcess, number: int | None = None) -> Particles:
    mild = copy.copy(sampler)
    mild.reward = Prefers(process)
    mild.scale = _SCALE
    mild.ess = _ESS
    mild.number = sampler.number if number is None else number
    return mild


def _joint(run: Case) -> Tensor:
    """Return a joint distribution of two independent tokens, which samplers reproduce with any
    number of steps.
    """
    return run.token[:, None] * run.token.flip(0)


def _tilt(run: Case, distribution: Tensor, t: float) -> Tensor:
    """Compute the distribution ``distribution`` of sequences times exp(scale r), not normalised."""
    states = sequences(len(distribution), distribution.ndim)
    times = torch.full((len(states),), t, dtype=torch.float64)
    return distribution * (_SCALE * Prefers(run.process)(states, times)).exp().view_as(distribution)


def _means(quantity: str, z: Tensor, weights: Tensor, expected: Tensor) -> Comparison:
    """Compare, for each sequence, the mean of estimate times indicator of the sequence with its
    expectation.
    """
    size = expected.shape[1]
    estimates = torch.zeros(len(z), expected.numel(), dtype=torch.float64)
    estimates.scatter_(1, (size * z[:, :1] + z[:, 1:]), weights[:, None])
    # sequences drawn too rarely for an empirical error get the error of a count
    error = (
        estimates.std(0).view_as(expected).maximum((expected * weights.mean()).sqrt())
        / len(z) ** 0.5
    )
    return Comparison(
        quantity, ("0", "1"), estimates.mean(0).view_as(expected), expected, _ERRORS * error
    )


def _weighted_means(run: Case, point: Point) -> Iterator[Comparison]:
    """Check E[Z f(sequence drawn)] = E[f exp(scale r)], for any number of particles, steps and
    resamplings.
    """
    steps = int(point["steps"])
    particles = run.subject
    generator = torch.Generator().manual_seed(9)
    call = run.context(_joint(run), _DRAWS, generator, steps)
    state = particles.init(call)
    for k in range(steps):
        state = particles.step(call, state, k)
        if particles.sampler.guarantees.on_time_grid and k + 1 < steps:
            s = float(call.times[k + 1])
            marginals = torch.stack([_joint(run).sum(1), _joint(run).sum(0)])[None]
            first, second = run.process.predictive(marginals, call.times[k + 1 : k + 2])[0]
            estimate = state.memo.log_mean().exp()
            expected = _tilt(run, first[:, None] * second, s)
            yield _means(f"E[Z 1(z)] at t = {s:.3g}", state.z, estimate, expected)
    same_noise = torch.Generator().set_state(generator.get_state())
    estimate = particles.weigh(call, state).log_mean().exp()
    tokens = particles.finalize(replace(call, generator=same_noise), state)
    yield _means("E[Z 1(x)]", tokens, estimate, _tilt(run, _joint(run), 0.0))


def _many(run: Case, point: Point) -> Iterator[Comparison]:
    """Check draws with keyed noise, in which copies must have different noise."""
    particles = _mild(run.subject, run.process, _MANY)
    call = run.context(_joint(run), _TEXTS, KeyedGenerator(3, 4, torch.arange(_TEXTS)), 4)
    state = particles.init(call)
    for k in range(call.steps):
        state = particles.step(call, state, k)
    tokens = particles.finalize(call, state)
    expected = _tilt(run, _joint(run), 0.0)
    quantity = f"sequences drawn from {_MANY} particles"
    yield compare_joint_draws(quantity, ("x_0", "x_1"), tokens, expected / expected.sum())


def _alone(run: Case, point: Point) -> Iterator[Comparison]:
    """Check that rows resample independently."""
    yield from in_any_batch(
        "tokens", lambda index, noise: run.draw(_joint(run), len(index), noise, 8), _ALONE, 5
    )


def _prompts(run: Case, point: Point) -> Iterator[Comparison]:
    """Check that the network and the reward get the unchanged prompt in every particle."""
    token = min(1, run.process.vocab_size - 1)
    first_states = []
    particles = copy.copy(run.subject)
    generator = torch.Generator().manual_seed(7)

    def watch(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def call(z: Tensor, t: Tensor) -> Tensor:
            first_states.append(z[:, 0])
            return function(z, t)

        return call

    particles.reward = watch(Prefers(run.process))
    network = watch(exact_cavity(run.process, _joint(run)))
    prompt = torch.tensor([token])
    tokens = sample(
        run.process,
        network,
        (64, 2),
        particles,
        6,
        prompt,
        controls=[WholeBatch()],
        generator=generator,
    )
    for where, first in (("seen", torch.cat(first_states)), ("returned", tokens[:, 0])):
        yield Comparison(
            f"the prompt, as {where}", ("example",), first, torch.full_like(first, token), 0.0
        )


def _approximate(run: Case) -> str:
    inside = run.subject.sampler
    return (
        ""
        if inside.guarantees.exact_marginals
        else f"{type(inside).__name__} has approximate steps"
    )


CLAIMS = (
    Claim(
        "particles",
        "prompted",
        "network and reward get the prompt in every particle",
        "exactly",
        _prompts,
    ),
    Claim(
        "particles",
        "tilt",
        "estimates of E[f exp(scale r)] have the right mean, at every step",
        f"{_ERRORS:g} standard errors",
        _weighted_means,
        ({"steps": 3},),
        ({"steps": 1}, {"steps": 12}),
        _approximate,
    ),
    Claim(
        "particles",
        "many",
        "sequences follow p(x) exp(scale r(x)) for many particles",
        "binomial bounds, false alarm 1e-6",
        _many,
        applies=_approximate,
        rests_on=("tilt",),
    ),
    Claim(
        "particles",
        "rows",
        "a row is resampled independently, with its own noise",
        "exactly",
        _alone,
    ),
)
