"""The logic of the Triton kernels in Triton's interpreter, on a CPU.

test_triton_kernels.py runs it in its own process.

TRITON_INTERPRET must be set before anything imports Triton, and makes compiled kernels impossible
afterwards.
"""

import copy
import os
from functools import partial

import fused_loss_inputs
import pytest
import torch
from cases import examples
from fused_loss_inputs import F64, NESTED, agree_with_float64, close, exact
from hypothesis import given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.kernels import dispatch as plans
from ddlib.kernels import gpu
from ddlib.kernels.fused import FlatBatch
from ddlib.kernels.gpu import forward_kernel as online
from ddlib.kernels.gpu import inplace_softmax as row
from ddlib.kernels.gpu import siblings, vocab_order
from ddlib.kernels.gpu import tree_plan as ranged
from ddlib.kernels.gpu.grouped_gemm import Tiles
from ddlib.kernels.gpu.vocab_order import Order, Ranking, order_of
from ddlib.objective.training import LossOptions
from ddlib.testing import strategies
from ddlib.utils import philox, philox_kernel

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_triton_kernels.py"

F32 = torch.float32
SMALL = online.Tiles(rows=8, columns=16, depth=8, splits=2, warps=4, stages=1)
MANY = {
    "masked": dd.presets.mdlm(19),
    "one-word": dd.presets.mdlm(1),
    "clusters": dd.presets.hdlm([0, 2, 1, 2, 0, 3, 2]),  # clusters of one word too
    "one-cluster": dd.presets.hdlm([0, 0, 0, 0, 0]),
    "four-levels": dd.presets.hdlm_levels(NESTED),
    "wide": dd.presets.hdlm(torch.arange(131) % 7),  # more words than ALIGNED
    "xi-above": dd.presets.hdlm_levels(NESTED, xi=[1.0, 0.8, 1.0]),  # two plain levels of four
}
every = pytest.mark.parametrize("process", MANY.values(), ids=MANY)
batch = partial(fused_loss_inputs.batch, rows=4, length=3, dim=9, dtype=F32)


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """As if the CPU were a GPU, in tiles that a small vocabulary fills more than once."""
    monkeypatch.setattr(gpu, "usable", lambda device, dtype: dtype != F64)
    monkeypatch.setattr(online, "default_tiles", lambda hidden: SMALL)
    for name in ("HELD", "REST", "INNER"):
        monkeypatch.setattr(row, name, 16)
    monkeypatch.setattr(siblings, "TILES", Tiles(tokens=4, columns=8, depth=8, warps=4, stages=1))
    monkeypatch.setattr(vocab_order, "EXTRA", 40)  # some states share a product, others do not


@every
@pytest.mark.parametrize("mode", ["standard", "hard", "edges"])
@pytest.mark.parametrize("grouped", [False, True])
def test_values_and_gradients(process, mode, grouped, monkeypatch):
    if grouped:  # level 1 always
        monkeypatch.setattr(vocab_order, "EXTRA", -1)
        monkeypatch.setattr(vocab_order, "SPARSE", 0)
    layer, noisy = batch(process)
    agree_with_float64(process, layer, noisy, mode=mode)


@every
def test_a_time_per_position(process):
    layer, (x, z, t) = batch(process, own=True)
    assert t.shape == x.shape
    agree_with_float64(process, layer, (x, z, t), weighting=dd.weightings.Clip(5.0))


@settings(max_examples=examples(15))
@given(
    strategies.hierarchies(max_depth=4, max_words=23),
    st.integers(0, 99),
    st.integers(1, 70),
    st.integers(1, 20),
)
def test_drawn_hierarchies(hierarchy, seed, chunk, dim):
    process = dd.processes.Hierarchical(hierarchy, dd.schedules.Linear())
    layer, noisy = batch(process, seed=seed, rows=3, length=2, dim=dim)
    agree_with_float64(process, layer, noisy, chunk=chunk, weighting=dd.weightings.Clip(5.0))


@pytest.mark.parametrize("mode", ["standard", "hard"])
def test_tokens_in_every_level(mode):
    process = MANY["four-levels"]
    layer, (x, z, t) = batch(process, rows=16)
    assert set(process.level_of(z).unique().tolist()) == {0, 1, 2, 3, 4}
    agree_with_float64(process, layer, (x, z, t), mode=mode)


def test_all_words_and_all_masks():
    process = MANY["four-levels"]
    layer, (x, _, t) = batch(process)
    for z in (x, torch.full_like(x, process.num_states - 1)):
        agree_with_float64(process, layer, (x, z, t))


@pytest.mark.parametrize("name", ["masked", "four-levels"])
def test_extreme_logits(name):
    process = MANY[name]
    layer, noisy = batch(process, scale=1e2, dim=3)
    with torch.no_grad():
        layer[2].uniform_(-1e4, 1e4, generator=torch.Generator().manual_seed(0))
        assert torch.nn.functional.linear(*layer).abs().max() > 1e4
    agree_with_float64(process, layer, noisy, tolerance=1e-4, weighting=dd.weightings.Clip(2.0))


def test_excluded_tokens():
    """A bias of -inf on tokens that are not needed, whole tiles of them."""
    process = MANY["wide"]
    layer, (x, z, t) = batch(process)
    with torch.no_grad():
        layer[2][torch.arange(131) % 7 < 3] = -torch.inf
    x = x // 7 * 7 + 4
    z = process.sample(x, t, torch.Generator().manual_seed(0))
    agree_with_float64(process, layer, (x, z, t))


@pytest.mark.parametrize("kernel", ["online", "row"])
def test_nan_is_not_lost(kernel, monkeypatch):
    if kernel == "online":
        monkeypatch.delattr(ranged, "overwrite")  # without gradients it is not called
    process = MANY["clusters"]
    layer, (x, z, t) = batch(process)
    z = torch.full_like(z, process.num_states - 1)
    with torch.no_grad():
        layer[0][0, 0] = torch.nan
    with torch.set_grad_enabled(kernel == "row"):
        values = dd.summed_loss(process, dd.Hidden(*layer[:2]), x, z, t, 1.0)[1]
    assert values[0, 0].isnan() and values.isfinite().sum() == values.numel() - 1


def test_evaluation_in_half_precision():
    """Float16, since the interpreter cannot multiply bfloat16; see test_triton_gpu.py."""
    process = MANY["four-levels"]
    layer, noisy = batch(process, dtype=torch.float16)
    with torch.no_grad():
        ours = dd.nelbo(process, dd.Hidden(*layer[:2], layer[2]), *noisy)
    assert ours.dtype == F32
    close([ours], [exact(process, layer, noisy)[0]], 1e-5)  # sums are in float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["wide", "four-levels"])
def test_training_in_half_precision(name, dtype):
    process = MANY[name]
    layer, noisy = batch(process, rows=8, dtype=dtype)
    values, gradients = exact(process, layer, noisy, weighting=dd.weightings.Clip(5.0))
    loss = dd.training_loss(
        process, dd.Hidden(*layer[:2], layer[2]), *noisy, weighting=dd.weightings.Clip(5.0)
    )
    close([loss], [values.mean()], 0.01)  # from logits in half precision
    found = torch.autograd.grad(loss, layer)
    assert all(g.dtype == dtype for g in found)
    close(found, gradients, 0.01)


@pytest.mark.parametrize(
    "tiles",
    [
        online.Tiles(2, 2, 2, 1, 4, 1),
        online.Tiles(64, 256, 32, 1, 4, 1),  # one tile for all
        online.Tiles(8, 8, 16, 16, 4, 1),  # more splits than tiles
        online.Tiles(16, 16, 4, 3, 4, 1),  # 9 = 4 + 4 + 1
        online.Tiles(2, 16, 1, 2, 4, 1),  # no tail along D
    ],
)
@pytest.mark.parametrize("name", ["masked", "four-levels"])
def test_however_evaluation_is_cut(tiles, name, monkeypatch):
    monkeypatch.setattr(online, "default_tiles", lambda hidden: tiles)
    process = MANY[name]
    layer, noisy = batch(process, rows=4, length=3)
    with torch.no_grad():
        ours = dd.nelbo(process, dd.Hidden(*layer[:2], layer[2]), *noisy)
    close([ours], [exact(process, layer, noisy)[0]], 2e-5)


@pytest.mark.parametrize("held", [1, 2, 64, 256])
@pytest.mark.parametrize("rest", [1, 2, 64])
def test_however_rows_are_cut(held, rest, monkeypatch):
    monkeypatch.setattr(row, "HELD", held)
    monkeypatch.setattr(row, "REST", rest)
    monkeypatch.setattr(row, "INNER", rest)
    process = MANY["wide"] if held * rest > 4 else MANY["clusters"]
    layer, noisy = batch(process, rows=3)
    agree_with_float64(process, layer, noisy)


@settings(max_examples=examples(40))
@given(
    st.integers(1, 150),
    st.integers(0, 70),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from([1.0, -3e-3, 1e3]),
    st.integers(0, 99),
)
def test_rows_become_derivatives_within_the_rounding_of_their_dtype(
    width, start, dtype, scale, seed
):
    """Spans of rows drawn, factors drawn with zeros, which are those of ignored rows.

    An exponential of float32 has a relative error of 2^-22 (1 + |z - LSE|), and a sum of K of them
    one of K 2^-24 at most; the result is rounded once more, to the dtype of the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    count = 5
    spans = torch.randint(width + 1, (4, count), generator=generator).sort(0).values
    spans[3] = torch.maximum(spans[3], spans[0] + 1).clamp_max(width)
    spans[0] = torch.minimum(spans[0], spans[3] - 1)
    spans[1] = spans[1].clamp(spans[0], spans[3] - 1)
    spans[2] = torch.maximum(spans[2], spans[1] + 1)
    logits = (torch.randn(count, width, generator=generator) * 4).to(dtype)
    factor = torch.randn(count, generator=generator) * scale
    factor[0] = 0
    place = torch.arange(width)
    low, inner_low, inner_high, high = spans[..., None]
    wide = logits.double()
    outer = wide.masked_fill((place < low) | (place >= high), -torch.inf)
    inner = wide.masked_fill((place < inner_low) | (place >= inner_high), -torch.inf)
    whole, part = outer.softmax(1), inner.softmax(1)
    slopes = factor.double()[:, None] * (whole - part)
    nats = outer.logsumexp(1) - inner.logsumexp(1)
    words = torch.arange(count)
    bounds = (spans + start).to(torch.int32)
    ours = row.overwrite(logits, words, factor, start, bounds[[0, 3]], bounds[[1, 2]])
    relative = 2**-22 * (1 + (wide - wide.mean()).abs().max()) + width * 2**-24
    close([ours], [nats], float(relative) * 4)
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # of subnormal numbers
    bound = torch.finfo(dtype).eps * slopes.abs() + smallest
    bound += relative * 4 * factor.abs()[:, None] * (whole + part)
    assert ((logits.double() - slopes).abs() <= bound).all()
    assert not logits[0].any()


@settings(max_examples=examples(10))
@given(
    strategies.hierarchies(max_depth=3, max_words=23),
    st.integers(0, 99),
    st.sampled_from([1, 40, 1 << 22]),
    st.sampled_from([0, 2, 1e9]),
)
def test_ignored_rows_and_factors_as_without_the_kernels(hierarchy, seed, extra, sparse):
    process = dd.processes.Hierarchical(hierarchy, dd.schedules.Linear())
    layer, (x, z, t) = batch(process, seed=seed, rows=5, length=3, dim=5)
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randn(x.shape, generator=generator)
    mask = torch.rand(x.shape, generator=generator) > 0.3
    options = dict(mask=mask, weighting=dd.weightings.Clip(5.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocab_order, "EXTRA", extra)
        patch.setattr(vocab_order, "SPARSE", sparse)
        ours, values = dd.summed_loss(process, dd.Hidden(*layer), x, z, t, scale, **options)
        gradients = torch.autograd.grad(ours, layer)
    wide = [p.detach().to(F64).requires_grad_() for p in layer]
    twin, expected = dd.summed_loss(process, dd.Hidden(*wide), x, z, t, scale, **options)
    close([ours, values], [twin, expected], 2e-5)
    close(gradients, torch.autograd.grad(twin, wide), 2e-5)
    assert not gradients[0][~mask].any()


def test_rows_of_small_clusters_need_no_other_logits(monkeypatch):
    """Each row in a cluster of 18 or 19 tokens, all by four kernels; the mask's by products."""
    monkeypatch.setattr(vocab_order, "EXTRA", 100)
    monkeypatch.setattr(vocab_order, "SPARSE", 1)
    process = MANY["wide"]
    x = torch.arange(16) * 8
    z = 131 + x % 7
    z[0] = 138
    rows = FlatBatch(x, z, torch.full((16,), 0.5, dtype=F64))
    ranking = Ranking(Order(process.hierarchy, 2, hard=False), rows)
    segments, grouped = ranking.products
    assert grouped == 15 and [segment.tokens for segment in segments] == [1]
    part = ranged.Ranged(ranking)
    ((families, groups),) = part.clusters[0].levels
    assert len(groups.token) == 15 and families.widest == 19
    assert sorted(groups.token.tolist()) == list(range(1, 16))


def test_strided_hidden_states_and_transposed_matrix():
    process = MANY["clusters"]
    layer, noisy = batch(process)
    turned = [
        layer[0].transpose(0, 2).contiguous().transpose(0, 2),
        layer[1].t().contiguous().t(),
        layer[2],
    ]
    turned = [p.detach().requires_grad_() for p in turned]
    assert not turned[0].is_contiguous() and not turned[1].is_contiguous()
    agree_with_float64(process, turned, noisy)


def test_gradients_of_each_tokens_loss():
    process = MANY["four-levels"]
    layer, noisy = batch(process)
    slope = torch.randn(noisy[0].shape, generator=torch.Generator().manual_seed(1))
    ours = dd.nelbo(process, dd.Hidden(*layer[:2], layer[2]), *noisy)
    wide = [p.detach().to(F64).requires_grad_() for p in layer]
    theirs = dd.nelbo(process, torch.nn.functional.linear(*wide), *noisy)
    close([ours], [theirs], 2e-5)
    close(
        torch.autograd.grad((ours * slope).sum(), layer),
        torch.autograd.grad((theirs * slope).sum(), wide),
        2e-5,
    )


def test_double_precision_goes_the_way_of_the_cpu():
    process = MANY["four-levels"]
    layer, noisy = batch(process, dtype=F64)
    agree_with_float64(process, layer, noisy, tolerance=1e-12)


@every
def test_words_under_a_member_are_neighbours(process):
    hierarchy = process.hierarchy
    top = next(
        (i for i, edge in enumerate(hierarchy.maps) if edge.spread is not None), hierarchy.depth
    )
    order = Order(hierarchy, top, hard=False)
    size = hierarchy.vocab_size
    assert len(order.tokens) % 64 == 0 and sorted(order.tokens[:size].tolist()) == [*range(size)]
    for level in range(1, top + 1):
        parents = hierarchy.between(0, level).parents
        for member, (low, high) in enumerate(order.bounds[level].t().tolist()):
            assert (
                sorted(order.tokens[low:high].tolist())
                == (parents == member).nonzero()[:, 0].tolist()
            )


@every
def test_a_planned_loss_is_the_loss(process, monkeypatch):
    layer, noisy = batch(process)
    planned = dd.PlannedLoss.of(process, *noisy)

    def loss(planned):
        value = dd.training_loss(process, dd.Hidden(*layer, planned=planned), *noisy)
        return [value, *torch.autograd.grad(value, layer)]

    expected = loss(None)
    monkeypatch.setattr("ddlib.kernels.api.plan", None)
    assert all(map(torch.equal, loss(planned), expected))
    monkeypatch.setattr(Order, "products", None)  # read when the loss was planned
    assert all(map(torch.equal, loss(planned), expected))


def test_the_order_is_computed_once_for_a_hierarchy_and_device():
    process = copy.deepcopy(MANY["clusters"])
    hierarchy = process.hierarchy
    first = order_of(hierarchy, 2, False)
    assert order_of(hierarchy, 2, False) is first
    assert order_of(hierarchy, 2, True) is not first
    assert order_of(copy.deepcopy(hierarchy), 2, False) is not first
    assert order_of(hierarchy.to("meta"), 2, False).tokens.is_meta


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", ["masked", "clusters", "four-levels", "xi-above"])
def test_segments_are_the_tokens_in_order(name, hard, monkeypatch):
    monkeypatch.setattr(vocab_order, "SPARSE", 1e9)
    process = MANY[name]
    _, (x, z, t) = batch(process, rows=40)
    rows = FlatBatch(x.flatten(), z.flatten(), t.repeat_interleave(x.shape[1]))
    (part, *_), _ = plans.plan(process, rows, LossOptions(mode="hard" if hard else "standard"), F32)
    assert isinstance(part, ranged.Ranged)
    ranking = part.ranking
    order = ranking.order
    spans = ranking.spans
    index = ranking.index
    level = order.level(rows)
    first = 0
    for segment in ranking.products.segments:
        for token in index[first : first + segment.tokens].tolist():
            low, high, inner_low, inner_high = (int(bound[token]) for bound in spans)
            assert segment.low <= low <= inner_low < inner_high <= high <= segment.high
            assert order.outer(segment.level)[:, rows.x[token]].tolist() == [low, high]
            assert order.tokens[inner_low:inner_high].tolist().count(int(rows.x[token])) == 1
        first += segment.tokens
    assert (level[index[:first]] > 0).all() and (level[index[first:]] == 0).all()


@pytest.mark.parametrize(("extra", "number"), [(0, 8), (100, 4), (1 << 30, 2)])
def test_states_share_a_product_until_it_has_too_many_logits_without_effect(
    monkeypatch, extra, number
):
    monkeypatch.setattr(vocab_order, "EXTRA", extra)
    monkeypatch.setattr(vocab_order, "SPARSE", 1e9)
    hierarchy = MANY["wide"].hierarchy  # clusters of 18 or 19 words
    z = torch.tensor(
        [131, 132, 133, 134, 135, 136, 137, 138]
    )  # a row in each cluster, and one mask
    rows = FlatBatch(torch.arange(8) % 7, z, torch.full((8,), 0.5, dtype=F64))
    order = Order(hierarchy, 2, hard=False)
    found, grouped = Ranking(order, rows).products
    assert grouped == 0 and len(found) == number and sum(segment.tokens for segment in found) == 8


@pytest.mark.parametrize("name", ["masked", "clusters", "four-levels"])
def test_the_host_waits_for_nothing_but_the_segments(name):
    """Tensors without values: reading one fails."""
    x = torch.empty(6, dtype=torch.int64, device="meta")
    rows = FlatBatch(x, x, torch.empty(6, dtype=F64, device="meta"))
    moved = copy.deepcopy(MANY[name]).to("meta")
    (part,), weight = plans.plan(moved, rows, LossOptions(weighting=dd.weightings.Clip(2.0)), F32)
    assert part.ranking.index.device.type == weight.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        part.read()


@pytest.mark.parametrize(
    "shapes", [[(1, 7), (5, 1), ()], [(300,), (300,), (300,)], [(3, 4), (3, 1), (3, 1)]], ids=str
)
def test_philox_is_that_of_torch(shapes):
    """Counters that broadcast, and keys of one number or of a number per row.

    The largest words too.
    """
    generator = torch.Generator().manual_seed(0)
    columns, rows, key = shapes
    for least in (0, 2**32 - 2):
        many = [
            torch.randint(least, 2**32, shape, generator=generator)
            for shape in (columns, rows, rows, rows)
        ]
        keys = [torch.randint(least, 2**32, key, generator=generator) for _ in range(2)]
        both = (implementation.philox(many, keys) for implementation in (philox_kernel, philox))
        for ours, theirs in zip(*both, strict=True):
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


KEYS = {"numbers": (2**32 - 1, 0x9E3779B9), "small": (1, 16), "columns": None}
INDICES = [0, 1, 2**32 - 1, 2**32, 2**40 + 5, 2**62, 2**63 - 1]


def keys_of(name, rows):
    if KEYS[name] is not None:
        return KEYS[name]
    generator = torch.Generator().manual_seed(1)
    # a step of 2, as the columns that a split generator keeps have
    return [torch.randint(2**32, (rows, 2), generator=generator)[:, :1] for _ in range(2)]


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("draw", [0, 1, 16, 2**33])
@pytest.mark.parametrize("per_row", [0, 1, 2, 7, 600])
def test_uniform_numbers_are_those_of_torch(keys, draw, per_row):
    index = torch.tensor(INDICES)
    key = keys_of(keys, len(index))
    ours, theirs = (
        implementation.uniforms(index, (len(index), per_row), draw, key)
        for implementation in (philox_kernel, philox)
    )
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("number", [0, 1, 16])
def test_scrambled_words_are_those_of_torch(keys, reverse, number):
    words = torch.tensor([*INDICES, *range(13)]) & (2**63 - 1 if reverse else 2**32 - 1)
    key = keys_of(keys, len(words))
    ours, theirs = (
        implementation.scramble(words, number, key, reverse)
        for implementation in (philox_kernel, philox)
    )
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    empty = words[:0]
    assert philox_kernel.scramble(empty, number, (1, 2), reverse).shape == empty.shape


def test_a_generator_draws_the_same_numbers_by_kernels(monkeypatch):
    def draws():
        noise = dd.KeyedGenerator(2**40 + 3, 2**33 + 5, torch.tensor(INDICES[:5]))
        numbers = [noise.rand((5, 9)), noise.rand((5,)), noise.rand((5, 2, 3))]
        numbers += [noise.scramble(noise.index, reverse=True)]
        copies = noise.split(3)
        numbers += [copies.rand((15, 4)), copies.split(2).rand((30, 3))]
        numbers += [copies.scramble(copies.index, reverse=True)]
        return [*numbers, dd.sample_times(5, generator=noise)]

    with_torch = draws()
    monkeypatch.setattr("ddlib.utils.random.usable", lambda device: True)
    for ours, theirs in zip(draws(), with_torch, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
