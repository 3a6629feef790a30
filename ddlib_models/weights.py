"""Weights of others, read from safetensors by a class of transformers', all of them or none."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

_SAID = 5
"""Of more names than these a message gives the number."""


def filled_network(kind: Any, name: str, label: str, **options: Any) -> nn.Module:
    """A network of transformers with its weights, which are read from safetensors only, in evaluation mode.

    Heads for other tasks may lie beside: what another network of the same configuration has is no fault.

    Args:
        kind: the class that reads them, or an auto class.
        name: a folder, or the id of a repository.
        label: what messages call it.
        options: of ``from_pretrained``.

    Raises:
        OSError: no safetensors among the files.
        ValueError: weights that the network needs and the files have not, or the files have and it has not.
    """
    network, told = kind.from_pretrained(name, use_safetensors=True, output_loading_info=True, **options)
    unknown = set(told["unexpected_keys"])
    if unknown:
        unknown -= _elsewhere(network.config)
    faults = {"the files have no": told["missing_keys"], "the network has no": unknown}
    said = [f"{what} {_listed(keys)}" for what, keys in faults.items() if keys]
    if said:
        raise ValueError(f"{label}: the weights do not fit {type(network).__name__}: {'; '.join(said)}")
    return network.eval()


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
