"""Model input of rows of unlike lengths."""

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.samplers.runtime.model import Call, FullContext
from ddlib.typing import Times, Tokens


class RaggedContext(FullContext):
    """Model input without the columns behind the length of each row.

    The denoiser is called once per length.

    Its output is 0 behind the length of a row.

    Args:
        lengths: (B,) number of columns of each row.
        unknown: number that is not a token, for the columns behind a row in ``states``.
        compact: whether a call has the rows of its length alone. Otherwise it has all rows, of the
            same columns.
    """

    def __init__(self, lengths: Int64[Tensor, "B"], unknown: int, compact: bool) -> None:
        self.lengths = lengths
        self.unknown = unknown
        self.compact = compact

    def states(self, z: Tokens) -> Int64[Tensor, "B n"]:
        column = torch.arange(z.shape[1], device=z.device)
        return torch.where(column < self.lengths[:, None], z, self.unknown)

    def output(
        self,
        call: Call,
        z: Tokens,
        t: Times,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        lengths = self.lengths if rows is None else self.lengths[rows]
        width = z.shape[1] if positions is None else positions.shape[1]
        output: Tensor | None = None
        for length in lengths[lengths > 0].unique().tolist():
            mine = lengths == length
            some = mine if self.compact else torch.ones_like(mine)
            at = None if positions is None else positions[some].clamp_max(length - 1)
            result = call(z[some, :length], t[some], at)
            if output is None:
                output = result.new_zeros(len(z), width, result.shape[-1])
            output[mine, : result.shape[1]] = result if self.compact else result[mine]
        assert output is not None  # the model is called where there are positions to draw
        return output
