"""Rule for lengths that ends a row a few positions after the first end token that the network
predicts.
"""

from typing import Any

import torch

from ddlib.contrib import Canvas, Length
from ddlib.utils.validation import check_count


class Margin(Length):
    """Rule that keeps ``margin`` positions after the first position at which the end token is most
    likely.

    Args:
        token: id of the end token.
        start: initial number of positions after the prompt.
        margin: number of positions after the first predicted end.
        block: see ``Length``.
        fill: token after the end of a row; ``token`` by default.
    """

    def __init__(
        self,
        token: int,
        start: int = 64,
        margin: int = 4,
        block: int | None = None,
        fill: int | None = None,
    ) -> None:
        super().__init__(token, start, block, fill)
        self.margin = check_count("margin", margin)

    def observe(self, canvas: Canvas) -> Any:
        is_end = canvas.outlook(self.token).is_end & canvas.inside
        return torch.where(is_end, canvas.column, canvas.length[:, None]).amin(1)

    def resize(self, canvas: Canvas, observed: Any, window: Any, k: int) -> Any:
        goal = torch.maximum(observed + self.margin, canvas.first + 1)
        return canvas.length, goal - canvas.length
