"""From where positions go to what they become: the part of a step that asks the network."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.categorical import draw_logits
from ddlib.checks import check_finite
from ddlib.noise import Generator, KeyedGenerator, rand
from ddlib.processes.sampled import unchanged
from ddlib.samplers.base import Run
from ddlib.samplers.network import Said
from ddlib.typing import Times, Tokens


def move(run: Run, z: Tokens, t: Times, s: Times, target: Tokens, force: bool) -> Tokens:
    """The states at ``s`` of all sequences, given the levels that their positions are in by then.

    The process lands each moving position as a sequence of its own. The network runs on sequences with one; without
    any it does not run.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
        target: (B, L) levels at ``s``; a position that keeps its level keeps its state.
        force: see ``ForwardProcess.land``.
    """
    uniforms, result = Uniforms(z, run.generator), z.clone()
    for said in run.network.at(z, t, target != run.process.level_of(z)):
        result[said.b, said.i] = settle(run, said, s, target, force, uniforms)
    return result


def settle(run: Run, said: Said, s: Times, target: Tokens, force: bool, uniforms: "Uniforms") -> Int64[Tensor, "N"]:
    """The states at ``s`` of the positions that the network spoke about; the arguments are those of ``move``."""
    walks = run.network.walks(force, single=run.sharpen is not unchanged)
    to, result = target[said.b, said.i], said.z.clone()
    if walks is None:
        return _land(run, said, s, to, force, uniforms.at(said.b, said.i))
    walking = walks[run.process.level_of(said.z[:, None])[:, 0], to]
    for chosen, land in ((walking, _walk), (~walking, _land)):
        if bool(chosen.any()):
            some, draws = said.take(chosen), uniforms.at(said.b[chosen], said.i[chosen])
            result[chosen] = land(run, some, s, to[chosen], force, draws)
    return result


def exchange(
    run: Run, z: Tokens, t: Times, s: Times, sigma: Float64[Tensor, "B n"] | None, force: bool = False
) -> Tokens:
    """The states at ``s``, for a process with levels: some climb, and as many more come down in their place.

    Every level keeps its law (theory section 8). Climbing needs no network. With s = t nobody else moves.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) times no later.
        sigma: (B, n) the chance to climb each edge, at most ``most_lift``; None for none.
        force: see ``ForwardProcess.land``.
    """
    target = run.process.jump(z, t, s, run.generator, sigma)
    assert target is not None
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    moved = move(run, z, t, s, target.minimum(level), force)
    if sigma is None:
        return moved
    # drawn whether or not anybody climbs, so that a text's noise is its own
    return torch.where(target > level, run.process.climb(z, target.maximum(level), run.generator), moved)


def _land(run: Run, said: Said, s: Times, target: Tensor, force: bool, draws: Generator) -> Tensor:
    """By the law of words."""
    return run.process.land(
        said.words(target, force), said.z[:, None], said.t, s[said.b], target[:, None], draws, force=force,
        sharpen=run.sharpen,
    )[:, 0]  # fmt: skip


def _walk(run: Run, said: Said, s: Times, target: Tensor, force: bool, draws: Generator) -> Tensor:
    """From child to child of the output's tree: a product over each family on the way, and over no other state."""
    hierarchy, children = run.process.hierarchy, run.network.children
    assert hierarchy is not None and children is not None
    known = torch.tensor([-1 if j is None else j for j in children.levels_of(hierarchy)], device=said.z.device)
    level = hierarchy.level_of(said.z)
    member = said.z - hierarchy.starts[level]
    top, bottom = known[level], known[target]
    for at in range(int(top.max()) - 1, int(bottom.min()) - 1, -1):
        u = rand((len(member), 1), draws, member.device)[:, 0]
        going = (at < top) & (at >= bottom)
        logits, which = said.take(going).family(at, member[going])
        check_finite(logits)
        child = draw_logits(run.sharpen(logits), u[going])
        member[going] = which.gather(1, child[:, None])[:, 0]
    return member + hierarchy.starts[target]


class Uniforms:
    """Uniforms drawn for a whole batch, so that a position's do not depend on which others ask for theirs.

    The first (B, L) are drawn at once: a step without a jump draws as many as one with jumps.
    """

    def __init__(self, z: Tokens, generator: Generator) -> None:
        self._z, self._generator = z, generator
        self._drawn = [rand(z.shape, generator, z.device)]

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
