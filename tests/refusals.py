"""Tests from tables of calls that must raise an error, one row per line: call | error | message."""

import inspect
import math
import re
import sys

import pytest
import sympy
import torch
import zoo.processes
import zoo.trees
from shapes import unchecked
from zoo.calls import sampled
from zoo.networks import never

import ddlib as dd

NAMES = {"dd": dd, "math": math, "sympy": sympy, "torch": torch, "nan": math.nan, "inf": math.inf}
NAMES |= {"LEVELS": zoo.processes.LEVELS, "never": never, "sampled": sampled, "zoo": zoo}
"""Names that a row may use in addition to the globals of the test's file."""
for package in (
    dd.weightings,
    dd.times,
    dd.hierarchies,
    dd.schedules,
    dd.processes,
    dd.samplers,
    dd.controls,
    dd.contrib,
):
    NAMES |= {name: getattr(package, name) for name in package.__all__}


def rows(table):
    """Split a table into calls, errors and messages.

    An indented line continues the row above it.
    """
    text = re.sub(r"  # .*", "", inspect.cleandoc(table))
    return [row.split(" | ") for row in re.sub(r"\n +", " ", text).splitlines()]


def refuses(table):
    """Make a test that the call of every row raises its error with its message, a regular
    expression.

    Shape checks are off, as they are by default for users. Rows may use the globals of the test's
    file and the public names of ddlib's packages.
    """
    names = sys._getframe(1).f_globals

    @pytest.mark.parametrize(
        ("call", "error", "message"), [pytest.param(*row, id=row[0]) for row in rows(table)]
    )
    def test(call, error, message):
        scope = NAMES | names
        with unchecked(), pytest.raises(eval(error, scope), match=message):
            eval(call, scope)

    return test


def refused_with(**names):
    """Make a function that checks the rows of a table in order, as ``refuses``.

    The rows may also use ``names``.
    """
    scope = NAMES | sys._getframe(1).f_globals | names

    def check(table):
        for call, error, message in rows(table):
            with unchecked(), pytest.raises(eval(error, scope), match=message):
                eval(call, scope)
                print(f"not refused: {call}")

    return check
