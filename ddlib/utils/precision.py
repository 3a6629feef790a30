"""Modules whose constants follow a device, never lose precision and are no state."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

_OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has, which torch moves itself."""


class Float64Module(nn.Module):
    """An ``nn.Module`` of constants: tensors that are plain attributes, ``self.speeds = tensor``.

    A constant follows from the constructor's arguments. So it is no buffer: no state dict holds it, and no average of
    weights (``torch.optim.swa_utils.AveragedModel``) or broadcast changes it. ``.to(device)`` and its like move it, in
    a list, tuple or dict too. What is learned is an ``nn.Parameter``.

    A speed of 0.7 rounded to bfloat16 is 0.69921875: another process. So ``.to(device, dtype)``, ``.half`` and friends
    leave the dtype of all of them; the precision of a result follows the arguments of the call.
    """

    retired: ClassVar[tuple[str, ...]] = ()
    """Names of tensors in state dicts of earlier versions that are not kept any more and follow from others: what is
    there is not read. A dotted name is that of a tensor of a module that was within this one."""

    def constants(self) -> Iterator[tuple[str, Tensor]]:
        """The constants of this module alone, by the names of their attributes."""
        for name, value in vars(self).items():
            if name not in _OWN and isinstance(value, Tensor):
                yield name, value

    def _apply(self, fn: Any, recurse: bool = True) -> "Float64Module":
        def exact(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            return tensor.to(moved.device) if tensor.is_floating_point() else moved

        def to(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device)).device
            if tensor.is_meta and device.type != "meta":
                raise RuntimeError(
                    f"the constants of {type(self).__name__} are on meta, where they hold nothing: make it again, or "
                    "keep it on the CPU until it moves to a device"
                )
            return tensor.to(device)

        if recurse:
            for module in self.children():
                module._apply(fn)
        super()._apply(exact, recurse=False)
        for name, value in list(vars(self).items()):
            if name not in _OWN:
                self.__dict__[name] = _each(value, to)
        return self


def _each(value: Any, to: Callable[[Tensor], Tensor]) -> Any:
    """A value with the tensors moved that it is or holds."""
    if isinstance(value, Tensor):
        return to(value)
    if type(value) is dict:
        return {key: _each(item, to) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each(item, to) for item in value)
    return value
