"""What particles refuse, what rewards may return, and what both are made from."""

import math
import sys

import pytest
import torch
import yaml
from rewards import PAIR, TREE, ramp

import ddlib as dd
from ddlib.processes import Uniform
from ddlib.samplers import Ancestral, Corrected, Euler, FirstHitting, Gibbs, Particles, Psi, SelfCorrection
from ddlib.samplers.particles import Constant
from ddlib.schedules import Linear
from ddlib.testing.oracle import exact_cavity


def never(z, t):
    raise AssertionError("the network was asked")


def asked(reward, process=TREE, steps=3, **options):
    sampler = Particles(Ancestral(), reward, **{"number": 2, **options})
    generator = torch.Generator().manual_seed(0)
    return dd.sample(process, exact_cavity(process, PAIR), (3, 2), sampler, steps, generator=generator)


def only(value, row, particle, after=0.5):
    """A reward of 0 but for one particle of one row, from some time on."""

    def reward(z, t):
        said = torch.zeros_like(t, dtype=torch.float64)
        said[2 * row + particle] = value if float(t[0]) <= after else 0.0
        return said

    return reward


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Particles(ramp, ramp), TypeError, r"sampler is <function ramp.*>, must be a ddlib.samplers.Sampler"),
        (lambda: Particles(Particles(Psi(), ramp), ramp), TypeError, r"sampler is Particles\(.*must not be particles"),
        (lambda: Particles(Psi(), None), TypeError, r"reward is None, must be a function \(z, t\) -> \(N,\)"),
        (lambda: Particles(Psi(), Constant), TypeError, r"reward is <class .*Constant'>, must be a function"),
        (lambda: Particles(Psi(), "calm"), TypeError, "reward is 'calm', must be a function"),
        (lambda: Particles(Psi(), ramp, 0), ValueError, "number is 0, must be at least 1"),
        (lambda: Particles(Psi(), ramp, 2.5), TypeError, "number is 2.5, must be an int"),
        (lambda: Particles(Psi(), ramp, ess=1.1), ValueError, r"ess is 1.1, must be in \[0, 1\]"),
        (lambda: Particles(Psi(), ramp, ess=-0.1), ValueError, r"ess is -0.1, must be in \[0, 1\]"),
        (lambda: Particles(Psi(), ramp, scale=math.inf), ValueError, "scale is inf, must be finite"),
        (lambda: Particles(Psi(), ramp, scale=math.nan), ValueError, "scale is nan, must be finite"),
        (lambda: Particles(Psi(), ramp, scale="big"), TypeError, "scale is 'big', must be a number finite"),
        (
            lambda: Corrected(Particles(Psi(), ramp), Gibbs()),
            TypeError,
            "predictor is Particles.*take Corrected inside",
        ),
        (lambda: asked(lambda z, t: 1.0), TypeError, r"reward\(z, t\) is 1.0, must be a tensor \(N,\) of real numbers"),
        (lambda: asked(lambda z, t: t * 1j), TypeError, "must be a tensor .* of real numbers"),
        (lambda: asked(lambda z, t: z), ValueError, r"reward\(z, t\) has shape \(6, 2\), must be \(N,\) = \(6,\)"),
        (lambda: asked(lambda z, t: t[:3]), ValueError, r"reward\(z, t\) has shape \(3,\), must be \(N,\) = \(6,\)"),
        (
            lambda: asked(only(math.nan, 2, 1)),
            ValueError,
            "reward is nan for particle 1 of row 2 at step 1, must be finite, or -inf",
        ),
        (
            lambda: asked(only(math.inf, 1, 0, 1.0)),
            ValueError,
            "reward is inf for particle 0 of row 1 before the first step, must",
        ),
        (lambda: asked(only(1e300, 1, 0), scale=1e300), ValueError, "reward is 1e.300 for .*must scale . reward be"),
        (lambda: asked(only(-math.inf, 1, 0), scale=-1.0), ValueError, "reward is -inf for particle 0 of row 1"),
        (
            lambda: asked(lambda z, t: torch.where(torch.arange(6) // 2 == 1, -torch.inf, t)),
            ValueError,
            "reward is -inf for every particle of row 1 before the first step, must be finite for one of the 2",
        ),
        (
            lambda: dd.sample(Uniform(3, Linear()), never, (2, 2), Particles(FirstHitting(), ramp)),
            TypeError,
            "FirstHitting needs a process with levels.*Ancestral serves it",
        ),
    ],
)
def test_bad_input_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "said", [lambda z, t: z, lambda z, t: t + math.nan, lambda z, t: None, lambda z, t: t - math.inf]
)
def test_a_reward_that_will_not_do_is_refused_before_the_network_runs(said):
    with pytest.raises((TypeError, ValueError), match="reward"):
        dd.sample(TREE, never, (3, 2), Particles(FirstHitting(), said))


@pytest.mark.usefixtures("as_users_call")
def test_a_row_that_dies_on_the_way_is_named_with_its_step():
    def dies(z, t):
        return torch.where((torch.arange(6) // 2 == 2) & (t < 0.5), -torch.inf, 0.0)

    with pytest.raises(
        ValueError, match="reward is -inf for every particle of row 2 at step 1, must be finite for one"
    ):
        asked(dies)


def test_a_reward_may_be_whole_numbers_or_minus_infinity_for_some():
    assert asked(lambda z, t: (z == 1).sum(-1)).shape == (3, 2)
    assert asked(lambda z, t: (z < 3).all(-1)).shape == (3, 2)
    assert asked(only(-math.inf, 1, 0)).shape == (3, 2)
    assert asked(only(-math.inf, 1, 0), ess=0.0).shape == (3, 2)
    assert asked(lambda z, t: torch.full_like(t, -torch.inf), scale=0.0).shape == (3, 2)


def test_what_it_says_of_itself():
    inner = Corrected(Ancestral(), SelfCorrection(steps=9))
    particles = Particles(inner, ramp, 8, scale=2)
    assert (particles.max_model_calls, particles.max_finalize_calls) == (
        inner.max_model_calls,
        inner.max_finalize_calls,
    )
    assert repr(Particles(Psi(), ramp)) == (
        "Particles(sampler=Psi(kappa=0.98, force_transition=False), reward=ramp, number=4, ess=0.5, scale=1.0)"
    )
    assert "reward=Constant()" in repr(Particles(Psi(), Constant()))
    exact = [Particles(FirstHitting(), *given) for given in ((Constant(),), (ramp, 2, 0.5, 0.0), (ramp,))]
    assert [one.consistent_joint for one in exact] == [one.exact_marginals for one in exact] == [True, True, False]
    assert not Particles(Euler(), Constant()).exact_marginals and not exact[0].on_time_grid


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
    given = yaml.safe_load(
        "{kind: 'ddlib.samplers:Particles', sampler: {kind: psi, kappa: 0.5}, reward: 'own_rewards:calm', number: 8}"
    )
    built = dd.build("samplers", given)
    assert repr(built) == (
        "Particles(sampler=Psi(kappa=0.5, force_transition=False), reward=calm, number=8, ess=0.5, scale=1.0)"
    )
    read = dd.parts.read("samplers", given)
    assert read["reward"] == "own_rewards:calm" and dd.parts.read("samplers", read) == read
    assert [one.kind for one in dd.parts.origins("samplers", read)] == ["own_rewards:calm"]
    assert dd.build("samplers", values(ramp)).reward is ramp


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("own_rewards:clam", r"samplers.reward: 'own_rewards:clam': .* has no 'clam'"),
        ("own_rewards:nothing", r"samplers.reward: must be a function, or package.module:object of one, got 'own_rew"),
        ("calm", r"samplers.reward: 'calm' must be package.module:object"),
        (3, r"samplers.reward: must be a function, or package.module:object of one, got 3"),
        (None, r"samplers.reward: must be a function, .* got None"),
    ],
)
def test_a_reward_that_is_none_is_refused_by_its_place(module, given, said):
    with pytest.raises(ValueError, match=said):
        dd.build("samplers", values(given))


def test_strangers_rewards_are_not_imported(module):
    with dd.registry.trusting([]), pytest.raises(PermissionError, match=r"own_rewards:calm.*--trust own_rewards"):
        dd.parts.read("samplers", values() | {"kind": "particles"})


def test_registered_and_made_from_a_short_string(module):
    assert "particles" in dd.registry.available("samplers")
    built = dd.build("samplers", "particles:sampler=psi:0.5,reward=own_rewards:calm,number=8")
    assert built.number == 8 and built.sampler.kappa == 0.5 and built.reward.__name__ == "calm"
