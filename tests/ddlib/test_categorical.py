"""Categorical draws: the inverse CDF, exactly.

Never an impossible index; the tail in full; no float64 copy.
"""

import math

import pytest
import scipy.stats
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddlib.utils.categorical import draw, draw_logits

LAST = 1 - 2**-53  # the largest uniform there is
V = 50_257
ROWS = 24


def cumulative(weights):
    """Reference: the normalised CDF below and above each index, in float64."""
    upper = weights.to(torch.float64).cumsum(-1)
    return torch.cat([torch.zeros_like(upper[..., :1]), upper[..., :-1]], -1) / upper[
        ..., -1:
    ], upper / upper[..., -1:]


def contains(weights, u, index, tolerance):
    """True for each u in its index's slice of the CDF, widened by ``tolerance``."""
    below, above = (edge.gather(-1, index[:, None])[:, 0] for edge in cumulative(weights))
    return (u >= below - tolerance) & (u <= above + tolerance)


@st.composite
def weights_and_uniforms(draw_):
    """Weights of 1 to 400 states over many orders of magnitude, some zero, at least one not.

    And uniforms.
    """
    count = draw_(st.integers(1, 400))
    generator = torch.Generator().manual_seed(draw_(st.integers(0, 2**31)))
    weights = torch.randn(ROWS, count, generator=generator, dtype=torch.float64)
    weights = torch.exp(draw_(st.sampled_from([0.0, 1.0, 5.0])) * weights)
    zeros = torch.rand(ROWS, count, generator=generator) < draw_(st.sampled_from([0.0, 0.5, 0.95]))
    keep = torch.randint(0, count, (ROWS, 1), generator=generator)
    u = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    u[:5] = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-24, LAST])
    return weights.masked_fill(zeros.scatter(1, keep, False), 0.0), u


@settings(max_examples=examples(100))
@given(weights_and_uniforms(), st.sampled_from([torch.float64, torch.float32]))
def test_draw_inverts_the_cumulative_distribution_and_never_returns_zero_weight(inputs, dtype):
    weights = inputs[0].to(dtype)
    u = inputs[1]
    index = draw(weights, u)
    assert bool((weights.gather(1, index[:, None]) > 0).all())
    assert bool(contains(weights, u, index, 1e-14 if dtype == torch.float64 else 1e-6).all())


@settings(max_examples=examples(100))
@given(
    weights_and_uniforms(),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_draw_logits_is_draw_of_the_softmax(inputs, dtype):
    logits = inputs[0].log().to(dtype)
    u = inputs[1]
    exact = logits.to(torch.float64).softmax(-1)
    index = draw_logits(logits, u)
    assert bool((exact.gather(1, index[:, None]) > 0).all())
    assert bool(contains(exact, u, index, 1e-14 if dtype == torch.float64 else 1e-6).all())


@settings(max_examples=examples(50))
@given(weights_and_uniforms(), st.integers(-800, 800))
def test_neither_scale_of_weights_nor_shift_of_logits_matters(inputs, shift):
    weights, u = inputs
    assert torch.equal(draw(weights, u), draw(weights * 2.0**shift, u))
    assert bool(contains(weights, u, draw_logits(weights.log() + shift, u), 1e-11).all())


@settings(max_examples=examples(30))
@given(st.integers(2, 60), st.integers(0, 2**31))
def test_the_slice_of_uniforms_of_every_state_is_as_wide_as_its_float32_weight(count, seed):
    """Relatively, down to 1e-9 beside 1: the first u that draws k or more is found by bisection,
    for every k.
    """
    weights = 10 ** (
        -9 * torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )
    weights = weights.to(torch.float32)
    state = torch.arange(1, count)
    low = torch.zeros(count - 1, dtype=torch.float64)
    high = torch.ones(count - 1, dtype=torch.float64)
    for _ in range(56):
        middle = (low + high) / 2
        reached = draw(weights.expand(count - 1, -1), middle.clamp(max=LAST)) >= state
        low = torch.where(reached, low, middle)
        high = torch.where(reached, middle, high)
    edges = torch.cat([torch.zeros(1), high, torch.ones(1)])
    probs = weights.double() / weights.double().sum()
    torch.testing.assert_close(edges.diff(), probs, rtol=1e-6, atol=1e-15)


def test_the_last_uniform_draws_the_last_state_that_has_weight():
    """Sums in another order differ in the last bit, so u times the total may pass the last
    cumulative sum.
    """
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        weights = torch.rand(200, 10_000, generator=generator).to(dtype)
        weights[:, 7_000:] = 0
        drawn = draw(weights, torch.full((200,), LAST, dtype=torch.float64))
        assert bool((weights.gather(1, drawn[:, None]) > 0).all()) and bool((drawn > 6_900).all())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 10, 16, 17, 99, 100, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_distribution_on_one_state_gives_that_state_for_every_uniform(count, dtype):
    """Every place in a block and every u, 0 and just below 1 included.

    Zeros stand at every block edge but one.
    """
    u = torch.tensor([0.0, 2.0**-53, 0.3, 0.999999, LAST], dtype=torch.float64)
    for state in range(count):
        weights = torch.zeros(len(u), count, dtype=dtype)
        weights[:, state] = 1e-30
        assert draw(weights, u).tolist() == [state] * len(u)


def test_zeros_at_block_edges_are_never_returned():
    """100 states make 10 blocks of 10: empty blocks at both ends and in the middle, edges of the
    others empty.
    """
    weights = torch.ones(1, 100)
    weights[:, :10] = weights[:, 40:60] = weights[:, 90:] = 0
    weights[:, 9::10] = weights[:, ::10] = 0
    edges = torch.arange(41, dtype=torch.float64) / 40
    u = torch.cat(
        [edges, edges.nextafter(torch.zeros(())), edges + 2**-53, torch.tensor([LAST])]
    ).clamp(0, LAST)
    drawn = draw(weights.expand(len(u), -1), u)
    assert bool((weights[0, drawn] > 0).all())
    assert set(drawn.tolist()) == set(weights[0].nonzero()[:, 0].tolist())
    assert drawn[0] == 11 and drawn[-1] == 88


def test_rows_are_drawn_independently_and_inputs_stay():
    weights = torch.rand(50, 33, generator=torch.Generator().manual_seed(0))
    u = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    copies = weights.clone(), u.clone()
    together = draw(weights, u)
    assert torch.equal(
        together, torch.cat([draw(weights[i : i + 1], u[i : i + 1]) for i in range(50)])
    )
    assert torch.equal(weights, copies[0]) and torch.equal(u, copies[1])


def unmasking_probs(steps):
    """A mask that goes, in one of ``steps`` steps, to one of V equally likely tokens.

    The mask is the last state.
    """
    logits = torch.full((1, V + 1), math.log(1 / steps / V))
    logits[0, V] = math.log1p(-1 / steps)
    return logits


@pytest.mark.parametrize("mask_first", [False, True])
def test_the_rarest_tokens_of_a_large_vocabulary_keep_their_probability(mask_first):
    """Float32 Gumbel noise keeps 42 % of these unmaskings: here the slice of u that unmasks is
    1/4096 wide.
    """
    logits = unmasking_probs(4096).flip(1) if mask_first else unmasking_probs(4096)
    mask = 0 if mask_first else V
    rows = 64
    offset = (
        0.5 / rows + torch.arange(rows, dtype=torch.float64) / rows
    )  # twice the slice, evenly covered
    u = 1 - offset * 2 / 4096 if mask_first else offset * 2 / 4096
    drawn = draw_logits(logits.expand(rows, -1), u)
    assert int((drawn != mask).sum()) == rows // 2
    tokens = drawn[drawn != mask] - (1 if mask_first else 0)
    place = V * (1 - offset * 2 if mask_first else offset * 2)[drawn != mask]
    assert bool(
        ((tokens - place).abs() < 0.01 * V).all()
    )  # and within the slice the tokens are equally likely


@pytest.mark.statistical
@pytest.mark.parametrize(("mass", "width"), [(1 / 4096, 2**8), (3e-8, 2**16)])
def test_the_expected_number_of_rare_events_is_drawn(mass, width):
    """A state of weight 1 and a tail of 64 that share ``mass``, below float32's last bit of 1 or
    not.
    """
    probs = torch.tensor([[1.0] + [mass / 64] * 64])
    n = 2**17
    generator = torch.Generator().manual_seed(0)
    # uniforms below 1 - 1 / width all draw the first state, so only those above are drawn: n *
    # width draws in effect
    u = (width - 1 + torch.rand(n, dtype=torch.float64, generator=generator)) / width
    assert mass < 1 / width
    expected = n * width * mass
    assert abs(int((draw(probs.expand(n, -1), u) > 0).sum()) - expected) < 4 * math.sqrt(expected)


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_drawn_counts_follow_half_precision_logits(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (2 * torch.randn(1, 200, generator=generator)).to(dtype)
    n = 40_000
    drawn = draw_logits(
        logits.expand(n, -1), torch.rand(n, dtype=torch.float64, generator=generator)
    )
    expected = n * logits.double().softmax(-1)[0]
    common = expected > 5
    counts = torch.bincount(drawn, minlength=200).double()
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    target = torch.cat([expected[common], expected[~common].sum()[None]])
    assert scipy.stats.chisquare(observed, target).pvalue > 1e-4


class LargestDouble(TorchDispatchMode):
    """Records the most elements that any float64 tensor holds in storage."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // 8)
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_float64_copy_of_the_probabilities_is_made(dtype):
    logits = torch.zeros(64, V, dtype=dtype)
    u = torch.linspace(0, LAST, 64, dtype=torch.float64)
    with LargestDouble() as recorder:
        drawn = draw_logits(logits, u)
    assert 0 < recorder.elements <= 64 * 2 * math.isqrt(V)  # two stages of 225, not 50,257
    assert drawn.tolist() == pytest.approx((u * V).tolist(), abs=1.5)
