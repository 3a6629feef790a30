"""Reverse steps: new states given the new levels, which is the part that depends on the network."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.processes import LevelProcess, unchanged
from ddlib.samplers.base import SamplingContext, level_process
from ddlib.samplers.constrained import constrained_states
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.runtime.output_layer import distinct_pairs
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand
from ddlib.utils.validation import check_finite

_ROWS = 64
"""Number of token distributions that are computed at a time."""


def reverse_step(run: SamplingContext, z: Tokens, t: Times, s: Times, force: bool) -> Tokens:
    """Draw z_s ~ q(z_s | z_t, p).

    In a ``LevelProcess`` levels first, then the network where they change.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times, or (B, L).
        s: earlier times.
        force: see ``ForwardProcess.sample_given_level``.
    """
    process = run.process
    if isinstance(process, LevelProcess):
        return move(run, z, t, process.sample_level(z, t, s, run.generator), force)
    logits = run.predict(z, t)
    return process.sample_given_level(
        logits, z, t, s, None, run.generator, force=force, sharpen=run.sharpen
    )


def guided_step(run: SamplingContext, z: Tokens, t: Times, s: Times) -> Tokens:
    """Draw z_s from ``step_distribution`` of the denoiser.

    In a process with levels, given the levels at s.

    It is evaluated at sequences in which a position moves. The prompt does not move.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
    """
    process = run.process
    with_levels = isinstance(run.process, LevelProcess)
    target = level_process(run).sample_level(z, t, s, run.generator) if with_levels else z
    u = rand(z.shape, run.generator, z.device)
    moves = run.free & (target != process.level_of(z)) if with_levels else run.free
    if not bool(moves.any()):
        return z
    kept = moves.any(-1) if run.network.compact else torch.ones_like(moves[:, 0])
    log_probs = run.network.step_log_probs(z, t, s, kept)
    moving = moves[kept]
    if with_levels:
        level = process.level_of(torch.arange(process.num_states, device=z.device)[None])[0]
        log_probs = log_probs.masked_fill(level != target[kept][..., None], -torch.inf)
    drawn = z[kept]
    result = z.clone()
    drawn[moving] = draw_logits(log_probs[moving], u[kept][moving])
    result[kept] = drawn
    return result


class Noise(NamedTuple):
    """Uniforms of the states that a step draws, for all positions of the batch.

    They are drawn before the network is evaluated, and in every step. So those of a position depend
    neither on the other positions nor on the number of jumps.
    """

    state: Float64[Tensor, "*n"]
    """For a state that is drawn at once, and for the first child below the mask."""
    children: Float64[Tensor, "*n K"]
    """For the children below that one; K = 0 where no position descends several edges by them."""

    @classmethod
    def draw(cls, run: SamplingContext, force: bool, single: bool = False) -> Self:
        """Draw the uniforms of a step.

        Args:
            run: the call of ``sample``.
            force: see ``ForwardProcess.sample_given_level``.
            single: True if each position descends at most one edge.
        """
        shape = run.free.shape
        device = run.free.device
        # truncation and constraints are those of the distribution of the state that is reached
        single = single or run.sharpen is not unchanged or run.constraint is not None
        state = rand(shape, run.generator, device)
        number = 0 if single else run.network.num_child_draws(force)
        more = (*shape, number)
        return cls(state, rand(more, run.generator, device) if number else state.new_empty(more))

    def take(self, *index: Tensor) -> Self:
        """Select the uniforms of some positions."""
        return type(self)(self.state[index], self.children[index])


def move(run: SamplingContext, z: Tokens, t: Times, target: Tokens, force: bool) -> Tokens:
    """Draw the states at an earlier time, given their levels.

    Each moving position is drawn as a separate sequence of length 1. The network runs on sequences
    with moving positions only, and not at all without any.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times, or (B, L).
        target: (B, L) new levels; a position that keeps its level keeps its state.
        force: see ``ForwardProcess.sample_given_level``.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    noise = Noise.draw(run, force)
    return draw_states(run, run.network.at(z, t, target != level), z, target, noise, force)


def shift(run: SamplingContext, z: Tokens, t: Times, target: Tokens, force: bool) -> Tokens:
    """Draw the states given levels that may be higher too, as ``move``.

    Ascents do not need the network.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    lower = target.minimum(level)
    noise = Noise.draw(run, force)
    # always drawn, so that a sequence's noise does not depend on the other sequences
    ascended = level_process(run).ascend(z, target.maximum(level), run.generator)
    moved = draw_states(run, run.network.at(z, t, lower != level), z, lower, noise, force)
    return torch.where(target > level, ascended, moved)


def draw_states(
    run: SamplingContext,
    predictions: Iterable[Predictions],
    z: Tokens,
    target: Tokens,
    noise: Noise,
    force: bool,
) -> Tokens:
    """Draw the states at the positions of the predictions, as in ``move``.

    Args:
        run: the call of ``sample``.
        predictions: model output at the moving positions.
        z: (B, L) states.
        target: (B, L) new levels.
        noise: uniforms at all positions, (B, L).
        force: see ``ForwardProcess.sample_given_level``.
    """
    if run.constraint is not None:
        parts = list(predictions)
        result = constrained_states(run, parts, z, target, noise.state, force)
        for part in parts:
            run.on_draw(part, result[part.b, part.i])
        return result
    by_tree = _by_tree(run, noise, force)
    draw = _by_tokens if not bool(by_tree.any()) else _by_children_or_tokens
    result = z.clone()
    for part in predictions:
        to = target[part.b, part.i]
        states = draw(run, part, to, noise.take(part.b, part.i), force)
        run.on_draw(part, states)
        result[part.b, part.i] = states
    return result


def child_log_probs(
    run: SamplingContext, predictions: Predictions, target: Int64[Tensor, "N"], force: bool
) -> Iterator[tuple[Int64[Tensor, "n"], int, Int64[Tensor, "n K"], Float[Tensor, "n K"]]]:
    """Compute the distributions over states in lower levels, without temperature and truncation.

    Args:
        run: the call of ``sample``.
        predictions: model output at N positions.
        target: (N,) level to which each position descends, below its own.
        force: see ``ForwardProcess.sample_given_level``.

    Yields:
        chunks of positions with the same levels, small enough for the processor's cache: their
        indices among the N (n,), the first state of the target level, the reachable members of that
        level (n, K), and their normalised log-probabilities (n, K). Child logits alone are used for
        descents by one level of the output's tree.
    """
    process = run.process
    by_tree = run.network.can_descend_tree(force, single=True)
    level = process.level_of(predictions.z[:, None])[:, 0]
    for j, i in distinct_pairs(level, target)[0]:
        rows = ((level == j) & (target == i)).nonzero()[:, 0]
        some = predictions if len(rows) == len(level) else predictions.take(rows)
        first = sum(process.levels[:i])
        members, scores = _descents(run, some, j, i, by_tree, force)
        for part in (slice(start, start + _ROWS) for start in range(0, len(rows), _ROWS)):
            yield rows[part], first, members[part], scores(part).log_softmax(-1)


def _descents(
    run: SamplingContext,
    predictions: Predictions,
    level: int,
    target: int,
    by_tree: Tensor,
    force: bool,
) -> tuple[Int64[Tensor, "n K"], Callable[[slice], Float[Tensor, "n K"]]]:
    """Return the reachable members, and the function of a chunk that computes their logits."""
    if bool(by_tree[level, target]):
        parent = predictions.z - sum(run.process.levels[:level])
        logits, members = predictions.family(run.network.tree_levels[target], parent)
    elif target == 0 and run.network.can_restrict_columns(level, force):
        logits, members = predictions.under()
    else:
        z = predictions.z
        tokens = predictions.token_logits(torch.full_like(predictions.z, target), force)[:, 0]
        whole = torch.arange(run.process.levels[target], device=z.device).expand(len(z), -1)
        descend = level_process(run).descendant_logits
        return whole, lambda part: descend(tokens[part], z[part], level, target, force)
    check_finite(logits)
    return members, logits.__getitem__


def transition_log_prob(
    run: SamplingContext, predictions: Predictions, states: Int64[Tensor, "N"], force: bool
) -> Float64[Tensor, "N"]:
    """Compute the model's log-probability of descending to the given states in lower levels.

    Args:
        run: the call of ``sample``; its temperature and truncation are ignored.
        predictions: model output at N positions.
        states: (N,) states in lower levels.
        force: see ``ForwardProcess.sample_given_level``.

    Returns:
        (N,) in nats, -inf at unreachable states.
    """
    result = torch.zeros(len(states), dtype=torch.float64, device=states.device)
    target = run.process.level_of(states[:, None])[:, 0]
    for rows, first, members, log_probs in child_log_probs(run, predictions, target, force):
        drawn = members == states[rows, None] - first
        result[rows] = torch.where(drawn, log_probs.to(torch.float64), -torch.inf).amax(-1)
    return result


def _by_tree(run: SamplingContext, noise: Noise, force: bool) -> Bool[Tensor, "levels levels"]:
    """Return the pairs of levels between which states are drawn from child to child."""
    return run.network.can_descend_tree(force, single=not noise.children.shape[-1])


def _by_tokens(
    run: SamplingContext, part: Predictions, target: Tensor, noise: Noise, force: bool
) -> Int64[Tensor, "N"]:
    """Draw states from token distributions."""
    return level_process(run).descend(
        part.token_logits(target, force)[:, 0],
        part.z,
        target,
        noise.state,
        force=force,
        sharpen=run.sharpen,
    )


def _by_children_or_tokens(
    run: SamplingContext, part: Predictions, target: Tensor, noise: Noise, force: bool
) -> Int64[Tensor, "N"]:
    """Draw states from child to child where child logits suffice, else from token
    distributions.
    """
    children = _by_tree(run, noise, force)[run.process.level_of(part.z), target]
    result = part.z.clone()
    for rows, draw in ((children, _by_children), (~children, _by_tokens)):
        if bool(rows.any()):
            result[rows] = draw(run, part.take(rows), target[rows], noise.take(rows), force)
    return result


def _by_children(
    run: SamplingContext, part: Predictions, target: Tensor, noise: Noise, force: bool
) -> Int64[Tensor, "N"]:
    """Draw states from child to child down the output's tree.

    Only the children on the path are evaluated.
    """
    hierarchy = level_process(run).hierarchy
    tree_levels = torch.tensor(run.network.tree_levels, device=part.z.device)
    level = hierarchy.level_of(part.z)
    member = part.z - hierarchy.starts[level]
    top = tree_levels[level]
    bottom = tree_levels[target]
    below = noise.children.shape[-1]
    for at in range(int(top.max()) - 1, int(bottom.min()) - 1, -1):
        moving = (at < top) & (at >= bottom)
        if not bool(moving.any()):
            continue
        logits, members = part.take(moving).family(at, member[moving])
        check_finite(logits)
        u = noise.state
        if below:  # the first child below a state has the first uniform, at every level
            u = torch.where(top - 1 == at, u, noise.children[:, min(at, below - 1)])
        child = draw_logits(run.sharpen(logits), u[moving])
        member[moving] = members.gather(1, child[:, None])[:, 0]
    return member + hierarchy.starts[target]
