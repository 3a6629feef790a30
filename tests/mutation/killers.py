"""Pytest plugin for mutation testing.

Fewer examples per property, and an order that runs different tests first.

Most mutants fail a cheap test within milliseconds, by an error or a wrong shape. Therefore cheap
tests run first, and the cases of a test function do not run in succession. Environment variables:

DDLIB_MUTATION_EXAMPLES    examples per property, or "all" for the number of each test
DDLIB_MUTATION_CASES       cases per parametrised test outside of DISTINCT, or "all"
DDLIB_MUTATION_LONGEST     longest measured time of a test in seconds, or "all"
"""

import gc
import json
import os
from collections import Counter
from pathlib import Path

os.environ["DDLIB_PLUGINS"] = "0"

import hypothesis

STATS = Path("mutmut-stats.json")
DISTINCT = {"test_bad_input.py", "test_contracts.py", "test_draws.py"}
PHASES = (
    hypothesis.Phase.explicit,
    hypothesis.Phase.generate,
)  # no shrinking: any counterexample is enough


def pytest_sessionstart(session):
    # workers inherit these objects; pytest runs the garbage collector five times at the end
    gc.freeze()


def limit(name, default):
    value = os.environ.get(f"DDLIB_MUTATION_{name}", default)
    return float("inf") if value == "all" else float(value)


def pytest_collection_modifyitems(config, items):
    examples = limit("EXAMPLES", "4")
    cases = limit("CASES", "5")
    longest = limit("LONGEST", "0.35")
    seconds = json.loads(STATS.read_text())["duration_by_test"] if STATS.exists() else {}
    rank = {}
    seen = Counter()
    for item in items:
        function = getattr(item, "function", None)
        # cases for different processes of zoo/processes.py detect different mutants
        own = item.path.name in DISTINCT or "process" in getattr(
            getattr(item, "callspec", None), "params", {}
        )
        rank[item] = 0 if own else seen[function]
        seen[function] += 1
        if hasattr(function, "hypothesis"):
            old = function._hypothesis_internal_use_settings
            few = int(min(examples, old.max_examples))
            function._hypothesis_internal_use_settings = hypothesis.settings(
                old, max_examples=few, phases=PHASES
            )
    kept = [i for i in items if rank[i] < cases and seconds.get(i.nodeid, 0.0) <= longest]
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = sorted(kept, key=lambda i: (int(10 * seconds.get(i.nodeid, 0.0)), rank[i]))
