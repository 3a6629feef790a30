"""Every printed formula that docs/errata.md corrects violates the identity that its correction
satisfies.
"""

import re
from pathlib import Path

import pytest
import sympy as sp
import torch
from algebra import vanishes
from errata import (
    ERRATA,
    Gamma,
    Xi,
    descent_identity,
    mask_identity,
    printed_descent,
    printed_survival,
    word_column,
)
from family import ddt, descendant_logits, family, gamma, survival, u, v

import ddlib as dd
from ddlib.testing.oracle import integrate_forward

R = sp.Rational
PAGE = Path(__file__).parents[2] / "docs" / "errata.md"
THEN = 0.3
NOW = 0.7
HERE = {u: 1 - R(7, 10), v: 1 - R(3, 10)}


def at_some_point(expression):
    """Value of the expression where every symbol has a different number."""
    symbols = sorted(expression.free_symbols - set(HERE), key=str)
    return (
        expression.subs(HERE)
        .subs({symbol: R(k, 2) for k, symbol in enumerate(symbols, start=3)})
        .evalf(20)
    )


@pytest.mark.parametrize("name", ERRATA)
def test_the_printed_formula_violates_its_identity(name):
    residuals = ERRATA[name].residuals(ERRATA[name].printed)
    assert max(abs(at_some_point(sp.sympify(residual))) for residual in residuals) > 1e-3


@pytest.mark.parametrize("name", ERRATA)
def test_the_true_formula_satisfies_its_identity(name):
    assert all(vanishes(residual) for residual in ERRATA[name].residuals(ERRATA[name].true))


def test_at_gamma_one_too():
    """At gamma = 1 the family has another form."""
    assert all(vanishes(residual) for residual in descent_identity(descendant_logits(1), 1))
    assert all(
        vanishes(residual) for residual in mask_identity(word_column(descendant_logits, 1), 1)
    )
    assert abs(at_some_point(descent_identity(printed_descent(1), 1)[0])) > 1e-3
    assert survival().subs(u, v) == 1 and descendant_logits(1).subs(u, v) == 0


def test_the_true_entries_solve_kolmogorovs_equation_for_any_schedule():
    t, s, r, w = sp.symbols("t s r w", positive=True)
    alpha = sp.Function("alpha")
    cluster = sp.Function("beta_c")
    loss = sp.diff(alpha(t) + cluster(t), t) / cluster(t)
    survive = sp.exp(sp.Integral(loss.subs(t, r), (r, s, t)))
    arrive = -sp.diff(alpha(t), t) / alpha(s)
    descend = sp.Integral(arrive.subs(t, w) * survive.subs(s, w), (w, s, t))
    assert sp.simplify(sp.diff(survive, t) - loss * survive) == 0
    assert sp.simplify(sp.diff(descend, t) - arrive - loss * descend) == 0


def transition(descend, survive, g, point):
    """Proposition 1's matrix for four words in three clusters, columns = from, with its shapes
    mended.
    """
    alpha = family(g).occupancies[0]
    stay = alpha / alpha.subs(u, v)
    word_to_mask = 1 - stay - descend
    rows = [
        [stay * sp.eye(4), sp.zeros(4, 3), sp.zeros(4, 1)],
        [descend * Gamma, survive * sp.eye(3), sp.zeros(3, 1)],
        [word_to_mask * Xi * Gamma, (1 - survive) * Xi, sp.ones(1, 1)],
    ]
    matrix = sp.Matrix.vstack(*[sp.Matrix.hstack(*row) for row in rows])
    return torch.tensor(
        [[float(e.subs(point).evalf(20)) for e in matrix.row(i)] for i in range(8)],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("g", [R(1, 2), 1, 2, 3], ids=str)
def test_the_corrected_matrix_is_the_solution_of_kolmogorovs_equation_and_the_codes(g):
    process = dd.presets.hdlm([0, 0, 1, 2], gamma=float(g))
    solution = integrate_forward(process, THEN, NOW)
    corrected = transition(descendant_logits(g), survival(), g, HERE).T
    printed = transition(printed_descent(g), printed_survival(g), g, HERE).T
    assert torch.allclose(corrected, solution, atol=1e-9)
    assert torch.allclose(corrected, process.transition(THEN, NOW), atol=1e-9)
    assert float((printed - solution).abs().max()) > 0.05


def test_the_numbers_quoted_for_proposition_one():
    """At gamma = 1, s = .3, t = .7."""
    alpha = family(1).occupancies[0]
    printed = printed_descent(1)
    true = descendant_logits(1)
    stay = alpha / alpha.subs(u, v)
    quoted = {printed_survival(1): 1.447, survival(): 0.429, printed: 0.628, true: 0.363}
    quoted |= {1 - printed_survival(1): -0.447, 1 - survival(): 0.571}
    quoted |= {1 - stay - printed: -0.056, 1 - stay - true: 0.208}
    for expression, number in quoted.items():
        assert float(expression.subs(HERE).evalf(20)) == pytest.approx(number, abs=5e-4)


def test_the_printed_descent_diverges_at_the_data():
    """Like the logarithm of -log(1 - s), which the integrand -alpha'/beta_c integrates to at gamma
    = 1.
    """
    antiderivative = sp.log(-sp.log(u))
    alpha, cluster, _ = family(1).occupancies
    assert vanishes(ddt(antiderivative) + ddt(alpha) / cluster)
    assert sp.limit(antiderivative, u, 1, "-") == -sp.oo


def test_the_numbers_quoted_for_the_masks_weight():
    """At gamma = 2, t = .7, and its mean over noise and time, which must be 1."""
    printed, true = (w.subs(gamma, 2) for w in ERRATA["mask-weight"][:2])
    assert [float(w.subs(HERE)) for w in (printed, true)] == pytest.approx([0.940, 2.857], abs=5e-4)
    mask = family(2).occupancies[2]
    means = [sp.integrate(sp.cancel(w * mask), (u, 0, 1)) for w in (printed, true)]
    assert sp.simplify(means[0] - 1 + sp.log(2)) == 0 and means[1] == 1
    assert float(1 - sp.log(2)) == pytest.approx(0.31, abs=5e-3)


def test_the_page_has_one_row_for_each_erratum():
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(ERRATA)


def test_the_tests_that_the_page_names_exist():
    sources = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")
    )
    named = re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    assert named and all(f"def {name}(" in sources for name in named)
