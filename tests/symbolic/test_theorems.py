"""Every closed form of the bound follows, state by state, from the one generic bound.

Proofs, then the code.
"""

from functools import partial

import pytest
import sympy as sp
import torch
from algebra import (
    Process,
    climbing,
    distribution,
    divergence,
    generic,
    lemma,
    slope,
    stochastic,
    vanishes,
    with_diagonal,
)
from family import family, poisson, u
from theorems import any_hierarchy, children, mixing, perturbed, perturbed_eta, standard

import ddlib as dd

a = sp.symbols("a_0:4", positive=True)
F = sp.symbols("F_0:3", positive=True)
eta = sp.Symbol("eta", positive=True)
XI = eta / (eta + 2)
PARENTS = [0, 0, 1, 2]
TREE = [[0, 0, 1, 2], [0, 0, 1]]


def one_hot(parents):
    return sp.Matrix(len(parents), max(parents) + 1, lambda i, j: int(parents[i] == j))


def spread(parents, xi):
    N = max(parents) + 1
    return sp.Matrix(len(parents), N, lambda i, j: xi if parents[i] == j else (1 - xi) / (N - 1))


def symbolic_cases():
    """name -> (process, p, theorem)."""
    two = distribution(2)
    three = distribution(3)
    four = distribution(4)
    clusters = climbing([one_hot([0, 0, 1]), sp.ones(2, 1)], a[:3], F[:2])
    noisy = climbing([spread(PARENTS, XI), sp.ones(3, 1)], a[:3], F[:2])
    deep = climbing([*map(one_hot, TREE), sp.ones(2, 1)], a, F)
    maps = [stochastic("k", 2, 2), stochastic("l", 2, 2), sp.ones(2, 1)]
    noise = distribution(4, "m")
    into = sp.symbols("r_0:3", positive=True)
    mixed = sp.Matrix(2, 3, lambda x, z: noise[z] + (noise[3] if x == z else 0))
    gidd = Process(mixed, with_diagonal(sp.ones(3, 1) * sp.Matrix([into])))
    masked = climbing([sp.ones(3, 1)], a[:2], F[:1])
    return {
        "standard": (clusters, three, partial(standard, three, a, F, [0, 0, 1])),
        "xi": (noisy, four, partial(perturbed, four, a, F, PARENTS, XI)),
        "xi, second form": (noisy, four, partial(perturbed_eta, four, a, F, PARENTS, eta)),
        "n levels": (deep, four, partial(any_hierarchy, four, a, F, TREE)),
        "any maps": (climbing(maps, a, F), two, partial(children, two, a, F, maps)),
        "GIDD": (gidd, two, partial(mixing, mixed, two, into)),
        "MDLM": (
            masked,
            three,
            lambda x, z: -F[0] / a[1] * sp.log(three[x]) if z == 3 else sp.Integer(0),
        ),
    }


CASES = symbolic_cases()
each_case = pytest.mark.parametrize("case", CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_theorem_is_the_generic_bound_at_every_word_and_state(case):
    process, p, theorem = CASES[case]
    for x in process.words:
        for z in process.possible(x):
            assert vanishes(theorem(x, z) - generic(process, p, x, z))


@pytest.mark.parametrize("case", ["standard", "xi", "n levels"])
def test_the_papers_lemma_is_the_generic_bound_and_a_slope(case):
    """-(elbo_rate) = sum Q D + d/dt log q_t(z|x), before any expectation."""
    process, p, theorem = CASES[case]
    for x in process.words:
        for z in process.possible(x):
            assert vanishes(lemma(process, p, x, z) + theorem(x, z) + slope(process, x, z))


def test_without_perturbation_the_second_form_is_the_standard_theorem():
    """xi -> 1 is eta -> infinity."""
    _, p, theorem = CASES["xi, second form"]
    for z in (4, 7):  # the cluster of word 0, the mask
        limit = sp.limit(theorem(0, z).subs(eta, 1 / eta), eta, 0, "+")
        assert vanishes(limit - standard(p, a, F, PARENTS, 0, z))


def test_the_gradient_of_the_cluster_loss_is_as_printed():
    """-grad CE(Gamma x, Gamma p) = Gamma^T (Gamma x / Gamma p)."""
    p = sp.Matrix(sp.symbols("p_0:4", positive=True))
    Gamma = one_hot(PARENTS).T
    for x in range(4):
        target = Gamma[:, x]
        believed = Gamma * p
        loss = -sum(hit * sp.log(guess) for hit, guess in zip(target, believed, strict=True))
        printed = Gamma.T * sp.Matrix(
            [hit / guess for hit, guess in zip(target, believed, strict=True)]
        )
        assert all(vanishes(sp.diff(loss, p[i]) + printed[i]) for i in range(4))


@pytest.fixture(scope="module")
def arbitrary():
    """Two tokens, three states; every rate and every marginal is a separate symbol."""
    rates = sp.Matrix(3, 3, lambda i, j: sp.Symbol(f"Q_{i}{j}", positive=True) if i != j else 0)
    return Process(stochastic("q", 2, 3), with_diagonal(rates))


def test_the_lemma_and_the_generic_bound_agree_for_every_chain(arbitrary):
    p = distribution(2)
    for z in range(3):
        difference = (
            lemma(arbitrary, p, 0, z) + generic(arbitrary, p, 0, z) + slope(arbitrary, 0, z)
        )
        assert vanishes(difference)


def test_the_additional_term_of_the_lemma_has_mean_zero_at_any_time(arbitrary):
    mean = sum(arbitrary.marginals[0, z] * slope(arbitrary, 0, z) for z in range(3))
    assert vanishes(mean)
    assert not vanishes(slope(arbitrary, 0, 0))


def test_the_generic_bound_is_never_negative():
    """D is convex in b with its minimum, 0, at b = a."""
    x, y = sp.symbols("a b", positive=True)
    D = divergence(x, y)
    assert vanishes(sp.diff(D, y).subs(y, x)) and vanishes(D.subs(y, x))
    assert sp.diff(D, y, 2).is_positive


def test_a_climbing_process_has_the_marginals_it_claims():
    """d/dt q_t = q_t Q_t with a_i' = F_{i-1} - F_i."""
    process = CASES["any maps"][0]
    for level, states in enumerate([(0, 1), (2, 3), (4, 5), (6,)]):
        change = (0, *F)[level] - (*F, 0)[level]
        for z in states:
            flow = (process.marginals * process.Q)[0, z]
            assert vanishes(flow - change / a[level] * process.marginals[0, z])


def test_a_single_cluster_is_mdlm():
    """The mask costs nothing, and a cluster as much as MDLM's mask does: both average to -alpha'
    CE.
    """
    p = distribution(3)
    single = climbing([sp.ones(3, 1), sp.ones(1, 1)], a[:3], F[:2])
    masked = climbing([sp.ones(3, 1)], [a[0], a[1] + a[2]], F[:1])
    assert vanishes(generic(single, p, 0, 4))
    cost = single.marginals[0, 3] * generic(single, p, 0, 3)
    assert vanishes(cost - masked.marginals[0, 3] * generic(masked, p, 0, 3))
    assert vanishes(cost + F[0] * sp.log(p[0]))


@pytest.mark.parametrize("case", ["standard", "n levels", "any maps"])
def test_the_bound_of_the_true_distribution_is_its_entropy(case):
    """Fluxes integrate to one over time (test_family), so over time the flux of an edge is replaced
    by 1.
    """
    process, p, _ = CASES[case]
    total = sum(
        p[x] * process.marginals[x, z] * generic(process, p, x, z)
        for x in process.words
        for z in process.possible(x)
    ).subs(dict.fromkeys(F, 1))
    assert vanishes(total + sum(p[x] * sp.log(p[x]) for x in process.words))


def test_gidds_rates_generate_its_marginals():
    """r_t(z) = beta_t pi_t'(z) - (alpha_t'/alpha_t) pi_t(z), for any alpha and pi."""
    t = sp.Symbol("t")
    alpha = sp.Function("alpha")(t)
    first = sp.Function("pi")(t)
    pi = [first, 1 - first]
    into = [(1 - alpha) * sp.diff(part, t) - sp.diff(alpha, t) / alpha * part for part in pi]
    probs = [alpha + (1 - alpha) * pi[0], (1 - alpha) * pi[1]]
    assert sp.simplify(sp.diff(probs[0], t) - probs[1] * into[0] + probs[0] * into[1]) == 0


def gidd_schedule(words, share, t, g):
    """alpha, and the masses of one word and of the mask (theory section 5)."""
    c = 2**g * share / (1 - share) / words * (t * (1 - t)) ** (g / 2)
    total = 1 + words * c
    return (1 - t) / total, c / total, t / total


def test_gidds_uniform_share_at_one_half_is_the_argument():
    g, share = sp.symbols("g p_u", positive=True)
    _, word, _ = gidd_schedule(5, share, sp.Rational(1, 2), g)
    assert sp.simplify(5 * word - share) == 0


def coded_cases():
    """name -> (process of ddlib, t, theorem at exact numbers)."""
    R = sp.Rational
    p = [R(1, 2), R(1, 4), R(1, 8), R(1, 8)]
    t = R(5, 8)

    def at(chain):
        return [[e.subs(u, 1 - t) for e in parts] for parts in (chain.occupancies, chain.fluxes)]

    time = sp.Symbol("t", positive=True)
    alpha, *noise = gidd_schedule(4, R(1, 5), time, 1)
    rates = [
        sp.diff(m, time) - sp.diff(alpha, time) / alpha * m for m in noise
    ]  # theory section 5, with m = beta pi
    alpha, word, mask, into, into_mask = (e.subs(time, t) for e in (alpha, *noise, *rates))
    marginals = sp.Matrix(4, 5, lambda x, z: (alpha if x == z else 0) + (word if z < 4 else mask))
    gidd = partial(mixing, marginals, sp.Matrix(p), [into] * 4 + [into_mask])
    return {
        "standard": (
            dd.presets.hdlm(PARENTS, gamma=2.0),
            t,
            partial(standard, p, *at(family(2)), PARENTS),
        ),
        "xi": (
            dd.presets.hdlm(PARENTS, xi=0.75),
            t,
            partial(perturbed, p, *at(family(1)), PARENTS, R(3, 4)),
        ),
        "n levels": (
            dd.presets.hdlm_levels(TREE),
            t,
            partial(any_hierarchy, p, *at(poisson(3)), TREE),
        ),
        "GIDD": (dd.presets.gidd(4, 0.2), t, gidd),
    }


CODED = coded_cases()


@pytest.mark.parametrize("case", CODED)
def test_the_code_computes_the_theorem(case):
    process, t, theorem = CODED[case]
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log()
    time = torch.tensor([float(t)], dtype=torch.float64)
    checked = 0
    for x in range(process.vocab_size):
        for z in range(process.num_states):
            word = torch.tensor([[x]])
            state = torch.tensor([[z]])
            if process.likelihood(state, word, time) > 0:
                ours = float(dd.nelbo(process, logits[None, None], word, state, time))
                assert ours == pytest.approx(float(theorem(x, z)), rel=1e-12, abs=1e-14)
                checked += 1
    assert checked > 2 * process.vocab_size
