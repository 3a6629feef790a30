"""What has no exact likelihood, refused before the network runs, with why and what serves instead."""

import pytest
import torch

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.processes import Hierarchical, Masked, Uniform
from ddlib.samplers import Ancestral, Confidence, LeftToRight, OrderedSampler
from ddlib.schedules import Geometric, Linear

pytestmark = pytest.mark.usefixtures("as_users_call")
X = torch.tensor([[0, 3, 1]])
BOUND = "ddlib.bound has an upper bound"


def never(z, t):
    raise AssertionError("the network was asked")


def read(process=None, x=X, order=None, **options):
    process = dd.presets.hdlm([0, 0, 1, 1]) if process is None else process
    return dd.likelihood(process, never, x, order, **options)


class Gambling(LeftToRight):
    """An order of somebody who never heard of ``deterministic``."""

    def noise(self, run, z):
        return torch.rand(z.shape, dtype=torch.float64)


class Looped(Masked):
    """A process of somebody's own that keeps no word in its cluster."""

    def subtree_logits_suffice(self, level, target, force=False):
        return False


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: read(order=Ancestral()), TypeError, rf"order is Ancestral\(.*\), must be a sampler that.*{BOUND}"),
        (lambda: read(order="confidence"), TypeError, "order is 'confidence', must be a sampler that chooses"),
        (
            lambda: read(order=Confidence(temperature=0.5)),
            ValueError,
            rf"order is Confidence\(.*temperature=0.5.*\), must choose without chance.*{BOUND}",
        ),
        (lambda: read(order=Gambling()), ValueError, r"order is Gambling\(.*\), must choose without chance"),
        (lambda: read(Uniform(4, Linear())), TypeError, rf"needs a process with levels, Uniform.* has none.*{BOUND}"),
        (lambda: read(dd.presets.gidd(4, 0.2)), TypeError, rf"needs a process with levels, GIDD.* has none.*{BOUND}"),
        (
            lambda: read(dd.presets.hdlm([0, 0, 1, 1], xi=0.9)),
            TypeError,
            rf"one way down to each word.* xi < 1: what is in level 0 may come from several states of level 1; {BOUND}",
        ),
        (
            lambda: read(Hierarchical(Tree([[0, 0, 1, 2], [0, 0, 1]], xi=[1.0, 0.8]), Linear())),
            TypeError,
            "what is in level 1 may come from several states of level 2",
        ),
        (lambda: read(Looped(4, Linear())), TypeError, "one way down to each word"),
        (
            lambda: read(Masked(4, Geometric(1e-3, 5.0))),
            ValueError,
            rf"starts at the mask alone, Masked.* has 0.00674 of its tokens below it at t = 1; {BOUND}",
        ),
        (lambda: read(x=torch.tensor([[0, 4, 1]])), ValueError, r"x holds 4, must be words in \[0, 4\)"),
        (lambda: read(x=torch.tensor([0, 1])), ValueError, r"x has shape \(2,\), must be \(B, L\)"),
        (lambda: read(x=X.double()), TypeError, "x has dtype torch.float64, must be a torch.int64 tensor of words"),
        (lambda: read(steps=0), ValueError, "steps is 0, must be at least 1"),
        (lambda: read(steps=2.0), TypeError, "steps is 2.0, must be an int"),
        (lambda: read(given=[True]), TypeError, "given has dtype list, must be a torch.bool tensor"),
        (lambda: read(given=X), TypeError, "given has dtype torch.int64, must be a torch.bool tensor"),
        (lambda: read(given=X[:, :2] > 0), ValueError, r"given has shape \(1, 2\), must be that of x, \(1, 3\)"),
        (
            lambda: read(order=Confidence(per_step=1), steps=5),
            ValueError,
            "steps is 5, must be at least 6: a row has 6 edges to go down",
        ),
        (lambda: read(order=Confidence(threshold=[0.5])), ValueError, "threshold has 1 entries, must have 2"),
        (lambda: read(parameterization="odds"), ValueError, "parameterization is 'odds', must be one of"),
    ],
)
def test_bad_input_is_refused_before_the_network_runs(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_nothing_to_read_asks_nobody():
    found = read(given=torch.ones_like(X, dtype=torch.bool))
    assert found.calls == 0 and found.log_likelihood.tolist() == [0.0]


def test_orders_say_whether_they_choose_without_chance():
    assert all(
        one.deterministic == (getattr(one, "temperature", 0) == 0)
        for name in ("confidence", "entropy_bounded", "left_to_right")
        for one in dd.registry.get("samplers", name).examples()
    )
    assert (
        issubclass(LeftToRight, OrderedSampler) and not LeftToRight().uses_predictions and Confidence().uses_predictions
    )


def test_a_clock_that_ends_late_enough_for_float64_is_served():
    dd.likelihood(Masked(4, Geometric(1e-3, 60.0)), lambda z, t: torch.zeros(*z.shape, 4), X)


def test_where_to_look_for_it():
    with pytest.raises(AttributeError, match=r"did you mean .*dd\.likelihood"):
        dd.log_likelihood  # noqa: B018
