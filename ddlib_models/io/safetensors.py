"""Third-party safetensors weights, loaded completely into a class of transformers or not at all."""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ddlib_models.io.json_files import ADAPTER, is_there, shorten

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of weights that are never read, as unpickling may run code."""

_FLOATS = ("F64", "F32", "F16", "BF16")
"""Dtypes of unquantised weights in safetensors."""


def load_from_safetensors(kind: Any, name: str, label: str, **options: Any) -> nn.Module:
    """Load a network of transformers from safetensors only, in evaluation mode.

    Weights of other heads of the same configuration in the files are ignored. The files are checked
    before a network is built.

    Args:
        kind: the class of the network, or an auto class.
        name: a folder, or the id of a repository.
        label: the model's name in messages.
        options: options of ``from_pretrained``.

    Raises:
        OSError: no safetensors among the files.
        ValueError: an adapter beside the weights; a broken file; quantised weights; missing or
            unknown weights, or weights of another shape; numbers that are not finite.
    """
    revision = options.get("revision")
    if is_there(name, ADAPTER, revision):
        # transformers would load the adapter's base model, from wherever that is, and this adapter
        # on top
        raise ValueError(
            f"{label}: contains an adapter, which is not loaded; merge it into its model by "
            "model.merge_and_unload() "
            f"and save the result, or delete {ADAPTER} if the weights include it already"
        )
    files = list(_files(name, revision))
    if not files and Path(name).is_dir():
        refuse_pickles(kind.__name__, name, label, **options)
    _check(files)
    try:
        network, report = kind.from_pretrained(
            name,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    except OSError:  # a repository may have safetensors on another branch, which transformers finds
        if not files:
            refuse_pickles(kind.__name__, name, label, **options)
        raise
    unknown = set(report["unexpected_keys"])
    if unknown:
        unknown -= _elsewhere(network.config)
    faults = {"the files have no": report["missing_keys"], "the network has no": unknown}
    messages = [f"{problem} {shorten(keys)}" for problem, keys in faults.items() if keys]
    shapes = {
        f"{key} is {tuple(in_file)} and must be {tuple(in_network)}"
        for key, in_file, in_network in report["mismatched_keys"]
    }
    if messages := [*messages, *([shorten(shapes)] if shapes else [])]:
        raise ValueError(
            f"{label}: the weights do not fit {type(network).__name__}: {'; '.join(messages)}"
        )
    for key, weight in network.named_parameters():
        if weight.numel() and not all(bool(end.isfinite()) for end in weight.detach().aminmax()):
            raise ValueError(f"{label}: {key} contains numbers that are not finite")
    return network.eval()


def _files(name: str, revision: str | None) -> Iterator[Path]:
    """Return the files of the weights, one or, by an index, several.

    None where transformers reports the error.
    """
    from transformers.utils import cached_file

    def path_of(file: str) -> Path | None:
        try:
            path = cached_file(name, file, revision=revision)
        except OSError:
            return None
        return None if path is None else Path(path)

    if single := path_of(WHOLE):
        yield single
    elif index := path_of(INDEX):
        try:
            parts = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{index}: is not an index of weights: {type(error).__name__}: {error}"
            ) from error
        for part in parts:
            if (path := path_of(part)) is None:
                raise ValueError(f"{index}: names {part}, which does not exist")
            yield path


def refuse_pickles(kind: str, name: str, label: str, **options: Any) -> None:
    """Raise OSError, with the command that converts them, if a model has weights in a pickle.

    For one without others.

    Args:
        kind: name of the class of transformers.
        name: a folder, or the id of a repository.
        label: the model's name in messages.
        options: options of ``from_pretrained``.
    """
    from transformers.utils.hub import has_file

    pickled = next(
        (file for file in PICKLES if has_file(name, file, revision=options.get("revision"))), None
    )
    if pickled is None:
        return
    local = Path(name).is_dir()
    load_options = {"weights_only": True}
    load_options |= {
        key: options[key] for key in ("revision", "trust_remote_code") if options.get(key)
    }
    out = name if local else name.rpartition("/")[2]
    arguments = ", ".join(
        [repr(name), *(f"{key}={value!r}" for key, value in load_options.items())]
    )
    do = (
        f"from transformers import {kind} as M; "
        f"M.from_pretrained({arguments}).save_pretrained({out!r})"
    )
    if not local:
        arguments = arguments.replace(", weights_only=True", "")
        do += (
            "; from transformers import AutoTokenizer as T; "
            f"T.from_pretrained({arguments}).save_pretrained({out!r})"
        )
    place = "beside it" if local else f"and the tokenizer to a folder, and load {out}"
    raise OSError(
        f"{label}: has {pickled} and no {WHOLE}; it may run code, so it is not loaded. If you "
        "trust its source, "
        f'write safetensors {place}: python -c "{do}"'
    )


def _check(files: Collection[Path]) -> None:
    """Raise for broken files, and for weights that are quantised by their headers: config.json may
    omit it.
    """
    kinds: dict[str, tuple[Path, str]] = {}
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                kinds |= {key: (path, file.get_slice(key).get_dtype()) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: is damaged or not a safetensors file: {error}") from error
    for key, (path, kind) in sorted(kinds.items()):
        # integers may be positions or a mask saved by an older version
        counts = kind[0] in "IUB" and kind not in _FLOATS and "weight" not in key.rpartition(".")[2]
        scale = re.fullmatch(r"(.+)_(scale|scale_inv|scales)", key)
        if scale and scale[1] in kinds:
            kind = f"the scale of {scale[1]}"
        elif kind in _FLOATS or counts:
            continue
        raise ValueError(
            f"{path}: {key} is {kind}, so the weights are quantised, which is not supported: use "
            "the repository of "
            "the original weights"
        )


def _elsewhere(config: Any) -> set[str]:
    """Return names of weights of other networks of this configuration that a file may include:
    poolers, other heads.
    """
    import transformers  # local import: the caller raises the error for a missing transformers

    names: set[str] = set()
    for mapping in (transformers.MODEL_MAPPING, transformers.MODEL_FOR_PRETRAINING_MAPPING):
        if type(config) not in mapping:
            continue
        for kind in _each(mapping[type(config)]):
            with torch.device("meta"):
                network = kind(config)
            keys = network.state_dict().keys()
            names |= keys | {f"{network.base_model_prefix}.{key}" for key in keys}
    return names


def _each(kinds: Any) -> tuple[Any, ...]:
    """Return the classes of an entry of transformers' mappings, which may be one or several."""
    return kinds if isinstance(kinds, tuple) else (kinds,)
