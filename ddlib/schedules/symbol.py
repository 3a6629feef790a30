"""Sympy symbol of the time t in the expressions of all schedules."""

import sympy

TIME = sympy.Symbol("t", positive=True)
