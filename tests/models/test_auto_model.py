"""One saved folder for ``DiT.from_pretrained`` and, without remote code, transformers'
``AutoModel``.
"""

import subprocess
import sys

import pytest
import torch
from tiny import build, inputs, trained
from transformers import AutoConfig, AutoModel
from zoo.trees import ELEVEN_IN_TWO

import ddlib as dd
from ddlib.parameterization.capabilities import Capabilities
from ddlib_models import DiT, ManifestError
from ddlib_models.attention.backends import Flex
from ddlib_models.hf.auto import DiTConfig, DiTModel

OPTIONS = dict(tied=True, pad_to=8, num_clusters=2, parents=ELEVEN_IN_TWO)


@pytest.mark.parametrize("options", [{}, OPTIONS, dict(time_conditioned=False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_model_loads_saved_weights_bit_for_bit(tmp_path, options, dtype):
    model = trained(**options).to(dtype).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, trust_remote_code=False)
    assert isinstance(loaded, DiTModel) and loaded.dtype == dtype and not loaded.training
    for (name, ours), (other, theirs) in zip(
        loaded.backbone.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert name == other and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    z, t = inputs()
    assert torch.equal(loaded(z, t), model(z, t))


@pytest.mark.parametrize(
    "options", [dict(memory=True), dict(tree=[[0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]])], ids=str
)
def test_samplers_call_it_as_they_call_a_dit(tmp_path, options):
    model = trained(**options).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    process = dd.presets.hdlm(ELEVEN_IN_TWO[0])
    assert (
        Capabilities.of(loaded).takes_memory
        == Capabilities.of(model).takes_memory
        == ("memory" in options)
    )
    drawn = [
        dd.sample(
            process,
            one,
            (2, 6),
            steps=4,
            generator=torch.Generator().manual_seed(0),
            parameterization=dd.Children.of(one) if "tree" in options else "cavity",
        )
        for one in (model, loaded)
    ]
    assert torch.equal(*drawn) and loaded.num_classes == 0
    z, t = inputs()
    assert torch.equal(
        loaded.features_at(z, t, z[:, :2] * 0), model.features_at(z, t, z[:, :2] * 0)
    )


def test_auto_model_saves_the_same_folder(tmp_path):
    trained(**OPTIONS).save_pretrained(tmp_path / "ours")
    AutoModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    for path in (tmp_path / "ours").iterdir():
        assert path.read_bytes() == (tmp_path / "theirs" / path.name).read_bytes(), path.name
    assert isinstance(DiT.from_pretrained(tmp_path / "theirs"), DiT)


def test_publishing_is_that_of_the_backbone(tmp_path, monkeypatch):
    trained().save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    seen = []
    monkeypatch.setattr(
        DiT, "push_to_hub", lambda *args, **kwargs: seen.append((*args, kwargs)) or "commit"
    )
    assert model.push_to_hub("me/model", private=True) == "commit"
    assert seen == [(model.backbone, "me/model", {"private": True})]


def test_dtype_back_end_and_arguments_are_chosen_at_load(tmp_path):
    trained().save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, attention="flex", dropout=0.5, dtype=torch.bfloat16)
    assert model.backbone.attention == Flex() and model.backbone.blocks[0].dropout.p == 0.5
    assert (
        model.dtype == torch.bfloat16
        and DiTModel.from_pretrained(tmp_path, dtype="float64").dtype == torch.float64
    )
    assert DiTModel.from_pretrained(tmp_path, dtype="auto").dtype == torch.float32
    with pytest.raises(TypeError, match="device_map"):
        AutoModel.from_pretrained(tmp_path, device_map="cpu")


def test_the_configuration_is_that_of_the_model(tmp_path):
    model = trained(**OPTIONS)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, DiTConfig) and config.arguments() == model.saved_arguments()
    assert DiTModel.from_pretrained(tmp_path).config.arguments() == model.saved_arguments()
    torch.manual_seed(0)
    fresh = AutoModel.from_config(config).backbone
    assert fresh.saved_arguments() == model.saved_arguments()
    for ours, theirs in zip(fresh.parameters(), build(**OPTIONS).parameters(), strict=True):
        assert torch.equal(ours, theirs), "born as a DiT is, not as transformers would"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", r"model\.safetensors is altered"),
        ("config.json", r"config\.json is altered"),
        ("ddlib_manifest.json", r"ddlib_manifest\.json: damaged"),
    ],
)
def test_altered_files_are_refused_on_this_path_too(tmp_path, name, message):
    trained(dropout=0.25).save_pretrained(tmp_path)
    content = (tmp_path / name).read_bytes()
    changed = content.replace(b"0.25", b"0.75").replace(b'"size": ', b'"size": 1')
    (tmp_path / name).write_bytes(
        changed if changed != content else content[:-1] + bytes([content[-1] ^ 1])
    )
    with pytest.raises(ManifestError, match=message):
        AutoModel.from_pretrained(tmp_path)


def test_another_class_is_refused(tmp_path):
    class Mine(DiT):
        pass

    Mine(num_states=14, vocab_size=11, dim=16, depth=1, heads=2).save_pretrained(tmp_path)
    with pytest.raises(ManifestError, match="contains Mine, must contain DiT"):
        AutoModel.from_pretrained(tmp_path)


def test_transformers_is_imported_only_on_use():
    code = "import sys, ddlib_models; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
