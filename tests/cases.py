"""Settings of how much the tests run: parametrised cases, examples of properties, checks of shapes."""

from contextlib import contextmanager

import pytest
from hypothesis import settings
from jaxtyping import config


@contextmanager
def unchecked():
    """Without jaxtyping's checks, of which this test run has one at every call."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)


def slow_but(cases, *fast):
    """The cases, all but ``fast`` marked slow."""
    cases = list(cases)
    assert fast and all(case in cases for case in fast), f"{fast} are not among the cases"
    return [case if case in fast else _slow(case) for case in cases]


def _slow(case):
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow)


def examples(number):
    """Number of examples for a property that requests ``number``: all, or the profile's part of them."""
    return max(number * settings.default.max_examples // settings.get_profile("full").max_examples, 3)
