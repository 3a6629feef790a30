"""The manifest of a folder: what is refused, by which name, and what an interruption leaves
behind.
"""

import json
import os
import shutil

import pytest

from ddlib_models.io import manifest
from ddlib_models.io.manifest import (
    MANIFEST,
    ManifestError,
    check_manifest,
    list_files,
    write_manifest,
    writing,
)

FILES = {"weights.safetensors": b"0123456789", "config.json": b"{}", "rank/0.pt": b"abc"}


def fill(folder, files=FILES):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def save(folder, files=FILES, **facts):
    with writing(folder, facts, unlisted=("README.md",)) as temporary:
        fill(temporary, files)
    return folder


def content(folder) -> dict[str, bytes]:
    paths = [
        path for path in folder.rglob("*") if path.is_file() and path.name.lstrip(".") != MANIFEST
    ]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_an_intact_folder_has_its_facts(tmp_path):
    write_manifest(fill(tmp_path), {"class": "Small", "step": 7, "losses": (1.5, 2)})
    assert check_manifest(tmp_path) == {"class": "Small", "step": 7, "losses": [1.5, 2]}
    assert sorted(list_files(tmp_path)) == sorted(FILES)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert check_manifest(str(moved))["step"] == 7


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "rank/0.pt").unlink(), r"rank/0\.pt is missing"),
        (
            lambda f: (f / "config.json").write_bytes(b"{"),
            r"config\.json is truncated: 1 of 2 bytes",
        ),
        (
            lambda f: (f / "config.json").write_bytes(b"{}\n"),
            r"config\.json is too long: 3 of 2 bytes",
        ),
        (
            lambda f: (f / "weights.safetensors").write_bytes(b"0123456788"),
            r"weights\.safetensors is altered",
        ),
        (lambda f: (f / "more.safetensors").write_bytes(b"x"), r"more\.safetensors is not listed"),
        (lambda f: fill(f, {"rank/1.pt": b"x"}), r"rank/1\.pt is not listed"),
    ],
)
def test_a_file_at_fault_is_named(tmp_path, damage, message):
    save(tmp_path / "saved")
    damage(tmp_path / "saved")
    with pytest.raises(ManifestError, match=rf"saved: {message}"):
        check_manifest(tmp_path / "saved")


def test_every_bit_counts(tmp_path):
    save(tmp_path)
    path = tmp_path / "weights.safetensors"
    for position in range(8 * len(FILES[path.name])):
        flipped = bytearray(FILES[path.name])
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(ManifestError, match=r"weights\.safetensors is altered"):
            check_manifest(tmp_path)


def test_all_files_at_fault_are_named_at_once(tmp_path):
    save(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "rank/0.pt").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"config\.json is missing; rank/0\.pt is truncated"):
        check_manifest(tmp_path)


def test_files_that_no_loader_reads_are_accepted(tmp_path):
    save(tmp_path)
    fill(tmp_path, {"notes.txt": b"mine", ".cache/huggingface/x.json": b"{}"})
    assert check_manifest(tmp_path) == {}
    fill(tmp_path, {"x.json": b"{}"})
    assert check_manifest(tmp_path, foreign=()) == {}


def test_unlisted_files_may_change(tmp_path):
    save(tmp_path, FILES | {"README.md": b"card"})
    (tmp_path / "README.md").write_bytes(b"edited")
    assert check_manifest(tmp_path) == {} and "README.md" not in list_files(tmp_path)


def edit(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def reseal(folder, **changes):
    edit(folder, **changes)
    edit(folder, seal=manifest._seal(json.loads((folder / MANIFEST).read_text())))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: (f / MANIFEST).unlink(),
            f"has no {MANIFEST}, so its files were not saved by ddlib",
        ),
        (
            lambda f: (f / MANIFEST).write_text('{"format": 1, '),
            f"{MANIFEST}: damaged, JSONDecodeError",
        ),
        (
            lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe"),
            f"{MANIFEST}: damaged, UnicodeDecodeError",
        ),
        (lambda f: (f / MANIFEST).write_text("{}"), f"{MANIFEST}: damaged, KeyError: 'format'"),
        (lambda f: (f / MANIFEST).write_text("[]"), f"{MANIFEST}: damaged, TypeError"),
        (
            lambda f: edit(f, facts={"class": "Other"}),
            f"{MANIFEST}: damaged, its checksum does not match",
        ),
        (lambda f: edit(f, files={}), f"{MANIFEST}: damaged, its checksum does not match"),
        (lambda f: edit(f, format=2), f"{MANIFEST}: damaged, its checksum does not match"),
        (
            lambda f: reseal(f, format=2),
            f"{MANIFEST}: format 2, this ddlib reads format 1; install",
        ),
        (lambda f: reseal(f, files={"../x": {}}), r"names '\.\./x', which lies outside"),
        (lambda f: reseal(f, files={"/etc/x": {}}), "names '/etc/x', which lies outside"),
    ],
)
def test_a_manifest_at_fault_is_refused(tmp_path, damage, message):
    damage(save(tmp_path))
    for read in (check_manifest, list_files):
        with pytest.raises(ManifestError, match=message):
            read(tmp_path)


def test_facts_that_are_not_json_are_refused(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path / "saved", shape={1, 2})
    assert list(tmp_path.iterdir()) == []


def test_a_new_save_replaces_the_old_and_nothing_else(tmp_path):
    save(tmp_path, FILES | {"README.md": b"card"}, step=1)
    fill(tmp_path, {"notes.txt": b"mine", "README.md": b"edited"})
    save(tmp_path, {"config.json": b"[]", "new.json": b"{}", "README.md": b"another card"}, step=2)
    assert check_manifest(tmp_path) == {"step": 2}
    assert content(tmp_path) == {
        "config.json": b"[]",
        "new.json": b"{}",
        "notes.txt": b"mine",
        "README.md": b"edited",
    }


def test_folders_are_made_and_an_empty_one_is_used(tmp_path):
    save(tmp_path / "a/b", step=1)
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "c")
    save(tmp_path / "link", step=2)
    assert check_manifest(tmp_path / "a/b") == {"step": 1} and check_manifest(tmp_path / "c") == {
        "step": 2
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "link"]
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "a/b").stat().st_mode == (tmp_path / "plain").stat().st_mode, (
        "readable by whom the user lets"
    )


@pytest.mark.parametrize("name", ["weights.safetensors", "results.json"])
def test_files_of_others_are_not_overwritten(tmp_path, name):
    fill(tmp_path, {name: b"mine"})
    with pytest.raises(ManifestError, match=f"contains {name}, which no save wrote and with which"):
        save(tmp_path)
    assert content(tmp_path) == {name: b"mine"}


def test_a_file_of_another_kind_under_our_name_is_not_overwritten(tmp_path):
    fill(tmp_path, {"notes.txt": b"mine"})
    with pytest.raises(ManifestError, match=r"contains notes\.txt, which no save wrote"):
        save(tmp_path, FILES | {"notes.txt": b"ours"})
    assert content(tmp_path) == {"notes.txt": b"mine"}


def test_neither_a_file_nor_a_damaged_save_is_overwritten(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(ManifestError, match="file: is a file, must be a folder"):
        save(tmp_path / "file")
    (save(tmp_path / "saved") / MANIFEST).write_text("{")
    with pytest.raises(ManifestError, match="damaged"):
        save(tmp_path / "saved")
    assert content(tmp_path / "saved") == FILES


class Killed(BaseException):
    """An exception that no handler expects."""


def killed_at(step: int, monkeypatch):
    """The process ends before its n-th rename or deletion, without cleanup."""
    done = 0

    def counted(call):
        def wrapper(*args, **kwargs):
            nonlocal done
            done += 1
            if done == step:
                raise Killed
            return call(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(manifest.Path, "unlink", counted(manifest.Path.unlink))
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)


NEWER = {"config.json": b"[]", "new.json": b"{}"}


@pytest.mark.parametrize("old", [False, True])
def test_a_killed_save_leaves_the_old_model_or_one_that_is_refused(tmp_path, old):
    outcomes = []
    for step in range(1, 20):
        folder = tmp_path / str(step)
        if old:
            save(folder, step=1)
        with pytest.MonkeyPatch.context() as monkeypatch:
            killed_at(step, monkeypatch)
            try:
                save(folder, NEWER, step=2)
            except Killed:
                pass
            else:
                break
        try:
            assert check_manifest(folder) == {"step": 1} and content(folder) == FILES
            outcomes.append("old")
        except ManifestError as error:
            outcomes.append("interrupted" if "interrupted; save again" in str(error) else "absent")
        save(folder, NEWER, step=3)
        assert check_manifest(folder) == {"step": 3} and content(folder) == NEWER, (
            "a save after it repairs the folder"
        )
    # the manifest of the temporary folder, then one rename; or: that, the mark, two deletions, two
    # files, the manifest
    assert outcomes == (["old"] * 2 + ["interrupted"] * 5 if old else ["absent"] * 2)
    assert check_manifest(folder) == {"step": 2} and content(folder) == NEWER


@pytest.mark.parametrize("old", [False, True])
def test_a_failure_while_files_are_written_leaves_no_trace(tmp_path, old):
    folder = tmp_path / "saved"
    if old:
        save(folder, step=1)
    with pytest.raises(OSError, match="disk full"), writing(folder, {"step": 2}) as temporary:
        fill(temporary, {"config.json": b"half"})
        raise OSError("disk full")
    assert [path.name for path in tmp_path.iterdir()] == (["saved"] if old else [])
    assert not old or (check_manifest(folder) == {"step": 1} and content(folder) == FILES)
