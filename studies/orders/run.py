"""The study of docs/studies/orders.md.

Training along the order of a sampler, against training on random noise.

Corpus, network, budgets and measurement of the bound are those of ``studies.corpus_study``. A
killed command is resumed by the same command. Protocol and expectations are on the page, written
before the runs.

A record of the code: it ran at commit e8bdc8e7, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from recipes import frontier
from recipes.config import Recipe, recipe_yaml
from recipes.console import make_console
from recipes.data import open_prepared
from recipes.engine.parallel import alone
from recipes.engine.validation import over
from recipes.metrics import Terms, read
from recipes.model_io import LoadedModel, make_sampler, open_saved
from studies.budgets.run import EDGES, TWO
from studies.corpus.public_domain import SOURCES
from studies.corpus_study import (
    BUDGET,
    LENGTH,
    TINY,
    CorpusStudy,
    Model,
    collected,
    joined,
    known_runs,
    missing,
)
from studies.orders.page import CONFIDENCE, LEFT, PAGE, READ, column
from studies.study import SCORER, Run, by_text, finished, less, shared, written

RATE = 1e-3
"""Learning rate of the continued runs."""
MASKS, THREE = Model(dict(kind="mdlm")), Model(dict(kind="hdlm_levels", clusters=[64, 8]), EDGES)
ALONG = dict(order=CONFIDENCE)
HALF = ALONG | dict(order_share=0.5)
PROCESSES = {"masks": MASKS, "HDLM-64": Model(TWO, EDGES), "HDLM-64-8": THREE}
RULES: dict[str, dict[str, dict[str, Any]]] = {
    "masks": {
        "": {},
        ", along confidence": ALONG,
        ", half along confidence": HALF,
        ", left to right": dict(order=LEFT),
        ", along confidence, 64 a step": ALONG | dict(order_per_step=64),
    },
    "HDLM-64": {"": {}, ", along confidence": ALONG},
    "HDLM-64-8": {"": {}, ", along confidence": ALONG},
}
"""Training losses of each process, by what is added to its name."""
AT_RANDOM = dict(order="confidence:temperature=1000000")
"""Rows as in ``ALONG``, whose next positions are random: noise of this size leaves nothing of the
scores.
"""
CONTROLS = {
    ", not clipped": dict(weighting=dict(kind="clip", high=None)),
    ", random order": AT_RANDOM,
    ", random order, 64 a step": AT_RANDOM | dict(order_per_step=64),
}
"""Training losses of masks at the smallest budget, added after the other runs."""
MEMORY = ", memory"
CONTINUED = {
    "": {},
    ", along confidence": ALONG,
    ", half along confidence": HALF,
    ", consistency": dict(consistency=0.5),
    MEMORY: dict(memory=0.5),
}
"""Training losses after the largest budget on random noise, for masks and HDLM-64."""


@dataclass(frozen=True)
class Orders(CorpusStudy):
    """Masks and hierarchies trained on random noise and along the order of a sampler."""

    results = PAGE
    commands = ("train", "likelihood", "frontier", "evaluate", "page")
    flags = BUDGET | SCORER
    processes: tuple[str, ...] = tuple(PROCESSES)
    budgets: Mapping[float, tuple[int, ...]] = field(default_factory=lambda: {2: (0, 1), 8: (0, 1)})
    """Millions of tokens, and the seeds of each."""
    documents: int = 8
    """Test documents of each source whose likelihood is computed."""
    continued: float = 2
    """Millions of tokens of the continued runs."""
    calls: tuple[int, ...] = (8, 16, 32, 64)
    """Network calls of a sample."""
    samples: int = 32
    """Samples of each cell."""
    read_along: tuple[tuple[str, int], ...] = READ
    """Those of ``READ`` that are computed."""

    @classmethod
    def tiny(cls) -> Self:
        """Return two processes, one budget and few samples."""
        return cls(TINY, ("masks", "HDLM-64"), {0.005: (0,)}, 1, 0.005, (2, 4), 2, READ[2:3])

    def runs(self, work: Path) -> Iterator[tuple[str, float, int, Recipe]]:
        """Yield all runs, budget by budget, then the continued ones: name, millions of tokens,
        seed, recipe.
        """
        for millions, seeds in self.budgets.items():
            for seed in seeds:
                for process in self.processes:
                    controls = (
                        CONTROLS if process == "masks" and millions == min(self.budgets) else {}
                    )
                    for rule, values in (RULES[process] | controls).items():
                        name, model = process + rule, PROCESSES[process] | values
                        yield (
                            name,
                            millions,
                            seed,
                            self.setting.recipe(work, f"orders-{name}", model, millions, seed),
                        )
        for seed in seeds:
            for process in ("masks", "HDLM-64"):
                before = self.setting.recipe(
                    work, f"orders-{process}", PROCESSES[process], millions, seed
                )
                for rule, values in CONTINUED.items():
                    name = f"orders-{process}{rule}-continued"
                    given = self.setting.recipe(
                        work, name, PROCESSES[process], self.continued, seed
                    )
                    slower = replace(given.optimizer, lr=RATE, ema=max(given.optimizer.ema, 0.9))
                    start, loss = str(before.output.folder), replace(given.loss, **values)
                    network = given.model | dict(memory=rule == MEMORY)
                    given = replace(given, start=start, loss=loss, optimizer=slower, model=network)
                    yield process + rule, millions + self.continued, seed, given

    def train(self, options: Namespace) -> None:
        """Train the runs of a budget."""
        shared(missing(self.runs(options.work), options), options)

    def likelihood(self, options: Namespace) -> None:
        """Compute the exact likelihoods of every finished run, unless they are there."""
        folder = options.work / "likelihood"
        folder.mkdir(exist_ok=True)
        for *_, given in list(self.runs(options.work))[options.part :: options.of]:
            path = folder / f"{given.output.folder.name}.json"
            if path.exists() or not finished(given):
                continue
            saved = open_saved(given.output.folder, alone().device)
            values = {
                column(*one): by_text(self.read(options.work, saved, *one))
                for one in self.read_along
            }
            path.write_text(json.dumps(values), encoding="utf-8")
            print(
                path.stem,
                {name: sum(one["nats"]) / sum(one["tokens"]) for name, one in values.items()},
                flush=True,
            )

    def read(self, work: Path, saved: LoadedModel, order: str, group: int) -> Terms:
        """Return the likelihood of the first test documents of every source along an order."""
        sampler, world = make_sampler(saved, order, "orders"), alone()
        process, steps = saved.process, LENGTH * (len(saved.process.levels) - 1) // group

        def measured(batches: Any) -> Terms:
            meaning = saved.token_parameterization
            return read(
                process, saved.denoiser, batches, sampler, steps, self.documents, False, meaning
            )[0]

        texts = [open_prepared(work / "test" / source) for source in SOURCES]
        return joined(
            tuple(
                over(text, LENGTH, world, self.documents, self.documents, measured)
                for text in texts
            )
        )

    def frontier(self, options: Namespace) -> None:
        """Draw and judge samples of the runs of the largest budget and of the continued ones."""
        folder = options.work / "frontier"
        folder.mkdir(exist_ok=True)
        for _, millions, _, given in list(self.runs(options.work))[options.part :: options.of]:
            if millions >= max(self.budgets) and finished(given):
                path, own = (
                    given.output.folder,
                    dict(samples=self.samples, calls=self.calls, length=LENGTH),
                )
                judge = dict(scorer=str(options.scorer), samplers=("ancestral", CONFIDENCE))
                out, memory = folder / f"{path.name}.json", given.model.get("memory", False)
                request = frontier.Options(run=str(path), **judge, **own, memory=memory, out=out)
                frontier.frontier(request, make_console())

    def evaluate(self, options: Namespace) -> None:
        """Write the result file."""
        work, masks = options.work, dict[Any, Run]()
        runs = collected(self.runs(work), known_runs(options), "above_masks", self.measure(work))
        names = {
            (name, millions, seed): given.output.folder.name
            for name, millions, seed, given in self.runs(work)
        }
        for run in runs:
            name = names[run["process"], run["millions"], run["seed"]]
            values = found(work / "likelihood" / f"{name}.json", run.get("likelihood", {}))
            base = masks.setdefault((run["millions"], run["seed"]), values)
            run["likelihood"] = {
                key: compared(value, base[key]) for key, value in values.items() if key in base
            }
            drawn = found(work / "frontier" / f"{name}.json", {"cells": run.get("frontier", [])})
            run["frontier"] = drawn["cells"]
        written(
            options.out, {"recipe": recipe_yaml(next(self.runs(Path("work")))[3]), "runs": runs}
        )


def found(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Return what a file holds; what was known before if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else known


def compared(one: Run, masks: Run) -> Run:
    """Return a likelihood per token with its difference to masks on the same documents."""
    own = {name: one[name] for name in ("nats", "tokens")}
    return own | {"value": sum(own["nats"]) / sum(own["tokens"]), "above_masks": less(one, masks)}


STUDY = Orders()

if __name__ == "__main__":
    STUDY.main(__doc__)
