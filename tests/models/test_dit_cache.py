"""Keys and values of finished blocks: the logits after them are those of the whole sequence, for
less work.
"""

import copy
import gc
import inspect

import pytest
import torch
from cases import caches, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with
from tiny import STATES, WORDS, build, trained
from torch.utils.flop_counter import FlopCounterMode

import ddlib as dd
from ddlib.typing import BlockDenoiser
from ddlib_models.attention.backends import Flex
from ddlib_models.hf.auto import DiTConfig, DiTModel
from ddlib_models.kv_cache import numbers

unfused = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

MODES = [torch.no_grad, torch.enable_grad, torch.inference_mode]


def draw(number: int, batch: int = 2, most: int = WORDS, seed: int = 0) -> torch.Tensor:
    return torch.randint(most, (batch, number), generator=torch.Generator().manual_seed(seed))


def in_full(call, x: torch.Tensor, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Logits of the whole sequence behind x."""
    times = torch.cat(
        [torch.zeros(x.shape, dtype=t.dtype), t if t.ndim == 2 else t[:, None].expand(z.shape)], 1
    )
    return call(torch.cat([x, z], 1), times)[:, x.shape[1] :]


@settings(max_examples=examples(50))
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(1, 4),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from(["each", "one", "none"]),
    st.sampled_from(MODES),
    st.sampled_from(MODES),
    st.integers(0, 99),
)
def test_logits_after_cached_tokens_are_those_of_the_whole_sequence(
    chunks, size, windows, timed, kept_in, mode, seed
):
    """Prefilled in chunks of whole blocks, then any windows, each evaluated more than once."""
    model = trained(block_size=size, depth=1 + seed % 3, time_conditioned=timed != "none").double()
    cache = None
    x = draw(0)
    for number, blocks in enumerate(chunks):
        more = draw(blocks * size, seed=seed + number)
        with kept_in():
            cache = model.prefill(more, cache)
        x = torch.cat([x, more], 1)
    assert cache.length == x.shape[1] and torch.equal(cache.tokens, x)
    for number, length in enumerate(windows * 2):
        z = draw(length, most=STATES, seed=seed + 50 + number)
        t = torch.rand(
            z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number)
        )
        t = t[:, 0] if timed == "one" else t
        where = draw(3, most=length, seed=seed)
        with mode():
            outputs = model.extend(z, t, cache), model.features(z, t, cache=cache)
            some = model.features_at(z, t, where, cache=cache)
        expected = in_full(model.features, x, z, t)
        torch.testing.assert_close(outputs[0], in_full(model, x, z, t), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(outputs[1], expected, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(
            some, expected.take_along_dim(where[..., None], 1), atol=1e-12, rtol=1e-12
        )


def test_single_precision_and_a_back_end_of_blocks():
    x = draw(12)
    z = draw(7, most=STATES)
    t = torch.rand(2, 7, generator=torch.Generator().manual_seed(0))
    model = trained(block_size=4)
    expected = in_full(model, x, z, t)
    torch.testing.assert_close(model.extend(z, t, model.prefill(x)), expected, atol=1e-5, rtol=1e-5)


@unfused
@torch.no_grad()
def test_flex_keeps_them_too():
    x = draw(12)
    z = draw(7, most=STATES)
    t = torch.rand(2, 7, generator=torch.Generator().manual_seed(0))
    model = trained(block_size=4, attention=Flex())
    cache = model.prefill(x[:, 4:], model.prefill(x[:, :4]))
    expected = in_full(trained(block_size=4), x, z, t)
    torch.testing.assert_close(model.extend(z, t, cache), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("taken", [False, True])
def test_extending_does_not_modify_a_cache(taken):
    """Two texts that begin alike share memory until they part, and neither sees the other's
    tokens.
    """
    model = trained(block_size=2).double()
    z = draw(2, most=STATES)
    t = torch.rand(2, 2, dtype=torch.float64)
    begin = draw(4)
    root = model.prefill(begin)
    before = model.extend(z, t, root)
    root = root.rows(torch.arange(2)) if taken else root
    ends = [draw(2, seed=seed) for seed in (1, 2, 3)]
    caches = [model.prefill(end, root) for end in ends]
    with torch.no_grad():
        for _ in range(2):
            for end, cache in zip(ends, caches, strict=True):
                expected = in_full(model, torch.cat([begin, end], 1), z, t)
                torch.testing.assert_close(
                    model.extend(z, t, cache), expected, atol=1e-12, rtol=1e-12
                )
            torch.testing.assert_close(model.extend(z, t, root), before, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("index", [[2, 0, 2, 1], [True, False, True]], ids=str)
def test_rows_are_those_sequences(index):
    model = trained(block_size=2).double()
    index = torch.tensor(index)
    cache = model.prefill(draw(4, 3))
    some = cache.rows(index)
    assert torch.equal(some.tokens, cache.tokens[index])
    z = draw(3, 3, STATES)
    t = torch.rand(3, dtype=torch.float64)
    expected = model.extend(z, t, cache)[index]
    for _ in range(2):
        torch.testing.assert_close(
            model.extend(z[index], t[index], some), expected, atol=1e-12, rtol=1e-12
        )


def test_a_cache_of_inference_mode_goes_on_outside():
    model = trained(block_size=2)
    x = draw(8)
    z = draw(2, most=STATES)
    t = torch.rand(2)
    with torch.inference_mode():
        cache = model.prefill(x)
        outputs = model.extend(z, t, cache)  # enlarges the cache, which is written to below
        some = cache.rows(torch.tensor([0, 1]))
    with torch.no_grad():
        for each in (cache, some, cache.rows(torch.tensor([0, 1]))):
            torch.testing.assert_close(model.extend(z, t, each), outputs)


def test_gradients_of_a_window_are_those_of_its_logits():
    """The tokens before it are given: no gradient goes through what was kept of them."""
    model = trained(block_size=2, depth=1).double()
    x = draw(4)
    z = draw(2, most=STATES)
    cache = model.prefill(x)
    t = torch.rand(2, dtype=torch.float64)
    outs = model.extend(z, t, cache), model.extend(z, t, cache)
    wanted = [model.blocks[0].mlp[0].weight, model.head.weight]
    full = torch.autograd.grad(in_full(model, x, z, t).square().sum(), wanted)
    for out in outs:
        for ours, expected in zip(
            torch.autograd.grad(out.square().sum(), wanted), full, strict=True
        ):
            torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)


def flops(call) -> tuple[int, int]:
    """Operations of products with learned matrices, and of all products."""
    with FlopCounterMode(display=False) as counted:
        call()
    each = {str(kernel): number for kernel, number in counted.get_flop_counts()["Global"].items()}
    return sum(
        number for kernel, number in each.items() if kernel in ("aten.mm", "aten.addmm")
    ), sum(each.values())


@torch.no_grad()
def test_work_per_token_does_not_depend_on_the_text_so_far():
    model = trained(block_size=4)
    z = draw(4, 1, STATES)
    t = torch.rand(1)
    short, long = (model.prefill(draw(length, 1)) for length in (8, 256))
    few, many = (flops(lambda cache=cache: model.extend(z, t, cache)) for cache in (short, long))
    assert few[0] == many[0] > 0
    plain = flops(lambda: build()(z, t))
    assert few[0] == plain[0], "as much as for the window alone"
    next_block = draw(4, 1)
    assert (
        flops(lambda: model.prefill(next_block, short))[0]
        == flops(lambda: model.prefill(next_block, long))[0]
    )


@torch.no_grad()
def test_kept_tokens_are_not_moved_at_each_step():
    model = trained(block_size=4)
    cache = model.prefill(draw(64))
    z = draw(4, most=STATES)
    t = torch.rand(2)
    model.extend(z, t, cache)  # enlarges the cache, as longer sequences do
    place = cache.slots(4)[0].keys.data_ptr()
    for _ in range(3):
        model.extend(z, t, cache)
        cache = model.prefill(draw(4), cache)
        assert cache.slots(4)[0].keys.data_ptr() == place


def test_autocast_keeps_half_the_bytes_and_is_not_mixed_with_float32():
    model = trained(block_size=2)
    x = draw(4)
    z = draw(2, most=STATES)
    t = torch.rand(2)
    with torch.autocast("cpu", torch.bfloat16):
        cache = model.prefill(x)
        outputs = model.extend(z, t, cache)
    assert cache.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), in_full(model, x, z, t), atol=0.5, rtol=0.1)
    message = r"cache: has dtype torch\.bfloat16, but the network computes in torch\.float32"
    with pytest.raises(ValueError, match=message):
        model.extend(z, t, cache)


@pytest.mark.usefixtures("compilable")
@torch.no_grad()
def test_extending_compiles_to_one_graph():
    model = trained(block_size=4)
    z = draw(4, most=STATES)
    t = torch.rand(2, 4)
    compiled = torch.compile(model.extend, fullgraph=True, backend="eager")
    cache = None
    for seed in range(3):
        cache = model.prefill(draw(4, seed=seed), cache)
        torch.testing.assert_close(compiled(z, t, cache), model.extend(z, t, cache))


@pytest.mark.usefixtures("as_users_call")
def test_a_cache_of_another_text_or_weights_is_refused_by_name():
    model = trained(block_size=2)
    z = draw(2, most=STATES)
    t = torch.rand(2)
    cache = model.prefill(draw(4))
    for other in (copy.deepcopy(model), trained(block_size=2)):
        with pytest.raises(
            ValueError, match="cache: contains keys and values of another DiT; prefill with this"
        ):
            other.extend(z, t, cache)
    refused_with(cache=cache, model=model, t=t, z=z)(r"""
        model.extend(z[:1], t[:1], cache) | ValueError
            | cache: contains 2 sequences, but 1 are given; cache.rows
        model.prefill(draw(0, 3), cache) | ValueError | cache: contains 2 sequences, but 3 are given
        model.extend(z.to("meta"), t.to("meta"), cache) | ValueError
            | cache: is on cpu, but the tokens are on meta
        model.prefill(draw(3)) | ValueError
            | x has shape \(2, 3\), block_size=2: expected \(B, L\) with L a multiple
        trained().prefill(draw(4)) | ValueError | x has shape \(2, 4\), block_size=0
        model.prefill(torch.tensor([[0, 13]])) | ValueError
            | x holds tokens 0..13: must lie in 0..vocab_size-1=10
        model(z, t, clean=draw(2), cache=cache) | ValueError | clean and cache: at most one of them
        model.extend(z, torch.rand(3), cache) | ValueError
            | t \(3,\): expected \(B, L\) and \(B,\) or \(B, L\)
        model.double().extend(z, t.double(), cache)
            | ValueError
                | cache: has dtype torch\.float32, but the network computes in torch\.float64
    """)


@pytest.mark.parametrize(
    "part", ["embedding.weight", "time.mlp.0.weight", "blocks.1.modulation.weight"]
)
def test_trained_weights_have_no_old_cache(part):
    model = trained(block_size=2)
    z = draw(2, most=STATES)
    t = torch.rand(2)
    cache = model.prefill(draw(4))
    with torch.no_grad():
        model.get_parameter(part).mul_(1.001)
    with pytest.raises(
        ValueError, match="cache: the weights have changed since it was made; prefill again"
    ):
        model.extend(z, t, cache)
    with pytest.raises(ValueError, match="cache: the weights have changed"):
        model.prefill(draw(2), cache)


@pytest.mark.usefixtures("as_users_call")
def test_other_caches_and_tokens_are_refused_by_name():
    model = trained(block_size=2)
    z = draw(2, most=STATES)
    t = torch.rand(2)
    refused_with(model=model, t=t, z=z)(r"""
        model.extend(z, t, "cache") | TypeError
            | cache is 'cache', must be a Cache from prefill, or None
        model(z, t, clean=z.float()) | TypeError
            | clean has dtype torch.float32: expected tokens, of the dtype of z
    """)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_one_changed_number_anywhere_is_enough(dtype):
    """Training of an embedding moves the rows of the tokens that occur and no other."""
    model = trained(block_size=2).to(dtype)
    z = draw(2, most=STATES)
    t = torch.rand(2, dtype=dtype)
    cache = model.prefill(draw(4))
    model.extend(z, t, cache)
    for parameter in model.parameters():
        for number in {0, parameter.numel() - 1}:
            before = parameter.detach().flatten()[number].clone()
            with torch.no_grad():
                parameter.view(-1)[number] = torch.nextafter(before, before + 1)
            with pytest.raises(ValueError, match="cache: the weights have changed"):
                model.extend(z, t, cache)
            with torch.no_grad():
                parameter.view(-1)[number] = before
    model.extend(z, t, cache)


def test_weights_that_lie_in_a_larger_tensor_are_looked_at():
    flat = torch.arange(16.0)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(flat[1:8])
    before = numbers(model)
    flat[7] += 1
    assert numbers(model) != before
    model.weight = torch.nn.Parameter(flat[::2])
    before = numbers(model)
    flat[6] += 1
    assert numbers(model) != before


def test_a_cache_does_not_keep_its_network_alive():
    model = trained(block_size=2)
    cache = model.prefill(draw(4))
    del model
    gc.collect()
    with pytest.raises(ValueError, match="cache: the network that it belongs to no longer exists"):
        cache.rows(torch.tensor([0]))


def test_the_contract_of_block_diffusion_and_transformers_model():
    model = trained(block_size=2)
    x = draw(4)
    z = draw(2, most=STATES)
    t = torch.rand(2)
    theirs = DiTModel(DiTConfig(**model.saved_arguments()), model)
    for one in (model, theirs):
        assert isinstance(one, BlockDenoiser)
        for name in ("__call__", "prefill", "extend"):
            given = inspect.signature(
                one.forward if name == "__call__" else getattr(one, name)
            ).parameters
            names = list(inspect.signature(getattr(BlockDenoiser, name)).parameters)[1:]
            assert set(names) <= set(given)
        torch.testing.assert_close(
            one.extend(z, t, one.prefill(x)), in_full(model, x, z, t), atol=1e-5, rtol=1e-5
        )
    assert not isinstance(torch.nn.Linear(2, 2), BlockDenoiser)


@pytest.mark.parametrize(
    "order", [dd.samplers.LeftToRight(), dd.samplers.Confidence("entropy")], ids=str
)
def test_likelihoods_with_and_without_a_cache_agree(order):
    process = dd.presets.hdlm(torch.arange(WORDS) // 4)
    model = trained(num_states=process.num_states, block_size=4, depth=2).double()
    x = draw(12)
    how = dict(group=2, pace=dd.paces.Blocks(4))
    kept, whole = (
        dd.likelihood(process, model, x, order, controls=[*caches(keep)], **how)
        for keep in (True, False)
    )
    torch.testing.assert_close(kept.per_position, whole.per_position, atol=1e-10, rtol=0)
    assert kept.calls == whole.calls
