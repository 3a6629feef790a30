"""The authors' checkpoints: every form they come in, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from official_imports import GIDD, HDLM, MDLM, TRAINING, assert_same, load
from official_states import REDUCED, Case, parameters, parents, state
from refusals import refused_with
from safetensors.torch import save_file

from ddlib_models import official


def hub_folder(folder: Path, tensors: dict, config: dict) -> Path:
    folder.mkdir()
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


MDLM_CONFIG = dict(model_type="mdlm", n_heads=2, vocab_size=41, time_conditioning=False)
GIDD_CONFIG = dict(model_type="dit", num_attention_heads=2, vocab_size=41)


@pytest.mark.parametrize(
    "importer, case, config",
    [(official.mdlm, MDLM, MDLM_CONFIG), (official.gidd, GIDD, GIDD_CONFIG)],
)
def test_folders_and_hub_ids(tmp_path, monkeypatch, importer, case, config):
    tensors = {name: value for name, value in state(case).items() if name != "logit_bias"}
    folder = hub_folder(tmp_path / "hub", tensors, config)
    download = {}

    def snapshot_download(name, **arguments):
        download.update(arguments, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    for source in (folder, str(folder), folder / "model.safetensors"):
        assert_same(importer(source), load(case))
    assert_same(importer("owner/name", revision="abc"), load(case))
    assert (download["name"], download["revision"]) == ("owner/name", "abc")
    assert {"model.safetensors", "config.json"} <= set(download["allow_patterns"])


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".ckpt"])
def test_files_of_torch(tmp_path, suffix):
    torch.save(state(GIDD), tmp_path / f"weights{suffix}")
    assert_same(official.gidd(tmp_path / f"weights{suffix}"), load(GIDD))


def noise(case: Case) -> dict[str, torch.Tensor]:
    prior = torch.full((case.tokens,), -1e3)
    prior[case.mask] = 0
    tensors = {"log_prior": prior.log_softmax(0), "log_gamma": torch.tensor(0.0)}
    return tensors | ({"cluster_dict": parents(case) + case.tokens} if case.clusters else {})


@pytest.mark.parametrize("name", [name for name, case in REDUCED.items() if case.rows == 128])
def test_training_folders_have_their_vocabulary(tmp_path, name):
    case = REDUCED[name]
    torch.save(state(case), tmp_path / "model.pt")
    torch.save(noise(case), tmp_path / "noise_schedule.pt")
    if case.clusters:
        model, found = official.hdlm(tmp_path)
        assert torch.equal(found, parents(case))
    else:
        model = official.gidd(tmp_path)
    assert_same(model, load(case))


def test_clusters_from_their_file(tmp_path):
    torch.save(parents(HDLM), tmp_path / "semantic_cluster_dict.pt")
    assert_same(
        official.hdlm(state(HDLM), tmp_path / "semantic_cluster_dict.pt", mask_id=89)[0], load(HDLM)
    )


def lightning(**changes) -> dict:
    raw = {name: value + 1 for name, value in state(MDLM).items() if "rotary" not in name}
    raw["backbone.rotary_emb.inv_freq"] = state(MDLM)["backbone.rotary_emb.inv_freq"]
    average = {"decay": 0.9999, "num_updates": 7, "shadow_params": list(parameters(MDLM).values())}
    return {"epoch": 0, "state_dict": raw, "ema": average, "loops": {"fit_loop": {}}} | changes


def test_lightning_gives_the_average_or_the_raw_weights(tmp_path):
    path = tmp_path / "mdlm.ckpt"
    torch.save(lightning(), path)
    assert_same(official.mdlm(path), load(MDLM))
    assert_same(official.mdlm(path, ema=False), official.mdlm(lightning()["state_dict"]))
    assert not torch.equal(official.mdlm(path, ema=False).head.bias, official.mdlm(path).head.bias)
    assert_same(official.mdlm(lightning()), load(MDLM))


def test_files_that_would_run_code_are_refused(tmp_path):
    torch.save(lightning(hyper_parameters={"config": SimpleNamespace()}), tmp_path / "mdlm.ckpt")
    with pytest.raises(ValueError, match=r"objects other than tensors.*weights_only=False"):
        official.mdlm(tmp_path / "mdlm.ckpt")


def without(tensors: dict, name: str) -> dict:
    return {key: value for key, value in tensors.items() if key != name}


REFUSALS = {
    "missing": (
        TRAINING,
        lambda s: without(s, "blocks.1.mlp.2.bias"),
        {},
        "missing tensors: blocks.1.mlp.2.bias",
    ),
    "unknown": (
        TRAINING,
        lambda s: s | {"blocks.0.extra": torch.zeros(1)},
        {},
        "unknown tensors: blocks.0.extra",
    ),
    "shape": (
        TRAINING,
        lambda s: s | {"blocks.0.attn_out.weight": torch.zeros(24, 23)},
        {},
        r"attn_out.*\(24, 24\)",
    ),
    "dtype": (
        TRAINING,
        lambda s: s | {"blocks.0.norm1.weight": torch.ones(24).half()},
        {},
        "norm1.weight.*float32",
    ),
    "bonus": (
        TRAINING,
        lambda s: s | {"logit_bias": torch.ones(1, 1, 1)},
        {},
        "logit_bias is not 0",
    ),
    "base": (MDLM, lambda s: s | {"backbone.rotary_emb.inv_freq": torch.ones(6)}, {}, "base 10000"),
    "no heads": (
        MDLM,
        lambda s: without(s, "backbone.rotary_emb.inv_freq"),
        {},
        "heads=None.*no number",
    ),
    "two heads": (GIDD, dict, dict(heads=3), r"heads=3.*\[2, 3\]"),
    "mask": (MDLM, dict, dict(mask_id=41), "mask_id=41: must be one of the 41 tokens"),
    "tokens": (TRAINING, dict, dict(), "tokens=None: 128 rows"),
    "rows": (TRAINING, dict, dict(tokens=129), "128 rows, must be 129 or 256"),
    "clusters": (HDLM, dict, dict(), "clusters=None"),
    "their number": (HDLM, dict, dict(clusters=parents(HDLM)[1:], mask_id=89), "each of 89 tokens"),
    "empty": (HDLM, dict, dict(clusters=2 * parents(HDLM), mask_id=89), "none empty"),
    "their dtype": (HDLM, dict, dict(clusters=parents(HDLM).int(), mask_id=89), "vector of int64"),
    "their mask": (HDLM, dict, dict(clusters=parents(HDLM)), "mask_id=None.*89 clustered"),
    "no average": (MDLM, lambda s: without(lightning(), "ema"), {}, "pass ema=False"),
    "short average": (
        MDLM,
        lambda s: lightning(ema={"shadow_params": []}),
        {},
        "0 tensors, must contain",
    ),
    "scaling": (GIDD, lambda s: {"model.layers.0.mlp.weight": torch.zeros(1)}, {}, "scaling paper"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    case, change, arguments, message = REFUSALS[name]
    tensors = change(state(case))
    if name in ("missing", "unknown", "shape", "dtype", "bonus"):
        arguments = dict(tokens=case.tokens)
    with pytest.raises(ValueError, match=message):
        getattr(official, case.family)(tensors, **arguments)


@pytest.mark.parametrize("wanted", ["mdlm", "gidd", "hdlm"])
@pytest.mark.parametrize("case", [MDLM, GIDD, HDLM], ids=lambda case: case.family)
def test_another_family_is_named(wanted, case):
    if wanted != case.family:
        with pytest.raises(
            ValueError, match=f"format of {case.family.upper()}, not of {wanted.upper()}"
        ):
            getattr(official, wanted)(state(case))


def test_a_lightning_checkpoint_is_of_mdlm():
    with pytest.raises(ValueError, match="format of MDLM"):
        official.gidd(lightning())


@pytest.mark.parametrize(
    "name", ["dvruette/gidd-unif-10b", "dvruette/gidd-mask-3b", "dvruette/gidd-unif-3b"]
)
def test_scaling_models_are_refused_before_they_are_downloaded(name):
    with pytest.raises(ValueError, match=f"{name}.*another architecture"):
        official.gidd(name)


def test_folders_are_refused_by_their_configuration(tmp_path):
    tensors = without(state(GIDD), "logit_bias")
    with pytest.raises(ValueError, match="another architecture"):
        official.gidd(hub_folder(tmp_path / "scaling", tensors, dict(model_type="gidd")))
    with pytest.raises(ValueError, match="time_conditioning"):
        official.mdlm(
            hub_folder(tmp_path / "sigma", state(MDLM), MDLM_CONFIG | {"time_conditioning": True})
        )


def test_paths_that_hold_no_checkpoint(tmp_path):
    refused_with(tmp_path=tmp_path)(r"""
        official.gidd(tmp_path) | FileNotFoundError | contains none of model
        official.gidd("absent/model.pt") | FileNotFoundError | no such file
        official.gidd(tmp_path / "absent") | FileNotFoundError | not a file, a folder or a hub id
    """)
    (tmp_path / "model.npz").touch()
    with pytest.raises(ValueError, match="must end in one of"):
        official.gidd(tmp_path / "model.npz")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="contains a list"):
        official.gidd(tmp_path / "list.pt")
