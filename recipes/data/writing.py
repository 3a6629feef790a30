"""Folders of prepared data: written once and atomically, never over other data."""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars
from filelock import FileLock
from tokenizers import Tokenizer

from recipes.data.prepared import MANIFEST, Prepared, changes, open_prepared, sizes

HASH = re.compile("[0-9a-f]{64}")


class OtherContentError(ValueError):
    """A folder that holds other data than those to be written."""


def once(
    folder: Path, content: Callable[[], tuple[dict[str, Any], Callable[[Path], None]]]
) -> Prepared:
    """Write a folder, or open it if it holds the same.

    Processes that write the same folder wait for each other.

    Args:
        folder: the folder.
        content: returns all that determines the content, in plain values, and the function that
            writes it.

    Raises:
        OtherContentError: the folder holds something else.
        ValueError: the folder is a file.
    """
    bars_on_terminals_only()
    folder = Path(folder)
    if folder.is_file():
        raise ValueError(f"folder={folder}: is a file")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        inputs, write = content()
        if folder.is_dir() and any(folder.iterdir()):
            prepared = open_prepared(folder)
            if differing := changes(prepared.manifest["inputs"], inputs):
                raise OtherContentError(
                    f"{folder} contains other data, choose another folder: {_list_first(differing)}"
                )
            return prepared
        with _new(folder) as unfinished:
            write(unfinished)
    return open_prepared(folder)


def bars_on_terminals_only() -> None:
    """Show the progress bars of ``datasets`` on terminals only, not in logs."""
    if not sys.stderr.isatty():
        disable_progress_bars()


def finish(manifest: dict[str, Any], folder: Path) -> None:
    """Write the manifest with the sizes of all files, as the last file."""
    manifest["files"] = sizes(folder)
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return a hash of a tokenizer's file."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def _list_first(differing: Sequence[tuple[str, Any, Any]], shown: int = 3) -> str:
    """Return the first of the values that differ, hashes by their beginning."""

    def short(value: Any) -> Any:
        return value[:12] if isinstance(value, str) and HASH.fullmatch(value) else value

    lines = [
        f"{place} was {short(there)!r}, is {short(now)!r}"
        for place, there, now in differing[:shown]
    ]
    return "; ".join(lines) + (
        f"; and {len(differing) - shown} more" if len(differing) > shown else ""
    )


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """Open a temporary folder that is renamed at the end, and removed on failure."""
    unfinished = folder.parent / f".{folder.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # of a killed process: this one holds the lock
    unfinished.mkdir()
    try:
        yield unfinished
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
