"""Notebooks of the tutorials: their cells are the blocks of the pages, which run in tests/test_docs.py."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS / "_ext"))
import notebooks  # noqa: E402

PAGES = [DOCS / f"{name}.md" for name in re.findall(r'"(tutorials/\w+)"', (DOCS / "conf.py").read_text())]


def blocks(page):
    """Language and content of every block of a page that runs, and what is printed below it."""
    found = []
    text = page.read_text()
    for block in re.finditer(r"^```(python|bash|text)\n(.*?)\n```$", text, re.M | re.S):
        kind, content = block.groups()
        if kind == "text":
            found[-1][2] = content
        elif kind == "python" or text[: block.start()].rstrip().endswith("% runs"):
            found.append([kind, content, ""])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_cells_are_the_blocks_of_the_page(page):
    code = [cell for cell in notebooks.notebook(page).cells if cell.cell_type == "code"]
    pictures = [cell for cell in code if "Image(" in cell.source]
    cells = [cell for cell in code if cell not in pictures]
    expected = blocks(page)
    assert [cell.source for cell in cells] == ["%%bash\n" * (kind == "bash") + source for kind, source, _ in expected]
    assert ["".join(out.text for out in cell.outputs).strip() for cell in cells] == [
        out.strip() for *_, out in expected
    ]
    assert len(pictures) == page.read_text().count("](../images/tutorials/")
    assert all(cell.outputs[0].data["image/png"] for cell in pictures)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_prose_needs_no_sphinx(page):
    prose = "\n".join(cell.source for cell in notebooks.notebook(page).cells if cell.cell_type == "markdown")
    assert not re.search(r"\.md\)|\{\w+\}`|^% |```(text|python)", prose, re.M)
    assert prose.startswith("# ") and len(prose) > 1000


@pytest.mark.slow
def test_a_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("DDLIB_SHAPECHECK", "0")
    found = notebooks.notebook(DOCS / "tutorials" / "2_hierarchy.md")
    nbclient.NotebookClient(found, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "[0, 0, 0, 0, 1, 1, 1, 1" in str(found.cells)
