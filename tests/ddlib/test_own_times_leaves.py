"""Leaves that know one time per sequence, and times that are refused."""

import pytest
import torch
from timing import F64, TIMES, agrees

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Interpolating, Masked


class Own(Masked):
    """A leaf with methods of its own, which know one time per sequence."""

    def likelihood(self, z, x, t):
        return super().likelihood(z, x, t) * torch.ones_like(t)[:, None]

    def occupancies(self, t):
        assert t.ndim == 1
        return super().occupancies(t)

    def sample(self, x, t, generator=None, levels="independent"):
        self.check_inputs(x=x, t=t)
        assert t.ndim == 1
        return super().sample(x, t, generator, levels)

    def importance_weight(self, x, z, t):
        return super().importance_weight(x, z, t)


class Kept(Interpolating):
    """A leaf by the three answers of ``Interpolating``, of which it knows one time per sequence."""

    def __init__(self):
        super().__init__(4, masked=True, uniform=True)
        self.inner = GIDD(4, 0.2)

    def mixture(self, t):
        assert t.ndim == 1 or t.shape[1:] == (1,) or not t.ndim
        return self.inner.mixture(t)

    def mixture_between(self, s, t):
        return self.inner.mixture_between(s, t)

    def mixing_rates(self, t):
        return self.inner.mixing_rates(t)


@pytest.mark.parametrize("process", [Own(3, dd.schedules.Linear()), Kept()], ids=lambda process: type(process).__name__)
def test_a_leaf_that_knows_one_time_per_sequence_is_served_position_by_position(process):
    agrees(process, TIMES / 3, TIMES, 1)


def test_a_leaf_draws_each_position_by_its_own_keyed_noise():
    """Whatever the rest of the batch is."""
    process, x, t = Own(9, dd.schedules.Linear()), torch.arange(80).view(4, 20) % 9, torch.rand(4, 20, dtype=F64)
    whole = process.sample(x, t, dd.KeyedGenerator(0, 0, torch.arange(4)))
    some = process.sample(x[2:], t[2:], dd.KeyedGenerator(0, 0, torch.arange(2, 4)))
    assert torch.equal(whole[2:], some) and 0 < int((whole == 9).sum()) < 80


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, x, t: p.importance_weight(x, x, t),
            r"t has shape \(2, 3\), must be \(B,\) = \(2,\).*Own.importance_weight.*does not answer",
        ),
        (lambda p, x, t: p.sample(x, t, levels="balanced"), r"Own.sample.*which levels = 'balanced' is not"),
    ],
)
def test_a_leaf_is_not_asked_for_what_positions_cannot_say_by_themselves(call, message):
    with pytest.raises(TypeError, match=message):
        call(Own(3, dd.schedules.Linear()), torch.zeros(2, 3, dtype=torch.int64), TIMES)


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
    for process in (Masked(3, dd.schedules.Linear()), Own(3, dd.schedules.Linear())):
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


class Divides(Masked):
    """A leaf with a posterior of its own, which divides by the length of the step."""

    def posterior(self, p, z, t, s):
        self.check_inputs(z=z, t=t, s=s, p=p)
        assert t.ndim == 1
        law = super().posterior(p, z, t, s)
        return law * (t - s)[:, None, None] / (t - s)[:, None, None]

    def step_divergence(self, logits, x, z, t, s):
        return ForwardProcess.step_divergence(self, logits, x, z, t, s)


def test_where_a_position_stands_still_a_leaf_s_posterior_is_the_state_itself():
    process, x, s = Divides(3, dd.schedules.Linear()), torch.zeros(2, 3, dtype=torch.int64), TIMES.clone()
    z, s[0] = torch.tensor([[0, 3, 1], [3, 0, 3]]), TIMES[0] / 2
    logits = torch.randn(2, 3, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    law = process.posterior(logits.softmax(-1), z, TIMES, s)
    assert torch.equal(law[1], torch.nn.functional.one_hot(z[1], 4).double())
    whole = Masked(3, dd.schedules.Linear())
    torch.testing.assert_close(law, whole.posterior(logits.softmax(-1), z, TIMES, s))
    z[0, 2] = 3
    cost, want = (one.step_divergence(logits, x, z, TIMES, s) for one in (process, whole))
    torch.testing.assert_close(cost, want)
    assert cost[1].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"s = 0.5 must be below t = 0.5, at \(0,\)"):
        process.posterior(logits.softmax(-1), z, TIMES.new_full((2,), 0.5), TIMES.new_full((2,), 0.5))
