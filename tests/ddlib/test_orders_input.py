"""What orders refuse before the network runs, and what they are made from."""

import math

import pytest
from halves import LEVELS

import ddlib as dd
from ddlib.samplers import Confidence, EntropyBounded
from ddlib.schedules import Linear


def never(z, t):
    raise AssertionError("the network was asked")


def run(process, sampler, steps=5):
    return dd.sample(process, never, (2, 3), sampler, steps)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Confidence("max"), ValueError, "score is 'max', must be one of 'probability', 'margin', 'entropy'"),
        (lambda: Confidence(per_step=0), ValueError, "per_step is 0, must be at least 1"),
        (lambda: Confidence(per_step=2.0), TypeError, "per_step is 2.0, must be an int"),
        (lambda: Confidence(threshold=1.5), ValueError, r"threshold is 1.5, must be in \[0, 1\].* nothing meets it"),
        (
            lambda: Confidence("probability", threshold=0.0),
            ValueError,
            r"threshold is 0.0, must be in \(0, 1\].* everything meets it",
        ),
        (
            lambda: Confidence("entropy", threshold=[-1.0, 0.5]),
            ValueError,
            r"threshold\[1\] is 0.5, must be at most 0, where entropy lies: nothing meets it",
        ),
        (lambda: Confidence(threshold="0.5"), TypeError, "threshold is '0.5', must be a number"),
        (lambda: Confidence(threshold=float("nan")), ValueError, "threshold is nan"),
        (lambda: Confidence(per_step=1, threshold=0.5), ValueError, "per_step is 1 and threshold is 0.5, must be one"),
        (lambda: Confidence(temperature=-1.0), ValueError, "temperature is -1.0, must be >= 0"),
        (lambda: EntropyBounded(-0.1), ValueError, "gamma is -0.1, must be >= 0"),
        (lambda: EntropyBounded("much"), TypeError, "gamma is 'much', must be a number"),
        (
            lambda: run(LEVELS["levels"], Confidence(threshold=[0.5])),
            ValueError,
            "threshold has 1 entries, must have 3: one per edge",
        ),
        (
            lambda: run(LEVELS["levels"], Confidence(per_step=1), 8),
            ValueError,
            "steps is 8, must be at least 9: a row has 9 edges to go down, and per_step is 1",
        ),
        (
            lambda: run(dd.presets.gidd(6, 0.2), EntropyBounded()),
            TypeError,
            "EntropyBounded needs a process with levels, GIDD.* has none: Psi serves it",
        ),
        (lambda: run(dd.processes.Uniform(6, Linear()), Confidence()), TypeError, "Confidence needs a process with"),
    ],
)
def test_bad_input_is_refused_before_the_network_runs(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_they_are_made_from_plain_values():
    made = dd.parts.build(
        "samplers", {"kind": "ddlib.samplers:Confidence", "score": "entropy", "threshold": [-0.1, -0.2]}
    )
    assert repr(made) == (
        "Confidence(score='entropy', per_step=None, threshold=(-0.1, -0.2), temperature=0.0, force_transition=False)"
    )
    assert (
        not made.consistent_joint
        and Confidence(per_step=1).consistent_joint
        and not Confidence(per_step=2).consistent_joint
    )
    assert dd.parts.build("samplers", {"kind": "ddlib.samplers:EntropyBounded", "gamma": 1}).gamma == 1.0
    assert dd.parts.build("samplers", {"kind": "ddlib.samplers:EntropyBounded", "gamma": "inf"}).gamma == math.inf
    assert EntropyBounded(0.0).consistent_joint and not EntropyBounded().consistent_joint


def test_registered():
    assert {"confidence", "entropy_bounded"} <= set(dd.registry.available("samplers"))
