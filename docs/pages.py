"""Run the examples of pages of the documentation: ``python docs/pages.py [--images] PAGE...``.

The blocks of a page run in order, in one namespace and in an empty folder:

- A block of ``python`` is executed; a block with ``>>>`` is a doctest.
- A block of ``bash`` is executed if the line ``% runs`` is above it.
- A block of ``text`` directly below an executed block must equal the output of that block; ``...``
  matches any text. With the line ``% varies`` between the two blocks, the output depends on the
  machine, and only the number of lines is compared.
- ``% skip: next "reason"`` skips the next block.

The code of a tutorial must write every picture that the tutorial shows; ``--images`` copies these
pictures into docs/images/tutorials.
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
    """Parser of blocks of Python that stores their output."""

    def __init__(self) -> None:
        super().__init__(doctest_optionflags=FLAGS)
        self.codeblock_parser = CodeBlockParser("python", python)


def python(example: Example) -> None:
    """Run a block of Python and store its output."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        PythonEvaluator()(example)
    printed(example, out.getvalue())


def notebooks() -> list[Path]:
    """Pages that conf.py lists as notebooks; the tests run these as notebooks, not as pages."""
    return [
        HERE / f"{name}.md"
        for name in re.findall(r'"(tutorials/\w+)"', (HERE / "conf.py").read_text())
    ]


def environment() -> dict[str, str]:
    """Environment of commands: this Python first on the path, and this checkout."""
    paths = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE.parent),
    }
    return os.environ | paths


def bash(example: Example) -> None:
    """Run a block of bash that has ``% runs`` above it, and store its output."""
    if not example.document.text[: example.region.start].rstrip().endswith("% runs"):
        return
    done = subprocess.run(
        ["bash", "-ec", example.parsed], capture_output=True, text=True, env=environment()
    )
    if done.returncode:
        raise AssertionError(
            f"line {example.line} ends with status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    printed(example, done.stdout)


def text(example: Example) -> None:
    """Compare a block of text with the output of the executed block directly above it."""
    above, out = example.namespace.get("__above__", (0, ""))
    between = example.document.text[above : example.region.start].strip()
    if above and between in ("", VARIES):
        check(f"line {example.line}", example.parsed, out, between == VARIES)


def check(place: str, expected: str, out: str, varies: bool = False) -> None:
    """Compare output with the text that a page shows; only the numbers of lines if it varies.

    Raises:
        AssertionError: they differ.
    """
    if varies:
        same = len(expected.strip().splitlines()) == len(out.strip().splitlines())
    else:
        same = doctest.OutputChecker().check_output(expected, out, FLAGS)
    if not same:
        raise AssertionError(f"{place} says:\n{expected}\noutput was:\n{out}")


def printed(example: Example, out: str) -> None:
    """Store the output of a block, and the position behind the block, for ``text``."""
    example.namespace["__above__"] = (example.region.end, out)


PAGE = Sybil(
    parsers=[Python(), CodeBlockParser("bash", bash), CodeBlockParser("text", text), SkipParser()]
)


def run(page: Path) -> None:
    """Run the examples of a page in the current folder.

    Raises:
        AssertionError: an output differs from the page, or the code did not write a picture that
            the page shows.
    """
    document, path = PAGE.parse(page), list(sys.path)
    try:
        for example in document.examples():
            with contextlib.suppress(SkipTest):  # raised for `% skip` with a reason
                example.evaluate()
    finally:
        sys.path[:] = path  # a page may have added its folder
    missing = [name for name in pictures(document.text) if not Path(name).exists()]
    if missing:
        raise AssertionError(f"{page.name} shows pictures that its code does not write: {missing}")


def pictures(text: str) -> list[str]:
    """File names of the pictures in docs/images/tutorials that a text shows."""
    return re.findall(r"\]\(\.\./images/tutorials/([\w.-]+)\)", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, nargs="+")
    parser.add_argument(
        "--images", action="store_true", help="copy the pictures into docs/images/tutorials"
    )
    given = parser.parse_args()
    for page in [page.resolve() for page in given.page]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run(page)
            for name in pictures(page.read_text()) if given.images else ():
                IMAGES.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, IMAGES / name)
        print(f"{page.name}: all examples passed")


if __name__ == "__main__":
    main()
