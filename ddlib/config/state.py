"""Methods of modules whose state dict contains their constructor arguments and is checked on
loading.
"""

import json
import zlib
from typing import Any

import torch
from torch import Tensor

from ddlib.config.comparison import apart, difference, rebuilt
from ddlib.config.plain import describe

_PLAIN = 1024
"""Largest size in bytes of an uncompressed description; longer ones, e.g. with 50,257 parents, are
compressed.
"""


def extra_state(self: Any) -> Tensor:
    """Describe the constructor arguments of a module that is a ``Part``: its ``get_extra_state``.

    The extra state is a uint8 tensor, so that safetensors can store it: ``described`` as JSON,
    compressed if long.
    """
    text = json.dumps(describe(self), separators=(",", ":")).encode()
    return torch.frombuffer(
        bytearray(text if len(text) <= _PLAIN else zlib.compress(text, 1)), dtype=torch.uint8
    )


def check_extra_state(self: Any, state: Any) -> None:
    """Compare the saved arguments with those of a module: its ``set_extra_state``.

    ``load_state_dict``, strict or not, thus raises for the state of a module with other arguments,
    unless both arguments give the same module (e.g. a speed of 1 and the default).

    Raises:
        ValueError: other arguments, with the first difference; a state that cannot be read.
    """
    saved = _read(state, type(self).__name__)
    now = json.loads(json.dumps(describe(self)))
    message = "" if saved is None else difference(saved, now)
    if message and not _is_made_by(self, saved):
        raise ValueError(
            f"the state dict is of another {type(self).__name__}: {message}; load it into one with "
            "the arguments there"
        )


def _is_made_by(module: Any, saved: Any) -> bool:
    """Return whether the saved arguments give the same module."""
    try:
        return not apart(module, rebuilt(module, saved))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _read(state: Any, owner: str) -> Any:
    """Decode an extra state; None if it is on the meta device, which holds no values."""
    if isinstance(state, Tensor) and state.is_meta:
        return None
    try:
        data = bytes(state.detach().cpu().to(torch.uint8).tolist())
        return json.loads(data if data[:1] == b"{" else zlib.decompress(data))
    except (AttributeError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(
            f"the extra state of {owner} cannot be read ({error}): must be as state_dict() "
            "returned it, not averaged"
        ) from None
