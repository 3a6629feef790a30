"""Weights of others, read from safetensors by a class of transformers', all of them or none."""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ddlib_models.io.json_files import ADAPTER, is_there

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_FLOATS = ("F64", "F32", "F16", "BF16")
"""What safetensors calls numbers that are weights as they are."""
_SAID = 5
"""Of more names than these a message gives the number."""


def filled_network(kind: Any, name: str, label: str, **options: Any) -> nn.Module:
    """A network of transformers with its weights, which are read from safetensors only, in evaluation mode.

    Heads for other tasks may lie beside: what another network of the same configuration has is no fault. The files are
    looked at before a network is made.

    Args:
        kind: the class that reads them, or an auto class.
        name: a folder, or the id of a repository.
        label: what messages call it.
        options: of ``from_pretrained``.

    Raises:
        OSError: no safetensors among the files.
        ValueError: an adapter lies beside; a file that is broken; quantised weights; weights that the network needs and
            the files have not, or the files have and it has not, or of another shape; numbers that are not finite.
    """
    revision = options.get("revision")
    if is_there(name, ADAPTER, revision):
        # transformers would read the model that it names, from wherever that is, and this adapter on top
        raise ValueError(
            f"{label}: holds an adapter, which is not read; merge it into its model, model.merge_and_unload(), and "
            f"save that, or take {ADAPTER} away where the weights have it already"
        )
    _check(list(_files(name, revision)))
    network, told = kind.from_pretrained(
        name, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    unknown = set(told["unexpected_keys"])
    if unknown:
        unknown -= _elsewhere(network.config)
    faults = {"the files have no": told["missing_keys"], "the network has no": unknown}
    said = [f"{what} {_listed(keys)}" for what, keys in faults.items() if keys]
    shapes = {f"{key} is {tuple(given)} and must be {tuple(own)}" for key, given, own in told["mismatched_keys"]}
    if said := [*said, *([_listed(shapes)] if shapes else [])]:
        raise ValueError(f"{label}: the weights do not fit {type(network).__name__}: {'; '.join(said)}")
    for key, weight in network.named_parameters():
        if weight.numel() and not all(bool(end.isfinite()) for end in weight.detach().aminmax()):
            raise ValueError(f"{label}: {key} holds numbers that are not finite")
    return network.eval()


def _files(name: str, revision: str | None) -> Iterator[Path]:
    """The files that hold the weights, one or, by an index, several; none where transformers shall say what lacks."""
    from transformers.utils import cached_file

    def found(file: str) -> Path | None:
        try:
            path = cached_file(name, file, revision=revision)
        except OSError:
            return None
        return None if path is None else Path(path)

    if whole := found(WHOLE):
        yield whole
    elif index := found(INDEX):
        try:
            parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index}: is no index of weights: {type(error).__name__}: {error}") from error
        for part in parts:
            if (path := found(part)) is None:
                raise ValueError(f"{index}: names {part}, which is not there")
            yield path


def _check(files: Collection[Path]) -> None:
    """Refuses broken files, and quantised weights by what the headers say: config.json may be silent."""
    kinds: dict[str, tuple[Path, str]] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                kinds |= {key: (path, file.get_slice(key).get_dtype()) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: is broken or no file of safetensors: {error}") from error
    for key, (path, kind) in sorted(kinds.items()):
        # integers may be positions or a mask that an older version saved
        counts = kind[0] in "IUB" and kind not in _FLOATS and "weight" not in key.rpartition(".")[2]
        scale = re.fullmatch(r"(.+)_(scale|scale_inv|scales)", key)
        if scale and scale[1] in kinds:
            kind = f"what {scale[1]} is multiplied by"
        elif kind in _FLOATS or counts:
            continue
        raise ValueError(
            f"{path}: {key} is {kind}, so the weights are quantised, which is not read: take the repository that they "
            "were made from"
        )


def _elsewhere(config: Any) -> set[str]:
    """Names of weights of other networks of this configuration, which a file may have beside: poolers, other heads."""
    import transformers  # not above: its absence is told by who asks for a network

    known: set[str] = set()
    for mapping in (transformers.MODEL_MAPPING, transformers.MODEL_FOR_PRETRAINING_MAPPING):
        if type(config) not in mapping:
            continue
        for kind in _each(mapping[type(config)]):
            with torch.device("meta"):
                made = kind(config)
            own = made.state_dict().keys()
            known |= own | {f"{made.base_model_prefix}.{key}" for key in own}
    return known


def _each(kinds: Any) -> tuple[Any, ...]:
    """The classes of an entry of transformers' mappings, which may be one or several."""
    return kinds if isinstance(kinds, tuple) else (kinds,)


def _listed(names: Collection[str]) -> str:
    """The first of these names, and how many more there are."""
    first = ", ".join(sorted(names)[:_SAID])
    return first if len(names) <= _SAID else f"{first} and {len(names) - _SAID} more"
