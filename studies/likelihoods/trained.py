"""Second stage of the study of likelihoods: estimators on trained networks.

    python -m studies.likelihoods.trained train WORK     # prepares the text, trains all networks
    python -m studies.likelihoods.trained audit WORK  # evaluates what is trained and not evaluated
    python -m studies.likelihoods.trained --tiny FOLDER  # both, in seconds
    python -m studies.likelihoods.run --trained WORK     # results.json and the page

The same command continues after a kill. The protocol is protocol.md.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ddlib as dd
from recipes.audit import HeldOutBatch, Options, judge, measure, rows_of
from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.data import prepare, speeches, wrap
from recipes.engine import train
from recipes.engine.checkpoint import name_of
from recipes.engine.provenance import provenance
from recipes.estimators import ESTIMATORS, FIXED, AlongOrders, Estimator, reason_against
from recipes.estimators.orders import Permuted, along
from recipes.evaluation.report import write
from recipes.model_io import open_held_out, open_saved
from studies.likelihoods.statistics import covered

BATCH = 16
WHOLE: Mapping[str, dict[str, Any]] = {
    "masks": {"process": {"kind": "mdlm"}},
    "HDLM-64": {"process": {"kind": "hdlm", "clusters": 64}},
    "HDLM-64, xi = 0.9": {"process": {"kind": "hdlm", "clusters": 64, "xi": 0.9}},
    "GIDD": {"process": {"kind": "gidd", "p_uniform": 0.1}, "loss": {"weighting": "dynamic"}},
}
"""Networks over whole sequences; GIDD with the weights of its recipe."""
BLOCKS = (32, 8, 1)
"""Sizes of blocks; networks of blocks start at the weights of masks, whose block is the
sequence.
"""
BOUND = "NELBO, times of least variance"
"""Reference of a process without an exact chain."""
ORDERS: tuple[Estimator, ...] = tuple(
    AlongOrders(
        name=name,
        claim="exact",
        source="theory section 10",
        needs=("order",),
        reading=along(dd.samplers.InOrder(Permuted(number))),
    )
    for name, number in (("chain, right to left", 1), ("chain, a random order", 2))
)
"""Two of the orders of the estimators that read several."""
AUDITED = (
    *(one for one in ESTIMATORS if one.name == FIXED),
    *(one for one in ESTIMATORS if one.name != FIXED),
    *ORDERS,
)
"""All estimators, the reference first."""
REPETITIONS = 2000
SEQUENCES = 32
"""Draws of a repetition."""
ACCURACY = 0.01


@dataclass(frozen=True)
class Sizes:
    """Sizes of the stage."""

    length: int = 128

    words: int = 4096
    network: Mapping[str, int] = field(default_factory=lambda: {"dim": 128, "depth": 4, "heads": 4})
    steps: int = 977
    """Two million tokens."""
    block_steps: int = 244
    """Half a million tokens."""
    rows: int = 128
    """Held-out rows."""
    rows_along: int = 32
    """Those that estimators along orders read, other than the fixed order."""
    draws: int = 20
    most_draws: int = 200
    """Draws of a row under masks."""


TINY = Sizes(
    length=32,
    words=300,
    network={"dim": 16, "depth": 1, "heads": 1},
    steps=4,
    block_steps=2,
    rows=4,
    rows_along=2,
    draws=2,
    most_draws=3,
)


def recipes(work: Path, sizes: Sizes) -> dict[str, Recipe]:
    """Return the recipes by name, in the order of training."""
    base = Recipe(
        data=Data(folder=work / "data", length=sizes.length, wrap=True),
        process={"kind": "mdlm"},
        model={"kind": "dit", **sizes.network, "pad_to": 1},
        start="text",
        loss={"weighting": "clip:2"},
        hardware=Hardware(threads=1),
        output=Output(folder=work),
        batch=BATCH,
        steps=sizes.steps,
    )
    named = {name: replace(base, **values) for name, values in WHOLE.items()}
    for size in BLOCKS:
        named[f"blocks of {size}"] = replace(
            base,
            pace=f"blocks:size={size}",
            start=str(work / "runs" / "masks"),
            steps=sizes.block_steps,
        )
    return {
        name: replace(one, optimizer=_optimizer(one.steps), output=_output(work, name, one.steps))
        for name, one in named.items()
    }


def _plain(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


def _optimizer(steps: int) -> Optimizer:
    warmup = min(50, steps // 2)
    ema = max(0.0, 1 - 10 / steps)
    return Optimizer(lr=3e-3, warmup=warmup, weight_decay=0.1, muon=True, ema=ema)


def _output(work: Path, name: str, steps: int) -> Output:
    return Output(
        folder=work / "runs" / _plain(name),
        validate_every=max(1, steps // 5),
        validate_sequences=128,
        validate_times="optimal",
        sample_every=steps,
        samples=1,
        save_every=max(1, steps // 20),
        keep=1,
        tensorboard=False,
    )


def train_all(work: Path, sizes: Sizes) -> None:
    """Train the networks that are not finished, until a signal stops it."""
    prepare(speeches(sizes.words), work / "data")
    for recipe in recipes(work, sizes).values():
        if not train(recipe):
            return


def audit_path(work: Path, name: str) -> Path:
    """Return the path of a network's evaluations."""
    return work / "audit" / f"{_plain(name)}.json"


def audit_all(work: Path, sizes: Sizes) -> None:
    """Evaluate what the files of finished networks lack, up to the first that is not finished.

    In the order of training, but masks, which have the most draws, come last.
    """
    named = recipes(work, sizes)
    for name in sorted(named, key=lambda name: name == "masks"):
        recipe = named[name]
        if not (recipe.output.folder / "checkpoints" / name_of(recipe.steps)).is_dir():
            print(f"{name}: not trained yet", flush=True)
            return
        audit(name, recipe, audit_path(work, name), sizes)


def audit(name: str, recipe: Recipe, path: Path, sizes: Sizes) -> None:
    """Evaluate every estimator that supports the network.

    Write the nats of every row after each.
    """
    draws = sizes.most_draws if name == "masks" else sizes.draws
    options = Options(run=str(recipe.output.folder), sequences=sizes.rows, draws=draws)
    saved = open_saved(recipe.output.folder)
    rows = list(rows_of(saved, wrap(open_held_out(saved), sizes.length), sizes.length, options))
    reasons = {one.name: reason_against(one, rows[0].model, sizes.length) for one in AUDITED}
    refused = {key: reason for key, reason in reasons.items() if reason}
    result: dict[str, Any] = {
        "steps": recipe.steps,
        "sha256": saved.sha256,
        "starts": [],
        "cells": {},
    }
    if path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
    path.parent.mkdir(exist_ok=True)
    result["refused"] = refused
    result["starts"].append(provenance())
    for estimator in AUDITED:
        if estimator.name in result["cells"] or estimator.name in refused:
            continue
        start = time.perf_counter()
        fewer = isinstance(estimator, AlongOrders) and estimator.name != FIXED
        nats, calls = measure(estimator, first(rows, sizes.rows_along) if fewer else rows, options)
        result["cells"][estimator.name] = {
            "nats": [[round(value, 4) for value in draws] for draws in nats.tolist()],
            "calls_of_a_draw": calls // nats.shape[1],
            "seconds": time.perf_counter() - start,
            **judge(estimator, rows[0].model),
        }
        write(path, result)
        mean = float(nats.mean()) / sizes.length
        print(f"{name}, {estimator.name}: {mean:.4f}", flush=True)


def first(rows: Sequence[HeldOutBatch], count: int) -> list[HeldOutBatch]:
    """Return the first sequences of batches."""
    taken = []
    for batch in rows:
        size = min(count, len(batch.x))
        taken.append(
            HeldOutBatch(batch.model, batch.x[:size], batch.free[:size], batch.index[:size])
        )
        count -= size
        if count == 0:
            break
    return taken


def _without_place(start: dict[str, Any], work: Path) -> dict[str, Any]:
    """Return where and how an evaluation began, without the place of the folder."""
    command = ["WORK" if part == str(work) else part for part in start["command"]]
    return start | {"command": command}


def collect(work: Path, sizes: Sizes) -> dict[str, Any]:
    """Return the statistics of all evaluations so far, by network and estimator."""
    networks = {}
    for name in recipes(work, sizes):
        path = audit_path(work, name)
        if not path.exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        cells = result["cells"]
        reference = BOUND if FIXED in result["refused"] else FIXED
        if reference not in cells:
            continue
        nats = {key: _per_token(cell["nats"], sizes.length) for key, cell in cells.items()}
        networks[name] = {
            "steps": result["steps"],
            "sha256": result["sha256"],
            "reference": reference,
            "starts": [_without_place(start, work) for start in result["starts"]],
            "refused": result["refused"],
            "cells": {
                key: statistics(nats[key], nats[reference], cell["calls_of_a_draw"])
                | {part: cell[part] for part in ("verdict", "largest", "seconds") if part in cell}
                for key, cell in cells.items()
            },
        }
    return networks


def _per_token(nats: Sequence[Sequence[float]], length: int) -> Tensor:
    return torch.tensor(nats, dtype=torch.float64) / length


def statistics(nats: Tensor, reference: Tensor, calls: int) -> dict[str, Any]:
    """Return difference, deviation, calls and coverage of an estimator.

    Args:
        nats: (N, R) nats per token of N rows, a column per draw.
        reference: (N or more, R') those of the reference, of the same rows first.
        calls: network calls of a draw.
    """
    rows, draws = nats.shape
    truth = reference[:rows].mean(1)
    difference = nats.mean(1) - truth
    deviation = float(nats.std())
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(rows * draws, (REPETITIONS, SEQUENCES), generator=generator)
    repeated = nats.flatten()[drawn]
    return {
        "mean": float(nats.mean()),
        "difference": float(difference.mean()),
        "error": float(difference.std()) / math.sqrt(rows),
        "deviation": deviation,
        "calls_of_a_draw": calls,
        "calls": calls * (deviation / (ACCURACY * float(truth.mean()))) ** 2,
        "covers_reference": covered(repeated, float(truth.mean())),
        "covers_mean": covered(repeated, float(nats.mean())),
        "rows": rows,
        "draws": draws,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Run a command of the stage, or with ``--tiny`` all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=COMMANDS, nargs="?")
    parser.add_argument("work", type=Path, nargs="?", help="folder of the data and the runs")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all commands at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.tiny is not None:
        for command in COMMANDS.values():
            command(options.tiny, TINY)
    elif options.work is None:
        parser.error("pass a command and WORK, or --tiny FOLDER")
    else:
        COMMANDS[options.what](options.work.resolve(), Sizes())


COMMANDS = {"train": train_all, "audit": audit_all}

if __name__ == "__main__":
    main()
