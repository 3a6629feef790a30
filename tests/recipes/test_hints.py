"""Answers to options, files and paths that are not what a recipe takes."""

import re
from pathlib import Path

import pytest
from zoo.runs import recipe_in

from recipes import owt, train
from recipes.config import read_recipe
from recipes.data.yaml_text import load_yaml
from recipes.engine import train as run_of

FILE = """
data: {folder: none, length: 8}
process: {kind: uniform, schedule: linear}
model: {kind: dit, dim: 8, depth: 1, heads: 1}
output: {folder: run}
batch: 2
steps: 2
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE)
    return Path("mine.yaml")


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (
            ["--hardware.device", "cuda"],
            "--hardware.device: no such flag; a run takes the GPU that it finds",
        ),
        (["--devic", "cuda"], "--devic: no such flag; a run takes the GPU that it finds"),
        (["--noise", "cosine"], "--noise: no such flag; a schedule is a key of the process"),
        (
            ["--process", "mdlm", "--process.schedule=cosine"],
            "--process.schedule: no such flag; a schedule is a key",
        ),
        (
            ["--output.sampler", "plain"],
            "--output.sampler: no such flag; samples of a run are drawn by",
        ),
    ],
)
def test_a_flag_of_an_option_that_is_elsewhere_names_what_serves(mine, flags, hint):
    with pytest.raises(SystemExit, match=rf"error: {re.escape(hint)}"):
        train.main([str(mine), *flags])


def test_a_schedule_of_a_process_that_has_one_is_its_key(mine):
    with pytest.raises(SystemExit, match="none"):  # the data, after all flags were read
        train.main([str(mine), "--process.schedule", "cosine", "--process.kind", "masked"])
    with pytest.raises(SystemExit, match="none"):
        owt.main(
            [
                "mdlm",
                "--process.kind",
                "masked",
                "--process.schedule",
                "cosine",
                "--data.folder",
                "none",
            ]
        )


def test_a_key_of_a_file_names_what_serves(mine):
    mine.write_text(FILE + "hardware: {device: cuda}")
    with pytest.raises(
        ValueError, match=r"hardware.device: no such key; a run takes the GPU that it finds"
    ):
        read_recipe(mine)


def test_a_folder_and_a_missing_file_are_named_with_their_option(mine):
    with pytest.raises(
        SystemExit, match=r"error: recipe=\.: is a folder, must be a YAML file; prepared data is"
    ):
        train.main(["."])
    with pytest.raises(SystemExit, match=r"error: recipe=none\.yaml: there is no such file"):
        train.main(["none.yaml"])


def test_an_error_of_yaml_names_the_file_and_the_line(mine):
    mine.write_text("data: {folder: x}\n  process: 3\n")
    with pytest.raises(ValueError, match=r'mine\.yaml is not YAML: (.|\n)*in "mine\.yaml", line 2'):
        read_recipe(mine)


def test_a_key_that_occurs_twice_is_refused(mine):
    mine.write_text("data: {folder: x}\nsteps: 3\nseed: 1\nsteps: 4\n")
    with pytest.raises(ValueError, match=r"the key 'steps' occurs twice(.|\n)*line 4"):
        read_recipe(mine)


def test_a_merged_key_may_be_overridden():
    text = "a: &first {x: 1, y: 2}\nb: {<<: *first, x: 3}\n"
    assert load_yaml(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


def test_wrong_keys_of_parts_and_missing_fields_come_in_one_round(mine):
    mine.write_text(
        "process: {kind: gidd, p_unifrom: 0.1}\nloss: {weighting: {kind: clip, hihg: 2}}\nbatch: "
        "2\n"
    )
    with pytest.raises(ValueError, match="is missing") as caught:
        read_recipe(mine)
    found = str(caught.value).removeprefix("mine.yaml: ").split("; ")
    assert {"data: is missing", "steps: is missing", "process.p_unifrom: no such key"} <= set(found)
    assert sum("loss.weighting.hihg: no such key" in one for one in found) == 1
    assert "loss: loss" not in str(caught.value)


def test_a_place_is_named_once(tmp_path):
    process = {
        "kind": "hierarchical",
        "hierarchy": {"kind": "tree", "clusters": 5000},
        "schedule": "linear",
    }
    with pytest.raises(ValueError, match=r"^process\.hierarchy\.parents: num_clusters is 5000"):
        run_of(recipe_in(tmp_path, process=process))


def test_the_name_of_a_file_in_place_of_a_module(mine):
    mine.write_text(FILE.replace("kind: dit", "kind: 'mynet.py:Net'"))
    with pytest.raises(ValueError, match="write mynet:Net, or install its package"):
        read_recipe(mine)


def test_a_run_begins_with_what_it_trains(tmp_path, capsys):
    given = recipe_in(tmp_path, process="mdlm", steps=1)
    run_of(given)
    first = capsys.readouterr().out.splitlines()[0]
    form = (
        r"[\d,]{5,} parameters on \w+; 8 rows of 16 = 128 tokens a step, \d+ tokens in the "
        r"vocabulary; "
    )
    assert re.fullmatch(form + re.escape(str(tmp_path / "run")), first)
