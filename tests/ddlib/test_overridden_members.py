"""A subclass with another method cannot inherit the closed forms of the method that it replaces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlib.paces import Blocks, LeftToRight, Pace, RandomOrder, Together
from ddlib.processes import ForwardProcess, Masked, RateMatrix
from ddlib.schedules import Cosine, Linear, Schedule, Window
from ddlib.times import Bell, TimeDensity, Uniform
from ddlib.utils.agreement import holds


def other(self, *arguments, **options):
    return arguments[0]


@pytest.mark.parametrize(
    ("base", "overridden", "inherited", "named"),
    [
        (Blocks, "times", "speeds, block", "InTurn and Blocks"),
        (LeftToRight, "turns", "block", "Blocks"),
        (Bell, "density", "cumulative", "Bell"),
        (Bell, "cumulative", "density, inverse", "Bell"),
        (Uniform, "density", "cumulative, weight", "Uniform"),
        (Linear, "alpha", "rate, hazard, inverse", "Linear"),
        (Window, "alpha", "alpha_prime, rate, hazard, inverse, time_of", "Window"),
        (
            RateMatrix,
            "transition",
            "rates_into, marginal, predictive, _token_marginals",
            "RateMatrix",
        ),
    ],
)
def test_a_stale_closed_form_is_refused_when_the_class_is_defined(
    base, overridden, inherited, named
):
    rule = f"Mine overrides {overridden} and inherits {inherited} from {named}, written for another"
    with pytest.raises(TypeError, match=rule):
        type("Mine", (base,), {overridden: other})
    mixin = type("Mixin", (), {overridden: other})
    with pytest.raises(TypeError, match=rule):
        type("Mine", (mixin, base), {})


def test_members_between_a_class_and_its_base_are_refused_for_a_second_rate_matrix():
    """``sample`` of ``LevelProcess`` is for the levels of ``Hierarchical``."""
    theirs = ["marginal", "likelihood", "posterior", "weighted_divergence", "step_divergence"]
    methods = {name: getattr(ForwardProcess, name) for name in theirs} | {"rate_matrix": other}
    with pytest.raises(TypeError, match=r"inherits .*sample_forward, .*exit_rate"):
        type("Mine", (Masked,), methods)


@pytest.mark.parametrize(
    ("base", "source", "forms"),
    [
        (Blocks, "times", ["speeds", "block"]),
        (Bell, "density", ["cumulative", "inverse"]),
        (Linear, "alpha", ["rate", "hazard", "inverse"]),
    ],
)
def test_a_class_that_states_all_of_them_is_made(base, source, forms):
    type("Mine", (base,), dict.fromkeys([source, *forms], other))
    # as of a wrapper, which changes no value
    type("Mine", (base,), {source: other} | {name: getattr(base, name) for name in forms})


@pytest.mark.parametrize(
    ("base", "overridden"),
    [
        (Pace, "times"),
        (RandomOrder, "turns"),
        (TimeDensity, "density"),
        (TimeDensity, "cumulative"),
        (Bell, "inverse"),
        (Uniform, "weight"),
        (Schedule, "alpha"),
        (Linear, "rate"),
        (Cosine, "inverse"),
    ],
)
def test_a_method_that_others_follow_from_and_a_closed_form_can_be_overridden(base, overridden):
    type("Mine", (base,), {overridden: other})


class Generic(Pace):
    """Speeds for every subclass, which adds the times."""

    def speeds(self, u, chance):
        return (self.times(u + 1e-6, chance) - self.times(u - 1e-6, chance)) / 2e-6


def test_a_closed_form_of_an_abstract_method_is_that_of_every_subclass():
    class Squared(Generic):
        def times(self, u, chance):
            return u**2

    u = torch.tensor([0.25], dtype=torch.float64)
    assert Squared().speeds(u, torch.zeros(1, 2)).item() == pytest.approx(0.5, abs=1e-6)
    assert holds(Squared, "speeds", "times") and holds(Together, "speeds", "times")


NAMES = ("source", "form")


@given(st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=5))
def test_a_closed_form_holds_where_no_class_below_its_own_overrides_its_source(bodies):
    cls = type("Base", (), dict.fromkeys(NAMES, lambda self: None))
    last = dict.fromkeys(NAMES, 0)
    for depth, body in enumerate(bodies, 1):
        cls = type("Below", (cls,), {name: lambda self: None for name in body})
        last |= dict.fromkeys(body, depth)
    assert holds(cls, "form", "source") == (last["form"] >= last["source"])
