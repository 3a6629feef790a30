"""docs/samplers.md: its table has every sampler and every process, and is what the command writes."""

import sys
from pathlib import Path

import pytest

import ddlib as dd

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import figures_samplers  # noqa: E402
import table_samplers  # noqa: E402


def lines():
    text = (DOCS / "samplers.md").read_text(encoding="utf-8")
    return text.split(table_samplers.BEGIN)[1].split(table_samplers.END)[0].strip().splitlines()


def test_the_table_has_every_sampler_and_every_process():
    head, _, *rows = [line for line in lines() if line.startswith("|")]
    assert head.split("|")[2:-1] == [f" {name} " for name in dd.registry.own("processes")]
    samplers = [table_samplers.short(one) for name in dd.registry.own("samplers") for one in examples(name)]
    assert [row.split("`")[1] for row in rows] == samplers
    assert all(row.count("|") == head.count("|") for row in rows)


def test_every_sampler_is_named_on_the_page_and_drawn():
    text = (DOCS / "samplers.md").read_text(encoding="utf-8")
    for kind in ("samplers", "correctors"):
        for name in dd.registry.own(kind):
            assert f"`{dd.registry.get(kind, name).__name__}" in text
    assert (DOCS / "images" / "samplers.png").exists()


@pytest.mark.parametrize("kind", [pytest.param("masked", marks=pytest.mark.slow), "gidd"])
def test_a_cell_says_what_verify_says(kind):
    notes = []
    processes = dd.registry.get("processes", kind).examples()[:1]
    assert table_samplers.cell(dd.samplers.Euler(), processes, notes) == "all 1" and not notes
    told = table_samplers.cell(dd.samplers.Remask(), processes, notes)
    assert told == ("all 1" if kind == "masked" else "- <sup>1</sup>")
    assert notes == (
        [] if kind == "masked" else ["Remask needs a process with levels, this process has none: Psi serves it"]
    )


@pytest.mark.nightly
def test_the_table_is_what_the_command_writes():
    assert lines() == table_samplers.table().splitlines()


@pytest.mark.slow
def test_the_picture_is_drawn(tmp_path):
    figures_samplers.draw(tmp_path / "samplers.png")
    assert (tmp_path / "samplers.png").stat().st_size > 10_000


def examples(name):
    return dd.registry.get("samplers", name).examples()
