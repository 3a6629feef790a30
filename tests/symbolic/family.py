"""Occupancies, transitions and weights in closed form, each written once.

Time is ``u`` = 1 - t, so that powers simplify. Levels are climbed at rates gamma_i s'(t) with the
hazard s = -log(1 - t) (theory section 4).
"""

from math import factorial
from typing import NamedTuple

import sympy as sp

u, v = sp.symbols("u v", positive=True)
"""1 - t and, for transitions from an earlier time s, 1 - s."""
gamma = sp.Symbol("gamma", positive=True)
HAZARD = -sp.log(u)


class Chain(NamedTuple):
    speeds: tuple
    occupancies: tuple

    @property
    def fluxes(self):
        """F_i = r_i a_i with r_i = gamma_i s'(t)."""
        return [
            speed * ddt(HAZARD) * a for speed, a in zip(self.speeds, self.occupancies, strict=False)
        ]


def ddt(expression):
    return -sp.diff(expression, u)


def family(g):
    """The paper's alpha, beta_c, beta_m (section 3.4, Example Processes), printed with t = 1 -
    u.
    """
    t = 1 - u
    if g == 1:
        return Chain((1, 1), (u, -u * sp.log(u), t + u * sp.log(u)))
    return Chain((g, 1), (u**g, g / (g - 1) * (u - u**g), (g * t + u**g - 1) / (g - 1)))


def weights(g):
    """The paper's w_c, and its w_m with the denominator corrected (theory section 4)."""
    t = 1 - u
    if g == 1:
        return 1 / (-u * sp.log(u)), -sp.log(u) / (t + u * sp.log(u))
    return (g - 1) * u ** (g - 2) / (1 - u ** (g - 1)), g * (1 - u ** (g - 1)) / (g * t + u**g - 1)


def hypoexponential(speeds):
    """Any number of levels at different speeds; the mask is a level of speed 0."""
    ladder = (*speeds, 0)

    def occupancy(i):
        decays = [
            u ** ladder[j] / sp.prod([ladder[k] - ladder[j] for k in range(i + 1) if k != j])
            for j in range(i + 1)
        ]
        return sp.prod(ladder[:i]) * sum(decays)

    return Chain(tuple(speeds), tuple(occupancy(i) for i in range(len(ladder))))


def poisson(n):
    """n edges of speed 1: a_i = (1 - t) s^i / i! below the mask."""
    below = [u * HAZARD**i / factorial(i) for i in range(n)]
    return Chain((1,) * n, (*below, sp.lowergamma(n, HAZARD) / factorial(n - 1)))


def survival():
    """Probability that a cluster at 1 - v is still one at 1 - u; the same for every gamma."""
    return u / v


def descendant_logits(g):
    """Probability that a word at 1 - v is a cluster at 1 - u."""
    if g == 1:
        return u / v * sp.log(v / u)
    return u / v**g * g / (g - 1) * (v ** (g - 1) - u ** (g - 1))
