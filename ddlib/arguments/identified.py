"""Methods of modules whose state dict contains their constructor arguments and is checked on
loading.
"""

import json
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddlib.arguments.compared import apart, difference, rebuilt
from ddlib.arguments.plain import described
from ddlib.arguments.recorded import Part
from ddlib.utils.precision import Float64Module

_KEY = "_extra_state"  # torch's name
_PLAIN = 1024
"""Largest size in bytes of an uncompressed description.

Longer ones, e.g. with 50,257 parents, are compressed.
"""


def extra_state(self: Any) -> Tensor:
    """Describe the constructor arguments of a module that is a ``Part``: its ``get_extra_state``.

    The extra state is a uint8 tensor, so that safetensors can store it: ``described`` as JSON,
    compressed if long.
    """
    text = json.dumps(described(self), separators=(",", ":")).encode()
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
    now = json.loads(json.dumps(described(self)))
    found = "" if saved is None else difference(saved, now)
    if found and not _is_made_by(self, saved):
        raise ValueError(
            f"the state dict is of another {type(self).__name__}: {found}; load it into one with "
            "the arguments there"
        )


def load_checked(
    self: Any, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
) -> None:
    """Load a state dict, that of ddlib 0.1.0 too.

    The ``_load_from_state_dict`` of a module that is a ``Part``.

    A state dict of 0.1.0 has no extra state, but some of the constants; these are compared.
    """
    if prefix + _KEY not in state_dict:
        _load_old(self, state_dict, prefix)
    Float64Module._load_from_state_dict(self, state_dict, prefix, *rest, **named)


def _is_made_by(module: Any, saved: Any) -> bool:
    """Return whether the saved arguments give the same module."""
    try:
        return not apart(module, rebuilt(module, saved))
    except (TypeError, ValueError, KeyError):
        return False


def _load_old(module: Any, state_dict: dict[str, Any], prefix: str) -> None:
    """Compare the constants in a state dict of 0.1.0 and remove them.

    Warn about what it does not contain.
    """
    compared = False
    owner = type(module).__name__
    for name, now in _constants(module):
        if prefix + name in state_dict:
            _check_old(owner, name, state_dict.pop(prefix + name), now)
            compared = True
    for name in _retired(module):
        state_dict.pop(prefix + name, None)
    kept = {prefix + name for name in module.state_dict()}
    for key in [key for key in state_dict if key.startswith(prefix) and key not in kept]:
        current = _at(module, key.removeprefix(prefix))  # a constant that has become a property
        if current is not None:
            _check_old(owner, key.removeprefix(prefix), state_dict.pop(key), current)
            compared = True
    for name, part in module.named_modules():  # submodules need not be compared again
        if isinstance(part, Part):
            state_dict[prefix + f"{name}.{_KEY}".lstrip(".")] = extra_state(part)
    warnings.warn(
        f"the state dict does not hold the arguments of {owner}, like those of ddlib 0.1.0: "
        + ("only its constants were compared" if compared else "nothing was compared"),
        stacklevel=2,
    )


def _constants(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the constants of a module and its submodules, with their paths."""
    for path, part in module.named_modules(remove_duplicate=False):
        constants = dict(part.constants()) if isinstance(part, Float64Module) else {}
        hidden = {name: part._buffers.get(name) for name in part._non_persistent_buffers_set}
        for name, value in (constants | hidden).items():
            if value is not None:
                yield f"{path}.{name}".lstrip("."), value


def _at(module: nn.Module, path: str) -> Tensor | None:
    """Return the tensor at a path of attributes, or None."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, Tensor) else None


def _retired(module: nn.Module) -> Iterator[str]:
    for path, part in module.named_modules(remove_duplicate=False):
        for name in part.retired if isinstance(part, Float64Module) else ():
            yield f"{path}.{name}".lstrip(".")


def _check_old(owner: str, name: str, saved: Tensor, now: Tensor) -> None:
    """Raise ValueError if a constant in a state dict differs from the module's by more than
    rounding.
    """
    if saved.is_meta or now.is_meta:
        return
    saved = saved.detach().cpu()
    now = now.detach().cpu()
    what = f"the state dict is of another {owner}: {name}"
    if saved.shape != now.shape:
        raise ValueError(f"{what} has shape {tuple(saved.shape)} there, {tuple(now.shape)} here")
    wrong = ~torch.isclose(
        saved.to(torch.float64), now.to(torch.float64), rtol=1e-6, atol=0.0, equal_nan=True
    )
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        place = "".join(f"[{i}]" for i in at)
        raise ValueError(
            f"{what}{place} is {saved[at].item():.6g} there, {now[at].item():.6g} here; load it "
            "into one with the "
            "same arguments"
        )


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
