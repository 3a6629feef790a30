"""The study of docs/scales.md: what overlap, meaning and shared embeddings change in hierarchies at small budgets.

    python -m benchmarks.public_domain CORPUS TOKENIZER WORK/text
    python -m benchmarks.study prepare WORK
    python -m benchmarks.scales prepare WORK                     # clusters, a random tree, memberships
    python -m benchmarks.scales train WORK --budget 2 [--part 0 --of 2]     # millions of tokens
    python -m benchmarks.scales evaluate WORK --out benchmarks/results/scales.json

Corpus, network, budgets and measurement are those of ``benchmarks.study``. A killed training is resumed by the same
command. Protocol and expectations are on the page, written before the runs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.made import Run, arguments, by_text, earlier, shared, written
from benchmarks.study import EDGES, TWO, Model, collected, recipe, tested, together
from ddlib.hierarchies import soft_memberships
from recipes.config import Recipe, recipe_yaml
from recipes.data import open_prepared
from recipes.embeddings.grouping import clusters_for, neighbourhoods, stream

CLUSTERS, TEMPERATURE, MOST = 64, 0.1, 4
"""Number of clusters; temperature of the soft memberships, in 1 - cosine; largest number of clusters of a token."""
BUDGETS: Mapping[int, tuple[int, ...]] = {2: (0, 1), 8: (0, 1)}
"""Millions of tokens, and the seeds of each."""
SHARED = dict(shared_rows="run")
"""Values of a network whose states share the vectors of ancestors and levels."""


def models(work: Path) -> dict[str, tuple[Model, dict[str, Any]]]:
    """Return the models that are compared: process and loss, and further values of the network."""
    staged = dict(kind="staged", clusters=CLUSTERS)
    soft = json.loads((work / "memberships.json").read_text(encoding="utf-8"))
    hierarchy = dict(kind="soft", memberships=soft)
    return {
        "masks": (Model(dict(kind="mdlm")), {}),
        "overlap 1 (HDLM-64)": (Model(TWO, EDGES), {}),
        "overlap 0.5": (Model(staged | dict(overlap=0.5), EDGES), {}),
        "overlap 0 (staged)": (Model(staged, EDGES), {}),
        "random tree": (Model(TWO | dict(clusters=str(work / "random.csv")), EDGES), {}),
        "soft clusters": (Model(dict(kind="hierarchical", hierarchy=hierarchy, schedule="linear"), EDGES), {}),
        "overlap 1, shared": (Model(TWO, EDGES), SHARED),
        "overlap 0, shared": (Model(staged, EDGES), SHARED),
    }


def runs(work: Path) -> Iterator[tuple[str, int, int, Recipe]]:
    """Yield all runs, budget by budget: name, millions of tokens, seed, recipe."""
    found = models(work)
    for millions, seeds in BUDGETS.items():
        for seed in seeds:
            for name, (model, network) in found.items():
                plain = "".join(c if c.isalnum() else "_" for c in name)
                given = recipe(work, f"scales-{plain}", model, millions, seed)
                yield name, millions, seed, replace(given, model=given.model | network)


def prepare(work: Path) -> None:
    """Write the random tree of the sizes of the semantic one, and the soft memberships."""
    data = open_prepared(work / "data")
    clusters = clusters_for(CLUSTERS, data)
    order = torch.randperm(data.vocab_size, generator=torch.Generator().manual_seed(0))
    parents = clusters.parents[0][order].tolist()
    names = sorted(data.tokenizer.get_vocab().items(), key=lambda item: item[1])
    lines = ["token,parent", *(f'"{token.replace(chr(34), chr(34) * 2)}",{parents[index]}' for token, index in names)]
    (work / "random.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    vectors = neighbourhoods(stream(data), data.vocab_size)
    found = soft_memberships(clusters, vectors, TEMPERATURE, MOST)
    (work / "memberships.json").write_text(json.dumps(found), encoding="utf-8")
    probability = torch.tensor(found["probability"])
    print(f"entropy of a token's memberships: {float(torch.special.entr(probability).sum(1).mean()):.3f} nats")


def evaluate(work: Path, known: Mapping[tuple[Any, ...], Run]) -> dict[str, Any]:
    """Return the content of the result file."""

    def measure(given: Recipe) -> Run:
        whole = together(tested(work, given.output.folder))
        return {"all_sources": asdict(whole.per_token)} | by_text(whole)

    found = collected(runs(work), known, "above_masks", measure)
    return {"recipe": recipe_yaml(next(runs(work))[3]), "runs": found}


def main() -> None:
    """Run the command."""
    parser = arguments(__doc__, ("prepare", "train", "evaluate"))
    parser.add_argument("--budget", type=int, choices=BUDGETS, help="millions of tokens")
    options = parser.parse_args()
    work, known = options.work, earlier(options.out, "process", "millions", "seed")
    torch.set_num_threads(1)
    if options.what == "prepare":
        prepare(work)
    elif options.what == "train":
        missing = [given for *key, given in runs(work) if key[1] == options.budget and tuple(key) not in known]
        shared(missing, options)
    else:
        written(options.out, evaluate(work, known))


if __name__ == "__main__":
    main()
