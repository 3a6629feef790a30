"""Errors of ``hub.load``, raised before anything is drawn."""

import shutil
import sys

import pytest
import torch
from hf_checkpoints import CONFIGS, write_tokenizer
from hub_folders import MASK, TOKENS, change, states
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertModel

from ddlib_models import hub
from ddlib_models.hf.masked_lm import masked_lm


def refused(message, *arguments, error=ValueError, **options):
    with pytest.raises(error, match=message):
        hub.load(*arguments, **options)


def test_a_folder_that_is_no_model(tmp_path, bert):
    refused(r"empty: not a folder with a model, and the hub answers", tmp_path / "empty")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(r"contains an adapter and no model; merge it into its model", tmp_path)
    encoder = tmp_path / "encoder"
    BertModel(CONFIGS["bert"]()).save_pretrained(encoder)
    families = (
        r"none of the families a2d, .* pass family=NAME \(on the command line --family NAME\)"
    )
    refused(rf"encoder: model_type 'bert', architecture 'BertModel': {families}", encoder)
    refused(r"family='nobody': must be one of a2d, .*, or a Family", bert, family="nobody")


def test_weights_in_a_pickle_are_answered_by_the_command_that_converts_them(bert):
    refused(
        r"which has blocks of 0: all its positions .* --pace blocks:size=4\)", bert, block_size=4
    )
    torch.save(hub.load(bert).denoiser.network.network.state_dict(), bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    message = r"bert'?: has pytorch_model.bin and no model.safetensors; it may run code"
    with pytest.raises(OSError, match=message) as error:
        hub.load(bert)
    exec(str(error.value).split('"')[1])
    assert hub.load(bert).process.vocab_size == TOKENS


def raise_that_it_cannot_be_loaded(*_, **options):
    raise OSError("Can't load the model for 'me/tiny'.")


def test_pickled_weights_of_a_repository_are_converted_into_a_folder(bert, tmp_path, monkeypatch):
    cache = tmp_path / "cache" / "models--me--tiny"
    snapshot = cache / "snapshots" / ("a" * 40)
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("a" * 40)
    expected = hub.load(bert)
    torch.save(load_file(bert / "model.safetensors"), bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    shutil.copytree(bert, snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    message = r"me/tiny'?: has pytorch_model.bin .* tokenizer to a folder, and load tiny: "
    with pytest.raises(OSError, match=message) as error:
        hub.load("me/tiny", revision="main")
    with (
        monkeypatch.context() as failing,
        pytest.raises(OSError, match=r"me/tiny'?: has pytorch_model\.bin"),
    ):
        # as where the hub does not convert them for transformers
        failing.setattr(AutoModelForMaskedLM, "from_pretrained", raise_that_it_cannot_be_loaded)
        hub.load("me/tiny")
    exec(str(error.value).split('"')[1])
    z = states(TOKENS)
    assert torch.equal(
        hub.load("tiny").denoiser(z, torch.zeros(3)), expected.denoiser(z, torch.zeros(3))
    )


def test_a_folder_without_a_tokenizer(bert):
    for path in bert.glob("tokenizer*"):
        path.unlink()
    refused(r"bert: its tokenizer cannot be loaded", bert)


def test_a_tokenizer_without_a_mask_token(bert):
    write_tokenizer(bert, None)
    named = (
        r"its tokenizer has no mask token.*pass mask='<token>' \(on the command line "
        r"--mask-token '<token>'\).*"
    )
    added = (
        r"add_special_tokens\(\{'mask_token': '<\|mask\|>'\}\) and "
        r"model.resize_token_embeddings\(len\(tokenizer\)\)"
    )
    refused(named + added, bert)
    refused(r"save both$", bert)
    change(bert, architectures=["BertForCausalLM"])
    message = r"save both: python -m recipes.adapt mdlm --from .*bert does all of this for a causal"
    refused(message, bert, family="masked_lm")
    change(bert, architectures=["BertForMaskedLM"])
    refused(
        r"mask='nothing': must be a token of .*, which does not contain it", bert, mask="nothing"
    )
    for mask in ("w4", MASK, str(MASK)):
        assert hub.load(bert, mask=mask).special.mask == MASK


def test_two_masks(bert):
    change(bert, mask_token_id=7)
    message = (
        r"mask_token_id of config.json has 7, the tokenizer has 4; pass the id of the mask: mask=ID"
    )
    refused(rf"{message} \(on the command line --mask-token ID\)", bert)
    assert hub.load(bert, mask=7).special.mask == 7


def test_fewer_rows_than_tokens(bert):
    write_tokenizer(bert, MASK, 25)
    refused(
        (
            r"vocab_size=20 of config.json, and the highest id of the tokenizer is 24 \(w20, "
            r"w21, w22\): each id"
        ),
        bert,
    )


def test_options_that_a_family_lacks_are_refused(bert):
    refused(r"block_size=3: .*bert is a MaskedLM, which has blocks of 0", bert, block_size=3)
    family = hub.Family(torch.nn.Identity, mask=None)
    refused(r"mask=4: must be None, .* whose tokenizer has no mask", bert, mask=4, family=family)


def test_without_transformers_the_error_names_the_package_to_install(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in (bert, "somewhere"):
        refused(
            r"ddlib_models.hub needs transformers: pip install 'ddlib\[hf\]'",
            name,
            error=ModuleNotFoundError,
        )


def test_quantised_weights(bert):
    change(bert, quantization_config={"bits": 4})
    refused(r"quantization_config of config.json declares quantised weights", bert)


def test_states_that_are_no_tokens(bert, as_users_call):
    _, denoiser, _, special = hub.load(bert)
    with pytest.raises(
        ValueError, match=rf"z contains id 4, the token '\[MASK\]', which .* is the state {TOKENS}"
    ):
        denoiser(torch.tensor([[5, MASK]]), torch.zeros(1))
    assert special.states(torch.tensor([[5, MASK]])).tolist() == [[5, TOKENS]]
    with pytest.raises(ValueError, match=r"z has 1 rows, but left has 2: sample with controls"):
        denoiser.with_padding(torch.tensor([0, 1]))(torch.tensor([[5, 6]]), torch.zeros(1))
    with pytest.raises(ValueError, match=r"left is \[2\], must be less than the 2 positions"):
        denoiser.with_padding(torch.tensor([2]))(torch.tensor([[5, 6]]), torch.zeros(1))


def test_ids_that_are_no_tokens_do_not_become_states(bert):
    """V is the state of the mask and no id; an id that no token has is none either."""
    special = hub.load(bert).special
    assert special.vocab_size == TOKENS
    for ids in (TOKENS, TOKENS + 6, 305, -1):
        message = rf"ids contain {ids}: must be ids of tokens, in 0\.\.12, or the mask's, 4"
        with pytest.raises(ValueError, match=message):
            special.states(torch.tensor([[5, ids]]))
    last = hub.Special(9, 9, None, None, None, None, (), ())
    assert last.states(torch.tensor([[8, 9]])).tolist() == [[8, 9]]
    with pytest.raises(ValueError, match=r"ids contain 9: must be ids of tokens, in 0\.\.8$"):
        hub.Special(9, None, None, None, None, None, (), ()).states(torch.tensor([[8, 9]]))


def test_a_mask_that_is_neither_a_token_nor_an_id(bert):
    for mask in (True, False, -1):
        refused(rf"mask={mask}: must be a token or an id, at least 0", bert, mask=mask)
    with pytest.raises(ValueError, match="mask_token=True: must be a token or an id"):
        masked_lm(12, 11, str(bert), mask_token=True)
