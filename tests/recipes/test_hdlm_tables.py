"""Ablations of the HDLM paper by one command."""

import json
from dataclasses import replace

import pytest
from zoo.runs import text

from recipes import hdlm_tables, owt
from recipes.console import make_console
from recipes.hdlm_tables import FORCED, ROWS, Options, recipe_of, tables

TINY = {"dim": 8, "depth": 1, "heads": 1}


@pytest.fixture
def options(tmp_path):
    return Options(
        data=text(tmp_path / "data"),
        scorer="none",
        out=tmp_path / "out",
        budget=0.002,
        rows=("clusters=2",),
        samples=2,
        calls=(2,),
        sequences=4,
        model=TINY,
    )


def test_rows_change_one_value_of_the_papers_default(options):
    for name, row in ROWS.items():
        changed = {key for key, value in vars(row).items() if value != vars(ROWS["hdlm-64"])[key]}
        assert len(changed) == (0 if name == "hdlm-64" else 2 if name == "hard+auxiliary" else 1)
    full = recipe_of("xi=0.9", replace(options, full=True))
    paper = owt.recipes()["hdlm"][1]
    for name in ("steps", "batch", "model", "optimizer"):
        assert getattr(full, name) == getattr(paper, name)
    assert full.process == paper.process | {"xi": 0.9}
    assert (
        recipe_of("hard", options).loss["mode"] == "hard"
        and recipe_of("auxiliary", options).loss["kind"] == "auxiliary"
    )


def test_rows_are_made_once_and_their_table_is_written(options, capsys):
    tables(options, make_console())
    bounds = json.loads((options.out / "tables.json").read_text())["rows"][0]["bound"]
    rows = ("clusters=2", "clusters=1", "xi=0.9", "hard+auxiliary")
    found = tables(replace(options, rows=rows), make_console())
    assert [row["row"] for row in found] == list(rows) and found[0]["bound"] == bounds
    assert [len(row["cells"]) for row in found] == [1, 1, 2, 1]
    assert found[2]["cells"][1]["sampler"] == FORCED
    lines = (options.out / "tables.md").read_text().splitlines()
    assert len(lines) == 2 + 5 and lines[2].startswith("| clusters=2 | ")
    with pytest.raises(
        ValueError, match=r"out=.*: holds results of budget=0.002, now 0.004; choose another folder"
    ):
        tables(replace(options, budget=0.004), make_console())


def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=r"rows: 'xi=0.7', must be among hdlm-64, clusters=1"):
        replace(options, rows=("xi=0.7",))
    with pytest.raises(ValueError, match=r"budget=0: must be positive"):
        replace(options, budget=0)
    with pytest.raises(SystemExit, match=r"nowhere"):
        hdlm_tables.main(["--data", "nowhere", "--scorer", "none"])
