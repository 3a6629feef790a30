"""Hugging Face's masked language models as backbones: the same logits, halves, ties, clusters,
saving, training.
"""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from hf_checkpoints import CONFIGS, ROWS, WORDS, check_use, write, write_all
from saving import SAVED, same
from transformers import AutoModelForMaskedLM
from zoo.processes import presets
from zoo.trees import ELEVEN

import ddlib as dd
from ddlib.typing import SparseDenoiser, SplitDenoiser
from ddlib_models import DiT, ManifestError
from ddlib_models.hf.masked_lm import MaskedLM, masked_lm

LENGTH = 7
MASK = {
    "inside": 4,
    "outside": WORDS,
}  # BERT's mask is one of the first ids; a word list of one's own ends before it
BLOCKS = {"bert": "BertLayer", "roberta": "RobertaLayer", "modernbert": "ModernBertEncoderLayer"}
BLOCKS |= {"distilbert": "TransformerBlock"}
PROCESSES = presets(ELEVEN)
kinds = pytest.mark.parametrize("kind", CONFIGS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("theirs"))


def states(process, batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    z = torch.randint(
        2, process.num_states, (batch, LENGTH), generator=generator
    )  # 0 and 1 are padding to theirs
    z[:, -1] = process.num_states - 1
    return z, torch.rand(batch, generator=generator)


def ties(model: MaskedLM) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [tied for tied in names.values() if len(tied) > 1]


@kinds
@pytest.mark.parametrize("mask", MASK)
@torch.no_grad()
def test_logits_are_those_of_the_model_itself(tmp_path, kind, mask):
    folder = write(tmp_path / "theirs", CONFIGS[kind](), MASK[mask])
    process = dd.presets.mdlm(WORDS)
    theirs = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model = masked_lm(process.num_states, WORDS, str(folder))
    z, t = states(process)
    logits = theirs(input_ids=torch.where(z == WORDS, MASK[mask], z)).logits
    assert (
        logits.shape[-1] == ROWS and model(z, t).shape == (4, LENGTH, WORDS) and not model.training
    )
    assert torch.allclose(model(z, t), logits[..., :WORDS], atol=1e-5) and logits.std() > 0.1
    assert torch.equal(model(z, t), model(z, 1 - t)), "the time is ignored"


@kinds
@torch.no_grad()
def test_no_token_is_padding_and_all_see_each_other(folders, kind):
    model = masked_lm(WORDS + 1, WORDS, str(folders[kind]))
    z = torch.full((1, LENGTH), CONFIGS[kind]().pad_token_id)
    t = torch.zeros(1)
    logits = model(z, t)
    for end in (0, -1):
        changed = z.clone()
        changed[0, end] = 7
        assert (model(changed, t) - logits).abs().amax(-1).min() > 1e-4
    if (
        kind != "modernbert"
    ):  # its positions are relative, so that one word repeated looks alike everywhere
        assert (logits[0, 1:] - logits[0, :-1]).abs().amax(-1).min() > 1e-4, (
            "to RoBERTa padding has no position"
        )


@kinds
def test_halves_are_the_whole(folders, kind):
    model = masked_lm(WORDS + 1, WORDS, str(folders[kind]))
    assert isinstance(model, SplitDenoiser) and not isinstance(model, SparseDenoiser)
    z, t = states(model)
    weight, bias = model.output_weights()
    assert weight.shape == (WORDS, 16) and bias.shape == (WORDS,)
    assert torch.allclose(model.features(z, t) @ weight.T + bias, model(z, t), atol=1e-5)


def test_an_output_layer_may_lack_a_bias(tmp_path):
    config = CONFIGS["modernbert"]()
    config.decoder_bias = False
    model = masked_lm(WORDS + 1, WORDS, str(write(tmp_path, config)))
    z, t = states(model)
    weight, bias = model.output_weights()
    assert bias is None and torch.allclose(model.features(z, t) @ weight.T, model(z, t), atol=1e-5)


@kinds
def test_blocks_are_the_layers_of_the_encoder(folders, kind):
    model = masked_lm(WORDS + 1, WORDS, str(folders[kind]))
    assert [type(block).__name__ for block in model.blocks] == [BLOCKS[kind]] * 2
    assert not any(
        name.startswith("blocks") for name, _ in model.named_parameters(remove_duplicate=False)
    )
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda *_: seen.append(1))
    model(*states(model))
    assert len(seen) == 2


@pytest.mark.usefixtures("compilable")
@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@torch.no_grad()
def test_it_compiles_as_one_graph(folders, kind):
    model = masked_lm(WORDS + 4, WORDS, str(folders[kind]))
    z, t = states(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(z, t), model(z, t), atol=1e-5)


@kinds
def test_dropout_is_that_of_the_configuration_in_training_mode(tmp_path, kind):
    config = CONFIGS[kind]()
    if kind == "modernbert":  # it has none by default
        config.mlp_dropout = 0.1
    model = masked_lm(WORDS + 1, WORDS, str(write(tmp_path, config)))
    z, t = states(model)
    assert torch.equal(model(z, t), model(z, t))
    model.train()
    assert not torch.equal(model(z, t), model(z, t))


@kinds
def test_clusters_begin_at_the_mask_and_learn_apart(folders, kind):
    process = dd.presets.hdlm(ELEVEN)
    model = masked_lm(process.num_states, WORDS, str(folders[kind]))
    every = torch.arange(process.num_states)[None, WORDS:]  # three clusters and the mask
    begin = model.embed(every)[0]
    assert torch.equal(begin, model.network.get_input_embeddings().weight[[4] * 4])
    row = model.clusters.weight
    z = torch.full((1, LENGTH), WORDS + 1)
    model(z, torch.zeros(1)).square().sum().backward()
    assert row.grad[1].abs().max() > 0 and row.grad[[0, 2]].abs().max() == 0, (
        "the row of the cluster alone"
    )
    with torch.no_grad():
        row -= 0.1 * row.grad
    now = model.embed(every)[0]
    assert torch.equal(now[[0, 2, 3]], begin[[0, 2, 3]]) and not torch.equal(now[1], begin[1])


@kinds
def test_tied_weights_stay_tied_through_training_saving_and_loading(folders, tmp_path, kind):
    process = dd.presets.hdlm(ELEVEN)
    model = masked_lm(process.num_states, WORDS, str(folders[kind]))
    assert model.decoder.weight is model.network.get_input_embeddings().weight
    z, t = states(process)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    model(z, t).square().mean().backward()
    optimizer.step()
    table = model.network.get_input_embeddings().weight
    assert model.decoder.weight is table and torch.equal(model.output_weights()[0], table[:WORDS])
    model.save_pretrained(tmp_path)
    loaded = MaskedLM.from_pretrained(tmp_path)
    assert same(loaded, model) and ties(loaded) == ties(model) and ties(model)
    size = sum(p.numel() for p in model.parameters()) * 4
    assert size < (tmp_path / "model.safetensors").stat().st_size < size + 20_000, (
        "each of them once"
    )


def test_untied_weights_stay_untied(tmp_path):
    config = CONFIGS["modernbert"]()
    config.tie_word_embeddings = False
    model = masked_lm(WORDS + 1, WORDS, str(write(tmp_path / "theirs", config)))
    model.save_pretrained(tmp_path / "ours")
    loaded = MaskedLM.from_pretrained(tmp_path / "ours")
    assert same(loaded, model) and not ties(loaded) and not ties(model)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_needs_nothing_of_the_folder_it_came_from(folders, tmp_path, kind, dtype):
    folder = shutil.copytree(folders[kind], tmp_path / "theirs")
    model = masked_lm(WORDS + 4, WORDS, str(folder)).to(dtype)
    model.save_pretrained(tmp_path / "ours", extra={"tokenizer.json": "{}"})
    shutil.rmtree(folder)
    loaded = MaskedLM.from_pretrained(tmp_path / "ours")
    z, t = states(model)
    assert same(loaded, model) and torch.equal(loaded(z, t), model(z, t)) and not loaded.training
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == sorted(
        [*SAVED, "tokenizer.json"]
    )
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["architecture"]["model_type"] == kind and str(tmp_path) not in json.dumps(config)
    loaded.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()
    with pytest.raises(ManifestError, match="contains MaskedLM, must contain DiT"):
        DiT.from_pretrained(tmp_path / "ours")


@kinds
def test_it_can_begin_from_its_architecture_alone(kind):
    architecture = json.loads(CONFIGS[kind]().to_json_string(use_diff=False))
    given = copy.deepcopy(architecture)
    model = MaskedLM(WORDS + 1, WORDS, architecture, mask_id=4)
    assert (
        architecture == given
        and model.saved_arguments()["architecture"] == given
        and model.training
    )
    assert copy.deepcopy(model)(*states(model)).shape == (4, LENGTH, WORDS)


def test_without_a_mask_all_states_are_tokens(folders):
    process = dd.processes.Uniform(WORDS, dd.schedules.Linear())
    model = masked_lm(WORDS, WORDS, str(folders["bert"]))
    assert model.mask_id is None and model.clusters is None
    assert dd.sample(process, model, (2, LENGTH), steps=4).shape == (2, LENGTH)


@kinds
@pytest.mark.parametrize("name", PROCESSES)
def test_it_trains_is_measured_and_samples_with_every_process(folders, kind, name):
    torch.manual_seed(0)
    process = PROCESSES[name]
    check_use(process, masked_lm(process.num_states, WORDS, str(folders[kind])), LENGTH)
