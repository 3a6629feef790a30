"""Families of one's own, code that comes with weights, and causal classes that stay causal."""

import json
import textwrap
from dataclasses import replace

import pytest
import torch
from hf_checkpoints import write_tokenizer
from hub_folders import MASK, TOKENS, change, ids, save, scatter, states
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

import ddlib as dd
from ddlib_models import hub
from ddlib_models.hub import known_families as records

ALLOW = r"trust=True \(on the command line --trust NAME, the model's\)"
THEIR_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

class TheirConfig(PretrainedConfig):
    model_type = "theirs"
    def __init__(self, vocab_size=20, dim=8, **rest):
        self.vocab_size, self.dim = vocab_size, dim
        super().__init__(**rest)

class TheirModel(PreTrainedModel):
    config_class = TheirConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.dim)
        self.head = torch.nn.Linear(config.dim, config.vocab_size)
        self.post_init()
    def forward(self, input_ids=None, attention_mask=None, **rest):
        x = self.embed(input_ids)
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = x + (x * seen[..., None]).sum(1, keepdim=True)
        return MaskedLMOutput(logits=self.head(x.tanh()))
"""


def llama() -> LlamaForCausalLM:
    size = dict(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    return LlamaForCausalLM(LlamaConfig(**size))


def family() -> hub.Family:
    """One whose network is code of the repository, one position to the left."""
    return hub.Family(hub.remote, model_types=("theirs",), shift=1)


@pytest.fixture
def theirs(tmp_path):
    """A folder whose network is code beside the weights."""
    (tmp_path / "their_code.py").write_text(textwrap.dedent(THEIR_CODE))
    classes = {
        "AutoConfig": "their_code.TheirConfig",
        "AutoModelForMaskedLM": "their_code.TheirModel",
    }
    config = dict(
        model_type="theirs", architectures=["TheirModel"], auto_map=classes, vocab_size=20, dim=8
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    embed = scatter(nn.Embedding(20, 8))
    head = scatter(nn.Linear(8, 20), 1)
    weights = {"embed.weight": embed.weight, "head.weight": head.weight, "head.bias": head.bias}
    save_file(
        {name: one.detach() for name, one in weights.items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    write_tokenizer(tmp_path, MASK)
    return tmp_path, embed, head


@torch.no_grad()
def test_code_of_a_repository_runs_only_when_it_is_trusted(theirs, monkeypatch, tmp_path):
    folder, embed, head = theirs
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        ValueError,
        match="model_type 'theirs', architecture 'TheirModel': none of the families a2d, ",
    ):
        hub.load(folder)
    with pytest.raises(
        PermissionError,
        match=rf"their_code.TheirModel is code .* loading it runs this code.*{ALLOW}",
    ):
        hub.load(folder, family=family())
    _, denoiser, _, _ = hub.load(folder, family=family(), trust=True)
    z = states(TOKENS)
    x = embed(ids(z, TOKENS))
    logits = head((x + x.sum(1, keepdim=True)).tanh())[..., :TOKENS]
    want = torch.cat([logits[:, :1], logits[:, :-1]], 1)
    drawn = torch.arange(TOKENS) != MASK
    torch.testing.assert_close(
        denoiser(z, torch.rand(3))[..., drawn], want[..., drawn], rtol=1e-5, atol=1e-5
    )
    alone = denoiser(z[1:2, 2:], torch.rand(1))
    torch.testing.assert_close(
        denoiser.with_padding(torch.tensor([0, 2, 1]))(z, torch.rand(3))[1:2, 2:], alone
    )


def test_features_beyond_llama_are_read_by_trusted_code(theirs, monkeypatch, tmp_path):
    folder, _, _ = theirs
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    code = (folder / "their_code.py").read_text().replace('"theirs"', '"llada"')
    (folder / "their_code.py").write_text(code)
    change(folder, model_type="llada", attention_layer_norm=True, block_type="llama")
    with pytest.raises(
        PermissionError, match=rf"layer_norm_type='default': must be .* then pass {ALLOW}"
    ):
        hub.load(folder)
    assert isinstance(hub.load(folder, trust=True).denoiser.network, hub.networks.Remote)


def test_a_custom_family_is_an_entry_point(tmp_path, monkeypatch):
    save(tmp_path, llama())
    change(tmp_path, model_type="a2d-mine")

    def mine():
        native = lambda config: {**config, "model_type": "llama"}  # noqa: E731
        return replace(records.a2d(), model_types=("a2d-mine",), native=native)

    def get(kind, name):
        if name == "broken":
            raise ImportError("broken does not load")
        return {"mine": mine, "other": lambda: 3}[name]

    monkeypatch.setattr(
        dd.registry, "available", lambda kind: dict.fromkeys(["broken", "mine", "other"])
    )
    monkeypatch.setattr(dd.registry, "find", get)
    assert list(hub.families())[-2:] == ["mine", "other"]
    found, *others = (hub.load(tmp_path, family=one).special for one in (None, "mine", mine()))
    assert others == [found, found]
    with pytest.raises(ImportError, match="broken does not load"):
        hub.load(tmp_path, family="broken")
    with pytest.raises(ImportError, match=r"families 'other' returns 3, must return a"):
        hub.load(tmp_path, family="other")


def test_a_causal_class_that_stays_causal(tmp_path):
    config = MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(
        ValueError, match="MambaForCausalLM is causal and its mask cannot be turned off"
    ):
        hub.load(save(tmp_path, MambaForCausalLM(config)))


class Causal(nn.Module):
    """Causal network that ignores the attention mask; by blocks, or none."""

    own_times = True

    def __init__(self, source, ahead=0):
        super().__init__()
        self.words = source.vocab_size
        self.ahead = ahead
        self.block_size = source.block_size

    def forward(self, z, t):
        seen = nn.functional.one_hot(z, self.words + 1).float().cumsum(1)
        last = (torch.arange(z.shape[1]) + self.ahead).clamp_max(z.shape[1] - 1)
        return seen[:, last, : self.words]


CAUSAL = "is causal and its mask cannot be turned off"
SEEN = [(0, 0, CAUSAL), (0, 3, "is causal"), (5, 3, "attends beyond its blocks of 3")]


@pytest.mark.parametrize(("ahead", "size", "message"), SEEN)
def test_attention_is_probed_at_load(tmp_path, ahead, size, message):
    folder = save(tmp_path, llama())
    with pytest.raises(ValueError, match=message):
        hub.load(folder, family=hub.Family(lambda source: Causal(source, ahead)), block_size=size)


def test_half_precision_returns_float32(tmp_path):
    folder = save(tmp_path, llama())
    whole, half = (
        hub.load(folder, family="a2d", dtype=dtype).denoiser
        for dtype in (torch.float32, torch.bfloat16)
    )
    z = states(TOKENS)
    t = torch.rand(3)
    assert next(half.parameters()).dtype == torch.bfloat16 and half(z, t).dtype == torch.float32
    torch.testing.assert_close(half(z, t), whole(z, t), rtol=0.1, atol=0.1)
    tokens = dd.sample(dd.presets.mdlm(TOKENS), half, (2, 5), steps=3)
    assert not bool((tokens == MASK).any())


def test_endings_of_a_text(tmp_path):
    folder = save(tmp_path, llama(), eos_token="w9", pad_token="w8")
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[9, 7])))
    special = hub.load(folder, family="a2d").special
    assert (special.eos, special.eot, special.pad, special.ends) == (9, None, 8, (9, 7))
    assert (
        special.answer([1, 2, 7, 3, 9]) == special.answer(torch.tensor([1, 2, 7, 3, 9])) == [1, 2]
    )
    batch = [[1, 9, 2, 7, 3], [1, 9, 4, 5, 6]]
    assert special.answer(batch) == [[1], [1]] and special.answer(
        torch.tensor(batch), prompt=2
    ) == [
        [2],
        [4, 5, 6],
    ]
    assert (
        special.answer([torch.tensor(row) for row in batch], 3) == [[], [5, 6]]
        and special.answer([1], 1) == []
    )
    for count in (-1, 6):
        with pytest.raises(
            ValueError, match=rf"prompt={count}: must lie in 0\.\.5, as it is a number"
        ):
            special.answer(batch, count)
    assert [(one.token, one.fill) for one in special.endings()] == [(9, 8), (7, 8)]
