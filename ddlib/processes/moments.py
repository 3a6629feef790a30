"""Mean and mean square of the bound's integrand at one position, and the density of times that they
determine.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.hierarchies.kernels import information
from ddlib.times import Tabulated
from ddlib.typing import Times
from ddlib.utils.validation import check_number, require

# log-odds, from 1e-7 to 1 - 1e-7: closer to 1 there are no times in float32
_REACH = 16.0
_CELLS = 128
# fraction of the mean: no time is drawn a thousand times more rarely than under uniform times
_FLOOR = 1e-3
# at most so many tokens, evenly spaced, represent a larger vocabulary: a density needs three digits
_TOKENS = 64


def grid(
    device: torch.device, breaks: Sequence[float] = (0.0, 1.0)
) -> tuple[Float64[Tensor, "n"], Float64[Tensor, "m"]]:
    """Return the edges of cells, evenly spaced in the log-odds of time, and the time of evaluation
    in each cell.

    In the first and the last cell it is a quarter of the width from the end. A density that grows
    there like the inverse of a square root, as for masks, has its mean at that point.

    Args:
        device: of the result.
        breaks: times at which a schedule begins or ends, sorted, from 0 to 1: the cells of each
            interval between them are those of [0, 1], scaled.
    """
    if len(breaks) > 2:
        edges, inside = grid(device)
        scaled = [
            (low + (high - low) * edges[:-1], low + (high - low) * inside)
            for low, high in pairwise(breaks)
        ]
        return torch.cat([*(part for part, _ in scaled), edges[-1:]]), torch.cat(
            [part for _, part in scaled]
        )
    odds = torch.linspace(-_REACH, _REACH, _CELLS + 1, dtype=torch.float64, device=device)
    inner = odds.sigmoid()
    ends = odds.new_tensor([0.0, 1.0])
    middle = ((odds[1:] + odds[:-1]) / 2).sigmoid()
    return torch.cat([ends[:1], inner, ends[1:]]), torch.cat(
        [inner[:1] / 4, middle, 1 - (1 - inner[-1:]) / 4]
    )


def table(edges: Tensor, mean: Tensor, square: Tensor, length: int, chance: float) -> Tabulated:
    r"""Tabulate :math:`g(t) \propto \sqrt{(c\, m(t))^2 + v(t)/L}` on a grid (theory section 12).

    Args:
        edges: edges of the cells.
        mean: m, the mean of the bound's integrand at one position, in each cell.
        square: the mean of its square, m^2 + v.
        length: L, number of positions of a sequence.
        chance: c, the share of m that is random.

    Raises:
        ValueError: moments that are not finite.
    """
    require(
        bool((mean.isfinite() & square.isfinite()).all()),
        "time_moments returns NaN or infinity inside (0, 1), must be finite: pass another density "
        "of times",
    )
    # square - mean^2 loses digits where almost all positions are alike; m^2 dominates there
    height = ((chance * mean) ** 2 + (square - mean**2).clamp_min(0) / length).sqrt()
    average = float((height * edges.diff()).sum())
    if average == 0:  # one token: there is nothing to estimate
        return Tabulated([0.0, 1.0], [1.0])
    return Tabulated(edges, (height + _FLOOR * average) * edges.diff())


def nats_of_levels(hierarchy: Hierarchy, given: Sequence[float] | None) -> list[float]:
    """Return the divergence of each level above the tokens, in nats: as given, else that of uniform
    predictions.

    The mean divergence at level i is the information about a uniform token that is lost between its
    states at levels i - 1 and i, I(x; z_{i-1}) - I(x; z_i). In a tree with xi = 1 it is the entropy
    of the child given the state.

    Raises:
        TypeError, ValueError: not one positive number for every level above the tokens.
    """
    if given is None:
        x = _some_tokens(hierarchy.vocab_size, hierarchy.starts.device)
        routes = [hierarchy.between(0, level) for level in range(1, hierarchy.depth + 1)]
        known = [math.log(hierarchy.vocab_size), *(information(route, x) for route in routes)]
        return [max(below - above, 0.0) for below, above in pairwise(known)]
    return _check(
        given, hierarchy.depth, f"one for each of the {hierarchy.depth} levels above the tokens"
    )


def nats_of_token(vocab_size: int, given: Sequence[float] | None) -> float:
    """Return the divergence of a token without a hierarchy, in nats: as given, else that of uniform
    predictions.

    Raises:
        TypeError, ValueError: not one positive number.
    """
    return (
        math.log(max(vocab_size, 2)) if given is None else _check(given, 1, "one, for a token")[0]
    )


def logits_of_nats(nats: float, x: Tensor, vocab_size: int) -> Float64[Tensor, "1 N V"]:
    """Return log-probabilities that give each token x (N,) the probability e^-nats, the others the
    rest, (1, N, V).
    """
    if vocab_size == 1:
        return torch.zeros(1, len(x), 1, dtype=torch.float64, device=x.device)
    rest = math.log(-math.expm1(-nats) / (vocab_size - 1))
    logits = torch.full((1, len(x), vocab_size), rest, dtype=torch.float64, device=x.device)
    return logits.scatter(-1, x[None, :, None], -nats)


def dense_moments(
    process: Any, t: Times, nats: float
) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
    r"""Mean and mean square of the integrand :math:`f(z) = \sum_{y \ne z} Q_t(y, z)\, D(a_y, b_y)`
    (theory section 1).

    With :math:`A = q_t(\cdot|x)`, :math:`B = q_t(\cdot|p)`, :math:`\ell = \log(A/B)` and Q without
    its diagonal,

    .. math:: f = \frac{(A \ell) Q - (\ell + 1) \, A Q}{A} + \frac{B Q}{B}

    so each time costs four products of (N, S) and (S, S) matrices, for N tokens x and all their
    states at once.

    Args:
        process: any process; its marginals and rates are used, no closed form.
        t: (B,) float64 times.
        nats: -log p(x) of the predictor p, which is uniform over the other tokens.
    """
    size = process.vocab_size
    x = _some_tokens(size, t.device)
    predicted = logits_of_nats(nats, x, size)[0].softmax(-1)
    tokens = torch.eye(size, dtype=torch.float64, device=t.device)[None]
    moments = []
    for time in t:
        marginals = process.predictive(tokens, time[None])[0]
        rates = process.rate_matrix(time)
        rates = rates - torch.diag(rates.diagonal())
        truth = marginals[x]
        model = predicted @ marginals
        reached = (truth > 0) & (model > 0)
        a, b = (torch.where(reached, each, 1.0) for each in (truth, model))
        log_ratio = a.log() - b.log()
        arrivals = truth @ rates
        integrand = ((truth * log_ratio) @ rates - (log_ratio + 1) * arrivals) / a + (
            model @ rates
        ) / b
        # rounding
        mass = torch.where(reached, truth, 0.0)
        integrand = integrand.clamp_min(0)
        moments.append(
            torch.stack([(mass * integrand).sum(-1).mean(), (mass * integrand**2).sum(-1).mean()])
        )
    mean, square = torch.stack(moments, 1)
    return mean, square


def _some_tokens(vocab_size: int, device: torch.device) -> Int64[Tensor, "N"]:
    """Return all tokens, or 64 evenly spaced ones of a larger vocabulary."""
    some = torch.linspace(
        0, vocab_size - 1, min(vocab_size, _TOKENS), dtype=torch.float64, device=device
    )
    return some.round().long()


def _check(given: Sequence[float], wanted: int, rule: str) -> list[float]:
    require(len(given) == wanted, f"divergences has {len(given)} entries, must have {rule}")
    return [
        check_number(
            f"divergences[{i}]",
            nats,
            1e-6,
            1e6,
            "positive nats: levels of divergence 0 would get no draws",
        )
        for i, nats in enumerate(given)
    ]
