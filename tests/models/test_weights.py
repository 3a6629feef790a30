"""Weights of others: all of a file's are read, and it is refused by name where they are not the
network's.
"""

import json
import re
import shutil

import pytest
import torch
from hf_checkpoints import CAUSAL, CONFIGS, MASK, WORDS, write
from hub_folders import change
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertForPreTraining, RobertaModel

from ddlib_models import hub
from ddlib_models.hf.causal_lm import causal_lm
from ddlib_models.hf.masked_lm import masked_lm


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory):
    return write(
        tmp_path_factory.mktemp("saved") / "llama", CAUSAL["llama"](), auto=AutoModelForCausalLM
    )


@pytest.fixture
def llama(saved_llama, tmp_path):
    return shutil.copytree(saved_llama, tmp_path / "llama")


@pytest.fixture(params=["bert", "llama"])
def folder(request):
    return request.getfixturevalue(request.param)


def rewrite(folder, changed):
    """The folder with what this makes of its tensors."""
    path = folder / "model.safetensors"
    save_file(changed(load_file(path)), path, metadata={"format": "pt"})
    return folder


def refused(folder, message, error=ValueError):
    """Both readers raise the error, that of backbones and ``hub.load``."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    backbone = masked_lm if kind == "bert" else causal_lm
    with pytest.raises(error, match=message):
        backbone(WORDS + 1, WORDS, str(folder))
    with pytest.raises(error, match=message):
        hub.load(folder)


def test_weights_that_the_network_has_not_are_refused(folder):
    """transformers drops them with a line in a table: one layer of two would speak."""
    change(folder, num_hidden_layers=1)
    refused(
        folder, r"the weights do not fit \w+LM: the network has no \S+\.layers?\.1\..* and \d+ more"
    )


def test_a_weight_of_another_name_is_refused(folder):
    rewrite(folder, lambda w: w | {"foo.bar": torch.zeros(2)})
    refused(folder, r"the weights do not fit \w+: the network has no foo\.bar$")


def test_additional_weights_of_a_pretraining_are_accepted(bert):
    """As BERT's own checkpoints are: a pooler, a head for the next sentence, positions that were
    once saved.
    """
    z = torch.arange(7)[None]
    t = torch.zeros(1)
    expected = masked_lm(WORDS + 1, WORDS, str(bert))(z, t)
    both = BertForPreTraining.from_pretrained(bert)
    kept = {"bert.embeddings.position_ids": torch.arange(12)[None]}
    names = both.state_dict().keys()
    assert {"bert.pooler.dense.weight", "cls.seq_relationship.bias"} <= names
    tied = load_file(bert / "model.safetensors").keys()
    beside = {
        k: v.clone()
        for k, v in both.state_dict().items()
        if "pooler" in k or "seq_relationship" in k
    }
    rewrite(bert, lambda w: {k: w[k] for k in tied} | beside | kept)
    assert torch.equal(masked_lm(WORDS + 1, WORDS, str(bert))(z, t), expected)


def test_a_pooler_of_roberta_is_no_fault(tmp_path):
    folder = write(tmp_path, CONFIGS["roberta"]())
    pooler = {
        f"roberta.{k}": v
        for k, v in RobertaModel(CONFIGS["roberta"]()).state_dict().items()
        if "pooler" in k
    }
    rewrite(folder, lambda w: w | pooler)
    assert len(pooler) == 2 and masked_lm(WORDS + 1, WORDS, str(folder)).max_length == 10


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_quantised_weights_are_refused_where_config_json_is_silent(folder, dtype):
    """transformers would take the integers for weights."""
    rewrite(
        folder,
        lambda w: {
            k: v.to(dtype) if re.search(r"(query|q_proj)\.weight", k) else v for k, v in w.items()
        },
    )
    refused(
        folder,
        (
            r"model\.safetensors: \S+\.0\.\S+\.weight is (I8|U8|I32|F8_E4M3), so the weights "
            r"are quantised"
        ),
    )


@pytest.mark.parametrize("name", ["scale", "scale_inv"])
def test_the_scale_of_a_weight_is_refused(folder, name):
    rewrite(folder, lambda w: w | {f"{key}_{name}": torch.ones(1) for key in list(w)[:1]})
    refused(folder, rf"safetensors: \S+_{name} is the scale of \S+, so the weights are quantised")


def test_quantised_weights_in_one_of_several_files_are_refused(bert):
    held = load_file(bert / "model.safetensors")
    name = next(key for key in held if key.endswith("query.weight"))
    rest = {key: value for key, value in held.items() if key != name}
    (bert / "model.safetensors").unlink()
    for file, part in {"first": rest, "second": {name: held[name].to(torch.int8)}}.items():
        save_file(part, bert / f"{file}.safetensors", metadata={"format": "pt"})
    where = dict.fromkeys(rest, "first.safetensors") | {name: "second.safetensors"}
    (bert / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )
    refused(bert, r"second\.safetensors: bert\.\S+query\.weight is I8")
    save_file({name: held[name]}, bert / "second.safetensors", metadata={"format": "pt"})
    assert hub.load(bert).special.mask == MASK


@pytest.mark.parametrize("content", [b"", b"garbage" * 10, None])
def test_the_error_names_the_path_of_a_broken_file(folder, content):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-99] if content is None else content)
    refused(
        folder, r"(bert|llama)/model\.safetensors: is damaged or not a safetensors file: .*header"
    )


def test_the_error_names_the_path_of_a_broken_index(bert):
    (bert / "model.safetensors").unlink()
    index = bert / "model.safetensors.index.json"
    for content, message in {
        '{"weight_map": {"a": "gone.safetensors"}}': "names gone.safetensors, which does not exist",
        '{"weight_map": []}': "is not an index of weights",
        "{": "is not an index of weights",
    }.items():
        index.write_text(content)
        refused(bert, rf"bert/model\.safetensors\.index\.json: {message}")


def test_the_error_names_both_shapes_of_a_table(folder):
    change(folder, vocab_size=30)
    refused(
        folder, r"weights do not fit \w+LM: .*embed\S+\.weight is \(20, 16\) and must be \(30, 16\)"
    )


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_the_error_names_the_tensor_of_numbers_that_are_not_finite(folder, number):
    last = re.compile(r"layers\.1\.mlp\.up_proj|layer\.1\.output\.dense\.weight")
    rewrite(
        folder,
        lambda w: {k: torch.full_like(v, number) if last.search(k) else v for k, v in w.items()},
    )
    refused(folder, r"(bert|llama)'?: \S+\.1\.\S+\.weight contains numbers that are not finite")
