"""Publishing to the hub and loading from it, with a hub of folders in the place of the real one."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import hub_mixin
from saving import SAVED, Small, flip, same
from tiny import trained
from zoo.trees import ELEVEN_IN_TWO

from ddlib_models import DiT, ManifestError
from ddlib_models.io import pretrained


class Hub:
    """Repositories as folders; every call is noted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = []

    def __call__(self, token=None):
        self.calls.append(("token", token))
        return self

    def create_repo(self, repo_id, private, exist_ok):
        self.calls.append(("create", repo_id, private, exist_ok))
        return type("Url", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id, folder_path, revision, **others):
        self.calls.append(("upload", repo_id, revision))
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"commit of {repo_id}"

    def snapshot_download(self, repo_id, *, allow_patterns, **others):
        self.calls.append(("download", repo_id, others))
        target = self.root / "cache" / repo_id
        target.mkdir(parents=True, exist_ok=True)
        for name in allow_patterns:
            if (self.root / repo_id / name).exists():
                shutil.copy(self.root / repo_id / name, target / name)
        return str(target)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub_mixin, "HfApi", hub)
    monkeypatch.setattr(pretrained, "snapshot_download", hub.snapshot_download)
    return hub


def test_a_published_model_is_loaded_from_the_hub(hub):
    model = trained(tied=True, parents=ELEVEN_IN_TWO)
    commit = model.push_to_hub(
        "me/model", extra={"tokenizer.json": "{}"}, private=True, token="secret", branch="dev"
    )
    assert commit == "commit of me/model"
    assert hub.calls == [
        ("token", "secret"),
        ("create", "me/model", True, True),
        ("upload", "me/model", "dev"),
    ]
    assert sorted(path.name for path in (hub.root / "me/model").iterdir()) == sorted(
        [*SAVED, "tokenizer.json"]
    )
    assert "save_pretrained" not in vars(model)
    where = dict(
        revision="abc",
        token="secret",
        cache_dir="there",
        force_download=True,
        local_files_only=False,
    )
    assert same(DiT.from_pretrained("me/model", **where), model)
    assert hub.calls[3:] == [("download", "me/model", where)] * 2


def test_save_can_publish_at_once(hub, tmp_path):
    model = Small(3)
    commit = model.save_pretrained(
        tmp_path / "mine", push_to_hub=True, extra={"x.txt": "y"}, private=True
    )
    assert commit == "commit of mine" and ("create", "mine", True, True) in hub.calls
    assert (
        same(Small.from_pretrained("mine"), model) and (hub.root / "mine/x.txt").read_text() == "y"
    )
    assert same(Small.from_pretrained(tmp_path / "mine"), model)


def test_other_files_of_a_repository_are_not_downloaded(hub):
    model = trained()
    model.push_to_hub("me/model")
    for name in ("README.md", "pytorch_model.bin", "other.safetensors"):
        (hub.root / "me/model" / name).write_text("edited")
    assert same(DiT.from_pretrained("me/model"), model)
    assert not (hub.root / "cache/me/model/pytorch_model.bin").exists()


def test_files_from_the_hub_are_checked(hub):
    trained().push_to_hub("me/model")
    flip(hub.root / "me/model")
    with pytest.raises(ManifestError, match=r"model\.safetensors is altered"):
        DiT.from_pretrained("me/model")
    with pytest.raises(ManifestError, match="has no ddlib_manifest"):
        DiT.from_pretrained("me/nothing")
