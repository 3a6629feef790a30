"""Precision: logits in float32 or wider, and modules with float64 constants, which move between
devices but are never cast and not in the state dict.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

_OWN = frozenset(vars(nn.Module()))
"""Attributes of every ``nn.Module``, which torch moves itself."""


def float32_or_wider(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return floating-point values as they are, half precision as float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def numbers_on(device: torch.device, values: Iterable[float]) -> Float64[Tensor, "n"]:
    """Return a tensor of numbers that the device writes, as it would wait for a copy of them."""
    return torch.stack(
        [torch.full((), value, dtype=torch.float64, device=device) for value in values]
    )


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product in the dtype of the factors, also within an autocast region."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


class Float64Module(nn.Module):
    """An ``nn.Module`` of constants: tensors that are plain attributes, ``self.speeds = tensor``.

    A constant is a function of the constructor's arguments, so it is not a buffer: it is not in the
    state dict, and weight averaging (``torch.optim.swa_utils.AveragedModel``) or broadcasts do not
    change it. ``.to(device)`` and similar methods move constants, also in lists, tuples and dicts.
    Learned values are ``nn.Parameter``.

    A speed of 0.7 rounded to bfloat16 is 0.69921875, i.e. another process. So ``.to(device,
    dtype)``, ``.half`` and similar methods do not change the dtype of constants; the precision of a
    result is determined by the arguments of the call.
    """

    def constants(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the constants of this module, without submodules, with their attribute names."""
        for name, value in vars(self).items():
            if name not in _OWN and isinstance(value, Tensor):
                yield name, value

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_inference():
            with torch.inference_mode(False):  # autograd never saves tensors of inference mode
                value = value.clone()
        super().__setattr__(name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> "Float64Module":
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            return tensor.to(moved.device) if tensor.is_floating_point() else moved

        def to(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device)).device
            if tensor.is_meta and device.type != "meta":
                raise RuntimeError(
                    f"the constants of {type(self).__name__} are on the meta device, where they "
                    "have no values: "
                    "create it again, or keep it on the CPU until it moves to a device"
                )
            return tensor.to(device)

        if recurse:
            for module in self.children():
                module._apply(fn)
        super()._apply(keep_dtype, recurse=False)
        for name, value in list(vars(self).items()):
            if name not in _OWN:
                self.__dict__[name] = _each(value, to)
        return self


def _each(value: Any, to: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``to`` to a tensor, or to the tensors in a dict, list or tuple."""
    if isinstance(value, Tensor):
        return to(value)
    if type(value) is dict:
        return {key: _each(item, to) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each(item, to) for item in value)
    return value
