"""Conditioning of a network on clean tokens at some positions."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ddlib.typing import Denoiser, Tokens

TOLD = ("own_times", "block_size")
"""Attributes of a network that determine its optional arguments, see ``ddlib.typing``."""


def telling(denoiser: Denoiser, network: object) -> Denoiser:
    """Copy the network's attributes to the function, and return it."""
    denoiser.__qualname__ = type(network).__qualname__  # for messages
    for name in TOLD:
        if hasattr(network, name):
            setattr(denoiser, name, getattr(network, name))
    return denoiser


def given(denoiser: Denoiser, x: Tokens, fixed: Bool[Tensor, "B L"]) -> Denoiser:
    """Return a denoiser whose input is x (B, L) where it is fixed, whatever the noise there.

    The bound is a sum over positions, so those can be left out of it: the rest is the bound of a model that samples the
    others as ``dd.sample`` does around a prompt.
    """

    def see(z: Tensor, t: Tensor, **options: Any) -> Tensor:
        return denoiser(torch.where(fixed, x, z), t, **options)

    return telling(see, denoiser)
