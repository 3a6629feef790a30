"""Files beside the weights: the process as plain values, and samples."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ddlib.config import registry
from ddlib.config.building import build
from ddlib.config.plain import values
from ddlib.processes import ForwardProcess
from ddlib.samplers.sampling import sample
from ddlib.typing import Denoiser, Tokens

PROCESS = "process.json"


def process_values(process: ForwardProcess) -> dict[str, Any]:
    """Return the plain values of a process that another program can build.

    Raises:
        TypeError: an argument that is not a plain value, or a class of ``__main__``, which no other
            program can import.
    """
    try:
        plain = values(process)
    except TypeError as error:
        raise TypeError(f"process: cannot be built from a file: {error}") from error
    for place, kind in _kinds(plain, "process"):
        if kind.startswith("__main__:"):
            raise TypeError(
                f"{place} is {kind}: other programs cannot import it, move it to a module"
            )
    return plain


def _kinds(plain: Any, place: str) -> list[tuple[str, str]]:
    """Return the kinds of a part and of the parts inside it, with their places."""
    if isinstance(plain, list):
        return [kind for i, value in enumerate(plain) for kind in _kinds(value, f"{place}[{i}]")]
    if not isinstance(plain, dict):
        return []
    first = [(f"{place}.kind", str(plain["kind"]))] if "kind" in plain else []
    return first + [
        kind for name, value in plain.items() for kind in _kinds(value, f"{place}.{name}")
    ]


def process_file(process: ForwardProcess) -> dict[str, str]:
    """Return the file that ``save_process`` writes, by name, for ``network.save_pretrained(folder,
    extra=...)``.

    Raises:
        TypeError: an argument of the process that is not a plain value, or a class of ``__main__``.
    """
    return {PROCESS: json.dumps(process_values(process), indent=1) + "\n"}


def save_process(process: ForwardProcess, folder: str | Path) -> Path:
    """Write the plain values of a process, ``dd.values(process)``, to ``process.json`` in the
    folder of the weights.

    Raises:
        TypeError: as ``process_file``; nothing is written.
    """
    text = process_file(process)[PROCESS]
    path = Path(folder) / PROCESS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load_process(folder: str | Path, trust: Collection[str] = ()) -> ForwardProcess:
    """Build the process of a ``process.json``, bit for bit.

    Args:
        folder: the folder.
        trust: modules from which parts outside the registry may be imported.

    Raises:
        FileNotFoundError: the folder has no such file.
        PermissionError: a part from a module that is not trusted.
        ValueError: a file that is not JSON, or values that describe no process.
    """
    path = Path(folder) / PROCESS
    if not path.is_file():
        raise FileNotFoundError(
            f"folder {str(folder)!r} has no {PROCESS}, which save_process writes beside the "
            "weights; the process of a "
            "recipe's run is in its recipe.yaml"
        )
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # bad JSON, or bytes that are not UTF-8
        raise ValueError(f"{path} is not a file of save_process: {error}") from error
    with registry.trusting(trust):
        process: ForwardProcess = build("processes", plain)
    return process


def is_sharded(network: nn.Module) -> bool:
    """Return whether FSDP divides the weights among processes, so that each of them must call the
    network.
    """
    # takes a second to import
    from torch.distributed.fsdp import (
        FSDPModule,
        FullyShardedDataParallel,
    )

    return any(
        isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in network.modules()
    )


@torch.no_grad()
def draw_samples(
    process: ForwardProcess, network: nn.Module, shape: tuple[int, int], *args: Any, **options: Any
) -> Tokens:
    """Generate tokens (B, L) with the network in evaluation mode; arguments as in ``ddlib.sample``.

    A sharded network gathers its weights in ``forward`` alone, so no other method of it is called.
    """
    modes = {module: module.training for module in network.modules()}
    denoiser = cast(Denoiser, network)
    if is_sharded(network):
        denoiser = network.__call__
        options = {"parameterization": getattr(network, "parameterization", None), **options}
    network.eval()
    try:
        return sample(process, denoiser, shape, *args, **options)
    finally:  # each module in its former mode: some may be frozen
        for module, training in modes.items():
            module.training = training


def write_samples(
    path: Path, tokens: Tokens, decode: Callable[[list[int]], str] | None = None
) -> None:
    """Write sequences of tokens as lines of text.

    Args:
        path: the file.
        tokens: (B, L) the sequences.
        decode: function from ids to text, such as ``tokenizer.decode``; by default the ids
            themselves are written.
    """
    spell = decode or (lambda ids: " ".join(map(str, ids)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{spell(ids)}\n" for ids in tokens.tolist()), encoding="utf-8")
