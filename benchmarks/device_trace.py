"""Busy and idle time of a GPU in profiled steps: the union of intervals of kernels and copies."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measuring import now

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
"""Categories of events in a Chrome trace of torch.profiler: work of the GPU, calls of the host."""
NAME = 160
"""Number of characters of a kernel's name that are kept: names of templates have thousands."""

Event = Mapping[str, Any]


def profile_steps(step: Callable[[], Any], steps: int, device: str) -> dict[str, Any]:
    """Profile some steps and return their ``summary``.

    On a GPU only the device and the calls to it are recorded, not torch's operations, whose record
    slows the host down.
    """
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        begin = now(device)
        for _ in range(steps):
            step()
        seconds = now(device) - begin
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        profiler.export_chrome_trace(str(path))
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    return summary(events, seconds, steps)


def summary(events: Sequence[Event], seconds: float, steps: int, top: int = 15) -> dict[str, Any]:
    """Summarise the events of a Chrome trace for one of ``steps`` steps, ``seconds`` together.

    Returns:
        milliseconds of the step, and of it those in which the GPU was busy and idle; the number of
        kernels, of launches by the host, and of calls that wait for the device; the ``top`` kernels
        by their time, and the longest gaps, each with the kernels before and after it.
    """
    work = [event for event in events if event.get("ph") == "X" and event.get("cat") in ON_DEVICE]
    work.sort(key=lambda event: event["ts"])
    busy, gaps = union(work)
    times = defaultdict[str, float](float)
    counts = Counter[str]()
    for event in work:
        times[event["name"]] += event["dur"]
        counts[event["name"]] += 1
    calls = Counter(event["name"] for event in events if event.get("cat") in CALLS)
    longest = sorted(times, key=lambda name: -times[name])[:top]
    milliseconds = 1000 * seconds / steps
    return {
        "ms": milliseconds,
        "busy_ms": busy / 1000 / steps,
        "idle_ms": milliseconds - busy / 1000 / steps,
        "kernels": len(work) / steps,
        "launches": sum(count for name, count in calls.items() if "Launch" in name) / steps,
        "waits": sum(count for name, count in calls.items() if "Synchronize" in name) / steps,
        "top": [
            {
                "name": name[:NAME],
                "ms": times[name] / 1000 / steps,
                "calls": counts[name] / steps,
            }
            for name in longest
        ],
        "gaps": [
            {
                "ms": gap / 1000,
                "after": before[:NAME],
                "before": after[:NAME],
            }
            for gap, before, after in gaps[:top]
        ],
    }


def union(intervals: Sequence[Event]) -> tuple[float, list[tuple[float, str, str]]]:
    """Return the microseconds that intervals, sorted by their beginnings, cover, and the gaps.

    Gaps are sorted by length, the longest first, each with the names before and after it.
    """
    covered = 0.0
    gaps: list[tuple[float, str, str]] = []
    end = 0.0
    last = ""
    for number, event in enumerate(intervals):
        begin = event["ts"]
        finish = event["ts"] + event["dur"]
        if number and begin > end:
            gaps.append((begin - end, last, event["name"]))
        start = max(begin, end) if number else begin
        covered += max(finish - start, 0.0)
        if finish > end:
            end = finish
            last = event["name"]
    return covered, sorted(gaps, reverse=True)


def peak_bytes(device: str) -> int | None:
    """Return the peak memory of the GPU since the last call; None on a CPU."""
    if device != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak
