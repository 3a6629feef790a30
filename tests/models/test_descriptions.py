"""Broken or missing JSON files beside pretrained weights: both readers name the file and
the error.
"""

import logging

import pytest
from hf_checkpoints import WORDS
from hub_folders import MASK, change, save
from transformers import Qwen3Config, Qwen3ForCausalLM

from ddlib_models import hub
from ddlib_models.hf.causal_lm import causal_lm
from ddlib_models.hf.masked_lm import masked_lm


def refused(folder, message):
    for read in (lambda: masked_lm(WORDS + 1, WORDS, str(folder)), lambda: hub.load(folder)):
        with pytest.raises(ValueError, match=message):
            read()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a":', "is not JSON: Expecting value"),
        (b"\xff\xfe\x00bad", "is not JSON: 'utf-8' codec"),
        (b"", "is not JSON: Expecting value"),
        (b"[]", "contains a list, must contain an object"),
        (b"3", "contains a int, must contain an object"),
    ],
)
def test_the_error_names_the_path_of_a_broken_config_json(bert, content, message):
    (bert / "config.json").write_bytes(content)
    refused(bert, rf"bert/config\.json: {message}")


def test_the_error_names_a_folder_without_config_json(tmp_path):
    refused(tmp_path, r"this folder has no config\.json, so it contains no model")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", r"file: is a file, must be a folder or the id of a repository")
    message = (
        r"nowhere/here/none'?: not a folder with a model, and the hub answers: Repo id must be"
    )
    refused("nowhere/here/none", message)


def test_the_error_names_an_adapter_without_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    message = (
        r"contains an adapter and no model; merge it into its model by "
        r"model\.merge_and_unload\(\) and save"
    )
    refused(tmp_path, message)
    with pytest.raises(ValueError, match=message):
        causal_lm(WORDS + 1, WORDS, str(tmp_path))


def test_an_adapter_beside_a_model_is_refused(bert):
    """transformers would read the model that it names instead of this one."""
    (bert / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "nowhere", "peft_type": "LORA"}'
    )
    refused(
        bert,
        (
            r"bert'?: contains an adapter, which is not loaded; merge it .* or delete "
            r"adapter_config\.json"
        ),
    )


def test_the_error_names_a_value_that_the_class_does_not_take(bert):
    refused(
        change(bert, vocab_size="20"),
        r"Validation error for field 'vocab_size': TypeError: .* expected int",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"eos_token_id": 3', r"bert/generation_config\.json: is not JSON"),
        ("[]", r"bert/generation_config\.json: contains a list, must contain an object"),
        (
            '{"eos_token_id": "w3"}',
            r"bert: eos_token_id='w3' of generation_config\.json: must be an id or a list",
        ),
        (
            '{"eos_token_id": [3, null, "w3"]}',
            r"bert: eos_token_id=\[3, None, 'w3'\] of generation_config\.json",
        ),
    ],
)
def test_a_broken_generation_config_is_not_swallowed(bert, content, message):
    """The ends of a text may stand there and nowhere else."""
    (bert / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        hub.load(bert)


def test_ends_are_those_of_generation_config(bert):
    (bert / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert hub.load(bert).special.ends == (3, 5)


def test_no_warning_of_a_wrong_class(tmp_path, caplog):
    """A2D's model_type is none of transformers'."""
    size = dict(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    network = Qwen3ForCausalLM(Qwen3Config(**size, num_key_value_heads=1, head_dim=8))
    folder = change(save(tmp_path, network), model_type="a2d-qwen3")
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        assert hub.load(folder).special.mask == MASK
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    assert "You are using a model of type" not in caplog.text
