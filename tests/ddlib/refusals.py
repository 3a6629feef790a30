"""Tables of calls that are refused, one row a line: call | error | message."""

import inspect
import math
import re
import sys

import pytest
import torch
import zoo
from cases import unchecked
from fixtures import LEVELS, never

import ddlib as dd

PACKAGES = (dd.weightings, dd.times, dd.hierarchies, dd.schedules, dd.processes, dd.samplers)
NAMES = {"dd": dd, "math": math, "torch": torch, "nan": math.nan, "inf": math.inf}
for package in PACKAGES:
    NAMES |= {name: getattr(package, name) for name in package.__all__}


def rows(table):
    """Calls, errors and messages of a table; a row goes on in the next line where that is indented."""
    for row in re.sub(r"\n +", " ", inspect.cleandoc(table)).splitlines():
        call, error, message = row.split(" | ")
        yield pytest.param(call, error, message, id=call)


def refuses(table):
    """Test that every row's call raises its error with its message, as in a user's program.

    Rows may use the globals of the test's file and what ddlib's packages export. A message is a regular expression.
    """
    names = sys._getframe(1).f_globals

    @pytest.mark.parametrize(("call", "error", "message"), list(rows(table)))
    def test(call, error, message):
        scope = NAMES | {"zoo": zoo, "LEVELS": LEVELS, "never": never, "sampled": sampled} | names
        with unchecked(), pytest.raises(eval(error, scope), match=message):
            eval(call, scope)

    return test


def sampled(process, sampler, steps=5):
    """Sample with a network that must not be called."""
    return dd.sample(process, never, (2, 3), sampler, steps)
