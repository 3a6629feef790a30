"""Every test runs with shapes and types checked at each call of ddlib, and with property tests that repeat exactly."""

import gc
import os

# read when ddlib is imported, here and in every process that a test starts
os.environ.setdefault("DDLIB_SHAPECHECK", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import config

PART = 4  # without a profile, a property is tested on one in so many of its examples
settings.register_profile("part", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# `pytest --hypothesis-profile=full`, as `make test-slow` and `make test-all` do: on all of them
settings.register_profile("full", settings.get_profile("part"))
# `pytest --hypothesis-profile=explore` looks at other examples every time
settings.register_profile("explore", settings.get_profile("part"), derandomize=False, print_blob=True)
settings.load_profile("part")
torch.set_num_threads(1)


def pytest_collection_finish(session):
    gc.freeze()  # what is imported by now stays, no collection needs to look at it again


def pytest_unconfigure(config):
    gc.unfreeze()


def full(config):
    return config.getoption("hypothesis_profile") not in (None, "part")


def pytest_collection_modifyitems(config, items):
    """Divides the number of examples of every property, also where a test asks for a number of its own."""
    if full(config):
        return
    for test in {item.function for item in items if hasattr(getattr(item, "function", None), "hypothesis")}:
        asked = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(asked, max_examples=max(asked.max_examples // PART, 3))


@pytest.fixture
def checked_in_full(request):
    """With jaxtyping's checks in the full profile only, for many calls of the same shapes: they double the time."""
    config.update("jaxtyping_disable", not full(request.config))
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def as_users_call():
    """Without jaxtyping's checks, which users do not have on: what our own refusals say."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
