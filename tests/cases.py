"""Parametrised tests of which `make test` runs some cases and `make test-slow` all."""

import pytest


def slow_but(cases, *fast):
    """The cases, all but ``fast`` marked slow."""
    cases = list(cases)
    assert fast and all(case in cases for case in fast), f"{fast} are not among the cases"
    return [case if case in fast else _slow(case) for case in cases]


def _slow(case):
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow)
