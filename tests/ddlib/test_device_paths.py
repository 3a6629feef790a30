"""Paths of an accelerator compute what those of the CPU do, for every registered process.

There is no device in these tests, see ``pretended_device``.
"""

import pytest
import torch
from zoo.pretended_device import Pretended

import ddlib as dd

BATCH = 3
T = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
EXAMPLES = [
    pytest.param(process, id=f"{name} {number}")
    for name in dd.registry.built_in("processes")
    for number, process in enumerate(dd.registry.get("processes", name).examples())
]

FIELDS = {
    "letters": dd.presets.mdlm(5),
    "leaves": dd.presets.hdlm([0, 0, 1, 1, 1, 2], xi=0.8),
    "noise": dd.processes.Uniform(3, dd.schedules.Linear()),
}
PRODUCT = dd.processes.Product(FIELDS, ["letters", "noise", "leaves", "letters"])
EXAMPLES.append(pytest.param(PRODUCT, id="product of three fields"))


def denoiser(process):
    generator = torch.Generator().manual_seed(1)
    shape = (process.num_states, process.vocab_size)
    table = torch.randn(shape, generator=generator, dtype=torch.float64)
    return lambda z, t: table[z]


def keyed(step):
    return dd.KeyedGenerator(3, step, torch.arange(BATCH))


@pytest.mark.parametrize("process", EXAMPLES)
def test_a_device_computes_what_the_cpu_does(process, monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    network = denoiser(process)

    def numbers():
        x = dd.sample(process, network, (BATCH, 4), steps=4, generator=keyed(0))
        z = process.sample(x, T, keyed(1))
        loss = dd.training_loss(process, network(z, T), x, z, T)
        bound = dd.bound(process, network, x, generator=keyed(2))
        return x, z, loss, bound.diffusion + bound.prior

    here = numbers()
    with Pretended():
        there = numbers()
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
