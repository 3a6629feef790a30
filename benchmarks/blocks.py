"""Block sizes of docs/blocks.md: masks and a hierarchy, at once and in ever smaller blocks, at equal budget.

    python -m benchmarks.study prepare WORK
    python -m benchmarks.blocks train WORK [--part 0 --of 2]
    python -m benchmarks.blocks evaluate WORK --out benchmarks/results/blocks.json
    python -m benchmarks.blocks_page benchmarks/results/blocks.json

A killed training is resumed by the same command. With ``--out`` another machine makes the runs that are missing in the
file. Protocol and expectations are on the page, written before the runs.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.made import Run, arguments, by_text, curve, earlier, finished, less, shared, written
from benchmarks.study import LENGTH, MODELS, recipe, tested, together
from recipes.config import Recipe, recipe_yaml
from recipes.engine.provenance import provenance

SIZES = (LENGTH, 32, 8, 4, 1)
"""Sizes of a block; the first is the whole sequence, which is plain diffusion."""
KINDS = ("MDLM", "HDLM-64, all edges")
MILLIONS, SEEDS = 2, (0, 1)


def runs(work: Path) -> Iterator[tuple[str, int, int, Recipe]]:
    """Yield all runs: kind, size of a block, seed, recipe."""
    for seed in SEEDS:
        for size in SIZES:
            for kind in KINDS:
                given = recipe(work, f"blocks-{size}-{kind}", MODELS[kind], MILLIONS, seed)
                yield kind, size, seed, given if size == LENGTH else replace(given, pace=f"blocks:size={size}")


def evaluate(work: Path, known: Mapping[tuple[Any, ...], Run]) -> dict[str, Any]:
    """Return the content of the result file: all runs made or known, in nats per token, errors over texts."""
    found, about = dict[tuple[str, int, int], Run](), provenance() | {"cores": os.cpu_count()}
    for kind, size, seed, given in runs(work):
        if (kind, size, seed) in known:
            run = known[kind, size, seed]
        elif finished(given):
            whole = together(tested(work, given.output.folder))
            run = {"kind": kind, "size": size, "seed": seed, "bound": asdict(whole.per_token)} | by_text(whole)
            run |= {"curve": curve(given.output.folder), "provenance": about}
        else:
            continue
        found[kind, size, seed] = run
        for name, other in {"less_whole_text": (kind, LENGTH, seed), "less_mdlm": (KINDS[0], size, seed)}.items():
            run.pop(name, None)  # from an earlier file
            if other in found:
                run[name] = less(run, found[other])
        print(kind, size, seed, run["bound"], flush=True)
    return {"recipe": recipe_yaml(next(runs(Path("work")))[3]), "runs": list(found.values())}


def main() -> None:
    """Run the command."""
    options = arguments(__doc__, ("train", "evaluate")).parse_args()
    torch.set_num_threads(1)
    known = earlier(options.out, "kind", "size", "seed")
    if options.what == "train":
        shared([given for *key, given in runs(options.work) if tuple(key) not in known], options)
    else:
        written(options.out, evaluate(options.work, known))


if __name__ == "__main__":
    main()
