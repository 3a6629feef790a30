"""A rule for lengths: a row ends a few positions behind the first end that the network predicts."""

from typing import Any

import torch

from ddlib.samplers.lengths import Canvas, Length
from ddlib.utils.validation import check_count


class Margin(Length):
    """Rows keep a number of positions behind the first at which the end token is the likeliest.

    Args:
        token: the end token.
        start: number of positions behind the prompt at the beginning.
        margin: number of positions behind the first predicted end.
        block: see ``Length``.
        fill: token behind the end of a row; by default ``token``.
    """

    def __init__(
        self, token: int, start: int = 64, margin: int = 4, block: int | None = None, fill: int | None = None
    ) -> None:
        super().__init__(token, start, block, fill)
        self.margin = check_count("margin", margin)

    def observe(self, canvas: Canvas) -> Any:
        is_end = canvas.outlook(self.token).is_end & canvas.inside
        return torch.where(is_end, canvas.column, canvas.length[:, None]).amin(1)

    def resize(self, canvas: Canvas, observed: Any, window: Any, k: int) -> Any:
        goal = torch.maximum(observed + self.margin, canvas.first + 1)
        return canvas.length, goal - canvas.length
