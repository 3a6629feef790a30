"""Quality of samplers and hierarchies, against variety and against network calls.

    python -m benchmarks.frontier train WORK                     # the quickstart's two models and one of three levels
    python -m benchmarks.frontier draw WORK --part 0 --of 2      # every cell; again to go on after a kill
    python -m benchmarks.frontier judge WORK --scorer SCORER     # a causal language model, folder or name
    python -m benchmarks.frontier report WORK --out benchmarks/results/frontier.json
    python -m benchmarks.frontier page WORK --out benchmarks/results/frontier.json --docs docs
    python -m benchmarks.frontier --smoke FOLDER                 # all of it, in seconds, with a random judge

The protocol and what was expected stand in docs/frontier.md, written before the runs. A cell is a model, a sampler, a
number of steps and a temperature; its texts have the same noise in every cell of a seed, as far as cells draw alike.
"""

import json
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

import ddlib as dd
from benchmarks import frontier_page
from benchmarks.frontier_page import CALLS, FRONTIER, MODELS, Cell
from benchmarks.made import SCORER, Study
from benchmarks.measuring import machine
from ddlib import parts
from ddlib.hierarchies import save_clusters
from ddlib.samplers import Sampler
from recipes.comparison.training import ALONE, Config, Data, evaluate, train
from recipes.console import make_console
from recipes.embeddings import embeddings
from recipes.embeddings.grouping import given_clusters
from recipes.engine.run import Run
from recipes.evaluation.frontier import quality
from recipes.generation.calls import network_calls
from recipes.metrics import scoring
from recipes.quickstart import SMOKE, make_clusters, read_data, word_vectors

Values = dict[str, Any]
"""A part as recipes name it."""


def tree(config: Config, data: Data, above: int) -> list[Tensor]:
    """Return the quickstart's clusters of words, and clusters of these by the mean vector of their words.

    Writes both into the folder of the run, where ``processes`` finds them.
    """
    parents, _ = make_clusters(config, data, make_console())
    vectors = word_vectors(config, data)
    size = int(parents.max()) + 1
    sums = torch.zeros(size, vectors.shape[1]).index_add(0, parents, vectors)
    means = sums / parents.bincount(minlength=size)[:, None]
    levels = [parents, embeddings.cluster(means, above, seed=config.seed)]
    for depth, path in enumerate(paths(config), start=1):
        save_clusters(path, given_clusters(vectors, levels[:depth], data.prepared.fingerprint))
    return levels


def paths(config: Config) -> list[str]:
    """Return the files of the clusters: of words alone, and with clusters of these."""
    return [str(config.out / f"levels-{depth}") for depth in (1, 2)]


def processes(config: Config) -> dict[str, Values]:
    """Return the processes that are compared, as recipes name them."""
    trees = ({"kind": "hdlm_levels", "clusters": path} for path in paths(config))
    return dict(zip(MODELS, ({"kind": "mdlm"}, *trees), strict=True))


def kept(config: Config, name: str, process: Values, data: Data) -> dict[str, float]:
    """Train a model as the quickstart does and keep its weights; return its validation bound in nats per token."""
    trained = train(config, {name: process}, data, make_console())[name]
    found = evaluate(config, {name: trained}, data)[0][name].per_token
    torch.save(trained.model.state_dict(), config.out / f"{name}.pt")
    return {"value": found.value, "error": found.standard_error}


def opened(config: Config, name: str, process: Values, data: Data) -> Run:
    """Return the run of a model with the weights that ``kept`` wrote."""
    run = Run.prepare(replace(config.recipe(process), start="random"), ALONE, data.prepared)
    run.objective.model.load_state_dict(torch.load(config.out / f"{name}.pt"))
    run.objective.eval()
    return run


def drawn(
    path: Path, config: Config, run: Run, data: Data, count: int, told: dict[str, Any],
    sampler: Sampler, steps: int, temperature: float = 1.0,
) -> None:  # fmt: skip
    """Draw the texts of a cell by the model of a run, unless they are there."""
    if path.exists():
        return
    network = run.objective.model
    with network_calls(network) as made:
        words = dd.sample(
            run.process, network, (count, config.window), sampler, steps,
            temperature=temperature, generator=dd.KeyedGenerator(config.seed, 0, torch.arange(count)),
        )  # fmt: skip
    texts = [data.prepared.tokenizer.decode(row) for row in words.tolist()]
    calls = made.sequences / count
    result = told | {"seed": config.seed, "calls": calls, "words": words.tolist(), "texts": texts}
    path.write_text(json.dumps(result), encoding="utf-8")
    print(config.seed, path.stem, f"{calls:.1f} calls", flush=True)


def judged(paths: Iterable[Path], name: str) -> None:
    """Score the texts of these files that are not scored yet, by a causal language model."""
    scorer = scoring.load_scorer(name)
    for path in paths:
        told = json.loads(path.read_text(encoding="utf-8"))
        if "scores" in told:
            continue
        found = scoring.score(scorer, told["texts"])
        told["scores"] = {"nats": found.nats.tolist(), "tokens": found.tokens.tolist()}
        told["judge"] = {"name": Path(name).name, "revision": scorer.revision}
        path.write_text(json.dumps(told), encoding="utf-8")
        print(path.name, f"{found.nats.sum() / found.tokens.sum():.3f} nats", flush=True)


def summary(told: dict[str, Any]) -> dict[str, Any]:
    """Return quality, variety and calls of a cell."""
    scores = scoring.Scores(torch.tensor(told["scores"]["nats"]), torch.tensor(told["scores"]["tokens"]), 0)
    about = {key: told[key] for key in ("cell", "calls") if key in told}
    return {**about, "seed": told["seed"], **quality(told["words"], scores)}


@dataclass(frozen=True)
class SpeechStudy(Study):
    """A study of samples of the quickstart's models."""

    flags = SCORER
    config: Config = field(default_factory=Config)
    seeds: tuple[int, ...] = (0, 1)
    texts: int = 128
    """Number of samples of each cell."""
    above: int = 8
    """Number of clusters of clusters."""

    @classmethod
    def tiny(cls) -> Self:
        """Return the quickstart's smallest models, one seed and two texts."""
        return cls(SMOKE, (0,), 2, 4)

    def at(self, work: Path, seed: int) -> tuple[Config, Path]:
        """Return the configuration of a seed, and the folder of its texts; make both folders."""
        folder = work / str(seed)
        config = replace(self.config, seed=seed, out=folder / "models")
        config.out.mkdir(parents=True, exist_ok=True)
        return config, folder

    def judge(self, options: Namespace) -> None:
        """Score every cell that is drawn and not judged, and the held-out text."""
        for seed in self.seeds:
            config, folder = self.at(options.work, seed)
            if not (folder / "held-out.json").exists():
                data = read_data(config, make_console())
                tokens = data.validation.tokens
                windows = tokens[:: len(tokens) // self.texts][: self.texts].tolist()
                texts = [data.prepared.tokenizer.decode(row) for row in windows]
                content = json.dumps({"seed": seed, "words": windows, "texts": texts})
                (folder / "held-out.json").write_text(content, encoding="utf-8")
        judged(sorted(options.work.glob("*/*.json")), options.scorer)

    def report(self, options: Namespace) -> None:
        """Write all results into one file."""
        work = options.work
        told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*/*.json"))]
        bounds = {str(seed): torch.load(work / str(seed) / "told.pt")["bounds"] for seed in self.seeds}
        found = {
            "machine": machine(), "command": f"python -m benchmarks.{self.results.name}", "texts": self.texts,
            "judge": told[0]["judge"], "bounds": bounds,
            "held-out": [summary(one) for one in told if "cell" not in one],
            "cells": [summary(one) for one in told if "cell" in one],
        }  # fmt: skip
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Frontier(SpeechStudy):
    """Models, samplers, numbers of steps and temperatures."""

    results = frontier_page.PAGE
    commands = ("train", "draw", "judge", "report", "page")
    cells: tuple[Cell, ...] = tuple(sorted({*FRONTIER, *CALLS}))

    @classmethod
    def tiny(cls) -> Self:
        """Return cells of few steps."""
        full = super().tiny()
        return replace(full, cells=tuple(cell for cell in full.cells if cell.steps <= 16))

    def train(self, options: Namespace) -> None:
        """Train all models of all seeds, and keep weights, clusters and bounds."""
        for seed in self.seeds:
            config, folder = self.at(options.work, seed)
            data = read_data(config, make_console())
            parents = tree(config, data, self.above)
            bounds = {name: kept(config, name, process, data) for name, process in processes(config).items()}
            torch.save({"parents": parents, "bounds": bounds}, folder / "told.pt")

    def draw(self, options: Namespace) -> None:
        """Draw every cell of every seed that is not there yet."""
        for seed in self.seeds:
            config, folder = self.at(options.work, seed)
            data = read_data(config, make_console())
            runs = {name: opened(config, name, process, data) for name, process in processes(config).items()}
            for cell in self.cells[options.part :: options.of]:
                path, sampler = folder / f"{cell.name}.json", parts.build("samplers", cell.sampler)
                told = {"cell": cell._asdict()}
                run = runs[cell.model]
                drawn(path, config, run, data, self.texts, told, sampler, cell.steps, cell.temperature)


STUDY = Frontier()

if __name__ == "__main__":
    STUDY.main(__doc__)
