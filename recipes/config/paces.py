"""Pace of a recipe: the noise schedule of each position."""

import torch

import ddlib as dd
from ddlib.paces import Pace

TOGETHER = "together"
"""Default pace: all positions share one time."""


def make_pace(values: dict[str, object] | str) -> Pace:
    """Build the pace from plain values.

    Raises:
        ValueError: no such pace, or invalid values, by their place.
    """
    return dd.build("paces", values, place="pace")


def fitting(pace: Pace, length: int) -> Pace:
    """Return the pace after checking that it supports sequences of this length.

    Raises:
        ValueError: it does not.
    """
    try:
        _draw(pace, length)
    except ValueError as error:
        raise ValueError(f"pace {pace!r}, data.length={length}: {error}") from error
    return pace


def own_times(pace: Pace, length: int) -> bool:
    """Return whether the positions of a sequence have different times."""
    return _draw(pace, length).ndim == 2


def at_once(pace: Pace, network: object) -> bool:
    """Return whether one call covers all blocks of a sequence: if the network is made for these
    blocks.

    Each block then attends to the clean blocks before it and to no later one. One call over 2 L
    tokens replaces L / size calls.
    """
    return pace.block is not None and getattr(network, "block_size", None) == pace.block


def _draw(pace: Pace, length: int) -> torch.Tensor:
    return pace.draw(1, length, torch.Generator().manual_seed(0)).t
