"""The first result table: the papers' processes at one budget on the public-domain corpus.

    python -m benchmarks.public_domain CORPUS TOKENIZER WORK/text
    python -m benchmarks.first_results prepare WORK
    python -m benchmarks.first_results train WORK [--part 0 --of 2]    # one after another; again to go on after a kill
    python -m benchmarks.first_results evaluate WORK --out benchmarks/results/first_results.json

Same network, data order, times and noise keys for all; see ``recipe``. Every run is measured on the held-out text of
each source, by the average of its weights, with the same windows, times and noise for all runs.
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.public_domain import SOURCES
from recipes.config import Data, Hardware, Loss, Optimizer, Output, Recipe, recipe_yaml
from recipes.data import Corpus, local, open_prepared, prepare
from recipes.engine import train
from recipes.engine.parallel import World
from recipes.engine.provenance import provenance
from recipes.evaluate import Options, bounds, estimates
from recipes.measure import Terms
from recipes.saved import open_saved

PROCESSES = {
    "MDLM": dict(kind="mdlm"),
    "GIDD(0.1)": dict(kind="gidd", p_uniform=0.1),
    "HDLM-1": dict(kind="hdlm", clusters=1),
    "HDLM-8": dict(kind="hdlm", clusters=8),
    "HDLM-64": dict(kind="hdlm", clusters=64),
    "HDLM-8, xi = 0.9": dict(kind="hdlm", clusters=8, xi=0.9),
    "HDLM-64, xi = 0.9": dict(kind="hdlm", clusters=64, xi=0.9),
    "HDLM-64-8": dict(kind="hdlm_levels", clusters=[64, 8]),
}
SEEDS = (0, 1)
SEQUENCES, REPLICATES = 200, 4
"""Held-out sequences of each source, and draws of times and noise for each."""


def corpus(work: Path) -> Corpus:
    """All sources to train on, all held-out text to validate on, 4,096 words learned from the first."""
    text = work / "text"
    return local(files=str(text / "train.jsonl"), held_out=str(text / "held_out.jsonl"), tokenizer="train:4096")


def recipe(work: Path, name: str, seed: int) -> Recipe:
    """1,000 steps of 16 x 128 tokens, on one core of a CPU."""
    folder = work / "runs" / f"{name.replace(', ', '-').replace(' = ', '-')}-{seed}"
    return Recipe(
        data=Data(corpus=corpus(work), folder=work / "data", length=128),
        process=PROCESSES[name],
        model=dict(kind="dit", dim=128, depth=4, heads=4, pad_to=1),
        start="text",
        loss=Loss(weighting="clip:2"),
        optimizer=Optimizer(lr=3e-3, warmup=50, weight_decay=0.1, muon=True, ema=0.99),
        hardware=Hardware(threads=1),
        output=Output(folder=folder, validate_every=250, sample_every=1000, save_every=250, keep=1, tensorboard=False),
        batch=16,
        steps=1000,
        seed=seed,
    )


def runs(work: Path) -> Iterator[tuple[str, int, Recipe]]:
    """All runs, seed by seed."""
    for seed in SEEDS:
        for name in PROCESSES:
            yield name, seed, recipe(work, name, seed)


def prepare_all(work: Path) -> None:
    """The tokens to train on, and the held-out text of each source in the same tokens."""
    prepare(corpus(work), work / "data")
    for source in SOURCES:
        held_out = local(
            files=str(work / "text" / "held_out.jsonl"),
            held_out=str(work / "text" / f"held_out_{source}.jsonl"),
            tokenizer=str(work / "data" / "tokenizer.json"),
        )
        prepare(held_out, work / "held_out" / source)


def measured(work: Path, folder: Path) -> dict[str, list[Terms]]:
    """The replicates of every source's bound under the model in a run's folder."""
    saved, world = open_saved(folder), World(0, 1, torch.device("cpu"))
    options = Options(run=str(folder), sequences=SEQUENCES, replicates=REPLICATES, scorer="none")
    return {source: bounds(saved, open_prepared(work / "held_out" / source), options, world) for source in SOURCES}


def evaluate_all(work: Path) -> dict[str, Any]:
    """What the result file holds."""
    found, first = [], next(runs(work))[2]
    nats: dict[tuple[str, int], Terms] = {}
    for name, seed, given in runs(work):
        terms = measured(work, given.output.folder)
        nats[name, seed] = Terms.average([joined(list(many)) for many in zip(*terms.values(), strict=True)])
        by_source = {
            source: {
                key: asdict(value) for key, value in estimates(many, open_prepared(work / "held_out" / source)).items()
            }
            for source, many in terms.items()
        }
        paired = nats[name, seed].nats.sum(1) - nats["MDLM", seed].nats.sum(1)
        tokens = nats[name, seed].tokens.double()
        found.append(
            {
                "process": name,
                "seed": seed,
                "all_sources": asdict(nats[name, seed].per_token),
                "less_mdlm": asdict(type(nats[name, seed].per_token).ratio(paired, tokens, "nats/token")),
                "by_source": by_source,
                "curve": curve(given.output.folder),
            }
        )
        print(name, seed, nats[name, seed].per_token, flush=True)
    return {"provenance": provenance(), "cores": os.cpu_count(), "recipe": recipe_yaml(first), "runs": found}


def joined(parts: list[Terms]) -> Terms:
    """The sequences of all sources as one corpus."""
    count = 0
    for number, part in enumerate(parts):
        parts[number] = Terms(part.index + count, part.nats, part.tokens)
        count += int(part.index.max()) + 1
    return Terms.join(parts)


def curve(folder: Path) -> list[tuple[int, float, float]]:
    """Validation bounds on the way: step, nats per token, standard error."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r["nats_per_token"], r["standard_error"]) for r in records if r["kind"] == "bound"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prepare", "train", "evaluate"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--part", type=int, default=0, help="of the runs, beginning with 0")
    parser.add_argument("--of", type=int, default=1, help="how many processes share the runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "prepare":
        prepare_all(options.work)
    elif options.what == "train":
        for number, (_, _, given) in enumerate(runs(options.work)):
            if number % options.of == options.part:
                train(given)
    else:
        options.out.write_text(json.dumps(evaluate_all(options.work), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
