"""What a density of times is made from: mean and mean square of the bound at one position, and a grid for them."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.times import Tabulated
from ddlib.typing import Times
from ddlib.utils.validation import check_number, require

_REACH, _CELLS = 16.0, 128  # log-odds, from 1e-7 to 1 - 1e-7: closer to 1 float32 has no times of its own
_FLOOR = 1e-3  # of the mean: no time is drawn a thousand times more rarely than under uniform times
_TOKENS = 64  # of a larger vocabulary so many, evenly spaced, stand for all: three digits of a density are enough


def grid(device: torch.device) -> tuple[Float64[Tensor, "n"], Float64[Tensor, "m"]]:
    """Edges of the cells, even in the log-odds of time, and the time in each at which the density is asked for.

    In the first and the last it is a quarter of their width from the end: there a density that grows like the inverse
    of a root, as that of masks does, has its mean.
    """
    odds = torch.linspace(-_REACH, _REACH, _CELLS + 1, dtype=torch.float64, device=device)
    inner = odds.sigmoid()
    ends = odds.new_tensor([0.0, 1.0])
    middle = ((odds[1:] + odds[:-1]) / 2).sigmoid()
    return torch.cat([ends[:1], inner, ends[1:]]), torch.cat([inner[:1] / 4, middle, 1 - (1 - inner[-1:]) / 4])


def table(edges: Tensor, mean: Tensor, square: Tensor, length: int, chance: float) -> Tabulated:
    r""":math:`g(t) \propto \sqrt{(c\, m(t))^2 + v(t)/L}` on a grid (theory section 12).

    Args:
        edges: of the cells.
        mean: m, the mean of the bound's integrand at one position, in each cell.
        square: the mean of its square, m^2 + v.
        length: L, number of positions of a text.
        chance: c, the share of m that is left to chance.

    Raises:
        ValueError: moments that are not finite.
    """
    require(
        bool((mean.isfinite() & square.isfinite()).all()),
        "time_moments gives NaN or infinity inside (0, 1), must be finite: name another density of times",
    )
    # m^2 has no use of the digits that square - mean^2 loses where almost all positions are alike
    height = ((chance * mean) ** 2 + (square - mean**2).clamp_min(0) / length).sqrt()
    average = float((height * edges.diff()).sum())
    if average == 0:  # one word: there is nothing to estimate
        return Tabulated([0.0, 1.0], [1.0])
    return Tabulated(edges, (height + _FLOOR * average) * edges.diff())


def nats_of_levels(levels: Sequence[int], given: Sequence[float] | None) -> list[float]:
    """What is paid on each level above the words, in nats: as given, else the logarithm of the number of children.

    That is what a network pays on average that knows nothing but how many children a state has; of a single child, half
    of a bit's worth of two is counted, so that no level is taken for free.

    Raises:
        TypeError, ValueError: not one positive number for every level above the words.
    """
    wanted = len(levels) - 1
    if given is None:
        return [math.log(max(below / above, 2.0)) for below, above in pairwise(levels)]
    return _checked(given, wanted, f"one for each of the {wanted} levels above the words")


def nats_of_token(vocab_size: int, given: Sequence[float] | None) -> float:
    """What is paid for a word where there is no hierarchy, in nats: as given, else by a uniform law.

    Raises:
        TypeError, ValueError: not one positive number.
    """
    return math.log(max(vocab_size, 2)) if given is None else _checked(given, 1, "one, for a word")[0]


def logits_that_pay(nats: float, x: Tensor, vocab_size: int) -> Float64[Tensor, "1 N V"]:
    """Log-laws that give each word x (N,) the probability e^-nats and share the rest evenly, (1, N, V)."""
    if vocab_size == 1:
        return torch.zeros(1, len(x), 1, dtype=torch.float64, device=x.device)
    rest = math.log(-math.expm1(-nats) / (vocab_size - 1))
    logits = torch.full((1, len(x), vocab_size), rest, dtype=torch.float64, device=x.device)
    return logits.scatter(-1, x[None, :, None], -nats)


def dense_moments(process: Any, t: Times, nats: float) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
    r"""Mean and mean square of the integrand :math:`f(z) = \sum_{y \ne z} Q_t(y, z)\, D(a_y, b_y)` (theory section 1).

    With :math:`A = q_t(\cdot|x)`, :math:`B = q_t(\cdot|p)`, :math:`\ell = \log(A/B)` and Q without its diagonal,

    .. math:: f = \frac{(A \ell) Q - (\ell + 1) \, A Q}{A} + \frac{B Q}{B}

    so each time costs four products of (N, S) and (S, S) matrices, for N tokens x and all their states at once.

    Args:
        process: any process; its marginals and rates are used, no closed form.
        t: (B,) float64 times.
        nats: -log p(x) of the predictor p, which shares the rest evenly among the other tokens.
    """
    size = process.vocab_size
    x = torch.linspace(0, size - 1, min(size, _TOKENS), dtype=torch.float64, device=t.device).round().long()
    believed = logits_that_pay(nats, x, size)[0].softmax(-1)
    tokens = torch.eye(size, dtype=torch.float64, device=t.device)[None]
    found = []
    for time in t:
        marginals, rates = process.predictive(tokens, time[None])[0], process.rate_matrix(time)
        rates = rates - torch.diag(rates.diagonal())
        truth, model = marginals[x], believed @ marginals
        reached = (truth > 0) & (model > 0)
        a, b = (torch.where(reached, each, 1.0) for each in (truth, model))
        log_ratio = a.log() - b.log()
        arrivals = truth @ rates
        paid = ((truth * log_ratio) @ rates - (log_ratio + 1) * arrivals) / a + (model @ rates) / b
        mass, paid = torch.where(reached, truth, 0.0), paid.clamp_min(0)  # rounding
        found.append(torch.stack([(mass * paid).sum(-1).mean(), (mass * paid**2).sum(-1).mean()]))
    mean, square = torch.stack(found, 1)
    return mean, square


def _checked(given: Sequence[float], wanted: int, rule: str) -> list[float]:
    require(len(given) == wanted, f"divergences has {len(given)} entries, must have {rule}")
    return [
        check_number(
            f"divergences[{i}]", nats, 1e-6, 1e6, "positive nats: a level that costs nothing is never drawn for"
        )
        for i, nats in enumerate(given)
    ]
