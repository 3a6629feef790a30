"""Every registered process, verified at hundreds of states as it was given."""

import pytest
import torch

import ddlib as dd
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord, Product, RateMatrix, Uniform

V = 300
CLUSTERS = torch.arange(V) % 40
ABOVE = torch.arange(40) % 7


def gaussian(size, width):
    apart = (torch.arange(size)[:, None] - torch.arange(size)).double()
    rates = torch.exp(-(apart**2) / (2 * width**2)).fill_diagonal_(0)
    return rates - torch.diag(rates.sum(1))


LARGE = {
    "masked": lambda: Masked(V, dd.schedules.Cosine()),
    "uniform": lambda: Uniform(V, dd.schedules.Linear()),
    "gidd": lambda: GIDD(V, 0.2),
    "hierarchical": lambda: Hierarchical(
        dd.hierarchies.Tree([CLUSTERS, ABOVE], xi=[0.9, 0.8], speed=[2.0, 1.0, 1.5]),
        dd.schedules.Linear(),
    ),
    "noisy": lambda: Noisy(
        dd.hierarchies.Tree([CLUSTERS], xi=0.9), dd.schedules.Linear(), p_uniform=0.2
    ),
    "per_word": lambda: PerWord(dd.schedules.Linear(), torch.linspace(0.4, 3.0, V).tolist()),
    "rate_matrix": lambda: RateMatrix(gaussian(V, 3.0), dd.schedules.Linear()),
    "product": lambda: Product({"tokens": Uniform(V, dd.schedules.Linear())}),
}


def test_every_registered_process_has_an_example_of_hundreds_of_states():
    classes = {type(make()) for make in LARGE.values()}
    ours = {dd.registry.get("processes", name) for name in dd.registry.built_in("processes")}
    assert ours <= classes, f"without an example: {ours - classes}"


@pytest.mark.parametrize("name", LARGE)
def test_a_process_of_hundreds_of_states_is_verified_as_given(name):
    report = dd.verify(LARGE[name]())
    assert report.ok, report
    held = {check.name for check in report.checks if check.topic == "as given" and check.ok}
    assert {
        "Chapman-Kolmogorov at size",
        "rates at size",
        "posterior at size",
        "bound = entropy at size",
    } <= held


def test_a_process_of_more_than_a_thousand_states_is_multiplied_by_vectors():
    class Plain(Uniform):
        def small_copy(self, vocab_size):
            raise TypeError("no reduction")

    report = dd.verify(Plain(1100, dd.schedules.Linear()))
    assert report.ok, report
    assert "no reduction: 1100 states verified as given" in report.note
    assert {check.name for check in report.checks if check.ok is None} >= {
        "bound = entropy at size"
    }


def test_a_process_without_a_reduction_is_verified_up_to_a_thousand_states_at_any_size():
    report = dd.verify(RateMatrix(gaussian(170, 2.0), dd.schedules.Linear()))
    assert report.ok and report.note == "no reduction: 170 states verified as given", report


def test_the_claim_of_digits_names_the_exponential_that_keeps_them():
    class Eigen(RateMatrix):
        pass

    def transition(self, s, t):
        values, vectors = torch.linalg.eigh(self.matrix)
        start, end = (self.schedule.hazard(torch.as_tensor(time).double()) for time in (s, t))
        return (vectors * (values * (end - start)).exp() @ vectors.T).clamp_min(0)

    Eigen.transition = transition  # a class that overrides it alone is refused
    report = dd.verify(Eigen(gaussian(12, 0.4), dd.schedules.Linear()))
    (digits,) = [check for check in report.failures if check.name == "digits"]
    assert "ddlib.processes.MatrixExponential" in digits.means
