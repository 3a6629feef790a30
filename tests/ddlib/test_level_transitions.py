"""Transitions of chains of one and two edges in closed form.

Against the uniformised series, and against sixty digits of mpmath.
"""

import math

import mpmath
import pytest
import torch
from cases import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.hierarchies.maps import parent_map, to_masks
from ddlib.processes.level_chain import PowerChain
from ddlib.processes.level_transitions import (
    LevelExponential,
    OneEdge,
    TwoEdges,
    transitions_of,
)
from ddlib.testing import strategies

F64 = torch.float64
ROUNDING = 2.0**-53
ENDS = (0.0, 1e-300, 1e-16, 2.0**-24, 700.0, 1e5, math.inf)
"""Durations at which formulas change, or end."""
TINY = 1e-290
"""Below this probabilities count as 0."""

far = st.one_of(strategies.speeds, st.floats(2e-3, 500.0))
nearly_equal = st.tuples(far, st.floats(-1e-6, 1e-6)).map(
    lambda pair: (pair[0], pair[0] * (1 + pair[1]))
)
rates = st.one_of(
    st.lists(far, min_size=1, max_size=2).map(tuple),
    nearly_equal,
    far.map(lambda rate: (rate, rate)),
)
durations = st.lists(
    st.one_of(st.floats(1e-12, 50.0), st.floats(-12, 2).map(lambda power: 10.0**power)),
    min_size=1,
    max_size=8,
)


def generic(rates):
    edges = torch.tensor(rates, dtype=F64)
    exits = torch.cat([edges, edges.new_zeros(1)])
    return LevelExponential(torch.diag(edges, 1) - torch.diag(exits))


def require_equal(ours, theirs, rtol):
    assert ours.dtype == F64
    assert ours.shape == theirs.shape
    counts = theirs > TINY
    assert torch.allclose(ours[counts], theirs[counts], rtol=rtol, atol=0)
    assert (ours[~counts] <= 2 * TINY).all()
    assert (ours >= 0).all()


@settings(max_examples=examples(200))
@given(rates, durations)
@example((1.0,), [1.0])
@example((1.0, 1.0), [1.0, 1 - 2**-53, 1 + 2**-52])
@example((2.0, 1.0), [0.5, 0.5 - 2**-54])
@example((1.0, 1 + 2**-52), [1e-3, 1.0, 30.0])
def test_closed_forms_are_the_series(rates, durations):
    sigma = torch.tensor([*ENDS, *durations], dtype=F64)
    closed = transitions_of(rates)
    assert isinstance(closed, (OneEdge, TwoEdges)[len(rates) - 1])
    series = generic(rates)
    # a squaring doubles the relative error of the probability to stay
    tolerance = 64 * ROUNDING * 2**series.squarings
    ours = closed(sigma)
    exact = series(sigma)
    require_equal(ours, exact, tolerance)
    require_equal(closed.from_tokens(sigma), exact[:, 0], tolerance)
    require_equal(closed.at_most(sigma), exact[:, 0, :-1].cumsum(-1), tolerance)
    assert torch.equal(ours[:, 0], closed.from_tokens(sigma))
    assert torch.allclose(ours.sum(-1), ours.new_ones(()), rtol=0, atol=8 * ROUNDING)


def exact_rows(rates, sigma):
    """Return the rows of the matrix that are not (0, ..., 0, 1), in sixty digits."""
    with mpmath.workdps(60):
        stays = [mpmath.exp(-mpmath.mpf(rate) * mpmath.mpf(sigma)) for rate in rates]
        last = [stays[-1], 1 - stays[-1]]
        if len(rates) == 1:
            return [last]
        lower, upper = map(mpmath.mpf, rates)
        passed = (
            lower * mpmath.mpf(sigma) * stays[0]
            if lower == upper
            else lower * (stays[1] - stays[0]) / (lower - upper)
        )
        return [[stays[0], passed, 1 - stays[0] - passed], [mpmath.mpf(0), *last]]


@settings(max_examples=examples(200))
@given(rates, st.one_of(st.floats(1e-9, 50.0), st.floats(-9, 2).map(lambda power: 10.0**power)))
@example((1.0, 1.0), 1.0)
@example((1.0, 1 + 2**-52), 1e-6)
@example((1e3, 1e-3), 1e-3)
@example((1e-3, 1e3), 1e-3)
def test_closed_forms_have_full_relative_accuracy(rates, sigma):
    ours = transitions_of(rates)(torch.tensor(sigma, dtype=F64))
    longest = max(rates) * sigma
    for mine, row in zip(ours.tolist(), exact_rows(rates, sigma), strict=False):
        for value, exact in zip(mine, row, strict=True):
            if exact > TINY:
                # the relative error of exp(-x) is that of x, times x
                assert abs(value / exact - 1) < (16 + 4 * min(longest, 690.0)) * ROUNDING


@settings(max_examples=examples(100))
@given(rates, strategies.times, st.sampled_from([torch.float32, F64]))
@example((1.0, 1.0), 1e-8, torch.float32)
@example((3.0, 1.0), 1 - 2**-24, torch.float32)
def test_processes_have_the_occupancies_and_weights_of_the_series(rates, t, dtype):
    edges = [parent_map([0, 0, 1]), to_masks(2)] if len(rates) == 2 else [to_masks(3)]
    hierarchy = dd.hierarchies.Hierarchy(edges, rates)
    process = dd.processes.Hierarchical(hierarchy, dd.schedules.Linear())
    series = PowerChain(dd.schedules.Linear(), rates)
    series.generator = generic(rates)
    time = torch.tensor([t], dtype=dtype)
    tolerance = 64 * ROUNDING * 2**series.generator.squarings
    for name in ("occupancies", "weights"):
        ours = getattr(process, name)(time)
        require_equal(ours, getattr(series, name)(time.double()), tolerance)


@pytest.mark.parametrize("rates", [(2.0,), (1.0, 1.0), (3.0, 1.0), (1.0, 3.0), (1.0, 1.0 + 1e-9)])
@pytest.mark.parametrize("sigma", [0.0, 1e-9, 0.3, 1.0, 3.0, 800.0])
def test_derivatives_are_those_of_the_series(rates, sigma):
    closed = transitions_of(rates)
    sigma = torch.tensor([sigma, sigma], dtype=F64)
    ours, theirs = (
        torch.autograd.functional.jacobian(function, sigma) for function in (closed, generic(rates))
    )
    assert ours.isfinite().all()
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-13)


def test_the_number_of_edges_decides():
    kinds = [type(transitions_of([1.0] * count)) for count in (1, 2, 3)]
    assert kinds == [OneEdge, TwoEdges, LevelExponential]


def test_constants_move_with_the_process():
    moved = dd.presets.hdlm([0, 0, 1]).to("meta").chain.generator
    assert moved.coefficients.is_meta
