"""The study of docs/studies/budgets.md.

Masks, GIDD and hierarchies at three budgets on the public-domain corpus.

A killed training is resumed by the same command. With ``--out`` another machine makes the runs that
are missing in the file. Protocol and expectations were written before the runs.

A record of the code: it ran at commit a5c53928, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from recipes.config import Recipe, recipe_yaml
from recipes.data import open_prepared
from recipes.evaluate import estimates
from recipes.metrics import Terms
from studies.budgets import page as study_page
from studies.corpus_study import (
    BUDGET,
    TINY,
    CorpusStudy,
    Model,
    collected,
    known_runs,
    measured,
    missing,
    together,
)
from studies.study import Run, by_text, finished, shared, written

SEARCHED, SEARCH_SEED = 2, 2
"""Budget of the search in millions of tokens, and its seed, which is not used by the study."""


TWO, EDGES = dict(kind="hdlm", clusters=64), dict(mode="edges")
EDGES_64 = "HDLM-64, all edges"
MODELS = {
    "MDLM": Model(dict(kind="mdlm")),
    "GIDD(0.1), dynamic": Model(dict(kind="gidd", p_uniform=0.1), dict(weighting="dynamic")),
    "HDLM-64": Model(TWO),
    EDGES_64: Model(TWO, EDGES),
    "HDLM-64-8, all edges": Model(dict(kind="hdlm_levels", clusters=[64, 8]), EDGES),
}
SPEEDS = {
    "0.5": Model(TWO | dict(gamma=0.5), EDGES),
    "2": Model(TWO | dict(gamma=2.0), EDGES),
    "4": Model(TWO | dict(gamma=4.0), EDGES),
}
"""Speeds relative to HDLM-64, all edges, which has 1."""
USUAL = "usual rule"
RULES: dict[str, dict[str, Any]] = {
    USUAL: {},
    "best times": dict(times="optimal"),
    "best times, not divided out": dict(times="optimal", weigh_times=False),
    "best times, balanced": dict(times="optimal", levels="balanced"),
}
"""Distributions of times and levels in training."""


def before(work: Path) -> dict[str, dict[str, Any]]:
    """Return the bounds of an earlier search, of rules and speeds by name: they are not trained or
    measured again.
    """
    path = work / "chosen.json"
    return json.loads(path.read_text(encoding="utf-8"))["bounds"] if path.exists() else {}


@dataclass(frozen=True)
class Budgets(CorpusStudy):
    """Processes at several budgets, with training rules and speeds that a search has chosen."""

    results = study_page.PAGE
    commands = ("prepare", "search", "chosen", "train", "evaluate", "page")
    flags = BUDGET
    models: Mapping[str, Model] = field(default_factory=lambda: MODELS)
    rules: Mapping[str, dict[str, Any]] = field(default_factory=lambda: RULES)
    speeds: Mapping[str, Model] = field(default_factory=lambda: SPEEDS)
    budgets: Mapping[float, tuple[int, ...]] = field(
        default_factory=lambda: {2: (0, 1), 8: (0, 1), 32: (0,)}
    )
    """Millions of tokens, and the seeds of each."""
    searching: float = SEARCHED
    """Budget of the search in millions of tokens."""

    @classmethod
    def tiny(cls) -> Self:
        """Return two models, one rule, one other speed and ten steps."""
        rules = {name: RULES[name] for name in (USUAL, "best times, balanced")}
        models = {name: MODELS[name] for name in ("MDLM", EDGES_64)}
        return cls(TINY, models, rules, {"2": SPEEDS["2"]}, {0.005: (0,)}, 0.005)

    def searched(self, work: Path) -> Iterator[tuple[str, str, Recipe]]:
        """Yield the runs of the search: rules for every model, speeds for one."""
        recipe, millions = self.setting.recipe, self.searching
        for rule, values in self.rules.items():
            for name, model in self.models.items():
                yield (
                    name,
                    rule,
                    recipe(work, f"search-{name}-{rule}", model | values, millions, SEARCH_SEED),
                )
        for speed, model in self.speeds.items():
            yield (
                "speed",
                speed,
                recipe(work, f"search-speed-{speed}", model, millions, SEARCH_SEED),
            )

    def best(self, work: Path) -> dict[str, Any]:
        """Return the result of the search: bounds on its text, the best rule of every model, the
        best speed.
        """
        known, found = before(work), dict[str, dict[str, Any]]()
        for name, rule, given in self.searched(work):
            bound = known.get(name, {}).get(rule)
            if bound is None:
                if not finished(given):
                    raise SystemExit(
                        f"{given.output.folder}: not all of its {given.steps} steps are made"
                    )
                terms = measured(given.output.folder, [work / "data"], self.setting.draws)[0]
                bound = asdict(Terms.average(terms).per_token)
            found.setdefault(name, {})[rule] = bound
        # speed 1 is among the models already
        found["speed"]["1"] = found[EDGES_64][USUAL]
        best = {
            name: min(bounds, key=lambda rule: bounds[rule]["value"])
            for name, bounds in found.items()
        }
        return {"bounds": found, "best": best}

    def runs(self, work: Path) -> Iterator[tuple[str, float, int, Recipe]]:
        """Yield all runs of the study, budget by budget: name, millions of tokens, seed, recipe."""
        best = json.loads((work / "chosen.json").read_text(encoding="utf-8"))["best"]
        models = {name: model | self.rules[best[name]] for name, model in self.models.items()}
        fastest = self.speeds.get(best["speed"], self.models[EDGES_64])
        models[f"{EDGES_64}, best speeds"] = fastest | self.rules[best[EDGES_64]]
        for millions, seeds in self.budgets.items():
            for seed in seeds:
                for name, model in models.items():
                    yield (
                        name,
                        millions,
                        seed,
                        self.setting.recipe(work, name, model, millions, seed),
                    )

    def prepare(self, options: Namespace) -> None:
        """Prepare all texts."""
        self.setting.prepare(options.work)

    def search(self, options: Namespace) -> None:
        """Train the runs of the search."""
        known = before(options.work)
        shared(
            [
                run
                for name, rule, run in self.searched(options.work)
                if rule not in known.get(name, {})
            ],
            options,
        )

    def chosen(self, options: Namespace) -> None:
        """Write the result of the search."""
        written(options.work / "chosen.json", self.best(options.work))

    def train(self, options: Namespace) -> None:
        """Train the runs of a budget."""
        shared(missing(self.runs(options.work), options), options)

    def evaluate(self, options: Namespace) -> None:
        """Write the result file."""
        work = options.work

        def measure(given: Recipe) -> Run:
            terms = self.setting.tested(work, given.output.folder)
            whole = together(terms)
            sources = {
                source: {
                    key: asdict(value)
                    for key, value in estimates(many, open_prepared(work / "test" / source)).items()
                }
                for source, many in terms.items()
            }
            return {"all_sources": asdict(whole.per_token), "by_source": sources} | by_text(whole)

        search = json.loads((work / "chosen.json").read_text(encoding="utf-8"))
        found = collected(self.runs(work), known_runs(options), "less_mdlm", measure)
        shown = recipe_yaml(next(self.searched(Path("work")))[2])
        written(options.out, {"recipe": shown, "search": search, "runs": found})


STUDY = Budgets()

if __name__ == "__main__":
    STUDY.main(__doc__)
