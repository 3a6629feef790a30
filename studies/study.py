"""Studies: their command line, runs distributed over processes and machines, results as JSON, and
pages.

A study is a subclass of ``Study``; ``python -m studies.NAME.run --smoke FOLDER`` makes all of it at
tiny sizes.
"""

import argparse
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from recipes.config import Recipe
from recipes.engine import train
from recipes.evaluation.frontier import quality
from recipes.metrics import scoring
from studies.page import DOCS, Page, less
from studies.runs import Run, by_text, curve, finished, judged, written
from studies.smoke import judge

@dataclass(frozen=True)
class Study(ABC):
    """A study whose result stands on a page; its fields are its sizes.

    Its commands are methods that take the options of the command line. A command that was stopped
    goes on where it was.
    """

    results: ClassVar[Page]
    """The page."""
    commands: ClassVar[tuple[str, ...]]
    """Names of the commands, in their order."""
    flags: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further flags, with the arguments of ``add_argument``."""
    place: ClassVar[str] = "work"
    """Working folder of ``smoke``; studies with the same inputs share it."""

    @classmethod
    @abstractmethod
    def tiny(cls) -> Self:
        """Return the study at sizes at which it takes seconds."""

    def inputs(self, work: Path) -> None:  # noqa: B027
        """Write what the first command requires, at tiny sizes, unless it is there."""

    def page(self, options: argparse.Namespace) -> None:
        """Fill the page from the result file."""
        self.results.write(options.out, options.docs)

    def parser(self, about: str) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = argparse.ArgumentParser(description=about.splitlines()[0])
        parser.add_argument("what", choices=self.commands, nargs="?")
        parser.add_argument("work", type=Path, nargs="?", help="folder of the study")
        parser.add_argument("--part", type=int, default=0, help="index of this process, from 0")
        parser.add_argument(
            "--of", type=int, default=1, help="number of processes that share the runs"
        )
        parser.add_argument("--out", type=Path, help="the result file")
        parser.add_argument(
            "--docs", type=Path, help="folder of the page; without it the tables are printed"
        )
        parser.add_argument(
            "--smoke",
            type=Path,
            metavar="FOLDER",
            help="all commands at tiny sizes, into this folder",
        )
        for name, values in self.flags.items():
            parser.add_argument(name, **values)
        return parser

    def main(self, about: str, words: Sequence[str] | None = None) -> None:
        """Run a command, or with ``--smoke`` all of them."""
        parser = self.parser(about)
        options = parser.parse_args(words)
        torch.set_num_threads(1)
        if options.smoke is not None:
            self.tiny().smoke(options.smoke)
            return
        if options.work is None:
            parser.error("pass a command and WORK, or --smoke FOLDER")
        if options.what in self.commands[-2:] and options.out is None:
            parser.error(f"{options.what}: pass --out FILE, the result file")
        # the description of prepared text has the paths of its files: relative and absolute ones
        # shall agree
        options.work = options.work.resolve()
        options.work.mkdir(parents=True, exist_ok=True)
        getattr(self, options.what)(options)

    def smoke(self, folder: Path) -> None:
        """Run all commands; the result, the page and its pictures come into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        work = folder / self.place
        page = folder / f"{self.results.name}.md"
        page.parent.mkdir(exist_ok=True)
        shutil.copy(DOCS / f"{self.results.name}.md", page)
        self.inputs(work)
        out = folder / f"{page.stem}.json"
        words = [str(work), "--out", str(out), "--docs", str(folder)]
        for flag in self.flags.keys() & {"--scorer", "--from"}:
            words += [flag, str(judge(folder / "judge"))]
        for command in self.commands:
            self.main("smoke", [command, *words])


SCORER = {"--scorer": {"help": "causal language model that judges samples, a folder or a name"}}


def shared(recipes: Sequence[Recipe], options: argparse.Namespace) -> None:
    """Train this process's share of the runs, until a signal stops it."""
    for given in recipes[options.part :: options.of]:
        if not train(given):
            return


def earlier(path: Path | None, *names: str) -> dict[tuple[Any, ...], Run]:
    """Return the runs of a result file, if it exists, keyed by the values of these names.

    A study takes days, and its runs may be made on one machine after another.
    """
    runs = (
        json.loads(path.read_text(encoding="utf-8"))["runs"]
        if path is not None and path.exists()
        else []
    )
    return {tuple(run[name] for name in names): run for run in runs}


def summary(told: dict[str, Any]) -> dict[str, Any]:
    """Return quality, variety and calls of a cell."""
    scores = scoring.Scores(
        torch.tensor(told["scores"]["nats"]), torch.tensor(told["scores"]["tokens"]), 0
    )
    about = {key: told[key] for key in ("cell", "calls") if key in told}
    return {**about, "seed": told["seed"], **quality(told["words"], scores)}
