"""Claims about weightings: finite, dependent on one position only, the same in both forms of the loss."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ddlib.kernels import linear_training_loss
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.presets import hdlm
from ddlib.processes import GIDD, ForwardProcess, RateMatrix
from ddlib.schedules import Linear
from ddlib.verification.claims.samplers.sampler import processes as three
from ddlib.verification.framework.claim import Claim, Comparison, Point, of_dtype, stated
from ddlib.verification.framework.inputs import logits, pairs, per_pair
from ddlib.weightings import Weighting


class Rule(NamedTuple):
    """A weighting and a process to apply it to."""

    weighting: Weighting
    process: ForwardProcess

    def asked(self, t: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return all possible pairs of token and state, the time, and the bound's weight."""
        x, z, when = pairs(self.process, t)
        return x, z, when, self.process.loss_weight(x, z, when).to(torch.float64)


def processes() -> tuple[ForwardProcess, ...]:
    """Return one process of every kind, with one to three levels above the tokens, with and without a closed form."""
    tree = hdlm([0, 0, 1, 1, 2])
    return (*three(), tree, GIDD(5, 0.2), GIDD(4, 0.0), RateMatrix(tree.rate_matrix(0.0), Linear(), 5))


def runs(weighting: Weighting) -> list[Rule]:
    """Return cases of the weighting with each supported kind of process.

    Raises:
        ValueError: no process is supported.
    """
    served = [Rule(weighting, process) for process in processes() if _serves(weighting, process)]
    if not served:
        raise ValueError(f"{weighting!r} serves none of masks, hierarchies, uniform noise, GIDD and a rate matrix")
    return served


def _serves(weighting: Weighting, process: ForwardProcess) -> bool:
    try:
        weighting.check(process)
    except (TypeError, ValueError):
        return False
    return True


def _zeros(rule: Rule, point: Point) -> Iterator[Comparison]:
    x, z, t, weight = rule.asked(float(point["t"]))
    given = weight.clone()
    found = rule.weighting(rule.process, weight, x, z, t)
    yield of_dtype("the weight", found, torch.float64)
    yield per_pair("the weight that it was given", x, z, weight, given, 0.0)
    sound = (found.isfinite() & (found >= 0)).double()
    yield per_pair("1 where the weight is finite and not negative", x, z, sound, torch.ones_like(sound), 0.0)
    kept = torch.where(weight == 0, found, 0.0)
    yield per_pair("the weight where the bound has none", x, z, kept, torch.zeros_like(kept), 0.0)
    counts = not bool((weight > 0).any()) or bool((found > 0).any())
    yield stated("some weight", counts, f"no state of {rule.process!r} has any weight at t = {point['t']:g}")


def _alone(rule: Rule, point: Point) -> Iterator[Comparison]:
    x, z, t, weight = rule.asked(float(point["t"]))
    found = rule.weighting(rule.process, weight, x, z, t)
    column = (v.T for v in (weight, x, z))
    weight, one, other = column
    each = torch.cat([rule.weighting(rule.process, *rows) for rows in _rows(weight, one, other, t)]).T
    yield per_pair("the weight of a token by itself", x, z, each, found, 1e-12 * (1 + found))


def _rows(weight: Tensor, x: Tensor, z: Tensor, t: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for i in range(len(x)):
        yield weight[i : i + 1], x[i : i + 1], z[i : i + 1], t


def _losses(rule: Rule, point: Point) -> Iterator[Comparison]:
    x, z, t, weight = rule.asked(float(point["t"]))
    scores = logits(rule.process, point["law"], x.shape[1])
    found = rule.weighting(rule.process, weight, x, z, t)
    bound = nelbo(rule.process, scores, x, z, t)
    expected = torch.where(weight > 0, bound / torch.where(weight > 0, weight, 1.0), 0.0) * found
    allowed = 1e-9 * (1 + expected + found)
    loss = training_loss(rule.process, scores, x, z, t, rule.weighting, reduction="none")
    yield per_pair("training_loss", x, z, loss, expected, allowed)
    identity = torch.eye(rule.process.vocab_size, dtype=torch.float64)
    fused = linear_training_loss(rule.process, scores, identity, x, z, t, weighting=rule.weighting, reduction="none")
    assert isinstance(fused, Tensor)
    yield per_pair("linear_training_loss", x, z, fused, expected, allowed)
    if rule.weighting.bound:
        yield per_pair("the loss that is said to be the bound", x, z, loss, bound, 1e-12 * (1 + bound))


_T = ({"t": 0.5}, {"t": 1e-6}, {"t": 1 - 1e-6})
_ENDS = ({"t": 0.0}, {"t": 1.0}, {"t": 1e-8}, {"t": 0.05}, {"t": 0.95})

CLAIMS = (
    Claim("weighting", "weights", "finite and not negative, 0 where the bound's are, never all 0", "exactly",
          _zeros, _T, _ENDS),
    Claim("weighting", "one token", "a token's weight depends on no other token of the batch", "relative 1e-12", _alone,
          ({"t": 0.5},), ({"t": 1e-6}, {"t": 0.9}), rests_on=("weights",)),
    Claim("weighting", "losses", "both losses are this weight times the bound's divergence, or the bound",
          "relative 1e-9", _losses, ({"t": 0.5, "law": 1}, {"t": 1e-4, "law": 2}), ({"t": 0.95, "law": 3},),
          rests_on=("one token",)),
)  # fmt: skip
