"""Configuration of all tests: shape and type checks of ddlib, selected cases, and reproducible
property tests.
"""

import gc

import pytest
import torch
from budget import add_options as add_budget
from budget import (
    pytest_collection_modifyitems,  # noqa: F401
    record,
    unlimited,
)
from hypothesis import HealthCheck, settings
from shapes import check_shapes, unchecked

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


def pytest_addoption(parser):
    add_budget(parser)
    parser.addoption("--shapes", action="store_true", help="check shapes at every call of ddlib")
    parser.addoption("--mutation", action="store_true", help="plugin tests/mutation/killers.py")


def pytest_configure(config):
    profile = "full" if unlimited(config) else "part"
    settings.load_profile(config.getoption("hypothesis_profile") or profile)
    record(config)
    gc.disable()  # until all tests are collected: modules and tests are not garbage
    if config.getoption("shapes"):
        check_shapes()
    if config.getoption("mutation"):
        # not by -p tests.mutation.killers: a package that is installed as `tests` hides this folder
        config.pluginmanager.import_plugin("mutation.killers")


def pytest_collection_finish(session):
    gc.enable()
    gc.freeze()  # imported modules stay alive: the garbage collector need not traverse them


def pytest_unconfigure(config):
    gc.unfreeze()


@pytest.fixture(autouse=True)
def warned_of_anew(monkeypatch):
    """Reset the warnings that ddlib issues once per process, so that every test can expect them."""
    monkeypatch.setattr("ddlib.utils.validation._warned", set())


@pytest.fixture
def as_users_call():
    """Disable the checks of jaxtyping, which users do not run, so that ddlib raises the errors."""
    with unchecked():
        yield


@pytest.fixture
def compilable(request):
    """Skip the test where calls are checked: torch cannot compile functions that jaxtyping wraps,
    even if the checks are disabled.
    """
    if request.config.getoption("shapes"):
        pytest.skip("torch cannot compile functions that jaxtyping wraps")


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
