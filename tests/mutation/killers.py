"""A pytest plugin for mutation testing: one thread, fewer examples per property, a spread of tests first.

Most mutants die within milliseconds, of a refusal or a wrong shape, so cheap tests come first and the cases of one test
function are spread out. Environment:

DDLIB_MUTATION_EXAMPLES    examples per property, or "all" for the number of each test
DDLIB_MUTATION_CASES       cases per parametrised test outside of DISTINCT, or "all"
DDLIB_MUTATION_LONGEST     seconds a test may have taken when it was timed, or "all"
DDLIB_MUTATION_SHAPECHECK  "1" for the shape checks of every call, off otherwise: they double the time
"""

import gc
import json
import os
from collections import Counter
from pathlib import Path

os.environ["DDLIB_SHAPECHECK"] = os.environ.get("DDLIB_MUTATION_SHAPECHECK", "0")
os.environ["DDLIB_PLUGINS"] = "0"

import hypothesis

STATS = Path("mutmut-stats.json")
DISTINCT = {"test_bad_input.py", "test_contracts.py", "test_draws.py"}
PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a mutant needs no smallest counterexample


def pytest_sessionstart(session):
    gc.freeze()  # what a worker inherits is not garbage, and pytest collects five times at the end


def limit(name, default):
    value = os.environ.get(f"DDLIB_MUTATION_{name}", default)
    return float("inf") if value == "all" else float(value)


def pytest_collection_modifyitems(config, items):
    examples, cases, longest = limit("EXAMPLES", "4"), limit("CASES", "5"), limit("LONGEST", "0.35")
    seconds = json.loads(STATS.read_text())["duration_by_test"] if STATS.exists() else {}
    rank, seen = {}, Counter()
    for item in items:
        function = getattr(item, "function", None)
        # a case for each of the processes of zoo.py finds other mutants than the case before
        own = item.path.name in DISTINCT or "process" in getattr(getattr(item, "callspec", None), "params", {})
        rank[item] = 0 if own else seen[function]
        seen[function] += 1
        if hasattr(function, "hypothesis"):
            old = function._hypothesis_internal_use_settings
            few = int(min(examples, old.max_examples))
            function._hypothesis_internal_use_settings = hypothesis.settings(old, max_examples=few, phases=PHASES)
    kept = [i for i in items if rank[i] < cases and seconds.get(i.nodeid, 0.0) <= longest]
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = sorted(kept, key=lambda i: (int(10 * seconds.get(i.nodeid, 0.0)), rank[i]))
