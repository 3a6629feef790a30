"""Schedules that fall below float64 before t = 1, under edges so slow that this matters."""

import math

import pytest
import torch
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import Hierarchical, RateMatrix
from ddlib.schedules import Linear, Polynomial, Symbolic

STEEP = Symbolic("(1 - t)**1000")
SLOW = dd.hierarchies.Tree([[0, 0, 1, 1]], speed=[1e-3, 1.0])
SLOW_CHAIN = 1e-3 * torch.tensor([[-1.0, 1.0], [1.0, -1.0]], dtype=F64)


test_a_slow_edge_on_a_schedule_that_ends_early_in_float64_is_refused = refuses(r"""
    Hierarchical(SLOW, STEEP)
        | ValueError | speed.* is too slow for Symbolic.* 0 in float64 from t = 0\.5248
    Noisy(SLOW, STEEP, 0.1)
        | ValueError | speed.* is too slow for Symbolic.* 0 in float64 from t = 0\.5248
    PerWord(STEEP, [1.0, 1e-3])
        | ValueError | powers.* is too slow for Symbolic.* 0 in float64 from t = 0\.5248
    RateMatrix(SLOW_CHAIN, STEEP)
        | ValueError | matrix.* is too slow for Symbolic.* 0 in float64 from t = 0\.5248
""")


def test_fast_edges_are_served_by_such_a_schedule():
    process = Hierarchical(dd.hierarchies.Tree([[0, 0, 1, 1]], speed=[0.06, 1.0]), STEEP)
    assert float(process.occupancies(torch.tensor(0.6, dtype=F64))[0]) < 1e-15
    RateMatrix(1e3 * SLOW_CHAIN, STEEP)


def test_the_same_schedule_with_a_closed_hazard_is_exact_for_slow_edges():
    t = torch.tensor([0.1, 0.525, 0.6, 0.99, 1 - 2**-24], dtype=F64)
    process = Hierarchical(SLOW, Polynomial(1000.0))
    assert torch.allclose(process.occupancies(t)[:, 0], 1 - t, rtol=1e-12, atol=0)
    matrix = RateMatrix(SLOW_CHAIN, Polynomial(1000.0))
    stays = matrix.marginal(torch.zeros(5, 1, dtype=torch.int64), t)[:, 0, 0]
    assert torch.allclose(stays, (1 + (1 - t) ** 2) / 2, rtol=1e-12, atol=0)


@pytest.mark.statistical
def test_jump_times_drawn_up_front_go_beyond_the_end_of_float64():
    """Entries of the first cluster are uniform on [0, 1], also after t = 0.525, where alpha
    underflows.
    """
    process = Hierarchical(SLOW, Polynomial(1000.0))
    entries, _ = process.sample_jump_times((20_000, 1), seeded(), torch.device("cpu"))
    first = entries[:, 0, 0].sort().values
    apart = (first - torch.arange(20_000) / 20_000).abs().max()
    assert float(apart) < 1.95 / math.sqrt(20_000)  # Kolmogorov-Smirnov, false alarm 1e-3


def test_a_time_of_a_hazard_is_the_inverse_of_alpha():
    hazard = torch.tensor([0.0, 1e-6, 0.3, 5.0, 500.0], dtype=F64)
    for schedule in (Linear(), Polynomial(3.0), Polynomial(0.5)):
        assert torch.equal(schedule.time_of(hazard), schedule.inverse((-hazard).exp()))
