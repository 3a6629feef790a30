"""Sphinx extension that converts the pages listed under ``notebooks`` in conf.py to Jupyter
notebooks.

Every block of Python becomes a code cell. Every block of bash that is marked by ``% runs`` becomes
a cell with ``%%bash -e``, which stops at the first command that fails. The output that a page shows
below a block becomes the output of the cell. Each picture becomes a code cell that displays the
file.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jupytext
from nbformat import NotebookNode, v4

if TYPE_CHECKING:  # the tests import this module and do not need Sphinx
    from sphinx.application import Sphinx

PICTURE = re.compile(r"^!\[[^\]]*\]\(\.\./images/tutorials/([\w.-]+)\)$", re.M)
HEADER = (
    "---\njupyter:\n  kernelspec: {name: python3, display_name: Python 3, language: "
    "python}\n---\n\n"
)
SHOWN = 'from IPython.display import Image\n\nImage("{}")'


def notebook(page: Path) -> NotebookNode:
    """Convert a page to a notebook."""
    text = PICTURE.sub(
        lambda found: f"```python\n{SHOWN.format(found[1])}\n```", page.read_text(encoding="utf-8")
    )
    text = re.sub(r"^% (?:runs|varies)\n+", "", text, flags=re.M)
    text = "".join(
        part if part.startswith("```") else _plain(part)
        for part in re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    )
    found = jupytext.reads(HEADER + text, "md")
    cells: list[NotebookNode] = []
    for number, cell in enumerate(found.cells):
        cell["id"] = (
            f"cell-{number}"  # jupytext draws random ids, which would change at every build
        )
        cell.source = re.sub(r"^%%bash\n", "%%bash -e\n", cell.source)
        printed = re.match(r"```text\n(.*?)```\n*", cell.source, re.S)
        if printed and cells and cells[-1].cell_type == "code":
            cells[-1].outputs = [v4.new_output("stream", name="stdout", text=printed[1])]
            cell.source = cell.source[printed.end() :]
        if cell.source:
            cells.append(cell)
    for cell in cells:
        if shown := re.fullmatch(re.escape(SHOWN).replace(r"\{\}", "(.*)"), cell.source):
            picture = (page.parent.parent / "images" / "tutorials" / shown[1]).read_bytes()
            data = {"image/png": base64.b64encode(picture).decode()}
            cell.outputs = [v4.new_output("display_data", data=data)]
    found.cells = cells
    return found


def _plain(prose: str) -> str:
    """Replace links to pages and roles of Sphinx by their text: they do not work in a notebook."""
    prose = re.sub(r"\{\w+\}`~(?:\w+\.)*(\w+)`", r"`\1`", prose)
    prose = re.sub(r"\[\]\((?!http)([^)]*)\)", r"`\1`", prose)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", prose)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks when the pages are built."""
    if error is None and app.builder.format == "html":
        for name in app.config.notebooks:
            path = Path(app.outdir) / f"{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                jupytext.writes(notebook(Path(app.srcdir) / f"{name}.md"), "ipynb"),
                encoding="utf-8",
            )


def link(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Put a link to the notebook below the title of its page."""
    if pagename in app.config.notebooks:
        file = f"{pagename.rpartition('/')[2]}.ipynb"
        link = f'<a href="{file}" download>Download this page as a notebook</a>'
        anchor = f'<p class="notebook">{link}</p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{anchor}", 1)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("notebooks", [], "html")
    app.connect("html-page-context", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
