"""Run of the study of rewards, and its tables in docs/studies/rewards.md.

    python -m studies.rewards.run                # what the result file lacks, then the tables
    python -m studies.rewards.run --pages        # the tables alone
    python -m studies.rewards.run --tiny FOLDER  # all of it, in seconds

The same command continues after a kill. The protocol is protocol.md. One thread.
"""

import argparse
import copy
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from recipes.engine.provenance import provenance
from studies.page import page
from studies.rewards.pages import BEGIN, PAGE, tables
from studies.rewards.ratios import KNOWN, known, trained
from studies.rewards.training import (
    METHODS,
    PROCESSES,
    TINY,
    Sizes,
    describe,
    measure,
    pretrain,
    seeded,
    tune,
)
from studies.tables import END

RESULTS = Path(__file__).parent / "results.json"
SEARCH_SEED = 100


class Study:
    """The stages of the study: each measures what the result file lacks.

    Args:
        out: result file, written after each run.
        sizes: sizes of the study.
    """

    def __init__(self, out: Path, sizes: Sizes) -> None:
        self.out = out
        self.sizes = sizes
        self.result: dict[str, Any] = {"starts": [], "sizes": describe(sizes)}
        for stage in ("known", "search", "runs", "trained"):
            self.result[stage] = {}
        if out.exists():
            self.result = json.loads(out.read_text(encoding="utf-8"))

    def run(self) -> None:
        """Run all stages."""
        self.result["starts"].append(provenance() | {"threads": torch.get_num_threads()})
        for name, process in KNOWN.items():
            if name not in self.result["known"]:
                self._keep("known", name, known(process, self.sizes))
        for process in PROCESSES:
            for method in METHODS:
                for rate in self.sizes.rates:
                    name = f"{process} | {method} | {rate:g}"
                    if name not in self.result["search"]:
                        measured = self._tuned(process, method, rate, SEARCH_SEED, "search")
                        self._keep("search", name, measured)
        for seed in self.sizes.seeds:
            for process in PROCESSES:
                for method in METHODS:
                    name = f"{process} | {method} | {seed}"
                    if name not in self.result["runs"]:
                        rate = self.best(process, method)
                        measured = self._tuned(process, method, rate, seed, "test")
                        self._keep("runs", name, measured)
        for name, process in PROCESSES.items():
            if name not in self.result["trained"]:
                seed = self.sizes.seeds[0]
                network = pretrain(process, seed, self.sizes)
                rate = self.best(name, "path")
                ratios = trained(process, network, rate, seed, self.sizes)
                self._keep("trained", name, ratios)

    def best(self, process: str, method: str) -> float:
        """Return the rate with the most puzzles of the search that are solved by one sample."""

        def share(rate: float) -> float:
            return self.result["search"][f"{process} | {method} | {rate:g}"]["after"]["one"]

        return max(self.sizes.rates, key=share)

    def _tuned(
        self, process: str, method: str, rate: float, seed: int, part: str
    ) -> dict[str, Any]:
        """Pretrain, tune and measure a network."""
        noise = PROCESSES[process]
        seeded(seed)
        network = pretrain(noise, seed, self.sizes)
        before = measure(noise, network, part, self.sizes)
        begin = time.process_time()
        tuned = copy.deepcopy(network)
        rewards = tune(noise, tuned, method, rate, seed, self.sizes, self.sizes.rollouts)
        return {
            "rate": rate,
            "before": before,
            "after": measure(noise, tuned, part, self.sizes),
            "rewards": [round(value, 4) for value in rewards],
            "seconds": round(time.process_time() - begin, 1),
        }

    def _keep(self, stage: str, name: str, measured: dict[str, Any]) -> None:
        self.result[stage][name] = measured
        partial = self.out.with_suffix(".part")
        partial.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.out)
        print(f"{stage}: {name}", flush=True)


def page_of(path: Path, out: Path) -> str:
    """Return the page with the tables of the result file."""
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return page(path.read_text(encoding="utf-8"), tables(result), BEGIN, END)


def main(words: Sequence[str] | None = None) -> None:
    """Run the study, and write its tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the markers")
    parser.add_argument("--pages", action="store_true", help="write the tables alone")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all stages at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.tiny is not None:
        options.out = options.tiny / "results.json"
        options.page = options.tiny / "rewards.md"
        options.page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    if not options.pages:
        Study(options.out, Sizes() if options.tiny is None else TINY).run()
    options.page.write_text(page_of(options.page, options.out), encoding="utf-8")


if __name__ == "__main__":
    main()
