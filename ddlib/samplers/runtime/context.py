"""Model inputs beside the tokens: a part of the sequence, cached keys and values, features of the
previous call.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.runtime.model import Call, FullContext, Model
from ddlib.typing import BlockDenoiser, Times, Tokens


class MemoryContext(FullContext):
    r"""Model input with the features of each sequence's previous call, of a ``TakesMemory``
    denoiser.

    .. math:: h_k = \mathrm{features}(z_k, t_k, h_{k-1}), \qquad h_0 = 0

    A call of some rows reads and replaces the features of these rows alone. A row's features thus
    depend on its own calls and not on the batch. Features are computed at all positions, as the
    next call takes them all.
    """

    repeatable = False

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def output(
        self,
        call: Call,
        z: Tokens,
        t: Times,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        rows = torch.ones_like(z[:, 0], dtype=torch.bool) if rows is None else rows
        before = None if self.memory is None else self.memory[rows]
        features = call(z, t, memory=before)
        if features.shape[:2] != z.shape:
            return features  # later checks reject the shape
        if self.memory is None:
            self.memory = features.new_zeros(len(rows), *features.shape[1:])
        self.memory[rows] = features
        return features if positions is None else features.take_along_dim(positions[..., None], 1)


def unknown_state(process: ForwardProcess) -> int:
    """Return the number that stands for an unknown token: the last mask, V without a mask."""
    return max(process.num_states - 1, process.vocab_size)


class WindowContext(FullContext):
    r"""Model input with a window: tokens before it at time 0, noise and prompt tokens behind it.

    .. math:: \mathrm{logits}(z, t) = \mathrm{denoiser}([x\ z\ y],\ [0\ t\ u])\ \text{at the window}

    Args:
        before: (B, n) tokens x before the window.
        given: (B, w) bool, True at tokens of the window that are not drawn, such as a prompt: their
            time is 0.
        after: (B, m) fixed tokens behind the window; numbers that are not tokens at the other
            positions.
        behind: (B, m) input states y behind the window; (B, 0) for a denoiser that does not use
            them.
        times: times u of ``behind``, of the same shape.
    """

    def __init__(
        self,
        before: Tokens,
        given: Bool[Tensor, "B w"],
        after: Int64[Tensor, "B m"],
        behind: Tensor,
        times: Tensor,
    ) -> None:
        self.first = before.shape[1]
        self.before = before
        self.given = given
        self.after = after
        self.behind = behind
        self.times = times

    def states(self, z: Tokens) -> Int64[Tensor, "B n"]:
        return torch.cat([self.before, z, self.after], 1)

    def output(
        self,
        call: Call,
        z: Tokens,
        t: Times,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        states, times = self._whole(z, t, rows)
        if positions is None:
            return self._window(call(states, times), z)
        return call(states, times, positions + self.first)

    def _whole(self, z: Tokens, t: Times, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        before, behind, times = (
            v if rows is None else v[rows] for v in (self.before, self.behind, self.times)
        )
        return torch.cat([before, z, behind], 1), torch.cat(
            [torch.zeros_like(before).to(t), self._inside(t, rows), times.to(t)], 1
        )

    def _inside(self, t: Times, rows: Tensor | None) -> Tensor:
        """Return the times (B, w) in the window."""
        given = self.given if rows is None else self.given[rows]
        return torch.where(given, 0.0, t if t.ndim == 2 else t[:, None])

    def _window(self, output: Tensor, z: Tokens) -> Tensor:
        length = self.first + z.shape[1] + self.behind.shape[1]
        if output.shape[:2] != (len(z), length):
            return output  # later checks reject the shape
        return output[:, self.first : self.first + z.shape[1]]


class CachedContext(WindowContext):
    """Model input with a window for a ``BlockDenoiser``.

    Cached computations for the tokens before, nothing behind.

    Args:
        before: (B, n) tokens before the window.
        given: (B, w) as in ``WindowContext``.
        after: (B, m) as in ``WindowContext``.
        cache: result of the denoiser's ``prefill`` for the tokens before.
    """

    def __init__(
        self,
        before: Tokens,
        given: Bool[Tensor, "B w"],
        after: Int64[Tensor, "B m"],
        cache: Any,
    ) -> None:
        super().__init__(before, given, after, after[:, :0], after[:, :0])
        self.cache = cache
        # most windows have one time in each row, for which a denoiser computes less
        self._one_time = not bool(given.any())
        self._some: tuple[Tensor, Any] | None = None

    def without_values(self) -> FullContext:
        return WindowContext(self.before, self.given, self.after, self.behind, self.times)

    def output(
        self,
        call: Call,
        z: Tokens,
        t: Times,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        times = t if self._one_time else self._inside(t, rows)
        return call(z, times, positions, cache=self._of(rows))

    def _of(self, rows: Tensor | None) -> Any:
        """Return the cache of selected rows.

        The last selection is kept, as finished sequences stay excluded.
        """
        if rows is None or bool(rows.all()):
            return self.cache
        if self._some is None or not torch.equal(self._some[0], rows):
            self._some = rows.clone(), self.cache.rows(rows)
        return self._some[1]


class BlockContexts:
    """Contexts of the model input, one block after the other.

    A ``BlockDenoiser`` caches its computations for earlier blocks; others evaluate every position.
    A subclass with another cache overrides ``window``.

    Args:
        network: the model wrapper of the whole sequence.
        size: positions of a block.
    """

    def __init__(self, network: Model, size: int) -> None:
        self.denoiser = network.denoiser
        able = network.capabilities
        # the denoiser ignores everything behind its own blocks
        self.short = able.block_size > 0 and size % able.block_size == 0
        self.caches = self.short and able.caches_blocks
        self.cache: Any = None

    def at(
        self, before: Tokens, given: Tensor, after: Tensor, behind: Tensor, times: Tensor
    ) -> FullContext:
        """Return the context of the block between the tokens ``before`` and the states
        ``behind``.
        """
        if not self.caches:
            return self.window(before, given, after, behind, times)
        done = 0 if self.cache is None else self.cache.tokens.shape[1]
        self.cache = cast(BlockDenoiser, self.denoiser).prefill(before[:, done:], self.cache)
        return CachedContext(before, given, after, self.cache)

    def window(
        self, before: Tokens, given: Tensor, after: Tensor, behind: Tensor, times: Tensor
    ) -> FullContext:
        """Return the context of the block without the cache of a ``BlockDenoiser``."""
        length = 0 if self.short else behind.shape[1]
        return WindowContext(before, given, after, behind[:, :length], times[:, :length])
