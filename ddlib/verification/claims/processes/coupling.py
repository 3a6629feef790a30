"""Claims about coupled noise: each sequence keeps its distribution, ``importance_weight`` corrects the rest."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.objective.nelbo import nelbo
from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, drawn_jointly, draws, in_any_batch, logits, marginals, words
from ddlib.verification.framework.oracle import sequences

_NUMBERS = 2_000_000
"""Limit on the numbers of a batch of pairs, for processes that return dense tensors."""


def _cannot(process: ForwardProcess) -> str:
    """Return the reason why ``process`` draws levels independently only; empty if it can balance them."""
    try:
        process.check_levels("balanced")
    except TypeError as error:
        return str(error)
    return ""


def _balances(process: ForwardProcess, x: Tensor, z: Tensor, t: float) -> Tensor:
    rows = max(1, _NUMBERS // process.num_states**2)
    parts = zip(x.split(rows), z.split(rows), strict=True)
    return torch.cat([process.importance_weight(some, there, at(t, len(some))) for some, there in parts])


def _balanced(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare balanced draws of two tokens with ``importance_weight``, and the bound that they miss with 0."""
    t, size, n = float(point["t"]), process.num_states, max(50, draws(process) // 4)
    z = sequences(size, 2)
    text = torch.tensor([0, process.vocab_size - 1])
    x = text.expand_as(z).contiguous()
    chance = marginals(process, t)[text[0]][z[:, 0]] * marginals(process, t)[text[1]][z[:, 1]]
    balance = _balances(process, x, z, t)
    chosen = torch.where(balance > 0, chance / torch.where(balance > 0, balance, 1.0), 0.0)
    yield Comparison("chances of all draws, summed", (), chosen.sum(), torch.ones_like(chosen.sum()), 1e-9)
    missed = (balance <= 0) & (chance > 0)
    if bool(missed.any()):
        some, there = x[missed], z[missed]
        scores = logits(process, point["law"]).expand(*some.shape, -1)
        lost = nelbo(process, scores, some, there, at(t, len(some))).sum(-1)
        quantity = "bound of a text that is never drawn"
        yield Comparison(quantity, (), lost, torch.zeros_like(lost), 1e-12, {"z_0": there[:, 0], "z_1": there[:, 1]})
    pairs = process.sample(text.expand(n, -1).contiguous(), at(t, n), torch.Generator().manual_seed(14), "balanced")
    yield drawn_jointly("balanced draws", ("z_0", "z_1"), pairs, chosen.view(size, size))


def _keyed(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    t = float(point["t"])
    x = words(process).repeat(4, 8)[:, :8].contiguous()
    yield from in_any_batch(
        "balanced z_t", lambda index, noise: process.sample(x[index], at(t, len(index)), noise, "balanced")
    )


CLAIMS = (
    Claim("levels", "balanced levels", "balanced texts are drawn in proportion to q_t over balance, where the bound is",
          "1e-9; binomial bounds, false alarm 1e-6", _balanced, ({"t": 0.4, "law": 1},),
          ({"t": 0.05, "law": 2}, {"t": 0.95, "law": 3}), _cannot, ("sample", "rates", "weights")),
    Claim("levels", "keyed levels", "levels that a text's tokens share belong to the example, not to its batch",
          "exactly", _keyed, ({"t": 0.5},), applies=_cannot, rests_on=("keyed noise",)),
)  # fmt: skip
