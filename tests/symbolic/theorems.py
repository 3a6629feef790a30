"""The closed forms as their papers print them, with the sign of a bound on -log p(x), at word ``x``
and state ``z``.

``a`` are the level occupancies (the paper's alpha, beta_c, beta_m), ``F`` the fluxes out of each
level but the last (-alpha', beta_m'). States are words, then clusters, the mask last.
"""

import sympy as sp


def mass(p, parents, cluster):
    """p_theta(c): the sum over the words of a cluster."""
    return sum(p[word] for word, parent in enumerate(parents) if parent == cluster)


def standard(p, a, F, parents, x, z):
    """Theorem (theorem_elbo)."""
    own = mass(p, parents, parents[x])
    words = len(parents)
    if z < words:
        return sp.Integer(0)
    if z == words + max(parents) + 1:
        return -F[1] / a[2] * sp.log(own)
    return -F[0] / a[1] * sp.log(p[x] / own)


def perturbed(p, a, F, parents, xi, x, z):
    """Theorem (theorem:elbo_perturbation), first form."""
    words = len(parents)
    N = max(parents) + 1
    own = parents[x]
    wrong = (1 - xi) / (N - 1)
    P = [mass(p, parents, c) for c in range(N)]
    if z < words:
        return sp.Integer(0)
    if z == words + N:
        right = xi * sp.log(P[own] + wrong / xi * (1 - P[own]))
        return (
            -F[1]
            / a[2]
            * (
                right
                + wrong * sum(sp.log(xi / wrong * P[c] + 1 - P[c]) for c in range(N) if c != own)
            )
        )
    here = P[z - words]
    believed = here + wrong / xi * (1 - here) if z == words + own else xi / wrong * here + 1 - here
    return -F[0] / a[1] * sp.log(p[x] / believed)


def perturbed_eta(p, a, F, parents, eta, x, z):
    """Theorem (theorem:elbo_perturbation), second form, with eta = (N_c - 1) xi / (1 - xi)."""
    words = len(parents)
    N = max(parents) + 1
    own = parents[x]
    xi = eta / (eta + N - 1)
    P = [mass(p, parents, c) for c in range(N)]
    if z < words:
        return sp.Integer(0)
    if z == words + N:
        right = sp.log((1 - 1 / eta) * P[own] + 1 / eta)
        others = sum(sp.log((eta - 1) * P[c] + 1) for c in range(N) if c != own)
        return -F[1] / a[2] * xi * (right + others / eta)
    here = P[z - words]
    believed = (1 - 1 / eta) * here + 1 / eta if z == words + own else (eta - 1) * here + 1
    return -F[0] / a[1] * sp.log(p[x] / believed)


def any_hierarchy(p, a, F, tree, x, z):
    """Theorem (theorem:elbo_any_hierarchy).

    ``tree`` holds the parents of every level but the one below the mask.
    """
    up_to = [list(range(len(p)))]
    for parents in tree:
        up_to.append([parents[member] for member in up_to[-1]])
    up_to.append([0] * len(p))
    starts = [sum(max(members) + 1 for members in up_to[:i]) for i in range(len(up_to))]
    level = max(i for i, start in enumerate(starts) if start <= z)
    if level == 0:
        return sp.Integer(0)
    below, here = (mass(p, up_to[i], up_to[i][x]) for i in (level - 1, level))
    return -F[level - 1] / a[level] * sp.log(below / here)


def children(p, a, F, maps, x, z):
    """Theory section 2, for any maps: w_i KL(pi(.|z, x) || pi(.|z, p)) over the children of z."""
    up_to = [sp.eye(len(p))]
    for edge in maps:
        up_to.append(up_to[-1] * edge)
    starts = [sum(u.cols for u in up_to[:i]) for i in range(len(up_to))]
    i = max(level for level, start in enumerate(starts) if start <= z)
    if i == 0:
        return sp.Integer(0)
    here = z - starts[i]
    edge = maps[i - 1][:, z - starts[i]]
    given = [edge[y] * up_to[i - 1][x, y] / up_to[i][x, here] for y in range(edge.rows)]
    believed = [
        edge[y] * (p.T * up_to[i - 1])[y] / (p.T * up_to[i])[here] for y in range(edge.rows)
    ]
    kl = sum(pi * sp.log(pi / guess) for pi, guess in zip(given, believed, strict=True) if pi != 0)
    return F[i - 1] / a[i] * kl


def mixing(marginals, p, into, x, z):
    """GIDD (theory section 5): w [KL(q_t(.|x) || q_t(.|p)) + IS(q_t(z|x), q_t(z|p))] with w =
    r_t(z) / q_t(z|x).
    """
    given = marginals[x, :]
    believed = (marginals.T * p).T
    kl = sum(q * sp.log(q / guess) for q, guess in zip(given, believed, strict=True))
    ratio = given[z] / believed[z]
    return into[z] / given[z] * (kl + ratio - sp.log(ratio) - 1)
