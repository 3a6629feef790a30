"""Selection of the tests that fit a time budget, from measured durations.

    pytest --budget 300              # at most 300 seconds on the workers of this run (the default)
    pytest --budget 0                # every test, every example of a property
    pytest --budget 0 --measure      # and write their durations to tests/durations.json

Tests come in ascending order of duration, the fastest case of each as if it took a tenth. A test
that has not been measured counts as fast. A run of a few files fits the budget as a whole.
"""

import json
import os
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
SHORTEST = 0.05
"""Seconds of a test that the file does not list."""
FIRST = 0.1
"""Factor of the duration of the fastest case of a test in the order of selection."""
USED = 0.85
"""Share of the workers' time that tests use; the rest is collection, imports and idle workers."""


def add_options(parser):
    group = parser.getgroup("budget")
    group.addoption("--budget", type=float, default=300, help="seconds of a run; 0: all tests")
    group.addoption("--measure", action="store_true", help=f"write durations to {FILE.name}")


def unlimited(config):
    return config.getoption("budget") == 0


def record(config):
    """Record the durations if asked to, on the process that starts the workers."""
    if config.getoption("measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


@pytest.hookimpl(trylast=True)  # after the selection by -m and -k
def pytest_collection_modifyitems(config, items):
    seconds = durations()
    cost = {item: seconds.get(place(item.nodeid), SHORTEST) for item in items}
    # the longest start first, so that no worker is idle at the end
    items.sort(key=lambda item: -cost[item])
    if unlimited(config):
        return
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    selected = select(cost, config.getoption("budget") * workers * USED)
    if len(selected) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = [item for item in items if item in selected]


def select(cost, capacity):
    """Return the items that fit the capacity, in the order of the docstring of this module."""
    first = set()
    tests = set()
    for item in sorted(cost, key=cost.get):
        test = (item.path, getattr(item, "originalname", item.name))
        if test not in tests:
            tests.add(test)
            first.add(item)
    selected = set()
    for item in sorted(cost, key=lambda item: cost[item] * (FIRST if item in first else 1)):
        if cost[item] <= capacity:
            capacity -= cost[item]
            selected.add(item)
    return selected


def durations():
    """Return the measured seconds by (file, test)."""
    if not FILE.exists():
        return {}
    stored = json.loads(FILE.read_text())
    return {(file, test): cost for file, tests in stored.items() for test, cost in tests.items()}


def place(nodeid):
    """Return the file and the rest of the name of a test."""
    file, _, test = nodeid.partition("::")
    return file, test


class Durations:
    """Seconds of each test, with its fixtures."""

    def __init__(self):
        self.seconds = {}

    def pytest_runtest_logreport(self, report):
        key = place(report.nodeid)
        self.seconds[key] = self.seconds.get(key, 0.0) + report.duration

    def pytest_sessionfinish(self):
        measured = {key for key, cost in self.seconds.items() if cost > SHORTEST}
        kept = {key: cost for key, cost in durations().items() if key not in self.seconds}
        seconds = kept | {key: round(self.seconds[key], 1) for key in measured}
        files = {}
        for (file, test), cost in sorted(seconds.items()):
            files.setdefault(file, {})[test] = cost
        FILE.write_text(json.dumps(files, indent=0) + "\n")
