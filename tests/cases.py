"""Helpers that limit the running time of tests: parametrised cases, examples of properties, shape checks."""

from contextlib import contextmanager
from functools import wraps
from itertools import chain

import pytest
from hypothesis import settings
from jaxtyping import config
from torch import Tensor

SEEN = set()
"""Keys of the checked calls of the current test: function, shapes and dtypes of tensors, all other arguments."""


def once(strict):
    """Wrap ``strict`` so that a call whose key is in ``SEEN`` is not checked again."""

    def checked_once(function):
        checked = strict(function)

        @wraps(function)
        def call(*args, **kwargs):
            key = [function, *kwargs]
            for value in chain(args, kwargs.values()):
                if isinstance(value, Tensor):
                    key += value.shape, value.dtype
                elif isinstance(value, list | tuple | dict):  # its items may differ at the next call
                    return checked(*args, **kwargs)
                else:
                    key += type(value), value if isinstance(value, bool | int | float | str | None) else id(value)
            key = tuple(key)
            if key in SEEN:
                return function(*args, **kwargs)
            result = checked(*args, **kwargs)
            SEEN.add(key)
            return result

        return call

    return checked_once


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
