"""A step whose numbers are read after the next one was launched; a NaN changes nothing."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.profile import TINY_PROFILE, batches, run
from recipes.engine import NonFiniteError
from recipes.engine.launched import HostCopy
from recipes.engine.muon import Muon
from recipes.engine.optimizer import Average, update


def state_of(trained):
    """Weights, states of the optimizers, and averages."""
    state = trained.state
    return copy.deepcopy(
        [
            dict(trained.network.named_parameters()),
            [optimizer.state_dict() for optimizer in state.optimizers],
            state.average.weights,
        ]
    )


def tensors(value):
    """All tensors of nested containers."""
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    parts = value.values() if isinstance(value, dict) else value
    return [
        tensor
        for part in parts
        if isinstance(part, dict | list | tuple | torch.Tensor)
        for tensor in tensors(part)
    ]


@pytest.mark.parametrize("muon", [False, True])
def test_a_nan_changes_nothing_and_is_raised_when_the_step_is_read(muon, tmp_path):
    trained = run(TINY_PROFILE, {"optimizer.muon": muon})
    stream = batches(trained)
    given = [[next(stream)] for _ in range(4)]
    stream.close()
    output = replace(trained.recipe.output, folder=tmp_path)
    trained.recipe = replace(trained.recipe, output=output)
    trained.step(given[0], False)
    before = state_of(trained)
    weight = next(trained.network.parameters())
    hook = weight.register_hook(lambda gradient: gradient * torch.nan)
    broken = trained.launch(trained.ready(given[1], 1), False)
    hook.remove()
    trained.launch(trained.ready(given[2], 2), False)
    for now, then in zip(tensors(state_of(trained)), tensors(before), strict=True):
        assert torch.equal(now, then)
    with pytest.raises(
        NonFiniteError, match=r"step 1: .*every loss is finite, the gradient is not"
    ):
        trained.finish(broken)


def test_launched_steps_are_those_that_are_waited_for():
    late, early = run(TINY_PROFILE), run(TINY_PROFILE)
    stream = batches(late)
    given = [[next(stream)] for _ in range(3)]
    stream.close()
    launched = [late.launch(late.ready(batch, number), False) for number, batch in enumerate(given)]
    results = [early.step(batch, False) for batch in given]
    for one, other in zip(launched, results, strict=True):
        read = late.finish(one)
        assert (read.loss, read.norm, read.rate) == (other.loss, other.norm, other.rate)
        assert torch.equal(read.levels, other.levels)
    for now, then in zip(tensors(state_of(late)), tensors(state_of(early)), strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_optimizers_and_averages_that_are_not_broken_are_those_without_the_flag(dtype):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4, 3, dtype=dtype)) for _ in range(2)]
    copies = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    options = dict(lr=0.02, weight_decay=0.1)
    flagged = [
        Muon([weights[0]], **options),
        torch.optim.AdamW([weights[1]], fused=True, **options),
    ]
    plain = [Muon([copies[0]], **options), torch.optim.AdamW([copies[1]], fused=True, **options)]
    for _ in range(3):
        for weight, other in zip(weights, copies, strict=True):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
        update(flagged, 0.02, torch.zeros(()), torch.ones(()))
        for optimizer in plain:
            optimizer.step()
    for weight, other in zip(weights, copies, strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_average_moves_by_its_share_of_the_difference(dtype):
    """Within the roundings of a difference, a product and a sum."""
    torch.manual_seed(0)
    model = torch.nn.ParameterList(torch.randn(size, dtype=dtype) for size in ((4, 3), (5,)))
    average = Average(model, 0.9)
    for step in range(100):
        before = [one.clone() for one in average.weights.values()]
        with torch.no_grad():
            for weight in model:
                weight.normal_()
        decay = average.decay_at(step)
        as_tensor = torch.tensor(decay, dtype=torch.float64)
        average.update(as_tensor if step % 2 else decay, torch.zeros(()))
        share = 1 - decay
        for new, old, weight in zip(average.weights.values(), before, model, strict=True):
            exact = old.double() + share * (weight.double() - old.double())
            bound = 2 * torch.finfo(dtype).eps * (old.abs() + weight.abs()).double()
            assert ((new.double() - exact).abs() <= bound).all()


def test_an_average_of_all_weights_is_one_operation():
    class Operations(TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names += (function.name(),)
            return function(*args, **(kwargs or {}))

    average = Average(torch.nn.ParameterList(torch.ones(3) for _ in range(20)), 0.9)
    broken = torch.zeros(())
    with Operations() as operations:
        average.update(0.5, broken)
    views = "aten::detach", "aten::alias"
    assert [name for name in operations.names if name[:4] == "aten" and name not in views] == [
        "aten::_fused_sgd_"
    ]


def test_numbers_of_the_host_are_read_as_they_are():
    assert HostCopy(torch.tensor([1.5, -2.0], dtype=torch.float64)).read() == [1.5, -2.0]
