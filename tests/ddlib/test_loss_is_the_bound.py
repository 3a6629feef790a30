"""The training loss of a token is its bound, in every dtype of the logits and up to both ends of
time.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.calls import seeded

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord, RateMatrix, Uniform
from ddlib.schedules import Linear
from ddlib.testing import strategies
from ddlib.weightings import Clip, Constant, Optimal

F64 = torch.float64
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
REGISTERED = [
    example
    for name in dd.registry.built_in("processes")
    for example in dd.registry.get("processes", name).examples()
]


def one_way_ring(size):
    """Tokens that become the next at rate 2 and are masked at rate 1."""
    rates = torch.zeros(size + 1, size + 1, dtype=F64)
    rates[:size, :size] = 2 * torch.eye(size).roll(1, 1) - 3 * torch.eye(size)
    rates[:size, size] = 1
    return RateMatrix(rates, Linear(), size)


def real():
    """Processes of every registered class with many tokens."""
    parents = torch.arange(200) % 20
    powers = torch.linspace(0.5, 2.0, 100)
    return [
        Masked(1000, Linear()),
        Uniform(1000, Linear()),
        GIDD(1000, 0.1),
        one_way_ring(50),
        Hierarchical(Tree([parents], xi=0.9), Linear()),
        Noisy(Tree([parents]), Linear(), [0.1, 0.2]),
        PerWord(Linear(), powers),
    ]


REAL = real()


def fused(process, logits, x, z, t, **options):
    """The loss whose output layer is the identity."""
    layer = torch.eye(process.vocab_size, dtype=logits.dtype)
    return dd.training_loss(process, dd.Hidden(logits, layer), x, z, t, reduction="none", **options)


def noisy(process, t, seed):
    """Tokens and states at the time (1,), a position whose state is its token first.

    Logits in float64.
    """
    generator = seeded(seed)
    x = torch.randint(process.vocab_size, (1, 6), generator=generator)
    z = process.sample(x, t, generator)
    z = torch.cat([x[:, :1], z[:, 1:]], 1)
    z = torch.where(process.likelihood(z, x, t) > 0, z, process.sample(x, t, generator))
    logits = 3 * torch.randn(1, 6, process.vocab_size, dtype=F64, generator=generator)
    return logits, x, z


def agree(process, t, seed, dtype):
    """Compare both losses with the bound of the same logits."""
    t = torch.tensor([t], dtype=F64)
    logits, x, z = noisy(process, t, seed)
    logits = logits.to(dtype)
    bound = dd.nelbo(process, logits, x, z, t)
    assert torch.equal(dd.training_loss(process, logits, x, z, t, reduction="none"), bound)
    rounding = 1e-11 if dtype == F64 else 1e-4
    assert torch.allclose(
        fused(process, logits, x, z, t).to(bound.dtype), bound, rtol=rounding, atol=rounding
    )


@settings(max_examples=examples(80))
@given(
    st.one_of(strategies.processes(), st.sampled_from(REGISTERED)),
    strategies.times,
    st.integers(0, 99),
    st.sampled_from(DTYPES),
)
def test_without_a_weighting_the_loss_of_a_token_is_its_bound(process, t, seed, dtype):
    agree(process, t, seed, dtype)


@settings(max_examples=examples(40))
@given(st.sampled_from(REAL), strategies.times, st.integers(0, 99), st.sampled_from(DTYPES))
def test_with_many_tokens_too(process, t, seed, dtype):
    agree(process, t, seed, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("size", "t"), [(12, 1e-4), (18, 1e-3), (18, 0.01), (20, 0.01), (50, 1e-4)]
)
def test_a_state_that_the_token_hardly_leaves_has_its_loss(size, t, dtype):
    """The previous state of z is practically impossible given x: D(0, b) = b is not a multiple of
    its rate.
    """
    process = one_way_ring(size)
    x = torch.tensor([[2]])
    noise = x, x, torch.tensor([t], dtype=F64)
    logits = torch.zeros(1, 1, size, dtype=dtype)
    rate = torch.full((1, 1), 2 / (1 - t))  # of the uniform network, from the token before z
    for loss in (
        dd.nelbo(process, logits, *noise),
        dd.training_loss(process, logits, *noise, reduction="none"),
    ):
        assert torch.allclose(loss.float(), rate, rtol=1e-5)
    assert torch.allclose(fused(process, logits, *noise).float(), rate, rtol=1e-5)


@pytest.mark.parametrize(
    "weighting", [Clip(2.0), Clip(1e6, low=0.5), Constant(1.0), Optimal(8)], ids=str
)
@pytest.mark.parametrize("process", [one_way_ring(20), *REGISTERED], ids=str)
def test_a_weighting_has_one_result_in_every_dtype(process, weighting):
    for t in (1e-6, 1e-3, 0.5, 1 - 1e-6):
        t = torch.tensor([t], dtype=F64)
        logits, x, z = noisy(process, t, 1)
        logits = logits.bfloat16()
        exact = dd.training_loss(process, logits.double(), x, z, t, weighting, reduction="none")
        assert bool(exact.isfinite().all())
        weight = weighting(process, process.loss_weight(x, z, t), x, z, t)
        for dtype in DTYPES:
            given = logits.to(dtype)
            loss = dd.training_loss(process, given, x, z, t, weighting, reduction="none")
            assert loss.dtype == (F64 if dtype == F64 else torch.float32)
            for ours in (loss, fused(process, given, x, z, t, weighting=weighting)):
                assert bool(
                    ((ours.double() - exact).abs() <= 1e-4 * exact + 1e-6 * (1 + weight)).all()
                )


def test_a_weighting_keeps_the_loss_of_a_state_that_the_token_never_leaves():
    """Tokens drift from 0 to 2 and are masked.

    Given the token 1, state 1 was no other; a network may expect 0.
    """
    rates = torch.diag(torch.tensor([1.0, 1.0], dtype=F64), 1)
    rates = torch.block_diag(rates, torch.zeros(1, 1, dtype=F64))
    rates[:3, 3] = 0.5
    process = RateMatrix(rates - torch.diag(rates.sum(1)), Linear(), 3)
    x = torch.tensor([[1]])
    t = torch.tensor([0.3], dtype=F64)
    logits = torch.zeros(1, 1, 3, dtype=F64)
    rate = process.reverse_rate(logits.softmax(-1), x, t).sum()
    bound = dd.nelbo(process, logits, x, x, t)
    assert torch.allclose(bound, rate) and float(rate) > 0.1
    assert torch.allclose(process.loss_weight(x, x, t), rate)
    for weighting, factor in (
        (Clip(2.0), 1.0),
        (Clip(float(rate) / 4), 0.25),
        (Constant(1.0), 1 / float(rate)),
    ):
        assert torch.allclose(dd.training_loss(process, logits, x, x, t, weighting), factor * bound)


def test_the_fused_loss_of_a_confident_network_keeps_its_digits():
    """Near the data the loss is 1 - p(x) times a large weight, for logits that are far from 0."""
    process = GIDD(5, 0.2)
    x = torch.tensor([[4]])
    t = torch.tensor([1e-8], dtype=F64)
    logits = torch.tensor([[[0.0, 90.0, 5.0, 189.9, 200.0]]])
    exact = dd.nelbo(process, logits.double(), x, x, t)
    for loss in (dd.nelbo(process, logits, x, x, t), fused(process, logits, x, x, t)):
        assert torch.allclose(loss.double(), exact, rtol=0.02, atol=0)


def test_the_gradient_is_finite_where_a_state_is_practically_impossible():
    """Ratios to the probability of z overflow at states that never become z.

    Their gradient must not be NaN.
    """
    process = one_way_ring(30)
    x = torch.zeros(1, 1, dtype=torch.int64)
    noise = x, x, torch.tensor([1e-6], dtype=F64)
    logits = torch.zeros(1, 1, 30, requires_grad=True)
    for weighting in (None, Clip(2.0)):
        loss = dd.training_loss(process, logits, *noise, weighting, parameterization="posterior")
        (slope,) = torch.autograd.grad(loss, logits)
        assert bool(slope.isfinite().all()) and float(slope.abs().max()) > 0.01


def test_a_gradient_is_that_of_the_bound():
    process = one_way_ring(20)
    t = torch.tensor([0.01])
    x = torch.tensor([[2]])
    logits = torch.zeros(1, 1, 20, requires_grad=True)
    expected = torch.autograd.grad(dd.nelbo(process, logits, x, x, t).sum(), logits)[0]
    for weighting in (None, Clip(1e6)):
        found = torch.autograd.grad(dd.training_loss(process, logits, x, x, t, weighting), logits)[
            0
        ]
        assert bool(found.isfinite().all()) and torch.allclose(found, expected, rtol=1e-4)
    assert float(expected.abs().max()) > 0.1
