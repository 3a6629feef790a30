"""In-place correction of a tree's tokens: quality and diversity of samples before and after, docs/mending.md.

    python -m benchmarks.mending draw WORK
    python -m benchmarks.frontier judge WORK SCORER
    python -m benchmarks.mending report WORK --out benchmarks/results/mending.json    # and the table of the page

A hierarchy with wrong tokens, ``dd.processes.Noisy``, is trained as the quickstart trains its models. Samples are drawn
with and without correctors, from the same noise as far as possible.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.frontier import SEEDS, Values, at, drawn, kept, opened, paths, report, tree
from benchmarks.table import DOCS, fill
from ddlib.samplers import Ancestral, Corrected, Gibbs, SelfCorrection
from recipes.comparison.training import Config
from recipes.console import make_console
from recipes.quickstart import read_data

MODEL, SHARE, STEPS = "noisy", 0.2, 32
"""Name; share of uniform noise among tokens; steps of the sampler."""
WAYS = {
    "as drawn": Ancestral(),
    "self-correction": Corrected(Ancestral(), SelfCorrection()),
    "Gibbs": Corrected(Ancestral(), Gibbs(16), steps=4, interval=(0.0, 0.3)),
}
"""Samplers, and their correctors."""
PAGE = DOCS / "mending.md"
BEGIN, END = "<!-- tables: benchmarks/mending.py -->", "<!-- end of tables -->"
KEYS = ("nats", "entropy")


def noisy(config: Config) -> Values:
    """Return the process, as recipes name it."""
    return {"kind": "hdlm_noisy", "clusters": paths(config)[0], "p_uniform": SHARE}


def fit_and_draw(work: Path) -> None:
    """Train the model of every seed and draw its samples every way; existing results are kept."""
    for seed in SEEDS:
        config, folder = at(work, seed)
        data, made = read_data(config, make_console()), folder / "told.pt"
        if not made.exists():
            parents = tree(config, data)[:1]
            bounds = {MODEL: kept(config, MODEL, noisy(config), data)}
            torch.save({"parents": parents, "bounds": bounds}, made)
        run = opened(config, MODEL, noisy(config), data)
        for way, sampler in WAYS.items():
            about = {"cell": {"model": MODEL, "way": way, "sampler": repr(sampler), "steps": STEPS}}
            drawn(folder / f"{way.replace(' ', '_')}.json", config, run, data, about, sampler, STEPS)


def rows(results: dict[str, Any]) -> str:
    """Return the page's table: a row for every way, each seed, and held-out text."""

    def cells(name: str, found: list[dict[str, Any]], calls: str) -> str:
        values = (", ".join(f"{one[key]['value']:.3f} ± {one[key]['error']:.3f}" for one in found) for key in KEYS)
        return f"| {name} | {' | '.join(values)} | {calls} |"

    lines = [
        "| texts | judge, nats per token, each seed | entropy, nats, each seed | calls |",
        "| --- |" + " --- |" * 3,
    ]
    for way in WAYS:
        found = [cell for cell in results["cells"] if cell["cell"]["way"] == way]
        lines.append(cells(way, found, ", ".join(f"{cell['calls']:.0f}" for cell in found)))
    return "\n".join([*lines, cells("held out", results["held-out"][:1], "-")])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("draw", "report"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "draw":
        fit_and_draw(options.work)
    else:
        report(options.work, options.out, "python -m benchmarks.mending")
        results = json.loads(options.out.read_text(encoding="utf-8"))
        fill(PAGE, rows(results), BEGIN, END)


if __name__ == "__main__":
    main()
