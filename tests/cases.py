"""Helpers that limit the running time of tests: parametrised cases, examples of properties, shape checks."""

from contextlib import contextmanager
from functools import cache, wraps

import pytest
from hypothesis import settings
from jaxtyping import config

CALLED = set()
"""Names of the functions of ddlib that the current test has called."""


def first_call(strict):
    """Wrap ``strict`` so that the first call of a function of ddlib in a test is checked, and no other."""

    def checked_at_first(function):
        name = f"{function.__module__}.{function.__qualname__}"
        checked = cache(lambda: strict(function))  # takes milliseconds, and functions within functions are many objects
        if not name.startswith("ddlib"):
            return checked()

        @wraps(function)
        def call(*args, **kwargs):
            if name in CALLED:
                return function(*args, **kwargs)
            CALLED.add(name)
            return checked()(*args, **kwargs)

        return call

    return checked_at_first


@contextmanager
def unchecked():
    """Disable the checks of jaxtyping, which the test run applies to every call."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)


def slow_but(cases, *fast, nightly=()):
    """Mark all cases as slow, except ``fast``, which get no mark, and ``nightly``."""
    cases = list(cases)
    exceptions = [*fast, *nightly]
    assert exceptions and all(case in cases for case in exceptions), f"{exceptions} are not among the cases"
    return [case if case in fast else _marked(case, "nightly" if case in nightly else "slow") for case in cases]


def _marked(case, mark):
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=getattr(pytest.mark, mark))


def examples(number):
    """Scale the number of examples of a property by the share that the current profile runs, to at least 3."""
    return max(number * settings.default.max_examples // settings.get_profile("full").max_examples, 3)
