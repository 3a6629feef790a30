"""CPU tensors that report a CUDA device, so that all code takes the path of an accelerator."""

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
PROPERTIES = SimpleNamespace(multi_processor_count=132)
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
READS = {
    Tensor.item,
    Tensor.tolist,
    Tensor.cpu,
    Tensor.numpy,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.__contains__,
    torch.equal,
    Tensor.equal,
    torch.allclose,
}
SIZES = {
    torch.nonzero,
    Tensor.nonzero,
    torch.argwhere,
    Tensor.argwhere,
    torch.masked_select,
    Tensor.masked_select,
    torch.bincount,
    Tensor.bincount,
    torch.unique,
    Tensor.unique,
    torch.unique_consecutive,
    Tensor.unique_consecutive,
    torch._unique2,
    torch._VF.unique_consecutive,
    torch._VF.unique_dim,
}
COPIES = {torch.tensor, torch.as_tensor, Tensor.new_tensor}
REPEATS = {torch.repeat_interleave, Tensor.repeat_interleave}


class Pretended(TorchFunctionMode):
    """Counts waits by the place in this repository that caused them.

    It notes every call that would wait on a device for a value: ``item``, ``tolist``, ``bool``,
    copies between host and device, and functions whose result has a size that depends on values.
    """

    def __init__(self):
        super().__init__()
        self.waits = Counter()
        self._properties = patch("torch.cuda.get_device_properties", lambda device: PROPERTIES)

    def __enter__(self):
        self._properties.start()
        return super().__enter__()

    def __exit__(self, *error):
        self._properties.stop()
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:
            return CUDA
        if func is torch.device:
            return func(*args, **kwargs)
        waits = func in READS or func in SIZES or func in COPIES
        waits |= func is Tensor.to and _moves(args[1:], kwargs)
        waits |= (
            func in REPEATS
            and kwargs.get("output_size") is None
            and isinstance((*args, 0)[1], Tensor)
        )
        waits |= func is Tensor.__getitem__ and _masked(args[1])
        waits |= (
            func is Tensor.__setitem__
            and _masked(args[1])
            and isinstance(args[2], Tensor)
            and args[2].ndim > 0
        )
        if waits:
            self.waits[_place()] += 1
        here = [CPU if _is_cuda(arg) else arg for arg in args]
        return func(
            *here, **{name: CPU if _is_cuda(value) else value for name, value in kwargs.items()}
        )


def _is_cuda(value):
    return isinstance(value, torch.device) and value.type == "cuda"


def _moves(args, kwargs):
    """Whether this repository asks ``Tensor.to`` for a device, and to wait for it.

    torch asks for the device that a tensor is on, as in ``clip_grad_norm_``.
    """
    if ".venv" in Path(sys._getframe(2).f_code.co_filename).parts:
        return False
    device = "device" in kwargs or any(isinstance(arg, str | torch.device) for arg in args)
    return device and not kwargs.get("non_blocking")


def _masked(index):
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _place():
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        inside = path.is_relative_to(ROOT) and ".venv" not in path.parts
        if inside and not path.is_relative_to(TESTS):
            return f"{path.relative_to(ROOT)}: {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "elsewhere"
