"""Selection of tests by measured durations."""

from types import SimpleNamespace

from budget import FIRST, select


def case(test, cost):
    item = SimpleNamespace(path="test_a.py", originalname=test, name=test, cost=cost)
    return type("Item", (), {"__hash__": lambda self: id(self), **vars(item)})()


def selected(cases, capacity):
    chosen = select({item: item.cost for item in cases}, capacity)
    return [(item.originalname, item.cost) for item in cases if item in chosen]


def test_everything_fits_a_large_budget():
    cases = [case("a", 1.0), case("a", 50.0), case("b", 3.0)]
    assert len(selected(cases, 54.0)) == 3


def test_the_fastest_case_of_each_test_precedes_other_cases():
    cases = [case("a", 1.0), case("a", 2.0), case("a", 2.5), case("b", 10.0)]
    assert FIRST * 10.0 < 2.0
    assert selected(cases, 11.0) == [("a", 1.0), ("b", 10.0)]


def test_a_test_that_does_not_fit_is_left_out():
    cases = [case("a", 1.0), case("b", 100.0), case("c", 30.0)]
    assert selected(cases, 40.0) == [("a", 1.0), ("c", 30.0)]
