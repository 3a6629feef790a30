"""Processes of a column by name, in plain values."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

FEW = 8
"""Number of tokens below which an interval tree is masks."""

Values = Mapping[str, Any] | str


def masks(size: int, missing: bool) -> Values:
    """Return masked diffusion."""
    return "mdlm"


def uniform(size: int, missing: bool) -> Values:
    """Return uniform noise; masks for a single token."""
    if size + missing < 2:
        return masks(size, missing)
    return {"kind": "uniform", "schedule": "linear"}


def tree(size: int, missing: bool) -> Values:
    """Return masks over intervals: of neighbouring tokens, about the square root of their number.

    A missing value is an interval of its own.
    """
    if size < FEW:
        return masks(size, missing)
    count = round(math.sqrt(size))
    parents = [token * count // size for token in range(size)] + [count] * missing
    return _hierarchical({"kind": "tree", "parents": [parents]})


def blur(size: int, missing: bool) -> Values:
    """Return blur in two levels, of a sixteenth and a quarter of the tokens, before the mask.

    A missing value is not blurred.
    """
    if size < 2:
        return masks(size, missing)
    widths = [max(size / 16, 0.4), max(size / 4, 0.8)]
    if not missing:
        return _hierarchical({"kind": "blur", "size": size, "widths": widths})
    steps = [widths[0], math.sqrt(widths[1] ** 2 - widths[0] ** 2)]
    return _hierarchical({"kind": "kernels", "kernels": [_blurred(size, step) for step in steps]})


NAMED: Mapping[str, Callable[[int, bool], Values]] = {
    one.__name__: one for one in (masks, uniform, tree, blur)
}
"""Functions of the number of ordered tokens, and whether a missing value follows them."""


def _hierarchical(hierarchy: Mapping[str, Any]) -> Values:
    return {"kind": "hierarchical", "hierarchy": dict(hierarchy), "schedule": "linear"}


def _blurred(size: int, width: float) -> list[list[float]]:
    """Return Gaussian steps between ordered tokens, and a further token that stays."""
    place = torch.arange(size, dtype=torch.float64)
    steps = torch.softmax(-0.5 * ((place[:, None] - place) / width) ** 2, 1)
    return torch.block_diag(steps, torch.ones(1, 1, dtype=torch.float64)).tolist()
