"""Losses of products from hidden states: each field by the fused loss of its process."""

import fused_loss_inputs
import pytest
import torch
from fused_loss_inputs import close, logits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.calls import seeded
from zoo.products import FOUR, LEVELS, MASKS, ODD, PRODUCTS, parts, tokens

import ddlib as dd
from ddlib.kernels.component_loss import ComponentLoss
from ddlib.kernels.dispatch import plan
from ddlib.objective.training import LossOptions
from ddlib.processes import Masked, Product
from ddlib.schedules import Linear
from ddlib.testing import strategies
from ddlib.weightings import Clip, Optimal

F64 = torch.float64
every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


def number_of_tokens(product):
    return sum(tokens for _, tokens in product.sizes)


def inputs(product, rows=6, seed=0, dtype=F64, shared=False, own=False, bias=True):
    """Hidden states, matrix, bias; tokens, states, times."""
    generator = seeded(seed)
    columns = product.vocab_size if shared else number_of_tokens(product)
    x = tokens(product, rows, seed)
    sizes = [(*x.shape, 7), (columns, 7), *[(columns,)] * bias]
    layer = [
        torch.randn(size, generator=generator, dtype=F64).to(dtype).requires_grad_()
        for size in sizes
    ]
    t = torch.rand(x.shape if own else rows, generator=generator, dtype=F64).clamp(0.02, 0.98)
    return layer, (x, product.sample(x, t, generator), t)


def exact(product, layer, noisy, scale=None, **options):
    """Loss of each token on logits in float64, and the gradients of their scaled sum."""
    wide = [tensor.detach().to(F64).requires_grad_() for tensor in layer]
    loss = dd.training_loss(product, logits_of(wide), *noisy, **options, reduction="none")
    total = loss.mean() if scale is None else (loss * scale).sum()
    return loss.detach(), torch.autograd.grad(total, wide)


@settings(deadline=None, max_examples=150)
@given(
    strategies.products(max_words=5),
    st.integers(0, 2**31),
    st.sampled_from([F64, torch.float32]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, Clip(2.0)]),
    st.data(),
)
def test_losses_and_gradients_are_those_of_the_logits(
    product, seed, dtype, own, shared, weighting, data
):
    layer, noisy = inputs(product, 5, seed, dtype, shared, own)
    options = dict(
        weighting=weighting,
        mode=data.draw(st.sampled_from(product.modes)),
        parameterization=data.draw(st.sampled_from(["cavity", "posterior"])),
    )
    tolerance = 1e-9 if dtype == F64 else 5e-5
    values, slopes = exact(product, layer, noisy, **options)
    hidden = dd.Hidden(*layer, chunk=data.draw(st.sampled_from([None, 3])))
    losses = dd.training_loss(product, hidden, *noisy, **options, reduction="none")
    summed, per_token = dd.summed_loss(product, hidden, *noisy, 1 / values.numel(), **options)
    close([losses, per_token, summed], [values, values, values.mean()], tolerance)
    for loss in (losses.mean(), summed):
        close(torch.autograd.grad(loss, layer), slopes, tolerance)


@every_product
@pytest.mark.parametrize("bias", [False, True])
def test_padding_and_factors_of_tokens_count(product, bias):
    layer, noisy = inputs(product, bias=bias)
    mask = torch.rand(noisy[0].shape, generator=seeded(4)) < 0.7
    scale = torch.rand(noisy[0].shape, generator=seeded(5), dtype=F64)
    values, slopes = exact(product, layer, noisy, scale, mask=mask)
    loss, per_token = dd.summed_loss(product, dd.Hidden(*layer), *noisy, scale, mask=mask)
    close([loss, per_token], [(values * scale).sum(), values])
    assert not per_token[~mask].any()
    close(torch.autograd.grad(loss, layer), slopes)


@every_product
def test_each_field_has_the_plan_of_its_process(product):
    _, (x, z, t) = inputs(product)
    options = LossOptions()
    whole = plan(product, x, z, t, options, F64)
    fields = {part.number: part for part in whole.blocks}
    for k, columns, process, first in parts(product):
        own = x[:, columns], z[:, columns] - first, t
        alone = plan(process, *own, options, F64)
        part = fields.pop(k)
        assert isinstance(part, ComponentLoss)
        assert [type(one) for one in part.parts] == [type(one) for one in alone.blocks]
        assert torch.equal(part.index, torch.arange(x.numel()).view_as(x)[:, columns].flatten())
        assert torch.equal(whole.weight.view_as(x)[:, columns].flatten(), alone.weight)
    assert not fields


@every_product
def test_a_planned_loss_of_fields_is_the_loss(product):
    layer, noisy = inputs(product)
    planned = dd.PlannedLoss.of(product, *noisy, Clip(2.0), dtype=F64)
    assert planned.parts.blocks
    results = []
    for one in (None, planned):
        loss = dd.training_loss(product, dd.Hidden(*layer, planned=one), *noisy, Clip(2.0))
        results.append([loss, *torch.autograd.grad(loss, layer)])
    assert all(map(torch.equal, *results))


def test_sizes_that_depend_on_no_state_give_the_loss():
    layer, noisy = inputs(FOUR)
    planned = dd.PlannedLoss.of(FOUR, *noisy, dtype=F64, whole=True)
    loss = dd.training_loss(FOUR, dd.Hidden(*layer, planned=planned), *noisy)
    close([loss], [dd.training_loss(FOUR, logits_of(layer), *noisy)])
    other = FOUR.sample(noisy[0], 1 - noisy[2], seeded(9))
    again = dd.PlannedLoss.of(FOUR, noisy[0], other, noisy[2], dtype=F64, whole=True)
    sizes = [
        [[len(block.rows) for block in part.parts] for part in one.parts.blocks]
        for one in (planned, again)
    ]
    assert sizes[0] == sizes[1]


def test_fields_may_differ_from_sequence_to_sequence():
    wide = torch.stack([FOUR.arguments()["fields"], FOUR.arguments()["fields"].flip(0)])
    product = FOUR.at_fields(wide)
    rows = [FOUR.at_fields(row) for row in wide]
    x = torch.cat([tokens(each, 1) for each in rows])
    t = torch.tensor([0.3, 0.8], dtype=F64)
    z = product.sample(x, t, seeded())
    layer, _ = inputs(FOUR, 2)
    values, slopes = exact(product, layer, (x, z, t))
    loss = dd.training_loss(product, dd.Hidden(*layer), x, z, t, reduction="none")
    close([loss, *torch.autograd.grad(loss.mean(), layer)], [values, *slopes])


def test_a_weighting_is_that_of_the_product():
    """Its factor depends on the moments of all fields."""
    for product in (FOUR, LEVELS):
        layer, noisy = inputs(product)
        values, _ = exact(product, layer, noisy, weighting=Optimal(7))
        loss = dd.training_loss(
            product, dd.Hidden(*layer), *noisy, weighting=Optimal(7), reduction="none"
        )
        close([loss], [values])


def test_probabilities_are_observed_by_position_and_token():
    layer, noisy = inputs(MASKS)
    x = noisy[0]
    seen = torch.full((*x.shape, MASKS.vocab_size), torch.nan, dtype=F64).flatten(0, 1)

    def observe(columns, rows, probs):
        seen[rows[:, None], torch.arange(MASKS.vocab_size)[columns]] = probs

    dd.training_loss(MASKS, dd.Hidden(*layer, observe=observe), *noisy)
    noise = MASKS.level_of(noisy[1]).flatten() == 1
    probs = MASKS.restrict_logits(logits_of(layer), noisy[1]).softmax(-1).flatten(0, 1)
    alphabet = probs > 0
    assert torch.equal(~seen.isnan(), alphabet & noise[:, None])
    assert torch.allclose(seen[noise].nan_to_num(0.0), probs[noise])


@pytest.mark.usefixtures("as_users_call")
def test_a_layer_for_other_alphabets_is_refused():
    layer, noisy = inputs(ODD)
    hidden, weight, bias = layer
    number = number_of_tokens(ODD)
    with pytest.raises(ValueError, match=rf"weight has shape \({number - 1}, 7\), must be"):
        dd.training_loss(ODD, dd.Hidden(hidden, weight[1:]), *noisy)
    with pytest.raises(ValueError, match=r"bias has shape \(3,\), must be"):
        dd.training_loss(ODD, dd.Hidden(hidden, weight, bias[:3]), *noisy)
    with pytest.raises(ValueError, match=r"mode has 3 factors, must have 1: field 'masks', one"):
        layer, noisy = inputs(LEVELS)
        dd.training_loss(LEVELS, dd.Hidden(*layer), *noisy, mode=[1.0, 1.0, 1.0])


def test_hidden_states_in_half_precision():
    layer, noisy = inputs(FOUR)
    fused_loss_inputs.agree_under_autocast(FOUR, layer, noisy)


def test_one_field_alone_is_its_process():
    process = Masked(5, Linear())
    layer, noisy = fused_loss_inputs.batch(process)
    alone = Product({"only": process})
    losses = [
        dd.training_loss(one, dd.Hidden(*layer), *noisy, reduction="none")
        for one in (process, alone)
    ]
    assert torch.equal(*losses)
