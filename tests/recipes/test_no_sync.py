"""Waits of the host for the device in a training step: only in the places listed here.

There is no device in these tests. ``Pretended`` makes CPU tensors report a CUDA device, so that all
code takes the path of an accelerator, and notes every call that would wait there for a value:
``item``, ``tolist``, ``bool``, copies between host and device, and functions whose result has a
size that depends on values.
"""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmarks.profile import TINY_PROFILE, batches, run

ROOT = Path(__file__).parent.parent.parent
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
    """Counts waits by the place in this repository that caused them."""

    def __init__(self):
        super().__init__()
        self.waits = Counter()

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
        if inside and path.name != Path(__file__).name:
            return f"{path.relative_to(ROOT)}: {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "elsewhere"


def waits(trained):
    """Places where the launch of a step waits, after one that does not count, and how often.

    The numbers of a step are read later, once.
    """
    stream = batches(trained)
    given = [next(stream) for _ in range(2)]
    stream.close()
    trained.step(given[:1], False)
    with Pretended() as pretended:
        launched = trained.launch(given[1:], False)
    with Pretended() as later:
        trained.finish(launched)
    # the tensor of the levels is one of the host
    assert later.waits == {READING: 1, "recipes/engine/run.py: Run.finish": 1}
    return dict(pretended.waits)


READING = "recipes/engine/launched.py: HostCopy.read"
GROUPING = {
    "ddlib/parameterization/tree_softmax.py: Grouping.__init__",
    "ddlib/kernels/dispatch.py: _hierarchical",
    "ddlib/kernels/subset_logsumexp.py: blocks",
    "ddlib/kernels/subset_logsumexp.py: blocks.<locals>.<genexpr>",
    "ddlib/parameterization/tree_softmax.py: Grouping.pad_children",
}
"""Rows that need the same columns share products, whose sizes the host needs.

This is the way without Triton; with
it the host waits once a step (``ddlib.kernels.gpu.vocab_order``)."""
MASKS = {place for place in GROUPING if "Grouping" not in place}  # one level: tokens, no clusters
SELECTING = {"ddlib/kernels/dispatch.py: _hierarchical"}  # all rows of a level need all columns
FAMILIES = {
    "ddlib/kernels/sibling_loss.py: family_queries",
    "ddlib/kernels/sibling_loss.py: parts",
    "ddlib/kernels/sibling_loss.py: _add_siblings",
    "ddlib/parameterization/tree_softmax.py: Children.families",
    "ddlib/parameterization/tree_softmax.py: Families.__init__",
    "ddlib/parameterization/tree_softmax.py: Grouping.__init__",
}
"""The same with logits of children, without Triton."""
EXPECTED = {"hdlm": GROUPING, "hdlm_xi": SELECTING, "gidd": set(), "mdlm": MASKS}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_training_step_waits_only_in_known_places(kind, monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    found = waits(run(TINY_PROFILE._replace(kind=kind)))
    assert set(found) == EXPECTED[kind]


def test_a_training_step_with_logits_of_children_waits_only_in_known_places(monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    assert set(waits(run(TINY_PROFILE, {"model.head": "children"}))) == FAMILIES


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_consistency_loss_does_not_wait(kind, monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    trained = run(TINY_PROFILE._replace(kind=kind))
    objective = replace(trained.recipe, loss=dict(kind="consistency")).objective()
    objective.begin(trained.setting)
    trained.state = replace(trained.state, objective=objective)
    assert set(waits(trained)) == EXPECTED[kind]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: float(x[0]),
        lambda x: x.repeat_interleave(x),
        lambda x: torch.tensor(1, device=x.device),
        lambda x: 1 if x.sum() > 0 else 0,
        lambda x: x.new_tensor(1),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.device("cpu"), torch.float64),
    ],
)
def test_every_kind_of_wait_is_seen(work):
    with Pretended() as pretended:
        work(torch.arange(3))
    assert sum(pretended.waits.values()) == 1


def test_work_on_the_device_alone_is_no_wait():
    with Pretended() as pretended:
        x = torch.arange(3, device=torch.device("cuda")).double()
        x = x.to(torch.device("cpu"), non_blocking=True).to(torch.float32).to(x)
        assert x.device.type == "cuda"
        x[x > 1] = 0.0
        torch.where(x > 0, x, 1.0).softmax(0).index_add_(
            0, torch.zeros(3, dtype=torch.int64), x
        ).sum()
        x.repeat_interleave(torch.ones(3, dtype=torch.int64), output_size=3)
    assert not pretended.waits
