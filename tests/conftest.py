"""Every test runs with shapes and types checked at each call of ddlib, and with property tests that repeat exactly."""

import gc
import os
from contextlib import nullcontext

# read when ddlib is imported, here and in every process that a test starts
os.environ.setdefault("DDLIB_SHAPECHECK", "1")

import pytest
import torch
from cases import SEEN, once, unchecked
from hypothesis import HealthCheck, settings

from ddlib.utils import shapecheck

settings.register_profile("full", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# `make test` and `make test-slow` test a property on an eighth of its examples, `make test-all` on all; a test with its
# own number of examples scales it by `examples` of cases.py
whole = settings.get_profile("full")
settings.register_profile("part", whole, max_examples=whole.max_examples // 8)
# `pytest --hypothesis-profile=explore` looks at other examples every time
settings.register_profile("explore", settings.get_profile("full"), derandomize=False, print_blob=True)
settings.load_profile("part")
torch.set_num_threads(1)


EVERY, MANY = 4, 12
"""Of a slow test with more than ``MANY`` cases `make test-slow` runs every fourth, `make test-all` all."""
WHOLE_PAGES = ("test_docs.py", "test_notebooks.py")
EACH_ITS_OWN = ("test_docs.py", "test_contracts.py", "test_faults.py", "test_recipes.py", "test_study.py")
"""Files whose cases are not the same statement about similar objects, or a selection already."""


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.name not in WHOLE_PAGES)  # whole pages first: what runs last runs alone
    if full(config):
        return
    cases = {}
    for item in items:
        if item.get_closest_marker("slow") and item.path.name not in EACH_ITS_OWN:
            cases.setdefault((item.path, item.originalname), []).append(item)
    left_out = {item for many in cases.values() if len(many) > MANY for i, item in enumerate(many) if i % EVERY}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_configure(config):
    if not full(config):
        shapecheck._strict = once(shapecheck._strict)


def pytest_collection_finish(session):
    gc.freeze()  # what is imported by now stays, no collection needs to look at it again


def pytest_unconfigure(config):
    gc.unfreeze()


@pytest.fixture(autouse=True)
def warned_of_anew(monkeypatch):
    """Warnings that are issued once per process are issued in every test that gives reason for one."""
    monkeypatch.setattr("ddlib.utils.validation._warned", set())


@pytest.fixture(autouse=True)
def checked_anew():
    """Calls are checked again in every test, so that no result depends on the order of tests."""
    SEEN.clear()


def full(config):
    return config.getoption("hypothesis_profile") not in (None, "part")


@pytest.fixture
def checked_in_full(request):
    """With jaxtyping's checks in the full profile only, for many calls of the same shapes: they double the time."""
    with nullcontext() if full(request.config) else unchecked():
        yield


@pytest.fixture
def as_users_call():
    """Tests without jaxtyping's checks, which users do not have on: the errors are those of ddlib."""
    with unchecked():
        yield


@pytest.fixture
def products(monkeypatch):
    """(rows, columns) of every product with a part of the output layer's matrix."""
    seen = []

    def counted(hidden, weight, bias=None):
        seen.append((len(hidden), len(weight)))
        return torch.nn.functional.linear(hidden, weight, bias)

    monkeypatch.setattr("ddlib.samplers.runtime.output_layer.linear", counted)
    return seen
