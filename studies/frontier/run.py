"""The study of docs/studies/frontier.md.

Samples of masks and HDLM-64, their quality, variety and network calls.

The cells are those of ``recipes.frontier``. A killed command is resumed by the same command.
Protocol and expectations were written before the samples were drawn.

A record of the code: it ran at commit 6af0eda5, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from recipes import frontier
from recipes.config import Recipe
from recipes.console import make_console
from studies.corpus_study import LENGTH, CorpusStudy
from studies.frontier.page import MODELS, PAGE, TEMPERATURES
from studies.scales.run import Scales
from studies.study import SCORER, finished, shared, written

SAMPLERS = ("ancestral", "first_hitting", "confidence", "entropy_bounded:gamma=1")
COMMON = ("scorer", "samples", "length")
"""Settings that all runs share."""


@dataclass(frozen=True)
class Frontier(CorpusStudy):
    """Samples of the models that the study of scales trained."""

    results = PAGE
    commands = ("train", "sample", "evaluate", "page")
    flags = SCORER
    models: Scales = field(default_factory=lambda: Scales(names=tuple(MODELS), budgets={8: (0, 1)}))
    samplers: tuple[str, ...] = SAMPLERS
    calls: tuple[int, ...] = (8, 16, 32, 64)
    """Network calls of a sample."""
    warm: tuple[int, ...] = (16, 64)
    """Network calls at the other temperatures."""
    samples: int = 32
    """Samples of each cell."""

    @classmethod
    def tiny(cls) -> Self:
        """Return the models at tiny sizes and few samples."""
        models = replace(Scales.tiny(), names=tuple(MODELS))
        return cls(models.setting, models, SAMPLERS[:2], (2, 4), (4,), 2)

    def inputs(self, work: Path) -> None:
        """Prepare a few speeches, and what ``studies.scales.run`` computes from them."""
        super().inputs(work)
        if not (work / "memberships.json").exists():
            self.models.prepare(Namespace(work=work))

    def runs(self, work: Path) -> Iterator[tuple[str, int, Recipe]]:
        """Yield the name, seed and recipe of each model."""
        for name, _, seed, given in self.models.runs(work):
            yield MODELS[name], seed, given

    def train(self, options: Namespace) -> None:
        """Train the models that ``studies.scales.run`` has not trained."""
        shared([given for *_, given in self.runs(options.work) if not finished(given)], options)

    def sample(self, options: Namespace) -> None:
        """Draw and judge the cells of every finished model that are not there."""
        for model, seed, given in list(self.runs(options.work))[options.part :: options.of]:
            if not finished(given):
                continue
            common: dict[str, Any] = dict(
                scorer=str(options.scorer), samples=self.samples, length=LENGTH, seed=seed
            )
            usual, warm = self.files(options.work, given)
            spacing = ("time",) if model == "masks" else ("time", "jumps")
            cells = dict(samplers=self.samplers, calls=self.calls, spacing=spacing)
            self.cells(given, usual, common | cells)
            self.cells(
                given,
                warm,
                common | dict(samplers=("ancestral",), calls=self.warm, temperature=TEMPERATURES),
            )

    def cells(self, given: Recipe, out: Path, values: Mapping[str, Any]) -> None:
        """Measure cells of a run by ``recipes.frontier``."""
        out.parent.mkdir(exist_ok=True)
        frontier.frontier(
            frontier.Options(run=str(given.output.folder), out=out, **values), make_console()
        )

    def files(self, work: Path, given: Recipe) -> tuple[Path, Path]:
        """Return the result files of a run: of all samplers, and of the other temperatures."""
        name = given.output.folder.name
        return work / "cells" / f"{name}.json", work / "cells" / f"{name}-temperatures.json"

    def evaluate(self, options: Namespace) -> None:
        """Write the result file."""
        runs = []
        for model, seed, given in self.runs(options.work):
            told = [
                json.loads(p.read_text(encoding="utf-8"))
                for p in self.files(options.work, given)
                if p.exists()
            ]
            if told:
                cells = [cell for one in told for cell in one["cells"]]
                about = {name: told[0]["protocol"][name] for name in COMMON} | {
                    "starts": told[0]["starts"]
                }
                runs.append(
                    dict(model=model, seed=seed, held_out=told[0]["held_out"], cells=cells) | about
                )
        written(options.out, {"runs": runs})


STUDY = Frontier()

if __name__ == "__main__":
    STUDY.main(__doc__)
