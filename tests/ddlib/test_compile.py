"""Noising and loss compile to one graph, also with shape checks on every call, which compiled code
leaves out.
"""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable

import jaxtyping
import pytest
import torch
from fixtures import seeded
from jaxtyping import Float
from torch import Tensor

from ddlib import training_loss
from ddlib.processes import RateMatrix
from ddlib.schedules import Linear
from ddlib.utils import shapecheck
from ddlib.utils.shapecheck import checked
from ddlib.weightings import Clip

SCRIPT = """
import sys, torch, ddlib as dd
torch.manual_seed(0)
parents = [0, 0, 1, 1, 2]
for process in (
    dd.presets.mdlm(5), dd.presets.gidd(5, 0.2), dd.presets.hdlm(parents, xi=0.9),
    dd.presets.hdlm_levels([parents, [0, 1, 1]]), dd.processes.Uniform(5, dd.schedules.Cosine()),
):
    x, t = torch.randint(5, (4, 6)), dd.sample_times(4)
    z, logits = process.sample(x, t), torch.randn(4, 6, 5)
    clip = dd.weightings.Clip(2.0)
    loss = lambda logits: dd.training_loss(process, logits, x, z, t, weighting=clip)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert torch.equal(compiled(logits), loss(logits))
    noised = torch.compile(lambda x, t: process.sample(x, t), fullgraph=True, backend="eager")(x, t)
    assert noised.max() < process.num_states
print("compiled", "beartype" in sys.modules)
"""


@pytest.mark.parametrize(
    "checks",
    ["0", "1"],
)
def test_loss_and_noising_compile_to_one_graph(checks):
    environment = {**os.environ, "DDLIB_SHAPECHECK": checks}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == f"compiled {checks == '1'}", done.stderr[-2000:]


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


@checked
def inner(x: Float[Tensor, "B L"]) -> Float[Tensor, "B"]:
    return x.sum(-1)


@checked
def outer(x: Float[Tensor, "B L"]) -> Float[Tensor, "B"]:
    return inner(x) + inner(x.sin())


@checked
def interrupted(x: Float[Tensor, "B L"]) -> Float[Tensor, "B"]:
    y = inner(x)
    torch._dynamo.graph_break()
    return y + inner(x)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # in inductor itself
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_code_is_one_graph_and_is_not_checked(backend):
    torch.compiler.reset()
    compiled = torch.compile(outer, fullgraph=True, backend=backend)
    for size in (2, 3, 4):  # from the second on, sizes are symbols
        x = torch.randn(size, size + 1)
        torch.testing.assert_close(compiled(x), outer(x))
    compiled(torch.ones(2, 3, 4))
    with pytest.raises(TypeError):
        outer(torch.ones(2, 3, 4))


def test_a_graph_break_brings_no_false_errors():
    torch.compiler.reset()
    compiled = torch.compile(interrupted, backend="eager")
    for size in (2, 3, 4):
        x = torch.randn(size, size + 1)
        torch.testing.assert_close(compiled(x), interrupted(x))


def test_a_compilation_counts_for_its_own_function_only():
    torch.compiler.reset()

    def compiled(name: str) -> Callable[..., Tensor]:
        def apply(x: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
            return getattr(torch, name)(x)

        return torch.compile(checked(apply), fullgraph=True, backend="eager")

    x = torch.ones(1)
    names = ("abs", "ceil", "cos", "exp", "floor", "log", "neg", "sign", "sin", "sqrt", "tan")
    assert len(names) > torch._dynamo.config.recompile_limit
    for name, function in [(name, compiled(name)) for name in names]:
        assert torch.equal(function(x), getattr(torch, name)(x))


def test_checks_inside_compiled_code_would_fail():
    """Reason to leave them out: when this test fails, torch has learnt to trace them."""
    torch.compiler.reset()
    jaxtyped = jaxtyping.jaxtyped(inspect.unwrap(inner), typechecker=shapecheck._typechecker())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(jaxtyped, fullgraph=True, backend="eager")(torch.ones(2, 3))


def test_an_exported_program_is_not_checked():
    class Module(torch.nn.Module):
        @checked
        def forward(self, x: Float[Tensor, "B L"]) -> Float[Tensor, "B"]:
            return outer(x)

    program = torch.export.export(Module(), (torch.ones(2, 3),), strict=True)
    assert {node.op for node in program.graph.nodes} == {"placeholder", "call_function", "output"}
