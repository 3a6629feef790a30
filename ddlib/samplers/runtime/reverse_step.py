"""From where positions go to what they become: the part of a step that asks the network."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.processes import LevelProcess, unchanged
from ddlib.samplers.base import SamplingContext, level_process
from ddlib.samplers.runtime.model import Predictions
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import Generator, KeyedGenerator, rand
from ddlib.utils.validation import check_finite

_ROWS = 64
"""Laws of words that are looked at together."""


def reverse_step(run: SamplingContext, z: Tokens, t: Times, s: Times, force: bool) -> Tokens:
    """Draw z_s ~ q(z_s | z_t, p): in a ``LevelProcess`` the levels first, and the network runs where they change.

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
    return process.sample_given_level(logits, z, t, s, None, run.generator, force=force, sharpen=run.sharpen)


def move(
    run: SamplingContext, z: Tokens, t: Times, s: Times, target: Tokens, force: bool, chance: Tensor | None = None
) -> Tokens:
    """The states at ``s`` of all sequences, given the levels that their positions are in by then.

    The process lands each moving position as a sequence of its own. The network runs on sequences with one; without
    any it does not run.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
        target: (B, L) levels at ``s``; a position that keeps its level keeps its state.
        force: see ``ForwardProcess.sample_given_level``.
        chance: (B, L), filled in where a position moves: the probability of where it landed, as the network has it,
            without temperature and top-p. Not computed without.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    said = run.network.at(z, t, target != level)
    return apply_predictions(run, said, z, s, target, force, chance)


def shift(
    run: SamplingContext, z: Tokens, t: Times, s: Times, target: Tokens, force: bool, chance: Tensor | None = None
) -> Tokens:
    """``move`` to levels that may be higher too: there positions climb by their own noise, without the network."""
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    moved = move(run, z, t, s, target.minimum(level), force, chance)
    # drawn whether or not anybody climbs, so that a text's noise is its own
    ascended = level_process(run).ascend(z, target.maximum(level), run.generator)
    return torch.where(target > level, ascended, moved)


def apply_predictions(
    run: SamplingContext, answers: Iterable[Predictions], z: Tokens, s: Times, target: Tokens, force: bool,
    chance: Tensor | None = None, single: bool = False,
) -> Tokens:  # fmt: skip
    """``move`` of the positions that the network was asked about, by what it said.

    ``single``: everybody goes down one edge, so that nobody draws more than once.
    """
    single = single or run.sharpen is not unchanged
    walks = run.network.can_descend_tree(force, single)
    turns = 0 if walks is None or single else max(_known(run)) - 1
    uniforms, result = Uniforms(z, run.generator, turns), z.clone()
    for said in answers:
        to = target[said.b, said.i]
        walking = None if walks is None else walks[run.process.level_of(said.z[:, None])[:, 0], to]
        if walking is None:
            result[said.b, said.i] = _by_tokens(run, said, s, to, force, uniforms.at(said.b, said.i))
        else:
            for chosen, draw_states in ((walking, _by_children), (~walking, _by_tokens)):
                if bool(chosen.any()):
                    some, draws = said.take(chosen), uniforms.at(said.b[chosen], said.i[chosen])
                    result[some.b, some.i] = draw_states(run, some, s, to[chosen], force, draws)
        if chance is not None:
            chance[said.b, said.i] = transition_log_prob(run, said, result[said.b, said.i], force).exp()
    return result


def child_log_probs(
    run: SamplingContext, said: Predictions, target: Int64[Tensor, "N"], force: bool
) -> Iterator[tuple[Int64[Tensor, "n"], int, Int64[Tensor, "n K"], Float[Tensor, "n K"]]]:
    """The laws by which positions land in levels below theirs, without temperature and top-p.

    Args:
        run: the call of ``sample``.
        said: what the network says at N positions.
        target: (N,) the level that each lands in, below its own.
        force: see ``ForwardProcess.sample_given_level``.

    Yields:
        For a few positions of one level at a time, so that what is computed of them stays in the processor's cache:
        which of the N, the first state of the level that they land in, the members of it that they may land on, and
        the log-law of these, normalised. By child logits alone where one step of the output's tree leads there.
    """
    process, walks = run.process, run.network.can_descend_tree(force, single=True)
    level = process.level_of(said.z[:, None])[:, 0]
    for j, i in torch.stack([level, target]).unique(dim=1).t().tolist():
        rows = ((level == j) & (target == i)).nonzero()[:, 0]
        some, first = said if len(rows) == len(level) else said.take(rows), sum(process.levels[:i])
        found = _members(run, some, j, i, walks, force)
        logits = some.words(target[rows], force)[:, 0] if found is None else found[0]
        which = (
            torch.arange(process.levels[i], device=level.device).expand(len(rows), -1) if found is None else found[1]
        )
        for part in (slice(start, start + _ROWS) for start in range(0, len(rows), _ROWS)):
            law = (
                logits[part] if found else level_process(run).descendant_logits(logits[part], some.z[part], j, i, force)
            )
            yield rows[part], first, which[part], law.log_softmax(-1)


def _members(
    run: SamplingContext, said: Predictions, level: int, target: int, walks: Tensor | None, force: bool
) -> tuple[Float[Tensor, "n K"], Int64[Tensor, "n K"]] | None:
    """Logits of the members that are within reach alone, and which they are; None where others have a say."""
    if walks is not None and bool(walks[level, target]):
        found = said.family(_known(run)[target], said.z - sum(run.process.levels[:level]))
    elif target == 0 and run.network.can_restrict_columns(level, force):
        found = said.under()
    else:
        return None
    check_finite(found[0])
    return found


def transition_log_prob(
    run: SamplingContext, said: Predictions, landed: Int64[Tensor, "N"], force: bool
) -> Float64[Tensor, "N"]:
    """The log-probability that positions land on these states, in lower levels than theirs, as the network has it.

    Args:
        run: the call of ``sample``; its temperature and top-p have no part.
        said: what the network says at N positions.
        landed: (N,) states.
        force: see ``ForwardProcess.sample_given_level``.

    Returns:
        (N,) in nats, -inf at states that are out of reach.
    """
    found = torch.zeros(len(landed), dtype=torch.float64, device=landed.device)
    target = run.process.level_of(landed[:, None])[:, 0]
    for rows, first, which, law in child_log_probs(run, said, target, force):
        mine = which == landed[rows, None] - first
        found[rows] = torch.where(mine, law.to(torch.float64), -torch.inf).amax(-1)
    return found


def _known(run: SamplingContext) -> list[int]:
    """The level of the output's tree that each level of the process is, -1 for none."""
    hierarchy, children = run.process.hierarchy, run.network.children
    assert hierarchy is not None and children is not None
    return [-1 if j is None else j for j in children.levels_of(hierarchy)]


def _by_tokens(
    run: SamplingContext, said: Predictions, s: Times, target: Tensor, force: bool, draws: Generator
) -> Tensor:
    """By the law of words."""
    now = s[said.b] if s.ndim == 1 else s[said.b, said.i]
    return run.process.sample_given_level(
        said.words(target, force), said.z[:, None], said.t, now, target[:, None], draws, force=force,
        sharpen=run.sharpen,
    )[:, 0]  # fmt: skip


def _by_children(
    run: SamplingContext, said: Predictions, s: Times, target: Tensor, force: bool, draws: Generator
) -> Tensor:
    """From child to child of the output's tree: a product over each family on the way, and over no other state."""
    hierarchy = run.process.hierarchy
    assert hierarchy is not None
    known = torch.tensor(_known(run), device=said.z.device)
    level = hierarchy.level_of(said.z)
    member = said.z - hierarchy.starts[level]
    top, bottom = known[level], known[target]
    first = rand((len(member), 1), draws, member.device)[:, 0]
    several = bool((top - bottom > 1).any())
    then = rand((len(member), 1, max(_known(run)) - 1), draws, member.device)[:, 0] if several else None
    for at in range(int(top.max()) - 1, int(bottom.min()) - 1, -1):
        going = (at < top) & (at >= bottom)
        if not bool(going.any()):
            continue
        logits, which = said.take(going).family(at, member[going])
        check_finite(logits)
        u = first if then is None else torch.where(top - 1 == at, first, then[:, min(at, then.shape[1] - 1)])
        child = draw_logits(run.sharpen(logits), u[going])
        member[going] = which.gather(1, child[:, None])[:, 0]
    return member + hierarchy.starts[target]


class Uniforms:
    """Uniforms drawn for a whole batch, so that a position's do not depend on which others ask for theirs.

    The first (B, L), and (B, L, more) if there are to be more, are drawn at once: a step without a jump draws as many
    as one with jumps.
    """

    def __init__(self, z: Tokens, generator: Generator, more: int = 0) -> None:
        self._z, self._generator = z, generator
        self._drawn = [rand(z.shape, generator, z.device)]
        if more:
            self.draw(1, (more,))

    def at(self, b: Int64[Tensor, "N"], i: Int64[Tensor, "N"]) -> "Places":
        """A generator for N sequences of length 1: position ``i`` of sequence ``b`` for each."""
        return Places(self, b, i)

    def draw(self, number: int, extra: tuple[int, ...]) -> Tensor:
        """The draw of this number, (B, L, *extra); made at the first request."""
        if number == len(self._drawn):
            self._drawn.append(rand((*self._z.shape, *extra), self._generator, self._z.device))
        return self._drawn[number]


class Places(KeyedGenerator):
    """Some of ``Uniforms``, for a process to draw from; its draws count anew for every chunk of positions."""

    def __init__(self, uniforms: Uniforms, b: Int64[Tensor, "N"], i: Int64[Tensor, "N"]) -> None:
        self._uniforms, self.index, self._position, self._draws = uniforms, b, i, 0

    def rand(self, shape: Sequence[int]) -> Float64[Tensor, "..."]:
        """The next uniforms of these positions, (N, 1, ...)."""
        whole = self._uniforms.draw(self._draws, tuple(shape[2:]))
        self._draws += 1
        return whole[self.index, self._position].reshape(tuple(shape))
