"""Printed and true formulas of the HDLM paper (arXiv 2510.08632), and an identity that
distinguishes them.

docs/errata.md is this table for readers; tests/symbolic/test_errata.py holds both to it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import sympy as sp
from algebra import climbing, distribution, lemma, lemma_gain, slope
from family import ddt, descendant_logits, family, gamma, poisson, survival, u, v
from theorems import perturbed, standard

# four words in three clusters with perturbation, at one time: occupancies, fluxes, the model's
# probabilities
parents = [0, 0, 1, 2]
words = distribution(4)
a = sp.symbols("a_0:3", positive=True)
F = sp.symbols("F_0:2", positive=True)
eta = sp.Symbol("eta", positive=True)
xi = eta / (eta + 2)
kernel = sp.Matrix(4, 3, lambda x, c: xi if parents[x] == c else (1 - xi) / 2)
noisy = climbing([kernel, sp.ones(3, 1)], a, F)
Gamma = sp.Matrix(3, 4, lambda c, x: int(parents[x] == c))
Xi = sp.ones(1, 3)

linear = family(1).occupancies[0]
three_levels = poisson(3).occupancies
t = 1 - u


class Erratum(NamedTuple):
    printed: Any
    true: Any
    residuals: Callable[[Any], list]
    """Expressions that are identically 0 for the true formula, and are not for the printed one."""


def rates(g):
    """r_0 and r_1 as the paper's generator has them."""
    alpha, cluster, _ = family(g).occupancies
    return -ddt(alpha) / alpha, -(ddt(alpha) + ddt(cluster)) / cluster


def earlier(expression):
    """The expression at time s instead of t."""
    return expression.subs(u, v)


def printed_survival(g):
    cluster = family(g).occupancies[1]
    return cluster / earlier(cluster)


def printed_descent(g):
    alpha, cluster, _ = family(g).occupancies
    w = sp.Symbol("w", positive=True)
    integrand = (-ddt(alpha) / cluster).subs(u, w)
    return cluster / earlier(alpha) * sp.Integral(integrand, (w, u, v))


def word_column(descend, g):
    """The word-to-cluster and word-to-mask entries; the latter is what is left."""
    alpha = family(g).occupancies[0]
    return descend(g), 1 - alpha / earlier(alpha) - descend(g)


def survival_identity(S):
    """Kolmogorov's forward equation dP/dt = Q^T P, and P = 1 at t = s."""
    return [ddt(S) + rates(gamma)[1] * S, S.subs(u, v) - 1]


def descent_identity(C, g=gamma):
    alpha = family(g).occupancies[0]
    enter, leave = rates(g)
    return [ddt(C) - enter * alpha / earlier(alpha) + leave * C, C.subs(u, v)]


def mask_identity(column, g=gamma):
    descended, masked = column
    return [ddt(masked) - rates(g)[1] * descended, masked.subs(u, v)]


def product_identity(factors):
    """Neighbours in a matrix product must agree; the row has one entry for each word."""
    left, right = factors
    return [left.cols - right.rows, left.rows - 1, right.cols - len(parents)]


def generator_identity(block):
    """The block beside the diagonal block of the level below the mask, so that rows sum to zero."""
    clusters = 2
    return [
        block.rows - clusters,
        block.cols - 1,
        *(sum(block[row, :]) - 1 for row in range(block.rows)),
    ]


def weight_identity(w):
    """w beta_m = beta_m', whose integral is 1."""
    mask = family(gamma).occupancies[2]
    return [w * mask - ddt(mask)]


def word_to_cluster_gain(line):
    """The logarithmic term of the lemma at a cluster, right or wrong, is w_c times the line."""
    return [
        lemma_gain(noisy, words, 0, z)
        - F[0] / a[1] * line(xi if z == 4 else (1 - xi) / 2, cluster_mass(z - 4))
        for z in (4, 5, 6)
    ]


def bias_identity(sign):
    """(elbo_rate) is the theorem plus ``sign`` times the slope of log q_t."""
    return [
        lemma(noisy, words, 0, z)
        + perturbed(words, a, F, parents, xi, 0, z)
        - sign * slope(noisy, 0, z)
        for z in noisy.possible(0)
    ]


def single_token_identity(sign):
    """One token, one cluster, known distribution: sign E[...] is -log p, as the fluxes integrate to
    1 over time.
    """
    single = climbing([sp.ones(3, 1), sp.ones(1, 1)], a, F)
    p = distribution(3)
    mean = sum(
        single.marginals[0, z] * standard(p, a, F, [0, 0, 0], 0, z) for z in single.possible(0)
    )
    return [sign * mean.subs(F[0], 1) + sp.log(p[0])]


def cluster_mass(c):
    return sum(words[x] for x in range(4) if parents[x] == c)


def cluster_line(occupancy, kernel_entry, mass):
    """log of p alpha / (occupancy (xi p(c) + ...)) times kernel beta_c / alpha."""
    believed = occupancy * (xi * mass + (1 - xi) / 2 * (1 - mass))
    return sp.log(words[0] * a[0] / believed * kernel_entry * a[1] / a[0])


ERRATA = {
    "cluster-survival": Erratum(printed_survival(gamma), survival(), survival_identity),
    "word-to-cluster": Erratum(printed_descent(gamma), descendant_logits(gamma), descent_identity),
    "word-to-mask": Erratum(
        word_column(printed_descent, gamma), word_column(descendant_logits, gamma), mask_identity
    ),
    "mask-row-shape": Erratum((Gamma, Xi), (Xi, Gamma), product_identity),
    "mask-weight": Erratum(
        gamma * (1 - u ** (gamma - 1)) / (gamma * t + u**gamma),
        gamma * (1 - u ** (gamma - 1)) / (gamma * t + u**gamma - 1),
        weight_identity,
    ),
    "generator-last-column": Erratum(sp.ones(1, 2), sp.ones(1, 2).T, generator_identity),
    "n-level-mask-sum": Erratum(
        sum(ddt(three_levels[3]) for _ in range(3)),
        sum(ddt(three_levels[j]) for j in range(3)),
        lambda total: [total + ddt(three_levels[3])],
    ),
    "xi-cluster-line": Erratum(
        partial(cluster_line, 1), partial(cluster_line, a[1]), word_to_cluster_gain
    ),
    "xi-bias-sign": Erratum(+1, -1, bias_identity),
    "mdlm-sign": Erratum(-1, +1, single_token_identity),
    "alpha-prime": Erratum(linear, ddt(linear), lambda quantity: [quantity + 1]),
    "start": Erratum(
        1, 0, lambda start: [sp.limit(family(gamma).occupancies[0], u, 1 - start) - 1]
    ),
}
