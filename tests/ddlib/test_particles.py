"""Particles: the distribution tilted by a reward, and independence of the rows."""

import math
import sys

import pytest
import torch
import yaml
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with, refuses
from zoo.calls import generate, row_by_row, seeded, trajectory
from zoo.joints import PAIR, follows
from zoo.networks import Halves, never
from zoo.processes import F64, LEVELS, ONLY_CHILD
from zoo.rewards import alike, clusters, ramp

import ddlib as dd
from ddlib.contrib import Psi, ThetaTrapezoidal
from ddlib.processes import Masked, identity
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Corrected,
    EntropyBounded,
    Euler,
    FirstHitting,
    Gibbs,
    Particles,
    Remask,
    SamplingContext,
    SelfCorrection,
)
from ddlib.samplers.particles import Constant, systematic
from ddlib.samplers.runtime.model import Model
from ddlib.schedules import Cosine
from ddlib.testing import check, strategies
from ddlib.testing.oracle import exact_cavity


class Seen:
    """A reward that records its arguments."""

    def __init__(self, reward):
        self.reward = reward
        self.calls = []

    def __call__(self, z, t):
        self.calls.append((z.clone(), t.clone()))
        return self.reward(z, t)


def tilted(reward, scale, probs=PAIR):
    """p(x) exp(scale r(x)), normalised, by enumeration."""
    texts = torch.cartesian_prod(*map(torch.arange, probs.shape))
    raised = probs * (scale * reward(texts, torch.zeros(len(texts), dtype=F64))).exp().view_as(
        probs
    )
    return raised / raised.sum(), raised.sum()


def whole(process, sampler, rows, steps, generator, probs=PAIR):
    """All particles of a call of ``sample`` with the exact network, in the end."""
    network = Model(process, exact_cavity(process, probs))
    free = torch.ones(rows, probs.ndim, dtype=torch.bool)
    run = SamplingContext(
        process, network, identity, torch.linspace(1, 0, steps + 1, dtype=F64), free, generator
    )
    state = sampler.init(run)
    for k in range(steps):
        state = sampler.step(run, state, k)
    return sampler.weigh(run, state)


# the distribution


CASES = [
    ("masks", Masked(3, Cosine()), alike, 2),
    ("clusters", ONLY_CHILD, clusters, 4),
    ("clusters, words", ONLY_CHILD, alike, 4),
]


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("name", "process", "reward", "steps"), CASES)
def test_many_particles_follow_the_distribution_tilted_by_the_reward(name, process, reward, steps):
    """First hitting draws two dependent tokens exactly, so that the limit is known by
    enumeration.
    """
    probs, _ = tilted(reward, 1.5)
    sampler = Particles(FirstHitting(), reward, 32, 1.0, 1.5)
    generator = seeded()
    x = dd.sample(
        process, exact_cavity(process, PAIR), (2000, 2), sampler, steps, generator=generator
    )
    assert follows(x, probs) and not follows(x, PAIR)


UNBIASED = [
    (number, ess, reward)
    for number in (1, 2, 5)
    for ess in (0.0, 0.7, 1.0)
    for reward in (alike, clusters)
]


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("number", "ess", "reward"), UNBIASED)
def test_the_estimate_has_the_right_mean_for_any_number_of_particles(number, ess, reward):
    probs, total = tilted(reward, 1.5)
    cloud = whole(
        ONLY_CHILD, Particles(FirstHitting(), reward, number, ess, 1.5), 20_000, 4, seeded(1)
    )
    estimate = cloud.log_mean().exp()
    tokens = cloud.draw_particles().z
    assert abs(estimate.mean() - total) < 5 * estimate.std() / len(estimate) ** 0.5
    each = torch.zeros(len(tokens), 9, dtype=F64).scatter_(
        1, 3 * tokens[:, :1] + tokens[:, 1:], estimate[:, None]
    )
    error = each.std(0) / len(tokens) ** 0.5
    assert bool(((each.mean(0) - total * probs.flatten()).abs() < 5 * error).all())


@given(
    strategies.processes(max_depth=4, max_words=6),
    st.integers(1, 5),
    st.floats(0, 1),
    st.floats(-2, 2),
)
@settings(max_examples=examples(40))
def test_weights_are_increments_of_the_reward_on_any_process(process, number, ess, scale):
    """In float64: whatever is resampled, a weight is the gain since then.

    Without resampling, all of the gain.
    """
    probs = torch.ones(process.vocab_size, process.vocab_size, dtype=F64) / process.vocab_size**2
    for share in (0.0, ess):
        sampler = Particles(Psi(0.7), ramp, number, share, scale)
        cloud = whole(process, sampler, 3, 4, seeded(2), probs)
        gain = scale * ramp(cloud.state.z, torch.zeros(3 * number, dtype=F64)).view(3, number)
        torch.testing.assert_close(cloud.gain, gain, rtol=1e-12, atol=1e-12)
        assert bool((cloud.state.z < process.vocab_size).all()) and not cloud.state.t.any()
        if share == 0 or number == 1:
            torch.testing.assert_close(cloud.weight, gain, rtol=1e-12, atol=1e-12)
            assert not cloud.total.any()
        before = cloud.gain - cloud.weight  # where the row was last resampled
        assert bool((before.isfinite()).all())


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")
def test_a_constant_reward_or_zero_scale_keeps_the_distribution():
    for sampler in (
        Particles(FirstHitting(), lambda z, t: 3 - t, 3, 1.0),
        Particles(FirstHitting(), ramp, 3, scale=0),
    ):
        generator = seeded(3)
        x = dd.sample(
            ONLY_CHILD, exact_cavity(ONLY_CHILD, PAIR), (4000, 2), sampler, 4, generator=generator
        )
        assert follows(x, PAIR)


def test_particles_are_resampled_at_cluster_states():
    def second(z, t):
        return torch.where((z == 3).any(-1) | (z == 0).any(-1), -torch.inf, 0.0)

    seen = Seen(second)
    tokens = dd.sample(
        ONLY_CHILD,
        exact_cavity(ONLY_CHILD, PAIR),
        (50, 2),
        Particles(Ancestral(), seen, 16),
        12,
        generator=seeded(4),
    )
    assert bool((tokens > 0).all())  # a quarter of the texts is so without
    early = torch.cat([z for z, t in seen.calls if 0 < float(t[0]) < 0.5])
    dead = second(early, None) == -torch.inf
    assert bool(((early == 3).any(-1) & dead).any()) and int(dead.sum()) < 0.5 * len(dead)


@pytest.mark.usefixtures("as_users_call")
def test_verify_checks_rewards_too():
    report = check(Particles(Ancestral(), Constant(), 2))
    rooms = {check.topic for check in report.checks}
    assert {"reward on Masked", "reward on Hierarchical", "reward on Uniform"} <= rooms
    assert not [
        check for check in dd.verify(Ancestral()).checks if check.topic.startswith("reward")
    ]


# copies and rows


INNER = {
    "ancestral": Ancestral(),
    "first": FirstHitting(),
    "confidence": Confidence(),
    "entropy": EntropyBounded(1.0),
    "remask": Remask(1.0, "confidence"),
    "corrected": Corrected(Remask(0.3), Gibbs(2)),
    "psi": Psi(0.5),
    "trapezoid": ThetaTrapezoidal(),
    "euler": Euler(),
}
PROCESS = LEVELS["levels-xi"]
KEYS = torch.arange(4)
every_inner = pytest.mark.parametrize("name", INNER)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("source", [lambda: seeded(5), lambda: dd.KeyedGenerator(0, 1, KEYS)])
@pytest.mark.parametrize("name", INNER)
def test_one_particle_is_the_sampler_to_the_bit(name, source):
    prompt = torch.tensor([[1], [0], [4], [2]])
    one, other = (
        dd.sample(PROCESS, Halves(PROCESS), (4, 5), sampler, 7, prompt, generator=source())
        for sampler in (INNER[name], Particles(INNER[name], ramp, 1))
    )
    assert torch.equal(one, other) and len(one.unique()) > 2


@pytest.mark.usefixtures("as_users_call")
@every_inner
def test_with_keyed_noise_a_text_does_not_depend_on_its_batch(name):
    process = PROCESS
    sampler = Particles(INNER[name], ramp, 3, 0.9)
    tokens = generate(process, Halves(process), sampler)
    assert torch.equal(row_by_row(process, Halves(process), sampler), tokens)
    assert not torch.equal(tokens, generate(process, Halves(process), INNER[name]))


@every_inner
def test_prompts_stand_in_every_particle_and_the_reward_sees_them(name):
    process = PROCESS
    seen = Seen(ramp)
    prompt = torch.full((4, 5), process.num_states - 1)
    prompt[:, ::2] = torch.tensor([[1, 0, 4], [2, 5, 5], [3, 3, 1], [4, 0, 2]])
    halves = Halves(process)
    states = trajectory(process, halves, Particles(INNER[name], seen, 3, 1.0), prompt=prompt)
    assert bool((states[..., ::2] == prompt[:, ::2]).all())
    assert all(
        torch.equal(z[:, ::2], prompt[:, ::2].repeat_interleave(3, 0)) for z, _ in seen.calls
    )
    assert 8 <= len(seen.calls) <= 9 and all(
        z.shape == (12, 5) and t.shape == (12,) for z, t in seen.calls
    )
    assert (
        0
        < halves.calls
        <= 7 * INNER[name].guarantees.max_model_calls + INNER[name].guarantees.max_finalize_calls
    )


def test_the_shown_frames_end_in_the_text():
    process = LEVELS["levels-xi"]
    tokens = []
    states = []
    tokens = generate(
        process,
        Halves(process),
        Particles(Ancestral(), ramp, 4),
        on_step=lambda k, t, z: states.append(z.clone()),
    )
    assert torch.equal(states[-1], tokens) and len(states) == 8


def test_all_particles_copy_the_only_one_of_positive_weight():
    """The row's states, its memo, and nothing of other rows."""
    process = LEVELS["levels"]
    sampler = Particles(FirstHitting(), ramp, 3)
    network = Model(process, Halves(process))
    free = torch.ones(2, 5, dtype=torch.bool)
    run = SamplingContext(
        process,
        network,
        identity,
        torch.linspace(1, 0, 8, dtype=F64),
        free,
        dd.KeyedGenerator(0, 0, torch.arange(2)),
    )
    cloud = sampler.step(run, sampler.init(run), 0).memo
    one = cloud._replace(
        weight=torch.tensor([[-torch.inf, -torch.inf, 1.0], [0.0, 0.0, 0.0]], dtype=F64)
    )
    done = sampler._resample(run, one)
    taken = torch.tensor([2, 2, 2, 3, 4, 5])
    assert torch.equal(done.state.z, cloud.state.z[taken])
    assert all(
        torch.equal(new, old[taken])
        for new, old in zip(done.state.memo, cloud.state.memo, strict=True)
    )
    assert torch.equal(done.gain, cloud.gain.flatten()[taken].view(2, 3)) and not done.weight.any()
    assert done.total.tolist() == [pytest.approx(1 - math.log(3)), 0.0]


@given(
    st.lists(
        st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=4, max_size=4).filter(any),
        min_size=1,
    ),
    st.floats(0, 1 - 1e-9),
)
def test_systematic_resampling_takes_each_as_often_as_it_should(rows, u):
    share = torch.tensor(rows, dtype=F64)
    share = share / share.sum(-1, keepdim=True)
    taken = systematic(share, torch.full((len(share),), u, dtype=F64))
    counts = torch.nn.functional.one_hot(taken, 4).sum(1)
    assert bool((counts >= (4 * share - 1e-9).floor()).all()) and bool(
        (counts <= (4 * share + 1e-9).ceil()).all()
    )
    assert not bool((counts[share == 0] > 0).any()) and bool((taken.diff(dim=-1) >= 0).all())


def test_systematic_resampling_is_right_in_the_mean():
    share = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=F64)
    number = 4000
    u = (torch.arange(number, dtype=F64) + 0.5) / number
    taken = systematic(share.expand(number, -1), u)
    torch.testing.assert_close(
        torch.bincount(taken.flatten()) / number, 4 * share, rtol=0, atol=1e-3, check_dtype=False
    )


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniforms_take_no_particle_of_zero_share(u):
    share = torch.tensor([[0.0, 1 / 3, 2 / 3, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=F64)
    taken = systematic(share, torch.full((2,), u, dtype=F64))
    assert set(taken[0].tolist()) == {1, 2} and set(taken[1].tolist()) == {0}


def drawn(reward, process=ONLY_CHILD, steps=3, **options):
    sampler = Particles(Ancestral(), reward, **{"number": 2, **options})
    generator = seeded()
    return dd.sample(
        process, exact_cavity(process, PAIR), (3, 2), sampler, steps, generator=generator
    )


def early(reward):
    """A call that must be refused before the network runs."""
    return dd.sample(ONLY_CHILD, never, (3, 2), Particles(FirstHitting(), reward))


def only(value, row, particle, after=0.5):
    """A reward of 0 but for one particle of one row, from some time on."""

    def reward(z, t):
        values = torch.zeros_like(t, dtype=F64)
        values[2 * row + particle] = value if float(t[0]) <= after else 0.0
        return values

    return reward


test_bad_input_is_refused_by_name = refuses(r"""
    Particles(ramp, ramp) | TypeError
        | sampler is <function ramp.*>, must be a ddlib.samplers.Sampler
    Particles(Particles(Psi(), ramp), ramp) | TypeError
        | sampler is Particles\(.*must not be Particles
    Particles(Psi(), None) | TypeError | reward is None, must be a function \(z, t\) -> \(N,\)
    Particles(Psi(), Constant) | TypeError | reward is <class .*Constant'>, must be a function
    Particles(Psi(), "calm") | TypeError | reward is 'calm', must be a function
    Particles(Psi(), ramp, 0) | ValueError | number is 0, must be at least 1
    Particles(Psi(), ramp, 2.5) | TypeError | number is 2.5, must be an int
    Particles(Psi(), ramp, ess=1.1) | ValueError | ess is 1.1, must be in \[0, 1\]
    Particles(Psi(), ramp, ess=-0.1) | ValueError | ess is -0.1, must be in \[0, 1\]
    Particles(Psi(), ramp, scale=math.inf) | ValueError | scale is inf, must be finite
    Particles(Psi(), ramp, scale=math.nan) | ValueError | scale is nan, must be finite
    Particles(Psi(), ramp, scale="big") | TypeError | scale is 'big', must be a number finite
    Corrected(Particles(Psi(), ramp), Gibbs()) | TypeError
        | predictor is Particles.*take a Corrected as their sampler
    drawn(lambda z, t: 1.0) | TypeError
        | reward\(z, t\) is 1.0, must be a tensor \(N,\) of real numbers
    drawn(lambda z, t: t * 1j) | TypeError | must be a tensor .* of real numbers
    drawn(lambda z, t: z) | ValueError | reward\(z, t\) has shape \(6, 2\), must be \(N,\) = \(6,\)
    drawn(lambda z, t: t[:3]) | ValueError
        | reward\(z, t\) has shape \(3,\), must be \(N,\) = \(6,\)
    drawn(only(math.nan, 2, 1)) | ValueError
        | reward is nan for particle 1 of row 2 at step 1, must be finite, or -inf
    drawn(only(math.inf, 1, 0, 1.0)) | ValueError
        | reward is inf for particle 0 of row 1 before the first step, must
    drawn(only(1e300, 1, 0), scale=1e300) | ValueError
        | reward is 1e.300 for .*scale . reward must be
    drawn(only(-math.inf, 1, 0), scale=-1.0) | ValueError | reward is -inf for particle 0 of row 1
    drawn(lambda z, t: torch.where(torch.arange(6) // 2 == 1, -torch.inf, t))
        | ValueError
            | reward is -inf for every particle of row 1 before the first step, must be finite for
            at least one
    dd.sample(Uniform(3, Linear()), never, (2, 2), Particles(FirstHitting(), ramp))
        | TypeError | FirstHitting needs a process with levels.*use Ancestral
    early(lambda z, t: z) | ValueError | reward
    early(lambda z, t: t + math.nan) | ValueError | reward
    early(lambda z, t: None) | TypeError | reward
    early(lambda z, t: t - math.inf) | ValueError | reward
    drawn(lambda z, t: torch.where((torch.arange(6) // 2 == 2) & (t < 0.5), -torch.inf, 0.0))
        | ValueError
            | reward is -inf for every particle of row 2 at step 1, must be finite for at least one
""")


def test_a_reward_may_be_whole_numbers_or_minus_infinity_for_some():
    assert drawn(lambda z, t: (z == 1).sum(-1)).shape == (3, 2)
    assert drawn(lambda z, t: (z < 3).all(-1)).shape == (3, 2)
    assert drawn(only(-math.inf, 1, 0)).shape == (3, 2)
    assert drawn(only(-math.inf, 1, 0), ess=0.0).shape == (3, 2)
    assert drawn(lambda z, t: torch.full_like(t, -torch.inf), scale=0.0).shape == (3, 2)


def test_repr_and_properties():
    inner = Corrected(Ancestral(), SelfCorrection(steps=9))
    outer = Particles(inner, ramp, 8, scale=2)
    assert (
        outer.guarantees.max_model_calls == inner.guarantees.max_model_calls
        and outer.guarantees.max_finalize_calls == inner.guarantees.max_finalize_calls
    )
    shown = (
        "Particles(sampler=Psi(kappa=0.98, force_transition=False), reward=ramp, number=4, "
        "ess=0.5, scale=1.0)"
    )
    assert repr(Particles(Psi(), ramp)) == shown
    assert "reward=Constant()" in repr(Particles(Psi(), Constant()))
    exact = [
        Particles(FirstHitting(), *given) for given in ((Constant(),), (ramp, 2, 0.5, 0.0), (ramp,))
    ]
    assert (
        [one.guarantees.consistent_joint for one in exact]
        == [one.guarantees.exact_marginals for one in exact]
        == [True, True, False]
    )
    assert (
        not Particles(Euler(), Constant()).guarantees.exact_marginals
        and not exact[0].guarantees.on_time_grid
    )


MODULE = """
import torch

def calm(z, t):
    return torch.zeros_like(t)

nothing = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_rewards", None)


def values(reward="own_rewards:calm", **more):
    return {"kind": "ddlib.samplers:Particles", "sampler": "ancestral", "reward": reward} | more


def test_values_of_yaml_build_it(module):
    psi = {"kind": "psi", "kappa": 0.5}
    given = yaml.safe_load(yaml.safe_dump(values(sampler=psi, number=8)))
    shown = (
        "Particles(sampler=Psi(kappa=0.5, force_transition=False), reward=calm, number=8, "
        "ess=0.5, scale=1.0)"
    )
    assert repr(dd.build("samplers", given)) == shown
    read = dd.parts.read("samplers", given)
    assert read["reward"] == "own_rewards:calm" and dd.parts.read("samplers", read) == read
    assert [one.kind for one in dd.parts.origins("samplers", read)] == ["own_rewards:calm"]
    assert dd.build("samplers", values(ramp)).reward is ramp


def test_a_reward_that_is_none_is_refused_by_its_place(module):
    refused_with(build=lambda reward: dd.build("samplers", values(reward)))(r"""
        build("own_rewards:clam") | ValueError
            | samplers.reward: 'own_rewards:clam': .* has no 'clam'
        build("own_rewards:nothing")
            | ValueError
                | samplers.reward: must be a function, or package.module:object of one, got 'own_rew
        build("calm") | ValueError | samplers.reward: 'calm' must be package.module:object
        build(3) | ValueError
            | samplers.reward: must be a function, or package.module:object of one, got 3
        build(None) | ValueError | samplers.reward: must be a function, .* got None
    """)


def test_third_party_rewards_are_not_imported(module):
    with (
        dd.registry.trusting([]),
        pytest.raises(PermissionError, match=r"own_rewards:calm.*--trust own_rewards"),
    ):
        dd.parts.read("samplers", values() | {"kind": "particles"})


def test_registered_and_made_from_a_short_string(module):
    assert "particles" in dd.registry.available("samplers")
    built = dd.build("samplers", "particles:sampler=psi:0.5,reward=own_rewards:calm,number=8")
    assert built.number == 8 and built.sampler.kappa == 0.5 and built.reward.__name__ == "calm"
