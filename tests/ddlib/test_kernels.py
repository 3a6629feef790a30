"""The fused output layer and loss: equal to the loss on materialised logits, values and
gradients.
"""

import pytest
import torch
from cases import examples
from fused_loss_inputs import (
    F64,
    NESTED,
    agree,
    agree_on_mean,
    agree_under_autocast,
    agree_when_compiled,
    batch,
    close,
    logits_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.processes import EVERY_KIND

import ddlib as dd
from ddlib.kernels import fused
from ddlib.testing import strategies

MANY = EVERY_KIND | {
    "four-levels": dd.presets.hdlm_levels(NESTED),
    "xi-above": dd.presets.hdlm_levels(NESTED, xi=[1.0, 0.8, 1.0]),
    "xi-below": dd.presets.hdlm_levels(NESTED, xi=[0.7, 1.0, 1.0]),
}
every = pytest.mark.parametrize("process", MANY.values(), ids=MANY)
both = pytest.mark.parametrize("parameterization", ["cavity", "posterior"])


@every
@both
@pytest.mark.parametrize("chunk, stripe", [(None, 512), (11, 3)])
def test_nelbo_of_hidden_states_is_nelbo_of_their_logits(
    monkeypatch, process, parameterization, chunk, stripe
):
    monkeypatch.setattr(fused, "_STRIPE", stripe)
    (hidden, weight, bias), noisy = layer, _ = batch(process)
    slope = torch.randn(noisy[0].shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    ours = dd.nelbo(
        process,
        dd.Hidden(hidden, weight, bias, chunk=chunk),
        *noisy,
        parameterization=parameterization,
    )
    theirs = dd.nelbo(process, logits_of(layer), *noisy, parameterization=parameterization)
    close([ours], [theirs])
    close(
        torch.autograd.grad((ours * slope).sum(), layer),
        torch.autograd.grad((theirs * slope).sum(), layer),
    )


@settings(max_examples=examples(60))
@given(
    strategies.processes(),
    st.integers(0, 99),
    st.sampled_from(["cavity", "posterior"]),
    st.integers(1, 60),
    st.sampled_from([3, 512]),
)
def test_drawn_processes(process, seed, parameterization, chunk, stripe):
    layer, noisy = batch(process, seed=seed, rows=4, length=3)
    theirs = dd.nelbo(process, logits_of(layer), *noisy, parameterization=parameterization)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_STRIPE", stripe)
        ours = dd.training_loss(
            process,
            dd.Hidden(*layer[:2], layer[2], chunk=chunk),
            *noisy,
            parameterization=parameterization,
        )
        agree_on_mean(ours, theirs, layer)


OPTIONS = {
    "clip": dict(weighting=dd.weightings.Clip(3.0, low=0.5)),
    "hard": dict(mode="hard"),
    "levels": dict(weighting=dd.weightings.PerLevel([2.0, 0.5], dd.weightings.Clip(2.0))),
    "hard-posterior": dict(mode="hard", parameterization="posterior"),
}
CLUSTERS = {
    "plain": dd.presets.hdlm([0, 0, 1, 1, 2, 3, 3, 4]),
    "xi": dd.presets.hdlm([0, 0, 1, 1, 2, 3, 3, 4], xi=0.8),
}
LEVELS = {
    "levels": dd.presets.hdlm_levels(NESTED[:2]),
    "levels-xi": dd.presets.hdlm_levels(NESTED[:2], xi=[1.0, 0.8]),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("process", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("padding", [False, True])
def test_every_option_of_the_training_loss(process, options, padding):
    layer, noisy = batch(process)
    if padding:
        mask = torch.rand(noisy[0].shape, generator=torch.Generator().manual_seed(2)) < 0.6
        options = options | dict(mask=mask)
    for reduction in ("mean", "none"):
        agree(process, layer, noisy, **options, reduction=reduction)
    total = dd.training_loss(
        process, dd.Hidden(*layer[:2], layer[2]), *noisy, **options, reduction="sum"
    )
    close(
        [total],
        [dd.training_loss(process, logits_of(layer), *noisy, **options, reduction="none").sum()],
    )


@pytest.mark.parametrize("process", LEVELS.values(), ids=LEVELS)
@both
def test_hard_mode_of_several_levels(process, parameterization):
    """Below the mask a posterior's tokens are those under the state alone.

    A cavity's are all tokens.
    """
    agree(process, *batch(process), mode="hard", parameterization=parameterization)


@pytest.mark.parametrize("name", ["masked", "gidd", "levels", "levels-xi", "ring"])
def test_gradients_by_finite_differences(name):
    process = MANY[name]
    layer, noisy = batch(process, rows=3, length=2, dim=3)
    assert torch.autograd.gradcheck(
        lambda h, w, b: dd.nelbo(process, dd.Hidden(h, w, b), *noisy), layer
    )
    assert torch.autograd.gradcheck(
        lambda h, w, b: dd.training_loss(process, dd.Hidden(h, w, b), *noisy), layer
    )


@every
def test_float32(process):
    agree(process, *batch(process, dtype=torch.float32), 1e-5, weighting=dd.weightings.Clip(5.0))


@pytest.mark.parametrize("per_token", [False, True])
def test_a_scale_and_the_loss_of_every_token(per_token):
    process = MANY["levels"]
    layer, noisy = batch(process)
    scale = torch.rand(noisy[0].shape, dtype=F64) if per_token else torch.tensor(0.25)
    clip = dd.weightings.Clip(3.0)
    ours, each = dd.summed_loss(process, dd.Hidden(*layer), *noisy, scale, clip)
    same, plain = dd.summed_loss(process, logits_of(layer), *noisy, scale, clip)
    theirs = dd.training_loss(
        process, logits_of(layer), *noisy, weighting=dd.weightings.Clip(3.0), reduction="none"
    )
    close([each, plain], [theirs, theirs])
    assert not each.requires_grad and not plain.requires_grad
    wanted = (theirs * scale).sum()
    close([ours, same], [wanted, wanted])
    close(torch.autograd.grad(ours, layer), torch.autograd.grad(wanted, layer))


@pytest.mark.parametrize("stripe", [512, 3])
def test_without_a_bias_and_without_gradients(monkeypatch, stripe):
    monkeypatch.setattr(fused, "_STRIPE", stripe)
    process = MANY["levels"]
    (hidden, weight, _), noisy = batch(process)
    theirs = dd.training_loss(process, hidden @ weight.T, *noisy)
    close([dd.training_loss(process, dd.Hidden(hidden, weight), *noisy)], [theirs])
    with torch.no_grad():
        close([dd.training_loss(process, dd.Hidden(hidden, weight), *noisy)], [theirs])
    frozen = dd.training_loss(process, dd.Hidden(hidden, weight.detach()), *noisy)
    close(torch.autograd.grad(frozen, hidden), torch.autograd.grad(theirs, hidden))


@pytest.mark.parametrize("name", ["masked", "levels", "levels-xi", "gidd"])
def test_under_autocast_matrix_products_are_in_bfloat16_and_the_gradients_float32(name):
    agree_under_autocast(MANY[name], *batch(MANY[name], rows=40))


# dynamo itself looks at .grad of what it hands over a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_only_one_graph_break_under_compile():
    process = MANY["levels"]
    layer, noisy = batch(process, dtype=torch.float32)

    def step(hidden, weight, bias):
        hidden = torch.tanh(hidden * 2)
        return 3 * dd.training_loss(process, dd.Hidden(hidden, weight, bias), *noisy)

    agree_when_compiled(step, layer, 1e-6, 1e-5)


def test_tokens_need_no_logit_and_a_cluster_only_its_own():
    process = MANY["four-levels"]
    layer, (x, z, t) = batch(process, rows=200)
    used = torch.zeros(process.num_states, process.vocab_size)
    for state in range(process.num_states):
        here = z == state
        if here.any():
            loss = dd.nelbo(process, dd.Hidden(*layer[:2]), x, z, t)[here].sum()
            used[state] = torch.autograd.grad(loss, layer[1])[0].abs().sum(1)
    hierarchy = process.hierarchy
    for level in range(1, hierarchy.depth + 1):
        under = hierarchy.between(0, level).matrix()
        for member in range(hierarchy.levels[level]):
            needed = used[hierarchy.offsets[level] + member] > 0
            assert not (needed & (under[:, member] == 0)).any()
    assert (used[: process.vocab_size] == 0).all() and (used[-1] > 0).all()


class Doubled:
    """Twice the divergence, for a subclass."""

    def weighted_divergence(self, logits, x, z, t):
        weight, divergence = super().weighted_divergence(logits, x, z, t)
        return weight, 2 * divergence


class DoubledMasks(Doubled, dd.processes.Masked):
    """Masks whose bound is not that of the fused rule."""


class DoubledNoise(Doubled, dd.processes.Uniform):
    """Uniform noise whose bound is not that of the fused rule."""


@pytest.mark.parametrize("kind", [DoubledMasks, DoubledNoise])
def test_a_subclass_with_another_bound_loses_the_fused_rule(kind, monkeypatch):
    process, plain = (cls(5, dd.schedules.Linear()) for cls in (kind, kind.__mro__[2]))
    (hidden, weight, bias), noisy = layer, _ = batch(process)
    close(
        [dd.nelbo(process, dd.Hidden(hidden, weight, bias), *noisy)],
        [dd.nelbo(process, logits_of(layer), *noisy)],
    )
    close(
        [dd.nelbo(process, dd.Hidden(hidden, weight, bias), *noisy)],
        [2 * dd.nelbo(plain, logits_of(layer), *noisy)],
    )
    monkeypatch.setattr(
        kind, "fused", kind.__mro__[2].fused, raising=False
    )  # the planted fault: a wrong statement
    close(
        [dd.nelbo(process, dd.Hidden(hidden, weight, bias), *noisy)],
        [dd.nelbo(plain, logits_of(layer), *noisy)],
    )


def fused_loss(**change):
    process = MANY["levels"]
    (hidden, weight, bias), (x, z, t) = batch(process)
    layer = dict(hidden=hidden, weight=weight, bias=bias, chunk=None)
    layer |= {name: change.pop(name) for name in layer if name in change}
    return dd.training_loss(process, dd.Hidden(**layer), x, z, t, **change)


test_bad_input_is_named = refuses(r"""
    fused_loss(hidden=torch.zeros(12, 7)) | ValueError
        | hidden has shape \(12, 7\), must be \(B, L, D\)
    fused_loss(weight=torch.zeros(3, 7)) | ValueError
        | weight has shape \(3, 7\), must be \(V, D\) = \(6, 7\)
    fused_loss(bias=torch.zeros(5)) | ValueError | bias has shape \(5,\), must be \(V,\) = \(6,\)
    fused_loss(reduction="max") | ValueError | reduction is 'max'
    fused_loss(mode="soft") | ValueError | mode is 'soft'
    fused_loss(chunk=0) | ValueError | chunk
    fused_loss(mode=[1.0]) | ValueError | mode has 1 factors, must have 3
    fused_loss(parameterization="joint") | ValueError | parameterization is 'joint'
""")


@every
@pytest.mark.parametrize("gap", [90.0, 300.0])
def test_gradients_in_float32_where_the_rightful_cluster_has_hardly_any_mass(process, gap):
    """Logits so far apart that probabilities underflow, against float64."""
    layer, noisy = batch(process, rows=6)
    with torch.no_grad():
        layer[2][0] += gap
    narrow = [tensor.detach().float().requires_grad_() for tensor in layer]
    theirs = dd.training_loss(process, logits_of(layer), *noisy)
    ours = dd.training_loss(process, dd.Hidden(*narrow[:2], narrow[2]), *noisy)
    close([ours], [theirs], 1e-5)
    close(torch.autograd.grad(ours, narrow), torch.autograd.grad(theirs, layer), 1e-5)


@every
def test_tokens_and_clusters_that_are_impossible_have_no_gradient(process):
    """A bias of minus infinity, for all tokens of a cluster where there are several clusters."""
    layer, (x, _, t) = batch(process, rows=6)
    gone = torch.arange(process.vocab_size) == 0
    if process.hierarchy is not None and process.hierarchy.levels[1] > 1:
        gone = process.hierarchy.maps[0].parents == 0
    x = torch.where(gone[x], int((~gone).nonzero()[0]), x)
    noisy = x, process.sample(x, t, torch.Generator().manual_seed(0)), t
    with torch.no_grad():
        layer[2][gone] = -torch.inf
    agree(process, layer, noisy)


@pytest.mark.parametrize(
    ("width", "processors", "rows"), [(768, 132, 5632), (1024, 132, 4224), (128, 132, 16896)]
)
def test_a_wave_has_a_tile_for_every_multiprocessor(width, processors, rows):
    assert fused.rows_of_wave(width, processors) == rows
    tiles = rows // 128 * -(-width // 256)
    assert processors - -(-width // 256) < tiles <= processors


@given(
    columns=st.integers(1, 200_000),
    wave=st.sampled_from([1, 128, 4224, 5632, 16896]),
    logits=st.integers(1, 1 << 28),
)
def test_chunks_hold_whole_waves_within_the_budget(columns, wave, logits):
    budget = fused.Budget(logits, 3 * logits, wave)
    rows = budget.rows(columns)
    assert rows >= 1
    assert rows % wave == 0 or wave * columns > budget.most
    assert rows * columns <= max(budget.most, columns)


def test_rows_of_logits_are_aligned_and_have_no_more_columns():
    space = fused.Budget(1, 1, aligned=64).space(torch.zeros(3, 5), 7, 100)
    assert space.shape == (7, 100) and space.stride() == (128, 1)


def test_gradients_of_parameters_are_rounded_once_under_autocast():
    """The gradient of a float32 matrix is a sum over chunks, which bfloat16 cannot hold."""
    process = dd.presets.mdlm(50)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(50, (4, 16), generator=generator)
    t = torch.full((4,), 0.9)
    z = process.sample(x, t, generator)
    hidden = torch.randn(4, 16, 8, generator=generator, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = dd.Hidden(hidden, weight, chunk=400)
        dd.training_loss(process, output, x, z, t).mean().backward()
    assert weight.grad.dtype == hidden.grad.dtype == torch.float32
    assert (weight.grad != weight.grad.bfloat16().float()).float().mean() > 0.5
    wide = torch.autograd.grad(
        dd.training_loss(process, dd.Hidden(hidden, weight), x, z, t).mean(), weight
    )[0]
    assert (weight.grad - wide).norm() < 0.02 * wide.norm()


def test_gradients_in_float16_need_the_scale_of_the_loss():
    """Without it gradients of a mean over a million tokens are subnormal, and the scale itself
    is beyond float16.
    """
    process = MANY["levels"]
    [hidden, weight, bias], noisy = batch(process, rows=40)
    layer = [part.detach().float().requires_grad_() for part in (hidden, weight, bias)]
    options = {"weighting": dd.weightings.Clip(5.0)}
    sums = {}
    seen = []
    for observe in (None, lambda columns, index, probs: seen.append(index)):
        with torch.autocast("cpu", torch.float16):
            output = dd.Hidden(*layer, observe=observe)
            loss, _ = dd.summed_loss(process, output, *noisy, 2**-20, **options)
        sums[observe] = torch.autograd.grad(2.0**17 * loss, layer)
    exact, _ = dd.summed_loss(process, logits_of(layer), *noisy, 2**-3, **options)
    expected = torch.autograd.grad(exact, layer)
    for ours in sums.values():
        for one, other in zip(ours, expected, strict=True):
            assert (one - other).norm() < 2e-3 * other.norm()
    assert len(torch.cat(seen)) == len(torch.cat(seen).unique()), "rows are read once"


def test_float64_stays_float64_under_autocast():
    """As in products of torch."""
    layer, noisy = batch(MANY["masked"])
    with torch.autocast("cpu", torch.bfloat16):
        agree(MANY["masked"], layer, noisy, 1e-12)
