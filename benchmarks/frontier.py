"""Quality of samplers and hierarchies, against variety and against network calls.

    python -m benchmarks.frontier train WORK                     # the quickstart's two models and one of three levels
    python -m benchmarks.frontier draw WORK --part 0 --of 2      # every cell; again to go on after a kill
    python -m benchmarks.frontier judge WORK SCORER              # a causal language model, folder or name
    python -m benchmarks.frontier report WORK --out benchmarks/results/frontier.json

The protocol and what was expected stand in docs/frontier.md, written before the runs. A cell is a model, a sampler, a
number of steps and a temperature; its texts have the same noise in every cell of a seed, as far as cells draw alike.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ddlib as dd
from benchmarks.measuring import machine
from ddlib import parts
from ddlib.hierarchies import save_clusters
from ddlib.samplers import Sampler
from recipes.comparison.training import ALONE, Config, Data, evaluate, train
from recipes.console import make_console
from recipes.embeddings import embeddings
from recipes.embeddings.grouping import given_clusters
from recipes.engine.run import Run
from recipes.metrics import scoring
from recipes.quickstart import make_clusters, read_data, word_vectors

Values = dict[str, Any]
"""A part as recipes name it."""
CONFIG, SEEDS, TEXTS, ABOVE = Config(), (0, 1), 128, 8
MODELS = ("masks", "two levels", "three levels")


class Cell(NamedTuple):
    """A model, and the sampler that draws its texts."""

    model: str
    sampler: str
    steps: int
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """Name of its file."""
        return "-".join(map(str, self)).replace(" ", "_").replace(":", "_").replace("=", "_")


FRONTIER = [Cell(m, "ancestral", n, heat) for m in MODELS for n in (16, 64) for heat in (1.0, 0.85, 0.7)]
"""Quality against variety."""
FEW = (8, 16, 32, 64)
CALLS = [
    *(Cell(m, s, n) for m in MODELS for s in ("ancestral", "first_hitting", "confidence") for n in FEW),
    *(Cell(m, f"remask:eta={eta}", n) for m in MODELS for eta, n in ((0.05, 32), (0.05, 64), (0.05, 128))),
    *(Cell(m, f"entropy_bounded:gamma={gamma}", 192) for m in MODELS for gamma in (0.1, 1.0, 4.0, 16.0)),
]
"""Quality against network calls."""
CELLS = sorted({*FRONTIER, *CALLS})


def tree(config: Config, data: Data) -> list[Tensor]:
    """Return the quickstart's clusters of words, and clusters of these by the mean vector of their words.

    Writes both into the folder of the run, where ``processes`` finds them.
    """
    parents, _ = make_clusters(config, data, make_console())
    vectors = word_vectors(config, data)
    size = int(parents.max()) + 1
    sums = torch.zeros(size, vectors.shape[1]).index_add(0, parents, vectors)
    means = sums / parents.bincount(minlength=size)[:, None]
    levels = [parents, embeddings.cluster(means, ABOVE, seed=config.seed)]
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


def at(work: Path, seed: int) -> tuple[Config, Path]:
    """Return the configuration of a seed, and the folder of its texts; make both folders."""
    folder = work / str(seed)
    config = replace(CONFIG, seed=seed, out=folder / "models")
    config.out.mkdir(parents=True, exist_ok=True)
    return config, folder


def kept(config: Config, name: str, process: Values, data: Data) -> dict[str, float]:
    """Train a model as the quickstart does and keep its weights; return its validation bound in nats per token."""
    trained = train(config, name, process, data, make_console())
    found = evaluate(config, {name: trained}, data)[0][name].per_token
    torch.save(trained.model.state_dict(), config.out / f"{name}.pt")
    return {"value": found.value, "error": found.standard_error}


def opened(config: Config, name: str, process: Values, data: Data) -> Run:
    """Return the run of a model with the weights that ``kept`` wrote."""
    run = Run.prepare(replace(config.recipe(process), start="random"), ALONE, data.prepared)
    run.objective.model.load_state_dict(torch.load(config.out / f"{name}.pt"))
    run.objective.eval()
    return run


def fit(work: Path) -> None:
    """Train all models of all seeds, and keep weights, clusters and bounds."""
    for seed in SEEDS:
        config, folder = at(work, seed)
        data = read_data(config, make_console())
        parents = tree(config, data)
        bounds = {name: kept(config, name, process, data) for name, process in processes(config).items()}
        torch.save({"parents": parents, "bounds": bounds}, folder / "told.pt")


class Counted(nn.Module):
    """A network that counts the sequences it is evaluated on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.texts = model, 0

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the network's output."""
        self.texts += len(z)
        answer: Tensor = self.model(z, t)
        return answer


def drawn(
    path: Path, config: Config, run: Run, data: Data, told: dict[str, Any],
    sampler: Sampler, steps: int, temperature: float = 1.0,
) -> None:  # fmt: skip
    """Draw the texts of a cell by the model of a run, unless they are there."""
    if path.exists():
        return
    network = Counted(run.objective.model)
    words = dd.sample(
        run.process, network, (TEXTS, config.window), sampler, steps,
        temperature=temperature, generator=dd.KeyedGenerator(config.seed, 0, torch.arange(TEXTS)),
    )  # fmt: skip
    texts = [data.prepared.tokenizer.decode(row) for row in words.tolist()]
    calls = network.texts / TEXTS
    result = told | {"seed": config.seed, "calls": calls, "words": words.tolist(), "texts": texts}
    path.write_text(json.dumps(result), encoding="utf-8")
    print(config.seed, path.stem, f"{calls:.1f} calls", flush=True)


def draw(work: Path, part: int, of: int) -> None:
    """Draw every cell of every seed that is not there yet."""
    for seed in SEEDS:
        config, folder = at(work, seed)
        data = read_data(config, make_console())
        runs = {name: opened(config, name, process, data) for name, process in processes(config).items()}
        for cell in CELLS[part::of]:
            path, sampler = folder / f"{cell.name}.json", parts.build("samplers", cell.sampler)
            told = {"cell": cell._asdict()}
            drawn(path, config, runs[cell.model], data, told, sampler, cell.steps, cell.temperature)


def judge(work: Path, name: str) -> None:
    """Score every cell that is drawn and not judged, and the held-out text."""
    for seed in SEEDS:
        real = work / str(seed) / "held-out.json"
        if not real.exists():
            data = read_data(at(work, seed)[0], make_console())
            windows = data.validation.tokens[:: len(data.validation.tokens) // TEXTS][:TEXTS].tolist()
            texts = [data.prepared.tokenizer.decode(row) for row in windows]
            real.write_text(json.dumps({"seed": seed, "words": windows, "texts": texts}), encoding="utf-8")
    judged(sorted(work.glob("*/*.json")), name)


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
    found = scoring.generative(scores, told["words"])
    return {
        **{key: told[key] for key in ("cell", "calls") if key in told}, "seed": told["seed"],
        "nats": {"value": found.per_token.value, "error": found.per_token.standard_error},
        "entropy": {"value": found.entropy.value, "error": found.entropy.standard_error},
    }  # fmt: skip


def report(work: Path, out: Path, command: str = "python -m benchmarks.frontier") -> None:
    """Write all results into one file."""
    told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*/*.json"))]
    bounds = {str(seed): torch.load(work / str(seed) / "told.pt")["bounds"] for seed in SEEDS}
    found = {
        "machine": machine(), "command": command, "texts": TEXTS, "judge": told[0]["judge"],
        "bounds": bounds, "held-out": [summary(one) for one in told if "cell" not in one],
        "cells": [summary(one) for one in told if "cell" in one],
    }  # fmt: skip
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "draw", "judge", "report"):
        one = commands.add_parser(name)
        one.add_argument("work", type=Path)
        if name == "draw":
            one.add_argument("--part", type=int, default=0)
            one.add_argument("--of", type=int, default=1)
        if name == "judge":
            one.add_argument("scorer")
        if name == "report":
            one.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "train":
        fit(options.work)
    elif options.command == "draw":
        draw(options.work, options.part, options.of)
    elif options.command == "judge":
        judge(options.work, options.scorer)
    else:
        report(options.work, options.out)


if __name__ == "__main__":
    main()
