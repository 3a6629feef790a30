"""Notebooks of the tutorials: cells equal the blocks of the pages, and every notebook runs from
start to end.
"""

import re
import sys
from pathlib import Path

import nbclient
import pages
import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS / "_ext"))
import notebooks  # noqa: E402

each_page = pytest.mark.parametrize("page", pages.notebooks(), ids=lambda page: page.stem)


def blocks(page):
    """Language and content of every executed block of a page, its output, and whether that varies
    between machines.
    """
    found = []
    text = page.read_text()
    for block in re.finditer(r"^```(python|bash|text)\n(.*?)\n```$", text, re.M | re.S):
        kind, content = block.groups()
        if kind == "text":
            found[-1][2:] = content, text[: block.start()].rstrip().endswith(pages.VARIES)
        elif kind == "python" or text[: block.start()].rstrip().endswith("% runs"):
            found.append([kind, content, "", False])
    return found


@each_page
def test_the_cells_are_the_blocks_of_the_page(page):
    code = [cell for cell in notebooks.notebook(page).cells if cell.cell_type == "code"]
    pictures = [cell for cell in code if "Image(" in cell.source]
    cells = [cell for cell in code if cell not in pictures]
    expected = blocks(page)
    for cell, (kind, source, *_, out, _) in zip(cells, expected, strict=True):
        assert cell.source == "%%bash -e\n" * (kind == "bash") + source
        assert "".join(one.text for one in cell.outputs).strip() == out.strip()
    assert len(pictures) == page.read_text().count("](../images/tutorials/")
    assert all(cell.outputs[0].data["image/png"] for cell in pictures)


@each_page
def test_the_prose_needs_no_sphinx(page):
    prose = "\n".join(
        cell.source for cell in notebooks.notebook(page).cells if cell.cell_type == "markdown"
    )
    assert not re.search(r"\.md\)|\{\w+\}`|^% |```(text|python)", prose, re.M)
    assert prose.startswith("# ") and len(prose) > 1000


@pytest.mark.parametrize(
    "page",
    pages.notebooks(),
    ids=lambda page: page.stem,
)
def test_a_notebook_runs_and_prints_the_output_of_its_page(page, tmp_path, monkeypatch):
    for name, value in pages.environment().items():
        monkeypatch.setenv(name, value)
    found = notebooks.notebook(page)
    nbclient.NotebookClient(
        found, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    pictures = [cell for cell in code if "Image(" in cell.source]
    assert all(cell.outputs[0].data["image/png"] for cell in pictures)
    cells = [cell for cell in code if cell not in pictures]
    for number, (cell, (kind, _, expected, varies)) in enumerate(
        zip(cells, blocks(page), strict=True)
    ):
        printed = {"stdout": "", "stderr": ""}
        for out in cell.outputs:
            if out.output_type == "stream":
                printed[out.name] += out.text
        if expected:
            pages.check(f"cell {number}", expected, printed["stdout"], varies)
        warned = [line for line in printed["stderr"].splitlines() if "Warning: " in line]
        # tqdm warns that IProgress is missing if ipywidgets is not installed
        assert kind == "bash" or not [line for line in warned if "IProgress" not in line]
