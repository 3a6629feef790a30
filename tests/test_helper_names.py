"""Helper modules of the tests: their names differ from those of folders at the top of the checkout.

A process that a test starts may have the checkout first on its path. A folder there, written by a
run, would be imported as a namespace package in place of a helper module of that name.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [
    ROOT / "README.md",
    ROOT / "Makefile",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "recipes").rglob("*.py"),
]
PATH = re.compile(r"(?<![\w./-])(\w[\w-]*)/")  # the first part of runs/owt
OPTION = re.compile(r"--[\w.-]*(?:out|folder)[= ]([\w-]+)")  # --out runs


def modules():
    """Names of the helper modules and packages in the folders of the tests and of the
    documentation.
    """
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.py")]:
        if (path.parent / "__init__.py").exists():
            path = path.parent
        if not path.stem.startswith("test_") and path.stem != "conftest":
            yield path.stem


def written(text):
    """Folders that commands and defaults may write to.

    First parts of paths, and values of options such as --out.
    """
    return {*PATH.findall(text), *OPTION.findall(text)}


MODULES = sorted(set(modules()))
ON_DISK = {path.name for path in ROOT.iterdir() if path.is_dir()}
WRITTEN = set().union(*(written(path.read_text(encoding="utf-8")) for path in SOURCES))


def test_modules_and_folders_are_found():
    assert {"published", "training_runs", "zoo", "pages", "ddlib_ragged"} <= set(MODULES)
    assert {"tests", "docs", "recipes"} <= ON_DISK and {"runs", "data"} <= WRITTEN
    assert written("python -m recipes.clusters --out words --top=runs/a") == {"words", "runs"}


@pytest.mark.parametrize("module", MODULES)
def test_no_folder_at_the_top_of_the_checkout_has_the_name_of_a_helper(module):
    assert module not in ON_DISK | WRITTEN, (
        f"rename {module}.py: a folder {module}/ would be imported instead"
    )
