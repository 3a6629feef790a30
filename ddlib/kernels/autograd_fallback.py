"""Generic divergence for any process: its own loss on a chunk of logits, differentiated by autograd."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels.tile import Divergence, Rows
from ddlib.typing import Logits, PerToken, Times, Tokens

Formula = Callable[[Logits, Tokens, Tokens, Times], PerToken]


class Dense(Divergence):
    """Evaluates ``formula(logits, x, z, t)`` with each row as a sequence of length 1."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula

    def __call__(self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool) -> Float[Tensor, "n"]:
        with torch.set_grad_enabled(derive):
            given = logits.detach()[:, None].clone().requires_grad_(derive)
            value = self.formula(given, rows.x[:, None], rows.z[:, None], rows.t).squeeze(1)
            if derive:
                (slope,) = torch.autograd.grad(value.sum(), given)
                logits.copy_(slope.squeeze(1))
        return value.detach()
