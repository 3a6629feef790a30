"""DiT by blocks: attention between blocks, and noisy and clean text side by side against one pass
per block.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with
from tiny import STATES, WORDS, trained
from zoo.trees import ELEVEN_IN_TWO

from ddlib_models import DiT
from ddlib_models.attention.backends import SDPA, Attention, Flex, cached_mask
from ddlib_models.attention.masks import ByBlocks
from ddlib_models.hf.auto import DiTConfig, DiTModel

unfused = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
HEADS = dict(num_clusters=2, tree=ELEVEN_IN_TWO)


def text(
    length: int, seed: int = 0, batch: int = 2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clean tokens, states, a time for each position."""
    draw = torch.Generator().manual_seed(seed)
    x, z = (torch.randint(most, (batch, length), generator=draw) for most in (WORDS, STATES))
    return x, z, torch.rand(batch, length, dtype=torch.float64, generator=draw)


def one_by_one(call, size: int, x: torch.Tensor, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Block b of ``call(z_b, t_b)``: x at time 0 before the block, and behind it what must not
    matter.
    """
    parts = []
    for begin in range(0, x.shape[1], size):
        end = min(begin + size, x.shape[1])
        behind = (z[:, end:] + begin + 1) % STATES
        states = torch.cat([x[:, :begin], z[:, begin:end], behind], 1)
        times = torch.cat([torch.zeros_like(t[:, :begin]), t[:, begin:end], 1 - t[:, end:]], 1)
        parts.append(call(states, times)[:, begin:end])
    return torch.cat(parts, 1)


@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 9))
def test_the_rule_by_enumeration(size, before, length):
    rule = ByBlocks(size, first=before * size)
    first = before * size
    found = rule(torch.arange(length)[:, None], torch.arange(first + length))
    for q in range(length):
        assert found[q].tolist() == [
            k // size <= (first + q) // size for k in range(first + length)
        ]
    both = ByBlocks(size, noisy=length)(torch.arange(2 * length)[:, None], torch.arange(2 * length))
    for q in range(2 * length):
        for k in range(2 * length):
            own, other = (i % length // size for i in (q, k))
            seen = other == own if k < length else other < own or (q >= length and other == own)
            assert both[q, k] == (seen and (q < length or k >= length))


@settings(max_examples=examples(40))
@given(st.integers(1, 9), st.integers(1, 10), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_a_position_sees_its_block_and_those_before(length, size, depth, conditioned, seed):
    model = trained(block_size=size, depth=depth, time_conditioned=conditioned).double()
    _, z, t = text(length, seed)
    changed = seed % length
    other = z.clone()
    other[:, changed] = (z[:, changed] + 1) % STATES
    moved = ((model(z, t) - model(other, t)).abs() > 1e-12).any(-1)
    assert moved.tolist() == [[i // size >= changed // size for i in range(length)]] * 2
    if size >= length:
        assert torch.equal(
            model(z, t), trained(depth=depth, time_conditioned=conditioned).double()(z, t)
        )


@settings(max_examples=examples(60))
@given(
    st.integers(1, 9),
    st.integers(1, 10),
    st.integers(1, 3),
    st.sampled_from(["each", "one", "none"]),
    st.integers(0, 99),
)
def test_one_pass_gives_the_logits_of_a_pass_per_block(length, size, depth, timed, seed):
    model = trained(
        block_size=size, depth=depth, time_conditioned=timed != "none", **HEADS
    ).double()
    x, z, t = text(length, seed)
    if timed == "one":
        t = t[:, :1].expand(-1, length)
    short = t[:, 0] if timed == "one" else t
    kinds = [
        (model, model),
        (model.features, model.features),
        (lambda *a, **k: model.with_clusters(*a, **k)[1], lambda *a: model.with_clusters(*a)[1]),
    ]
    for together, apart in kinds:
        expected = one_by_one(apart, size, x, z, t)
        torch.testing.assert_close(together(z, short, clean=x), expected, atol=1e-12, rtol=1e-12)


@settings(max_examples=examples(20))
@given(st.integers(1, 7), st.integers(1, 8), st.integers(1, 3), st.integers(0, 99))
def test_gradients_of_all_blocks_at_once_are_those_of_block_after_block(length, size, depth, seed):
    x, z, t = text(length, seed)
    weight = torch.randn(
        2, length, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    found = []
    for together in (True, False):
        model = trained(block_size=size, depth=depth).double()
        logits = model(z, t, clean=x) if together else one_by_one(model, size, x, z, t)
        (weight * logits.log_softmax(-1)).sum().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in found[1].items():
        torch.testing.assert_close(found[0][name], expected, atol=1e-10, rtol=1e-10)


def test_single_precision_agrees_to_its_digits():
    x, z, t = text(9)
    model = trained(block_size=4)
    expected = one_by_one(model, 4, x, z, t.float())
    torch.testing.assert_close(model(z, t.float(), clean=x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 7])
def test_without_blocks_nothing_changes(length):
    _, z, t = text(length)
    assert torch.equal(trained(block_size=0)(z, t.float()), trained()(z, t.float()))


@unfused
@pytest.mark.parametrize("attend", [SDPA(), Flex()], ids=["sdpa", "flex"])
def test_every_back_end_and_some_positions_only(attend):
    model, plain = (trained(block_size=3, attention=one).double() for one in (attend, SDPA()))
    x, z, t = text(8)
    with torch.no_grad():
        torch.testing.assert_close(model(z, t), plain(z, t), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(
            model(z, t, clean=x), plain(z, t, clean=x), atol=1e-12, rtol=1e-12
        )
        where = torch.tensor([[7, 0, 4], [2, 2, 5]])
        expected = plain.features(z, t).take_along_dim(where[..., None], 1)
        torch.testing.assert_close(model.features_at(z, t, where), expected, atol=1e-12, rtol=1e-12)
        offsets = torch.tensor([0, 3, 8])  # blocks are counted within each sequence
        separate = torch.cat([plain(z[:1, :3], t[:1, :3]), plain(z[:1, 3:], t[:1, 3:])], 1)
        for pack in (offsets, model.pack(offsets)):
            torch.testing.assert_close(model(z[:1], t[:1], pack), separate, atol=1e-12, rtol=1e-12)


def test_masks_are_made_once_and_serve_training_after_inference(monkeypatch):
    made = []
    real = SDPA.mask_by
    monkeypatch.setattr(
        SDPA, "mask_by", lambda self, *given: made.append(given[1:]) or real(self, *given)
    )
    model = trained(block_size=2, depth=4).double()
    (x, z, t) = text(11)
    made.clear()
    with torch.inference_mode():
        model(z, t, clean=x)
    assert made == [(22, 22, z.device), (11, 22, z.device)]
    model(z, t, clean=x).sum().backward()
    assert (
        len(made) == 2
        and not cached_mask(SDPA(), ByBlocks(2, noisy=11), 22, 22, z.device).is_inference()
    )


def test_the_last_layer_works_for_the_noisy_half_only():
    from torch.utils.flop_counter import FlopCounterMode

    model = trained(block_size=2, depth=1)
    (x, z, t) = text(8)
    with FlopCounterMode(display=False, depth=9) as counted:
        model(z, t.float(), clean=x)
    flops = {name: sum(of.values()) for name, of in counted.get_flop_counts().items()}
    tokens = 2 * 8
    d = 16
    assert flops["DiT.blocks.0.mlp"] == 2 * tokens * d * 8 * d, "four times as wide, there and back"
    assert flops["DiT.blocks.0.attention.qkv"] == 2 * (2 * tokens) * d * 3 * d
    assert flops["DiT.blocks.0.attention.out"] == 2 * tokens * d * d
    assert flops["DiT.head"] == 2 * tokens * d * WORDS


@pytest.mark.usefixtures("compilable")
def test_side_by_side_compiles_to_one_graph():
    model = trained(block_size=3)
    (x, z, t) = text(8)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(z, t.float(), clean=x), model(z, t.float(), clean=x))


@pytest.mark.usefixtures("compilable")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf", "ignore:`torch.jit.script_method`"
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_training_step_compiles(whole):
    """Layer by layer, as recipes do, and the whole network at once."""
    x, z, t = text(8)
    found = []
    for compiled in (False, True):
        model = trained(block_size=3).train()
        call = torch.compile(model, fullgraph=True) if compiled and whole else model
        for layer in model.blocks if compiled and not whole else ():
            layer.compile(fullgraph=True)
        call(z, t.float(), clean=x).square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-4)


def test_blocks_are_saved_and_known_to_transformers(tmp_path):
    model = trained(block_size=3).eval()
    (x, z, t) = text(8)
    model.save_pretrained(tmp_path)
    loaded = DiT.from_pretrained(tmp_path)
    assert loaded.block_size == 3 and torch.equal(
        loaded(z, t.float(), clean=x), model(z, t.float(), clean=x)
    )
    theirs = DiTModel.from_pretrained(tmp_path)
    assert theirs.config.block_size == theirs.block_size == 3
    assert torch.equal(theirs(z, t.float(), clean=x), model(z, t.float(), clean=x))
    assert DiTModel(DiTConfig(**trained().saved_arguments())).block_size == 0


class Plain(Attention):
    """A back end without attention rules."""

    def mask(self, cu_seqlens):
        return None

    def __call__(self, q, k, v, mask=None):
        return v


@pytest.mark.usefixtures("as_users_call")
def test_impossible_values_are_refused_by_name():
    x, z, t = text(6)
    with pytest.raises(ValueError, match="block_size=-1: must be at least 0"):
        trained(block_size=-1)
    with pytest.raises(
        ValueError, match="attention Plain: does not support this attention mask; 'sdpa'"
    ):
        trained(block_size=2, attention=Plain())
    trained(attention=Plain())
    model = trained(block_size=2).double()
    refused_with(model=model, t=t, x=x, z=z)(r"""
        trained().double()(z, t, clean=x) | ValueError | clean: not with block_size=0
        model(z, t, clean=x[:, 1:]) | ValueError
            | clean has shape \(2, 5\): expected that of z, \(2, 6\)
        model(x, t, clean=torch.arange(12).view(2, 6) + torch.tensor([[0], [2]]))
            | ValueError | clean holds tokens 0..13: must lie in 0..vocab_size-1=10
        model(z[:1], t[:1], torch.tensor([0, 6]), clean=x[:1]) | ValueError
            | cu_seqlens and clean: at most one of them
    """)
