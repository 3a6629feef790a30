"""Measurements in order of priority, with limits and a deadline, which lose no result."""

import gc
import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import card
from benchmarks.measuring import command, machine

ROOT = Path(__file__).parent.parent


class Results:
    """Results in a file, each written as soon as it is there.

    Args:
        path: the file; results that it has are kept.
        device: "cuda" or "cpu".
    """

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.device = device
        self.runs: list[dict[str, Any]] = []
        if path.exists():
            self.runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        self.session = machine(device)["time"]
        self.here = {
            "code": code(),
            **{name: machine(device)[name] for name in ("device", "torch", "python")},
        }

    def add(self, run: Mapping[str, Any]) -> None:
        """Add a result and write all."""
        self.runs.append(dict(run))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"runs": self.runs}, indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)

    def latest(self, name: str) -> dict[str, Any] | None:
        """Return the latest result of an item by this code on such a device, or its failure."""
        runs = [run for run in self.runs if run["name"] == name and run["here"] == self.here]
        return runs[-1] if runs else None

    def latest_success(self, name: str) -> dict[str, Any] | None:
        """Return the latest result of an item; None if there is none or it failed."""
        run = self.latest(name)
        return None if run is None or is_failure(run) else run


Work = Callable[[Results], dict[str, Any]]


class Item(NamedTuple):
    """A measurement by its name, and the seconds that are expected for it."""

    name: str
    expected: float
    work: Work


class LimitError(BaseException):
    """An item exceeded its limit.

    It is not an ``Exception``: benchmarks note those of a method and go on.
    """


def is_failure(run: Mapping[str, Any]) -> bool:
    """Return whether a result is a failure or a limit exceeded."""
    return "error" in run or "skipped" in run


def code() -> str:
    """Return a hash of all code that is measured or measures."""
    total = hashlib.sha256()
    for package in ("ddlib", "ddlib_models", "recipes", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def in_order(items: Sequence[Item], results: Results) -> list[Item]:
    """Return the items to be measured: those that were never tried, then those that failed."""
    new = [item for item in items if results.latest(item.name) is None]
    again = [
        item for item in items if item not in new and results.latest_success(item.name) is None
    ]
    return [*new, *again]


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Return a context that is interrupted after so many seconds.

    Raises:
        LimitError: from inside the context.
    """

    def stop(*_: Any) -> None:
        raise LimitError

    before = signal.signal(signal.SIGALRM, stop)
    # every 5 s again, if a callback of C loses the exception
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(item: Item, results: Results, limit: float) -> dict[str, Any]:
    """Measure an item and return its result, or its failure."""
    torch.compiler.reset()
    gc.collect()
    if results.device == "cuda":
        torch.cuda.empty_cache()
    before = card.state()
    begin = time.perf_counter()
    try:
        with limit_time(limit):
            outcome = item.work(results)
    except LimitError:
        outcome = {"skipped": f"exceeded its limit of {limit:.0f} s"}
    except Exception as error:  # one item must not take the others' results away
        outcome = {"error": f"{type(error).__name__}: {error}"[:500]}
    return {
        "name": item.name,
        "here": results.here,
        "session": results.session,
        "command": command(),
        "machine": machine(results.device),
        "wall_s": time.perf_counter() - begin,
        "before": before,
        "after": card.state(),
        **outcome,
    }


def climb(
    items: Sequence[Item],
    results: Results,
    deadline: float,
    after: Callable[[Mapping[str, Any]], Any],
) -> None:
    """Measure items in order until the deadline; one that does not fit into the rest is left out.

    Args:
        items: the items in order of priority.
        results: where results are added.
        deadline: seconds from now.
        after: function that is called with each result.
    """
    end = time.monotonic() + deadline
    for item in in_order(items, results):
        rest = end - time.monotonic()
        if item.expected > rest:
            print(
                f"{item.name:<36} left out: expected {item.expected:.0f} s, left {rest:.0f} s",
                flush=True,
            )
            continue
        results.add(attempt(item, results, min(2 * item.expected, rest)))
        after(results.runs[-1])
        if is_failure(results.runs[-1]) and results.device == "cuda":
            torch.cuda.synchronize()  # raises after an illegal access: nothing more can be measured
