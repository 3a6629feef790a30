"""What `make test` runs a part of and `make test-slow` all: cases of parametrised tests, examples of properties."""

import pytest
from hypothesis import settings


def slow_but(cases, *fast):
    """The cases, all but ``fast`` marked slow."""
    cases = list(cases)
    assert fast and all(case in cases for case in fast), f"{fast} are not among the cases"
    return [case if case in fast else _slow(case) for case in cases]


def _slow(case):
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow)


def examples(number):
    """How many examples to test a property on that wants ``number`` of them: all, or the profile's part of them."""
    return max(number * settings.default.max_examples // settings.get_profile("full").max_examples, 3)
