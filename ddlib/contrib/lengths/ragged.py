"""Model input of rows of unlike lengths."""

from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.samplers.runtime.model import FullContext
from ddlib.typing import Denoiser, Times, Tokens


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
