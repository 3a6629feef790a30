"""The pace of a recipe: which position is noised when."""

import torch

from ddlib import parts
from ddlib.paces import Pace

TOGETHER = "together"
"""The pace of diffusion, and of every recipe that says none."""


def make_pace(values: dict[str, object] | str) -> Pace:
    """The pace that plain values describe.

    Raises:
        ValueError: no such pace, or values that it refuses, by their place.
    """
    return parts.build("paces", values, place="pace")


def fitting(pace: Pace, length: int) -> Pace:
    """The pace, once it is known to serve texts of this length.

    Raises:
        ValueError: it does not.
    """
    try:
        _draw(pace, length)
    except ValueError as error:
        raise ValueError(f"pace {pace!r}, data.length={length}: {error}") from error
    return pace


def own_times(pace: Pace, length: int) -> bool:
    """Whether the positions of a text have times of their own, and not one for all."""
    return _draw(pace, length).ndim == 2


def at_once(pace: Pace, network: object) -> bool:
    """Whether all blocks of a text are noised and measured in one call: where the network is made for these blocks.

    Its blocks see nothing behind them and, told the clean text, no noise before them. One call then says what a call
    per block would, for the work of two.
    """
    return pace.block is not None and getattr(network, "block_size", None) == pace.block


def _draw(pace: Pace, length: int) -> torch.Tensor:
    return pace.draw(1, length, torch.Generator().manual_seed(0)).t
