"""Key/value cache of a ``CausalLM``: the whole sequence's logits at a window's cost; no other class
has it.
"""

import copy

import pytest
import torch
from cases import caches
from hf_checkpoints import CAUSAL, ROWS, WORDS, write_causal
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused_with
from torch import nn

import ddlib as dd
from ddlib_models.hf.causal_lm import causal_lm

SIZE = 2
kinds = pytest.mark.parametrize("kind", CAUSAL)
MODELS: dict[tuple, nn.Module] = {}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_causal(tmp_path_factory.mktemp("theirs"))


def made(folders, kind="llama", shift=1, **how):
    return causal_lm(
        WORDS + 1, WORDS, str(folders[kind]), block_size=SIZE, shift=shift, **how
    ).double()


def draw(length, batch=2, most=WORDS, seed=0):
    return torch.randint(most, (batch, length), generator=torch.Generator().manual_seed(seed))


def in_full(model, x, z):
    """Logits at the end of the whole sequence."""
    row = torch.cat([x, z], 1)
    return model(row, torch.zeros(len(row)))[:, x.shape[1] :]


def zeros(z):
    return torch.zeros(len(z), dtype=torch.float64)


@kinds
@given(
    chunks=st.lists(st.integers(0, 1), max_size=3),
    window=st.integers(1, 5),
    shift=st.integers(0, 1),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_logits_after_cached_tokens_are_those_of_the_whole_sequence(
    folders, kind, chunks, window, shift, seed
):
    key = kind, shift
    model = MODELS[key] = MODELS.get(key) or made(folders, kind, shift)
    cache = None
    x = draw(0)
    for number, blocks in enumerate(chunks):
        more = draw(SIZE * blocks, seed=seed + number)
        cache = model.prefill(more, cache)
        x = torch.cat([x, more], 1)
    cache = cache or model.prefill(x)
    z = draw(window, most=WORDS + 1, seed=seed)
    assert torch.equal(cache.tokens, x) and cache.length == x.shape[1]
    expected = in_full(model, x, z)
    for _ in range(2):  # the first leaves the cache what it was
        torch.testing.assert_close(
            model.extend(z, zeros(z), cache), expected, atol=1e-10, rtol=1e-10
        )
    weight, bias = model.output_weights()
    halves = nn.functional.linear(model.features(z, zeros(z), cache=cache), weight, bias)
    torch.testing.assert_close(halves, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("index", [[2, 0, 2, 1], [True, False, True]], ids=str)
@torch.no_grad()
def test_rows_are_those_sequences(folders, index):
    model = made(folders)
    index = torch.tensor(index)
    cache = model.prefill(draw(4, 3))
    z = draw(3, 3, WORDS + 1)
    some = cache.rows(index)
    assert torch.equal(some.tokens, cache.tokens[index])
    expected = model.extend(z, zeros(z), cache)[index]
    torch.testing.assert_close(
        model.extend(z[index], zeros(z)[index], some), expected, atol=1e-12, rtol=1e-12
    )


def test_a_cache_of_inference_mode_goes_on_outside(folders):
    model = made(folders)
    x = draw(4)
    z = draw(2, most=WORDS + 1)
    with torch.inference_mode():
        cache = model.prefill(x)
        logits = model.extend(z, zeros(z), cache)
        some = cache.rows(torch.tensor([0, 1]))
    for each in (cache, some):
        out = model.extend(z, zeros(z), each)
        torch.testing.assert_close(out, logits)
        out.sum().backward()


def test_gradients_of_a_window_are_those_of_its_logits(folders):
    """The tokens before it are given: no gradient goes through what was kept of them."""
    model = made(folders, shift=0)
    x = draw(4)
    z = draw(2, most=WORDS + 1)
    cache = model.prefill(x)
    last = model.blocks[-1].mlp.down_proj.weight
    (full,) = torch.autograd.grad(in_full(model, x, z).square().sum(), [last])
    for _ in range(2):
        (ours,) = torch.autograd.grad(model.extend(z, zeros(z), cache).square().sum(), [last])
        torch.testing.assert_close(ours, full, atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_the_layers_read_a_window_and_nothing_before_it(folders):
    model = made(folders)
    seen = []
    model.blocks[0].mlp.register_forward_hook(
        lambda part, given, out: seen.append(given[0].shape[1])
    )
    cache = model.prefill(draw(4))
    cache = model.prefill(draw(2), cache)
    model.extend(draw(3, most=WORDS + 1), torch.zeros(2), cache)
    assert seen == [4, 2, 3]


@pytest.mark.parametrize("shift", [0, 1])
def test_block_sampling_draws_the_same_tokens_with_and_without(folders, shift):
    model = made(folders, shift=shift)
    process = dd.presets.mdlm(WORDS)
    how = dict(steps=3, pace=dd.paces.Blocks(SIZE), prompt=draw(SIZE))
    noise = torch.Generator()
    tokens = [
        dd.sample(
            process, model, (2, 8), generator=noise.manual_seed(5), controls=[*caches(k)], **how
        )
        for k in (True, False)
    ]
    assert torch.equal(*tokens) and tokens[0].max() < WORDS


def test_adapters_are_loaded_with_their_weights(folders):
    pytest.importorskip("peft")
    model = made(folders, lora=2)
    x = draw(4)
    z = draw(2, most=WORDS + 1)
    before = model.extend(z, zeros(z), model.prefill(x))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    after = model.extend(z, zeros(z), model.prefill(x))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, in_full(model, x, z), atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_a_cache_under_autocast_is_not_mixed_with_float32(folders):
    model = made(folders).float()
    x = draw(4)
    z = draw(2, most=WORDS + 1)
    with torch.autocast("cpu", torch.bfloat16):
        cache = model.prefill(x)
        expected = in_full(model, x, z)
        torch.testing.assert_close(
            model.extend(z, torch.zeros(2), cache), expected, atol=0.05, rtol=0.05
        )
    message = r"cache: has dtype torch\.bfloat16, but the network computes in torch\.float32"
    with pytest.raises(ValueError, match=message):
        model.extend(z, torch.zeros(2), cache)


def test_a_cache_of_another_text_or_weights_is_refused_by_name(folders, as_users_call):
    model = made(folders)
    z = draw(2, most=WORDS + 1)
    cache = model.prefill(draw(4))
    t = zeros(draw(2))
    refused_with(cache=cache, model=model, other=copy.deepcopy(model), t=t, z=z)(r"""
        other.extend(z, t, cache) | ValueError | cache: contains keys and values of another CausalLM
        model.extend(z[:1], t[:1], cache) | ValueError
            | cache: contains 2 sequences, but 1 are given; cache\.rows
        model.prefill(draw(0, 3), cache) | ValueError | cache: contains 2 sequences, but 3 are given
        model.prefill(draw(3)) | ValueError
            | x has shape \(2, 3\), block_size=2: expected \(B, L\) with L a multiple
        model.prefill(draw(2) + WORDS) | ValueError
            | x holds tokens .*: must lie in 0\.\.vocab_size-1=10
        model(z, t, clean=draw(2), cache=cache) | ValueError | clean, cache: at most one, clean
        model.extend(draw(9), t, cache) | ValueError | z has 13 positions: must have at most 12
    """)
    with torch.no_grad():
        model.blocks[0].mlp.down_proj.weight.mul_(1.001)
    with pytest.raises(
        ValueError, match="cache: the weights have changed since it was made; prefill again"
    ):
        model.extend(z, t, cache)


def test_a_network_that_keeps_less_than_every_token_is_refused_by_name(folders, monkeypatch):
    model = made(folders)
    to_transformers = type(model).to_transformers

    class Short:
        def __init__(self, kept):
            self.layers = [
                type("Layer", (), {"get_seq_length": lambda self: 1})() for _ in range(ROWS)
            ]
            self.kept = kept

        def __getattr__(self, name):
            return getattr(self.kept, name)

    monkeypatch.setattr(
        type(model), "to_transformers", lambda self, cache: Short(to_transformers(self, cache))
    )
    with pytest.raises(
        ValueError,
        match=(
            r"does not keep keys and values of every token: use "
            r"dd\.sample\(controls=\[dd\.contrib\.Cache\('none'\)\]\)"
        ),
    ):
        model.prefill(draw(4))
