"""Helpers for ``__repr__``."""

from hashlib import sha256

from torch import Tensor


def format_part(part: object, contract: type) -> str:
    """Format an object with its public attributes, without those that its base class ``contract``
    declares.
    """
    fields = {
        name: value
        for name, value in vars(part).items()
        if name[0] != "_" and not hasattr(contract, name)
    }
    return (
        f"{type(part).__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"
    )


def digest(*constants: Tensor) -> str:
    """Return six hexadecimal digits that distinguish constants of the same shape.

    "meta" for tensors on meta.
    """
    if any(constant.is_meta for constant in constants):
        return "meta"
    hasher = sha256()
    for constant in constants:
        hasher.update(constant.detach().cpu().numpy().tobytes())
    return hasher.hexdigest()[:6]
