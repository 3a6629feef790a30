"""Processes of a user at a time per position, and times that are refused."""

import pytest
import torch
from timing import F64, TIMES, agrees

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Masked


class TwoFunctions(ForwardProcess):
    """A process of a user: a rate matrix and a transition matrix at scalar times, and nothing else."""

    def __init__(self, inner):
        super().__init__(inner.vocab_size, inner.num_states)
        self.inner = inner

    def rate_matrix(self, t):
        return self.inner.rate_matrix(t)

    def transition(self, s, t):
        return self.inner.transition(s, t)


@pytest.mark.parametrize("inner", [Masked(3, dd.schedules.Linear()), GIDD(4, 0.2)], ids=["masked", "gidd"])
def test_two_functions_of_a_scalar_time_give_every_method_at_a_time_per_position(inner):
    agrees(TwoFunctions(inner), TIMES / 3, TIMES, 1)


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (
            torch.full((2, 2), 0.5),
            r"t has shape \(2, 2\), must be \(B,\) = \(2,\).*\(B, L\) = \(2, 3\), one per position",
        ),
        (torch.full((3,), 0.5), r"t has shape \(3,\).*\(B, L\) = \(2, 3\), one per position"),
        (torch.full((2, 3, 1), 0.5), r"t has shape \(2, 3, 1\)"),
        (torch.full((2, 3), 1.5), r"t holds 1.5"),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_other_times_are_refused(t, message):
    x = torch.zeros(2, 3, dtype=torch.int64)
    for process in (Masked(3, dd.schedules.Linear()), TwoFunctions(Masked(3, dd.schedules.Linear()))):
        with pytest.raises(ValueError, match=message):
            process.marginal(x, t)
        with pytest.raises(ValueError, match=message):
            process.sample(x, t)


@pytest.mark.usefixtures("as_users_call")
def test_two_times_have_one_shape_and_an_order_at_every_position():
    process, x = Masked(3, dd.schedules.Linear()), torch.zeros(2, 3, dtype=torch.int64)
    p = torch.full((2, 3, 3), 1 / 3, dtype=F64)
    with pytest.raises(ValueError, match=r"s has shape \(2,\), must be that of t, \(2, 3\)"):
        process.posterior(p, x, TIMES, TIMES[:, 0] / 2)
    with pytest.raises(ValueError, match=r"s has shape \(2,\), must be that of t, \(2, 3\)"):
        process.sample_forward(x, TIMES[:, 0] / 2, TIMES)
    s = TIMES / 2
    s[1, 2] = 0.31
    with pytest.raises(ValueError, match=r"s = .*0.31.* must"):
        process.sample_forward(x, s, TIMES)
    with pytest.raises(ValueError, match=r"s = 0.31 must be at most t = 0.3, at \(1, 2\)"):
        process.posterior(p, x, TIMES, s)
