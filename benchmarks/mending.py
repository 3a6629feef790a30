"""Words of a tree mended in place: quality and variety of the quickstart's texts before and after, docs/mending.md.

    python -m benchmarks.mending draw WORK
    python -m benchmarks.frontier judge WORK SCORER
    python -m benchmarks.mending report WORK --out benchmarks/results/mending.json

A hierarchy with wrong words, ``dd.processes.Noisy``, is trained as the quickstart trains its models, and its texts are
drawn with and without correctors, from the same noise as far as they draw alike.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

import ddlib as dd
from benchmarks.frontier import CONFIG, SEEDS, TEXTS, Counted, summary, tree
from benchmarks.measuring import machine
from ddlib.samplers import Ancestral, Corrected, Gibbs, SelfCorrection
from recipes.comparison.training import evaluate, make_model, train
from recipes.console import make_console
from recipes.quickstart import read_data

SHARE, STEPS = 0.2, 32
"""Of uniform noise among words; of the sampler."""
WAYS = {
    "as drawn": Ancestral(),
    "self-correction": Corrected(Ancestral(), SelfCorrection()),
    "Gibbs": Corrected(Ancestral(), Gibbs(16), steps=4, interval=(0.0, 0.3)),
}
"""How texts are drawn, and what mends them."""


def fit_and_draw(work: Path) -> None:
    """Trains the model of every seed and draws its texts every way; what is there already stays."""
    console = make_console()
    for seed in SEEDS:
        config, folder = replace(CONFIG, seed=seed), work / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        data = read_data(config, console)
        if not (folder / "told.pt").exists():
            parents = tree(config, data)[:1]
            process = dd.presets.hdlm_noisy(parents[0], SHARE)
            trained = train(config, "noisy", process, data, console)
            value = evaluate(config, {"masked": trained, "hierarchical": trained}, data)[0]["masked"].per_token
            torch.save(trained.model.state_dict(), folder / "noisy.pt")
            bound = {"value": value.value, "error": value.standard_error}
            torch.save({"parents": parents, "bounds": {"noisy": bound}}, folder / "told.pt")
        process = dd.presets.hdlm_noisy(torch.load(folder / "told.pt")["parents"][0], SHARE)
        model = make_model(config, process, data)
        model.load_state_dict(torch.load(folder / "noisy.pt"))
        for way, sampler in WAYS.items():
            path = folder / f"{way.replace(' ', '_')}.json"
            if path.exists():
                continue
            network = Counted(model.eval())
            words = dd.sample(
                process, network, (TEXTS, config.window), sampler, STEPS,
                generator=dd.KeyedGenerator(seed, 0, torch.arange(TEXTS)),
            )  # fmt: skip
            told = {"cell": {"way": way, "sampler": repr(sampler)}, "seed": seed, "calls": network.texts / TEXTS}
            texts = [data.tokenizer.decode(row) for row in words.tolist()]
            path.write_text(json.dumps(told | {"words": words.tolist(), "texts": texts}), encoding="utf-8")
            print(seed, way, f"{network.texts / TEXTS:.1f} calls", flush=True)


def report(work: Path, out: Path) -> None:
    """Everything in one file."""
    told = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*/*.json"))]
    found = {
        "machine": machine(), "command": "python -m benchmarks.mending", "texts": TEXTS, "judge": told[0]["judge"],
        "bounds": {str(seed): torch.load(work / str(seed) / "told.pt")["bounds"] for seed in SEEDS},
        "held-out": [summary(one) for one in told if "cell" not in one],
        "cells": [summary(one) for one in told if "cell" in one],
    }  # fmt: skip
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("draw", "report"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "draw":
        fit_and_draw(options.work)
    else:
        report(options.work, options.out)


if __name__ == "__main__":
    main()
