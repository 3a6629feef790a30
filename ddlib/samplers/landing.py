"""From where positions go to what they become: the part of a step that asks the network."""

from collections.abc import Sequence

from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.noise import Generator, KeyedGenerator, rand
from ddlib.samplers.base import Run
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
    moving = target != run.process.level_of(z)
    for b, i, logits in run.network.at(z, t, moving, target, force):
        landed = run.process.land(
            logits, z[b, i, None], t[b], s[b], target[b, i, None], uniforms.at(b, i), force=force, sharpen=run.sharpen
        )
        result[b, i] = landed[:, 0]
    return result


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
