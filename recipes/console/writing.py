"""Checks of the files that a command will write."""

import os
from collections.abc import Mapping
from pathlib import Path


def check_inputs_kept(
    read: Mapping[str, Path | str | None], written: Mapping[str, Path | str | None]
) -> None:
    """Raise ValueError if a file to write is one to read, or another one to write.

    Args:
        read: files to read by the names of their arguments, None for no file.
        written: files to write.
    """
    taken = {Path(path).resolve(): name for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        place = Path(path).resolve()
        if place in taken:
            raise ValueError(
                f"{name}={path}: would replace the file of {taken[place]}, name another one"
            )
        taken[place] = name


def check_file(name: str, path: Path) -> None:
    """Create the folder of a file before the work for its content is done.

    Args:
        name: name of the argument, for messages.
        path: path of the file.

    Raises:
        ValueError: no file can be written there.
    """
    if path.is_dir():
        raise ValueError(f"{name}={path}: is a folder, must be a file")
    for above in path.parents:
        if above.exists() and not above.is_dir():
            raise ValueError(f"{name}={path}: {above} is a file, must be a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{name}={path}: cannot be written: {error}") from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{name}={path}: may not be written")
