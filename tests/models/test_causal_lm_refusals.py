"""Errors of ``causal_lm``: arguments, inputs, networks that cannot look ahead, unsuitable files."""

import json
import sys
from pathlib import Path

import pytest
import torch
from hf_checkpoints import CAUSAL, CONFIGS, SIZE, WORDS, write, write_causal
from refusals import refused_with
from transformers import Gemma2Config, LlamaConfig, LlamaModel, T5Config

from ddlib_models.hf.causal_lm import CausalLM, causal_lm


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_causal(tmp_path_factory.mktemp("theirs"), ["llama"])["llama"]


def plain(config) -> dict:
    return json.loads(config.to_json_string(use_diff=False))


def test_a_row_for_the_mask_is_refused_where_no_state_is_a_mask():
    with pytest.raises(
        ValueError, match="mask_id=3: must be None, as all num_states=10 states are tokens"
    ):
        CausalLM(10, 10, plain(CAUSAL["llama"]()), mask_id=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(vocab_size=21, num_states=22),
            r"vocab_size=21: must be <= 20, the rows of LlamaForCausalLM's table",
        ),
        (
            dict(vocab_size=11, num_states=10),
            r"vocab_size=11: tokens are states, so it must be <= num_states=10",
        ),
        (dict(vocab_size=0), r"vocab_size=0: must be at least 1"),
        (
            dict(mask_token="<m>"),
            r"mask_token='<m>': must be a token of .*, which does not contain it",
        ),
        (dict(mask_token=20), r"mask_id=20: must lie in 0\.\.19"),
        (
            dict(vocab_size=14, num_states=15, mask_token="w3"),
            r"vocab_size=14: must be <= 13, the tokens of",
        ),
        (dict(attention="sideways"), r"attention='sideways': must be 'bidirectional' or 'causal'"),
        (
            dict(attention="causal", block_size=4),
            r"block_size=4: not with attention='causal', only with 'bidir",
        ),
        (dict(attention="causal", anneal=4), r"anneal=4: not with attention='causal'"),
        (dict(shift=2), r"shift=2: must be 0 or 1"),
        (dict(block_size=-1), r"block_size=-1: must be at least 0"),
        (dict(lora=-1), r"lora=-1: must be at least 0"),
        (dict(parents=[[0] * 5]), r"parents\[0\]: must be 11 int64 indices"),
        (
            dict(parents=[[0] * 11]),
            r"parents: 1 clusters, must be at most 0, the states for clusters",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(folder, changes, message, as_users_call):
    arguments = dict(num_states=WORDS + 1, vocab_size=WORDS, name_or_path=str(folder)) | changes
    with pytest.raises(ValueError, match=message):
        causal_lm(**arguments)


def test_bad_inputs_are_refused_by_name(folder, as_users_call):
    model = causal_lm(WORDS + 1, WORDS, str(folder))
    z = torch.zeros(2, 3, dtype=torch.int64)
    t = torch.zeros(2)
    refused_with(model=model, z=z, t=t)(r"""
        model(z + 12, t) | ValueError | z holds states 12\.\.12: must lie in 0\.\.num_states-1=11
        model(z, t[:1]) | ValueError
            | z has shape \(2, 3\), t \(1,\): expected \(B, L\) and \(B,\) or \(B, L\)
        model(z[:, :1].expand(2, 13), t) | ValueError | z has 13 positions: must have at most 12
        model(z, t, present=z[:, :2] == 0) | ValueError
            | present has shape \(2, 2\): must have that of z, \(2, 3\)
        model(z, t, clean=z) | ValueError
            | clean: at most one, clean and cache only with blocks; block_size=0
        model(z, t, clean=z, present=z == 0) | ValueError | clean, present: at most one, clean
        model.prefill(z) | ValueError
            | x has shape \(2, 3\), block_size=0: expected \(B, L\) with L a multiple of
    """)


def test_models_other_than_causal_language_models_are_refused_by_name(tmp_path):
    write(tmp_path / "bert", CONFIGS["bert"]())
    with pytest.raises(
        ValueError, match=r"architecture: 'bert' has an encoder, must be a causal .*masked_lm"
    ):
        causal_lm(WORDS + 1, WORDS, str(tmp_path / "bert"))
    with pytest.raises(ValueError, match="architecture: 't5' has an encoder"):
        CausalLM(WORDS + 1, WORDS, plain(T5Config()))
    with pytest.raises(
        ValueError, match="no causal language model of model_type 'clip_text_model'"
    ):
        CausalLM(WORDS + 1, WORDS, {"model_type": "clip_text_model"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"name_or_path='.*empty': this folder has no config.json"):
        causal_lm(WORDS + 1, WORDS, str(tmp_path / "empty"))
    (tmp_path / "empty" / "weights").mkdir()
    (tmp_path / "empty" / "weights" / "recipe.yaml").touch()
    with pytest.raises(
        ValueError, match=r"is the folder of a run, .* python -m recipes.generate .*empty"
    ):
        causal_lm(WORDS + 1, WORDS, str(tmp_path / "empty"))


def test_a_network_that_cannot_look_ahead_is_refused_by_name(monkeypatch):
    """As one that makes a causal mask whatever it is given."""
    given = LlamaModel.forward

    def deaf(self, attention_mask=None, **kwargs):
        return given(self, **kwargs)

    monkeypatch.setattr(LlamaModel, "forward", deaf)
    architecture = plain(CAUSAL["llama"]())
    with pytest.raises(
        ValueError, match="LlamaForCausalLM cannot attend to later positions: its first position"
    ):
        CausalLM(WORDS + 1, WORDS, architecture)
    assert CausalLM(WORDS + 1, WORDS, architecture, attention="causal").attention == "causal"


def test_a_network_that_caps_its_logits_is_refused_by_name():
    """At random weights the cap changes no logit by more than rounding."""
    caps = Gemma2Config(**SIZE, num_key_value_heads=1, head_dim=8, final_logit_softcapping=30.0)
    with pytest.raises(ValueError, match=r"Gemma2ForCausalLM returns other logits .* or caps its"):
        CausalLM(WORDS + 1, WORDS, plain(caps))
    caps.final_logit_softcapping = None
    CausalLM(WORDS + 1, WORDS, plain(caps))


def test_quantised_weights_are_refused_before_they_are_read(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has quantised weights, must have the original ones"):
        causal_lm(WORDS + 1, WORDS, str(tmp_path))


def test_weights_that_are_missing_are_refused(tmp_path):
    config = CAUSAL["qwen2"]()
    config.save_pretrained(tmp_path / "none")
    with pytest.raises(OSError, match="safetensors"):
        causal_lm(WORDS + 1, WORDS, str(tmp_path / "none"))
    headless = LlamaConfig(**CAUSAL["llama"]().to_diff_dict() | {"tie_word_embeddings": False})
    LlamaModel(headless).save_pretrained(tmp_path / "headless")
    with pytest.raises(
        ValueError,
        match=r"headless': the weights do not fit Llama\w+: the files have no lm_head\.w",
    ):
        causal_lm(WORDS + 1, WORDS, str(tmp_path / "headless"))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "transformers",
            r"ddlib_models\.hf\.causal_lm needs transformers: pip install 'ddlib\[hf\]'",
        ),
        ("peft", r"lora=2 needs peft: pip install 'ddlib\[adapt\]'"),
    ],
)
def test_without_a_package_the_error_names_the_package_to_install(
    folder, monkeypatch, missing, message
):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=message):
        causal_lm(WORDS + 1, WORDS, str(folder), lora=2)
