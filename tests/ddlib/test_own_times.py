"""A time per position: every answer at times (B, L) is that of each position by itself, and other
times are refused.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with
from timing import F64, TIMES, agrees, drawn, split
from zoo.calls import seeded

import ddlib as dd
from ddlib import registry
from ddlib.processes import GIDD, ForwardProcess, Hierarchical, Masked
from ddlib.testing import strategies

REGISTERED = [
    registry.get("processes", name).examples() for name in registry.available("processes")
]
EVERY = [each for some in REGISTERED for each in some]


@pytest.mark.parametrize("process", EVERY, ids=lambda process: type(process).__name__)
def test_every_answer_at_a_time_per_position_is_that_of_the_position_by_itself(process):
    agrees(process, TIMES / 3, TIMES, 1)


@settings(max_examples=examples(40))
@given(
    strategies.processes(strategies.all_schedules()),
    st.lists(st.floats(1e-4, 1 - 1e-4), min_size=6, max_size=6),
    st.integers(0, 99),
)
def test_times_per_position_agree_for_drawn_hierarchies_and_schedules(process, times, seed):
    t = torch.tensor(times, dtype=F64).view(2, 3)
    agrees(process, t / 2, t, seed)


@pytest.mark.parametrize(
    "process",
    [Hierarchical.examples()[-1], GIDD(4, 0.3), *dd.processes.PerWord.examples()[1:2]],
    ids=str,
)
def test_balanced_draws_choose_positions_by_their_own_times(process):
    """Two positions: q(z|x) = E[balance; z], enumerated against the distribution of the draws."""
    x = torch.tensor([[0, 1]])
    t = torch.tensor([[0.15, 0.9]], dtype=F64)
    n = 40_000
    rows = x.expand(n, -1)
    times = t.expand(n, -1)
    z = process.sample(rows, times, seeded(), "balanced")
    weight = process.importance_weight(rows, z, times)
    states = process.num_states
    mass = torch.zeros(states**2, dtype=F64).index_add_(0, z[:, 0] * states + z[:, 1], weight) / n
    probs = process.marginal(x, t)[0]
    every = torch.cartesian_prod(torch.arange(states), torch.arange(states))
    reached = (
        process._weight_and_mean(x.expand(len(every), -1), every, t.expand(len(every), -1))[1].sum(
            -1
        )
        > 0
    )
    exact = torch.where(reached, probs[0][every[:, 0]] * probs[1][every[:, 1]], 0.0)
    error = (weight.square().mean() * exact.clamp_min(1 / n)).sqrt() / n**0.5
    assert ((mass - exact).abs() < 6 * error + 3e-3 * exact).all()


@pytest.mark.parametrize(
    ("weighting", "process"),
    [
        (dd.weightings.Dynamic(), GIDD(4, 0.3)),
        (dd.weightings.Dynamic(released=True), GIDD(4, 0.3)),
        (dd.weightings.Optimal(4), Masked(3, dd.schedules.Linear())),
        (
            dd.weightings.PerLevel([2.0, 0.5], dd.weightings.Optimal()),
            dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, xi=0.9),
        ),
    ],
    ids=repr,
)
def test_weights_of_training_are_those_of_the_positions(weighting, process):
    x, z, logits = drawn(process, TIMES)
    here = dd.training_loss(process, logits, x, z, TIMES, weighting, reduction="none")
    alone = dd.training_loss(
        process, *map(split, (logits, x, z)), TIMES.flatten(), weighting, reduction="none"
    )
    assert torch.allclose(here, alone.view(2, 3), rtol=1e-11, atol=0) and here.max() > 0


@pytest.mark.parametrize("mode", ["standard", "edges"])
def test_child_logits_at_a_time_per_position(mode):
    process = dd.presets.hdlm([0, 0, 1, 1], gamma=2.0)
    options = {"mode": mode, "parameterization": "children"}
    x, z, _ = drawn(process, TIMES)
    logits = torch.randn(2, 3, 6, dtype=F64, generator=seeded(5))
    eye = torch.eye(6, dtype=F64)
    for output in (lambda logits: logits, lambda logits: dd.Hidden(logits, eye)):
        options["reduction"] = "none"
        whole = dd.training_loss(process, output(logits), x, z, TIMES, **options)
        parts = output(split(logits)), split(x), split(z), TIMES.flatten()
        alone = dd.training_loss(process, *parts, **options)
        assert torch.allclose(whole, alone.view(2, 3), rtol=1e-12, atol=0)


def test_gradients_of_the_fused_loss_at_a_time_per_position():
    process = dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, xi=0.9)
    x, z, hidden = drawn(process, TIMES)
    weight = torch.randn(4, 4, dtype=F64, generator=seeded(6))
    found = []
    for fused in (True, False):
        h = hidden.clone().requires_grad_()
        w = weight.clone().requires_grad_()
        if fused:
            dd.training_loss(process, dd.Hidden(h, w), x, z, TIMES).backward()
        else:
            dd.training_loss(process, h @ w.T, x, z, TIMES).backward()
        found.append((h.grad, w.grad))
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-12)


class TwoFunctions(ForwardProcess):
    """A process of a user: a rate matrix and a transition matrix at scalar times, and nothing
    else.
    """

    def __init__(self, inner):
        super().__init__(inner.vocab_size, inner.num_states)
        self.inner = inner

    def rate_matrix(self, t):
        return self.inner.rate_matrix(t)

    def transition(self, s, t):
        return self.inner.transition(s, t)


@pytest.mark.parametrize(
    "inner", [Masked(3, dd.schedules.Linear()), GIDD(4, 0.2)], ids=["masked", "gidd"]
)
def test_two_functions_of_a_scalar_time_give_every_method_at_a_time_per_position(inner):
    agrees(TwoFunctions(inner), TIMES / 3, TIMES, 1)


MASKED = Masked(3, dd.schedules.Linear())
X = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize("method", ["marginal", "sample"])
@pytest.mark.parametrize("process", [MASKED, TwoFunctions(MASKED)], ids=["masked", "two functions"])
@pytest.mark.usefixtures("as_users_call")
def test_other_times_are_refused(process, method):
    def answer(*shape, t=0.5):
        return getattr(process, method)(X, torch.full(shape, t))

    refused_with(answer=answer)(r"""
        answer(2, 2) | ValueError
            | t has shape \(2, 2\), must be \(B,\) = \(2,\).*\(B, L\) = \(2, 3\), one per position
        answer(3) | ValueError | t has shape \(3,\).*\(B, L\) = \(2, 3\), one per position
        answer(2, 3, 1) | ValueError | t has shape \(2, 3, 1\)
        answer(2, 3, t=1.5) | ValueError | t holds 1.5
    """)


@pytest.mark.usefixtures("as_users_call")
def test_two_times_have_one_shape_and_an_order_at_every_position():
    s = TIMES / 2
    s[1, 2] = 0.31
    refused_with(p=torch.full((2, 3, 3), 1 / 3, dtype=F64), s=s)(r"""
        MASKED.posterior(p, X, TIMES, TIMES[:, 0] / 2)
            | ValueError | s has shape \(2,\), must be that of t, \(2, 3\)
        MASKED.sample_forward(X, TIMES[:, 0] / 2, TIMES)
            | ValueError | s has shape \(2,\), must be that of t, \(2, 3\)
        MASKED.sample_forward(X, s, TIMES) | ValueError | s = .*0.31.* must
        MASKED.posterior(p, X, TIMES, s) | ValueError
            | s = 0.31 must be at most t = 0.3, at \(1, 2\)
    """)
