"""Helpers that limit the running time of tests.

Parametrised cases, examples of properties, shape checks.
"""

from contextlib import contextmanager
from functools import cache, wraps
from zlib import crc32

from hypothesis import settings
from jaxtyping import config

from ddlib.samplers.controls import Cache

CHECKED = 8
"""A run with a budget checks shapes and types in every eighth test, `pytest --budget 0` at every
call.
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


def examples(number):
    """Scale the number of examples of a property by the share that the current profile runs, to at
    least 3.
    """
    return max(
        number * settings.default.max_examples // settings.get_profile("full").max_examples, 3
    )


def caches(rule):
    """Controls for a cache: True for the exact one, False for none, or the name of another."""
    return [] if rule is True else [Cache(rule or "none")]
