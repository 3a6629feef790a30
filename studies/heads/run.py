"""Run of the study of output layers, and its tables in docs/studies/heads.md.

    python -m studies.heads.run WORK --tokens FILE   # what the result file lacks, then the tables
    python -m studies.heads.run WORK --sealed FILE   # the finished runs on the sealed text
    python -m studies.heads.run WORK --estimate      # seconds of every stage
    python -m studies.heads.run --pages              # the tables alone
    python -m studies.heads.run --tiny FOLDER        # all of it, in seconds

FILE holds compressed GPT-2 tokens, as ``python -m studies.corpus.build`` writes them. The same
command continues after a kill. The protocol is protocol.md. One thread.
"""

import argparse
import hashlib
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipes.engine.provenance import provenance
from studies.corpus.build import FILE
from studies.heads.models import ADAPTIVE, AR, FLAT, HDLM, MASKS, Arm
from studies.heads.pages import BEGIN, PAGE, tables
from studies.heads.sizes import TINY, Sizes
from studies.heads.text import SEARCH, TREES, Text, prepare, spaced
from studies.heads.training import (
    Evaluation,
    Run,
    Training,
    cost,
    mean_of,
    train,
    weights_path,
)
from studies.page import page
from studies.smoke import sources
from studies.tables import END

RESULTS = Path(__file__).parent / "results.json"
HEADS = (FLAT, ADAPTIVE, *TREES)
ARMS = tuple(
    Arm(process, head)
    for process in (MASKS, AR, HDLM)
    for head in HEADS
    if (process, head) != (HDLM, ADAPTIVE)
)
SEARCH_SEED = 100
SEALED = 6
"""Windows of the sealed text, in units of those of a source."""
ASSUMED = {
    (AR, True): {"seconds": 1.44, "flops": 105e9},
    (AR, False): {"seconds": 0.47, "flops": 26e9},
    (MASKS, True): {"seconds": 0.76, "flops": 54e9},
    (MASKS, False): {"seconds": 0.25, "flops": 14e9},
    (HDLM, True): {"seconds": 0.57, "flops": 33e9},
    (HDLM, False): {"seconds": 0.26, "flops": 14e9},
}
"""Costs of a step of each process with the layer over tokens (True) and with the others.

``--estimate`` assumes them before they are measured.
"""


class Study:
    """The stages of the study: each measures what the result file lacks.

    Args:
        work: folder of tokens, trees, states and weights.
        out: result file, written after each run.
        sizes: sizes of the study.
    """

    def __init__(self, work: Path, out: Path, sizes: Sizes) -> None:
        self.work = work
        self.out = out
        self.sizes = sizes
        self.result: dict[str, Any] = {
            "starts": [],
            "costs": {},
            "search": {},
            "runs": {},
            "sealed": {},
        }
        if out.exists():
            self.result = json.loads(out.read_text(encoding="utf-8"))

    def run(self) -> None:
        """Run all stages."""
        self.result["starts"].append(provenance() | {"threads": torch.get_num_threads()})
        text = Text(self.work, self.sizes)
        evaluation = Evaluation(text, torch.load(self.work / "statistics.pt")["counts"])
        for arm in ARMS:
            if arm.name not in self.result["costs"]:
                self._keep("costs", arm.name, cost(arm, self.work, text))
        for run in self.searched():
            if run.name not in self.result["search"]:
                marks = {"steps": self.sizes.search_steps}
                self._keep("search", run.name, train(run, self.work, evaluation, marks, SEARCH))
        for run in self.compared():
            if run.name not in self.result["runs"]:
                found = train(run, self.work, evaluation, self.marks(run.arm))
                self._keep("runs", run.name, found)

    def read_sealed(self, path: Path) -> None:
        """Evaluate the kept weights of finished runs on windows of the sealed text.

        Args:
            path: compressed tokens of the sealed text.
        """
        content = lzma.decompress(path.read_bytes())
        tokens = np.frombuffer(content, dtype="<u2")
        text = Text(self.work, self.sizes)
        evaluation = Evaluation(text, torch.load(self.work / "statistics.pt")["counts"])
        windows = {"sealed": spaced(tokens, self.sizes.windows * SEALED, self.sizes.length)}
        self.result["sealed_sha256"] = hashlib.sha256(content).hexdigest()
        for run in self.compared():
            if run.name in self.result["runs"] and run.name not in self.result["sealed"]:
                training = Training(run, self.work, text)
                training.average.weights |= torch.load(weights_path(self.work, run))
                found = evaluation.measure(training, windows, self.sizes.draws)
                self._keep("sealed", run.name, found)

    def _keep(self, kind: str, name: str, found: dict[str, Any]) -> None:
        self.result[kind][name] = found
        text = json.dumps(self.result, indent=1)
        lines = re.sub(r"\[[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text)
        partial = self.out.with_suffix(".part")
        partial.write_text(lines + "\n", encoding="utf-8")
        partial.replace(self.out)
        print(f"{kind}: {name}", flush=True)

    def searched(self) -> Iterator[Run]:
        """Yield the runs that choose the learning rate of every head, under masks."""
        for head in HEADS:
            for factor in self.sizes.factors:
                yield Run(Arm(MASKS, head), factor, SEARCH_SEED)

    def best(self, head: str) -> float:
        """Return the learning rate of a head, in units of the base."""
        found = {
            run.factor: mean_of(self.result["search"][run.name]["marks"]["steps"])
            for run in self.searched()
            if run.arm.head == head
        }
        return min(found, key=found.__getitem__)

    def compared(self) -> Iterator[Run]:
        """Yield the runs of the comparison, seed by seed."""
        for seed in self.sizes.seeds:
            for arm in ARMS:
                yield Run(arm, self.best(arm.head), seed)

    def marks(self, arm: Arm) -> dict[str, int]:
        """Return the steps at which a run is compared with the layer over tokens.

        As many steps; steps with as many operations, and with as much processor time, as
        ``compute_steps`` of the layer over tokens.
        """
        marks = {"steps": self.sizes.steps}
        for kind in ("flops", "seconds"):
            ratio = self._cost(Arm(arm.process, FLAT))[kind] / self._cost(arm)[kind]
            marks[kind] = max(1, round(self.sizes.compute_steps * ratio))
        return marks

    def _cost(self, arm: Arm) -> dict[str, float]:
        return self.result["costs"].get(arm.name, ASSUMED[arm.process, arm.head == FLAT])

    def estimate(self) -> dict[str, float]:
        """Return the processor seconds of every stage without evaluations."""

        def seconds(arm: Arm, steps: int) -> float:
            return steps * self._cost(arm)["seconds"]

        longest = {arm: max(self.marks(arm).values()) for arm in ARMS}
        return {
            "costs": sum(seconds(arm, self.sizes.timed + 4) for arm in ARMS),
            "search": sum(seconds(run.arm, self.sizes.search_steps) for run in self.searched()),
            "runs": len(self.sizes.seeds) * sum(seconds(arm, longest[arm]) for arm in ARMS),
        }


def write_tiny_tokens(path: Path) -> None:
    """Write the bytes of a few speeches in place of the tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens = [[*text.encode()[:4999], TINY.words - 1] for text in sources().values()]
    path.write_bytes(lzma.compress(np.array(tokens, dtype="<u2").tobytes()))


def page_of(path: Path, out: Path, sizes: Sizes) -> str:
    """Return the page with the tables of the result file."""
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return page(path.read_text(encoding="utf-8"), tables(result, sizes), BEGIN, END)


def main(words: Sequence[str] | None = None) -> None:
    """Run the study, and write its tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, nargs="?", help="folder of the study")
    parser.add_argument("--tokens", type=Path, help="compressed tokens; by default those in WORK")
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the markers")
    parser.add_argument("--sealed", type=Path, help="compressed tokens of the sealed text")
    parser.add_argument("--estimate", action="store_true", help="print the seconds of every stage")
    parser.add_argument("--pages", action="store_true", help="write the tables alone")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all stages at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.pages:
        text = page_of(options.page, options.out, Sizes())
        options.page.write_text(text, encoding="utf-8")
        return
    if options.tiny is not None:
        options.out = options.tiny / "results.json"
        options.page = options.tiny / "heads.md"
        options.work = options.tiny
        write_tiny_tokens(options.tiny / FILE)
        options.page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    if options.work is None:
        parser.error("pass WORK, --pages or --tiny FOLDER")
    sizes = Sizes() if options.tiny is None else TINY
    study = Study(options.work, options.out, sizes)
    if options.estimate:
        for stage, seconds in study.estimate().items():
            print(f"{stage}: {seconds:,.0f} s")
        return
    prepare(options.work, options.tokens or options.work / FILE, sizes)
    if options.sealed is None:
        study.run()
    else:
        study.read_sealed(options.sealed)
    text = page_of(options.page, options.out, sizes)
    options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
