"""Weights that give every time as much say."""

from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.checks import check_count
from ddlib.processes import ForwardProcess, interior
from ddlib.typing import Levelled, Times, Tokens
from ddlib.weightings.base import Weighting

_REACH, _STEP = 36.0, 0.5  # of the grid in log t / (1 - t): 1 - t is at its last digit there
_PAIRS = 100_000  # of words and states that one time of the grid is asked about


class Optimal(Weighting):
    r"""The bound's weight over the standard deviation of its term: no time is louder than another.

    .. math:: w'(z, t) = \frac{w(z, t)}{C \sqrt{m(t)^2 + v(t) / L}}

    with m and v the mean and variance of w under :math:`z \sim q_t(\cdot|x)`: about 0, this is the standard deviation
    of what L tokens contribute at t if all their divergences are alike (theory section 12). About the mean it would
    vanish at t = 1, where all is noise. C keeps the mean of the factor over times at 1.

    m and v are closed for processes of levels. Elsewhere they are means over a few words, taken once on a grid of
    times; a weight of training may be approximate.

    Args:
        length: number of tokens L whose sum is meant; 1 for each token on its own.

    Raises:
        TypeError, ValueError: length no number from 1 on.
    """

    def __init__(self, length: int = 1) -> None:
        self.length = check_count("length", length)
        self._tables: WeakKeyDictionary[ForwardProcess, Tensor] = WeakKeyDictionary()

    @property
    def about(self) -> str:
        return f"every time as loud, for {self.length} token{'s' * (self.length > 1)}"

    def __call__(
        self, process: ForwardProcess, weight: Float64[Tensor, "B L"], x: Tokens, z: Tokens, t: Times
    ) -> Float64[Tensor, "B L"]:
        return weight * self.factor(process, t)[:, None]

    def factor(self, process: ForwardProcess, t: Times) -> Float64[Tensor, "B"]:
        """1 / (C sqrt(m^2 + v / L)) at times (B,); between the times of the grid by interpolation."""
        table = self._tables.get(process)
        if table is None or table.device != t.device:
            table = self._tables[process] = self._table(process).to(t.device)
        place = (torch.logit(interior(t)) + _REACH) / _STEP
        place = place.clamp(0, len(table) - 1)
        below = place.floor().long().clamp_max(len(table) - 2)
        return torch.lerp(table[below], table[below + 1], place - below).exp()

    def _table(self, process: ForwardProcess) -> Float64[Tensor, "n"]:
        """Logs of the factor on a grid of times, even in log t / (1 - t)."""
        count = round(2 * _REACH / _STEP) + 1
        nodes = torch.linspace(-_REACH, _REACH, count, dtype=torch.float64, device=process.device)
        t = torch.special.expit(nodes)
        mean, square = moments(process, t)
        log_size = 0.5 * (mean**2 * (1 - 1 / self.length) + square / self.length).log()
        mass = _STEP * t * torch.special.expit(-nodes)  # of each node under even times
        return -log_size - torch.logsumexp(mass.log() - log_size, 0)


def moments(process: ForwardProcess, t: Times) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
    """E[w] and E[w^2] of the bound's weight under z ~ q_t(.|x), at times (B,), float64.

    Args:
        process: of levels, or any other: then they are means over its words, or some of them where states are many.
        t: times; they are not checked.
    """
    time = interior(t)
    if isinstance(process, Levelled):
        share, weight = process.occupancies(time), process.weights(time)
        return (share * weight).sum(-1), (share * weight**2).sum(-1)
    count = min(process.vocab_size, max(4, _PAIRS // process.num_states))
    words = torch.linspace(0, process.vocab_size - 1, count, dtype=torch.float64, device=t.device).long()
    z = torch.arange(process.num_states, device=t.device).expand(count, -1)
    x, found = words[:, None].expand_as(z), []
    for one in time:
        when = one.expand(count)
        chance, weight = process.likelihood(z, x, when), process.loss_weight(x, z, when)
        weight = torch.where(chance > 0, weight, 0.0)
        found.append(torch.stack([(chance * weight).sum(-1).mean(), (chance * weight**2).sum(-1).mean()]))
    mean, square = torch.stack(found, -1)
    return mean, square
