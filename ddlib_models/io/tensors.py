"""Tensors of a network in a file, written and read completely."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ddlib_models.io.json_files import shorten


def save_tensors(model: nn.Module, path: Path) -> None:
    """Write the tensors of the model, tied ones once, under their first name.

    ``fill`` reads them.
    """
    once = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    state = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name in once.values()
    }
    # safetensors' save_model would record the ties too, in an order that changes the bytes from run
    # to run
    save_file(state, path, metadata={"format": "pt"})


@torch.no_grad()
def fill(model: nn.Module, path: Path, optional: tuple[str, ...] = ()) -> None:
    """Load the tensors of the file into the model, in the dtypes of the file.

    Tied parameters stay tied.

    Raises:
        ValueError: unknown tensors, missing ones whose names begin with none of ``optional``, or
            tensors of another shape: the first by name, and their number.
    """
    loaded = load_file(path)
    current = model.state_dict(keep_vars=True)
    faults = [f"the model has no {name}" for name in loaded.keys() - current.keys()] + _absent(
        current, loaded.keys(), optional
    )
    for name in loaded.keys() & current.keys():
        if loaded[name].shape != current[name].shape:
            faults.append(
                f"{name} is {tuple(loaded[name].shape)}, in the model {tuple(current[name].shape)}"
            )
    if faults:
        raise ValueError(f"{path}: the weights do not fit: {shorten(faults, '; ')}")
    dtypes = {tensor.dtype for tensor in loaded.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        # buffers that are not saved get the dtype they had in the saved model
        model.to(dtypes.pop())
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in loaded and tensor.dtype != loaded[name].dtype:
            tensor.data = tensor.to(loaded[name].dtype)
    model.load_state_dict(loaded, strict=False)


def _absent(
    state: Mapping[str, Tensor], names_in_file: Collection[str], optional: tuple[str, ...]
) -> list[str]:
    """Return the tensors of the model that the file has under two names, or, unless they are
    optional, under none.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    faults = []
    for tied in names.values():
        present = [name for name in tied if name in names_in_file]
        if not present and not tied[0].startswith(optional):
            faults.append(f"the file has no {' = '.join(tied)}")
        elif len(present) > 1:
            faults.append(f"{' and '.join(present)} are one tensor in the model")
    return faults
