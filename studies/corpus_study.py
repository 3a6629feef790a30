"""Studies of the prepared corpus: network, budget, measurement, and the differences to masks."""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.engine.provenance import provenance
from studies import smoke
from studies.corpus.public_domain import split
from studies.setting import DRAWS, LENGTH, TINY, Model, Setting, joined, measured, together
from studies.study import Run, Study, by_text, curve, earlier, finished, less

BUDGET = {"--budget": {"type": int, "help": "millions of tokens; all budgets by default"}}
"""Flag of the studies at several budgets."""


@dataclass(frozen=True)
class CorpusStudy(Study):
    """A study of the prepared corpus."""

    place = "corpus"
    setting: Setting = field(default_factory=Setting)

    def measure(self, work: Path) -> Callable[[Recipe], Run]:
        """Return the function that measures the bound of a finished run on the test text of all
        sources.
        """

        def measured(given: Recipe) -> Run:
            whole = together(self.setting.tested(work, given.output.folder))
            return {"all_sources": asdict(whole.per_token)} | by_text(whole)

        return measured

    def inputs(self, work: Path) -> None:
        """Prepare a few speeches in place of the corpus."""
        if not (work / "data").exists():
            split(smoke.sources(), work / "text")
            self.setting.prepare(work)


def collected(
    runs: Iterable[tuple[str, float, int, Recipe]],
    known: Mapping[tuple[Any, ...], Run],
    difference: str,
    measure: Callable[[Recipe], Run],
) -> list[Run]:
    """Return all runs made here, or known from an earlier file.

    Args:
        runs: name, millions of tokens, seed and recipe of each run, masks first in each budget and
            seed.
        known: earlier runs by name, millions of tokens and seed.
        difference: key of the difference to masks.
        measure: returns what is measured of a finished run.
    """
    found, masks, about = (
        [],
        dict[tuple[float, int], Run](),
        provenance() | {"cores": os.cpu_count()},
    )
    for name, millions, seed, given in runs:
        if (name, millions, seed) in known:
            run = known[name, millions, seed]
        elif finished(given):
            run = dict(
                process=name, millions=millions, seed=seed, loss=given.objective().about(padded=True)
            )
            run |= measure(given) | {"curve": curve(given.output.folder), "provenance": about}
        else:
            continue
        found.append(run | {difference: less(run, masks.setdefault((millions, seed), run))})
        print(name, millions, seed, run["all_sources"], flush=True)
    return found


def known_runs(options: Namespace) -> Mapping[tuple[Any, ...], Run]:
    """Return the runs of an earlier result file."""
    return earlier(options.out, "process", "millions", "seed")


def missing(runs: Iterable[tuple[str, float, int, Recipe]], options: Namespace) -> list[Recipe]:
    """Return the unfinished runs of a budget, or of all budgets, that the result file does not
    have.
    """
    known, budget = known_runs(options), options.budget
    found = [given for *key, given in runs if budget in (None, key[1]) and tuple(key) not in known]
    return [given for given in found if not finished(given)]
