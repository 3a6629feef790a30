"""In-place correction of a tree's tokens: quality and diversity of samples before and after, docs/mending.md.

    python -m benchmarks.mending draw WORK
    python -m benchmarks.mending judge WORK --scorer SCORER      # a causal language model, folder or name
    python -m benchmarks.mending report WORK --out benchmarks/results/mending.json
    python -m benchmarks.mending page WORK --out benchmarks/results/mending.json --docs docs
    python -m benchmarks.mending --smoke FOLDER                  # all of it, in seconds, with a random judge

A hierarchy with wrong tokens, ``dd.processes.Noisy``, is trained as the quickstart trains its models. Samples are drawn
with and without correctors, from the same noise as far as possible.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.frontier import SpeechStudy, Values, drawn, kept, opened, paths, tree
from benchmarks.table import Page
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
KEYS = ("nats", "entropy")


def noisy(config: Config) -> Values:
    """Return the process, as recipes name it."""
    return {"kind": "hdlm_noisy", "clusters": paths(config)[0], "p_uniform": SHARE}


def tables(results: dict[str, Any]) -> str:
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


@dataclass(frozen=True)
class Mending(SpeechStudy):
    """Samples of one model with and without correctors."""

    results = Page("mending", "mending", tables)
    commands = ("draw", "judge", "report", "page")

    def draw(self, options: Namespace) -> None:
        """Train the model of every seed and draw its samples every way; existing results are kept."""
        for seed in self.seeds:
            config, folder = self.at(options.work, seed)
            data, made = read_data(config, make_console()), folder / "told.pt"
            if not made.exists():
                parents = tree(config, data, self.above)[:1]
                bounds = {MODEL: kept(config, MODEL, noisy(config), data)}
                torch.save({"parents": parents, "bounds": bounds}, made)
            run = opened(config, MODEL, noisy(config), data)
            for way, sampler in WAYS.items():
                about = {"cell": {"model": MODEL, "way": way, "sampler": repr(sampler), "steps": STEPS}}
                drawn(folder / f"{way.replace(' ', '_')}.json", config, run, data, self.texts, about, sampler, STEPS)


STUDY = Mending()

if __name__ == "__main__":
    STUDY.main(__doc__)
