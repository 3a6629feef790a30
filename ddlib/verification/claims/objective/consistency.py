"""Claim about the consistency loss: the exact network has an expected gradient of 0 (theory section
19).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.contrib.consistency import consistency_loss
from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, logits, marginals

_REACHED = 1e-200
"""Smallest probability of a state z_t for which the mean over z_s is computed."""


def _paths(
    process: ForwardProcess, distribution: Tensor, s: float, t: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Enumerate (x, z_s, z_t) of one position, with probability given z_t, (N,) each.

    x is a possible token.

    At s = 0, where the token is the target, all pairs (x, z_t) are listed, with a possible z_s.
    """
    early = marginals(process, s)
    late = marginals(process, t)
    first = distribution[:, None] * (early if s > 0 else late)
    joint = (first.sum(0)[:, None] * process.transition(s, t)) if s > 0 else first
    total = joint.sum(0)
    row, z_t = ((joint > 0) & (total > _REACHED)).nonzero().T
    x = (distribution[:, None] * early).argmax(0)[row] if s > 0 else row
    return x, row if s > 0 else early.argmax(1)[row], z_t, joint[row, z_t] / total[z_t]


def _stationary(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = float(point["s"])
    t = float(point["t"])
    exact = logits(process, point["distribution"])[0, 0]
    x, z_s, z_t, probs = _paths(process, exact.exp(), s, t)
    with torch.enable_grad():
        network_logits = exact.expand(process.num_states, -1).clone().requires_grad_()
        target = exact.expand(1, len(x), -1)
        arguments = (x[None], z_t[None], at(t), z_s[None], at(s))
        loss = consistency_loss(
            process, network_logits[z_t][None], target, *arguments, reduction="none"
        )
        (gradient,) = torch.autograd.grad((loss[0] * probs).sum(), network_logits)
    message = (
        "at the exact network the loss has the slope {got:.3g} in the logit of token {x}, must be 0"
    )
    yield Comparison(
        "gradient of the consistency loss",
        ("z_t", "x"),
        gradient,
        torch.zeros_like(gradient),
        1e-8,
        message=message,
    )


CLAIMS = (
    Claim(
        "bound",
        "consistency",
        "the consistency loss has no gradient at the exact network, in the mean over z_s",
        "1e-8",
        _stationary,
        ({"s": 0.25, "t": 0.5, "distribution": 1}, {"s": 0.0, "t": 0.5, "distribution": 2}),
        (
            {"s": 1e-6, "t": 1e-3, "distribution": 3},
            {"s": 0.9, "t": 1.0, "distribution": 4},
            {"s": 0.0, "t": 1.0, "distribution": 0},
        ),
        rests_on=("linearity", "marginals", "posterior"),
        means="the posterior over tokens is not a martingale along the chain: token_likelihood, "
        "marginal and "
        "transition disagree",
    ),
)
