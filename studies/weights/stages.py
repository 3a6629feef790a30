"""Stages of the study of training weights: runs that the result file lacks."""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.data import open_prepared
from recipes.engine import train
from recipes.engine.provenance import provenance
from recipes.hdlm_tables import FORCED
from recipes.model_io import open_saved
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
    write_random_tree,
)
from studies.weights.measurement import Cell
from studies.weights.texts import check, prepare_unseen

KINDS = ("search", "compared", "cells")
"""Parts of the result file."""


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
        """Committed hashes of the texts from which nothing was chosen."""
        return json.loads(self.sizes.hashes.read_text(encoding="utf-8"))

    def result(self) -> dict[str, Any]:
        """Return the content of the result file."""
        if not self.out.exists():
            return {kind: {} for kind in KINDS}
        return json.loads(self.out.read_text(encoding="utf-8"))

    def prepare(self) -> None:
        """Prepare the corpus, the random tree and the texts from which nothing was chosen."""
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
            for rate in (*self.sizes.rates, *self.sizes.further.get(process, ())):
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
            if known is None or len(known["judged"]) < 1 + ("scores" in drawn):
                summary = measurement.summarize(drawn, saved, data)
                recipe = self._sampled(cell.network, cell.seed)
                self._write("cells", cell.name, recipe, summary)

    def judge(self, name: str) -> None:
        """Score drawn samples by a causal language model, a folder or a name."""
        judged(sorted(self.drawn.glob("*.json")), name, self.sizes.rescored)
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
            "loss": recipe.objective().about(padded=True),
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
        written(self.out, result)
        print(f"{kind}: {shown}", flush=True)


STAGES = ("grid", "rates", "xi", "winners")
"""Stages of ``train``, in the order of a run: samples need networks that ``winners`` measures."""


def plain(name: str) -> str:
    """Return a name without characters that file names should not have."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
