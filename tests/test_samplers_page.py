"""Table of docs/samplers.md: it has every sampler and every process, and equals the output of the
command.
"""

import re
import sys
from pathlib import Path

import pytest

import ddlib as dd

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import figures_samplers  # noqa: E402
import table_samplers  # noqa: E402

SAMPLERS = [
    one
    for name in dd.registry.built_in("samplers")
    for one in dd.registry.get("samplers", name).examples()
]


def lines():
    text = (DOCS / "samplers.md").read_text(encoding="utf-8")
    return text.split(table_samplers.BEGIN)[1].split(table_samplers.END)[0].strip().splitlines()


def rows():
    return [line for line in lines() if line.startswith("|")]


def notes():
    return [line.split(". ", 1)[1] for line in lines() if line and not line.startswith("|")]


def test_the_table_has_every_sampler_and_every_process():
    head, _, *lines_of_samplers = rows()
    assert head.split("|")[2:-1] == [f" {name} " for name in table_samplers.kinds()]
    assert [line.split("`")[1] for line in lines_of_samplers] == [
        table_samplers.short(one) for one in SAMPLERS
    ]
    assert all(line.count("|") == head.count("|") for line in lines_of_samplers)


def test_notes_are_numbered_in_the_order_of_the_table():
    numbers = [
        number
        for found in re.findall(r"<sup>(.*?)</sup>", "".join(rows()))
        for number in found.split(", ")
    ]
    assert list(dict.fromkeys(numbers)) == [str(number) for number in range(1, len(notes()) + 1)]


def test_every_sampler_is_named_on_the_page_and_drawn():
    text = (DOCS / "samplers.md").read_text(encoding="utf-8")
    for kind in ("samplers", "correctors"):
        for name in dd.registry.built_in(kind):
            assert f"`{dd.registry.get(kind, name).__name__}" in text
    assert (DOCS / "images" / "samplers.png").exists()


@pytest.mark.parametrize("kind", ["masked", "gidd"])
def test_a_cell_agrees_with_verify(kind):
    notes = []
    processes = dd.registry.get("processes", kind).examples()[:1]
    assert table_samplers.cell(dd.samplers.Euler(), processes, notes) == "all 1" and not notes
    found = table_samplers.cell(dd.samplers.Remask(), processes, notes)
    assert found == ("all 1" if kind == "masked" else "- <sup>1</sup>")
    assert notes == (
        []
        if kind == "masked"
        else ["Remask needs a process with levels, this process has none: use Psi"]
    )


def test_the_table_is_its_lines_and_their_notes(monkeypatch):
    stored = dict(zip(map(table_samplers.short, SAMPLERS), rows()[2:], strict=True))

    def row(sampler, known):
        known[:] = notes()
        return stored[table_samplers.short(sampler)]

    monkeypatch.setattr(table_samplers, "row", row)
    assert table_samplers.table().splitlines() == lines()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=table_samplers.short)
def test_a_line_of_the_page_is_the_output_of_the_command(sampler):
    known = notes()
    assert table_samplers.row(sampler, known) in rows() and known == notes()


def test_the_picture_is_drawn(tmp_path):
    figures_samplers.draw(tmp_path / "samplers.png")
    assert (tmp_path / "samplers.png").stat().st_size > 10_000
