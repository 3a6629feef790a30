"""Reverse steps: new states given the new levels, which is the part that depends on the network."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.processes import LevelProcess, unchanged
from ddlib.samplers.base import SamplingContext, level_process
from ddlib.samplers.runtime.constrained import constrained_states
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.runtime.output_layer import distinct_pairs
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import Generator, KeyedGenerator, rand
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
        return move(run, z, t, s, process.sample_level(z, t, s, run.generator), force)
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


def move(
    run: SamplingContext,
    z: Tokens,
    t: Times,
    s: Times,
    target: Tokens,
    force: bool,
    chance: Tensor | None = None,
) -> Tokens:
    """Draw the states at ``s``, given the levels at ``s``.

    Each moving position is drawn as a separate sequence of length 1. The network runs on sequences
    with moving positions only, and not at all without any.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
        target: (B, L) levels at ``s``; a position that keeps its level keeps its state.
        force: see ``ForwardProcess.sample_given_level``.
        chance: (B, L), overwritten at moving positions with the model's probability of the drawn
            state, without temperature and truncation. Not computed if None.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    predictions = run.network.at(z, t, target != level)
    return apply_predictions(run, predictions, z, s, target, force, chance)


def shift(
    run: SamplingContext,
    z: Tokens,
    t: Times,
    s: Times,
    target: Tokens,
    force: bool,
    chance: Tensor | None = None,
) -> Tokens:
    """Draw the states given levels that may be higher too, as ``move``.

    Ascents do not need the network.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    moved = move(run, z, t, s, target.minimum(level), force, chance)
    # always drawn, so that a sequence's noise does not depend on the other sequences
    ascended = level_process(run).ascend(z, target.maximum(level), run.generator)
    return torch.where(target > level, ascended, moved)


def apply_predictions(
    run: SamplingContext,
    predictions: Iterable[Predictions],
    z: Tokens,
    s: Times,
    target: Tokens,
    force: bool,
    chance: Tensor | None = None,
    single: bool = False,
) -> Tokens:
    """Draw the states at the positions of the predictions, as in ``move``.

    Args:
        run: the call of ``sample``.
        predictions: model output at the moving positions.
        z: (B, L) states.
        s: (B,) times of the new states, or (B, L).
        target: (B, L) new levels.
        force: see ``ForwardProcess.sample_given_level``.
        chance: as in ``move``.
        single: True if each position descends exactly one edge, which takes one uniform number.
    """
    if run.constraint is not None:
        parts = list(predictions)
        result = constrained_states(run, parts, z, target, force)
        if chance is not None:
            for part in parts:
                chance[part.b, part.i] = transition_log_prob(
                    run, part, result[part.b, part.i], force
                ).exp()
        return result
    single = single or run.sharpen is not unchanged
    some_by_tree = bool((by_tree := run.network.can_descend_tree(force, single)).any())
    extra_draws = max(run.network.tree_levels) - 1 if some_by_tree and not single else 0
    uniforms = Uniforms(z, run.generator, extra_draws)
    result = z.clone()
    for part in predictions:
        to = target[part.b, part.i]
        if not some_by_tree:
            result[part.b, part.i] = _by_tokens(
                run, part, s, to, force, uniforms.at(part.b, part.i)
            )
        else:
            descends = by_tree[run.process.level_of(part.z[:, None])[:, 0], to]
            for chosen, draw_states in ((descends, _by_children), (~descends, _by_tokens)):
                if bool(chosen.any()):
                    some = part.take(chosen)
                    draws = uniforms.at(part.b[chosen], part.i[chosen])
                    result[some.b, some.i] = draw_states(run, some, s, to[chosen], force, draws)
        if chance is not None:
            chance[part.b, part.i] = transition_log_prob(
                run, part, result[part.b, part.i], force
            ).exp()
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


def _by_tokens(
    run: SamplingContext, part: Predictions, s: Times, target: Tensor, force: bool, draws: Generator
) -> Tensor:
    """Draw states from token distributions."""
    times = s[part.b] if s.ndim == 1 else s[part.b, part.i]
    return run.process.sample_given_level(
        part.token_logits(target, force),
        part.z[:, None],
        part.t,
        times,
        target[:, None],
        draws,
        force=force,
        sharpen=run.sharpen,
    )[:, 0]


def _by_children(
    run: SamplingContext, part: Predictions, s: Times, target: Tensor, force: bool, draws: Generator
) -> Tensor:
    """Draw states from child to child down the output's tree.

    Only the children on the path are evaluated.
    """
    hierarchy = level_process(run).hierarchy
    tree_levels = torch.tensor(run.network.tree_levels, device=part.z.device)
    level = hierarchy.level_of(part.z)
    member = part.z - hierarchy.starts[level]
    top = tree_levels[level]
    bottom = tree_levels[target]
    first = rand((len(member), 1), draws, member.device)[:, 0]
    several = bool((top - bottom > 1).any())
    others = (
        rand((len(member), 1, int(tree_levels.max()) - 1), draws, member.device)[:, 0]
        if several
        else None
    )
    for at in range(int(top.max()) - 1, int(bottom.min()) - 1, -1):
        moving = (at < top) & (at >= bottom)
        if not bool(moving.any()):
            continue
        logits, members = part.take(moving).family(at, member[moving])
        check_finite(logits)
        u = (
            first
            if others is None
            else torch.where(top - 1 == at, first, others[:, min(at, others.shape[1] - 1)])
        )
        child = draw_logits(run.sharpen(logits), u[moving])
        member[moving] = members.gather(1, child[:, None])[:, 0]
    return member + hierarchy.starts[target]


class Uniforms:
    """Uniforms drawn for the whole batch, so that those of a position do not depend on the other
    positions.

    The first ones, (B, L) and with ``more`` also (B, L, more), are drawn on construction. A step
    without a jump thus draws as many as a step with jumps.
    """

    def __init__(self, z: Tokens, generator: Generator, more: int = 0) -> None:
        self._z = z
        self._generator = generator
        self._drawn = [rand(z.shape, generator, z.device)]
        if more:
            self.draw(1, (more,))

    def at(self, b: Int64[Tensor, "N"], i: Int64[Tensor, "N"]) -> "Places":
        """Return a generator for N sequences of length 1.

        Position ``i`` of sequence ``b`` for each.
        """
        return Places(self, b, i)

    def draw(self, number: int, extra: tuple[int, ...]) -> Tensor:
        """Return the draw of this number, (B, L, *extra), made on first use."""
        if number == len(self._drawn):
            self._drawn.append(rand((*self._z.shape, *extra), self._generator, self._z.device))
        return self._drawn[number]


class Places(KeyedGenerator):
    """Generator over selected positions of ``Uniforms``.

    Draws are numbered from 0 for every chunk of positions.
    """

    def __init__(self, uniforms: Uniforms, b: Int64[Tensor, "N"], i: Int64[Tensor, "N"]) -> None:
        self._uniforms = uniforms
        self.index = b
        self._position = i
        self._draws = 0

    def rand(self, shape: Sequence[int]) -> Float64[Tensor, "..."]:
        """Return the next uniforms of these positions, (N, 1, ...)."""
        drawn = self._uniforms.draw(self._draws, tuple(shape[2:]))
        self._draws += 1
        return drawn[self.index, self._position].reshape(tuple(shape))
