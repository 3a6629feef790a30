"""Exact algebra on a process whose marginals and rates are symbols: the bound of theory section 1,
the paper's lemma.

A process is a matrix ``marginals[x, z]`` = q_t(z|x) and one of rates ``Q[y, z]`` from y to z, at
one time.
"""

from typing import NamedTuple

import sympy as sp


class Process(NamedTuple):
    marginals: sp.Matrix
    Q: sp.Matrix

    @property
    def words(self):
        return range(self.marginals.rows)

    def possible(self, x):
        """The states that word x can be in."""
        return [z for z in range(self.marginals.cols) if self.marginals[x, z] != 0]


def vanishes(expression):
    """True if an expression in positive symbols is identically 0.

    Logarithms are split along the irreducible factors of their arguments, after which they count as
    unknowns of a rational function, as does every power with a symbolic exponent.
    """
    split = sp.sympify(expression).replace(
        sp.log, lambda argument: sp.expand_log(sp.log(sp.factor(argument)))
    )
    unknowns = {log: sp.Dummy() for log in split.atoms(sp.log)}
    rational = split.xreplace(unknowns)
    logs = unknowns.values()
    # where logarithms enter linearly, their coefficients are much smaller than the whole
    parts = [rational.xreplace(dict.fromkeys(logs, 0)), *(sp.diff(rational, log) for log in logs)]
    parts = [rational] if any(part.has(*logs) for part in parts) else parts
    return all(sp.cancel(sp.together(sp.expand_power_exp(part))) == 0 for part in parts)


def stochastic(name, rows, cols):
    """A matrix of arbitrary positive rows of sum 1.

    The odds against the last column are symbols.
    """
    odds = sp.Matrix(
        rows, cols, lambda i, j: sp.Symbol(f"{name}_{i}{j}", positive=True) if j < cols - 1 else 1
    )
    return sp.Matrix(rows, cols, lambda i, j: odds[i, j] / sum(odds[i, :]))


def distribution(size, name="p"):
    return stochastic(name, 1, size).T


def with_diagonal(rates):
    """Rows made to sum to 0, as those of a generator."""
    return rates - sp.diag(*[sum(rates[i, :]) for i in range(rates.rows)])


def climbing(maps, occupancies, fluxes):
    """The process of theory section 2: levels joined by stochastic maps, flux F_i from level i to i
    + 1.
    """
    up_to = [sp.eye(maps[0].rows)]
    for edge in maps:
        up_to.append(up_to[-1] * edge)
    marginals = sp.Matrix.hstack(*[a * u for a, u in zip(occupancies, up_to, strict=True)])
    sizes = [u.cols for u in up_to]
    rates = sp.zeros(sum(sizes))
    for i, (edge, flux) in enumerate(zip(maps, fluxes, strict=True)):
        rates[sum(sizes[:i]), sum(sizes[: i + 1])] = flux / occupancies[i] * edge
    return Process(marginals, with_diagonal(rates))


def ratios(process, p, x, z):
    """a_y and b_y of theory section 1."""
    believed = process.marginals.T * p
    return process.marginals[x, :] / process.marginals[x, z], believed.T / believed[z]


def divergence(a, b):
    """D(a, b), the generalised KL divergence."""
    return b if a == 0 else a * sp.log(a / b) - a + b


def generic(process, p, x, z):
    """The bound's integrand: sum over y != z of Q(y, z) D(a_y, b_y)."""
    a, b = ratios(process, p, x, z)
    return sum(
        process.Q[y, z] * divergence(a[y], b[y])
        for y in range(len(a))
        if y != z and process.Q[y, z] != 0
    )


def lemma_gain(process, p, x, z):
    """The logarithmic term of the paper's eq. (elbo_rate)."""
    a, b = ratios(process, p, x, z)
    return sum(
        process.Q[y, z] * a[y] * sp.log(b[y] / a[y])
        for y in range(len(a))
        if y != z and process.Q[y, z] * a[y]
    )


def lemma(process, p, x, z):
    """The paper's eq. (elbo_rate), second line, a bound on +log p(x)."""
    _, b = ratios(process, p, x, z)
    return lemma_gain(process, p, x, z) - sum(process.Q[y, z] * b[y] for y in range(len(b)))


def slope(process, x, z):
    """d/dt log q_t(z|x), by Kolmogorov's forward equation: what the paper calls the bias."""
    return (process.marginals * process.Q)[x, z] / process.marginals[x, z]
