"""A network that is shown some words as they are."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ddlib.typing import Denoiser, Tokens

TOLD = ("own_times", "block_size")
"""What a network says of itself that decides what it may be told, see ``ddlib.typing``."""


def telling(denoiser: Denoiser, network: object) -> Denoiser:
    """The function, once it says of itself what the network does."""
    denoiser.__qualname__ = type(network).__qualname__  # for messages
    for name in TOLD:
        if hasattr(network, name):
            setattr(denoiser, name, getattr(network, name))
    return denoiser


def given(denoiser: Denoiser, x: Tokens, fixed: Bool[Tensor, "B L"]) -> Denoiser:
    """A denoiser that sees x (B, L) where it is fixed, whatever noise is there.

    The bound is a sum over positions, so those can be left out of it: what is left is that of a model that writes the
    others as ``dd.sample`` does around what stands.
    """

    def see(z: Tensor, t: Tensor, **told: Any) -> Tensor:
        return denoiser(torch.where(fixed, x, z), t, **told)

    return telling(see, denoiser)
