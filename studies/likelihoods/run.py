"""Run of the study of likelihoods, and its tables in docs/studies/likelihoods.md.

    python -m studies.likelihoods.run              # what results.json lacks, then the tables
    python -m studies.likelihoods.run --tiny       # a few sequences, in seconds
    python -m studies.likelihoods.run --pages      # the tables alone
    python -m studies.likelihoods.run --trained WORK   # statistics of the trained networks in WORK

A cell that is in the result file is not measured again. The protocol is protocol.md.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ddlib as dd
from recipes.engine.provenance import provenance
from recipes.estimators import (
    ESTIMATORS,
    Estimator,
    Model,
    kraft_sums,
    reason_against,
    small_model,
    verdict,
)
from recipes.evaluation.report import write
from studies.likelihoods import trained
from studies.likelihoods.pages import PAGE, PROCESSES, page_of
from studies.likelihoods.source import Chain
from studies.likelihoods.statistics import covered

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
LENGTH = 16
ACCURACY = 0.01
"""Standard error in units of the entropy at which network calls are compared."""
CHUNK = 1600


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    cases: tuple[tuple[int, int, int], ...] = ((12, 4, 200), (256, 16, 20))
    """(V, clusters, repetitions of estimators along orders)."""
    noise: int = 200
    """Repetitions of estimators over noise, whose draws take one or two calls."""
    sequences: int = 32


TINY = Sizes(cases=((12, 4, 3),), noise=3, sequences=4)


def process_of(kind: str, size: int, clusters: int) -> dd.processes.ForwardProcess:
    """Return a process of the study."""
    parents = torch.arange(size) * clusters // size
    if kind == "masks":
        return dd.presets.mdlm(size)
    if kind == "GIDD":
        return dd.presets.gidd(size, 0.2)
    return dd.presets.hdlm(parents, xi=0.8 if "xi" in kind else 1.0)


def measure(
    estimator: Estimator, model: Model, chain: Chain, repetitions: int, sequences: int
) -> dict[str, Any]:
    """Return bias, deviation, calls and coverage with the exact network, in nats per token."""
    start = time.perf_counter()
    rows = repetitions * sequences
    x = chain.sample(rows, seed=1)
    parts = []
    most = 0
    for index in torch.arange(rows).split(CHUNK):
        batch = x[index]
        free = torch.ones_like(batch, dtype=torch.bool)
        draw = estimator.draw(model, batch, free, dd.KeyedGenerator(0, 0, index))
        parts.append(draw.nats)
        most = max(most, draw.calls)
    nats = torch.cat(parts) / chain.length
    difference = nats - chain.nats(x) / chain.length
    deviation = float(nats.std())
    return {
        "mean": float(nats.mean()),
        "bias": float(difference.mean()),
        "bias_error": float(difference.std()) / math.sqrt(rows),
        "deviation": deviation,
        "calls_of_a_draw": most,
        "calls": most * (deviation / (ACCURACY * chain.entropy)) ** 2,
        "covers_entropy": covered(nats.view(repetitions, -1), chain.entropy),
        "covers_mean": covered(nats.view(repetitions, -1), float(nats.mean())),
        "sequences": rows,
        "seconds": time.perf_counter() - start,
    }


def judged(estimator: Estimator, process: dd.processes.ForwardProcess) -> dict[str, Any]:
    """Return the verdict of Kraft's test on a small copy of the process, with its extreme sums."""
    small, length = small_model(Model(process, lambda z, t: torch.zeros(*z.shape, 1)))
    sums = kraft_sums(estimator, small, length, seeds=2)
    return {"verdict": verdict(sums), "smallest": min(sums), "largest": max(sums)}


def cells(sizes: Sizes) -> Iterator[tuple[str, Estimator, Model, Chain, int]]:
    """Yield name, estimator, model with the exact network, source and repetitions of each cell."""
    for size, clusters, repetitions in sizes.cases:
        chain = Chain(size, LENGTH)
        for kind in PROCESSES:
            process = process_of(kind, size, clusters)
            model = Model(process, chain.network(process))
            for estimator in ESTIMATORS:
                if not reason_against(estimator, model, LENGTH):
                    count = sizes.noise if estimator.random else repetitions
                    yield f"{size} | {kind} | {estimator.name}", estimator, model, chain, count


def run(sizes: Sizes, out: Path) -> None:
    """Measure the cells that the result file lacks, and write it after each."""
    result: dict[str, Any] = {"starts": [], "entropy": {}, "verdicts": {}, "cells": {}}
    if out.exists():
        result = json.loads(out.read_text(encoding="utf-8"))
    result["starts"].append(provenance() | {"threads": torch.get_num_threads()})
    for name, estimator, model, chain, count in cells(sizes):
        result["entropy"][str(chain.size)] = chain.entropy
        judgement = name.partition(" | ")[2]
        if judgement not in result["verdicts"]:
            result["verdicts"][judgement] = judged(estimator, model.process)
        if name not in result["cells"]:
            result["cells"][name] = measure(estimator, model, chain, count, sizes.sequences)
            found = result["cells"][name]
            print(
                f"{name}: {found['bias']:+.4f} ± {found['bias_error']:.4f}, "
                f"{found['seconds']:.0f} s",
                flush=True,
            )
            write(out, result)


def main(words: Sequence[str] | None = None) -> None:
    """Run the study, and write its tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page with the markers of the tables"
    )
    parser.add_argument("--tiny", action="store_true", help="a few sequences")
    parser.add_argument("--pages", action="store_true", help="write the tables alone")
    parser.add_argument(
        "--trained", type=Path, metavar="WORK", help="folder of the trained networks"
    )
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.trained is not None:
        collect(options.trained, trained.TINY if options.tiny else trained.Sizes(), options.out)
    elif not options.pages:
        run(TINY if options.tiny else Sizes(), options.out)
    result = json.loads(options.out.read_text(encoding="utf-8"))
    options.page.write_text(page_of(options.page, result), encoding="utf-8")


def collect(work: Path, sizes: trained.Sizes, out: Path) -> None:
    """Write the statistics of trained networks into the result file."""
    result = json.loads(out.read_text(encoding="utf-8"))
    write(out, result | {"trained": trained.collect(work, sizes)})


if __name__ == "__main__":
    main()
