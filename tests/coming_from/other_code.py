"""Parts that docs/coming_from.md shows, and a network for all comparisons with other code."""

import re
from pathlib import Path
from typing import Any

import torch

import ddlib as dd

PAGE = Path(__file__).parents[2] / "docs" / "coming_from.md"
V = 5
F64 = torch.float64
S = dd.samplers
TIMES = torch.linspace(0.01, 0.99, 9, dtype=F64)
TABLE = torch.randn(V + 1, V, dtype=F64, generator=torch.Generator().manual_seed(0))
COSINE = dd.schedules.Symbolic("1 - cos(pi * (1 - t) / 2)")


def network(z, t):
    """Return logits of each token by its own state and the other positions' mean."""
    return TABLE[z] + TABLE[z].mean(1, keepdim=True)


network.own_times = True  # accepts a time per position


def masks() -> dd.processes.ForwardProcess:
    """Return masked diffusion of V tokens."""
    return dd.presets.mdlm(V)


def shown() -> dict[str, Any]:
    """Return the names that the blocks of the page define."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        exec(block, names)
    return names
