"""Helpers that limit the running time of tests.

Parametrised cases, examples of properties, shape checks.
"""

from contextlib import contextmanager
from functools import cache, wraps
from zlib import crc32

import pytest
from hypothesis import settings
from jaxtyping import config

CHECKED = 8
"""`make test` and `make test-slow` check shapes and types in every eighth test, `make test-all` at
every call.
"""
_called = (
    None  # names of the functions of ddlib whose first call was checked; None where no call is
)


def check_calls_of(test):
    """Check the first call of every function in the test of this name if it is one in ``CHECKED``,
    else none.

    The choice depends on the name alone, so that no result depends on the order of tests.
    """
    global _called
    _called = None if crc32(test.encode()) % CHECKED else set()


def first_call(strict):
    """Wrap ``strict`` so that it checks the calls that ``check_calls_of`` chooses."""

    def checked_at_first(function):
        name = f"{function.__module__}.{function.__qualname__}"
        checked = cache(
            lambda: strict(function)
        )  # takes milliseconds, and functions within functions are many objects
        if not name.startswith("ddlib"):
            return checked()

        @wraps(function)
        def call(*args, **kwargs):
            if _called is None or name in _called:
                return function(*args, **kwargs)
            _called.add(name)
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
    assert exceptions and all(case in cases for case in exceptions), (
        f"{exceptions} are not among the cases"
    )
    return [
        case if case in fast else _marked(case, "nightly" if case in nightly else "slow")
        for case in cases
    ]


def _marked(case, mark):
    return pytest.param(
        *case if isinstance(case, tuple) else (case,), marks=getattr(pytest.mark, mark)
    )


def examples(number):
    """Scale the number of examples of a property by the share that the current profile runs, to at
    least 3.
    """
    return max(
        number * settings.default.max_examples // settings.get_profile("full").max_examples, 3
    )
