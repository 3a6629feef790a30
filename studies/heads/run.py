"""Run of the study of output layers, and its tables in docs/studies/heads.md.

    python -m studies.heads.run WORK --tokens FILE   # what the result file lacks, then the tables
    # all finished runs on the sealed text, each once
    python -m studies.heads.run WORK --sealed TEXTS CORPUS/gpt2/tokenizer.json
    python -m studies.heads.run WORK --estimate      # seconds of every stage
    python -m studies.heads.run --pages              # the tables and pictures alone
    python -m studies.heads.run --tiny FOLDER        # all of it but the sealed text, in seconds

FILE holds compressed GPT-2 tokens, as ``python -m studies.corpus.build CORPUS`` writes them; TEXTS
is the working folder of ``studies.weights.run``. The same command continues after a kill, and may
be started more than once at a time. The protocol is protocol.md. One thread.
"""

import argparse
import fcntl
import json
import lzma
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipes.engine.provenance import provenance
from studies.corpus.build import FILE
from studies.heads.figure import draw
from studies.heads.models import AR, FLAT, HDLM, MASKS, Arm
from studies.heads.pages import BEGIN, HEADS, PAGE, PROCESSES, arms, tables
from studies.heads.sizes import TINY, Sizes
from studies.heads.text import SEARCH, TEST, Text, prepare, sealed_windows
from studies.heads.training import (
    Evaluation,
    Run,
    Training,
    costs,
    mean_of,
    state_path,
    train,
    weights_path,
)
from studies.page import page
from studies.runs import written
from studies.smoke import sources
from studies.tables import END

RESULTS = Path(__file__).parent / "results.json"
ARMS = tuple(arm for process in PROCESSES for arm in arms(process))
SEARCH_SEED = 100
PAUSE = 30
"""Seconds between looks at the search that other processes make."""
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


@contextmanager
def claim(path: Path, wait: bool = False) -> Iterator[bool]:
    """Lock a file of this name until the end of the block, or of the process.

    Yields whether the lock is held: without ``wait`` it is not where another process holds it.
    """
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


class Study:
    """The stages of the study: each makes the runs that the result file lacks.

    Several processes with the same folder and file share the runs: each takes those that no other
    one has begun.

    Args:
        work: folder of tokens, trees, states and weights.
        out: result file, written after each run.
        sizes: sizes of the study.
    """

    def __init__(self, work: Path, out: Path, sizes: Sizes) -> None:
        self.work = work
        self.out = out
        self.sizes = sizes

    def result(self) -> dict[str, Any]:
        """Return the content of the result file."""
        if not self.out.exists():
            return {"starts": [], "costs": {}, "search": {}, "runs": {}, "sealed": {}}
        return json.loads(self.out.read_text(encoding="utf-8"))

    def run(self) -> None:
        """Make all runs but those that another process makes now."""
        with self._change() as result:
            result["starts"].append(provenance() | {"threads": torch.get_num_threads()})
        text = Text(self.work, self.sizes)
        evaluation = Evaluation(text, torch.load(self.work / "statistics.pt")["counts"])
        with claim(self._lock("costs"), wait=True):
            self._measure_costs(text)
        marks = {"steps": self.sizes.search_steps}
        while not self.complete("search", self.searched()):
            if not self._make("search", self.searched(), lambda _: marks, evaluation, SEARCH):
                time.sleep(PAUSE)  # other processes make what is left, and may extend the search
        self._make("runs", self.compared(), lambda run: self.marks(run.arm), evaluation, TEST)

    def complete(self, kind: str, runs: Iterable[Run]) -> bool:
        """Return whether the result file has all of these runs."""
        return {run.name for run in runs} <= self.result()[kind].keys()

    def _measure_costs(self, text: Text) -> None:
        for process in PROCESSES:
            every = [*arms(process)]
            if all(arm.name in self.result()["costs"] for arm in every):
                continue
            found = costs(every, self.work, text)
            with self._change() as result:
                result["costs"] |= {arm.name: cost for arm, cost in found.items()}

    def _make(
        self,
        kind: str,
        runs: Iterable[Run],
        marks: Callable[[Run], Mapping[str, int]],
        evaluation: Evaluation,
        part: str,
    ) -> bool:
        """Make the runs that are missing and that no other process makes; return whether there was
        one.
        """
        made = False
        for run in runs:
            with claim(self._lock(f"{kind}-{run.file}")) as mine:
                if not mine or run.name in self.result()[kind]:
                    continue
                found = train(run, self.work, evaluation, marks(run), part)
                self._keep(kind, run.name, found)
                state_path(self.work, run, part).unlink()
                made = True
        return made

    def read_sealed(self, texts: Path, tokenizer: Path) -> None:
        """Evaluate the kept weights of the finished runs on the sealed text, each once.

        Args:
            texts: as ``sealed_windows``.
            tokenizer: as ``sealed_windows``.

        Raises:
            FileNotFoundError, ValueError: as ``sealed_windows``.
            SystemExit: a run of the search is missing. Nothing may be chosen after the sealed text
                is read.
        """
        if not self.complete("search", self.searched()):
            raise SystemExit(f"--sealed: {self.out} lacks runs of the search, which come before")
        text = Text(self.work, self.sizes)
        evaluation = Evaluation(text, torch.load(self.work / "statistics.pt")["counts"])
        windows = {"sealed": sealed_windows(texts, tokenizer, self.sizes)}
        result = self.result()
        for run in self.compared():
            if run.name in result["runs"] and run.name not in result["sealed"]:
                training = Training(run, self.work, text)
                training.average.weights |= torch.load(weights_path(self.work, run))
                training.steps = result["runs"][run.name]["marks"]["steps"]["steps"]
                found = evaluation.measure(training, windows, self.sizes.draws)
                self._keep("sealed", run.name, found)

    def _lock(self, name: str) -> Path:
        return self.work / "locks" / name

    @contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        """Yield the content of the result file, and write it at the end of the block."""
        with claim(self._lock("result"), wait=True):
            result = self.result()
            yield result
            written(self.out, result)

    def _keep(self, kind: str, name: str, found: dict[str, Any]) -> None:
        with self._change() as result:
            result[kind][name] = found
        print(f"{kind}: {name}", flush=True)

    def searched(self) -> Iterator[Run]:
        """Yield the runs that choose the learning rate of every head, under masks."""
        for head in HEADS:
            for factor in self.factors(head):
                yield searched_run(head, factor)

    def factors(self, head: str) -> list[float]:
        """Return the learning rates of a head in units of the base, in ascending order.

        The next one is among them where the best of those that are measured is the first or last.
        """
        factors = list(self.sizes.factors)
        search = self.result()["search"]
        for _ in range(self.sizes.further):
            if not all(searched_run(head, factor).name in search for factor in factors):
                break
            best = min(factors, key=lambda factor: searched_nats(search, head, factor))
            if best == factors[0]:
                factors.insert(0, best / 2)
            elif best == factors[-1]:
                factors.append(best * 2)
        return factors

    def best(self, head: str) -> float:
        """Return the learning rate of a head, in units of the base."""
        search = self.result()["search"]
        return min(self.factors(head), key=lambda factor: searched_nats(search, head, factor))

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
        return self.result()["costs"].get(arm.name, ASSUMED[arm.process, arm.head == FLAT])

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


def searched_run(head: str, factor: float) -> Run:
    """Return the run of the search of a head with a learning rate in units of the base."""
    return Run(Arm(MASKS, head), factor, SEARCH_SEED)


def searched_nats(search: Mapping[str, Any], head: str, factor: float) -> float:
    """Return the nats per token of a run of the search; infinity if it diverged."""
    nats = mean_of(search[searched_run(head, factor).name]["marks"]["steps"])
    return math.inf if math.isnan(nats) else nats


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
    parser.add_argument(
        "--sealed",
        type=Path,
        nargs=2,
        metavar=("TEXTS", "TOKENIZER"),
        help="read the finished runs on the sealed text",
    )
    parser.add_argument("--estimate", action="store_true", help="print the seconds of every stage")
    parser.add_argument("--pages", action="store_true", help="write the tables and pictures")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all stages at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.pages:
        text = page_of(options.page, options.out, Sizes())
        options.page.write_text(text, encoding="utf-8")
        images = options.page.parents[1] / "images"
        draw(json.loads(options.out.read_text(encoding="utf-8")), Sizes(), images)
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
        study.read_sealed(*options.sealed)
    text = page_of(options.page, options.out, sizes)
    options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
