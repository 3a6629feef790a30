"""Costs of an order: of drawing several positions at once, and of the order of positions itself."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.contrib.caches import Cache
from ddlib.paces import Pace
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.samplers import Confidence, LeftToRight, Ordered, Sampler, SamplingContext, State
from ddlib.samplers.control import NetworkControl
from ddlib.samplers.likelihood import (
    Step,
    ancestors_of,
    block_runs,
    free_positions,
    plan_reading,
    read_steps,
)
from ddlib.samplers.ordered import levels, model_time
from ddlib.samplers.state_draws import transition_log_prob
from ddlib.typing import Denoiser, GivenTokens, PaddingMask, Tokens


class OrderCosts(NamedTuple):
    """Negative log-likelihoods of every sequence by one order, in nats.

    Their differences are its costs.

    The values of several batches are concatenated. ``ddlib.Measure.ratio(costs.drawing_in_parallel,
    costs.tokens, "nats/token")`` is the mean cost, with its standard error over sequences.
    """

    sets: Float64[Tensor, "B"]
    """-log p(x) of the order, which draws sets of positions at once."""
    chain: Float64[Tensor, "B"]
    """-log p(x) of the same order, one position at a time."""
    left_to_right: Float64[Tensor, "B"]
    """-log p(x) of ``LeftToRight()``, one position at a time."""
    tokens: Int64[Tensor, "B"]
    """Number of tokens that are not given."""
    calls: int
    """Number of network calls for the batch by which ``sets`` is computed."""

    @property
    def drawing_in_parallel(self) -> Float64[Tensor, "B"]:
        """Cost of drawing positions at once, in nats per sequence: sets minus chain."""
        return self.sets - self.chain

    @property
    def order(self) -> Float64[Tensor, "B"]:
        """Cost of the order itself, in nats per sequence: chain minus left to right.

        Negative for a better order.
        """
        return self.chain - self.left_to_right


@torch.no_grad()
def order_costs(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    order: Sampler | None = None,
    group: int | None = 4,
    *,
    pace: Pace | None = None,
    mask: PaddingMask | None = None,
    given: GivenTokens | None = None,
    parameterization: Parameterization | None = None,
    controls: Sequence[NetworkControl] = (),
) -> OrderCosts:
    r"""Compute what drawing positions in parallel costs, and what their order costs (theory section
    20).

    The order reveals sets A_1, A_2, ... of positions, as in ``likelihood``. The chain is the same
    order one position at a time: A_1 in the order of its scores, then A_2, and so on, each position
    given all before it. Sets and their inner order are those of the run in sets; they depend on the
    earlier sets only. So ``exp(-chain)`` sums to one over all sequences too, for every order. With
    the exact network the expected cost of drawing in parallel is the sum of the total correlations
    of the sets, given the positions before them, and the order has no cost. In a hierarchy a
    position of a set descends one edge.

    The network is called once per set, and up to once per edge for each of the two others.

    Args:
        process: as in ``likelihood``, and likewise all others.
        denoiser: ``(z, t) -> logits``.
        x: (B, L) tokens.
        order: default ``Confidence()``.
        group: number of positions in a set; more where the order selects more. None: as the order
            selects, for ``EntropyBounded``, thresholds, or ``InOrder(..., whole=True)``.
        pace: ``Blocks`` for sequences drawn block by block.
        mask: (B, L) bool, False at padding.
        given: (B, L) bool, True at tokens that are fixed from the beginning.
        parameterization: meaning of the logits.
        controls: as in ``likelihood``, without an approximate cache, whose values depend on the
            calls of each of the three orders.

    Raises:
        TypeError, ValueError: as ``likelihood``.

    Example:
        >>> import ddlib as dd
        >>> process, uniform = dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4)
        >>> costs = order_costs(process, uniform, torch.tensor([[0, 3, 1, 2]]), group=2)
        >>> costs.drawing_in_parallel, costs.order, costs.calls
        (tensor([0.], dtype=torch.float64), tensor([0.], dtype=torch.float64), 2)
    """
    order = Confidence() if order is None else order
    free = free_positions(process, x, order, mask, given)
    assert isinstance(order, Ordered)
    call = plan_reading(process, denoiser, x, order, pace, parameterization, controls)
    x = process.tokens_as_states(x)
    if any(isinstance(control, Cache) and control.is_approximate for control in controls):
        raise TypeError(
            f"controls is {list(controls)}, must have no approximate cache: the three orders would "
            "have different cached values"
        )
    first = LeftToRight(order.force_transition)
    nats = torch.zeros(3, len(x), dtype=torch.float64, device=x.device)
    calls = 0
    for columns, run in block_runs(call, x, free, None, group):
        start = State(x, nats)
        parts = list[_Moves]()
        for step in read_steps(order, run, x[:, columns], group):
            start = start if parts else step.state
            parts.append(_Moves.of(run, step))
        if not parts:
            continue
        sets = _Moves.join(parts)
        chain = _chain(order, run, x[:, columns], start, sets)
        for row, moves in enumerate((sets, chain)):
            nats[row] -= torch.where(moves.valid, moves.log_prob, 0.0).sum(-1)
        for step in read_steps(first, run, x[:, columns], None):
            nats[2] -= step.log_probs.sum(-1)
        calls += len(parts)
    return OrderCosts(nats[0], nats[1], nats[2], free.sum(-1), calls)


class _Moves(NamedTuple):
    """Descents of each row, in turn."""

    position: Int64[Tensor, "B n"]
    target: Int64[Tensor, "B n"]
    log_prob: Float64[Tensor, "B n"]
    first: Bool[Tensor, "B n"]
    """True at the first descent of a step."""
    valid: Bool[Tensor, "B n"]
    """False after the last descent of a row, which may have fewer than others."""

    @classmethod
    def of(cls, run: SamplingContext, step: Step) -> "_Moves":
        """Return the descents of a step, by preference."""
        moved = step.target < levels(run, step.state.z)
        order = (
            step.preference.masked_fill(~moved, -torch.inf)
            .sort(dim=-1, descending=True, stable=True)
            .indices
        )
        order = order[:, : int(moved.sum(-1).max())]
        first = torch.zeros_like(order, dtype=torch.bool)
        first[:, :1] = True
        return cls(
            order,
            step.target.gather(1, order),
            step.log_probs.gather(1, order),
            first,
            moved.gather(1, order),
        )

    @classmethod
    def join(cls, parts: list["_Moves"]) -> "_Moves":
        """Return the descents of successive steps."""
        columns = [torch.cat(column, 1) for column in zip(*parts, strict=True)]
        valid = columns[-1]
        valid_first = (
            (~valid).int().sort(dim=-1, stable=True).indices[:, : int(valid.sum(-1).max())]
        )
        return cls(*(column.gather(1, valid_first) for column in columns))


def _chain(order: Ordered, run: SamplingContext, x: Tokens, start: State, moves: _Moves) -> _Moves:
    """Return the moves with their log-probabilities one at a time.

    The first of a step keeps its own: the states around it are those of the step.
    """
    ancestors = ancestors_of(run, x)
    rows = torch.arange(len(x), device=x.device)
    z = start.z.clone()
    terms = moves.log_prob.clone()
    for m, (position, target, first, valid) in enumerate(
        zip(moves.position.T, moves.target.T, moves.first.T, moves.valid.T, strict=True)
    ):
        moving = torch.zeros_like(run.free)
        alone = valid & ~first
        moving[rows[alone], position[alone]] = True
        after = ancestors[target, rows, position]
        for part in run.network.at(z, model_time(run, z, start.memo), moving):
            terms[part.b, m] = transition_log_prob(part, after[part.b], order.force_transition)
        z[rows[valid], position[valid]] = after[valid]
    return moves._replace(log_prob=terms)
