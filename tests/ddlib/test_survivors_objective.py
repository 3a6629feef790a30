"""What mutation testing found untested in objective; see tests/mutation/survivors.md."""

import pytest
import torch
from zoo import F64, PROCESSES, every_process, law, words

import ddlib as dd
from ddlib.processes import GIDD, Masked, Uniform
from ddlib.schedules import Linear, Symbolic
from ddlib.testing.oracle import states
from ddlib.weightings import Clip, PerLevel


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("formula", ["1 - t", "1 - t**4"])
def test_the_bound_is_finite_however_unlikely_the_noise_was(formula, dtype):
    """At t = 1e-10 the clock 1 - t**4 has moved by 1e-40, beyond float32; a redrawn word is possible all the same."""
    process = Uniform(3, Symbolic(formula))
    t = torch.tensor([1e-10], dtype=dtype)
    x, z = torch.tensor([[0, 0]]), torch.tensor([[0, 1]])
    for scale in (0.0, 5.0):
        logits = scale * torch.tensor([[[1.0, 0.0, -1.0]] * 2], dtype=dtype)
        value = dd.nelbo(process, logits, x, z, t)
        assert value.isfinite().all() and (value >= 0).all()


@every_process
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.6, 0.9)])
def test_the_bound_is_the_same_however_the_network_says_what_it_knows(process, interval):
    """The posterior of a fixed cavity law, said as a posterior, costs what the cavity costs, at both ends too."""
    x = words(process).expand(5, -1).contiguous()
    cavity = law(process, process.vocab_size).log().expand(5, -1, -1)

    def posterior(z, t):
        return dd.posterior_logits(process, cavity, z, t)

    def terms(denoiser, parameterization):
        generator = torch.Generator().manual_seed(0)
        return dd.bound(process, denoiser, x, generator, interval=interval, parameterization=parameterization)

    by_cavity, by_posterior = terms(lambda z, t: cavity, "cavity"), terms(posterior, "posterior")
    for name in ("diffusion", "prior", "reconstruction"):
        one, other = getattr(by_cavity, name), getattr(by_posterior, name)
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
    if interval[0] > 0:
        assert (by_cavity.reconstruction > 0).any() and (by_cavity.prior > 0).any()


@pytest.mark.usefixtures("as_users_call")
def test_factors_of_levels_have_a_stated_range():
    process = PROCESSES["levels"]
    logits, x, t = torch.zeros(1, 6, 6), words(process), torch.tensor([0.5])
    dd.training_loss(process, logits, x, x, t, weighting=PerLevel([0.0, 1e6, 1.0]))
    for bad in (-1e-3, 1e6 + 0.5, float("nan")):
        with pytest.raises(ValueError, match=r"^factors\[1\] is .*in \[0, 1e6\]"):
            PerLevel([1.0, bad, 1.0])


@every_process
def test_the_generic_bound_is_computed_in_float64_whatever_the_logits(process):
    x, t = words(process), torch.tensor([0.4], dtype=F64)
    logits = law(process, process.vocab_size).log().float()
    for z in (x, process.sample(x, t, torch.Generator().manual_seed(1))):
        ours = dd.nelbo(process, logits, x, z, t, "generic")
        assert torch.equal(ours, dd.nelbo(process, logits.double(), x, z, t, "generic").float())


@pytest.mark.parametrize("method", ["auto", "generic"])
@pytest.mark.parametrize("t", [0.1, 0.5, 0.95])
def test_a_network_that_rules_out_a_word_pays_infinitely_if_it_is_the_truth_and_only_then(method, t):
    t, x = torch.tensor([t], dtype=F64), torch.tensor([[0]])
    for process in (Masked(3, Linear()), Uniform(3, Linear()), GIDD(3, 0.0)):
        z = torch.tensor([[process.num_states - 1]])
        for excluded in (0, 1):
            logits = torch.zeros(1, 1, 3, dtype=F64).index_fill(-1, torch.tensor([excluded]), -torch.inf)
            value = dd.nelbo(process, logits, x, z, t, method)
            # a uniformly redrawn word says too little about the truth to be worth an infinity
            assert value.isposinf().item() == (excluded == 0 and not isinstance(process, Uniform))
            assert not value.isnan().any()


def loss_batch(process, seed=0, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(process.vocab_size, (16, 3), generator=generator)
    t = torch.rand(16, generator=generator, dtype=dtype) * 0.9 + 0.05
    z = process.sample(x, t, generator)
    logits = torch.randn(16, 3, process.vocab_size, generator=generator, dtype=dtype)
    return logits, x, z, t


@every_process
def test_what_training_clips_is_the_weight_of_the_closed_form(process):
    logits, x, z, t = loss_batch(process)
    if process.closed_form:
        parts = process.weighted_divergence(logits, x, z, t)
    else:  # then the rate at which z is left backwards in time, given the word
        one_hot = torch.nn.functional.one_hot(x, process.vocab_size).double()
        weight = process.reverse_rate(one_hot, z, t).sum(-1)
        parts = weight, torch.where(weight > 0, dd.nelbo(process, logits, x, z, t) / weight, 0.0)
    weight, divergence = parts
    for low, high in ((0.0, 0.5), (0.0, 2.0), (1.5, 3.0)):
        expected = torch.where(weight > 0, weight.clamp(low, high), 0.0) * divergence
        ours = dd.training_loss(process, logits, x, z, t, weighting=Clip(high, low=low), reduction="none")
        assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-12)


@every_process
def test_the_training_loss_takes_logits_of_either_meaning(process):
    logits, x, z, t = loss_batch(process)
    as_posterior = dd.posterior_logits(process, logits, z, t)
    one = dd.training_loss(process, logits, x, z, t, reduction="none")
    other = dd.training_loss(process, as_posterior, x, z, t, parameterization="posterior", reduction="none")
    assert torch.allclose(one, other, rtol=1e-7, atol=1e-9)


@every_process
def test_the_training_loss_keeps_the_precision_of_the_logits_and_computes_time_in_float64(process):
    logits, x, z, t = loss_batch(process, dtype=torch.float32)
    few = x % max(1, process.vocab_size - 1)  # never the last word
    keep = few == x
    ours = dd.training_loss(process, logits, x, z, t, reduction="none")
    assert ours.dtype == torch.float32
    exact = dd.training_loss(process, logits.double(), x, z, t.double(), reduction="none")
    assert torch.allclose(ours.double(), exact, rtol=2e-3, atol=1e-4)
    rows = keep.all(1)
    assert rows.any()
    part = dd.training_loss(process, logits[rows], x[rows], z[rows], t[rows], reduction="none")
    assert torch.allclose(part, ours[rows])
    time = dd.training_loss(process, logits.double(), x, z, t, reduction="none")
    assert torch.allclose(time, exact, rtol=1e-12, atol=1e-14)
    clipped = [
        dd.training_loss(process, logits.double(), x, z, when, weighting=dd.weightings.Clip(0.5), reduction="none")
        for when in (t, t.double())
    ]
    assert torch.allclose(*clipped, rtol=1e-12, atol=1e-14)


@every_process
def test_gradients_of_the_training_loss_are_finite_where_nothing_is_left_to_learn(process):
    logits, x, z, t = loss_batch(process)
    logits.requires_grad_()
    dd.training_loss(process, logits, x, z, t).backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


def test_padding_left_out_costs_nothing_token_by_token():
    process = PROCESSES["levels-xi"]
    logits, x, z, t = loss_batch(process)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.6
    every = dd.training_loss(process, logits, x, z, t, reduction="none")
    counted = dd.training_loss(process, logits, x, z, t, mask=mask, count_padding=True, reduction="none")
    left_out = dd.training_loss(process, logits, x, z, t, mask=mask, reduction="none")
    assert torch.equal(counted, every) and (every[~mask] > 0).any()
    assert torch.equal(left_out, torch.where(mask, every, 0.0))


def test_gidd_without_uniform_noise_is_clipped_like_masked_diffusion():
    """Words have weight 0 and no lower clip lifts them, though their divergence is not 0."""
    masked, gidd = dd.presets.mdlm(5), GIDD(5, 0.0)
    logits, x, z, t = loss_batch(masked)
    for clip in ((0.0, 2.0), (3.0, 9.0)):
        losses = [
            dd.training_loss(p, logits, x, z, t, weighting=Clip(clip[1], low=clip[0]), reduction="none")
            for p in (masked, gidd)
        ]
        assert (losses[1][z < 5] == 0).all()
        if clip[0] == 0:
            continue
        assert (losses[1][z == 5] > 0).all()


@pytest.mark.usefixtures("as_users_call")
def test_a_clip_may_be_below_one_and_not_zero():
    process = PROCESSES["masked"]
    logits, x, z, t = loss_batch(process)
    assert dd.training_loss(process, logits, x, z, t, weighting=dd.weightings.Clip(0.5)) > 0
    with pytest.raises(ValueError, match=r"^low is 0\.0, high 0\.0"):
        Clip(0.0)


@every_process
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.6, 0.9)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_bound_is_one_draw_of_the_integrand_and_its_two_ends(process, interval, dtype):
    x = words(process).expand(5, -1).contiguous()
    logits = law(process, process.vocab_size).log().to(dtype).expand(5, -1, -1)
    result = dd.bound(process, lambda z, t: logits, x, torch.Generator().manual_seed(0), interval=interval)
    generator = torch.Generator().manual_seed(0)
    t = dd.sample_times(5, generator=generator, interval=interval)
    z = process.sample(x, t, generator)
    width = interval[1] - interval[0]
    assert torch.allclose(result.diffusion, width * dd.nelbo(process, logits, x, z, t), rtol=1e-6)
    low, high = (torch.full((5,), v, dtype=t.dtype) for v in interval)
    last = high.clamp(max=1 - torch.finfo(high.dtype).eps / 2)
    assert torch.allclose(result.prior, process.prior_kl(x, last).to(dtype))
    if (process.likelihood(x, x, low) < 1).any():
        z = process.sample(x, low, generator)
        posterior = dd.posterior_logits(process, logits, z, low).softmax(-1)
        chance = posterior.gather(-1, x[..., None])[..., 0]
        assert torch.allclose(result.reconstruction, -chance.log(), rtol=1e-5, atol=1e-6)
    else:
        assert (result.reconstruction == 0).all()
    for term in (result.diffusion, result.prior, result.reconstruction, result.total):
        assert term.shape == x.shape and term.dtype == dtype
    assert torch.equal(result.total, result.diffusion + result.prior + result.reconstruction)


@every_process
def test_what_is_told_per_token_has_the_shape_of_the_tokens(process):
    for shape in ((1, 1), (1, 3), (3, 1), (2, 3)):
        x = torch.zeros(shape, dtype=torch.int64)
        t = torch.full(shape[:1], 0.5, dtype=F64)
        logits = torch.zeros(*shape, process.vocab_size)
        for value in (
            process.likelihood(x, x, t), process.prior_kl(x, t), process.prior_kl(x), process.level_of(x),
            dd.nelbo(process, logits, x, x, t), dd.nelbo(process, logits, x, x, t, "generic"),
            dd.reconstruction(process, logits, x, x, t), process.sample(x, t),
            dd.training_loss(process, logits, x, x, t, reduction="none"),
        ):  # fmt: skip
            assert value.shape == shape
        assert process.level_of(x).dtype == torch.int64
        assert process.prior().shape == (process.num_states,) and process.prior().dtype == F64


@every_process
@pytest.mark.usefixtures("as_users_call")
def test_the_objective_refuses_states_and_times_by_name(process):
    x, t = words(process), torch.tensor([0.5])
    logits = torch.zeros(1, process.vocab_size, process.vocab_size)
    for name, values in {"z": (x + 100, x.int()), "t": (t + 1, t * float("nan"), t.long(), t.expand(2))}.items():
        for value in values:
            arguments = {"z": x, "t": t, name: value}
            for call in (
                lambda z, t: dd.nelbo(process, logits, x, z, t),
                lambda z, t: dd.training_loss(process, logits, x, z, t),
                lambda z, t: dd.posterior_logits(process, logits, z, t),
            ):
                with pytest.raises((TypeError, ValueError), match=rf"^{name} (holds|has)"):
                    call(**arguments)


@every_process
def test_a_posterior_becomes_a_cavity_and_back_and_says_nothing_about_impossible_words(process):
    z, t = states(process), torch.tensor([0.5], dtype=F64)
    logits = law(process, process.num_states).log()
    for dtype in (torch.float32, F64):
        said = logits.to(dtype)
        assert torch.equal(dd.cavity_logits(process, said, z, t), said)
        cavity = dd.cavity_logits(process, said, z, t, "posterior")
        back = dd.posterior_logits(process, cavity, z, t)
        assert cavity.dtype == back.dtype == dtype and cavity.isfinite().all()
        evidence = process.token_likelihood(z, t)
        assert (cavity.softmax(-1)[evidence == 0] == 0).all() and back[evidence == 0].isneginf().all()
        possible = torch.where(evidence > 0, said, -torch.inf).softmax(-1)
        assert torch.allclose(back.softmax(-1), possible, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-7)
    assert dd.cavity_logits(process, logits.half(), z, t).dtype == torch.float32


@pytest.mark.parametrize("gap", [0.0, 30.0, 200.0])
def test_being_sure_of_another_word_near_the_data_costs_a_finite_amount(gap):
    """A word that was kept, t = 1e-10 on a clock that has moved by 1e-40, a network that is sure of another word."""
    process = Uniform(3, Symbolic("1 - t**4"))
    x, t = torch.tensor([[0]]), torch.tensor([1e-10], dtype=F64)
    logits = torch.tensor([[[0.0, gap, 0.0]]], dtype=F64)
    exact = dd.nelbo(process, logits, x, x, t)
    assert torch.allclose(exact, dd.nelbo(process, logits, x, x, t, "generic"), rtol=1e-6, atol=1e-18)
    assert dd.nelbo(process, logits.float(), x, x, t).isfinite().all()
