"""Objects shared by threads: a table that is filled on first use is the same for all of them, and
afterwards.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import mpmath
import pytest
import torch
from tokenizers import Tokenizer, models
from zoo.processes import F64

import ddlib as dd
from ddlib.contrib import Automaton
from ddlib.integrations.positions import Positions
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import MatrixExponential, RateMatrix
from ddlib.schedules.symbolic import digits
from recipes.data.unknown import Symbols

THREADS = 4


@pytest.fixture(autouse=True)
def threads_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def ring(size: int) -> torch.Tensor:
    step = torch.eye(size, dtype=F64)
    return step.roll(1, 1) - step


def transitions(thread: int) -> Callable[[MatrixExponential], Any]:
    """Durations from another place of the table on for each thread."""
    return lambda exponential: [
        exponential(torch.tensor(4.0**k + 2.3, dtype=F64)) for k in range(thread, 8)
    ]


def exponential() -> MatrixExponential:
    return MatrixExponential(ring(5))


def process_of_a_worker() -> RateMatrix:
    return pickle.loads(pickle.dumps(RateMatrix(ring(6) * 300, dd.schedules.Linear())))


def automaton() -> Automaton:
    return Automaton({i: {0: i + 1, 1: i} for i in range(40)}, 0, [40], 2)


def symbols() -> Symbols:
    return Symbols(Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))


CASES: dict[str, tuple[Callable[[], Any], Callable[[int], Callable[[Any], Any]]]] = {
    "MatrixExponential": (exponential, transitions),
    "RateMatrix": (
        process_of_a_worker,
        lambda thread: (
            lambda process: [
                process.transition(0.0, 1 - 10.0**-place) for place in range(thread + 1, 14)
            ]
        ),
    ),
    "Automaton.ending": (automaton, lambda thread: lambda a: a.ending(10 * thread + 9)),
    "Positions": (
        lambda: Positions(torch.arange(12)[:, None], passes=8),
        lambda thread: lambda data: [int(data[12 * k + thread + 1]["input_ids"]) for k in range(8)],
    ),
    "Children": (
        lambda: Children(dd.hierarchies.Tree([[0, 0, 1, 1], [0, 0]])),
        lambda thread: lambda c: (c.levels_of(c.tree), c.families(thread % 2).parents),
    ),
    "Optimal": (
        lambda: (dd.weightings.Optimal(2), dd.presets.mdlm(4)),
        lambda thread: lambda pair: pair[0].factor(pair[1], torch.linspace(0.1, 0.9, 5)),
    ),
    "Schedule": (
        dd.schedules.Cosine,
        lambda thread: lambda s: s.hazard(torch.linspace(0, 0.2, 9, dtype=F64)),
    ),
    "Halton": (lambda: dd.contrib.Halton((3, 4)), lambda thread: lambda pace: pace.ranks),
    "Symbols": (symbols, lambda thread: lambda s: [s._is_left_out(letter) for letter in "abcdef"]),
}


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of calls that begin together, each in its own thread."""
    start = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def assert_equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_tables_that_threads_fill_together_are_those_of_one_thread(name: str) -> None:
    make, use = CASES[name]
    expected = [use(thread)(make()) for thread in range(THREADS)]
    for _ in range(30):
        shared = make()
        found = at_once([partial(use(thread), shared) for thread in range(THREADS)])
        assert_equal(found, expected)
        assert_equal([use(thread)(shared) for thread in range(THREADS)], expected)


def test_the_precision_of_mpmath_is_that_of_one_thread_at_a_time():
    """It is global: a thread that left it restored it for another that was still inside."""

    def precisions(thread: int) -> set[int]:
        found = set()
        for _ in range(200):
            with digits(20 + thread):
                found |= {mpmath.mp.dps for _ in range(20)}
        return found

    assert at_once([partial(precisions, thread) for thread in range(THREADS)]) == [
        {20 + k} for k in range(THREADS)
    ]
