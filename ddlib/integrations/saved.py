"""Files beside the weights: the process as plain values, and samples."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from ddlib.arguments import values
from ddlib.plugins import registry
from ddlib.plugins.config import build
from ddlib.processes import ForwardProcess
from ddlib.samplers import sample
from ddlib.typing import Denoiser, Tokens

PROCESS = "process.json"


def process_file(process: ForwardProcess) -> dict[str, str]:
    """Return the file that ``save_process`` writes, by name, for ``network.save_pretrained(folder, extra=...)``.

    Raises:
        TypeError: an argument of the process that is not a plain value.
    """
    return {PROCESS: json.dumps(values(process), indent=1) + "\n"}


def save_process(process: ForwardProcess, folder: str | Path) -> Path:
    """Write the plain values of a process, ``dd.values(process)``, to ``process.json`` in the folder of the weights.

    Raises:
        TypeError: an argument of the process that is not a plain value.
    """
    path = Path(folder) / PROCESS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(process_file(process)[PROCESS], encoding="utf-8")
    return path


def load_process(folder: str | Path, trust: Collection[str] = ()) -> ForwardProcess:
    """Build the process of a ``process.json``, bit for bit.

    Args:
        folder: the folder.
        trust: modules from which parts outside the registry may be imported.

    Raises:
        PermissionError: a part from a module that is not trusted.
        ValueError: values that describe no process.
    """
    with registry.trusting(trust):
        plain = json.loads((Path(folder) / PROCESS).read_text(encoding="utf-8"))
        process: ForwardProcess = build("processes", plain)
    return process


def is_sharded(network: nn.Module) -> bool:
    """Return whether FSDP divides the weights among processes, so that all of them have to call the network."""
    return any(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in network.modules())


@torch.no_grad()
def draw_samples(
    process: ForwardProcess, network: nn.Module, shape: tuple[int, int], *args: Any, **options: Any
) -> Tokens:
    """Generate tokens (B, L) with the network in evaluation mode; arguments as in ``ddlib.sample``.

    A sharded network gathers its weights in ``forward`` alone, so no other method of it is called.
    """
    modes, denoiser = {module: module.training for module in network.modules()}, cast(Denoiser, network)
    if is_sharded(network):
        denoiser = network.__call__
        options = {"parameterization": getattr(network, "parameterization", None), **options}
    network.eval()
    try:
        return sample(process, denoiser, shape, *args, **options)
    finally:  # each module in its former mode: some may be frozen
        for module, training in modes.items():
            module.training = training


def write_samples(path: Path, tokens: Tokens, decode: Callable[[list[int]], str] | None = None) -> None:
    """Write sequences of tokens as lines of text.

    Args:
        path: the file.
        tokens: (B, L) the sequences.
        decode: function from ids to text, such as ``tokenizer.decode``; by default the ids themselves are written.
    """
    spell = decode or (lambda ids: " ".join(map(str, ids)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{spell(ids)}\n" for ids in tokens.tolist()), encoding="utf-8")
