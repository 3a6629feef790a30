"""Folder of a run: one training at a time, and not among data or weights."""

import json
import os
import signal
import socket

import pytest
from test_engine_reliability import until
from training_runs import finish, output_of, start, steps_made
from zoo.runs import ALONE, recipe, recipe_in

from recipes.config import Hardware, Output
from recipes.engine import train
from recipes.engine.folder import LOCK, OWNER, hold
from recipes.model_io import open_saved


def test_a_folder_that_another_run_holds_is_refused_by_its_owner(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    run = recipe_in(tmp_path)
    with hold(run.output.folder, ALONE):
        owner = rf"process {os.getpid()} on {socket.gethostname()}, job 4711, since 20.*{LOCK}"
        with pytest.raises(
            ValueError, match=rf"output.folder=.*: another run trains there: {owner}"
        ):
            train(run)
        assert {path.name for path in run.output.folder.iterdir()} == {LOCK, OWNER}
    with hold(run.output.folder, ALONE):
        pass
    assert not run.output.folder.exists(), "it is empty"


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_run_in_the_folder_is_refused_until_the_first_is_dead(tmp_path, size):
    run = recipe_in(tmp_path, steps=100_000)
    first = start(run, size)
    until(lambda: steps_made(run.output.folder) >= 2)
    owner = json.loads((run.output.folder / OWNER).read_text())
    assert owner["process"] == first[0].pid and owner["host"] == socket.gethostname()
    named = (
        rf"output.folder=.*another run trains there: process {first[0].pid} on .*, since .*{LOCK}"
    )
    with pytest.raises(ValueError, match=named):
        train(run)
    assert first[0].is_alive()
    for process in first:
        os.kill(process.pid, signal.SIGKILL)
    finish(first)
    last = recipe_in(tmp_path, steps=steps_made(run.output.folder) + 1)
    codes = finish(start(last, size, accept_changes=True))
    assert codes == [0] * size, output_of(last)
    assert not (run.output.folder / OWNER).exists() and not (run.output.folder / LOCK).exists()


def test_every_rank_of_a_second_run_is_refused(tmp_path):
    run = recipe_in(tmp_path, steps=100_000)
    first = start(run)
    until(lambda: steps_made(run.output.folder) >= 2)
    second = start(run, 2)
    assert 0 not in finish(second, 60) and "another run trains there" in output_of(run)
    assert first[0].is_alive()
    first[0].kill()
    finish(first)


def test_a_refused_run_leaves_the_folder_free(tmp_path):
    run = recipe_in(tmp_path, model=dict(kind="dit", dim=15, depth=1, heads=2))
    for _ in range(2):
        with pytest.raises(ValueError, match="dim=15"):
            train(run)
    assert not list(run.output.folder.glob("*"))


def test_a_folder_of_data_or_of_weights_is_no_folder_of_a_run(tmp_path):
    run = recipe_in(tmp_path)
    before = sorted(run.data.folder.rglob("*"))
    with pytest.raises(
        ValueError,
        match=r"output.folder=.*data: holds prepared data \(manifest.json\), must be the",
    ):
        train(recipe(run.data.folder, run.data.folder))
    assert sorted(run.data.folder.rglob("*")) == before
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "ddlib_manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"output.folder=.*weights: holds published weights"):
        train(recipe(run.data.folder, weights))


def test_a_run_that_was_killed_before_its_first_save_has_not_saved(tmp_path):
    run = recipe_in(
        tmp_path, output=Output(folder=tmp_path / "run", save_every=1000, log_every=1), steps=1000
    )
    processes = start(run)
    until(lambda: steps_made(run.output.folder) >= 1)
    os.kill(processes[0].pid, signal.SIGKILL)
    finish(processes)
    with pytest.raises(FileNotFoundError, match="the run has not saved yet"):
        open_saved(run.output.folder)


def test_shards_on_one_process_are_warned_of(tmp_path, capsys):
    run = recipe_in(tmp_path, hardware=Hardware(threads=1, shard=True), steps=1)
    train(run)
    assert (
        capsys.readouterr().out.count(
            "hardware.shard has no effect on one process: start several with torchrun"
        )
        == 1
    )
