"""Tests that the author of a plug-in writes: ``ddlib.testing.check`` on each object."""

import pytest
from ddlib_ragged import Bands, LogOdds, Margin, Ragged, Restart

import ddlib as dd
from ddlib.testing import check

BANDS = Bands(counts=[90, 7, 40, 2, 11, 30], bands=3, xi=0.9, speed=[2.0, 1.0])
TREE = dd.hierarchies.Tree([[0, 0, 1, 1, 2], [0, 1, 1]], xi=[0.8, 1.0])


@pytest.mark.parametrize("steepness", [0.25, 2.0])
def test_the_schedule_keeps_its_contract(steepness):
    check(LogOdds(steepness))


@pytest.mark.parametrize("xi", [1.0, 0.9])
def test_the_hierarchy_keeps_its_contract(xi):
    check(Bands(counts=[90, 7, 40, 2, 11, 30], bands=3, xi=xi))


@pytest.mark.parametrize(
    "process",
    [
        pytest.param(Ragged(BANDS, [2, 7], LogOdds(1.5), speed=0.5)),
        pytest.param(Ragged(TREE, [0], dd.schedules.Cosine(), speed=2.0)),
    ],
    ids=["bands", "tree"],
)
def test_the_process_keeps_its_contract(process):
    check(process, level="quick")


@pytest.mark.parametrize("overshoot", [2.5])
def test_the_sampler_keeps_its_contract(overshoot):
    check(Restart(overshoot))


@pytest.mark.parametrize("margin", [2])
def test_the_rule_for_lengths_keeps_its_contract(margin):
    check(Margin(1, start=4, margin=margin, fill=0))
