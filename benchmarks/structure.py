"""The study of docs/structure.md: masks against trees, blur and windows on pictures, molecules and music.

    pip install "ddlib[pictures,molecules,music]" && pip install --no-deps molsets       # the data and their metrics
    python -m benchmarks.structure prepare WORK
    python -m benchmarks.structure train WORK [--part 0 --of 2] [--data digits] [--seed 0]
    python -m benchmarks.structure cost WORK                     # on an idle machine: CPU seconds of a step
    python -m benchmarks.structure draw WORK
    python -m benchmarks.structure evaluate WORK --out benchmarks/results/structure.json
    python -m benchmarks.structure page WORK --out benchmarks/results/structure.json

A killed training is resumed by the same command; with ``--out`` runs that are in the file are not made again. Protocol
and expectations are on the page, written before the runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import ddlib as dd
from benchmarks import structure_samples as samples
from benchmarks.made import Run, arguments, by_text, curve, earlier, finished, less, shared, written
from benchmarks.measuring import machine, medians, seconds
from benchmarks.structure_page import BEGIN, END, tables
from benchmarks.study import measured
from benchmarks.table import DOCS, fill
from ddlib_models import DiT
from recipes.config import Data, Hardware, Loss, Optimizer, Output, Recipe, recipe_yaml
from recipes.data import SymbolCorpus, open_prepared, prepare
from recipes.embeddings.grouping import clusters_for
from recipes.embeddings.neighbours import neighbourhoods, stream
from recipes.engine.parallel import World
from recipes.engine.provenance import provenance
from recipes.engine.setup import FromText, make_process
from recipes.metrics import Terms

STEPS, SEEDS = 1200, (0, 1)
MASKS = "masks"
TEMPERATURES = (0.5, 1.0, 2.0)
"""Temperatures of the blur of molecules, in standard deviations of the similarity."""
Values = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A data set: its source, how rows are cut, and the trees and blur of its alphabet."""

    corpus: SymbolCorpus
    length: int
    size: int
    """Number of symbols."""
    trees: Mapping[int, tuple[int, ...]]
    """Numbers of clusters of each level, by number of edges."""
    widths: tuple[float, ...] = ()
    """Widths of the blur; none if the alphabet has no order."""
    batch: int = 16
    packed: bool = False
    network: Values | None = None


NETWORK = {"dim": 96, "depth": 3, "heads": 4, "pad_to": 1}
PICTURE = {"positions": "rope2d", "shape": "run"}
KINDS = {
    "patches": Kind(
        SymbolCorpus(source={"kind": "patches"}, held_out=500, by="label", shuffle=0),
        144, 256, {2: (16,), 4: (64, 16, 4), 8: (128, 64, 32, 16, 8, 4, 2)}, (4, 16, 64), network=PICTURE,
    ),
    "digits": Kind(
        SymbolCorpus(source={"kind": "digits", "side": 14, "levels": 16}, held_out=500, by="label"),
        196, 16, {2: (4,), 4: (8, 4, 2)}, (0.5, 1.5, 4), network=PICTURE | {"num_classes": "run"},
    ),
    "molecules": Kind(
        SymbolCorpus(source={"kind": "molecules", "limit": 100_000}, held_out=1000),
        128, 26, {2: (6,), 4: (12, 6, 3)}, packed=True,
    ),
    "chorales": Kind(
        SymbolCorpus(source={"kind": "chorales", "voices": "soprano"}, held_out=40),
        64, 48, {2: (8,), 4: (16, 8, 4)}, (1, 2, 4), batch=32, packed=True,
    ),
}  # fmt: skip


def neighbours(size: int, counts: Sequence[int]) -> list[list[int]]:
    """Return the parents of a tree whose clusters are ranges of equal sizes, level by level."""
    return [
        [child * above // below for child in range(below)]
        for below, above in zip((size, *counts), counts, strict=False)
    ]


def clustered(folder: Path) -> dict[str, Any]:
    """Return the trees of clusters of characters, by number of edges, and the blur by their similarity."""
    data = open_prepared(folder)
    trees = {
        edges: [level.tolist() for level in clusters_for(list(counts), data).parents]
        for edges, counts in KINDS["molecules"].trees.items()
    }
    vectors = torch.nn.functional.normalize(neighbourhoods(stream(data), data.vocab_size).double(), dim=1)
    similarity = vectors @ vectors.T
    kernels = [(similarity / (t * similarity.std())).softmax(1).tolist() for t in TEMPERATURES]
    return {"trees": trees, "blur": {"kind": "kernels", "kernels": kernels}}


def processes(work: Path, name: str) -> dict[str, Values]:
    """Return the values of the processes of a data set, masks first."""
    kind = KINDS[name]
    trees = {edges: neighbours(kind.size, counts) for edges, counts in kind.trees.items()}
    blur: Values = {"kind": "blur", "size": kind.size, "widths": list(kind.widths)}
    if not kind.widths:
        found = json.loads((work / f"{name}.json").read_text(encoding="utf-8"))
        trees, blur = {int(edges): parents for edges, parents in found["trees"].items()}, found["blur"]
    order = torch.randperm(kind.size, generator=torch.Generator().manual_seed(0)).tolist()
    every: dict[str, Values] = {
        MASKS: {"kind": "mdlm"},
        "GIDD": {"kind": "gidd", "p_uniform": 0.1},
        "uniform": {"kind": "uniform", "schedule": "linear"},
    }
    for edges, parents in trees.items():
        for title, first in ((f"tree {edges}", parents[0]), (f"random tree {edges}", [parents[0][v] for v in order])):
            every[title] = hierarchical({"kind": "tree", "parents": [first, *parents[1:]]})
    every["blur"] = hierarchical(blur)
    every["staged"] = {"kind": "staged", "parents": trees[2]}
    return every


def hierarchical(hierarchy: Values) -> Values:
    """Return the values of a hierarchical process under the linear schedule."""
    return {"kind": "hierarchical", "hierarchy": hierarchy, "schedule": "linear"}


def recipe(work: Path, name: str, title: str, process: Values, seed: int) -> Recipe:
    """Return the recipe of a run."""
    kind = KINDS[name]
    edges = {} if title in (MASKS, "GIDD", "uniform") else {"mode": "edges"}
    return Recipe(
        data=Data(corpus=kind.corpus, folder=work / "data" / name, length=kind.length, packed=kind.packed),
        process=process,
        model={"kind": "dit", **NETWORK, **(kind.network or {})},
        loss=Loss(weighting={"kind": "clip", "high": None}, times="optimal", **edges),
        optimizer=Optimizer(lr=3e-3, warmup=50, final=1.0, weight_decay=0.05, muon=True, ema=0.99),
        hardware=Hardware(threads=1),
        output=Output(
            folder=work / "runs" / f"{name}-{title.replace(' ', '_')}-{seed}", validate_every=100,
            validate_sequences=128, validate_times="optimal", sample_every=STEPS, samples=1, sample_steps=8,
            save_every=300, keep=1, tensorboard=False,
        ),
        batch=kind.batch,
        steps=STEPS,
        seed=seed,
    )  # fmt: skip


def runs(work: Path, names: Sequence[str] = tuple(KINDS), seeds: Sequence[int] = SEEDS) -> Iterator[samples.Cell]:
    """Yield all runs: data set, process, seed and recipe."""
    for seed in seeds:
        for name in names:
            if (work / "data" / name).exists():
                for title, process in processes(work, name).items():
                    yield samples.Cell(name, title, seed, recipe(work, name, title, process, seed))


def cost(work: Path) -> Values:
    """Return the CPU seconds of a training step of every process, in turns on each data set."""
    found: dict[str, Any] = {"machine": machine()}
    world = World(0, 1, torch.device("cpu"))
    for name, kind in KINDS.items():
        turns, data = {}, open_prepared(work / "data" / name)
        for title, values in processes(work, name).items():
            given = recipe(work, name, title, values, 0)
            process = make_process(given, FromText(given, data, world), data, world)
            network = DiT(process.num_states, kind.size, **network_values(kind))
            optimizer = torch.optim.AdamW(network.parameters())
            turns[title] = partial(step, process, network, optimizer, kind, given.loss)
        seconds(turns, 1)
        taken = seconds(turns, 9)
        found[name] = {"seconds_per_step": medians(taken), "taken": taken}
        print(name, found[name]["seconds_per_step"], flush=True)
    return found


def step(process: Any, network: Any, optimizer: Any, kind: Kind, loss: Loss) -> None:
    """Make one training step on random symbols."""
    x = torch.randint(kind.size, (kind.batch, kind.length))
    t = torch.rand(kind.batch)
    z = process.sample(x, t)
    dd.training_loss(process, network(z, t), x, z, t, loss.rule(), loss.mode).backward()
    optimizer.step()
    optimizer.zero_grad()


def network_values(kind: Kind) -> Values:
    """Return the values of the network outside of a run: without labels, which cost one row."""
    own = {"positions": "rope2d", "shape": [round(kind.length**0.5)] * 2} if kind.network else {}
    return NETWORK | own


def at_equal_seconds(points: Sequence[tuple[float, ...]], share: float) -> float:
    """Return the bound of a validation curve at a share of all steps, between two points by a straight line."""
    wanted = min(share, 1.0) * STEPS
    for (left, low, *_), (right, high, *_) in pairwise(points):
        if left <= wanted <= right:
            return low + (high - low) * (wanted - left) / (right - left)
    raise ValueError(f"share={share}: outside of the curve, whose steps are {[int(one[0]) for one in points]}")


def evaluate(work: Path, known: Mapping[tuple[Any, ...], Run]) -> Values:
    """Return the content of the result file."""
    price = json.loads((work / "cost.json").read_text(encoding="utf-8")) if (work / "cost.json").exists() else {}
    found, masks = list[Run](), dict[tuple[str, int], Run]()
    for name, title, seed, given in runs(work):
        run = dict(known.get((name, title, seed), {}))
        if not run and not finished(given):
            continue
        if not run:
            terms = Terms.average(measured(given.output.folder, [work / "data" / name])[0])
            run = dict(data=name, process=title, seed=seed, bound=asdict(terms.per_token)) | by_text(terms)
            run |= {"curve": curve(given.output.folder), "provenance": provenance()}
        run |= {"above_masks": less(run, masks.setdefault((name, seed), run))}
        if name in price:
            taken = price[name]["seconds_per_step"]
            run |= {"at_equal_seconds": at_equal_seconds(run["curve"], taken[MASKS] / taken[title])}
            run |= {"cost_over_masks": taken[title] / taken[MASKS]}
        if (cells := samples.measures(work, given)) is not None:
            run |= {"samples": cells}
        found.append(run)
        print(name, title, seed, run["bound"]["value"], flush=True)
    shown = recipe(Path("work"), "digits", MASKS, {"kind": "mdlm"}, 0)
    return {"recipe": recipe_yaml(shown), "cost": price, "runs": found}


def main() -> None:
    """Run the command."""
    parser = arguments(__doc__, ("prepare", "train", "cost", "draw", "evaluate", "page"))
    parser.add_argument("--data", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, nargs="+", choices=SEEDS, default=list(SEEDS))
    options = parser.parse_args()
    work, known = options.work, earlier(options.out, "data", "process", "seed")
    torch.set_num_threads(1)
    if options.what == "prepare":
        for name in options.data:
            prepare(KINDS[name].corpus, work / "data" / name)
            if not KINDS[name].widths and not (work / f"{name}.json").exists():
                written(work / f"{name}.json", clustered(work / "data" / name))
    elif options.what == "train":
        missing = [one.recipe for one in runs(work, options.data, options.seed) if one[:3] not in known]
        shared(missing, options)
    elif options.what == "cost":
        written(work / "cost.json", cost(work))
    elif options.what == "draw":
        drawn = [one for one in runs(work, options.data, options.seed) if finished(one.recipe)]
        for one in drawn[options.part :: options.of]:
            samples.draw(work, one)
    elif options.what == "evaluate":
        written(options.out, evaluate(work, known))
    else:
        fill(DOCS / "structure.md", tables(json.loads(options.out.read_text(encoding="utf-8"))), BEGIN, END)


if __name__ == "__main__":
    main()
