"""Traces of a run: what they name, and that they change no number."""

import gzip
import json
from dataclasses import replace

import pytest
from training_runs import curve, losses
from zoo.runs import recipe_in

from recipes import owt
from recipes.config import Output
from recipes.engine import train


def given(tmp_path, name, **output):
    made = recipe_in(tmp_path, name, steps=8)
    return replace(made, output=replace(made.output, **output))


def ranges(folder, rank=0):
    """Names in a trace, with their numbers."""
    with gzip.open(folder / "profile" / f"rank{rank}.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return {name: names.count(name) for name in names}


def test_a_trace_has_the_parts_of_its_steps_and_the_run_is_the_same(tmp_path, capsys):
    for run in (given(tmp_path, "plain"), given(tmp_path, "traced", profile=2)):
        # the noise of a step is computed in the one before, and the last computes none
        train(replace(run, steps=6, model=run.model | {"depth": 1}))
    assert (
        curve(tmp_path / "traced") == curve(tmp_path / "plain")
        and len(losses(tmp_path / "plain")) == 6
    )
    found = ranges(tmp_path / "traced")
    assert all(
        found[name] == 2
        for name in ("noise", "forward", "backward", "update", "Optimizer.step#AdamW.step")
    )
    assert {"ProfilerStep#3", "ProfilerStep#4"} == {
        name for name in found if name.startswith("ProfilerStep")
    }
    assert (
        f"trace of 2 steps in {tmp_path / 'traced' / 'profile' / 'rank0.json.gz'}"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "plain" / "profile").exists()


def test_a_run_that_ends_within_them_writes_those_it_made(tmp_path):
    run = given(tmp_path, "run", profile=5)
    train(replace(run, output=replace(run.output, profile=0)))
    (tmp_path / "run" / "checkpoints" / "step_00000008").rename(tmp_path / "gone")
    train(run)  # goes on from step 4
    assert ranges(tmp_path / "run")["forward"] == 1


def test_the_flag_is_short(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("recipes.engine.train", lambda recipe, accept_changes: seen.append(recipe))
    monkeypatch.setattr("recipes.data.prepare", lambda corpus, folder: None)
    for flag in ("--profile", "--output.profile"):
        owt.main(["mdlm", "--smoke", flag, "5"])
    assert [recipe.output.profile for recipe in seen] == [5, 5]


def test_steps_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="profile=-1: must be at least 0"):
        Output(folder=tmp_path, profile=-1)
    with pytest.raises(
        ValueError,
        match=r"output\.profile=6: must be at most 5, the 8 steps of the run without 3 to",
    ):
        given(tmp_path, "run", profile=6)
