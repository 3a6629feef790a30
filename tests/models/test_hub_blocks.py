"""Families of block-causal diffusion language models in ``ddlib_models.hub``: logits, masks,
shifts, block sizes.
"""

import json

import pytest
import torch
from cases import caches
from hf_checkpoints import write_tokenizer
from hub_folders import MASK, TOKENS, change, ids, scatter, states
from safetensors.torch import load_file, save_file
from transformers import (
    Ministral3Config,
    Ministral3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
)
from transformers import Qwen3MoeForCausalLM as Qwen3Moe

import ddlib as dd
from ddlib.typing import BlockDenoiser, SplitDenoiser
from ddlib_models import hub

ROWS = 20
SIZE = 4
LENGTH = 10
THETA = 1e6
COMMON = dict(
    vocab_size=ROWS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=24,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
)
OLD = dict(
    rope_theta=THETA,
    rope_scaling=None,
    use_sliding_window=False,
    sliding_window=None,
    torch_dtype="float32",
)
"""Keys of config.json as versions 4 of transformers write them."""
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
EXPERTS = dict(
    head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True
)
EXPERTS |= dict(decoder_sparse_step=1, mlp_only_layers=[])
KINDS = {
    "sdar": (
        dict(
            model_type="sdar",
            architectures=["SDARForCausalLM"],
            block_size=SIZE,
            mask_token_id=MASK,
            head_dim=8,
        )
        | dict(
            fuse_cross_entropy=True,
            auto_map={"AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"},
        ),
        lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, **ROPE, head_dim=8)),
        SIZE,
        0,
    ),
    "sdar_moe": (
        dict(
            model_type="sdar_moe",
            architectures=["SDARMoeForCausalLM"],
            block_size=SIZE,
            mask_token_id=MASK,
        )
        | EXPERTS
        | dict(auto_map={"AutoModelForCausalLM": "modeling_sdar_moe.SDARMoeForCausalLM"}),
        lambda: Qwen3Moe(Qwen3MoeConfig(**COMMON, **ROPE, **EXPERTS)),
        SIZE,
        0,
    ),
    "fast_dllm": (
        dict(model_type="Fast_dLLM_Qwen", architectures=["Fast_dLLM_QwenForCausalLM"], bd_size=SIZE)
        | dict(auto_map={"AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM"}),
        lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON, **ROPE)),
        SIZE,
        1,
    ),
    "rnd1": (
        dict(
            model_type="rnd1",
            architectures=["RND1LM"],
            mask_token_id=MASK,
            num_diffusion_steps=256,
            is_causal=False,
        )
        | {key: value for key, value in EXPERTS.items() if key != "norm_topk_prob"}
        | dict(
            rope_scaling=False,
            sliding_window=False,
            auto_map={"AutoModelForMaskedLM": "modeling_rnd.RND1LM"},
        ),
        lambda: Qwen3Moe(Qwen3MoeConfig(**COMMON, **ROPE, **EXPERTS)),
        0,
        1,
    ),
}
CASES = pytest.mark.parametrize("kind", KINDS)


def published(folder, kind):
    """The folder as its makers publish it, and the network of transformers with the same
    weights.
    """
    config, make, _, _ = KINDS[kind]
    network = scatter(make())
    network.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(COMMON | OLD | config))
    write_tokenizer(folder, MASK)
    return network


def by_hand(network, z: torch.Tensor, size: int, shift: int) -> torch.Tensor:
    """Logits of each position, one call per block: that block and those before it, and nothing
    else.
    """
    length = z.shape[1]
    parts = []
    for start in range(0, length, size or length):
        end = min(start + (size or length), length)
        block = torch.arange(end) // (size or length)
        seen = (block[:, None] >= block)[None, None].expand(len(z), 1, -1, -1)
        logits = network(input_ids=z[:, :end], attention_mask=seen, use_cache=False).logits[
            ..., :TOKENS
        ]
        moved = torch.cat([logits[:, :shift], logits[:, : end - shift]], 1)
        parts.append(moved[:, start:])
    return torch.cat(parts, 1)


def far(logits: torch.Tensor, own: torch.Tensor) -> float:
    drawn = torch.arange(own.shape[-1]) != MASK
    assert bool((logits[..., MASK] == -torch.inf).all())
    return float((logits - own)[..., drawn].abs().max())


def check_sampling(process, denoiser):
    """The same tokens with a cache and without, none of them the mask's id."""
    prompt = torch.tensor([5, 6, 7, 8, 9])
    sampler = dd.samplers.Confidence("probability", threshold=0.5)
    options = dict(steps=SIZE, prompt=prompt, temperature=0.0, pace=dd.paces.Blocks(SIZE))
    kept, again = (
        dd.sample(process, denoiser, (2, 12), sampler, controls=[*caches(keep)], **options)
        for keep in (True, False)
    )
    assert torch.equal(kept, again) and not bool((kept == MASK).any())


@CASES
@torch.no_grad()
def test_logits_are_those_of_the_native_class_under_their_mask_and_shift(tmp_path, kind):
    network = published(tmp_path, kind)
    (_, _, size, shift) = KINDS[kind]
    process, denoiser, _, special = hub.load(tmp_path)
    assert (process.num_states, special.mask, special.undrawn) == (TOKENS + 1, MASK, (MASK,))
    assert getattr(denoiser, "block_size", 0) == size and isinstance(
        denoiser, BlockDenoiser if size else SplitDenoiser
    )
    z = states(TOKENS, length=LENGTH)
    t = torch.rand(3)
    found = denoiser(z, t)
    assert far(found, by_hand(network, ids(z, TOKENS), size, shift)) < 1e-5
    others = {(0, 0), (0, 1), (2, 0), (2, 1), (SIZE, 0), (SIZE, 1)} - {(size, shift)}
    for wrong in others:  # another mask or shift gives other logits
        assert far(found, by_hand(network, ids(z, TOKENS), *wrong)) > 1e-2, wrong
    causal = network(input_ids=ids(z, TOKENS), use_cache=False).logits[..., :TOKENS]
    assert far(found, causal) > 1e-2


@pytest.mark.parametrize("kind", [kind for kind, (*_, size, _) in KINDS.items() if size])
@torch.no_grad()
def test_blocks_are_prefilled_and_extended(tmp_path, kind):
    network = published(tmp_path, kind)
    (_, _, size, shift) = KINDS[kind]
    denoiser = hub.load(tmp_path).denoiser
    assert isinstance(denoiser, BlockDenoiser)
    z = states(TOKENS, length=LENGTH)
    t = torch.rand(3)
    x = torch.where(z == TOKENS, MASK + 1, z)
    cache = denoiser.prefill(x[:, SIZE : 2 * SIZE], denoiser.prefill(x[:, :SIZE]))
    logits = denoiser.extend(z[:, 2 * SIZE :], t, cache)
    mixed = torch.cat([x[:, : 2 * SIZE], z[:, 2 * SIZE :]], 1)
    own = by_hand(network, ids(mixed, TOKENS), size, shift)[:, 2 * SIZE :]
    assert far(logits, own) < 1e-5
    torch.testing.assert_close(denoiser(z, t, clean=x)[:, 2 * SIZE :], logits, rtol=1e-5, atol=1e-5)
    check_sampling(hub.load(tmp_path).process, denoiser)


@pytest.mark.parametrize("kind", ["sdar", "fast_dllm"])
def test_another_block_size_than_the_checkpoints_is_refused(tmp_path, kind):
    published(tmp_path, kind)
    key = hub.families()[kind]().block_size
    for given in (8, 0):
        with pytest.raises(
            ValueError,
            match=rf"block_size={given}: must be 4, {key} of config.json, which .* trained",
        ):
            hub.load(tmp_path, block_size=given)
    assert hub.load(tmp_path, block_size=SIZE).denoiser.block_size == SIZE
    with pytest.raises(
        ValueError, match=rf"config.json has no {key}, the number of .* block: pass block_size=N"
    ):
        hub.load(change(tmp_path, **{key: None}))
    assert hub.load(tmp_path, block_size=SIZE).denoiser.block_size == SIZE


LLADA2 = """
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

class LLaDA2MoeConfig(Qwen3Config):
    model_type = "llada2_moe"

class Rotary(Qwen3RotaryEmbedding):
    def __init__(self, config):
        super().__init__(config)
        self.rope_init_fn = self.compute_default_rope_parameters

class LLaDA2MoeModelLM(Qwen3ForCausalLM):
    config_class = LLaDA2MoeConfig
    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb = Rotary(config)
    def _init_weights(self, module):
        # code for transformers 4 leaves buffers without a file uninitialised in transformers 5
        pass
    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None, **rest
    ):
        batch, length = input_ids.shape
        if attention_mask.size() != (batch, 1, length, length):
            raise ValueError(f"only masks (B, 1, L, L), got {tuple(attention_mask.size())}")
        return super().forward(
            input_ids, attention_mask=attention_mask, position_ids=position_ids,
            use_cache=use_cache, **rest
        )
"""
"""Code of a repository that takes what LLaDA2's takes, with another network behind it."""


@torch.no_grad()
def test_llada2_is_read_by_code_that_is_trusted_in_blocks_of_32(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    network = scatter(Qwen3ForCausalLM(Qwen3Config(**COMMON, **ROPE, head_dim=8)))
    network.save_pretrained(tmp_path)
    config = (
        COMMON | OLD | dict(model_type="llada2_moe", architectures=["LLaDA2MoeModelLM"], head_dim=8)
    )
    auto = dict(AutoConfig="theirs.LLaDA2MoeConfig", AutoModelForCausalLM="theirs.LLaDA2MoeModelLM")
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": auto}))
    (tmp_path / "theirs.py").write_text(LLADA2)
    write_tokenizer(tmp_path, MASK)
    with pytest.raises(
        PermissionError, match=r"theirs.LLaDA2MoeModelLM is code .*pass trust=True \(on the command"
    ):
        hub.load(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"block_size=16: must be 32, as in all .* family, which .* was trained with",
    ):
        hub.load(tmp_path, block_size=16, trust=True)
    process, denoiser, _, special = hub.load(tmp_path, trust=True)
    assert (
        isinstance(denoiser, BlockDenoiser) and denoiser.block_size == 32 and special.mask == MASK
    )
    z = states(TOKENS, length=40)
    t = torch.rand(3)
    assert far(denoiser(z, t), by_hand(network, ids(z, TOKENS), 32, 0)) < 1e-5
    for wrong in ((0, 0), (8, 0), (32, 1)):
        assert far(denoiser(z, t), by_hand(network, ids(z, TOKENS), *wrong)) > 1e-2
    x = torch.where(z == TOKENS, MASK + 1, z)
    mixed = torch.cat([x[:, :32], z[:, 32:]], 1)
    found = denoiser.extend(z[:, 32:], t, denoiser.prefill(x[:, :32]))
    torch.testing.assert_close(found, denoiser(mixed, t)[:, 32:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(denoiser(z, t, clean=x)[:, 32:], found, rtol=1e-5, atol=1e-5)
    some = denoiser.prefill(x[:, :32]).rows(torch.tensor([2, 0]))
    torch.testing.assert_close(
        denoiser.extend(z[[2, 0], 32:], t[:2], some), found[[2, 0]], rtol=1e-5, atol=1e-5
    )
    sampler = dd.build("samplers", hub.families()["llada2"]().decoding)
    drawn = dd.sample(
        process, denoiser, (2, 64), sampler, steps=32, pace=dd.paces.Blocks(32), temperature=0.0
    )
    assert not bool((drawn == MASK).any())


YARN = dict(
    rope_type="yarn", rope_theta=THETA, factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0
)
YARN |= dict(mscale_all_dim=1.0, original_max_position_embeddings=4, llama_4_scaling_beta=0.1)
NEMOTRON = COMMON | dict(
    model_type="nemotron_labs_diffusion",
    architectures=["NemotronLabsDiffusionModel"],
    head_dim=8,
    block_size=SIZE,
    rope_parameters=YARN,
    sliding_window=None,
    attention_bias=False,
    mlp_bias=False,
    dlm_paradigm="bidirectional",
    mask_token_id=MASK,
    auto_map={"AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel"},
)


def nemotron(folder):
    network = scatter(
        Ministral3ForCausalLM(Ministral3Config(**COMMON, head_dim=8, rope_parameters=YARN))
    )
    network.save_pretrained(folder)
    theirs = {"model.": "encoder.", "lm_head.": "diffusion_head."}
    weights = load_file(folder / "model.safetensors")
    for own, name in theirs.items():
        weights = {
            name + key.removeprefix(own) if key.startswith(own) else key: w
            for key, w in weights.items()
        }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(NEMOTRON))
    write_tokenizer(folder, MASK)
    return network


def behind_causal(network, z, first=True, context=True):
    """Logits block by block: its positions see all before its end, those in front of it what is
    before them.
    """
    length = z.shape[1]
    found = []
    for start in range(0, length, SIZE):
        end = min(start + SIZE, length)
        index = torch.arange(end)
        before = index if context else index // SIZE
        seen = ((before[:, None] >= before) | (index[:, None] >= start))[None, None].expand(
            len(z), 1, -1, -1
        )
        logits = network(input_ids=z[:, :end], attention_mask=seen, use_cache=False).logits[
            ..., :TOKENS
        ]
        found.append(logits[:, start:].clone())
        if start and first:
            found[-1][:, 0] = logits[:, start - 1]
    return torch.cat(found, 1)


@torch.no_grad()
def test_nemotron_reads_blocks_behind_a_causal_context(tmp_path):
    network = nemotron(tmp_path)
    process, denoiser, _, special = hub.load(tmp_path)
    assert isinstance(denoiser, BlockDenoiser) and (denoiser.block_size, special.mask) == (
        SIZE,
        MASK,
    )
    z = states(TOKENS, length=LENGTH)
    t = torch.rand(3)
    found = denoiser(z, t)
    assert far(found, behind_causal(network, ids(z, TOKENS))) < 1e-5
    for wrong in (dict(first=False), dict(context=False)):
        assert far(found, behind_causal(network, ids(z, TOKENS), **wrong)) > 1e-2
    x = torch.where(z == TOKENS, MASK + 1, z)
    for done in (0, SIZE, 2 * SIZE):
        mixed = torch.cat([x[:, :done], z[:, done:]], 1)
        own = behind_causal(network, ids(mixed, TOKENS))[:, done:]
        cache = denoiser.prefill(x[:, SIZE:done], denoiser.prefill(x[:, : min(done, SIZE)]))
        assert far(denoiser.extend(z[:, done:], t, cache), own) < 1e-5
        here = slice(done, done + SIZE)
        assert far(denoiser(z, t, clean=x)[:, here], own[:, :SIZE]) < 1e-5
    check_sampling(process, denoiser)
    with pytest.raises(ValueError, match=r"block_size=8: must be 4, block_size of config.json"):
        hub.load(tmp_path, block_size=8)
    with pytest.raises(
        ValueError, match=r"dlm_paradigm='autoregressive': must be 'bidirectional' or 'block_diff'"
    ):
        hub.load(change(tmp_path, dlm_paradigm="autoregressive"))
