"""What a denoiser is shown when a sampler asks about its tokens: they are the whole text, or stand in one."""

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.typing import Denoiser, Times, Tokens


class FullContext:
    """The tokens of the sampler are the whole text.

    Rows, where they are named, are those that are asked about: (B,) bool; of them alone states and times are given.

    Args:
        denoiser: ``(z, t) -> logits``, split or not.
    """

    first: int = 0
    """The position in the text of the sampler's first token."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser

    def text(self, z: Tokens) -> Int64[Tensor, "B n"]:
        """The texts that the tokens stand in; what says nothing, such as noise behind them, is no word."""
        return z

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        """What the denoiser says of the tokens, (B, L, K)."""
        return self.denoiser(z, t)

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        """What a ``SplitDenoiser`` has before its output layer, (B, L, D)."""
        return self.denoiser.features(z, t)  # type: ignore[attr-defined]

    def features_at(self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """The same of a ``SparseDenoiser``, of some of the tokens, (B, n, D)."""
        return self.denoiser.features_at(z, t, positions)  # type: ignore[attr-defined]


class WindowContext(FullContext):
    r"""The tokens are a window of a text: before it are words, whose time is 0, behind it noise and words of a prompt.

    .. math:: \mathrm{logits}(z, t) = \mathrm{denoiser}([x\ z\ y],\ [0\ t\ u])\ \text{at the window}

    Args:
        denoiser: that is told times (B, L).
        before: (B, n) the words x in front of the window.
        after: (B, m) the words that stand behind it, and where none does a number that is no word.
        behind: (B, m) the states y that are shown behind it, or (B, 0) to a denoiser that does not look there.
        times: their times u, of the same shape.
    """

    def __init__(
        self, denoiser: Denoiser, before: Tokens, after: Int64[Tensor, "B m"], behind: Tensor, times: Tensor
    ) -> None:
        super().__init__(denoiser)
        self.first, self.before, self.after, self.behind, self.times = before.shape[1], before, after, behind, times

    def text(self, z: Tokens) -> Int64[Tensor, "B n"]:
        return torch.cat([self.before, z, self.after], 1)

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self._window(self.denoiser(*self._whole(z, t, rows)), z)

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self._window(super().features(*self._whole(z, t, rows)), z)

    def features_at(self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        return super().features_at(*self._whole(z, t, rows), positions + self.first)

    def _whole(self, z: Tokens, t: Times, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        before, behind, times = (v if rows is None else v[rows] for v in (self.before, self.behind, self.times))
        own = t if t.ndim == 2 else t[:, None].expand(z.shape)
        return torch.cat([before, z, behind], 1), torch.cat([torch.zeros_like(before).to(t), own, times.to(t)], 1)

    def _window(self, said: Tensor, z: Tokens) -> Tensor:
        whole = self.first + z.shape[1] + self.behind.shape[1]
        if said.shape[:2] != (len(z), whole):
            return said  # which is refused, by its shape
        return said[:, self.first : self.first + z.shape[1]]


class CachedContext(WindowContext):
    """The same of a ``BlockDenoiser``, which keeps what it worked out about the words before and sees nothing behind.

    Args:
        denoiser: that can ``extend``.
        before: (B, n) the words in front of the window.
        after: (B, m) as ``WindowContext`` has them.
        cache: what the denoiser made of the words before.
    """

    def __init__(self, denoiser: Denoiser, before: Tokens, after: Int64[Tensor, "B m"], cache: Any) -> None:
        super().__init__(denoiser, before, after, after[:, :0], after[:, :0])
        self.cache = cache
        self._some: tuple[Tensor, Any] | None = None

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self.denoiser.extend(z, t, self._of(rows))  # type: ignore[attr-defined]

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        return self.denoiser.features(z, t, cache=self._of(rows))  # type: ignore[attr-defined]

    def features_at(self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.denoiser.features_at(z, t, positions, cache=self._of(rows))  # type: ignore[attr-defined]

    def _of(self, rows: Tensor | None) -> Any:
        """The cache of some rows; those of the last call are remembered, as texts that have ended stay out."""
        if rows is None or bool(rows.all()):
            return self.cache
        if self._some is None or not torch.equal(self._some[0], rows):
            self._some = rows.clone(), self.cache.rows(rows)
        return self._some[1]
