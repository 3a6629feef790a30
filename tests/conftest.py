"""Configuration of all tests.

Shape and type checks of ddlib, selected cases, and reproducible property tests.
"""

import gc
import os

# set before ddlib is imported, which reads it; processes that a test starts inherit it
os.environ.setdefault("DDLIB_SHAPECHECK", "1")

import pytest
import torch
from cases import check_calls_of, first_call, unchecked
from hypothesis import HealthCheck, settings

from ddlib.utils import shapecheck

settings.register_profile(
    "full", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
# `make test` and `make test-slow` run an eighth of the examples of a property, `make test-all` runs
# all. A test that sets `max_examples` scales the number with `examples` of cases.py.
whole = settings.get_profile("full")
settings.register_profile("part", whole, max_examples=whole.max_examples // 8)
# `pytest --hypothesis-profile=explore` draws new examples at every run
settings.register_profile(
    "explore", settings.get_profile("full"), derandomize=False, print_blob=True
)
settings.load_profile("part")
torch.set_num_threads(1)


EVERY, MANY = 4, 12
"""`make test-slow` runs every fourth case of a slow test with more than ``MANY`` cases, `make
test-all` all cases.
"""
WHOLE_PAGES = ("test_docs.py", "test_notebooks.py")
EACH_ITS_OWN = (
    "test_docs.py",
    "test_contracts.py",
    "test_faults.py",
    "test_recipes.py",
    "test_study.py",
)
"""Files of which every case runs: the cases test different things, or are already a selection."""


@pytest.hookimpl(trylast=True)  # after the selection by -m and -k
def pytest_collection_modifyitems(config, items):
    # pages take longest: they start first, so that no worker is idle at the end
    items.sort(key=lambda item: item.path.name not in WHOLE_PAGES)
    if full(config):
        return
    cases = {}
    for item in items:
        if item.get_closest_marker("slow") and item.path.name not in EACH_ITS_OWN:
            cases.setdefault((item.path, item.originalname), []).append(item)
    left_out = {
        item
        for many in cases.values()
        if len(many) > MANY
        for i, item in enumerate(many)
        if i % EVERY
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_configure(config):
    gc.disable()  # until all tests are collected: modules and tests are not garbage
    if not full(config):
        shapecheck._strict = first_call(shapecheck._strict)


def pytest_collection_finish(session):
    gc.enable()
    gc.freeze()  # imported modules stay alive: the garbage collector need not traverse them


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup(item):
    check_calls_of(item.nodeid)


def pytest_unconfigure(config):
    gc.unfreeze()


@pytest.fixture(autouse=True)
def warned_of_anew(monkeypatch):
    """Reset the warnings that ddlib issues once per process, so that every test can expect them."""
    monkeypatch.setattr("ddlib.utils.validation._warned", set())


def full(config):
    return config.getoption("hypothesis_profile") not in (None, "part")


@pytest.fixture
def as_users_call():
    """Disable the checks of jaxtyping, which are off by default for users, so that ddlib raises the
    errors.
    """
    with unchecked():
        yield


@pytest.fixture
def products(monkeypatch):
    """List of (rows of the input, rows of the weight) of every product with a part of the output
    layer.
    """
    seen = []

    def counted(hidden, weight, bias=None):
        seen.append((len(hidden), len(weight)))
        return torch.nn.functional.linear(hidden, weight, bias)

    monkeypatch.setattr("ddlib.samplers.runtime.output_layer.linear", counted)
    return seen
