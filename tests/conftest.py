"""Configuration of all tests.

Shape and type checks of ddlib, selected cases, and reproducible property tests.
"""

import gc
import os

# set before ddlib is imported, which reads it; processes that a test starts inherit it
os.environ.setdefault("DDLIB_SHAPECHECK", "1")

import pytest
import torch
from budget import (  # hooks of pytest
    pytest_addoption,  # noqa: F401
    pytest_collection_modifyitems,  # noqa: F401
    record,
    unlimited,
)
from cases import check_calls_of, first_call, unchecked
from hypothesis import HealthCheck, settings

from ddlib.utils import shapecheck

settings.register_profile(
    "full", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
# A run with a budget draws an eighth of the examples of a property, `pytest --budget 0` all. A test
# that sets `max_examples` scales the number with `examples` of cases.py.
whole = settings.get_profile("full")
settings.register_profile("part", whole, max_examples=whole.max_examples // 8)
# `pytest --hypothesis-profile=explore` draws new examples at every run
settings.register_profile(
    "explore", settings.get_profile("full"), derandomize=False, print_blob=True
)
torch.set_num_threads(1)


def pytest_configure(config):
    profile = "full" if unlimited(config) else "part"
    settings.load_profile(config.getoption("hypothesis_profile") or profile)
    record(config)
    gc.disable()  # until all tests are collected: modules and tests are not garbage
    if not unlimited(config):
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
