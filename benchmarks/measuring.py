"""How everything is measured: ratios within one run, medians of several, CPU seconds on one thread.

The machine is shared: wall clock says little, the processor's time much. Methods take turns, so that what disturbs one
disturbs all.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def seconds(methods: Mapping[str, Callable[[], Any]], repeats: int = 5) -> dict[str, list[float]]:
    """CPU seconds of every method, in turns, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(repeats + 1):
        for name, method in methods.items():
            begin = time.process_time()
            method()
            if turn:
                taken[name].append(time.process_time() - begin)
    return taken


def medians(taken: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of every method."""
    return {name: statistics.median(values) for name, values in taken.items()}


def peak_megabytes(work: Callable[[], Any]) -> float:
    """How much more memory this process holds at its worst during ``work`` than before it; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def in_its_own_process(script: str, *arguments: str) -> str:
    """What a Python script of this folder prints when it is run afresh: memory of one method disturbs no other."""
    command = [sys.executable, str(Path(__file__).parent / script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    return done.stdout


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": ["python", *sys.argv],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def report(name: str, rows: Mapping[str, Any]) -> None:
    """Writes results/NAME.json, with the machine in it, and prints it."""
    text = json.dumps({"machine": machine(), "rows": rows}, indent=1)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def _status(field: str) -> float:
    return next(float(line.split()[1]) for line in _lines("/proc/self/status") if line.startswith(field))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
