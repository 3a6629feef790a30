"""Data of training steps one step ahead: the same numbers, in the same thread and beside it."""

import gc
import threading
from contextlib import closing, nullcontext
from types import SimpleNamespace

import pytest
import torch
from training_runs import check_kill
from zoo.pretended_device import Pretended
from zoo.runs import recipe, text

from benchmarks.profile import TINY_PROFILE, run
from recipes.engine import ahead
from recipes.engine.ahead import SameThread, SideStream, read_ahead, tensors_of, worker_for

CPU = torch.device("cpu")


class FakeStream:
    """Stream that writes what is asked of it into a journal."""

    def __init__(self, name, journal):
        self.name = name
        self.journal = journal

    def wait_stream(self, other):
        self.journal.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.journal.append(f"{self.name} waits for event {event}")

    def record_event(self):
        self.journal.append(f"event of {self.name}")
        return len([line for line in self.journal if line.startswith("event")])


@pytest.fixture
def journal(monkeypatch):
    """Journal of the streams of a CUDA device that is not there."""
    lines = []
    main = FakeStream("main", lines)
    fake = SimpleNamespace(
        Stream=lambda device: FakeStream("side", lines),
        Event=object,
        current_stream=lambda device: main,
        device=lambda device: nullcontext(),
        stream=lambda stream: nullcontext(),
    )
    monkeypatch.setattr(ahead, "torch", SimpleNamespace(cuda=fake, device=torch.device))
    return lines


WORKERS = {"same thread": lambda: SameThread(), "side stream": lambda: SideStream(CPU)}
both = pytest.mark.parametrize("worker", WORKERS)


def test_cuda_has_a_stream_beside_the_current_one(journal):
    assert isinstance(worker_for(CPU), SameThread)
    worker = worker_for(torch.device("cuda", 0))
    assert isinstance(worker, SideStream)
    worker.close()


@both
def test_results_come_in_order_one_step_ahead(worker, journal):
    made = []

    def work(item, number):
        made.append(number)
        return item * 10

    stream = read_ahead(iter([5, 6, 7]), work, 3, WORKERS[worker]())
    found = []
    for result in stream:
        found.append(result)
        if worker == "same thread":
            assert made == [3, 4, 5][: len(found) + 1]
        assert len(made) <= len(found) + 1
    assert found == [50, 60, 70]
    assert made == [3, 4, 5]


@both
def test_an_error_comes_in_the_step_that_it_prevents(worker, journal):
    def work(item, number):
        if number == 2:
            raise ValueError("step 2 is bad")
        return number

    stream = read_ahead(iter(range(9)), work, 0, WORKERS[worker]())
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(ValueError, match="step 2 is bad"):
        next(stream)


def test_closing_ends_the_thread(journal):
    done = []

    def work(item, number):
        done.append(number)

    stream = read_ahead(iter(range(9)), work, 0, SideStream(CPU))
    next(stream)
    stream.close()
    made = len(done)
    assert made in (1, 2)  # the work for the next step had begun or not
    gc.collect()
    assert not [one for one in threading.enumerate() if one.name.startswith("ahead")]
    assert len(done) == made


def test_the_current_stream_waits_for_the_work_beside_it(journal):
    threads = []

    def work(item, number):
        threads.append(threading.current_thread())
        return item

    assert [*read_ahead(iter("ab"), work, 0, SideStream(CPU))] == ["a", "b"]
    assert threading.current_thread() not in threads
    assert journal[0] == "side waits for main"
    waits = [line for line in journal if line.startswith("main waits")]
    assert waits[:2] == ["main waits for event 1", "main waits for event 2"]
    for number, line in enumerate(waits, start=1):
        before = journal[: journal.index(line)]
        assert before.count("event of side") >= number


def test_memory_of_results_is_kept_for_the_current_stream(journal):
    class OnDevice(torch.Tensor):
        is_cuda = True
        streams = ()

        def record_stream(self, stream):
            self.streams = (*self.streams, stream.name)

    tensor = torch.zeros(2).as_subclass(OnDevice)
    worker = SideStream(CPU)
    worker.submit(lambda: [SimpleNamespace(part=(tensor, torch.zeros(1)))])()
    worker.close()
    assert tensor.streams == ("main",)


def test_all_tensors_of_a_step_are_found():
    trained = run(TINY_PROFILE)
    (noisy,) = trained.ready(next(trained.batches()), 0)
    found = {id(tensor) for tensor in tensors_of([noisy])}
    parts = [noisy.x, noisy.z, noisy.t, noisy.measure, noisy.mask, noisy.planned.parts.weight]
    parts += [block.rows for block in noisy.planned.parts.blocks]
    assert found >= {id(part) for part in parts}
    constants = [value for _, value in trained.process.hierarchy.constants()]
    assert constants
    assert not found & {id(value) for value in constants}


def losses(trained, steps):
    results = []
    with closing(trained.inputs(steps)) as inputs:
        for parts in inputs:
            results.append(trained.finish(trained.launch(parts, False)))
    return [(result.loss, result.norm) for result in results]


@pytest.mark.parametrize("kind", ["hdlm", "hdlm_xi", "mdlm", "gidd"])
def test_steps_ahead_are_those_that_are_not(kind, journal, monkeypatch):
    size = TINY_PROFILE._replace(kind=kind)
    alone = run(size)
    stream = alone.batches()
    expected = [alone.step(next(stream), False) for _ in range(4)]
    for name, worker in WORKERS.items():
        monkeypatch.setattr("recipes.engine.run.worker_for", lambda device, made=worker: made())
        trained = run(size)
        found = losses(trained, 4)
        assert found == [(step.loss, step.norm) for step in expected], name
        for one, other in zip(
            trained.network.parameters(), alone.network.parameters(), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.parametrize("toggles", [{}, {"model.head": "children"}])
def test_the_launch_of_a_step_computes_no_plan(toggles, monkeypatch):
    trained = run(TINY_PROFILE, toggles)
    stream = trained.batches()
    parts = [trained.ready(next(stream), number) for number in range(2)]
    trained.finish(trained.launch(parts[0], False))
    monkeypatch.setattr("ddlib.kernels.api.plan", None)
    trained.finish(trained.launch(parts[1], False))


def test_the_plan_of_a_step_waits_before_its_launch(monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    trained = run(TINY_PROFILE)
    stream = trained.batches()
    with Pretended():
        trained.step(next(stream), False)
    with Pretended() as pretended:
        parts = trained.ready(next(stream), 1)
    assert pretended.waits.keys() >= {"ddlib/kernels/dispatch.py: _hierarchical"}
    with Pretended() as pretended:
        trained.launch(parts, False)
    # in the way without Triton, sets of tokens are padded to the size of the largest
    assert pretended.waits.keys() == {
        "ddlib/parameterization/tree_softmax.py: Grouping.pad_children"
    }


@pytest.mark.usefixtures("as_users_call")
def test_a_run_that_is_killed_in_the_data_of_the_next_step_resumes_to_the_same_bits(tmp_path):
    data = text(tmp_path / "data")
    check_kill(*(recipe(data, tmp_path / name) for name in ("whole", "killed")))
