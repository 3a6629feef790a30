"""Runs of the engine for its tests, in processes that can be killed, and what they wrote."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ddlib as dd
from recipes.config import Recipe
from recipes.config.recipe import read_part
from recipes.engine import checkpoint, train
from recipes.engine.network import Network
from recipes.engine.objectives.bound import Bound
from recipes.logging import TIMING, read_metrics
from recipes.model_io import open_saved


def context():
    """Processes forked off one that has imported everything and has no threads."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["recipes.engine", __name__])
    return chosen


def start(run: Recipe, size: int = 1, accept_changes: bool = False) -> list:
    """Trains in separate processes; their output goes to a file beside the run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = run.output.folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [(run, rank, size, port, accept_changes, log) for rank in range(size)]
    processes = [context().Process(target=_work, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    return processes


def finish(processes: list, seconds: float = 120) -> list[int]:
    """The exit codes."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(end - time.monotonic(), 0.1))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def trained(run: Recipe, size: int = 1, accept_changes: bool = False) -> Path:
    """Trains to the end and returns the run's folder."""
    codes = finish(start(run, size, accept_changes))
    assert codes == [0] * size, f"exit codes {codes}:\n{output_of(run)}"
    return run.output.folder


def trains(make):
    """Return the fixture ``whole`` of a module: the run ``make(folder, "whole")``, trained."""

    @pytest.fixture(scope="module")
    def whole(folder):
        run = make(folder, "whole")
        assert train(run)
        return run

    return whole


def train_in(run: Recipe, size: int) -> None:
    """Train to the end, here or in as many processes."""
    if size > 1:
        trained(run, size)
    else:
        train(run)


def check_layout(run: Recipe, size: int, whole: Recipe) -> None:
    """Train in as many processes; the losses must be those of the whole run."""
    train_in(run, size)
    values, wanted = (torch.tensor(losses(one.output.folder)) for one in (run, whole))
    torch.testing.assert_close(values, wanted, rtol=0, atol=1e-5)


def check_resumption(whole: Recipe, again: Recipe, last: int, before: int) -> dict:
    """Train again from the last checkpoint but one; records and weights must be those of the whole
    run, to the bit.

    Args:
        whole: a run that was trained.
        again: the same in a folder that does not exist.
        last: the step of its last checkpoint.
        before: that of the one before, from which the other goes on.

    Returns:
        the weights.
    """
    shutil.copytree(whole.output.folder, again.output.folder)
    newest, older = checkpoint.list_checkpoints(again.output.folder / "checkpoints")[:2]
    assert (newest.name, older.name) == (f"step_{last:08d}", f"step_{before:08d}")
    shutil.rmtree(newest)
    assert train(again)
    assert curve(again.output.folder) == curve(whole.output.folder)
    one, other = (open_saved(run.output.folder).model.state_dict() for run in (whole, again))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    return one


class Killed(Bound):
    """Bound whose process is killed in the data of step 10, unless it began after step 0."""

    fixed_sizes = True
    first = None

    def ahead(self, batches, step):
        if self.first is None:
            self.first = step
        if step == 10 and self.first == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().ahead(batches, step)


def check_kill(whole: Recipe, again: Recipe) -> None:
    """Train a run, and again with the loss ``Killed``, from the last checkpoint after the kill;
    records must be equal to the bit.
    """
    trained(whole)
    again = replace(again, loss=dict(kind="training_runs:Killed"))
    assert finish(start(again)) == [-signal.SIGKILL], output_of(again)
    trained(again)
    assert curve(again.output.folder) == curve(whole.output.folder)


def output_of(run: Recipe) -> str:
    """Output of the processes, if they came that far."""
    log = run.output.folder.with_suffix(".log")
    return (
        log.read_text(encoding="utf-8")
        if log.exists()
        else "no log: it failed before it wrote one, see stderr"
    )


def curve(folder: Path) -> list[dict]:
    """All that a run measured, but for the time it took."""
    records = [record for _, record in read_metrics(folder / "metrics.jsonl")]
    return [
        {name: value for name, value in record.items() if name not in TIMING} for record in records
    ]


def losses(folder: Path) -> list[float]:
    """The loss of every step."""
    return [record["loss"] for record in curve(folder) if record["kind"] == "train"]


def steps_made(folder: Path) -> int:
    """Number of steps in metrics.jsonl, which may be being written."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except ValueError:
            continue
    return 0


def _work(run: Recipe, rank: int, size: int, port: int, accept_changes: bool, log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    if size > 1:
        os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
        os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train(run, accept_changes)


def loss(**keys) -> dict:
    """All values of ``loss`` of a recipe with these keys."""
    return read_part("loss", keys)


def objective(**keys):
    """The training objective with these keys of ``loss``."""
    return dd.build("objectives", loss(**keys), place="loss")


def loss_of(goal, model, process, noisy, scale, half=False):
    """What an objective returns for a noisy batch and a network."""
    network = Network(model, goal.parameterization, half)
    goal.setting = SimpleNamespace(process=process, network=network)
    return goal.loss(noisy, network, scale)
