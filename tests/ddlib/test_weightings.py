"""Weightings: what each rule makes of the bound's weights, in both losses."""

import copy
import pickle

import pytest
import torch
from cases import examples
from fused_loss_inputs import agree, batch, close
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import EVERY_KIND, F64

import ddlib as dd
from ddlib.processes.moments import grid
from ddlib.testing import strategies
from ddlib.verification.claims.objective import weighting as claims
from ddlib.weightings import Clip, Constant, Dynamic, Optimal, PerLevel, Weighting, is_bound


def evaluated(process, t, x=None):
    """States of some tokens at a time, and the bound's weight."""
    x = (
        torch.arange(process.vocab_size).repeat_interleave(process.num_states)[None]
        if x is None
        else x
    )
    z = torch.arange(process.num_states).repeat(process.vocab_size)[None]
    when = torch.tensor([t], dtype=F64)
    possible = process.likelihood(z, x, when)[0] > 0
    x = x[:, possible]
    z = z[:, possible]
    return process.loss_weight(x, z, when), x, z, when


def weights(weighting, process, t):
    weight, x, z, when = evaluated(process, t)
    return weighting(process, weight, x, z, when), weight, x, z


@settings(max_examples=examples(24))
@given(strategies.processes(), st.integers(0, 99), strategies.times)
def test_without_limits_a_clip_is_the_bound(process, seed, t):
    weight, x, z, when = evaluated(process, t)
    assert torch.equal(Clip()(process, weight, x, z, when), weight) and Clip().bound
    logits = torch.randn(1, x.shape[1], process.vocab_size, dtype=F64, generator=seeded(seed))
    loss = dd.training_loss(process, logits, x, z, when, Clip(), reduction="none")
    assert torch.allclose(loss, dd.nelbo(process, logits, x, z, when), rtol=1e-9)


RULES = {
    "clip": Clip(3.0, low=0.5),
    "constant": Constant(0.7),
    "optimal": Optimal(16),
    "levels": PerLevel([2.0, 0.5], Clip(2.0)),
    "dynamic": Dynamic(),
}
NOISE = {
    "hdlm": dd.presets.hdlm([0, 0, 1, 1, 2, 3, 3, 4]),
    "xi": dd.presets.hdlm([0, 0, 1, 1, 2, 3, 3, 4], xi=0.8),
}
NOISE |= {"gidd": dd.presets.gidd(6, 0.3)}
SERVED = [
    (n, r)
    for n in NOISE
    for r in RULES
    if (r != "dynamic" or n == "gidd") and (r != "levels" or n != "gidd")
]


@pytest.mark.parametrize(("noise", "rule"), SERVED)
@pytest.mark.parametrize("parameterization", ["cavity", "posterior"])
def test_the_fused_loss_uses_the_same_rule(noise, rule, parameterization):
    process = NOISE[noise]
    layer_of = batch(NOISE[noise])
    layer, noisy = layer_of
    given = dict(weighting=RULES[rule], parameterization=parameterization)
    plain = dd.training_loss(
        process, torch.nn.functional.linear(*layer), *noisy, **given, reduction="none"
    )
    bound = dd.nelbo(
        process, torch.nn.functional.linear(*layer), *noisy, parameterization=parameterization
    )
    weight = process.loss_weight(*noisy)
    factor = RULES[rule](process, weight, *noisy) / torch.where(weight > 0, weight, 1.0)
    close([plain], [factor * bound])
    agree(process, layer, noisy, **given)


def released(process, x, z, t, release):
    """The dynamic weights as releases 1.0 and 1.1 of the authors' code compute them, at the
    exponent 1.
    """
    time = t[:, None]
    is_x = z == x
    is_mask = z == process.vocab_size
    c = process.scale * (time * (1 - time)) ** 0.5  # for each token
    alpha = (1 - time) / (1 + process.vocab_size * c)
    noisiness = ((1 - alpha) / alpha).log() if release == "1.0" else torch.sigmoid(-time)
    kept = process.scale * (noisiness / 2).exp()
    return torch.where(is_x, kept, torch.where(is_mask, 2.0, 1.0)).clamp_max(2.0)


@pytest.mark.parametrize("release", ["1.0", "1.1"])
@pytest.mark.parametrize("p_uniform", [0.1, 0.6])
def test_dynamic_weights_are_those_of_gidds_code(release, p_uniform):
    process = dd.presets.gidd(7, p_uniform)
    for t in (1e-3, 0.2, 0.7, 1 - 1e-3):
        found, _, x, z = weights(Dynamic(released=release == "1.1"), process, t)
        assert torch.allclose(
            found, released(process, x, z, torch.tensor([t], dtype=F64), release), rtol=1e-9
        )
    at_half = {
        int(s): float(w)
        for s, w, token in zip(z[0], found[0], x[0], strict=True)
        if int(token) == 2
    }
    assert at_half[7] == 2.0 and at_half[0] == 1.0 and at_half[2] > 0


def test_dynamic_weights_scale_with_their_height_and_keep_to_it():
    process = dd.presets.gidd(3, 0.9)
    for t in (0.3, 1 - 1e-6):
        found = weights(Dynamic(5.0), process, t)[0]
        assert found.max() == 5.0
        if t == 0.3:
            assert torch.allclose(found, 2.5 * weights(Dynamic(2.0), process, t)[0])
    masked = dd.presets.gidd(3, 0.0)
    found, weight, _, z = weights(Dynamic(), masked, 0.3)
    assert (found[weight == 0] == 0).all() and (found[z == 3] == 2.0).all()


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("length", [1, 64])
def test_optimal_weights_make_every_time_as_loud(name, length):
    """In the middle of a cell of the table but for its floor: the second moment of a text's term,
    and the mean is 1.
    """
    process = EVERY_KIND[name]
    rule = Optimal(length)
    edges, middles = grid(process.device)
    factor = rule.factor(process, middles)
    mean, square = process.time_moments(middles)
    size = factor * (mean**2 * (1 - 1 / length) + square / length).sqrt()
    drawn = (
        process.time_density(length).density(middles)[1:-1] > 0.1
    )  # the floor is a thousandth of its mean
    assert drawn.sum() > 10
    loud = size[1:-1][drawn]
    assert torch.allclose(loud, loud[:1].expand_as(loud), rtol=2e-2)
    assert abs(float((factor * edges.diff()).sum()) - 1) < 1e-12


def test_a_long_text_leaves_masks_their_bound_and_one_token_the_root():
    """For masks m = 1 and E[w^2] = 1/t under the linear schedule."""
    masked = dd.presets.mdlm(4)
    t = grid(torch.device("cpu"))[1][40:-40]
    assert torch.allclose(Optimal(10**9).factor(masked, t), torch.ones_like(t), rtol=1e-2)
    root = Optimal().factor(masked, t) / t.sqrt()
    assert torch.allclose(root, torch.full_like(t, 1.5), rtol=1e-2)  # 1 / the mean of sqrt(t)


@pytest.mark.parametrize(
    ("rule", "process"), [(Optimal(), NOISE["hdlm"]), (Optimal(4), dd.presets.mdlm(5))], ids=repr
)
def test_optimal_weights_of_a_used_rule_that_is_copied_or_pickled_and_of_a_moved_process(
    rule, process
):
    t = torch.tensor([0.3, 0.7], dtype=F64)
    first = rule.factor(process, t)
    for again in (copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert repr(again) == repr(rule) and torch.equal(again.factor(process, t), first)
    assert torch.equal(rule.factor(copy.deepcopy(process), t), first)
    assert rule.factor(process, torch.tensor([0.0, 1.0], dtype=F64)).isfinite().all()


def test_each_rule_has_a_description():
    documented = {
        Clip(): "not clipped",
        Clip(2.0): "clipped at 2",
        Clip(10.0, low=0.5): "clipped at 10, no weight below 0.5",
        Clip(low=0.5): "no weight below 0.5",
        Constant(): "all weights 1",
        Dynamic(): "dynamic weights up to 2",
        Dynamic(released=True): "dynamic weights up to 2, as released",
        Optimal(): "equal magnitude at all times, for 1 token",
        PerLevel([2.0, 0.5], Clip(2.0)): "clipped at 2, levels times 2, 0.5",
    }
    assert {rule: rule.about for rule in documented} == documented
    assert [rule for rule in documented if rule.bound] == [next(iter(documented))]
    assert PerLevel([1.0, 1.0]).bound and not PerLevel([1.0], Clip(2.0)).bound
    assert repr(Clip(2.0)) == "Clip(high=2.0, low=0.0)" and repr(Optimal(5)) == "Optimal(length=5)"
    assert (
        repr(PerLevel([1.0], Constant()))
        == "PerLevel(factors=(1.0,), weighting=Constant(value=1.0))"
    )


class Odd(Weighting):
    """A user's rule that returns its argument."""

    def __init__(self, found):
        self.found = found

    def __call__(self, process, weight, x, z, t):
        return self.found(weight)


MASKS = dd.presets.mdlm(4)
ARGUMENTS = (torch.tensor([[0, 1]]), torch.full((1, 2), 4), torch.tensor([0.5]))
LOGITS = torch.zeros(1, 2, 4)
test_a_rule_that_gives_no_weights_is_named = refuses(r"""
    dd.training_loss(MASKS, LOGITS, *ARGUMENTS, Odd(lambda w: w[:, :1]))
        | ValueError | Odd\(.*shape \(1, 1\), must be that of z, \(1, 2\)
    dd.training_loss(MASKS, LOGITS, *ARGUMENTS, Odd(lambda w: -w)) | ValueError | weight -2.0
    dd.training_loss(MASKS, LOGITS, *ARGUMENTS, Odd(lambda w: w * torch.nan)) | ValueError
        | returns the weight nan
    dd.training_loss(MASKS, dd.Hidden(LOGITS, torch.eye(4)), *ARGUMENTS, weighting=Odd(lambda w:
        -w))
        | ValueError | weight -2\.0
""")


def test_a_custom_rule_is_verified_or_refuted():
    assert dd.verify(Odd(lambda w: w.sqrt())).ok
    report = dd.verify(Odd(lambda w: w + 1))
    assert not report.ok and "the weight where that of the bound is 0" in str(report)
    report = dd.verify(Odd(lambda w: w / w.mean()))  # depends on the batch
    assert report.failures[0].name == "one token"
    assert {type(one.process).__name__ for one in claims.runs(Dynamic())} == {"GIDD"}
    with pytest.raises(ValueError, match="supports none of masks"):
        claims.runs(PerLevel([1.0] * 9))


class Twice(Clip):
    """A user's rule that changes the weights of a class whose object declares them unchanged."""

    def __call__(self, process, weight, x, z, t):
        return 2 * super().__call__(process, weight, x, z, t)


class TwicePerLevel(PerLevel):
    def __call__(self, process, weight, x, z, t):
        return 2 * super().__call__(process, weight, x, z, t)


TO_MASK = torch.tensor([[-1.0, 0.0, 1.0], [0.5, -1.5, 1.0], [0.0, 0.0, 0.0]])
NO_CLOSED_FORM = dd.processes.RateMatrix(TO_MASK, dd.schedules.Linear(), 2)


@pytest.mark.parametrize("process", [MASKS, NO_CLOSED_FORM], ids=str)
@pytest.mark.parametrize(
    "rule", [Twice(), PerLevel([1.0], Twice()), TwicePerLevel([1.0])], ids=repr
)
def test_the_weights_of_a_subclass_are_those_of_the_loss(rule, process):
    vocabulary = process.vocab_size
    x = torch.tensor([[0, 1]])
    z = torch.full((1, 2), vocabulary)
    t = torch.tensor([0.5])
    logits = torch.tensor([0.3, 0.0, 1.0, -1.0])[:vocabulary].expand(1, 2, vocabulary)
    assert not is_bound(rule)
    for output in (logits, dd.Hidden(logits, torch.eye(vocabulary))):
        bound, loss = (dd.training_loss(process, output, x, z, t, each) for each in (None, rule))
        assert float(loss) == pytest.approx(2 * float(bound)) != 0


def test_a_subclass_that_keeps_or_states_the_weights_of_the_bound_is_the_bound():
    class Named(Clip):
        """Another name."""

    class Traced(Clip):
        bound = Clip.bound

        def __call__(self, process, weight, x, z, t):
            return super().__call__(process, weight, x, z, t)

    assert is_bound(None) and is_bound(Named()) and is_bound(Traced())
    assert not is_bound(Named(2.0)) and not is_bound(Constant()) and not is_bound(Twice(2.0))
    assert dd.verify(Twice()).ok and dd.verify(Traced()).ok
