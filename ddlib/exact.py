"""Modules whose constants follow a device but never lose precision."""

from typing import Any

from torch import Tensor, nn


class ExactModule(nn.Module):
    """An ``nn.Module`` whose own floating-point tensors keep their dtype under ``.to``, ``.half`` and friends.

    A speed of 0.7 rounded to bfloat16 is 0.69921875: another process. So ``.to(device, dtype)`` moves the buffers,
    and the parameters where numbers are learned, and leaves their dtype; the precision of a result follows the
    arguments of the call.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> "ExactModule":
        def exact(tensor: Tensor) -> Tensor:
            moved: Tensor = fn(tensor)
            return tensor.to(moved.device) if tensor.is_floating_point() else moved

        if recurse:
            for module in self.children():
                module._apply(fn)
        super()._apply(exact, recurse=False)
        return self
