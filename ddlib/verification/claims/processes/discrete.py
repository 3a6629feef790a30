"""Claims about the bound in discrete time: closed form = posterior form, sum over any number of
steps, limit.
"""

from collections.abc import Iterator

import torch

from ddlib.objective.nelbo import nelbo
from ddlib.parameterization.logits import cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.verification.claims.objective.bound import (
    PARAMETERIZATIONS,
    removed_information,
    turnover,
)
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, logits, pairs, pairs_with_logits, per_pair


def _closed_form(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t, scores = pairs_with_logits(process, point)
    s = at(float(point["s"]))
    for kind in PARAMETERIZATIONS:
        cavity = cavity_logits(process, scores, z, t, kind)
        closed = process.step_divergence(cavity, x, z, t, s)
        dense = ForwardProcess.step_divergence(process, cavity, x, z, t, s)
        yield per_pair(f"step from {kind} logits", x, z, closed, dense, 1e-10 * (1 + dense))
        yield per_pair(f"step from {kind} logits >= 0", x, z, closed, closed.clamp_min(0), 0.0)


def _telescopes(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Check that steps telescope: for predictions independent of z the model is the time reversal
    of the chain.
    """
    steps = int(point["steps"])
    scores = logits(process, point["distribution"])
    total = torch.zeros(process.vocab_size, dtype=torch.float64)
    for k in range(1, steps + 1):
        x, z, t = pairs(process, k / steps)
        cost = process.step_divergence(scores.expand(*x.shape, -1), x, z, t, at((k - 1) / steps))
        total.index_add_(0, x[0], (process.likelihood(z, x, t) * cost)[0])
    truth = scores[0, 0].exp()
    lost = removed_information(process, 0.0, truth) - removed_information(process, 1.0, truth)
    yield Comparison(f"bound of a token in {steps} steps", ("x",), total, lost, 1e-9 * (1 + lost))


def _limit(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t, scores = pairs_with_logits(process, point)
    unit = turnover(process, x, z, t, scores.exp())
    step = 1e-6 / float(unit.max())
    short = process.step_divergence(scores, x, z, t, t - step) / step
    yield per_pair(
        "bound of a short step", x, z, short, nelbo(process, scores, x, z, t), 1e-3 * unit
    )


CLAIMS = (
    Claim(
        "discrete",
        "step = posterior",
        "a step's closed form is the KL of the posteriors, for every (x, z)",
        "1e-10",
        _closed_form,
        (
            {"s": 0.25, "t": 0.5, "distribution": 1},
            {"s": 0.0, "t": 0.1, "distribution": 2},
            {"s": 0.499, "t": 0.5, "distribution": 4},
        ),
        (
            {"s": 0.0, "t": 1.0, "distribution": 3},
            {"s": 0.9, "t": 1.0, "distribution": 5},
            {"s": 0.0, "t": 1e-3, "distribution": 0},
        ),
        rests_on=("posterior",),
    ),
    Claim(
        "discrete",
        "steps telescope",
        "for token distributions, any number of steps sums to the KL removed by noise",
        "relative 1e-9",
        _telescopes,
        ({"steps": 1, "distribution": 1}, {"steps": 4, "distribution": 2}),
        ({"steps": 30, "distribution": 3},),
        rests_on=("step = posterior", "marginals"),
    ),
    Claim(
        "discrete",
        "short steps",
        "the bound of a short step is the continuous bound",
        "1e-3 of the turnover",
        _limit,
        ({"t": 0.5, "distribution": 1},),
        ({"t": 0.1, "distribution": 2}, {"t": 0.9, "distribution": 3}),
        rests_on=("step = posterior", "closed = generic"),
    ),
)
