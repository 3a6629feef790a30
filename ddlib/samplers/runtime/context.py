"""Model inputs beside the tokens.

a part of the sequence, cached keys and values, features of the previous call.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.samplers.runtime.model import FullContext
from ddlib.samplers.runtime.reuse import Reuse
from ddlib.typing import Denoiser, Times, Tokens


class MemoryContext(FullContext):
    r"""Model input with the features of each sequence's previous call, of a ``TakesMemory``
    denoiser.

    .. math:: h_k = \mathrm{features}(z_k, t_k, h_{k-1}), \qquad h_0 = 0

    A call of some rows reads and replaces the features of these rows alone. A row's features thus
    depend on its own calls and not on the batch. Features are computed at all positions, as the
    next call takes them all.

    Args:
        denoiser: a split denoiser whose ``features`` take ``memory``.
    """

    repeatable = False

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__(denoiser)
        self.memory: Tensor | None = None

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        rows = torch.ones_like(z[:, 0], dtype=torch.bool) if rows is None else rows
        before = None if self.memory is None else self.memory[rows]
        found: Tensor = self.denoiser.features(z, t, memory=before)  # type: ignore[attr-defined]
        if found.shape[:2] != z.shape:
            return found  # later checks reject the shape
        if self.memory is None:
            self.memory = found.new_zeros(len(rows), *found.shape[1:])
        self.memory[rows] = found
        return found

    def features_at(
        self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        return self.features(z, t, rows).take_along_dim(positions[..., None], 1)


class WindowContext(FullContext):
    r"""Model input with a window: tokens before it at time 0, noise and prompt tokens behind it.

    .. math:: \mathrm{logits}(z, t) = \mathrm{denoiser}([x\ z\ y],\ [0\ t\ u])\ \text{at the window}

    Args:
        denoiser: a denoiser that takes times (B, L).
        before: (B, n) tokens x before the window.
        after: (B, m) fixed tokens behind the window; numbers that are not tokens at the other
            positions.
        behind: (B, m) input states y behind the window; (B, 0) for a denoiser that does not use
            them.
        times: times u of ``behind``, of the same shape.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        before: Tokens,
        after: Int64[Tensor, "B m"],
        behind: Tensor,
        times: Tensor,
    ) -> None:
        super().__init__(denoiser)
        self.first = before.shape[1]
        self.before = before
        self.after = after
        self.behind = behind
        self.times = times

    def states(self, z: Tokens) -> Int64[Tensor, "B n"]:
        return torch.cat([self.before, z, self.after], 1)

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self._window(self.denoiser(*self._whole(z, t, rows)), z)

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self._window(super().features(*self._whole(z, t, rows)), z)

    def features_at(
        self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        return super().features_at(*self._whole(z, t, rows), positions + self.first)

    def _whole(self, z: Tokens, t: Times, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        before, behind, times = (
            v if rows is None else v[rows] for v in (self.before, self.behind, self.times)
        )
        here = t if t.ndim == 2 else t[:, None].expand(z.shape)
        return torch.cat([before, z, behind], 1), torch.cat(
            [torch.zeros_like(before).to(t), here, times.to(t)], 1
        )

    def _window(self, output: Tensor, z: Tokens) -> Tensor:
        length = self.first + z.shape[1] + self.behind.shape[1]
        if output.shape[:2] != (len(z), length):
            return output  # later checks reject the shape
        return output[:, self.first : self.first + z.shape[1]]


class CachedContext(WindowContext):
    """Model input with a window for a ``BlockDenoiser``.

    Cached computations for the tokens before, nothing behind.

    Args:
        denoiser: a denoiser with ``extend``.
        before: (B, n) tokens before the window.
        after: (B, m) as in ``WindowContext``.
        cache: result of the denoiser's ``prefill`` for the tokens before.
    """

    def __init__(
        self, denoiser: Denoiser, before: Tokens, after: Int64[Tensor, "B m"], cache: Any
    ) -> None:
        super().__init__(denoiser, before, after, after[:, :0], after[:, :0])
        self.cache = cache
        self._some: tuple[Tensor, Any] | None = None

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self.denoiser.extend(z, t, self._of(rows))  # type: ignore[attr-defined]

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self.denoiser.features(z, t, cache=self._of(rows))  # type: ignore[attr-defined]

    def features_at(
        self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        return self.denoiser.features_at(z, t, positions, cache=self._of(rows))  # type: ignore[attr-defined]

    def _of(self, rows: Tensor | None) -> Any:
        """Return the cache of selected rows.

        The last selection is kept, as finished sequences stay excluded.
        """
        if rows is None or bool(rows.all()):
            return self.cache
        if self._some is None or not torch.equal(self._some[0], rows):
            self._some = rows.clone(), self.cache.rows(rows)
        return self._some[1]


class ReusingContext(WindowContext):
    """Model input with a window for a ``WindowDenoiser``.

    Keys and values around it from earlier calls.

    Each sequence counts its own calls, so that its result does not depend on the other sequences of
    the batch.

    Args:
        denoiser: a denoiser with ``prefill_around`` and ``extend``.
        before: (B, n) tokens before the window.
        after: (B, m) as in ``WindowContext``.
        behind: (B, m) as in ``WindowContext``.
        times: (B, m) as in ``WindowContext``.
        reuse: which keys and values are reused, and for how many calls.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        before: Tokens,
        after: Int64[Tensor, "B m"],
        behind: Tensor,
        times: Tensor,
        reuse: Reuse,
    ) -> None:
        super().__init__(denoiser, before, after, behind, times)
        self.reuse = reuse
        self._cache: Any = None
        self._slot = torch.full_like(
            before.new_empty(len(before)), -1
        )  # row of the cache of each sequence
        self._calls = torch.zeros_like(self._slot)  # with the present row
        self._some: tuple[Tensor, Any] | None = None

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        inside, times, cache = self._inside(z, t, rows)
        return self.denoiser.extend(inside, times, cache)[:, : z.shape[1]]  # type: ignore[attr-defined]

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        inside, times, cache = self._inside(z, t, rows)
        return self.denoiser.features(inside, times, cache=cache)[:, : z.shape[1]]  # type: ignore[attr-defined]

    def features_at(
        self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        inside, times, cache = self._inside(z, t, rows)
        return self.denoiser.features_at(inside, times, positions, cache=cache)  # type: ignore[attr-defined]

    def _inside(self, z: Tokens, t: Times, rows: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """Return states and times that are evaluated, and the cache of the others, computed again
        where it is due.
        """
        rows = torch.ones_like(self._slot, dtype=torch.bool) if rows is None else rows
        whole, times = self._whole(z, t, rows)
        end = self.first + z.shape[1] if self.reuse.suffix else whole.shape[1]
        due = self._slot < 0
        if self.reuse.refresh is not None:
            due = due | (self._calls >= self.reuse.refresh)
        if bool((due := due & rows).any()):
            fresh = self.denoiser.prefill_around(  # type: ignore[attr-defined]
                whole[due[rows]], times[due[rows]], self.first, end
            )
            self._put(due, fresh)
        self._calls += rows
        return whole[:, self.first : end], times[:, self.first : end], self._of(rows)

    def _put(self, due: Tensor, fresh: Any) -> None:
        """Store the cache of some sequences."""
        stays = (self._slot >= 0) & ~due
        kept = int(stays.sum())
        self._cache = self._cache.rows(self._slot[stays]).joined(fresh) if kept else fresh
        self._slot[stays] = torch.arange(kept, device=due.device)
        self._slot[due] = torch.arange(kept, kept + int(due.sum()), device=due.device)
        self._calls[due] = 0
        self._some = None

    def _of(self, rows: Tensor) -> Any:
        """Return the cache of selected sequences, in their order; the last selection is kept."""
        slot = self._slot[rows]
        if torch.equal(slot, torch.arange(int((self._slot >= 0).sum()), device=slot.device)):
            return self._cache
        if self._some is None or not torch.equal(self._some[0], slot):
            self._some = slot, self._cache.rows(slot)
        return self._some[1]


class RaggedContext(FullContext):
    """Model input without the columns behind the length of each row.

    The denoiser is called once per length.

    Its output has the columns of the longest row. It is 0 behind the others and at rows of length
    0.

    Args:
        denoiser: ``(z, t) -> logits``, split or not.
        lengths: (B,) number of columns of each row.
        unknown: number that is not a token, for the columns behind a row in ``states``.
        compact: whether a call has the rows of its length alone. Otherwise it has all rows, of the
            same columns.
    """

    def __init__(
        self, denoiser: Denoiser, lengths: Int64[Tensor, "B"], unknown: int, compact: bool
    ) -> None:
        super().__init__(denoiser)
        self.lengths = lengths
        self.unknown = unknown
        self.compact = compact

    def states(self, z: Tokens) -> Int64[Tensor, "B n"]:
        column = torch.arange(z.shape[1], device=z.device)
        return torch.where(column < self.lengths[:, None], z, self.unknown)

    def width(self, length: int) -> int:
        return int(self.lengths.max())

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self._each(super().logits, z, t, rows, self.width(z.shape[1]))

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self._each(super().features, z, t, rows, self.width(z.shape[1]))

    def features_at(
        self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        at = super().features_at

        def features(cut: Tokens, t: Times, mine: Tensor) -> Tensor:
            return at(cut, t, positions[mine].clamp_max(cut.shape[1] - 1))

        return self._each(features, z, t, rows, positions.shape[1], True)

    def _each(
        self,
        function: Callable[..., Tensor],
        z: Tokens,
        t: Times,
        rows: Tensor | None,
        width: int,
        at: bool = False,
    ) -> Tensor:
        """Evaluate a function of states and times for each length, and put its results into (B,
        width, K).
        """
        lengths = self.lengths if rows is None else self.lengths[rows]
        output: Tensor | None = None
        for length in lengths[lengths > 0].unique().tolist():
            mine = lengths == length
            some = mine if self.compact else torch.ones_like(mine)
            found = function(z[some, :length], t[some], *([some] if at else []))
            if output is None:
                output = found.new_zeros(len(z), width, found.shape[-1])
            output[mine, : found.shape[1]] = found if self.compact else found[mine]
        assert output is not None  # the model is called where there are positions to draw
        return output
