"""Families of ``ddlib_models.hub`` whose networks were causal: their weights, their shift, their
masks.
"""

import json

import pytest
import torch
from hf_checkpoints import write_tokenizer
from hub_folders import MASK, TOKENS, change, ids, save, scatter, states
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import ddlib as dd
from ddlib.typing import BlockDenoiser, SplitDenoiser
from ddlib_models import DiT, hub

ROWS = 20
SIZE = dict(
    vocab_size=ROWS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
SIZE |= dict(intermediate_size=24, max_position_embeddings=64)
CAUSAL = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZE, head_dim=8, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=ROWS, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    ),
}
LLADA = dict(
    model_type="llada",
    architectures=["LLaDAModelLM"],
    d_model=16,
    n_heads=2,
    n_kv_heads=2,
    n_layers=2,
    mlp_ratio=4,
    mlp_hidden_size=24,
    activation_type="silu",
    block_type="llama",
    block_group_size=1,
    alibi=False,
    rope=True,
    layer_norm_type="rms",
    layer_norm_with_affine=True,
    attention_layer_norm=False,
    include_bias=False,
    include_qkv_bias=False,
    bias_for_layer_norm=False,
    input_emb_norm=False,
    scale_logits=False,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    max_sequence_length=64,
    vocab_size=ROWS,
    embedding_size=ROWS,
    weight_tying=False,
    mask_token_id=MASK,
    auto_map={"AutoModel": "modeling_llada.LLaDAModelLM"},
)


def unmasked(
    network: nn.Module, z: torch.Tensor, size: int = 0, words: int = TOKENS
) -> torch.Tensor:
    """The logits of a causal class without its causality, another way: a boolean attention mask."""
    index = torch.arange(z.shape[1])
    seen = (
        index[:, None] // size >= index // size
        if size
        else torch.ones(len(index), len(index), dtype=torch.bool)
    )
    return network.eval()(
        input_ids=z, attention_mask=seen[None, None].expand(len(z), 1, -1, -1)
    ).logits[..., :words]


def compare(logits: torch.Tensor, own: torch.Tensor) -> None:
    drawn = torch.arange(own.shape[-1]) != MASK
    torch.testing.assert_close(logits[..., drawn], own[..., drawn], rtol=1e-5, atol=1e-5)
    assert bool((logits[..., MASK] == -torch.inf).all())


@pytest.mark.parametrize("kind", CAUSAL)
@torch.no_grad()
def test_a2d_is_the_causal_class_without_its_mask(tmp_path, kind):
    folder = save(tmp_path, CAUSAL[kind]())
    if kind == "qwen3":  # stock weights under another name
        change(
            folder,
            model_type="a2d-qwen3",
            architectures=["A2DQwen3LMHeadModel"],
            auto_map={"AutoModel": "x.Y"},
        )
    process, denoiser, _, special = hub.load(folder, family="a2d" if kind != "qwen3" else None)
    tokens = TOKENS + (kind == "qwen2")  # whose class of tokenizers adds the end of a text
    assert process.num_states == tokens + 1 and special.undrawn == (MASK,)
    assert isinstance(denoiser, SplitDenoiser)
    z = states(tokens)
    network = CAUSAL[kind]()
    network.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    network.tie_weights()
    compare(denoiser(z, torch.rand(3)), unmasked(network, ids(z, tokens), words=tokens))
    causal = network(input_ids=ids(z, tokens)).logits[..., :tokens]
    assert (
        float((causal - denoiser(z, torch.rand(3))).nan_to_num(neginf=0)[:, :-1].abs().max()) > 0.01
    )


@torch.no_grad()
def test_a2d_by_blocks(tmp_path):
    folder = save(tmp_path, CAUSAL["llama"]())
    process, denoiser, _, _ = hub.load(folder, block_size=2, family="a2d")
    assert isinstance(denoiser, BlockDenoiser) and denoiser.block_size == 2
    z = states(TOKENS)
    t = torch.rand(3)
    network = AutoModelForCausalLM.from_pretrained(folder)
    compare(denoiser(z, t), unmasked(network, ids(z, TOKENS), 2))
    x = z.clamp_max(TOKENS - 1)
    torch.testing.assert_close(
        denoiser.extend(z[:, 4:], t, denoiser.prefill(x[:, :4])), denoiser(z, t, clean=x)[:, 4:]
    )
    tokens = dd.sample(
        process, denoiser, (3, 6), dd.samplers.Confidence(), steps=2, pace=dd.paces.Blocks(2)
    )
    assert not bool((tokens == MASK).any())
    with pytest.raises(ValueError, match="blocks start at the left end"):
        denoiser.with_padding(torch.tensor([1]))


class TheirRotary(nn.Module):
    """LLaDA's network, written anew from its description: names of its weights, pre-norm, rotation
    of half a head.
    """

    def __init__(self, config: dict):
        super().__init__()
        d = config["d_model"]
        inner = config["mlp_hidden_size"]
        self.heads = config["n_heads"]
        self.few = config["n_kv_heads"]
        self.theta = config["rope_theta"]
        self.eps = config["rms_norm_eps"]
        kv = d // self.heads * self.few

        def linear(a, b):
            return nn.Linear(a, b, bias=False)

        def block():
            own = dict(
                q_proj=linear(d, d),
                k_proj=linear(d, kv),
                v_proj=linear(d, kv),
                attn_out=linear(d, d),
            )
            own |= dict(ff_proj=linear(d, inner), up_proj=linear(d, inner), ff_out=linear(inner, d))
            return nn.ModuleDict(
                own | dict(attn_norm=nn.RMSNorm(d, self.eps), ff_norm=nn.RMSNorm(d, self.eps))
            )

        parts = dict(wte=nn.Embedding(config["embedding_size"], d), ln_f=nn.RMSNorm(d, self.eps))
        parts |= dict(blocks=nn.ModuleList(block() for _ in range(config["n_layers"])))
        parts |= dict(ff_out=linear(d, config["embedding_size"]))
        self.model = nn.ModuleDict({"transformer": nn.ModuleDict(parts)})

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, H, L, K) by its place, two halves of a head as real and imaginary parts."""
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] / self.theta ** (torch.arange(half) / half)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat([turned.real, turned.imag], -1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts = self.model["transformer"]
        x = parts["wte"](ids)
        for block in parts["blocks"]:
            y = block["attn_norm"](x)
            size = x.shape[-1] // self.heads
            q, k, v = (
                block[f"{n}_proj"](y).unflatten(-1, (-1, size)).transpose(1, 2) for n in "qkv"
            )
            k, v = (one.repeat_interleave(self.heads // self.few, 1) for one in (self.turned(k), v))
            y = nn.functional.scaled_dot_product_attention(self.turned(q), k, v)
            x = x + block["attn_out"](y.transpose(1, 2).flatten(2))
            y = block["ff_norm"](x)
            x = x + block["ff_out"](nn.functional.silu(block["ff_proj"](y)) * block["up_proj"](y))
        return parts["ff_out"](parts["ln_f"](x))


def write_llada(folder, **changes):
    config = LLADA | changes
    network = scatter(TheirRotary(config))
    save_file(network.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, MASK)
    return network


@pytest.mark.parametrize("few", [2, 1])
@torch.no_grad()
def test_llada_is_llama_under_other_names(tmp_path, few):
    network = write_llada(tmp_path, n_kv_heads=few)
    _, denoiser, _, special = hub.load(tmp_path)
    assert special.mask == MASK
    z = states(TOKENS)
    compare(denoiser(z, torch.rand(3)), network(ids(z, TOKENS))[..., :TOKENS])


OPTIONS = [
    ("attention_layer_norm", True),
    ("alibi", True),
    ("rope", False),
    ("block_type", "sequential"),
]
OPTIONS += [
    ("activation_type", "swiglu"),
    ("include_qkv_bias", True),
    ("layer_norm_type", "default"),
]
OPTIONS += [("scale_logits", True)]


@pytest.mark.parametrize(("key", "value"), OPTIONS)
def test_features_beyond_llama_are_refused(tmp_path, key, value):
    write_llada(tmp_path)
    message = rf"{key}={value!r}: must be .* modeling_llada.LLaDAModelLM, then pass trust"
    with pytest.raises(PermissionError, match=message):
        hub.load(change(tmp_path, **{key: value}))
    with pytest.raises(
        ValueError, match=rf"{key}={value!r}: must be .* for Llama to be the same network"
    ):
        hub.load(change(tmp_path, **{key: value}, auto_map=None))


def test_weights_that_the_network_has_not_are_refused(tmp_path):
    network = write_llada(tmp_path)
    more = network.state_dict() | {"model.transformer.blocks.0.q_norm.weight": torch.ones(16)}
    save_file(more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"the network has no model.transformer.blocks.0.q_norm.weight"
    ):
        hub.load(tmp_path)


DREAM = dict(
    model_type="Dream",
    architectures=["DreamModel"],
    use_mrope=False,
    mask_token_id=None,
    rope_theta=1e4,
)


def write_dream(folder, **changes):
    """Dream's folder: weights of Qwen2, a tokenizer whose class is code beside it."""
    network = scatter(Qwen2ForCausalLM(Qwen2Config(**SIZE)))
    network.save_pretrained(folder)
    change(folder, **DREAM | changes, auto_map={"AutoModel": "modeling_dream.DreamModel"})
    tokens = {f"w{i}": i for i in range(TOKENS)} | {"<|mask|>": TOKENS, "<|endoftext|>": TOKENS + 1}
    (folder / "vocab.json").write_text(json.dumps(tokens))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    added = {
        str(i): dict(content=token, special=True) for token, i in list(tokens.items())[TOKENS:]
    }
    config = dict(tokenizer_class="DreamTokenizer")
    config |= dict(auto_map={"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]})
    config |= dict(mask_token="<|mask|>", eos_token="<|endoftext|>", added_tokens_decoder=added)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return network


@torch.no_grad()
def test_dream_is_qwen_one_position_to_the_right(tmp_path):
    network = write_dream(tmp_path)
    tokens = TOKENS + 2
    _, denoiser, _, special = hub.load(tmp_path)
    assert (special.mask, special.vocab_size, special.undrawn) == (TOKENS, tokens, (TOKENS,))
    assert special.ends == (TOKENS + 1,)
    z = states(tokens, TOKENS)
    z = torch.where(z < tokens, z % TOKENS, z)
    own = unmasked(network, torch.where(z == tokens, TOKENS, z), words=tokens)
    want = torch.cat([own[:, :1], own[:, :-1]], 1)
    drawn = torch.arange(tokens) != TOKENS
    logits = denoiser(z, torch.rand(3))
    torch.testing.assert_close(logits[..., drawn], want[..., drawn], rtol=1e-5, atol=1e-5)
    left = torch.tensor([0, 3, 1])
    padded = denoiser.with_padding(left)(z, torch.rand(3))
    for row, start in enumerate(left.tolist()):
        alone = denoiser(z[row : row + 1, start:], torch.rand(1))
        torch.testing.assert_close(padded[row : row + 1, start:], alone, rtol=1e-4, atol=1e-4)


def test_another_dream_is_refused(tmp_path):
    write_dream(tmp_path)
    with pytest.raises(
        ValueError, match=r"model_type 'Dream', architecture 'DreamOther': none of the"
    ):
        hub.load(change(tmp_path, architectures=["DreamOther"]))
    with pytest.raises(PermissionError, match=r"block_size=32: must be absent for Qwen2"):
        hub.load(change(tmp_path, architectures=["DreamModel"], block_size=32))


class Copies(nn.Module):
    """A network that predicts at every position the token at this distance to the right."""

    def __init__(self, words: int, to_the_right: int):
        super().__init__()
        self.words = words
        self.to_the_right = to_the_right

    def forward(self, z, t):
        index = (torch.arange(z.shape[1]) + self.to_the_right).clamp(0, z.shape[1] - 1)
        return nn.functional.one_hot(z[:, index].clamp_max(self.words - 1), self.words).float()


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_a_copying_network_detects_the_shift(shift):
    """Its predictions are one position early: only the right shift aligns them with the
    positions.
    """
    special = hub.Special(9, None, None, None, None, None, (), ())
    z = torch.arange(6)[None]
    predicted = hub.Adapted(Copies(9, shift), special, shift)(z, torch.zeros(1)).argmax(-1)
    assert predicted[0, shift:].tolist() == z[0, shift:].tolist()
    assert (
        predicted[0, :shift].tolist() == z[0, shift : 2 * shift].tolist()
    )  # the first stay where they stand
    wrong = hub.Adapted(Copies(9, shift), special, shift + 1)(z, torch.zeros(1)).argmax(-1)
    assert wrong[0, shift + 1 :].tolist() != z[0, shift + 1 :].tolist()


@pytest.mark.parametrize("tree", [None, [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]]])
def test_folders_written_by_ddlib(tmp_path, tree):
    torch.manual_seed(0)
    model = scatter(
        DiT(num_states=12, vocab_size=11, dim=16, depth=2, heads=2, cond_dim=8, tree=tree)
    )
    write_tokenizer(tmp_path / "tokens", None, 11)
    model.save_pretrained(
        tmp_path / "ours",
        extra={"tokenizer.json": (tmp_path / "tokens/tokenizer.json").read_text()},
    )
    process, denoiser, _, special = hub.load(tmp_path / "ours")
    z = torch.randint(12, (3, 5))
    t = torch.rand(3)
    assert torch.equal(denoiser(z, t), model(z, t)) and special.undrawn == ()
    assert dd.sample(
        process, denoiser, (2, 5), steps=4, parameterization=denoiser.parameterization
    ).shape == (2, 5)


def test_folders_of_ddlib_with_other_noise(tmp_path):
    DiT(num_states=14, vocab_size=11, dim=16, depth=1, heads=2).save_pretrained(tmp_path / "ours")
    with pytest.raises(
        ValueError, match=r"num_states=14, vocab_size=11: its noise is defined by these"
    ):
        hub.load(tmp_path / "ours")
