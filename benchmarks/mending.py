"""Words of a tree corrected in place: quality and variety of the quickstart's texts before and after, docs/mending.md.

    python -m benchmarks.mending draw WORK
    python -m benchmarks.frontier judge WORK SCORER
    python -m benchmarks.mending report WORK --out benchmarks/results/mending.json    # and the table of the page

A hierarchy with wrong words, ``dd.processes.Noisy``, is trained as the quickstart trains its models, and its texts are
drawn with and without correctors, from the same noise as far as they draw alike.
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
"""Its name; the share of uniform noise among words; steps of the sampler."""
WAYS = {
    "as drawn": Ancestral(),
    "self-correction": Corrected(Ancestral(), SelfCorrection()),
    "Gibbs": Corrected(Ancestral(), Gibbs(16), steps=4, interval=(0.0, 0.3)),
}
"""How texts are drawn, and what mends them."""
PAGE = DOCS / "mending.md"
BEGIN, END = "<!-- tables: benchmarks/mending.py -->", "<!-- end of tables -->"
KEYS = ("nats", "entropy")


def noisy(config: Config) -> Values:
    """Return the process, as recipes name it."""
    return {"kind": "hdlm_noisy", "clusters": paths(config)[0], "p_uniform": SHARE}


def fit_and_draw(work: Path) -> None:
    """Trains the model of every seed and draws its texts every way; what is there already stays."""
    for seed in SEEDS:
        config, folder = at(work, seed)
        data, made = read_data(config, make_console()), folder / "told.pt"
        if not made.exists():
            parents = tree(config, data)[:1]
            bounds = {MODEL: kept(config, MODEL, noisy(config), data)}
            torch.save({"parents": parents, "bounds": bounds}, made)
        run = opened(config, MODEL, noisy(config), data)
        for way, sampler in WAYS.items():
            told = {"cell": {"model": MODEL, "way": way, "sampler": repr(sampler), "steps": STEPS}}
            drawn(folder / f"{way.replace(' ', '_')}.json", config, run, data, told, sampler, STEPS)


def rows(told: dict[str, Any]) -> str:
    """The page's table: a row for every way, each seed, and held-out text."""

    def cells(name: str, found: list[dict[str, Any]], calls: str) -> str:
        said = (", ".join(f"{one[key]['value']:.3f} ± {one[key]['error']:.3f}" for one in found) for key in KEYS)
        return f"| {name} | {' | '.join(said)} | {calls} |"

    lines = [
        "| texts | judge, nats per token, each seed | entropy, nats, each seed | calls |",
        "| --- |" + " --- |" * 3,
    ]
    for way in WAYS:
        found = [cell for cell in told["cells"] if cell["cell"]["way"] == way]
        lines.append(cells(way, found, ", ".join(f"{cell['calls']:.0f}" for cell in found)))
    return "\n".join([*lines, cells("held out", told["held-out"][:1], "-")])


def main() -> None:
    """The command."""
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
        told = json.loads(options.out.read_text(encoding="utf-8"))
        fill(PAGE, rows(told), BEGIN, END)


if __name__ == "__main__":
    main()
