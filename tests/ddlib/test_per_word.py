"""A rate per token: equal rates are masks, all follow the contract, and no shortcut assumes
levels.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with, refuses
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import LevelProcess, Masked, PerWord
from ddlib.schedules import Cosine, Geometric, Linear, Polynomial
from ddlib.testing import strategies
from ddlib.verification.framework.inputs import at, pairs
from ddlib.weightings import Clip

POWERS = [0.5, 2.0, 1.0, 1.5]

powers = st.lists(
    st.one_of(st.floats(0.2, 5.0), st.sampled_from([1.0, 1.0 + 1e-9])), min_size=1, max_size=6
)


def answers(process, t, p, scores):
    """Everything that a process answers at a time, for all tokens and states."""
    s = at(t / 2)
    time = at(t)
    x, z, _ = pairs(process, t)
    mask = torch.full((1, p.shape[1]), process.vocab_size)
    logits = scores.expand(*x.shape, -1)
    return {
        "marginal": process.marginal(torch.arange(process.vocab_size)[None], time),
        "transition": process.transition(t / 2, t),
        "rates": process.rate_matrix(t) / process.rate_matrix(t).abs().max(),
        "posterior": process.posterior(p, mask, time, s),
        "reverse rate": process.reverse_rate(p, mask, time),
        "prior_kl": process.prior_kl(x, time),
        "leaving": process.exit_rate(mask, time, p.log()),
        "weight": process.loss_weight(x, z, time),
        "bound": dd.nelbo(process, logits, x, z, time),
        "bound of posteriors": dd.nelbo(process, logits, x, z, time, parameterization="posterior"),
        "loss": dd.training_loss(process, logits, x, z, time, Clip(2.0), reduction="none"),
    }


@settings(max_examples=examples(40))
@given(st.data(), st.floats(0.2, 5.0), st.integers(1, 6), st.floats(1e-6, 1 - 1e-6))
def test_equal_powers_are_masks_on_a_faster_schedule(data, power, words, t):
    scores = data.draw(strategies.token_logits(1, 1, words)).log_softmax(-1)
    ours = answers(PerWord(Linear(), [power] * words), t, scores.exp(), scores)
    masks = answers(Masked(words, Polynomial(power)), t, scores.exp(), scores)
    for name, expected in masks.items():
        size = expected.abs().max().clamp_min(1.0)
        assert torch.allclose(ours[name] / size, expected / size, rtol=1e-12, atol=1e-12), name


@settings(max_examples=examples(60))
@given(st.data(), powers, strategies.all_schedules(), strategies.times)
def test_the_closed_form_is_the_sum_over_tokens(data, powers, schedule, t):
    process = PerWord(schedule, powers)
    x, z, time = pairs(process, t)
    scores = data.draw(strategies.token_logits(1, 1, len(powers))).expand(*x.shape, -1)
    for kind in ("cavity", "posterior"):
        closed = dd.nelbo(process, scores, x, z, time, "auto", kind)
        generic = dd.nelbo(process, scores, x, z, time, "generic", kind)
        unit = 1 + process.loss_weight(x, z, time)
        assert ((closed - generic).abs() <= 1e-10 * unit + 1e-8 * generic).all()


@pytest.mark.parametrize("sampler", ["Ancestral", "Euler", "Psi", "TauLeaping"])
def test_samplers_run_it(sampler):
    sampler = dd.contrib.Psi(0.7) if sampler == "Psi" else getattr(dd.samplers, sampler)()
    report = dd.verify(sampler, on=PerWord(Cosine(), [0.4, 3.0, 1.0, 1.5]))
    assert report.ok, report.refutation


@pytest.mark.statistical
@pytest.mark.parametrize("t", [0.3, 0.9])
def test_two_tokens_in_one_ancestral_step_to_the_data(t):
    """The time is informative about the masked token: at t slow tokens are rarely masked."""
    process = PerWord(Linear(), [0.3, 4.0])
    probs = torch.tensor([0.5, 0.5], dtype=F64)
    n = 20_000
    z = torch.full((n, 1), 2)
    landed = process.sample_given_level(
        probs.log().expand(n, 1, 2), z, at(t, n), at(0.0, n), None, seeded()
    )
    lost = probs * process.lost(at(t))[0]
    share = (landed == 1).double().mean()
    chance = lost[1] / lost.sum()
    assert abs(share - chance) < 5 * (chance * (1 - chance) / n).sqrt()
    assert not isinstance(process, LevelProcess)  # no level is drawn before the network has run


def test_the_loss_with_the_output_layer_in_it():
    torch.manual_seed(0)
    process = PerWord(Cosine(), POWERS)
    x = torch.randint(4, (3, 5))
    t = dd.sample_times(3)
    z = process.sample(x, t)
    hidden = torch.randn(3, 5, 8)
    weight = torch.randn(4, 8, requires_grad=True)
    fused = dd.training_loss(process, dd.Hidden(hidden, weight), x, z, t, weighting=Clip(2.0))
    plain = dd.training_loss(process, hidden @ weight.T, x, z, t, Clip(2.0))
    assert torch.allclose(fused, plain, rtol=1e-5)
    ours = torch.autograd.grad(fused, weight)[0]
    theirs = torch.autograd.grad(plain, weight)[0]
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_clipped_loss_is_still_minimised_by_the_posterior():
    """The weight depends on the time alone: clipped or not, the distribution of least loss is the
    same.
    """
    process = PerWord(Linear(), POWERS)
    t = at(0.05)
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=F64)
    chance = probs * process.lost(t)[0]
    x = torch.arange(4)[None]
    mask = torch.full((1, 4), 4)
    for clip in (None, Clip(2.0)):
        scores = (probs.log() + torch.zeros(4, dtype=F64)).requires_grad_()
        loss = dd.training_loss(process, scores.expand(1, 4, 4), x, mask, t, clip, reduction="none")
        (slope,) = torch.autograd.grad((chance * loss[0]).sum(), scores)
        assert slope.abs().max() < 1e-12


def test_a_reduction_keeps_the_slowest_and_the_fastest():
    torch.manual_seed(0)
    process = PerWord(Linear(), (0.1 + torch.rand(400) * 4).tolist())
    small = process.small_copy(6)
    assert small.vocab_size == 6 and small.schedule is process.schedule
    assert [float(small.powers[i]) for i in (0, -1)] == [
        float(process.powers.min()),
        float(process.powers.max()),
    ]


def test_a_large_vocabulary_is_verified_on_its_reduction():
    process = PerWord(Linear(), torch.linspace(0.3, 3.0, 3000, dtype=F64))
    report = dd.verify(process)
    assert report.ok and "reduction" in report.note, report.refutation


@pytest.mark.usefixtures("as_users_call")
def test_bad_powers_and_schedules_are_named():
    refused_with()(r"""
        PerWord(Linear(), [1.0, 0.0]) | ValueError | powers\[1\] is 0.0, must be in \[0.001, 1000\]
        PerWord(Linear(), [-1.0]) | ValueError | powers\[0\] is -1.0, must be
        PerWord(Linear(), [inf, 1.0]) | ValueError | powers\[0\] is inf, must be
        PerWord(Linear(), [1.0, nan]) | ValueError | powers\[1\] is nan, must be
        PerWord(Linear(), []) | ValueError | powers is empty
        PerWord(Linear(), 3.0) | TypeError | powers is 3.0, must be one positive number per token
        PerWord(Linear(), [[1.0], [2.0]]) | TypeError | powers\[0\] is \[1.0\], must be a number
        PerWord("linear", [1.0]) | TypeError | schedule is 'linear', must be a
    """)


def test_repr_and_properties():
    assert (
        repr(PerWord(Linear(), POWERS))
        == "PerWord(Linear(), vocab_size=4, powers=(0.5, 2.0, 1.0, 1.5))"
    )
    many = torch.linspace(0.5, 2, 100)
    assert len(repr(PerWord(Linear(), many))) < 70
    assert not isinstance(PerWord(Geometric(), POWERS), dd.typing.HasLevelWeights)


def test_powers_go_by_the_order_of_frequency():
    process = dd.presets.genmd4([5, 900, 5, 80, 0], ratio=9.0)
    found = process.powers.tolist()
    assert found[1] == pytest.approx(3.0) and found[4] == pytest.approx(1 / 3)
    assert found[0] == found[2] < found[3] < found[1]
    assert process.powers.log().mean() == pytest.approx(0.0, abs=1e-12)
    backwards = dd.presets.genmd4([5, 900, 5, 80, 0], ratio=1 / 9)
    assert torch.allclose(backwards.powers, 1 / process.powers)


def test_powers_of_one_token_and_of_equal_tokens_are_those_of_masks():
    for counts in ([7], [3, 3, 3]):
        assert dd.presets.genmd4(counts).powers.tolist() == [1.0] * len(counts)


test_bad_counts_are_named = refuses(r"""
    dd.presets.genmd4([3, -1], 4.0) | ValueError | counts holds -1, must be >= 0
    dd.presets.genmd4([[3, 1]], 4.0) | ValueError | counts has shape \(1, 2\), must be \(V,\)
    dd.presets.genmd4([3, 1], 0.0) | ValueError | ratio is 0.0, must be in \[0.01, 100\]
""")
