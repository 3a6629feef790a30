"""The command ``recipes.table``: its recipes, their flags, and a run from a file to samples."""

import shutil

import numpy as np
import pytest
from table_files import write_csv
from training_runs import losses

from recipes import prepare as preparation
from recipes import table
from recipes.config.command import choose
from recipes.data import open_prepared
from recipes.model_io import open_held_out, open_saved


def chosen(*words):
    return choose(table.recipes(), lambda recipe: recipe, "table", words)[0]


def test_flags_name_the_noise_of_all_columns_or_of_one():
    assert chosen("columns").process == {"kind": "product", "every": None}
    assert chosen("masks").process["every"] == {"kind": "mdlm"}
    some = chosen("columns", "--process.by-field.cut", "uniform:schedule=linear").process
    assert some["by_field"] == {"cut": {"kind": "uniform", "schedule": {"kind": "linear"}}}
    deep = ("--process.by-field.cut.kind", "gidd", "--process.by-field.cut.p-uniform", "0.3")
    assert chosen("columns", *deep).process["by_field"]["cut"]["p_uniform"] == 0.3
    with pytest.raises(ValueError, match=r"process.by_field.cut.kind: nothing in processes"):
        chosen("columns", "--process.by-field.cut", "mask")


def test_a_small_run_has_a_folder_of_its_own():
    small = table.recipes(table.SMOKE)["masks"][1]
    assert str(small.output.folder) == "runs/smoke/table/masks"
    assert str(chosen("masks").output.folder) == "runs/table/masks"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    random = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        height = "" if random.random() < 0.1 else f"{random.normal(170, 9):.1f}"
        rows.append([random.integers(18, 80), random.choice(["F", "M"]), height, "x"])
    write_csv(folder / "mine.csv", ["age", "sex", "height", "note"], rows)
    preparation.main(["table", "--files", str(folder / "mine.csv"), "--out", str(folder / "data")])
    return folder / "data"


def test_the_advice_of_prepare_names_the_command(data, capsys):
    source = data.parent / "mine.csv"
    preparation.main(["table", "--files", str(source), "--out", str(data)])
    shown = capsys.readouterr().out
    assert f"python -m recipes.table columns --smoke --data.folder {data}" in shown
    assert "4 fields of up to 64 symbols" in shown and "sex 2, height" in shown


def test_a_run_has_the_columns_of_its_table(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert table.columns_of(["columns", "--data.folder", str(data)]) == 4
    assert table.columns_of(["columns", "--data.folder", "none"]) == 10
    flags = ["--steps", "2", "--batch", "8", "--optimizer.warmup", "1", "--output.samples", "2"]
    folders = ["--data.folder", str(data), "--output.folder", "run"]
    table.main(["columns", "--smoke", *flags, *folders, "--output.validate-sequences", "8"])
    assert len(losses(tmp_path / "run")) > 0
    saved = open_saved(tmp_path / "run")
    assert saved.length == 4 and saved.layout == open_prepared(data).layout
    samples = (tmp_path / "run" / "samples" / "step_00000002.txt").read_text()
    assert "age " in samples and "sex " in samples and "note x" in samples
    table.main(["columns", "--smoke", *flags, *folders, "--output.validate-sequences", "8"])
    assert "2 steps are done already" in capsys.readouterr().out


def test_another_table_of_the_same_shape_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (data.parent / "mine.csv").read_text()
    (tmp_path / "mine.csv").write_text(text.replace(",F,", ",W,"))
    preparation.main(["table", "--files", "mine.csv", "--out", "other"])
    flags = ["--steps", "2", "--batch", "8", "--optimizer.warmup", "1", "--output.samples", "1"]
    command = ["columns", "--smoke", *flags, "--output.folder", "run"]
    shutil.copytree(data, "mine")
    table.main([*command, "--data.folder", "mine"])
    saved = open_saved(tmp_path / "run")
    open_held_out(saved, tmp_path / "mine")
    with pytest.raises(ValueError, match=r"data=.*other: .* is 'sex=M' of the data's and 'sex=F'"):
        open_held_out(saved, tmp_path / "other")
    shutil.rmtree("mine")
    shutil.copytree("other", "mine")
    with pytest.raises(SystemExit, match="vocabulary"):
        table.main([*command, "--data.folder", "mine"])
    with pytest.raises(SystemExit, match="'sex=M' of the data's and 'sex=F' of the model's"):
        start = ["--start", "run", "--output.folder", "second"]
        table.main([*command, "--data.folder", "mine", *start])
