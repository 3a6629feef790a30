"""Manifests of folders: sizes and hashes, written last and checked before anything is read.

safetensors and JSON load a flipped bit without an error. ``writing`` makes a folder,
``check_manifest`` rejects one that has changed since. The hashes detect damage and mix-ups, not
tampering: a file can be changed together with its hash.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "ddlib_manifest.json"
FORMAT = 1
FOREIGN = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.json")
"""Patterns of files that a loader might take for weights or a configuration; other files may be in
the folder.
"""


class ManifestError(ValueError):
    """Error for a folder that differs from its manifest.

    The message names the folder and every file at fault.
    """


def write_manifest(
    folder: str | Path, facts: Mapping[str, Any], unlisted: Collection[str] = ()
) -> None:
    """Write names, sizes and sha256 of all files of the folder and its subfolders, and these facts.

    Args:
        folder: the finished files.
        facts: further information for readers, in JSON: the class, the training step.
        unlisted: files at the top level that may change later, such as README.md.

    Raises:
        TypeError: facts that are not JSON.
    """
    folder = Path(folder)
    names = (
        path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()
    )
    files = {
        name: _fingerprint(folder / name) for name in names if name not in (MANIFEST, *unlisted)
    }
    _write(folder, dict(facts), files, complete=True)


def check_manifest(folder: str | Path, foreign: Collection[str] = FOREIGN) -> dict[str, Any]:
    """Return the facts of a folder after checking that all its files are present and unchanged.

    Args:
        folder: a folder with a manifest from ``write_manifest``, or a copy.
        foreign: patterns of names that must not be there unlisted; empty to check only listed
            files.

    Raises:
        ManifestError: files that are missing, truncated, too long, altered or foreign, each by
            name; an interrupted save; a manifest that is missing, damaged, or of a newer format.
    """
    folder = Path(folder)
    manifest = _read(folder)
    if not manifest["complete"]:
        raise ManifestError(f"{folder}: the save into it was interrupted; save again")
    faults = [_fault(folder, name, expected) for name, expected in manifest["files"].items()]
    faults += [
        f"{name} is not listed in {MANIFEST}" for name in _strangers(folder, manifest, foreign)
    ]
    if messages := [fault for fault in faults if fault]:
        raise ManifestError(f"{folder}: {'; '.join(messages)}")
    return manifest["facts"]


def read_facts(folder: str | Path) -> dict[str, Any]:
    """Return the facts without checking the files.

    Raises:
        ManifestError: the manifest is missing, damaged, or of a newer format.
    """
    return _read(Path(folder))["facts"]


def list_files(folder: str | Path) -> list[str]:
    """Return the names in the folder's manifest without checking the files.

    Raises:
        ManifestError: the manifest is missing, damaged, or of a newer format.
    """
    return list(_read(Path(folder))["files"])


@contextmanager
def writing(
    folder: str | Path, facts: Mapping[str, Any], unlisted: Collection[str] = ()
) -> Iterator[Path]:
    """Open a temporary sibling to write files into.

    At the end it gets a manifest and is moved in place.

    A new folder appears at once, by one rename. In an older save, the files move one by one under a
    manifest that is marked "interrupted" until the last has moved. Other files stay, and so does an
    unlisted file that is already there. A failure before the files move leaves the folder
    unchanged.

    Args:
        folder: the destination; it and its parents are created if necessary.
        facts: see ``write_manifest``.
        unlisted: see ``write_manifest``.

    Raises:
        ManifestError: the folder holds files of another program under these names, or files that
            ``check_manifest`` rejects as foreign; or its manifest is damaged, or of a newer format.
    """
    folder = Path(folder).resolve()
    if folder.exists() and not folder.is_dir():
        raise ManifestError(f"{folder}: is a file, must be a folder")
    _older(folder)  # raises before the work of writing
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        yield temporary
        write_manifest(temporary, facts, unlisted)
        _sync(temporary)
        if folder.exists() and any(folder.iterdir()):
            _merge(temporary, folder, unlisted)
        else:
            os.replace(temporary, folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _merge(temporary: Path, folder: Path, unlisted: Collection[str]) -> None:
    """Move the files into an existing folder.

    Files of an older save that this one lacks are deleted.
    """
    older = _older(folder)
    newer = _read(temporary)["files"]
    for name in newer:
        if name not in older and (folder / name).exists():
            raise ManifestError(
                f"{folder}: contains {name}, which no save wrote; save to another folder"
            )
    # lists the files of both, so that a save after an interruption recognises them
    _write(folder, {}, dict(older) | newer, complete=False)
    flush(folder)
    for name in older.keys() - newer.keys():
        (folder / name).unlink(missing_ok=True)
    moved = [
        *newer,
        *(
            name
            for name in unlisted
            if (temporary / name).exists() and not (folder / name).exists()
        ),
    ]
    for name in moved:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary / name, folder / name)
    for inside in {folder, *((folder / name).parent for name in moved)}:
        flush(inside)
    os.replace(temporary / MANIFEST, folder / MANIFEST)
    flush(folder)


def _older(folder: Path) -> dict[str, Any]:
    """Return the files of the save in the folder; none if it holds no save."""
    manifest = _read(folder) if (folder / MANIFEST).exists() else {"files": {}}
    if strangers := _strangers(folder, manifest, FOREIGN):
        raise ManifestError(
            f"{folder}: contains {', '.join(strangers)}, which no save wrote and with which no "
            "saved model can be "
            "loaded; save to another folder"
        )
    return manifest["files"]


def _strangers(folder: Path, manifest: Mapping[str, Any], patterns: Collection[str]) -> list[str]:
    """Return unlisted files that match a pattern.

    Hidden folders, such as the hub's cache, are skipped.
    """
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    names = (
        path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)
    )
    shorten = {*manifest["files"], MANIFEST}
    return [
        name
        for name in names
        if name not in shorten and any(fnmatch(name, pattern) for pattern in patterns)
    ]


def _fault(folder: Path, name: str, expected: Mapping[str, Any]) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    if size != expected["size"]:
        return (
            f"{name} is {'truncated' if size < expected['size'] else 'too long'}: {size} of "
            f"{expected['size']} bytes"
        )
    return (
        None
        if _sha256(path) == expected["sha256"]
        else f"{name} is altered: its sha256 is not the one in {MANIFEST}"
    )


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(content: Mapping[str, Any]) -> str:
    """Return the hash of everything else in the manifest, so that a changed fact is detected
    too.
    """
    plain = {key: value for key, value in content.items() if key != "seal"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _write(folder: Path, facts: dict[str, Any], files: dict[str, Any], complete: bool) -> None:
    content = {"format": FORMAT, "complete": complete, "facts": facts, "files": files}
    content = json.loads(json.dumps(content))  # as it will be read, or the seal would differ
    new = folder / f".{MANIFEST}"
    new.write_text(
        json.dumps(content | {"seal": _seal(content)}, indent=1) + "\n", encoding="utf-8"
    )
    flush(new)
    os.replace(new, folder / MANIFEST)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ManifestError(f"{folder}: has no {MANIFEST}, so its files were not saved by ddlib")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
        files = content["files"]
        seal = content["seal"]
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path}: damaged, {type(error).__name__}: {error}") from error
    if version != FORMAT and seal == _seal(content):
        raise ManifestError(
            f"{path}: format {version}, this ddlib reads format {FORMAT}; install a newer ddlib"
        )
    if seal != _seal(content):
        raise ManifestError(f"{path}: damaged, its checksum does not match its content")
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ManifestError(f"{path}: names {name!r}, which lies outside of the folder")
    return content


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)


def flush(path: Path) -> None:
    """Wait until the file, or the folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
