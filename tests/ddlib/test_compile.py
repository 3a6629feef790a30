"""Noising and loss compile to one graph."""

import pytest
import torch
from zoo.calls import seeded
from zoo.processes import presets
from zoo.products import FOUR, scores, tokens

import ddlib as dd
from ddlib import training_loss
from ddlib.processes import RateMatrix
from ddlib.schedules import Linear
from ddlib.weightings import Clip

pytestmark = pytest.mark.usefixtures("compilable")

PROCESSES = presets([0, 0, 1, 1, 2]) | {
    "levels": dd.presets.hdlm_levels([[0, 0, 1, 1, 2], [0, 1, 1]])
}


@pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)
def test_loss_and_noising_compile_to_one_graph(process):
    torch.compiler.reset()
    generator = seeded(0)
    x = torch.randint(5, (4, 6), generator=generator)
    t = torch.rand(4, generator=generator)
    z = process.sample(x, t, generator)
    logits = torch.randn(4, 6, 5, generator=generator)
    weighting = Clip(2.0)

    def loss(logits):
        return training_loss(process, logits, x, z, t, weighting=weighting)

    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert torch.equal(compiled(logits), loss(logits))
    noised = torch.compile(lambda x, t: process.sample(x, t), fullgraph=True, backend="eager")(x, t)
    assert noised.max() < process.num_states


def test_the_loss_of_a_product_and_its_gradient_compile_to_one_graph():
    torch.compiler.reset()
    x = tokens(FOUR, 3)
    t = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    z = FOUR.sample(x, t, seeded())
    logits = scores(FOUR, 3, fill=7.0).requires_grad_()

    def loss(logits):
        return training_loss(FOUR, logits, x, z, t)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    slopes = [torch.autograd.grad(one(logits), logits)[0] for one in (compiled, loss)]
    assert torch.allclose(*slopes)


def test_the_loss_of_a_dense_process_is_compiled_once_for_all_times():
    torch.compiler.reset()
    step = torch.eye(4).roll(1, 0)
    process = RateMatrix(step - torch.eye(4), Linear())
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def loss(logits, x, z, t):
        return training_loss(process, logits, x, z, t, Clip(2.0))

    compiled = torch.compile(loss, backend=counted)
    made = []
    for seed in range(4):
        generator = seeded(seed)
        x = torch.randint(4, (2, 3), generator=generator)
        t = torch.rand(2, generator=generator)
        arguments = torch.randn(2, 3, 4, generator=generator), x, process.sample(x, t, generator), t
        assert torch.equal(compiled(*arguments), loss(*arguments))
        made.append(len(graphs))
    assert made[0] == made[-1]
