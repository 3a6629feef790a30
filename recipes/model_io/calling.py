"""A network as ``ddlib`` calls it, whatever its products are computed in and however long its rows are."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ddlib.typing import Denoiser, SplitDenoiser
from recipes.metrics.conditioned import telling


def called(model: nn.Module, half: bool, by: Denoiser | None = None) -> Denoiser:
    """The network as a function that says of itself what the network says.

    Args:
        model: the network.
        half: whether products are taken in bfloat16.
        by: what is called in the place of the network.
    """
    call = model if by is None else by

    def denoiser(z: Tensor, t: Tensor, **told: Any) -> Tensor:
        with torch.autocast(z.device.type, torch.bfloat16, enabled=half):
            return call(z, t, **told)

    return telling(denoiser, model)


def padded(denoiser: Denoiser, lengths: Int[Tensor, " B"]) -> Denoiser:
    """A denoiser of rows with padding behind them, each told what it would be told alone.

    It goes by the number of the row: ``dd.sample(..., compact=False)``. What stands in the padding is no matter.

    Args:
        denoiser: of a network that can leave positions out, by ``present`` (B, L) bool.
        lengths: (B,) tokens of each row before its padding.
    """

    def here(z: Tensor) -> Tensor:
        return torch.arange(z.shape[1], device=z.device) < lengths.to(z.device)[:, None]

    def see(z: Tensor, t: Tensor, **told: Any) -> Tensor:
        return denoiser(z, t, present=here(z), **told)

    if isinstance(denoiser, SplitDenoiser):  # so that not all logits are computed
        see.features = lambda z, t: denoiser.features(z, t, present=here(z))
        see.words = denoiser.words
    return telling(see, denoiser)
