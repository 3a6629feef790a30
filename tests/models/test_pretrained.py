"""Saving, loading and publishing: every option comes back bit for bit, and what is not what was
saved is refused.
"""

import copy
import inspect
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import SAVED, Small, flip, same
from tiny import STATES, WORDS, inputs, trained
from torch import nn
from zoo.trees import ELEVEN_IN_TWO

from ddlib_models import DiT, ManifestError, Pretrained
from ddlib_models.attention.backends import Flex
from ddlib_models.io.manifest import check_manifest, writing

TWO_LEVELS = [torch.tensor([0, 0, 1, 1, 2, 2, 2, 2]), [0, 0, 1]]


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "saved"
    trained().save_pretrained(folder)
    return folder


@pytest.fixture
def saved(original, tmp_path) -> Path:
    return shutil.copytree(original, tmp_path / "saved")


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(time_conditioned=False),
        dict(tied=True),
        dict(tied=True, pad_to=32),
        dict(pad_to=128, dropout=0.1),
        dict(num_clusters=2),
        dict(parents=ELEVEN_IN_TWO),
        dict(
            parents=tuple(torch.tensor(level) for level in ELEVEN_IN_TWO),
            tied=True,
            num_clusters=2,
            pad_to=8,
        ),
        dict(num_states=14, vocab_size=8, parents=TWO_LEVELS, time_conditioned=False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_option_comes_back_bit_for_bit(tmp_path, options, dtype):
    model = trained(**options).to(dtype).eval()
    model.save_pretrained(tmp_path)
    loaded = DiT.from_pretrained(tmp_path)
    assert (
        same(loaded, model)
        and loaded.saved_arguments() == model.saved_arguments()
        and not loaded.training
    )
    z, t = inputs()
    assert torch.equal(loaded(z, t), model(z, t))
    assert (loaded.head.weight is loaded.embedding.weight) == options.get("tied", False)
    assert [p.requires_grad for p in loaded.parameters()] == [True] * len(list(model.parameters()))
    loaded.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_dtypes_may_differ_within_a_model(tmp_path):
    model = trained()
    model.embedding.bfloat16()
    model.save_pretrained(tmp_path)
    loaded = DiT.from_pretrained(str(tmp_path))
    assert same(loaded, model) and {p.dtype for p in loaded.parameters()} == {
        torch.float32,
        torch.bfloat16,
    }


def test_the_files_are_those_that_others_read(saved):
    assert sorted(path.name for path in saved.iterdir()) == SAVED
    config = json.loads((saved / "config.json").read_text())
    assert (
        config["model_type"] == "ddlib-dit"
        and config["architectures"] == ["DiT"]
        and config["depth"] == 2
    )
    assert load_file(saved / "model.safetensors").keys() == trained().state_dict().keys()
    card = (saved / "README.md").read_text()
    assert "library_name: ddlib" in card
    assert "from ddlib_models.dit.network import DiT\n\nmodel = DiT.from_pretrained(" in card


def test_the_back_end_of_attention_is_chosen_at_load(tmp_path):
    """One that needs a GPU cannot even be built here, so a save that named it would not load."""
    model = trained(attention=Flex()).eval()
    model.save_pretrained(tmp_path)
    assert "attention" not in json.loads((tmp_path / "config.json").read_text())
    default = DiT.from_pretrained(tmp_path)
    other = DiT.from_pretrained(tmp_path, attention="flex")
    assert type(default.attention).__name__ == "SDPA" and other.attention == Flex()
    with pytest.raises(ValueError, match="attention='flash': must be one of"):
        DiT.from_pretrained(tmp_path, attention="flash")


def test_arguments_can_be_replaced_where_the_weights_fit(saved):
    assert DiT.from_pretrained(saved, dropout=0.5).blocks[0].dropout.p == 0.5
    with pytest.raises(TypeError, match="unexpected keyword argument 'droput'"):
        DiT.from_pretrained(saved, droput=0.5)
    assert (
        DiT.from_pretrained(saved, map_location=torch.device("cpu")).head.weight.device.type
        == "cpu"
    )


def test_a_users_module_is_saved_with_its_arguments(tmp_path):
    options = {"kind": "x", "depth": [1, {"a": None}]}
    model = Small(3, ("a", "b"), options).bfloat16()
    assert options == {"depth": [1, {"a": None}]}, "its constructor takes from them"
    model.save_pretrained(tmp_path)
    loaded = Small.from_pretrained(tmp_path)
    assert same(loaded, model) and loaded.options == "x"
    assert loaded.scale.dtype == torch.bfloat16 and torch.equal(loaded.scale, model.scale)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {
        "dim": 3,
        "names": ["a", "b"],
        "options": options | {"kind": "x"},
        "scale": 1 / 3,
    }
    assert "from saving import Small" in (tmp_path / "README.md").read_text()


def test_a_subclass_saves_the_arguments_of_the_class(tmp_path):
    class Mine(DiT):
        pass

    model = Mine(STATES, WORDS, dim=16, depth=1, heads=2, parents=[torch.tensor(ELEVEN_IN_TWO[0])])
    model.save_pretrained(tmp_path)
    assert same(Mine.from_pretrained(tmp_path), model)


def test_a_constructor_may_take_a_configuration_or_anything(tmp_path):
    class Configured(Pretrained, nn.Module):
        def __init__(self, config: dict):
            super().__init__()
            self.config, self.linear = config, nn.Linear(config["dim"], 1)

    class Open(Pretrained, nn.Module):
        def __init__(self, **kwargs):
            super().__init__()
            self.linear = nn.Linear(kwargs["dim"], 1)

    for model in (Configured({"dim": 3}), Open(dim=3)):
        model.save_pretrained(tmp_path)
        assert same(type(model).from_pretrained(tmp_path), model)


def test_copies_and_pickles_can_be_saved(tmp_path):
    model = trained(parents=ELEVEN_IN_TWO)
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        one.save_pretrained(tmp_path)
        assert same(DiT.from_pretrained(tmp_path), model)


def test_signatures_are_those_of_the_constructors():
    assert list(inspect.signature(DiT).parameters)[:2] == ["num_states", "vocab_size"]
    assert list(inspect.signature(Small).parameters) == ["dim", "names", "options", "scale"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(names=torch.ones(1)), "names is Tensor, which cannot be stored"),
        (dict(options={"kind": iter(())}), "options is dict, which cannot be stored"),
    ],
)
def test_arguments_that_json_cannot_hold_are_refused(tmp_path, as_users_call, arguments, message):
    with pytest.raises(TypeError, match=message):
        Small(3, **arguments).save_pretrained(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_arguments_without_a_name_are_refused(tmp_path):
    class Listed(Pretrained, nn.Module):
        def __init__(self, *sizes: int):
            super().__init__()
            self.linear = nn.Linear(*sizes)

    with pytest.raises(TypeError, match="sizes was passed by position"):
        Listed(2, 3).save_pretrained(tmp_path)


def test_an_argument_that_loading_has_too_is_refused(tmp_path):
    class Revised(Pretrained, nn.Module):
        def __init__(self, revision: int):
            super().__init__()

    with pytest.raises(TypeError, match="revision: must have another name"):
        Revised(revision=1).save_pretrained(tmp_path)


def swap(folder):
    torch.manual_seed(1)
    other = trained()
    nn.init.normal_(other.head.weight)
    other.save_pretrained(folder / "other")
    shutil.copy(folder / "other/model.safetensors", folder / "model.safetensors")
    shutil.rmtree(folder / "other")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "model.safetensors is altered"),
        (lambda f: flip(f, "config.json", 40), "config.json is altered"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is truncated"),
        (
            lambda f: (f / "config.json").write_bytes((f / "config.json").read_bytes() + b" "),
            "config.json is too long",
        ),
        (swap, "model.safetensors is altered"),
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (
            lambda f: shutil.copy(f / "model.safetensors", f / "b.safetensors"),
            "b.safetensors is not listed",
        ),
        (lambda f: (f / "ddlib_manifest.json").unlink(), "has no ddlib_manifest.json"),
        (lambda f: flip(f, "ddlib_manifest.json", 60), "ddlib_manifest.json: damaged"),
    ],
)
def test_files_at_fault_are_refused_by_name(saved, damage, message):
    damage(saved)
    with pytest.raises(ManifestError, match=message.replace(".", r"\.")):
        DiT.from_pretrained(saved)


def rewritten(folder: Path, **files: bytes) -> Path:
    """The saved model with other contents under a manifest that fits them."""
    given = {name: (folder / name).read_bytes() for name in SAVED if name != "ddlib_manifest.json"}
    given |= {name.replace("_", "."): content for name, content in files.items()}
    with writing(folder, check_manifest(folder), unlisted=("README.md",)) as temporary:
        for name, content in given.items():
            (temporary / name).write_bytes(content)
    return folder


def test_another_class_is_refused_by_name(saved, tmp_path):
    with pytest.raises(ManifestError, match="saved: contains DiT, must contain Small"):
        Small.from_pretrained(saved)
    with writing(tmp_path / "checkpoint", {"step": 1}) as folder:
        (folder / "state.bin").write_bytes(b"x")
    with pytest.raises(ManifestError, match="checkpoint: contains no model, must contain DiT"):
        DiT.from_pretrained(tmp_path / "checkpoint")


def test_an_argument_of_another_version_is_refused_by_name(saved):
    config = json.loads((saved / "config.json").read_text())
    rewritten(saved, config_json=json.dumps(config | {"rotary": 3}).encode())
    with pytest.raises(
        ValueError, match=r"config\.json: rotary: no argument of DiT in this version"
    ):
        DiT.from_pretrained(saved)
    rewritten(
        saved, config_json=json.dumps({k: v for k, v in config.items() if k != "pad_to"}).encode()
    )
    assert same(DiT.from_pretrained(saved), trained()), (
        "one that an older version lacked has its default"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.bias"), "the file has no head.bias"),
        (lambda state: state.update(x=torch.ones(1)), "the model has no x"),
        (
            lambda state: state.update({"head.bias": torch.ones(3)}),
            r"head.bias is \(3,\), in the model \(11,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(saved, tmp_path, change, message):
    state = load_file(saved / "model.safetensors")
    change(state)
    save_file(state, tmp_path / "changed")
    rewritten(saved, model_safetensors=(tmp_path / "changed").read_bytes())
    with pytest.raises(ValueError, match=f"the weights do not fit: {message}"):
        DiT.from_pretrained(saved)


def test_ties_cannot_be_made_or_cut_at_load(saved, tmp_path):
    with pytest.raises(
        ValueError, match=r"embedding\.weight and head\.weight are one tensor in the model"
    ):
        DiT.from_pretrained(saved, tied=True)
    trained(tied=True).save_pretrained(tmp_path / "tied")
    with pytest.raises(ValueError, match=r"the file has no head\.weight"):
        DiT.from_pretrained(tmp_path / "tied", tied=False)


def test_the_error_names_a_path_that_is_neither_a_folder_nor_an_id(tmp_path):
    for name in (tmp_path / "nowhere", "./nowhere", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="neither a folder nor the id of a repository"):
            DiT.from_pretrained(name)


def test_the_error_names_what_neither_this_machine_nor_the_hub_has():
    with pytest.raises(
        FileNotFoundError,
        match=r"^nowhere: no folder, not in the cache, and the hub does not answer",
    ):
        DiT.from_pretrained("nowhere", local_files_only=True)


def test_a_new_save_replaces_the_old(saved):
    (saved / "notes.txt").write_text("mine")
    (saved / "README.md").write_text("edited")
    Small(3).save_pretrained(saved)
    assert sorted(path.name for path in saved.iterdir()) == sorted([*SAVED, "notes.txt"])
    assert (saved / "README.md").read_text() == "edited" and Small.from_pretrained(
        saved
    ).linear.in_features == 3


def test_an_interrupted_save_leaves_the_old_model(saved, monkeypatch):
    monkeypatch.setattr(Small, "generate_model_card", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Small(3).save_pretrained(saved)
    assert same(DiT.from_pretrained(saved), trained()) and [
        path.name for path in saved.parent.iterdir()
    ] == ["saved"]


def test_further_files_travel_along_and_are_checked(tmp_path):
    extra = {"tokenizer.json": '{"ä": 1}', "process.bin": b"\x00"}
    trained().save_pretrained(
        tmp_path, extra=extra, model_card_kwargs={"title": "Ours", "about": "Trained on X."}
    )
    assert (tmp_path / "tokenizer.json").read_text(encoding="utf-8") == '{"ä": 1}'
    assert "# Ours\n\nTrained on X.\n" in (tmp_path / "README.md").read_text()
    assert same(DiT.from_pretrained(tmp_path), trained())
    flip(tmp_path, "process.bin")
    with pytest.raises(ManifestError, match=r"process\.bin is altered"):
        DiT.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", [*SAVED, "../x", "a/b", "", ".hidden"])
def test_names_of_further_files_are_checked_before_anything_is_written(tmp_path, name):
    with pytest.raises(ValueError, match=f"extra file {name!r}: must be a plain name"):
        trained().save_pretrained(tmp_path / "saved", extra={name: "x"})
    assert list(tmp_path.iterdir()) == []


def test_options_without_effect_are_refused(tmp_path, as_users_call):
    with pytest.raises(TypeError, match="config: must be None"):
        trained().save_pretrained(tmp_path, config={"dim": 1})
    with pytest.raises(TypeError, match="got private, which require push_to_hub=True"):
        trained().save_pretrained(tmp_path, private=True)
