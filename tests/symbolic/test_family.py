"""The schedules in closed form: proofs for symbolic speeds, and the code's float64 against the
proved expressions.
"""

import pytest
import sympy as sp
import torch
from algebra import vanishes
from family import Chain, ddt, family, gamma, hypoexponential, poisson, u, weights

import ddlib as dd
from ddlib.processes.level_chain import PowerChain

R = sp.Rational
SPEEDS = sp.symbols("gamma_0:4", positive=True)
CHAINS = {
    "family": family(gamma),
    "family at 1": family(1),
    "three speeds": hypoexponential(SPEEDS[:3]),
    "four speeds": hypoexponential(SPEEDS),
    "Poisson 3": poisson(3),
    "Poisson 4": poisson(4),
}
# sympy takes neither limits nor integrals of powers whose exponents it cannot order
ORDERED = {
    **{name: chain for name, chain in CHAINS.items() if "speeds" not in name},
    "speeds 3, 1/2, 1": hypoexponential((3, R(1, 2), 1)),
    "speeds 3, 1/2, 2, 1": hypoexponential((3, R(1, 2), 2, 1)),
}
AT_THE_NOISE = {
    R(1, 2): (sp.oo, sp.oo),
    1: (sp.oo, sp.oo),
    R(3, 2): (sp.oo, 3),
    2: (1, 2),
    3: (0, R(3, 2)),
}
GAMMAS = list(AT_THE_NOISE)
each_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=list(CHAINS))
each_ordered_chain = pytest.mark.parametrize("chain", ORDERED.values(), ids=list(ORDERED))


@each_chain
def test_occupancies_sum_to_one(chain):
    assert vanishes(sum(chain.occupancies) - 1)


@each_chain
def test_occupancies_solve_the_chains_equation(chain):
    """a_i' = r_{i-1} a_{i-1} - r_i a_i with r_i = gamma_i s'(t)."""
    inflow = [0, *chain.fluxes]
    outflow = [*chain.fluxes, 0]
    for a, into, out in zip(chain.occupancies, inflow, outflow, strict=True):
        assert vanishes(ddt(a) - into + out)


@each_ordered_chain
def test_words_come_first_and_the_mask_last(chain):
    n = len(chain.speeds)
    assert [sp.limit(a, u, 1, "-") for a in chain.occupancies] == [1, *[0] * n]
    assert [sp.limit(a, u, 0, "+") for a in chain.occupancies] == [*[0] * n, 1]


@each_ordered_chain
def test_every_weight_integrates_to_one_against_its_occupancy(chain):
    """E[1{level i} w_i] = F_{i-1}, and the integral of F over time is 1 on every edge."""
    for flux in chain.fluxes:
        assert sp.simplify(sp.integrate(sp.expand(flux), (u, 0, 1))) == 1


def test_two_speeds_of_the_general_form_are_the_papers_family():
    general = hypoexponential((gamma, 1))
    for ours, paper in zip(general.occupancies, family(gamma).occupancies, strict=True):
        assert vanishes(ours - paper)


@pytest.mark.parametrize("g", [gamma, 1], ids=str)
def test_weights_are_flux_over_occupancy(g):
    chain = family(g)
    for weight, flux, a in zip(weights(g), chain.fluxes, chain.occupancies[1:], strict=True):
        assert vanishes(weight - flux / a)


def test_gamma_one_is_the_limit_of_the_others():
    general, special = [(*family(g).occupancies, *weights(g)) for g in (gamma, 1)]
    for expression, limit in zip(general, special, strict=True):
        assert vanishes(sp.limit(expression, gamma, 1) - limit)


def test_the_papers_cluster_mass_is_the_integral_it_starts_from():
    """beta_c = int_0^t (1-t)/(1-tau) (-alpha_tau') dtau: a cluster turns to mask at a
    uniform time.
    """
    w = sp.Symbol("w", positive=True)
    for g in GAMMAS:
        alpha, cluster, _ = family(g).occupancies
        integral = sp.integrate(sp.expand(u / w * sp.diff(alpha.subs(u, w), w)), (w, u, 1))
        assert vanishes(integral - cluster)


@pytest.mark.parametrize("g", [gamma, *GAMMAS], ids=str)
def test_weights_diverge_at_the_data_like_the_level_over_time(g):
    """Although beta_m' is 0 there for every gamma, so that the paper's condition for it is not
    met.
    """
    for level, weight in enumerate(weights(g), start=1):
        assert vanishes(sp.limit((1 - u) * weight, u, 1, "-") - level)
    assert vanishes(sp.limit(ddt(family(g).occupancies[2]), u, 1, "-"))


@pytest.mark.parametrize("g", GAMMAS, ids=str)
def test_weights_at_the_noise(g):
    """w_1 diverges for gamma < 2, w_2 for gamma <= 1."""
    assert tuple(sp.limit(weight, u, 0, "+") for weight in weights(g)) == AT_THE_NOISE[g]


def test_both_weights_exceed_two_at_gamma_one():
    """So clipping them at 2, as the paper's experiments do, makes them constant."""
    cluster, mask = weights(1)
    assert sp.solve(sp.diff(1 / cluster, u), u) == [sp.exp(-1)]
    assert cluster.subs(u, sp.exp(-1)) == sp.E
    # w_2 > 2 if this is positive: it is 0 at t = 0 and falls all the way in u, its slope being at
    # most 2 log 2 - 2
    excess = sp.expand(sp.numer(mask) - 2 * sp.denom(mask))
    assert excess.subs(u, 1) == 0
    fall = sp.diff(excess, u)
    assert sp.solve(sp.diff(fall, u), u) == [R(1, 2)]
    assert sp.simplify(fall.subs(u, R(1, 2)) - 2 * sp.log(2) + 2) == 0 and 2 * sp.log(2) < 2


def exact(expression, t):
    """Fifty digits at the float64 time ``t``."""
    return expression.subs(u, 1 - R(t)).evalf(50)


TIMES = [1e-6, 1e-3, 0.3, 0.7, 1 - 1e-3, 1 - 1e-6]


@pytest.mark.parametrize("g", [R(1, 2), 1, 2, 3], ids=str)
def test_the_code_computes_the_papers_family(g):
    process = dd.presets.hdlm([0, 0, 1], gamma=float(g))
    time = torch.tensor(TIMES, dtype=torch.float64)
    for row, t in enumerate(TIMES):
        for ours, expression in zip(
            process.occupancies(time)[row], family(g).occupancies, strict=True
        ):
            assert float(ours) == pytest.approx(float(exact(expression, t)), rel=1e-12)
        for ours, expression in zip(process.weights(time)[row, 1:], weights(g), strict=True):
            assert float(ours) == pytest.approx(float(exact(expression, t)), rel=1e-12)


@pytest.mark.parametrize(
    "chain",
    [poisson(3), poisson(4), hypoexponential((3, R(1, 2), 1))],
    ids=["Poisson 3", "Poisson 4", "3, 1/2, 1"],
)
def test_the_code_computes_chains_of_any_depth(chain: Chain):
    levels = PowerChain(dd.schedules.Linear(), [float(speed) for speed in chain.speeds])
    for t in TIMES:
        ours = levels.occupancies(torch.tensor([t], dtype=torch.float64))[0]
        for value, expression in zip(ours, chain.occupancies, strict=True):
            assert float(value) == pytest.approx(float(exact(expression, t)), rel=1e-11)
