"""Imports of packages on first use."""

import warnings
from importlib import import_module
from typing import Any


def import_quietly(name: str) -> Any:
    """Import and return a module.

    Restore the warning filters, to which sympy and scipy add their own.
    """
    with warnings.catch_warnings():
        return import_module(name)
