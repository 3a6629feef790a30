"""A training step as one graph: the numbers of the ordinary step, no wait, and refusals.

Without a GPU a recording calls the step again, with its inputs and results in the same memory.
"""

from contextlib import closing
from dataclasses import replace

import pytest
import torch
from training_runs import check_kill, output_of
from zoo.pretended_device import Pretended
from zoo.runs import recipe, text
from zoo.steps import OPTIONS as EVERYWHERE
from zoo.steps import SCHEDULE, SIZE, STEP, STEPS, train_steps

from benchmarks.profile import run
from ddlib.contrib import CaptureError, captured
from recipes.config import Hardware
from recipes.config.recipe import with_parts
from recipes.engine import NonFiniteError, graph
from recipes.engine.parallel import World

OPTIONS = EVERYWHERE | {
    "posterior": ("gidd", {"loss": {"kind": "bound", "parameterization": "posterior"}}),
    "infill": ("mdlm", {"loss": {"kind": "bound", "infill": 0.3}}),
    "no average": ("hdlm", {"optimizer.ema": 0.0}),
    "clipped": ("hdlm", {"optimizer.max_grad_norm": 1e-3}),
}
every_option = pytest.mark.parametrize("option", OPTIONS)


def check_equal(one, other):
    """Raise AssertionError unless weights, averages and optimizers are equal to the bit."""
    for trained in (one, other):
        for optimizer in trained.state.optimizers:
            assert not optimizer.param_groups[0]["capturable"]
    states = [
        [
            *trained.network.parameters(),
            *(trained.state.average.weights.values() if trained.state.average else ()),
            *(
                value
                for optimizer in trained.state.optimizers
                for state in optimizer.state.values()
                for value in state.values()
            ),
        ]
        for trained in (one, other)
    ]
    for value, wanted in zip(*states, strict=True):
        assert torch.equal(value, wanted)


@every_option
def test_recorded_steps_are_those_that_are_not_recorded(option, monkeypatch):
    """To the bit: losses, norms, rates, weights, averages and states of the optimizer."""
    kind, toggles = OPTIONS[option]
    results, recorded = train_steps(kind, toggles | STEP)
    assert recorded.compute.captured.number == 1
    monkeypatch.setattr(graph, "ORDINARY", STEPS)
    expected, ordinary = train_steps(kind, toggles | STEP)
    assert ordinary.compute.captured.number == 0
    for one, other in zip(results, expected, strict=True):
        assert (one.loss, one.norm, one.rate) == (other.loss, other.norm, other.rate)
        assert torch.equal(one.levels, other.levels)
    assert len({one.rate for one in results}) > 5
    assert len({one.loss for one in results}) == STEPS
    check_equal(recorded, ordinary)


@every_option
def test_losses_are_those_of_the_ordinary_engine(option):
    """To the bit where its loss computes all logits too: uniform noise; else up to rounding."""
    kind, toggles = OPTIONS[option]
    results, recorded = train_steps(kind, toggles | STEP)
    expected, ordinary = train_steps(kind, toggles)
    if option == "gidd":
        assert [(one.loss, one.norm) for one in results] == [
            (one.loss, one.norm) for one in expected
        ]
        check_equal(recorded, ordinary)
    for one, other in zip(results, expected, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=2e-6)
        assert one.norm == pytest.approx(other.norm, rel=1e-4)
        assert one.rate == other.rate


@every_option
def test_a_recorded_step_waits_nowhere(option, monkeypatch):
    """On a pretended device."""
    monkeypatch.setenv("DDLIB_TRITON", "0")
    monkeypatch.setattr(captured, "CudaRecording", captured.Rerun)
    kind, toggles = OPTIONS[option]
    trained = run(SIZE._replace(kind=kind), SCHEDULE | toggles | STEP)
    stream = trained.batches()
    with Pretended():  # computes the tables of the hierarchy
        trained.step(next(stream), False)
    for number in range(1, graph.ORDINARY + 3):
        parts = trained.ready(next(stream), number)
        with Pretended() as pretended:
            launched = trained.launch(parts, False)
        assert not pretended.waits
        trained.finish(launched)
    assert trained.compute.captured.number == 1


@pytest.mark.parametrize("number", [1, graph.ORDINARY, graph.ORDINARY + 2])
def test_a_nan_in_a_recorded_step_changes_nothing_and_its_batch_is_saved(number, tmp_path):
    """The error comes when the step is read, after the next one was launched."""
    trained = run(SIZE, SCHEDULE | STEP)
    trained.recipe = replace(trained.recipe, output=replace(trained.recipe.output, folder=tmp_path))
    weight = next(trained.network.parameters())
    stream = trained.batches()
    parts = [trained.ready(next(stream), k) for k in range(number + 2)]
    for k in range(number):
        trained.finish(trained.launch(parts[k], False))
    hook = weight.register_hook(lambda gradient: gradient * torch.nan)
    before = [value.detach().clone() for value in trained.network.parameters()]
    averages = [value.clone() for value in trained.state.average.weights.values()]
    broken = trained.launch(parts[number], False)
    hook.remove()
    trained.launch(parts[number + 1], False)
    for value, wanted in zip(trained.network.parameters(), before, strict=True):
        assert torch.equal(value, wanted)
    for value, wanted in zip(trained.state.average.weights.values(), averages, strict=True):
        assert torch.equal(value, wanted)
    with pytest.raises(NonFiniteError, match=f"step {number}: .*safetensors"):
        trained.finish(broken)
    assert [*tmp_path.glob(f"non_finite_step{number}_rank0.safetensors")]


def test_a_signal_reaches_the_recorded_step():
    trained = run(SIZE, SCHEDULE | STEP)
    stops = [False, False, False, False, True, False]
    with closing(trained.inputs(len(stops))) as inputs:
        results = [trained.finish(trained.launch(next(inputs), stop)) for stop in stops]
    assert [one.stop for one in results] == stops


@pytest.mark.usefixtures("as_users_call")
def test_a_run_that_is_killed_resumes_to_the_same_bits(tmp_path):
    """The checkpoint is of recorded steps; the first steps after it are not recorded."""
    data = text(tmp_path / "data")
    hardware = Hardware(threads=1, graph="step")
    runs = [recipe(data, tmp_path / name, hardware=hardware) for name in ("whole", "killed")]
    check_kill(*runs)
    assert all("has no effect without CUDA" in output_of(run) for run in runs)


REFUSED = {
    "optimizer.muon=True": {"optimizer.muon": True},
    "data.packed=True": {"data.packed": True},
    "loss.kind='consistency'": {"loss": {"kind": "consistency"}},
    "loss.kind='auxiliary'": {"loss": {"kind": "auxiliary"}, "model.num_clusters": 8},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_graph_is_refused_by_name(reason):
    with pytest.raises(ValueError, match=f"hardware.graph='step': not with {reason}"):
        graph.check_graph(
            with_parts(run(SIZE).recipe, STEP | REFUSED[reason]),
            World(0, 1, torch.device("cpu")),
            torch.nn.Module(),
        )


def test_several_processes_and_networks_of_steps_are_refused():
    class Stepping(torch.nn.Module):
        def at_step(self, step):
            pass

    recipe = with_parts(run(SIZE).recipe, STEP)
    with pytest.raises(ValueError, match="not with 2 processes"):
        graph.check_graph(recipe, World(0, 2, torch.device("cpu")), torch.nn.Module())
    with pytest.raises(ValueError, match="not with Stepping, whose training depends on the step"):
        graph.check_graph(recipe, World(0, 1, torch.device("cpu")), Stepping())
    graph.check_graph(recipe, World(0, 1, torch.device("cpu")), torch.nn.Module())


@pytest.mark.parametrize("option", ["shard", "recompute"])
def test_options_that_treat_blocks_one_by_one_are_refused(option):
    with pytest.raises(ValueError, match=f"graph='step': not with .*{option}=True"):
        Hardware(graph="step", **{option: True})


def test_a_step_that_no_graph_can_be_made_of_is_refused_by_name():
    trained = run(SIZE, SCHEDULE | STEP)

    def fail(function, device, warm_up):
        raise CaptureError("no CUDA graph can be made: a copy from the host")

    trained.compute.captured = captured.Captured(trained.compute._compute, 0, fail)
    with (
        closing(trained.inputs(STEPS)) as inputs,
        pytest.raises(ValueError, match=r"hardware.graph='step': .* must be 'blocks'. .*copy"),
    ):
        for parts in inputs:
            trained.finish(trained.launch(parts, False))
    assert trained.facts.step == graph.ORDINARY


@pytest.mark.parametrize(
    "toggles",
    [{"hardware.ahead": False}, {"hardware.wait": True}, {"hardware.ahead": False} | STEP],
    ids=["not ahead", "waiting", "not ahead, one graph"],
)
def test_reading_ahead_and_waiting_change_no_number(toggles):
    results, trained = train_steps("hdlm", toggles)
    expected, ordinary = train_steps("hdlm", STEP if "hardware.graph" in toggles else {})
    assert [(one.loss, one.norm) for one in results] == [(one.loss, one.norm) for one in expected]
    check_equal(trained, ordinary)


def test_data_that_is_not_ahead_is_computed_when_it_is_needed():
    trained = run(SIZE, SCHEDULE | {"hardware.ahead": False})
    made = []
    ready = trained.ready
    trained.ready = lambda batches, number: made.append(number) or ready(batches, number)
    with closing(trained.inputs(4)) as inputs:
        for number, parts in enumerate(inputs):
            assert made == [*range(number + 1)]
            trained.finish(trained.launch(parts, False))
    assert made == [0, 1, 2, 3]


def test_waiting_reads_the_numbers_of_each_step(monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    for wait in (False, True):
        trained = run(SIZE._replace(kind="gidd"), SCHEDULE | {"hardware.wait": wait})
        stream = trained.batches()
        with Pretended():
            trained.step(next(stream), False)
        parts = trained.ready(next(stream), 1)
        with Pretended() as pretended:
            trained.launch(parts, False)
        assert sum(pretended.waits.values()) == wait
