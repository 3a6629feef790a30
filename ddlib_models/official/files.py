"""Checkpoints of other libraries, from memory, a file, a folder or the hub.

No code in them is run.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

CheckpointSource = Mapping[str, Any] | str | Path
"""Tensors by name (or the content of a Lightning checkpoint), a path, or a hub id ``owner/name``.
"""

WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
CONFIG = "config.json"
NOISE = "noise_schedule.pt"


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint: the weights' file, and from a folder also ``config.json`` and
    ``noise_schedule.pt``.
    """

    content: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    noise: Mapping[str, Any] = field(default_factory=dict)


def read(source: CheckpointSource, revision: str | None = None) -> Checkpoint:
    """Read the checkpoint at ``source``, to the CPU if it comes from a file.

    Args:
        source: see ``CheckpointSource``.
        revision: branch, tag or commit of a hub id.

    Raises:
        FileNotFoundError: no such path, or a folder without weights.
        ValueError: a file of another kind, or one that holds more than tensors and plain values.
    """
    if isinstance(source, Mapping):
        return Checkpoint(source)
    path = Path(source)
    if not path.exists():
        path = _download(str(source), revision)
    if path.is_file():
        return Checkpoint(_file(path))
    config = path / CONFIG
    noise = path / NOISE
    return Checkpoint(
        _file(_weights_in(path)),
        json.loads(config.read_text()) if config.exists() else {},
        load(noise) if noise.exists() else {},
    )


def load(path: Path) -> Any:
    """Load a file of ``torch.save`` to the CPU, if it holds tensors and plain values only.

    Raises:
        ValueError: it holds other objects, which only running code could restore.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError(
            f"{path} contains objects other than tensors, and loading them can run arbitrary code. "
            "If you trust the "
            "file, read it with torch.load(path, map_location='cpu', weights_only=False), in an "
            "environment with the "
            "packages that wrote it, and pass the dictionary."
        ) from error


def _safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".safetensors": _safetensors,
    ".pt": load,
    ".ckpt": load,
    ".bin": load,
}


def _file(path: Path) -> Mapping[str, Any]:
    if path.suffix not in READERS:
        raise ValueError(f"{path}: a checkpoint's name must end in one of {', '.join(READERS)}")
    content = READERS[path.suffix](path)
    if not isinstance(content, Mapping):
        raise ValueError(
            f"{path} contains a {type(content).__name__}: must be a mapping of names to tensors"
        )
    return content


def _weights_in(folder: Path) -> Path:
    for name in WEIGHTS:
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(
        f"{folder} contains none of {', '.join(WEIGHTS)}; pass the file itself if it has another "
        "name"
    )


def _download(name: str, revision: str | None) -> Path:
    if Path(name).suffix in READERS:
        raise FileNotFoundError(f"{name}: no such file")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=[CONFIG, NOISE, *WEIGHTS])
        )
    except HFValidationError as error:
        raise FileNotFoundError(f"{name}: not a file, a folder or a hub id") from error
