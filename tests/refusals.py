"""Tables of calls that are refused, one row a line: call | error | message."""

import inspect
import math
import re
import sys

import pytest
import sympy
import torch
from cases import unchecked

import ddlib as dd

NAMES = {"dd": dd, "math": math, "sympy": sympy, "torch": torch, "nan": math.nan, "inf": math.inf}
"""What every row may use, beside the globals of the test's file."""
for package in (dd.weightings, dd.times, dd.hierarchies, dd.schedules, dd.processes, dd.samplers):
    NAMES |= {name: getattr(package, name) for name in package.__all__}


def rows(table):
    """Calls, errors and messages of a table; a row goes on in the next line where that is indented."""
    text = re.sub(r"  # .*", "", inspect.cleandoc(table))
    return [row.split(" | ") for row in re.sub(r"\n +", " ", text).splitlines()]


def refuses(table):
    """Test that the call of every row raises its error with its message, a regular expression, as in a user's program.

    Rows may use the globals of the test's file, and what ddlib's packages export.
    """
    names = sys._getframe(1).f_globals

    @pytest.mark.parametrize(("call", "error", "message"), [pytest.param(*row, id=row[0]) for row in rows(table)])
    def test(call, error, message):
        scope = NAMES | names
        with unchecked(), pytest.raises(eval(error, scope), match=message):
            eval(call, scope)

    return test


def refused_with(**names):
    """Function that checks the rows of a table one by one; they may use ``names`` too."""
    scope = NAMES | sys._getframe(1).f_globals | names

    def check(table):
        for call, error, message in rows(table):
            with pytest.raises(eval(error, scope), match=message):
                eval(call, scope)
                print(f"not refused: {call}")

    return check
