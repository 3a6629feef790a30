"""Errors of ``masked_lm``: sizes, mask tokens, lengths, networks, unsuitable files."""

import json
import sys
from pathlib import Path

import pytest
import torch
from hf_checkpoints import CONFIGS, ROWS, WORDS, write, write_all
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertModel,
    EsmConfig,
    GPT2Config,
    GPT2LMHeadModel,
    IBertConfig,
    LayoutLMConfig,
    MobileBertConfig,
    NystromformerConfig,
)

from ddlib_models.hf.masked_lm import MaskedLM, masked_lm

POSITIONS = {"bert": 12, "roberta": 10, "modernbert": 12, "distilbert": 12}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("theirs"))


@pytest.mark.parametrize("kind", CONFIGS)
def test_sequences_may_not_be_longer_than_the_positions(folders, kind):
    model = masked_lm(WORDS + 1, WORDS, str(folders[kind]))
    limit = POSITIONS[kind]
    assert model.max_length == limit
    assert model(torch.zeros(1, limit, dtype=torch.int64), torch.zeros(1)).isfinite().all()
    with pytest.raises(
        ValueError, match=f"z has {limit + 1} positions: must have at most {limit}, the maximum"
    ):
        model(torch.zeros(1, limit + 1, dtype=torch.int64), torch.zeros(1))


def test_bad_inputs_are_refused_by_name(folders, as_users_call):
    model = masked_lm(WORDS + 1, WORDS, str(folders["bert"]))
    with pytest.raises(
        ValueError, match=r"z holds states 0\.\.12: must lie in 0\.\.num_states-1=11"
    ):
        model(torch.tensor([[0, 12]]), torch.zeros(1))
    with pytest.raises(
        ValueError, match=r"z has shape \(1, 2\), t \(2,\): expected \(B, L\) and \(B,\)"
    ):
        model(torch.tensor([[0, 1]]), torch.zeros(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(vocab_size=21, num_states=22, mask_token=4),
            "vocab_size=21: must be <= 20, the rows of BertForMaskedLM",
        ),
        (
            dict(vocab_size=14, num_states=15),
            r"vocab_size=14: must be <= 13, the tokens of .* mask_token as an id",
        ),
        (
            dict(vocab_size=11, num_states=10),
            r"vocab_size=11: tokens are states, so it must be <= num_states=10",
        ),
        (dict(vocab_size=0, num_states=10), r"vocab_size=0: must be at least 1"),
        (
            dict(mask_token="<m>"),
            r"mask_token='<m>': must be a token of .*, which does not contain it",
        ),
        (dict(mask_token=20), r"mask_id=20: must lie in 0\.\.19"),
        (dict(mask_token=-1), r"mask_id=-1: must lie in 0\.\.19"),
    ],
)
def test_bad_arguments_are_refused_by_name(folders, changes, message):
    arguments = (
        dict(num_states=WORDS + 1, vocab_size=WORDS, name_or_path=str(folders["bert"])) | changes
    )
    with pytest.raises(ValueError, match=message):
        masked_lm(**arguments)


def test_a_mask_token_can_be_named_where_the_tokenizer_names_none(tmp_path):
    folder = str(write(tmp_path, CONFIGS["bert"](), None))
    with pytest.raises(
        ValueError, match="mask_token=None: must be a token or an id, as the tokenizer of"
    ):
        masked_lm(WORDS + 1, WORDS, folder)
    assert masked_lm(WORDS + 1, WORDS, folder, mask_token="w3").mask_id == 3
    assert masked_lm(WORDS + 1, WORDS, folder, mask_token=19).mask_id == 19


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_tokenizer_that_transformers_makes_up_is_not_believed(tmp_path, kind):
    """Without its files BERT's is made of five special tokens, the mask among them."""
    AutoModelForMaskedLM.from_config(CONFIGS[kind]()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="mask_token"):
        masked_lm(WORDS + 1, WORDS, str(tmp_path))
    assert masked_lm(WORDS + 1, WORDS, str(tmp_path), mask_token=4).mask_id == 4


def test_models_other_than_masked_language_models_are_refused_by_name(tmp_path):
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=ROWS)).save_pretrained(
        tmp_path / "gpt2"
    )
    with pytest.raises(ValueError, match="no masked language model of model_type 'gpt2'"):
        masked_lm(WORDS + 1, WORDS, str(tmp_path / "gpt2"), mask_token=4)
    for architecture, message in [
        ({"model_type": "bert", "is_decoder": True}, "'bert' with is_decoder=True is causal"),
        ({"model_type": "bart"}, "'bart' with is_encoder_decoder=True is causal"),
        ({"hidden_size": 16}, "must have a model_type, got hidden_size"),
    ]:
        with pytest.raises(ValueError, match=f"architecture: {message}"):
            MaskedLM(WORDS + 1, WORDS, architecture, 4)
    with pytest.raises(
        ValueError,
        match="mask_id=None: must be a row of the model's table, as num_states=12 exceeds",
    ):
        MaskedLM(WORDS + 1, WORDS, {"model_type": "bert"})


def plain(config) -> dict:
    return json.loads(config.to_json_string(use_diff=False))


SMALL = dict(
    vocab_size=ROWS,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
)


def test_a_network_that_cannot_be_split_is_refused_by_name():
    """MobileBERT glues a second matrix to the table in its output layer, ESM adds a bias behind
    it.
    """
    mobile = MobileBertConfig(
        **SMALL, embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8
    )
    for config in (mobile, EsmConfig(**SMALL, mask_token_id=4, pad_token_id=1)):
        with pytest.raises(ValueError, match=r"architecture: .*ForMaskedLM cannot be split"):
            MaskedLM(WORDS + 1, WORDS, plain(config), 4)
    with pytest.raises(
        ValueError,
        match=r"the input of IBertForMaskedLM is QuantEmbedding, must be an nn\.Embedding",
    ):
        MaskedLM(WORDS + 1, WORDS, plain(IBertConfig(**SMALL)), 4)


def test_a_network_that_scales_its_input_is_refused_by_name(monkeypatch):
    """As some do with tokens and not with embeddings: the halves would be another model."""
    given = BertModel.forward

    def scaled(self, input_ids=None, inputs_embeds=None, **kwargs):
        embedded = (
            2 * self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        )
        return given(self, inputs_embeds=embedded, **kwargs)

    monkeypatch.setattr(BertModel, "forward", scaled)
    with pytest.raises(ValueError, match="BertForMaskedLM returns other logits with inputs_embeds"):
        MaskedLM(WORDS + 1, WORDS, plain(CONFIGS["bert"]()), 4)


@pytest.mark.parametrize("config", [NystromformerConfig, LayoutLMConfig])
def test_the_limit_is_the_least_that_configuration_and_tables_set(config):
    """One has two rows more than positions, the other tables of x and y with 1024 rows."""
    model = MaskedLM(WORDS + 1, WORDS, plain(config(**SMALL, max_position_embeddings=12)), 4)
    assert (
        model.max_length == 12
        and model(torch.zeros(1, 12, dtype=torch.int64), torch.zeros(1)).isfinite().all()
    )


def test_weights_that_are_missing_or_pickled_are_refused(tmp_path):
    config = CONFIGS["bert"]()
    BertModel(config).save_pretrained(tmp_path / "headless")
    with pytest.raises(
        ValueError, match=r"headless': the weights do not fit Bert\w+: the files have no cls\.pred"
    ):
        masked_lm(WORDS + 1, WORDS, str(tmp_path / "headless"), mask_token=4)
    config.save_pretrained(tmp_path / "pickled")
    torch.save(BertForMaskedLM(config).state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        masked_lm(WORDS + 1, WORDS, str(tmp_path / "pickled"), mask_token=4)


def test_without_transformers_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ddlib\[hf\]'"):
        masked_lm(WORDS + 1, WORDS, "somewhere")


def renamed(name: str) -> str:
    if "LayerNorm" in name:
        return name.replace("weight", "gamma").replace("bias", "beta")
    return name


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_old_checkpoints_lack_nothing(folders, tmp_path, kind):
    """They name a tied tensor once, BERT's norms are gamma and beta, and heads for other tasks lie
    beside.
    """
    tied = {"bert": "cls.predictions", "roberta": "lm_head"}[kind]
    state = AutoModelForMaskedLM.from_pretrained(folders[kind]).state_dict()
    state[f"{tied}.bias"] = state[f"{tied}.decoder.bias"].clone()
    kept = {key: value for key, value in state.items() if not key.startswith(f"{tied}.decoder")}
    kept = {renamed(key) if kind == "bert" else key: value for key, value in kept.items()}
    write(tmp_path, CONFIGS[kind]())
    beside = {
        "bert": ("cls.seq_relationship.weight", (2, 16)),
        "roberta": ("roberta.pooler.dense.bias", (16,)),
    }[kind]
    kept[beside[0]] = torch.ones(beside[1])
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_file(tmp_path / "model.safetensors").keys() == kept.keys()
    old, new = (masked_lm(WORDS + 1, WORDS, str(folder)) for folder in (tmp_path, folders[kind]))
    z = torch.arange(7)[None]
    t = torch.zeros(1)
    assert torch.equal(old(z, t), new(z, t))
