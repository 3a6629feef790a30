"""Imports and calls leave random generators and warning filters as they are."""

import subprocess
import sys

import pytest

BEGIN = """
import random, sys, warnings
import numpy, torch

def state():
    of_torch = torch.random.get_rng_state().tolist()
    generators = random.getstate(), str(numpy.random.get_state()), of_torch
    return *generators, list(warnings.filters)

before = state()
"""
END = """
names = ("random", "numpy", "torch", "filters")
changed = [name for name, one, other in zip(names, before, state()) if one != other]
sys.exit(f"changed: {changed}" if changed else 0)
"""


def assert_unchanged(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + END], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


CODES = [
    "import recipes.train",
    "dd.verify(dd.schedules.Cosine())",
    "dd.schedules.Rate('1/(1 - t)').expression()",
    "dd.schedules.Linear().expression()",
    "dd.times.Beta(2.0, 1.0).cumulative(torch.tensor([0.5], dtype=torch.float64))",
    "dd.verify(dd.presets.mdlm(3))",
]


@pytest.mark.parametrize("code", CODES)
def test_imports_and_calls_change_no_state_of_others(code: str) -> None:
    assert_unchanged(f"import ddlib as dd\n{code}")
