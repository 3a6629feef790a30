"""Modules with tensors that are neither learned nor saved."""

from typing import Any

from torch import Tensor, nn

_OWN = frozenset(vars(nn.Module()))


class Constants(nn.Module):
    """Module whose tensors in plain attributes, ``self.rows = tensor``, follow ``.to`` as buffers
    do.

    They are constants: they are not in the state dict, and no average of weights changes them. An
    average that includes buffers, ``torch.optim.swa_utils.AveragedModel(network,
    use_buffers=True)``, rounds integers down.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> "Constants":
        super()._apply(fn, recurse)
        for name, value in list(vars(self).items()):
            if name not in _OWN and isinstance(value, Tensor):
                self.__dict__[name] = fn(value)
        return self
