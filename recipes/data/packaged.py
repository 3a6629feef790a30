"""Data files inside installed packages, found without importing the packages."""

import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path


def package_path(package: str, inside: str, what: str, install: str) -> Path:
    """Return the path of a file or folder of an installed package.

    Args:
        package: name of the package for ``import``.
        inside: path within the package.
        what: description of the data, for the error message.
        install: arguments of ``pip install``.

    Raises:
        ModuleNotFoundError: the package is not installed or lacks the file; with the command that
            installs it.
    """
    spec = find_spec(package)
    path = Path(spec.origin).parent / inside if spec and spec.origin else None
    if path is None or not path.exists():
        raise ModuleNotFoundError(f"{what} are missing; run: pip install {install}")
    return path


def content_hash(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of the content of each file, by its name."""
    return {file.name: content_hash(file) for file in files}


def check_limit(limit: int | None) -> None:
    """Check the maximum number of sequences.

    Raises:
        ValueError: it is below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1, or left out for all sequences")
