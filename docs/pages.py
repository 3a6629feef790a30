"""Runs a page of the documentation as it is written: ``python docs/pages.py [--images] PAGE``.

Blocks of ``python`` run one after another in one namespace and an empty folder; those with ``>>>`` are doctests. A
block of ``bash`` runs if the line ``% runs`` stands above it. A block of ``text`` directly below one that ran is what
that one printed, ``...`` for anything; with the line ``% varies`` between them it was printed on some machine, and
elsewhere only the number of lines is the same. ``% skip: next "why"`` spares a block. A picture of a tutorial is a file
that the page itself writes; ``--images`` keeps it.
"""

import argparse
import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import SkipTest

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser, PythonCodeBlockParser, SkipParser

HERE = Path(__file__).parent
IMAGES = HERE / "images" / "tutorials"
VARIES = "% varies"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Python(PythonCodeBlockParser):
    """Blocks of Python whose output is kept."""

    def __init__(self) -> None:
        super().__init__(doctest_optionflags=FLAGS)
        self.codeblock_parser = CodeBlockParser("python", python)


def python(example: Example) -> None:
    """Runs a block."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        PythonEvaluator()(example)
    printed(example, out.getvalue())


def notebooks() -> list[Path]:
    """Pages that are offered as notebooks, as conf.py lists them: the tests run the notebooks instead."""
    return [HERE / f"{name}.md" for name in re.findall(r'"(tutorials/\w+)"', (HERE / "conf.py").read_text())]


def environment() -> dict[str, str]:
    """Environment of commands: this Python before all others, this checkout, and no shape checks, as for users."""
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(HERE.parent)}
    return os.environ | paths | {"DDLIB_SHAPECHECK": "0"}


def bash(example: Example) -> None:
    """Runs a block that is marked by ``% runs``."""
    if not example.document.text[: example.region.start].rstrip().endswith("% runs"):
        return
    done = subprocess.run(["bash", "-ec", example.parsed], capture_output=True, text=True, env=environment())
    if done.returncode:
        raise AssertionError(f"line {example.line} ends with status {done.returncode}:\n{done.stdout}{done.stderr}")
    printed(example, done.stdout)


def text(example: Example) -> None:
    """Compares a block with what the one above it printed."""
    above, out = example.namespace.get("__above__", (0, ""))
    between = example.document.text[above : example.region.start].strip()
    if above and between in ("", VARIES):
        check(f"line {example.line}", example.parsed, out, between == VARIES)


def check(place: str, expected: str, out: str, varies: bool = False) -> None:
    """Raises AssertionError unless ``out`` is the printed block of a page, or has as many lines if it varies."""
    if varies:
        same = len(expected.strip().splitlines()) == len(out.strip().splitlines())
    else:
        same = doctest.OutputChecker().check_output(expected, out, FLAGS)
    if not same:
        raise AssertionError(f"{place} says:\n{expected}\nprinted was:\n{out}")


def printed(example: Example, out: str) -> None:
    example.namespace["__above__"] = (example.region.end, out)


PAGE = Sybil(parsers=[Python(), CodeBlockParser("bash", bash), CodeBlockParser("text", text), SkipParser()])


def run(page: Path) -> None:
    """Runs the examples of a page in the present folder.

    Raises:
        AssertionError: printed is not what the page says, or a picture that the page shows was not written.
    """
    document, path = PAGE.parse(page), list(sys.path)
    try:
        for example in document.examples():
            with contextlib.suppress(SkipTest):  # of `skip` with a reason
                example.evaluate()
    finally:
        sys.path[:] = path  # a page may have put its folder there
    missing = [name for name in pictures(document.text) if not Path(name).exists()]
    if missing:
        raise AssertionError(f"{page.name} shows pictures that its code does not write: {missing}")


def pictures(text: str) -> list[str]:
    """The names of a tutorial's own pictures."""
    return re.findall(r"\]\(\.\./images/tutorials/([\w.-]+)\)", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, nargs="+")
    parser.add_argument("--images", action="store_true", help="copy the pictures into docs/images/tutorials")
    given = parser.parse_args()
    for page in [page.resolve() for page in given.page]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run(page)
            for name in pictures(page.read_text()) if given.images else ():
                IMAGES.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, IMAGES / name)
        print(f"{page.name}: as written")


if __name__ == "__main__":
    main()
