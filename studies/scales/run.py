"""The study of docs/studies/scales.md.

What overlap, meaning and shared embeddings change in hierarchies at small budgets.

Corpus, network, budgets and measurement are those of ``studies.corpus_study``. A killed training
is resumed by the same command. Protocol and expectations were written before the runs.

A record of the code: it ran at commit 699d25d9, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

from ddlib.hierarchies import soft_memberships
from recipes.config import Recipe, recipe_yaml
from recipes.data import open_prepared
from recipes.embeddings.grouping import clusters_for
from recipes.embeddings.neighbours import neighbourhoods, stream
from recipes.generation.calls import network_calls
from recipes.generation.sampling import Sampling, draw
from recipes.model_io import open_saved
from studies.budgets.run import EDGES, TWO
from studies.corpus_study import (
    BUDGET,
    LENGTH,
    TINY,
    CorpusStudy,
    Model,
    collected,
    known_runs,
    missing,
)
from studies.scales.page import PAGE
from studies.study import SCORER, finished, judged, shared, summary, written

CLUSTERS, TEMPERATURE, MOST = 64, 0.1, 4
"""Number of clusters; temperature of the soft memberships, in 1 - cosine; largest number of
clusters of a token.
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


@dataclass(frozen=True)
class Scales(CorpusStudy):
    """Hierarchies with overlap, random and soft clusters, and shared embeddings, beside masks."""

    results = PAGE
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
