"""The symbol that stands for time in every expression of a schedule."""

import sympy

TIME = sympy.Symbol("t", positive=True)
