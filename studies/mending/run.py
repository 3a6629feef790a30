"""In-place correction of a tree's tokens.

Quality and diversity of samples before and after, docs/studies/mending.md.

A hierarchy with wrong tokens, ``dd.processes.Noisy``, is trained as the quickstart trains its
models. Samples are drawn with and without correctors, from the same noise as far as possible.

A record of the code: it ran at commit 55768ce6, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

import ddlib as dd
from benchmarks.measuring import machine
from ddlib.hierarchies import save_clusters
from ddlib.samplers import Ancestral, Corrected, Gibbs, SelfCorrection
from recipes.comparison.training import ALONE, Config, Data, evaluate, train
from recipes.console import make_console
from recipes.embeddings.grouping import given_clusters
from recipes.engine.run import Run
from recipes.generation.calls import network_calls
from recipes.quickstart import SMOKE, make_clusters, read_data, word_vectors
from studies.mending.page import PAGE
from studies.study import SCORER, Study, judged, summary

MODEL, SHARE, STEPS = "noisy", 0.2, 32
"""Name; share of uniform noise among tokens; steps of the sampler."""
WAYS = {
    "as drawn": Ancestral(),
    "self-correction": Corrected(Ancestral(), SelfCorrection()),
    "Gibbs": Corrected(Ancestral(), Gibbs(16), steps=4, interval=(0.0, 0.3)),
}
"""Samplers, and their correctors."""
Values = dict[str, Any]
"""A part as recipes name it."""


def noisy(config: Config, data: Data) -> Values:
    """Write the quickstart's clusters of tokens into the folder of the run; return the process."""
    path = config.out / "levels-1"
    if not path.with_suffix(".json").exists():
        parents, _ = make_clusters(config, data, make_console())
        save_clusters(
            path, given_clusters(word_vectors(config, data), [parents], data.prepared.fingerprint)
        )
    return {"kind": "hdlm_noisy", "clusters": str(path), "p_uniform": SHARE}


def kept(config: Config, process: Values, data: Data) -> dict[str, float]:
    """Train the model as the quickstart does and keep its weights.

    Return its validation bound in nats per token.
    """
    trained = train(config, {MODEL: process}, data, make_console())[MODEL]
    found = evaluate(config, {MODEL: trained}, data)[0][MODEL].per_token
    torch.save(trained.model.state_dict(), config.out / f"{MODEL}.pt")
    return {"value": found.value, "error": found.standard_error}


def opened(config: Config, process: Values, data: Data) -> Run:
    """Return the run of the model with the weights that ``kept`` wrote."""
    run = Run.prepare(replace(config.recipe(process), start="random"), ALONE, data.prepared)
    run.network.model.load_state_dict(torch.load(config.out / f"{MODEL}.pt"))
    run.network.eval()
    return run


def drawn(path: Path, way: str, config: Config, run: Run, data: Data, count: int) -> None:
    """Draw the samples of a way by the model of a run, unless they are there."""
    if path.exists():
        return
    network, sampler = run.network.model, WAYS[way]
    generator = dd.KeyedGenerator(config.seed, 0, torch.arange(count))
    with network_calls(network) as made:
        tokens = dd.sample(
            run.process, network, (count, config.window), sampler, STEPS, generator=generator
        )
    result = {
        "cell": {"model": MODEL, "way": way, "sampler": repr(sampler), "steps": STEPS},
        "seed": config.seed,
        "calls": made.sequences / count,
        "words": tokens.tolist(),
        "texts": [data.prepared.tokenizer.decode(row) for row in tokens.tolist()],
    }
    path.write_text(json.dumps(result), encoding="utf-8")
    print(config.seed, path.stem, f"{result['calls']:.1f} calls", flush=True)


@dataclass(frozen=True)
class Mending(Study):
    """Samples of one model with and without correctors."""

    results = PAGE
    commands = ("draw", "judge", "report", "page")
    flags = SCORER
    config: Config = field(default_factory=Config)
    seeds: tuple[int, ...] = (0, 1)
    texts: int = 128
    """Number of samples of each cell."""

    @classmethod
    def tiny(cls) -> Self:
        """Return the quickstart's smallest model, one seed and two texts."""
        return cls(SMOKE, (0,), 2)

    def at(self, work: Path, seed: int) -> tuple[Config, Path]:
        """Return the configuration of a seed, and the folder of its texts; make both folders."""
        folder = work / str(seed)
        config = replace(self.config, seed=seed, out=folder / "models")
        config.out.mkdir(parents=True, exist_ok=True)
        return config, folder

    def draw(self, options: Namespace) -> None:
        """Train the model of every seed and draw its samples every way.

        Existing results are kept.
        """
        for seed in self.seeds:
            config, folder = self.at(options.work, seed)
            data, bounds = read_data(config, make_console()), folder / "bounds.pt"
            process = noisy(config, data)
            if not bounds.exists():
                torch.save({MODEL: kept(config, process, data)}, bounds)
            run = opened(config, process, data)
            for way in WAYS:
                drawn(folder / f"{way.replace(' ', '_')}.json", way, config, run, data, self.texts)

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
        told = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*/*.json"))
        ]
        found = {
            "machine": machine(),
            "command": "python -m studies.mending.run",
            "texts": self.texts,
            "judge": told[0]["judge"],
            "bounds": {
                str(seed): torch.load(work / str(seed) / "bounds.pt") for seed in self.seeds
            },
            "held-out": [summary(one) for one in told if "cell" not in one],
            "cells": [summary(one) for one in told if "cell" in one],
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


STUDY = Mending()

if __name__ == "__main__":
    STUDY.main(__doc__)
