"""Guidance: the samplers that it supports, and their network calls."""

import pytest
import torch
from zoo.calls import at, seeded
from zoo.guidances import FOUR, free, guided, parts
from zoo.joints import follows
from zoo.networks import Halves, plain
from zoo.processes import F64, LEVELS
from zoo.samplers import serves

import ddlib as dd
from ddlib.guidance import ClassifierBased, ClassifierFree
from ddlib.guidance.small_networks import Lookup, Scale
from ddlib.processes import Uniform
from ddlib.samplers import (
    Ancestral,
    Confidence,
    FirstHitting,
    Particles,
)
from ddlib.schedules import Geometric
from ddlib.testing.oracle import exact_cavity
from ddlib.verification.claims.samplers.guidance import classifier, labelled_joint

EVERY = [
    dd.registry.get("samplers", kind).examples()[0] for kind in dd.registry.built_in("samplers")
]
SERVED = [
    (name, one)
    for name in ("masked", "tree", "uniform")
    for one in EVERY
    if serves(one, FOUR[name])
]


@pytest.mark.parametrize(
    ("name", "sampler"),
    SERVED,
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_every_sampler_that_serves_the_process_serves_its_guidance(name, sampler):
    process = FOUR[name]
    on = "tokens" if name == "uniform" else "states"
    for one in (
        free(name, on=on),
        ClassifierBased(process, Lookup(process, 1), Scale(process, 2), 2.0),
    ):
        assert bool((guided(one, sampler, steps=6) < 4).all())
        assert (
            guided(one, sampler, steps=6, prompt=torch.tensor([3, 0]))[:, :2].tolist()
            == [[3, 0]] * 4
        )


@pytest.mark.parametrize("name", ["xi", "uniform", "gidd"])
def test_step_distributions_without_token_probabilities_require_ancestral(name):
    guidance = free(name)
    assert guidance.has_step_distribution and bool((guided(guidance) < 4).all())
    assert guided(guidance, prompt=torch.tensor([3, 0]))[:, :2].tolist() == [[3, 0]] * 4
    with pytest.raises(TypeError, match=r"guides the distribution of the next state.*Ancestral"):
        dd.bound(guidance.process, guidance, torch.zeros(2, 3, dtype=torch.int64))


def test_particles_steer_as_the_sampler_inside_does():
    guidance = free("xi")
    tokens = guided(guidance, shape=(40, 5))
    assert torch.equal(
        guided(guidance, Particles(Ancestral(), lambda z, t: 0.0 * t, 1), shape=(40, 5)), tokens
    )
    wanted = Particles(Ancestral(), lambda z, t: 3.0 * (z == 2).sum(-1).double(), 8)
    assert (guided(guidance, wanted, shape=(40, 5)) == 2).sum() > 2 * (tokens == 2).sum()


@pytest.mark.parametrize("name", ["xi", "levels"])
def test_without_jumps_the_parts_are_not_called(name):
    guidance = free(name)
    grid = torch.cat([torch.ones(1), torch.linspace(1 - 1e-6, 1e-6, 25), torch.zeros(1)]).to(F64)
    whole = guided(guidance, shape=(4, 3), steps=grid, controls=[dd.controls.WholeBatch()])
    assert (
        guidance.conditional.calls < 15
        and guidance.conditional.rows == 4 * guidance.conditional.calls
    )
    rows = guidance.conditional.rows
    assert torch.equal(guided(guidance, shape=(4, 3), steps=grid), whole)
    assert guidance.conditional.rows - rows < rows


@pytest.mark.parametrize("name", ["tree", "uniform"])
def test_knobs_and_endings_go_with_a_guidance(name):
    guidance = free(name, on="tokens" if name == "uniform" else "states")
    endings = [dd.controls.EndOfText(3, least=2), dd.controls.Settled(entropy=0.5)]
    tokens = guided(
        guidance,
        temperature=lambda t: 0.5 + t,
        controls=[dd.controls.Truncation(min_p=0.05), *endings, dd.controls.Forbidden([1])],
        shape=(16, 6),
    )
    assert not bool((tokens == 1).any()) and not bool((tokens[:, :2] == 3).any())
    ended = guided(free("gidd"), controls=[dd.controls.EndOfText(3)], shape=(16, 6))
    assert bool((ended < 4).all())


def test_a_clean_end_that_is_not_exact_draws_tempered_tokens():
    process = Uniform(4, Geometric(0.2, 30.0))
    guidance = ClassifierFree(process, *parts(process), 2.0, "states")
    assert bool((guided(guidance) < 4).all())
    z = torch.tensor([[0, 1]])
    tokens = guidance.replace(on="tokens")
    assert torch.equal(guidance(z, at(0.0)), tokens(z, at(0.0)))


def test_a_conditional_that_goes_by_the_row_needs_whole_batches():
    process = FOUR["masked"]
    labels = torch.arange(4)

    def conditional(z, t):
        return 8 * torch.nn.functional.one_hot(labels, 4)[:, None].double().expand(*z.shape, -1)

    guidance = ClassifierFree(
        process, conditional, lambda z, t: torch.zeros(*z.shape, 4, dtype=F64), 2.0
    )
    assert guided(guidance, controls=[dd.controls.WholeBatch()]).tolist() == [
        [label] * 5 for label in range(4)
    ]


@pytest.mark.parametrize("name", ["masked", "levels"])
def test_split_denoisers_are_parts_like_others(name):
    process = LEVELS[name]
    halves = Halves(process)
    other = Lookup(process, 3)
    for on in ("tokens", "states"):
        guidance = ClassifierFree(process, halves, other, 2.0, on)
        hidden = guidance.replace(conditional=plain(halves))
        assert torch.equal(guided(guidance), guided(hidden))
    assert halves.whole == halves.calls > 0


def test_a_dit_is_guided():
    from ddlib_models import DiT

    process = FOUR["tree"]
    one, other = (DiT(process.num_states, 4, dim=16, depth=1, heads=2).eval() for _ in range(2))
    assert bool((guided(ClassifierFree(process, one, other, 1.5, "states")) < 4).all())
    wider = DiT(process.num_states, 5, dim=16, depth=1, heads=2).eval()
    with pytest.raises(
        ValueError,
        match=r"conditional has 4 columns and unconditional has 5 columns.*one vocabulary",
    ):
        ClassifierFree(process, one, wider, 1.5)


def test_a_guided_model_has_a_bound():
    for guidance in (free("masked"), free("levels"), free("uniform", on="tokens")):
        x = torch.randint(4, (8, 3), generator=seeded())
        value = dd.bound(
            guidance.process, guidance, x, seeded(1), parameterization=guidance.parameterization
        )
        assert bool(value.total.isfinite().all()) and bool((value.total >= 0).all())


FIRST = FirstHitting()
GIVEN = (
    ("masked", Confidence(), None),
    ("tree", Confidence(), None),
    ("levels", FIRST, None),
    ("xi", FIRST, "tokens"),
)


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "sampler", "on"), GIVEN, ids=str)
def test_a_classifier_gives_the_distribution_given_the_label(name, sampler, on):
    process = FOUR[name]
    joint = labelled_joint(4)
    guidance = ClassifierBased(
        process, exact_cavity(process, joint.sum(-1)), classifier(process, joint), on=on
    )
    steps = 2 * (len(process.levels) - 1)  # a jump each
    options = {"parameterization": guidance.parameterization, "generator": seeded()}
    tokens = dd.sample(process, guidance, (2000, 2), sampler, steps, **options)
    probs = joint[..., 0] / joint[..., 0].sum()
    assert follows(tokens, probs)
    assert (probs - joint.sum(-1)).abs().max() > 0.03  # the label is informative
