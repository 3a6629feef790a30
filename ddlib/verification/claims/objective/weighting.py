"""Claims about weightings: finite, dependent on one position only, the same in both forms of the
loss.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.kernels import Hidden
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.processes.examples import four, special
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.framework.cases import Case, case_verifier, supported_cases
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition, of_dtype
from ddlib.verification.framework.inputs import logits, pairs, per_pair
from ddlib.weightings import Weighting, is_bound


def runs(weighting: Weighting) -> list[Case]:
    """Return cases of the weighting with each supported process, with or without a closed form, as
    ``supported_cases``.
    """
    every = four() | special()
    processes = [
        every[name] for name in ("masked", "xi", "uniform", "tree", "gidd", "masks only", "rates")
    ]
    refusal = "supports none of masks, hierarchies, uniform noise, GIDD and a rate matrix"
    return supported_cases(weighting, processes, weighting.check, (TypeError, ValueError), refusal)


def _inputs(case: Case, t: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all possible pairs of token and state, the time, and the bound's weight."""
    x, z, when = pairs(case.process, t)
    return x, z, when, case.process.loss_weight(x, z, when).to(torch.float64)


def _zeros(case: Case, point: Point) -> Iterator[Comparison]:
    x, z, t, weight = _inputs(case, float(point["t"]))
    weight_before = weight.clone()
    new_weight = case.subject(case.process, weight, x, z, t)
    yield of_dtype("the weight", new_weight, torch.float64)
    yield per_pair("the argument weight after the call", x, z, weight, weight_before, 0.0)
    sound = (new_weight.isfinite() & (new_weight >= 0)).double()
    yield per_pair(
        "1 where the weight is finite and not negative", x, z, sound, torch.ones_like(sound), 0.0
    )
    at_zeros = torch.where(weight == 0, new_weight, 0.0)
    yield per_pair(
        "the weight where that of the bound is 0", x, z, at_zeros, torch.zeros_like(at_zeros), 0.0
    )
    counts = not bool((weight > 0).any()) or bool((new_weight > 0).any())
    yield condition(
        "some weight",
        counts,
        f"no state of {case.process!r} has a positive weight at t = {point['t']:g}",
    )


def _alone(case: Case, point: Point) -> Iterator[Comparison]:
    x, z, t, weight = _inputs(case, float(point["t"]))
    new_weight = case.subject(case.process, weight, x, z, t)
    rows = zip(*(values.T.split(1) for values in (weight, x, z)), strict=True)
    alone = torch.cat([case.subject(case.process, *row, t) for row in rows]).T
    yield per_pair(
        "the weight of a token alone in its batch",
        x,
        z,
        alone,
        new_weight,
        1e-12 * (1 + new_weight),
    )


def _losses(case: Case, point: Point) -> Iterator[Comparison]:
    x, z, t, weight = _inputs(case, float(point["t"]))
    scores = logits(case.process, point["distribution"], x.shape[1])
    new_weight = case.subject(case.process, weight, x, z, t)
    bound = nelbo(case.process, scores, x, z, t)
    expected = (
        torch.where(weight > 0, bound / torch.where(weight > 0, weight, 1.0), 0.0) * new_weight
    )
    allowed = 1e-9 * (1 + expected + new_weight)
    loss = training_loss(case.process, scores, x, z, t, case.subject, reduction="none")
    yield per_pair("training_loss", x, z, loss, expected, allowed)
    identity = torch.eye(case.process.vocab_size, dtype=torch.float64)
    fused = training_loss(
        case.process, Hidden(scores, identity), x, z, t, weighting=case.subject, reduction="none"
    )
    yield per_pair("training_loss of hidden states", x, z, fused, expected, allowed)
    if is_bound(case.subject):
        yield per_pair("the loss declared to be the bound", x, z, loss, bound, 1e-12 * (1 + bound))


_T = ({"t": 0.5}, {"t": 1e-6}, {"t": 1 - 1e-6})
_ENDS = ({"t": 0.0}, {"t": 1.0}, {"t": 1e-8}, {"t": 0.05}, {"t": 0.95})

CLAIMS = (
    Claim(
        "weighting",
        "weights",
        "finite and not negative, 0 where the bound's are, not all 0",
        "exactly",
        _zeros,
        _T,
        _ENDS,
    ),
    Claim(
        "weighting",
        "one token",
        "a token's weight depends on no other token of the batch",
        "relative 1e-12",
        _alone,
        ({"t": 0.5},),
        ({"t": 1e-6}, {"t": 0.9}),
        rests_on=("weights",),
    ),
    Claim(
        "weighting",
        "losses",
        "both losses are this weight times the bound's divergence, or the bound",
        "relative 1e-9",
        _losses,
        ({"t": 0.5, "distribution": 1}, {"t": 1e-4, "distribution": 2}),
        ({"t": 0.95, "distribution": 3},),
        rests_on=("one token",),
    ),
)

verify = case_verifier("weighting", runs, CLAIMS, PART_CLAIMS)
