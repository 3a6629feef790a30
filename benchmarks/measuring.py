"""Measurement method: ratios within one run, medians of several, CPU seconds on one thread.

The machine may be shared, so the processor's time is more reliable than wall time. Methods take
turns, so that disturbances affect all alike. On a GPU seconds are wall time, with the device idle
at both ends.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import ddlib

RESULTS = Path(__file__).parent / "results"
FRESH = "fresh"
"""Subfolder of results measured with freed memory returned to the system."""
ONE_THREAD = "one thread of the processor"
REPEATS = 5
"""Minimum number of timings for a median."""


def now(device: str = "cpu") -> float:
    """Return the CPU seconds of this process; on a GPU wall seconds, after synchronising."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds(
    methods: Mapping[str, Callable[[], Any]], repeats: int = REPEATS, device: str = "cpu"
) -> dict[str, list[float]]:
    """Time every method, in turns. Each has run once before: callers compare the results first."""
    timings: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            begin = now(device)
            method()
            timings[name].append(now(device) - begin)
    return timings


def medians(timings: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of every method."""
    return {name: statistics.median(values) for name, values in timings.items()}


def over_ours(values: Mapping[str, float], quantity: str) -> dict[str, float]:
    """Return every method's value over that of ``ours``, named ``METHOD QUANTITY``."""
    return {
        f"{name} {quantity}": value / values["ours"]
        for name, value in values.items()
        if name != "ours"
    }


def require_equal(values: Mapping[str, float], tolerance: float = 1e-4) -> None:
    """Raise AssertionError unless all methods give the result of ``ours``, so that they are
    comparable.
    """
    for name, value in values.items():
        if not abs(value - values["ours"]) <= tolerance * abs(values["ours"]):
            raise AssertionError(
                f"{name} gives {value}, ours {values['ours']}: not the same number, not timed"
            )


def peak_megabytes(work: Callable[[], Any]) -> float:
    """Return the peak memory of this process during ``work``, minus that before it; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def in_its_own_process(module: str, *arguments: str) -> str:
    """Return the output of a module of this package in a new process: one method's memory does not
    affect another.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=root
    )
    return done.stdout


def command_line(doc: str) -> ArgumentParser:
    """Return the parser of a benchmark's command: its description, ``--repeats`` and ``--tiny``."""
    parser = ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--tiny", action="store_true", help="small sizes: a test run")
    return parser


def require_gpu(parser: ArgumentParser) -> None:
    """End a command that cannot measure anything on this machine."""
    if not torch.cuda.is_available():
        parser.error("no CUDA device: this benchmark requires a GPU")


def machine(device: str = "cpu") -> dict[str, Any]:
    """Describe the machine of the measurement, and its date."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        "",
    )
    return {
        "device": f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
        if device == "cuda"
        else ONE_THREAD,
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ddlib": ddlib.__version__,
        **{
            package: _version(package) for package in ("triton", "liger-kernel") if device == "cuda"
        },
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def command() -> str:
    """Return the command line, without paths of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return " ".join(["python", "-m", spec.name if spec else Path(sys.argv[0]).stem, *sys.argv[1:]])


def report(
    name: str, runs: Sequence[Mapping[str, Any]], device: str = "cpu", folder: Path = RESULTS
) -> None:
    """Write FOLDER/NAME.json: the machine, the command and every run, each with its ``ratios``.

    The table's source.
    """
    text = json.dumps({"command": command(), "machine": machine(device), "runs": runs}, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _status(field: str) -> float:
    return next(
        float(line.split()[1]) for line in _lines("/proc/self/status") if line.startswith(field)
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except FileNotFoundError:  # not Linux
        return []
