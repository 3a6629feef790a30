"""The study of docs/studies/structure.md.

Masks against trees, blur and windows on pictures, molecules and music.

    pip install "ddlib[pictures,molecules,music]" && pip install --no-deps molsets       # the data and their metrics

A killed training is resumed by the same command; with ``--out`` runs that are in the file are not
made again. Protocol and expectations were written before the runs.

A record of the code: it ran at commit 82e35d43, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

import ddlib as dd
from benchmarks.measuring import machine, medians, seconds
from ddlib_models import DiT
from recipes.config import Data, Hardware, Optimizer, Output, Recipe, recipe_yaml
from recipes.data import SymbolCorpus, open_prepared, prepare
from recipes.embeddings.grouping import clusters_for
from recipes.embeddings.neighbours import neighbourhoods, stream
from recipes.engine.parallel import World
from recipes.engine.provenance import provenance
from recipes.engine.setup import FromText, make_process
from recipes.metrics import Terms
from studies.corpus_study import measured
from studies.structure import samples
from studies.structure.page import PAGE, RANDOM
from studies.study import Run, Study, by_text, curve, earlier, finished, less, shared, written

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


PICTURE = {"positions": "rope2d", "shape": "run"}
KINDS: Mapping[str, Kind] = {
    "patches": Kind(
        SymbolCorpus(source={"kind": "patches"}, held_out=500, shuffle=0),
        144,
        256,
        {2: (16,), 4: (64, 16, 4), 8: (128, 64, 32, 16, 8, 4, 2)},
        (4, 16, 64),
        network=PICTURE,
    ),
    "digits": Kind(
        SymbolCorpus(source={"kind": "digits", "side": 14, "levels": 16}, held_out=500),
        196,
        16,
        {2: (4,), 4: (8, 4, 2)},
        (0.5, 1.5, 4),
        network=PICTURE | {"num_classes": "run"},
    ),
    "molecules": Kind(
        SymbolCorpus(source={"kind": "molecules", "limit": 100_000}, held_out=1000),
        128,
        26,
        {2: (6,), 4: (12, 6, 3)},
        packed=True,
    ),
    "chorales": Kind(
        SymbolCorpus(source={"kind": "chorales", "voices": "soprano"}, held_out=40),
        64,
        48,
        {2: (8,), 4: (16, 8, 4)},
        (1, 2, 4),
        batch=32,
        packed=True,
    ),
}


FLAGS: dict[str, dict[str, Any]] = {
    "--data": {"nargs": "+", "choices": KINDS, "help": "data sets; all by default"},
    "--seed": {"type": int, "nargs": "+", "help": "seeds; all by default"},
}


def neighbours(size: int, counts: Sequence[int]) -> list[list[int]]:
    """Return the parents of a tree whose clusters are ranges of equal sizes, level by level."""
    return [
        [child * above // below for child in range(below)]
        for below, above in zip((size, *counts), counts, strict=False)
    ]


def clustered(folder: Path, kind: Kind) -> dict[str, Any]:
    """Return the trees of clusters of characters, by number of edges, and the blur by their
    similarity.
    """
    data = open_prepared(folder)
    trees = {
        edges: [level.tolist() for level in clusters_for(list(counts), data).parents]
        for edges, counts in kind.trees.items()
    }
    vectors = torch.nn.functional.normalize(
        neighbourhoods(stream(data), data.vocab_size).double(), dim=1
    )
    similarity = vectors @ vectors.T
    kernels = [(similarity / (t * similarity.std())).softmax(1).tolist() for t in TEMPERATURES]
    return {"trees": trees, "blur": {"kind": "kernels", "kernels": kernels}}


def hierarchical(hierarchy: Values) -> Values:
    """Return the values of a hierarchical process under the linear schedule."""
    return {"kind": "hierarchical", "hierarchy": hierarchy, "schedule": "linear"}


def step(process: Any, network: Any, optimizer: Any, kind: Kind, loss: Loss) -> None:
    """Make one training step on random symbols."""
    x = torch.randint(kind.size, (kind.batch, kind.length))
    t = torch.rand(kind.batch)
    z = process.sample(x, t)
    dd.training_loss(process, network(z, t), x, z, t, loss.rule(), loss.mode).backward()
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class Structure(Study):
    """Processes on data sets whose alphabets have a structure."""

    results = PAGE
    commands = ("prepare", "train", "cost", "draw", "evaluate", "page")
    flags = FLAGS
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)
    titles: tuple[str, ...] = ()
    """Compared processes; all by default."""
    network: Mapping[str, int] = field(
        default_factory=lambda: {"dim": 96, "depth": 3, "heads": 4, "pad_to": 1}
    )
    steps: int = 1200
    seeds: tuple[int, ...] = (0, 1)
    drawn: samples.Samples = field(default_factory=samples.Samples)
    turns: int = 9
    """Timings of a step."""

    @classmethod
    def tiny(cls) -> Self:
        """Return digits of 7 x 7 points, three processes, one seed and four steps."""
        source = {"kind": "digits", "side": 7, "levels": 4}
        corpus = SymbolCorpus(source=source, held_out=20)
        kind = Kind(corpus, 49, 4, {2: (2,)}, (0.5,), 4, network=KINDS["digits"].network)
        few = samples.Samples(20, (2,), (1.0,), 2, (2,))
        network = {"dim": 16, "depth": 1, "heads": 1, "pad_to": 1}
        return cls({"digits": kind}, (MASKS, "tree 2", "blur"), network, 4, (0,), few, 5)

    def processes(self, work: Path, name: str) -> dict[str, Values]:
        """Return the values of the processes of a data set, masks first."""
        kind = self.kinds[name]
        trees = {edges: neighbours(kind.size, counts) for edges, counts in kind.trees.items()}
        blur: Values = {"kind": "blur", "size": kind.size, "widths": list(kind.widths)}
        if not kind.widths:
            found = json.loads((work / f"{name}.json").read_text(encoding="utf-8"))
            trees, blur = (
                {int(edges): parents for edges, parents in found["trees"].items()},
                found["blur"],
            )
        order = torch.randperm(kind.size, generator=torch.Generator().manual_seed(0)).tolist()
        every: dict[str, Values] = {
            MASKS: {"kind": "mdlm"},
            "GIDD": {"kind": "gidd", "p_uniform": 0.1},
            "uniform": {"kind": "uniform", "schedule": "linear"},
        }
        for edges, parents in trees.items():
            for title, first in (
                (f"tree {edges}", parents[0]),
                (f"{RANDOM}tree {edges}", [parents[0][v] for v in order]),
            ):
                every[title] = hierarchical({"kind": "tree", "parents": [first, *parents[1:]]})
        every["blur"] = hierarchical(blur)
        every["staged"] = {"kind": "staged", "parents": trees[2]}
        return {title: every[title] for title in self.titles or every}

    def recipe(self, work: Path, name: str, title: str, process: Values, seed: int) -> Recipe:
        """Return the recipe of a run."""
        kind = self.kinds[name]
        edges = {} if title in (MASKS, "GIDD", "uniform") else {"mode": "edges"}
        return Recipe(
            data=Data(
                corpus=kind.corpus,
                folder=work / "data" / name,
                length=kind.length,
                packed=kind.packed,
            ),
            process=process,
            model={"kind": "dit", **self.network, **(kind.network or {})},
            loss=dict(weighting={"kind": "clip", "high": None}, times="optimal", **edges),
            optimizer=Optimizer(
                lr=3e-3, warmup=50, final=1.0, weight_decay=0.05, muon=True, ema=0.99
            ),
            hardware=Hardware(threads=1),
            output=Output(
                folder=work / "runs" / f"{name}-{title.replace(' ', '_')}-{seed}",
                validate_every=max(self.steps // 12, 1),
                validate_sequences=128,
                validate_times="optimal",
                sample_every=self.steps,
                samples=1,
                sample_steps=8,
                save_every=300,
                keep=1,
                tensorboard=False,
            ),
            batch=kind.batch,
            steps=self.steps,
            seed=seed,
        )

    def runs(
        self, work: Path, names: Sequence[str] | None = None, seeds: Sequence[int] | None = None
    ) -> Iterator[samples.Cell]:
        """Yield all runs: data set, process, seed and recipe."""
        for seed in seeds or self.seeds:
            for name in names or self.kinds:
                if (work / "data" / name).exists():
                    for title, process in self.processes(work, name).items():
                        yield samples.Cell(
                            name, title, seed, self.recipe(work, name, title, process, seed)
                        )

    def prepare(self, options: Namespace) -> None:
        """Prepare the data sets."""
        for name in options.data or self.kinds:
            folder, kind = options.work / "data" / name, self.kinds[name]
            prepare(kind.corpus, folder)
            if not kind.widths and not (options.work / f"{name}.json").exists():
                written(options.work / f"{name}.json", clustered(folder, kind))

    def train(self, options: Namespace) -> None:
        """Train the runs that the result file does not have."""
        known = earlier(options.out, "data", "process", "seed")
        every = self.runs(options.work, options.data, options.seed)
        shared([one.recipe for one in every if one[:3] not in known], options)

    def cost(self, options: Namespace) -> None:
        """Measure the CPU seconds of a training step of every process, in turns on each data
        set.
        """
        work = options.work
        found: dict[str, Any] = {"machine": machine()}
        world = World(0, 1, torch.device("cpu"))
        for name, kind in self.kinds.items():
            turns, data = {}, open_prepared(work / "data" / name)
            for title, values in self.processes(work, name).items():
                given = self.recipe(work, name, title, values, 0)
                process = make_process(given, FromText(given, data, world), data, world)
                network = DiT(process.num_states, kind.size, **self.network_values(kind))
                optimizer = torch.optim.AdamW(network.parameters())
                turns[title] = partial(step, process, network, optimizer, kind, given.loss)
            seconds(turns, 1)
            taken = seconds(turns, 9)
            found[name] = {"seconds_per_step": medians(taken), "taken": taken}
            print(name, found[name]["seconds_per_step"], flush=True)
        written(work / "cost.json", found)

    def network_values(self, kind: Kind) -> Values:
        """Return the values of the network outside of a run: without labels, which cost one row."""
        own = (
            {"positions": "rope2d", "shape": [round(kind.length**0.5)] * 2} if kind.network else {}
        )
        return self.network | own

    def draw(self, options: Namespace) -> None:
        """Draw the samples of this process's share of the finished runs."""
        made = [
            one
            for one in self.runs(options.work, options.data, options.seed)
            if finished(one.recipe)
        ]
        for one in made[options.part :: options.of]:
            self.drawn.draw(options.work, one)

    def evaluate(self, options: Namespace) -> None:
        """Write the result file."""
        work, known = options.work, earlier(options.out, "data", "process", "seed")
        price = (
            json.loads((work / "cost.json").read_text(encoding="utf-8"))
            if (work / "cost.json").exists()
            else {}
        )
        found, masks = list[Run](), dict[tuple[str, int], Run]()
        for name, title, seed, given in self.runs(work):
            run = dict(known.pop((name, title, seed), {}))
            if not run and not finished(given):
                continue
            if not run:
                terms = Terms.average(measured(given.output.folder, [work / "data" / name])[0])
                run = dict(
                    data=name, process=title, seed=seed, bound=asdict(terms.per_token)
                ) | by_text(terms)
                run |= {"curve": curve(given.output.folder), "provenance": provenance()}
            run |= {"above_masks": less(run, masks.setdefault((name, seed), run))}
            if name in price:
                taken = price[name]["seconds_per_step"]
                run |= {"cost_over_masks": taken[title] / taken[MASKS]}
            if cells := samples.measures(work, given, run.get("samples", {})):
                run |= {"samples": cells}
            found.append(run)
            print(name, title, seed, run["bound"]["value"], flush=True)
        shown = self.recipe(Path("work"), "digits", MASKS, {"kind": "mdlm"}, 0)
        # runs of data sets that this machine has not prepared
        written(
            options.out,
            {"recipe": recipe_yaml(shown), "cost": price, "runs": [*known.values(), *found]},
        )


STUDY = Structure()

if __name__ == "__main__":
    STUDY.main(__doc__)
