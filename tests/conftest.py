"""Every test runs with shapes and types checked at each call of ddlib, and with property tests that repeat exactly."""

import os

# read when ddlib is imported, here and in every process that a test starts
os.environ.setdefault("DDLIB_SHAPECHECK", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import config

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# `pytest --hypothesis-profile=explore` looks at other examples every time
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, print_blob=True)
settings.load_profile("ci")
torch.set_num_threads(1)


@pytest.fixture
def as_users_call():
    """Without jaxtyping's checks, which users do not have on: what our own refusals say."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
