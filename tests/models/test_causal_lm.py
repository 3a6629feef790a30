"""Hugging Face's causal language models as backbones: whom a position sees, whose logits stand
where, what is kept.
"""

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hf_checkpoints import CAUSAL, ROWS, WORDS, check_use, write, write_causal
from saving import SAVED, same
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PhiConfig
from zoo.trees import ELEVEN

import ddlib as dd
from ddlib.typing import BlockDenoiser, OwnTimes, SparseDenoiser, SplitDenoiser
from ddlib_models.attention.sight import sight_mask
from ddlib_models.hf.causal_lm import CausalLM, causal_lm

LENGTH = 8
kinds = pytest.mark.parametrize("kind", CAUSAL)
every_kind = pytest.mark.parametrize("kind", CAUSAL)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return write_causal(tmp_path_factory.mktemp("theirs"))


def made(folder: Path, states: int = WORDS + 1, **how) -> CausalLM:
    return causal_lm(states, WORDS, str(folder), **how)


def stock(folder: Path, is_causal: bool = True) -> nn.Module:
    config = AutoConfig.from_pretrained(folder)
    config.is_causal = is_causal
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def texts(batch: int = 3, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(1))


def at(z: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0, 1, len(z))


@every_kind
@torch.no_grad()
def test_looking_both_ways_is_the_models_own_forward_without_causality(folders, kind):
    """Their classes read ``is_causal`` of their configuration; masks of ones mean the same."""
    z = texts()
    model = made(folders[kind])
    theirs = stock(folders[kind], is_causal=False)
    every = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    for logits in (theirs(z).logits, stock(folders[kind])(z, attention_mask=every).logits):
        assert (
            torch.allclose(model(z, at(z)), logits[..., :WORDS], atol=1e-5) and logits.std() > 0.1
        )
    assert torch.equal(model(z, at(z)), model(z, 1 - at(z))), "the time is ignored"
    assert not model.training and model.max_length == 12


@every_kind
@torch.no_grad()
def test_causal_attention_is_the_model_as_it_was_bit_for_bit(folders, kind):
    z = texts()
    model = made(folders[kind], attention="causal")
    theirs = stock(folders[kind])
    assert torch.equal(model.features(z, at(z)), theirs.model(z).last_hidden_state)
    assert torch.allclose(model(z, at(z)), theirs(z).logits[..., :WORDS], atol=1e-6), (
        "of fewer rows at once"
    )


@kinds
@torch.no_grad()
def test_eager_attention_takes_the_same_masks(folders, kind):
    z = texts()
    model = made(folders[kind])
    sdpa = model(z, at(z))
    model.network.set_attn_implementation("eager")
    assert torch.allclose(model(z, at(z)), sdpa, atol=1e-5)


def influence(model, z: torch.Tensor, **kwargs) -> torch.Tensor:
    """Positions (rows) that change when a token (columns) does."""
    before = model(z, at(z), **kwargs)
    columns = []
    for place in range(z.shape[1]):
        other = z.clone()
        other[:, place] = (other[:, place] + 1) % WORDS
        columns.append((model(other, at(z), **kwargs) != before).any(-1).any(0))
    return torch.stack(columns, 1)


@kinds
@torch.no_grad()
def test_visible_positions(folders, kind):
    ones = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    blocks = torch.block_diag(*[torch.ones(3, 3)] * 3)[:LENGTH, :LENGTH].bool()
    for how, expected in [
        ({}, ones),
        ({"attention": "causal"}, ones.tril()),
        ({"block_size": 3}, ones.tril() | blocks),
        ({"anneal": 4}, ones),  # in evaluation mode
        ({"attention": "causal", "shift": 1}, torch.cat([ones.tril()[:1], ones.tril()[:-1]])),
    ]:
        assert torch.equal(influence(made(folders[kind], **how), texts()), expected), how


@torch.no_grad()
def test_the_future_comes_into_sight_step_by_step(folders):
    """With 30 draws per pair a share of 1/2 that lay outside 0.4..0.6 over 28 pairs would be 5.8
    sigma off.
    """
    model = made(folders["llama"], anneal=4).train()
    ones = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    seen = []
    for step, share in [(0, 0.0), (1, 0.25), (2, 0.5), (4, 1.0), (9, 1.0)]:
        model.at_step(step)
        assert model.sight == share
    model.at_step(0)
    assert torch.equal(influence(model, texts()), ones.tril())
    model.at_step(2)
    torch.manual_seed(0)
    for _ in range(30):
        seen.append(sight_mask(LENGTH, LENGTH, 0, model.sight, torch.device("cpu")))
    share = torch.stack(seen).float().mean(0)
    assert torch.equal(share.tril(), ones.tril().float())
    assert 0.4 < float(share[~ones.tril()].mean()) < 0.6 and float(share[~ones.tril()].max()) < 1
    first = model(texts(), at(texts()))
    torch.manual_seed(3)
    assert not torch.equal(model(texts(), at(texts())), first)
    torch.manual_seed(3)
    again = model(texts(), at(texts()))
    torch.manual_seed(3)
    assert torch.equal(model(texts(), at(texts())), again), (
        "the draw is that of torch's generator, as dropout's is"
    )


def test_training_without_a_step_is_refused(folders):
    model = made(folders["llama"], anneal=4)
    model(texts(), at(texts()))  # in evaluation mode
    with pytest.raises(RuntimeError, match=r"anneal=4: attention in training .* call at_step"):
        model.train()(texts(), at(texts()))
    model.at_step(0)
    model(texts(), at(texts()))
    made(folders["llama"]).train()(texts(), at(texts()))


class Echo(nn.Module):
    """Stand-in for a network: the output of a position is its own embedding."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.table = network.get_input_embeddings()
        self.config = network.config

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, inputs_embeds=None, **how):
        return SimpleNamespace(logits=inputs_embeds)


@pytest.mark.parametrize("shift", [0, 1])
@torch.no_grad()
def test_a_model_that_copies_its_token_reveals_the_shift(folders, shift):
    model = made(folders["llama"], shift=shift)
    model.network = Echo(model.network)
    model.decoder.weight.copy_(torch.eye(ROWS, 16))
    model.network.table.weight.copy_(torch.eye(ROWS, 16))
    z = texts()
    predicted = model(z, at(z)).argmax(-1)
    assert torch.equal(predicted, torch.cat([z[:, :1], z[:, :-1]], 1) if shift else z)
    late = torch.arange(LENGTH)[None] >= torch.tensor([[0], [2], [5]])
    predicted = model(z, at(z), present=late).argmax(-1)
    for row, first in enumerate((0, 2, 5)):
        alone = (
            torch.cat([z[row, first : first + 1], z[row, first:-1]]) if shift else z[row, first:]
        )
        assert torch.equal(predicted[row, first:], alone), (
            "the first that is present answers for itself"
        )


@pytest.mark.parametrize("shift", [0, 1])
@torch.no_grad()
def test_padding_in_the_middle_changes_nothing(folders, shift):
    model = made(folders["llama"], shift=shift)
    z = texts(length=5)
    apart = torch.cat([z[:, :2], torch.full((3, 3), 7), z[:, 2:]], 1)
    present = ((torch.arange(8) < 2) | (torch.arange(8) >= 5)).expand(3, -1)
    found = model(apart, at(apart), present=present)[present].view(3, 5, -1)
    torch.testing.assert_close(found, model(z, at(z)), atol=1e-5, rtol=0)


@kinds
@pytest.mark.parametrize(
    "how", [{}, {"shift": 1}, {"attention": "causal", "shift": 1}, {"block_size": 4}], ids=str
)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(folders, kind, how):
    model = made(folders[kind], **how)
    z = texts(length=5)
    padded = torch.cat([torch.full((3, 4), 7), z], 1)  # whole blocks, which count from the left
    present = (torch.arange(9) >= 4).expand(3, -1)
    assert torch.allclose(model(padded, at(z), present=present)[:, 4:], model(z, at(z)), atol=1e-5)
    assert model(padded, at(z), present=present).isfinite().all()


@kinds
@pytest.mark.parametrize("shift", [0, 1])
@torch.no_grad()
def test_blocks_keep_the_contract_of_a_block_denoiser(folders, kind, shift):
    model = made(folders[kind], block_size=3, shift=shift)
    x = texts()
    z = texts().roll(1, 0)
    assert (
        isinstance(model, BlockDenoiser)
        and isinstance(model, OwnTimes)
        and isinstance(model, SplitDenoiser)
    )
    whole = model(z, at(z), clean=x)
    for start in range(0, LENGTH, 3):
        row = torch.cat([x[:, :start], z[:, start:]], 1)
        assert torch.allclose(
            whole[:, start : start + 3], model(row, at(z))[:, start : start + 3], atol=1e-5
        )
        cache = model.prefill(x[:, :start])
        assert torch.allclose(
            model.extend(z[:, start:], at(z), cache), model(row, at(z))[:, start:], atol=1e-6
        )
        grown = model.prefill(x[:, :0])
        for begin in range(0, start, 3):
            grown = model.prefill(x[:, begin : begin + 3], grown)
        assert torch.allclose(
            model.extend(z[:, start:], at(z), grown), model(row, at(z))[:, start:], atol=1e-6
        )
        assert torch.equal(cache.tokens, grown.tokens) and cache.length == start


@kinds
@torch.no_grad()
def test_halves_are_the_whole(folders, kind):
    model = made(folders[kind], shift=1)
    z = texts()
    weight, bias = model.output_weights()
    assert not isinstance(model, SparseDenoiser) and weight.shape == (WORDS, 16) and bias is None
    assert torch.allclose(model.features(z, at(z)) @ weight.T, model(z, at(z)), atol=1e-5)
    assert [type(block).__name__.endswith("DecoderLayer") for block in model.blocks] == [True] * 2
    assert model.to(torch.bfloat16)(z, at(z)).dtype == torch.float32


@kinds
@torch.no_grad()
def test_the_mask_begins_at_the_mean_of_the_words_and_clusters_at_that_of_theirs(folders, kind):
    process = dd.presets.hdlm(ELEVEN)
    table = stock(folders[kind]).get_input_embeddings().weight
    every = torch.arange(process.num_states)[None]
    model = made(folders[kind], process.num_states, parents=[ELEVEN])
    embedded = model.embed(every)[0]
    parents = torch.tensor(ELEVEN)
    assert torch.equal(embedded[:WORDS], table[:WORDS])
    for cluster in range(3):
        members = table[:WORDS][parents == cluster].mean(0)
        assert torch.allclose(embedded[WORDS + cluster], members, atol=1e-6)
    assert torch.allclose(embedded[-1], table[:WORDS].mean(0), atol=1e-6)
    row = made(folders[kind], process.num_states, mask_token=13, parents=[ELEVEN])
    assert torch.equal(row.embed(every)[0, -1], table[13])
    assert torch.equal(row.embed(every)[0, :-1], embedded[:-1])
    named = made(folders[kind], process.num_states, mask_token="w12")
    assert named.mask_id == 12 and torch.equal(named.embed(every)[0, WORDS:], table[[12] * 4])


@kinds
def test_a_saved_model_needs_nothing_of_the_folder_it_came_from(folders, tmp_path, kind):
    folder = shutil.copytree(folders[kind], tmp_path / "theirs")
    how = dict(shift=1, block_size=2, anneal=3)
    model = made(folder, WORDS + 4, parents=[ELEVEN], **how)
    tied = model.decoder.weight is model.network.get_input_embeddings().weight
    assert tied == (kind != "qwen2")
    model.save_pretrained(tmp_path / "ours")
    shutil.rmtree(folder)
    loaded = CausalLM.from_pretrained(tmp_path / "ours")
    z = texts()
    assert (
        same(loaded, model)
        and torch.equal(loaded(z, at(z)), model(z, at(z)))
        and not loaded.training
    )
    assert tied == (loaded.decoder.weight is loaded.network.get_input_embeddings().weight)
    assert (loaded.shift, loaded.block_size, loaded.anneal) == (1, 2, 0), (
        "a finished model has nothing to anneal"
    )
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == SAVED
    assert str(tmp_path) not in (tmp_path / "ours" / "config.json").read_text()
    assert CausalLM.from_pretrained(tmp_path / "ours", shift=0).shift == 0


def test_adapters_alone_learn_and_are_merged_when_saved(folders, tmp_path):
    z = texts()
    model = made(folders["llama"], lora=2, shift=1)
    assert torch.allclose(model(z, at(z)), made(folders["llama"], shift=1)(z, at(z)), atol=1e-6), (
        "they begin at zero"
    )
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert (
        all("lora_" in name or name == "clusters.weight" for name in trained)
        and "clusters.weight" in trained
    )
    frozen = {
        name: value.clone() for name, value in model.named_parameters() if name not in trained
    }
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(z, at(z)).square().mean().backward()
        optimizer.step()
    assert all(
        torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items()
    )
    assert not torch.allclose(model(z, at(z)), made(folders["llama"], shift=1)(z, at(z)), atol=1e-2)
    state = copy.deepcopy(model.state_dict())
    model.save_pretrained(tmp_path)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items()), (
        "saving changes nothing"
    )
    loaded = CausalLM.from_pretrained(tmp_path)
    assert torch.allclose(loaded(z, at(z)), model(z, at(z)), atol=1e-5)
    assert json.loads((tmp_path / "config.json").read_text())["lora"] == 0
    assert not any("lora" in name for name in loaded.state_dict())


@kinds
@pytest.mark.parametrize("shift", [0, 1])
def test_it_trains_is_measured_and_samples(folders, kind, shift):
    process = dd.presets.hdlm(ELEVEN)
    check_use(process, made(folders[kind], process.num_states, shift=shift), LENGTH)


@pytest.mark.usefixtures("compilable")
@torch.no_grad()
def test_it_compiles_as_one_graph(folders):
    model = made(folders["llama"], WORDS + 4, shift=1)
    z = texts()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(z, at(z)), model(z, at(z)), atol=1e-5)


def test_a_bias_and_untied_rows_are_kept(tmp_path):
    """Qwen2's output layer is its own; Phi's has a bias."""
    size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = PhiConfig(vocab_size=ROWS, **size)
    folder = write(tmp_path, config, None, AutoModelForCausalLM)
    model = made(folder)
    z = texts()
    with torch.no_grad():
        assert model.output_weights()[1].shape == (WORDS,)
        theirs = stock(folder, is_causal=False)(z).logits
        assert torch.allclose(model(z, at(z)), theirs[..., :WORDS], atol=1e-5)
