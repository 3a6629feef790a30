"""Ablations of the HDLM paper at a budget of your choice.

Clusters, gamma, xi, and the modes of training.

    # two million tokens a row
    python -m recipes.hdlm_tables --data data/mine --scorer models/gpt2-large
    python -m recipes.hdlm_tables --data data/mine --scorer none --budget 8 --rows xi=0.9 gamma=2
    # network and budget of the paper
    python -m recipes.hdlm_tables --data data/owt --scorer gpt2-large --full

Trains each row, one after another, and measures its bound and its samples: the scorer's nats per
token, the entropy of a sample's tokens and the share of distinct n-grams; for xi < 1 with and
without forced transitions. Writes tables.json and tables.md into the output folder after each row.
The same command continues after a kill.

The rows are those of the paper's tables; each changes one value of HDLM-64 with gamma = 1 and xi =
1. The default setting is that of the studies of these pages: a network of 4 x 128, 16 sequences of
128 tokens a step, Muon at 0.003.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from recipes import evaluate, frontier, owt
from recipes.config import Data, Hardware, Optimizer, Output, Recipe, at_least
from recipes.console import command, make_console, plain_errors
from recipes.data import open_prepared
from recipes.engine import train
from recipes.engine.parallel import alone
from recipes.engine.provenance import provenance
from recipes.evaluation.report import write

RESULT = "tables.json"
TABLE = "tables.md"
LENGTH = 128
BATCH = 16
AUXILIARY = 1.0
"""Weight of the loss of the auxiliary head, which the paper does not state."""
FORCED = "ancestral:force_transition=true"
"""Sampler that keeps a token in its cluster; without perturbation every sampler does."""
ONE = "one_cluster.csv"
"""File with all tokens in one cluster: HDLM-1, whose bound is that of masks."""


@dataclass(frozen=True)
class Row:
    """A row of the paper's tables."""

    clusters: int = 64
    gamma: float = 1.0
    xi: float = 1.0
    mode: str = "standard"
    auxiliary: float = 0.0

    def loss(self) -> dict[str, Any]:
        """Return the kind of the training loss and its weight, if there is a second head."""
        return {"kind": "auxiliary", "weight": self.auxiliary} if self.auxiliary else {}


ROWS: Mapping[str, Row] = {
    "hdlm-64": Row(),
    **{f"clusters={count}": Row(clusters=count) for count in (1, 2, 4, 8, 16, 32, 128, 256)},
    **{f"gamma={gamma:g}": Row(gamma=gamma) for gamma in (2.0, 3.0)},
    **{f"xi={xi:g}": Row(xi=xi) for xi in (0.9, 0.8)},
    "hard": Row(mode="hard"),
    "auxiliary": Row(auxiliary=AUXILIARY),
    "hard+auxiliary": Row(mode="hard", auxiliary=AUXILIARY),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.hdlm_tables``."""

    data: Path
    """Prepared text, see recipes.prepare."""
    scorer: str
    """Causal language model: owner/name on the hub, or a folder; "none" for entropy and n-grams
    without nats.
    """
    out: Path = Path("runs/hdlm_tables")
    """Folder of the runs and of the tables."""
    budget: float = 2.0
    """Millions of training tokens of each row."""
    full: bool = False
    """Network, optimizer and budget of the paper on OpenWebText; needs GPUs."""
    rows: tuple[str, ...] = tuple(ROWS)
    """Names of rows; all by default."""
    seed: int = 0
    """Seed of the runs."""
    samples: int = 256
    """Samples of each cell."""
    calls: tuple[int, ...] = (64,)
    """Network calls of a sample, at most; cells for each."""
    sequences: int | None = None
    """Validation sequences of the bound; all by default."""
    model: dict[str, Any] = field(default_factory=lambda: {"dim": 128, "depth": 4, "heads": 4})
    """Size of the network."""

    def __post_init__(self) -> None:
        if unknown := sorted({*self.rows} - {*ROWS}):
            raise ValueError(f"rows: {unknown[0]!r}, must be among {', '.join(ROWS)}")
        at_least(1, calls=min(self.calls, default=0))
        at_least(2, samples=self.samples)
        if self.budget <= 0:
            raise ValueError(f"budget={self.budget}: must be positive, in millions of tokens")


def recipe_of(name: str, options: Options) -> Recipe:
    """Return the recipe of a row."""
    row = ROWS[name]
    base = owt.recipes()["hdlm"][1] if options.full else _small(options)
    clusters = str(options.out / ONE) if row.clusters == 1 else row.clusters
    return replace(
        base,
        data=replace(base.data, corpus=None, folder=options.data),
        process={"kind": "hdlm", "clusters": clusters, "gamma": row.gamma, "xi": row.xi},
        loss=base.loss | {"mode": row.mode} | row.loss(),
        output=replace(base.output, folder=options.out / "runs" / name),
        seed=options.seed,
    )


def _small(options: Options) -> Recipe:
    """Return the setting of the studies: network, optimizer and steps of a small budget on one
    core.
    """
    steps = max(1, round(options.budget * 1e6 / (BATCH * LENGTH)))
    return Recipe(
        data=Data(folder=options.data, length=LENGTH),
        process={"kind": "hdlm", "clusters": 64},
        model={"kind": "dit", **options.model, "pad_to": 1},
        start="text",
        loss={"weighting": "clip:2"},
        optimizer=Optimizer(
            lr=3e-3,
            warmup=min(50, steps // 2),
            weight_decay=0.1,
            muon=True,
            ema=max(0.0, 1 - 10 / steps),
        ),
        hardware=Hardware(threads=1),
        output=Output(
            folder=options.out,
            validate_every=max(1, steps // 5),
            validate_sequences=128,
            sample_every=steps,
            samples=1,
            save_every=max(1, steps // 20),
            keep=1,
            tensorboard=False,
        ),
        batch=BATCH,
        steps=steps,
    )


def write_one_cluster(options: Options) -> None:
    """Write the table of tokens in one cluster."""
    vocabulary = open_prepared(options.data).tokenizer.get_vocab()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / ONE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("token", "parent"))
        writer.writerows((token, 0) for token in sorted(vocabulary, key=vocabulary.__getitem__))


def measure_row(name: str, recipe: Recipe, options: Options, console: Console) -> dict[str, Any]:
    """Return the bound of a trained row, and the cells of its samples."""
    folder = str(recipe.output.folder)
    bound = evaluate.evaluate(
        evaluate.Options(run=folder, scorer="none", metrics="none", sequences=options.sequences),
        alone(),
    )
    cells = frontier.frontier(
        frontier.Options(
            run=folder,
            scorer=options.scorer,
            samplers=("ancestral", FORCED) if ROWS[name].xi < 1 else ("ancestral",),
            calls=options.calls,
            samples=options.samples,
        ),
        console,
    )["cells"]
    entry = {"row": name, **asdict(ROWS[name]), "steps": recipe.steps, "seed": recipe.seed}
    return entry | {
        "bound": bound["bound"]["nats_per_token"],
        "cells": cells,
        "provenance": provenance([]),
    }


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a table: a line for each row of the paper, sampler and number
    of calls.
    """
    head = (
        "row",
        "bound, nats/token",
        "forced",
        "calls",
        "scorer, nats/token",
        "entropy",
        "distinct 2-grams",
    )
    lines = [head, ("---",) * len(head)]
    for row in rows:
        for cell in row["cells"]:
            forced = "always" if row["xi"] == 1 else "yes" if cell["sampler"] == FORCED else "no"
            nats = _show(cell["nats"])
            entropy = _show(cell["entropy"])
            distinct = "-" if cell["distinct"] is None else f"{cell['distinct']['2']:.3f}"
            bound = _show(row["bound"])
            lines.append(
                (row["row"], bound, forced, f"{cell['calls']:.0f}", nats, entropy, distinct)
            )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _show(entry: Mapping[str, float | None] | None) -> str:
    if entry is None:
        return "-"
    return f"{entry['value']:.3f}" + ("" if entry["error"] is None else f" ± {entry['error']:.3f}")


def earlier_rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the rows of an earlier call with the same options, other than the choice of rows.

    Raises:
        ValueError: the folder holds results of other options, by name.
    """
    path = options.out / RESULT
    if not path.exists():
        return
    earlier = json.loads(path.read_text(encoding="utf-8"))
    for name, value in settings(options).items():
        if earlier["settings"][name] != value:
            raise ValueError(
                f"out={options.out}: holds results of {name}={earlier['settings'][name]!r}, now "
                f"{value!r}; choose "
                "another folder"
            )
    yield from earlier["rows"]


def settings(options: Options) -> dict[str, Any]:
    """Return the options that decide the numbers, as plain values."""
    values = {name: value for name, value in vars(options).items() if name not in ("out", "rows")}
    return json.loads(json.dumps(values, default=str))


def tables(options: Options, console: Console) -> list[dict[str, Any]]:
    """Train and measure every row that the result file lacks; write and return all rows."""
    finished = list(earlier_rows(options))
    write_one_cluster(options)
    there = {row["row"] for row in finished}
    for name in dict.fromkeys(options.rows):
        if name in there:
            continue
        recipe = recipe_of(name, options)
        if not train(recipe):
            console.print("stopped; the same command continues", soft_wrap=True)
            break
        finished.append(measure_row(name, recipe, options, console))
        write(options.out / RESULT, {"settings": settings(options), "rows": finished})
        (options.out / TABLE).write_text(as_markdown(finished), encoding="utf-8")
    console.print(as_markdown(finished), markup=False, soft_wrap=True)
    return finished


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the tables of the command line."""
    with plain_errors():
        options = tyro.cli(
            Options, args=arguments, prog="python -m recipes.hdlm_tables", description=__doc__
        )
        tables(options, make_console())


if __name__ == "__main__":
    command(main)
