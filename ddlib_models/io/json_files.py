"""JSON files beside pretrained weights, with errors that name what is wrong with them.

Parts of such messages.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from huggingface_hub.errors import LocalEntryNotFoundError

ADAPTER = "adapter_config.json"
"""File that peft writes beside an adapter."""
_LISTED = 5
"""Maximum number of items in a message."""


def read_model_config(name: str, label: str, revision: str | None = None) -> dict[str, Any]:
    """Read config.json of a folder or a repository.

    Args:
        name: name of the model.
        label: the model's name in messages.
        revision: revision of the repository.

    Raises:
        ValueError: there is no config.json, or only an adapter; see ``read_object`` for a broken
            one.
    """
    config = None
    answer = ""
    reachable = True
    try:
        config = read_object(name, "config.json", revision)
    except OSError as error:
        answer = f", and the hub answers: {str(error).strip().splitlines()[0]}"
        # the hub is out of reach
        reachable = not isinstance(error.__cause__, LocalEntryNotFoundError)
    if config is not None:
        return config
    if reachable and is_there(name, ADAPTER, revision):
        raise ValueError(
            f"{label}: contains an adapter and no model; merge it into its model by "
            "model.merge_and_unload() and save "
            "the result"
        )
    if (Path(name) / "weights" / "recipe.yaml").is_file():
        raise ValueError(
            f"{label}: is the folder of a run, not of a model alone; load it with "
            "recipes.model_io.open_saved or "
            f"python -m recipes.generate {name}"
        )
    if Path(name).is_dir():
        raise ValueError(f"{label}: this folder has no config.json, so it contains no model")
    raise ValueError(f"{label}: not a folder with a model{answer}")


def read_object(name: str, file: str, revision: str | None = None) -> dict[str, Any] | None:
    """Read a JSON file of a folder or a repository; None if the folder has none.

    Raises:
        OSError: the repository has none, or cannot be reached.
        ValueError: it is not JSON, or not an object; or the name is that of a file.
    """
    folder = Path(name)
    if folder.is_file():
        raise ValueError(f"{name}: is a file, must be a folder or the id of a repository")
    if folder.is_dir():
        path = folder / file
        if not path.is_file():
            return None
    else:
        # local import: the caller raises the error for a missing package
        from transformers.utils import (
            cached_file,
        )

        path = Path(cached_file(name, file, revision=revision))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bytes that are not text are a ValueError too
        raise ValueError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path}: contains a {type(content).__name__}, must contain an object with keys"
        )
    return content


def line(error: Exception) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split())


def shorten(items: Collection[str], sign: str = ", ") -> str:
    """Return the first five items, sorted, and the number of the others."""
    first = sign.join(sorted(items)[:_LISTED])
    return first if len(items) <= _LISTED else f"{first} and {len(items) - _LISTED} more"


def is_there(name: str, file: str, revision: str | None = None) -> bool:
    """Return whether a folder or a repository has a JSON file, broken or not."""
    try:
        return read_object(name, file, revision) is not None
    except OSError:
        return False
    except ValueError:
        return True
