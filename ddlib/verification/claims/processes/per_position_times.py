"""Claims about a time per position: every position has the values and the distribution that it has
alone.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.kernels import Hidden
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.parameterization.logits import cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import (
    at,
    compare_draws,
    draws,
    in_any_batch,
    logits,
    marginals,
    tokens,
)


def _values(
    process: ForwardProcess, x: Tensor, z: Tensor, scores: Tensor, s: Tensor, t: Tensor
) -> dict[str, Tensor]:
    p = scores.softmax(-1)
    layer = torch.eye(process.vocab_size, dtype=torch.float64)
    values = {
        "marginal": process.marginal(x, t),
        "predictive": process.predictive(p, t),
        "likelihood": process.likelihood(z, x, t),
        "token_likelihood": process.token_likelihood(z, t),
        "posterior": process.posterior(p, z, t, s),
        "reverse_rate": process.reverse_rate(p, z, t),
        "prior_kl": process.prior_kl(x, t),
        "loss_weight": process.loss_weight(x, z, t),
        "step_divergence": process.step_divergence(scores, x, z, t, s),
        "cavity logits of a posterior": cavity_logits(process, scores, z, t, "posterior"),
        "nelbo": nelbo(process, scores, x, z, t),
        "generic nelbo": nelbo(process, scores, x, z, t, "generic"),
    }
    values["exit_rate"] = process.exit_rate(z, t, scores)
    for mode in process.modes:
        values[f"training_loss, {mode}"] = training_loss(
            process, scores, x, z, t, mode=mode, reduction="none"
        )
        fused = training_loss(process, Hidden(scores, layer), x, z, t, mode=mode, reduction="none")
        values[f"training_loss of hidden states, {mode}"] = fused
    return values


def _apart(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare two sequences of two positions at four times with four sequences of one position."""
    t = torch.tensor([[0.2, point["t"]], [0.7, 0.4]], dtype=torch.float64)
    # for some schedules s / t alone matters
    s = t * torch.tensor([[0.5, 0.2], [0.8, 0.4]], dtype=torch.float64)
    x = (torch.arange(4) + 1) % process.vocab_size
    likely = process.marginal(x[:, None], t.flatten())[:, 0].topk(2)
    second = torch.tensor([True, False, False, True]) & (likely.values[:, 1] > 0)
    z = torch.where(second, likely.indices[:, 1], likely.indices[:, 0])
    scores = logits(process, 1, 4)[0]
    together = _values(process, x.view(2, 2), z.view(2, 2), scores.view(2, 2, -1), s, t)
    alone = _values(process, x[:, None], z[:, None], scores[:, None], s.flatten(), t.flatten())
    for name, expected in alone.items():
        quantity = f"{name} at times (B, L)"
        want = expected.view(2, 2, *expected.shape[2:])
        yield Comparison(
            quantity, ("sequence", "position"), together[name], want, 1e-11 * (1 + want.abs())
        )


def _draws(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare frequencies of draws: every token, and every state, twice in a sequence, at two
    times.
    """
    n = max(50, draws(process) // 4)
    size = process.num_states
    early = (float(point["s"]), float(point["u"]))
    late = (float(point["u"]), float(point["t"]))

    def at_times(times: tuple[float, float], count: int) -> Tensor:
        return torch.tensor(times, dtype=torch.float64).repeat_interleave(count).expand(n, -1)

    twice = tokens(process).repeat(1, 2).expand(n, -1)
    z = process.sample(twice, at_times(late, process.vocab_size), torch.Generator().manual_seed(21))
    probs = torch.cat([marginals(process, t) for t in late])
    yield compare_draws("draws of z_t at times (B, L)", ("position", "z"), z, probs)
    z = torch.arange(size).repeat(2).expand(n, -1)
    later = process.sample_forward(
        z, at_times(early, size), at_times(late, size), torch.Generator().manual_seed(22)
    )
    probs = torch.cat([process.transition(s, t) for s, t in zip(early, late, strict=True)])
    yield compare_draws("draws of z_t from z_s at times (B, L)", ("position", "z_t"), later, probs)
    scores = logits(process, 1)
    reached = ((scores.exp()[0, 0] @ marginals(process, late[0])) > 1e-12).nonzero()[:, 0]
    z = reached.repeat(2).expand(n, -1)
    count = len(reached)
    noise = torch.Generator().manual_seed(23)
    t = at_times(late, count)
    s = at_times(early, count)
    earlier = process.sample_given_level(scores.expand(*z.shape, -1), z, t, s, None, noise)
    p = scores.exp().expand(1, count, -1)
    probs = torch.cat(
        [
            process.posterior(p, reached[None], at(b), at(a))[0]
            for a, b in zip(early, late, strict=True)
        ]
    )
    yield compare_draws("draws of z_s at times (B, L)", ("position", "z_s"), earlier, probs)
    x = twice[:4]
    t = at_times(late, process.vocab_size)[:4]
    quantity = "z_t at times (B, L)"
    yield from in_any_batch(
        quantity, lambda index, noise: process.sample(x[index], t[index], noise)
    )


_MEANS = (
    "methods do not take times (B, L): add the axis of the positions with "
    "ddlib.processes.unsqueeze_times"
)

CLAIMS = (
    Claim(
        "process",
        "own times",
        "a result at times (B, L) is that of each position alone",
        "relative 1e-11",
        _apart,
        ({"t": 0.9},),
        ({"t": 1e-6}, {"t": 1 - 1e-6}),
        rests_on=("batches",),
        means=_MEANS,
    ),
    Claim(
        "draws",
        "own times drawn",
        "each position is drawn at its own time",
        "binomial bounds, false alarm 1e-6",
        _draws,
        ({"s": 0.2, "u": 0.5, "t": 0.8},),
        rests_on=("sample", "advance", "jump and land", "own times"),
        means=_MEANS,
    ),
)
