"""A network as ``ddlib`` calls it, whatever its products are computed in."""

from typing import Any

import torch
from torch import Tensor, nn

from ddlib.typing import Denoiser
from recipes.measure.given import telling


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
