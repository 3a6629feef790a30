"""Properties that ``check`` does not test: closed forms of the schedule at fifty digits, and
contents of bands.
"""

import mpmath
import pytest
import sympy
import torch
from ddlib_ragged import Bands, LogOdds
from hypothesis import given
from hypothesis import strategies as st

from ddlib.schedules import Schedule


@given(
    st.floats(0.25, 4.0), st.one_of(st.floats(1e-8, 1 - 1e-8), st.sampled_from([1e-8, 1 - 1e-8]))
)
def test_closed_forms_of_the_schedule_agree_with_its_formula(steepness, t):
    schedule = LogOdds(steepness)
    time = torch.tensor([t], dtype=torch.float64)
    schedule.check()
    formula = schedule.expression()
    (symbol,) = formula.free_symbols
    with mpmath.workdps(50):
        exact = {
            "alpha_prime": sympy.lambdify(symbol, sympy.diff(formula, symbol), "mpmath")(
                mpmath.mpf(t)
            ),
            "rate": sympy.lambdify(symbol, -sympy.diff(formula, symbol) / formula, "mpmath")(
                mpmath.mpf(t)
            ),
            "hazard": sympy.lambdify(symbol, -sympy.log(formula), "mpmath")(mpmath.mpf(t)),
        }
    for name, value in exact.items():
        assert float(getattr(schedule, name)(time)) == pytest.approx(float(value), rel=1e-12)
    alpha = schedule.alpha(time)
    # where alpha is flat, rounding of alpha makes the time uncertain in both inverses
    unsure = torch.finfo(alpha.dtype).eps / float(schedule.alpha_prime(time).abs())
    assert torch.allclose(
        schedule.inverse(alpha), Schedule.inverse(schedule, alpha), atol=1e-7 + unsure
    )


def test_bands_hold_words_of_like_frequency():
    counts = torch.tensor([3, 90, 7, 40, 2, 11, 30])
    parents = Bands(counts, 3).maps[0].parents
    assert torch.bincount(parents).tolist() == [3, 2, 2]
    for band in range(2):
        assert counts[parents == band].min() > counts[parents == band + 1].max()
