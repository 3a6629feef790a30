"""The process's own density of times is no worse than uniform times.

Stated errors hold, or name what is not finite.
"""

import math
import sys

import pytest
import torch
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib import registry
from ddlib.processes import RateMatrix
from ddlib.schedules import Cosine, Linear
from ddlib.verification.claims.objective.times import bound_moment
from studies.deviations.run import covered, exact, gaussian, processes, repeated, walk

EDGES = torch.linspace(-16, 16, 129, dtype=F64)
T, STEP = ((EDGES[1:] + EDGES[:-1]) / 2).sigmoid(), EDGES.sigmoid().diff()
"""Middles of the cells of a table, and their widths."""
HELD = 2**21


def ordinal(states):
    """Noise between neighbouring values that has forgotten the value at t = 1."""
    return {
        "gaussian": RateMatrix(
            gaussian(states, max(2.0, states / 32), 5.0 * max(2.0, states / 16)), Linear()
        ),
        "walk": RateMatrix(walk(states, 0.4 * states**2), Linear()),
        "gaussian, cosine": RateMatrix(gaussian(states, max(2.0, states / 32), 10.0), Cosine()),
    }


def sized(states):
    """One process of each kind of this size, whose spectral gap and exit rates are not too far
    apart.
    """
    parents = torch.arange(states) // 4
    above = torch.arange(int(parents.max()) + 1) // 2
    others = {
        name: one for name, one in processes(states).items() if not isinstance(one, RateMatrix)
    }
    others["masks, slow"] = dd.processes.PerWord(Linear(), torch.linspace(0.05, 1, states).tolist())
    others["three levels"] = dd.presets.hdlm_levels([parents.tolist(), above.tolist()])
    return ordinal(states) | others


def predictors(process):
    """Distributions that a network may predict for each token: log-probabilities (V, V) by name."""
    size = process.vocab_size
    same = torch.eye(size, dtype=F64)
    flat = torch.full((size, size), 1 / size, dtype=F64)
    found = {
        "flat": flat,
        "half trained": 0.5 * same + 0.5 * flat,
        "trained": 0.9 * same + 0.1 * flat,
    }
    if isinstance(process, RateMatrix):
        noisy = (
            process.predictive(same[None], torch.tensor([0.2], dtype=F64))[0, :, :size]
            + 1e-3 / size
        )
        found["takes neighbours for each other"] = noisy / noisy.sum(-1, keepdim=True)
    return {name: probabilities.log() for name, probabilities in found.items()}


def moments(process, scores, tokens, times=T):
    """Means and mean squares of the integrand, (2, predictors, times), over some tokens and all of
    their states.
    """
    states = process.num_states
    x = torch.linspace(0, process.vocab_size - 1, min(tokens, process.vocab_size)).long().unique()
    here = x.repeat_interleave(states)
    there = torch.arange(states).repeat(len(x))
    logits = torch.cat([one[here] for one in scores])[
        None
    ]  # together, so that exponentials are computed once
    here, there = (each.repeat(len(scores))[None] for each in (here, there))
    found = []
    for t in times.split(max(1, HELD // (here.numel() * states))):
        x_t = here.expand(len(t), -1)
        z_t = there.expand(len(t), -1)
        mass = process.likelihood(z_t, x_t, t)
        value = process.integrand(logits.expand(len(t), -1, -1), x_t, z_t, t)
        paid = torch.where(mass > 0, value, 0.0)
        sums = [
            (mass * paid**power).view(len(t), len(scores), -1).sum(-1) / len(x) for power in (1, 2)
        ]
        found.append(torch.stack(sums).mT)
    return torch.cat(found, -1)


def deviations(process, tokens, every):
    """For each predictor, length and chance: name, deviation of a sequence under its own density,
    under uniform times.

    With times in strata (chance 0.2) only what lies beyond t = 1e-4 counts under uniform times:
    nearer to the data most runs draw nothing. A density for independent times (chance 1) is
    compared with the flat predictor.
    """
    chances = (
        (0.2, 1.0) if process.vocab_size < 256 else (0.2,)
    )  # of more states some guess from 24 tokens
    densities = {(n, c): process.time_density(n, chance=c) for n in (16, 128) for c in chances}
    scores = predictors(process)
    times = T[::every]
    step = every * STEP[::every]
    for name, mean, square in zip(
        scores, *moments(process, list(scores.values()), tokens, times), strict=True
    ):
        for (length, chance), density in densities.items():
            if chance == 1 and name != "flat":
                continue
            height = chance * mean
            late = times >= (1e-4 if chance < 1 else 0)
            second = height**2 + (square - mean**2).clamp_min(0) / length
            own = float((second / density.density(times) * step).sum() - (height * step).sum() ** 2)
            uniform = float((second * step)[late].sum() - (height * step)[late].sum() ** 2)
            yield f"{name}, {length} tokens, chance {chance}", math.sqrt(own), math.sqrt(uniform)


NAMES = list(sized(8))
SIZES = [(name, states) for name in NAMES for states in (8, 16, 64, 256)]
"""At 256 states half a minute and more."""


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("name", "states"), SIZES)
def test_own_density_is_no_worse_than_uniform_times(name, states):
    """A density from the backward rate is 1.5 to 4 times worse than uniform times for ordinal
    noise.
    """
    process = sized(states)[name]
    every = 2 if isinstance(process, RateMatrix) and states > 64 else 1
    for case, own, uniform in deviations(process, 64 if states < 64 else 8, every):
        assert own <= uniform, case


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", ["gaussian", "walk"])
def test_dense_moments_are_sums_over_tokens_and_states(name):
    process = ordinal(16)[name]
    flat = torch.zeros(16, dtype=F64)
    for power, got in enumerate(process.time_moments(T), start=1):
        # at rates of 1e9 what is smaller is rounding
        torch.testing.assert_close(got, bound_moment(process, flat, T, power), rtol=1e-6, atol=1e-6)


def test_moments_of_many_tokens_are_those_of_a_sample_of_tokens(monkeypatch):
    process = RateMatrix(gaussian(40, 2.0, 10.0), Linear())
    some = T[::16]
    whole = process.time_moments(some)
    monkeypatch.setattr(sys.modules["ddlib.processes.moments"], "_TOKENS", 16)
    for got, expected in zip(process.time_moments(some), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=0.15, atol=1e-9)


def test_moments_of_a_given_divergence_are_those_of_the_predictor_that_pays_it():
    process = RateMatrix(gaussian(8, 1.0, 5.0), Linear())
    scores = torch.full((8, 8), math.log(-math.expm1(-0.5) / 7), dtype=F64).fill_diagonal_(-0.5)
    for got, expected in zip(
        process.time_moments(T, [0.5]), moments(process, [scores], 8), strict=True
    ):
        torch.testing.assert_close(got, expected[0], rtol=1e-6, atol=1e-6)


REGISTERED = [
    (name, number)
    for name in registry.available("processes")
    for number in range(len(registry.get("processes", name).examples()))
]


def registered(name, number):
    return registry.get("processes", name).examples()[number]


def caveat(process, density):
    """Caveat on the error of a bound under this density."""
    x = torch.arange(8).view(4, 2) % process.vocab_size
    size = process.vocab_size
    noise = seeded()
    return dd.bound(
        process, lambda z, t: torch.zeros(*z.shape, size), x, noise, density=density
    ).per_token.caveat


@pytest.mark.parametrize(("name", "number"), REGISTERED)
def test_no_caveat_under_the_optimal_density_in_strata(name, number):
    process = registered(name, number)
    assert caveat(process, process.time_density(2, chance=0.2)) == ""
    if process.vocab_size > 1:
        assert "variance is infinite" in caveat(
            process, dd.times.Beta(3.0, 1.0)
        )  # nothing near the data


def coverage(process, own, runs=400):
    """The share of 95 % intervals of runs of 128 sequences that hold the truth, and the caveat that
    is stated.
    """
    density = process.time_density(16, chance=0.2) if own else None
    return covered(repeated(process, density, runs, sequences=128), exact(process)), caveat(
        process, density
    )


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("own", [True, False])
def test_intervals_of_uniform_noise_hold_the_truth_or_state_why_not(own):
    """The issue's case: under uniform times 0.15 was stated where runs deviated by 0.28."""
    share, stated = coverage(dd.processes.Uniform(5, Linear()), own)
    if own:
        assert 0.92 <= share <= 0.98 and not stated
    else:
        assert share < 0.9
        assert (
            "near t = 0 the variance is infinite: use density=process.time_density(2, chance=0.2)"
            in stated
        )


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("own", [True, False], ids=["own density", "uniform times"])
@pytest.mark.parametrize(
    ("name", "number"),  # half a minute for each rate matrix
    REGISTERED,
)
def test_intervals_have_their_coverage_or_a_caveat(name, number, own):
    process = registered(name, number)
    if process.vocab_size == 1:
        pytest.skip("nothing to estimate")
    for runs in (
        400,
        1600,
    ):  # the error of the share is 0.011, and 0.006; the second number decides near a limit
        share, stated = coverage(process, own, runs)
        if 0.92 <= share <= 0.98 or stated:
            break
    else:
        pytest.fail(f"{share} of the intervals hold the truth")
    assert not (own and stated)


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", ["gaussian", "walk"])
def test_runs_of_ordinal_noise_deviate_less_under_their_own_density(name):
    """256 x 16 tokens: 0.26 under uniform times, 0.59 under a density from the backward rate."""
    process = ordinal(16)[name]
    deviation = {}
    for own in (True, False):
        density = process.time_density(16, chance=0.2) if own else None
        measures = repeated(process, density, runs=24, sequences=256)
        values = torch.tensor([one.value for one in measures], dtype=F64)
        deviation[own] = float((values - math.log(16)).square().mean().sqrt())
    assert deviation[True] < 0.12 < 0.2 < deviation[False]


def test_the_integrand_is_finite_at_states_of_hardly_any_probability():
    """For q_t(z|x) of about 1e-320 and q_t(x|x) = 1 the ratio is infinite, and came out as NaN."""
    process = RateMatrix(walk(96, 10.0), Linear())
    z = torch.arange(96)[None]
    for time in (1e-7, 1e-5, 1e-4, 1e-3):
        t = torch.tensor([time], dtype=F64)
        x = torch.zeros_like(z)
        value = process.integrand(torch.zeros(1, 96, 96, dtype=F64), x, z, t)
        assert bool(value[process.likelihood(z, x, t) > 0].isfinite().all()), time


def test_balanced_levels_leave_the_tail_of_tokens_that_are_replaced():
    """Intervals of GIDD under uniform times hold the truth in 78 % with balanced levels.

    Masks have no error left.
    """
    for process, named in ((dd.presets.gidd(16, 0.1), True), (dd.presets.mdlm(16), False)):
        x = torch.arange(16).view(4, 4)
        key = dd.KeyedGenerator(0, 0, torch.arange(4))
        for density, stated in ((None, named), (process.time_density(4, chance=0.2), False)):
            found = dd.bound(
                process,
                lambda z, t: torch.zeros(*z.shape, 16),
                x,
                key,
                density=density,
                levels="balanced",
            )
            assert bool(found.per_token.caveat) == stated
