"""Number of operations that times and noise of a training batch take on a device.

Every operation of torch counts, views and allocations too. A draw or a scrambling of keyed numbers
has the cost of one kernel and its allocation, as ``ddlib.utils.philox_kernel`` has them.
"""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.pretended_device import Pretended

from benchmarks.profile import TINY_PROFILE, batches, run
from ddlib.utils import philox, random

LARGEST = {"hdlm": 40, "mdlm": 40, "gidd": 50, "hdlm_xi": 80}
"""GIDD draws three uniforms for each position; the others one, and with xi below 1 another one."""


class Operations(TorchDispatchMode):
    """Counts operations."""

    def __init__(self):
        super().__init__()
        self.names = Counter()
        self._counting = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self._counting:
            self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def kernel(self, name):
        """Count what is inside as a kernel and its allocation."""
        self._counting = False
        yield
        self._counting = True
        self.names[name] += 1
        self.names["aten.empty"] += 1


class Kernels:
    """Keyed numbers as kernels: those of torch, of which none of the operations counts."""

    def __init__(self, operations):
        self._operations = operations

    def uniforms(self, *args):
        with self._operations.kernel("uniforms"):
            return philox.uniforms(*args)

    def scramble(self, *args):
        with self._operations.kernel("scramble"):
            return philox.scramble(*args)


@pytest.mark.parametrize("kind", LARGEST)
def test_noise_takes_few_operations(kind, monkeypatch):
    trained = run(TINY_PROFILE._replace(kind=kind))
    stream = batches(trained)
    batch = next(stream)
    stream.close()
    objective = trained.state.objective
    expected = objective.noise(objective.mark(batch, 3), 3)
    operations = Operations()
    with monkeypatch.context() as patch, Pretended(), operations:
        patch.setattr(random, "_keyed_on", lambda device: Kernels(operations))
        noisy = objective.noise(objective.mark(batch, 3), 3)
    assert operations.names["uniforms"] >= 2
    assert operations.names["scramble"] == 1
    assert operations.names.total() <= LARGEST[kind], operations.names
    for name in ("x", "z", "t", "measure", "mask"):
        assert torch.equal(getattr(noisy, name), getattr(expected, name))
