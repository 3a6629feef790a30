"""Studies of the prepared corpus: network, budget, measurement, and the differences to masks."""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from recipes.config import Data, Hardware, Loss, Optimizer, Output, Recipe
from recipes.data import Corpus, local, open_prepared, prepare
from recipes.engine.parallel import alone
from recipes.engine.provenance import provenance
from recipes.evaluate import Options, bounds, drawn_from
from recipes.metrics import Terms
from recipes.model_io import open_saved
from studies import smoke
from studies.corpus.public_domain import SOURCES, split
from studies.study import Run, Study, by_text, curve, earlier, finished, less

LENGTH, DRAWS = 128, 4
"""Tokens of a sequence; draws of times and noise for every test text."""
COMPILED = 2
"""Budget in millions of tokens above which blocks are compiled."""


@dataclass(frozen=True)
class Model:
    """A process and its training loss."""

    process: dict[str, Any]
    loss: dict[str, Any] = field(default_factory=dict)

    def __or__(self, rule: Mapping[str, Any]) -> "Model":
        return replace(self, loss=self.loss | rule)


@dataclass(frozen=True)
class Setting:
    """Text, network and measurement of the studies on the corpus."""

    words: int = 4096
    """Tokens of the vocabulary, learned from the training text."""
    network: Mapping[str, int] = field(default_factory=lambda: dict(dim=128, depth=4, heads=4))
    batch: int = 16
    test: int = 140
    """Number of test documents of each source, the first that are held out."""
    search: int = 240
    """Number of held-out documents of each source in which those for the search end."""
    draws: int = DRAWS
    windows: int = 128
    """Windows of a validation in training."""

    def corpus(self, work: Path) -> Corpus:
        """Return all sources for training, the search's for validation, with the tokens learned
        from the first.
        """
        text = work / "text"
        files, held_out = str(text / "train.jsonl"), str(text / "search.jsonl")
        return local(files=files, held_out=held_out, tokenizer=f"train:{self.words}")

    def recipe(self, work: Path, name: str, model: Model, millions: float, seed: int) -> Recipe:
        """Return a recipe of so many million tokens in steps of 16 x 128, on one CPU core."""
        steps = round(millions * 1e6 / self.batch / LENGTH / 10) * 10 or 10
        plain = name.replace(", ", "-").replace(" ", "_")
        return Recipe(
            data=Data(corpus=self.corpus(work), folder=work / "data", length=LENGTH),
            process=model.process,
            model=dict(kind="dit", **self.network, pad_to=1),
            start="text",
            loss=Loss(**({"weighting": "clip:2"} | model.loss)),
            optimizer=Optimizer(
                lr=3e-3, warmup=50, weight_decay=0.1, muon=True, ema=1 - 10 / steps
            ),
            # compiled blocks make the same sums, rounded differently, in less time after half a
            # minute at the start
            hardware=Hardware(threads=1, compile=millions > COMPILED),
            output=Output(
                folder=work / "runs" / f"{plain}-{millions:g}M-{seed}",
                validate_every=max(steps // 10, 1),
                validate_sequences=self.windows,
                validate_times="optimal",
                sample_every=steps,
                samples=1,
                save_every=max(steps // 20, 50),
                keep=1,
                tensorboard=False,
            ),
            batch=self.batch,
            steps=steps,
            seed=seed,
        )

    def prepare(self, work: Path) -> None:
        """Prepare the training tokens, the text of the search, and the test text of each source in
        the same tokens.
        """
        text, search = work / "text", []
        for source in SOURCES:
            documents = (
                (text / f"held_out_{source}.jsonl")
                .read_text(encoding="utf-8")
                .splitlines(keepends=True)
            )
            (text / f"test_{source}.jsonl").write_text(
                "".join(documents[: self.test]), encoding="utf-8"
            )
            search += documents[self.test : self.search]
        (text / "search.jsonl").write_text("".join(search), encoding="utf-8")
        prepare(self.corpus(work), work / "data")
        for source in SOURCES:
            test = local(
                files=str(text / "search.jsonl"),
                held_out=str(text / f"test_{source}.jsonl"),
                tokenizer=str(work / "data" / "tokenizer.json"),
            )
            prepare(test, work / "test" / source)

    def tested(self, work: Path, folder: Path) -> dict[str, list[Terms]]:
        """Return the replicates of the bound of each source's test text under the model in a run's
        folder.
        """
        texts = [work / "test" / source for source in SOURCES]
        return dict(zip(SOURCES, measured(folder, texts, self.draws), strict=True))


TINY = Setting(
    words=300, network=dict(dim=16, depth=1, heads=1), batch=4, test=2, search=3, draws=2, windows=8
)
"""A setting at which a run of ten steps takes seconds."""


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


def measured(folder: Path, texts: list[Path], draws: int = DRAWS) -> list[list[Terms]]:
    """Return the replicates of the bound of each text under the model in a run's folder."""
    world = alone()
    saved = open_saved(folder, world.device)
    options = Options(run=str(folder), replicates=draws, scorer="none", times="optimal")
    density = drawn_from(saved, options)
    return [bounds(saved, open_prepared(text), options, world, density) for text in texts]


def together(terms: Mapping[str, list[Terms]]) -> Terms:
    """Join all sources as one text, the mean of the replicates."""
    return Terms.average([joined(many) for many in zip(*terms.values(), strict=True)])


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
                process=name, millions=millions, seed=seed, loss=given.loss.about(padded=True)
            )
            run |= measure(given) | {"curve": curve(given.output.folder), "provenance": about}
        else:
            continue
        found.append(run | {difference: less(run, masks.setdefault((millions, seed), run))})
        print(name, millions, seed, run["all_sources"], flush=True)
    return found


def joined(parts: tuple[Terms, ...]) -> Terms:
    """Join the sequences of all sources as one corpus."""
    count, moved = 0, []
    for part in parts:
        moved.append(replace(part, index=part.index + count))
        count += int(part.index.max()) + 1
    return Terms.join(moved)


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
