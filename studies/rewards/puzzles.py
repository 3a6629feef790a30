"""Sudoku 4 x 4: grids, clues and the reward."""

from functools import cache
from itertools import permutations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

SIDE = 4
CELLS = SIDE * SIDE
CLUES = 6
PARTS = {"pretraining": 144, "rewards": 72, "search": 24, "test": 48}
"""Numbers of grids of each part."""


def _groups() -> Int64[Tensor, "12 4"]:
    """Return the cells of every row, column and box."""
    cells = torch.arange(CELLS).view(SIDE, SIDE)
    boxes = cells.view(2, 2, 2, 2).transpose(1, 2).reshape(SIDE, SIDE)
    return torch.cat([cells, cells.T, boxes])


GROUPS = _groups()


def solved(grids: Int64[Tensor, "B 16"]) -> Bool[Tensor, "B"]:
    """Return whether every row, column and box has all digits."""
    digits = grids[:, GROUPS].sort(-1).values
    return (digits == torch.arange(SIDE)).all(-1).all(-1)


@cache
def all_grids() -> Int64[Tensor, "288 16"]:
    """Return all valid grids, with digits 0 to 3."""
    rows = torch.tensor(list(permutations(range(SIDE))))
    pairs = torch.cartesian_prod(*[torch.arange(len(rows))] * 2)
    halves = rows[pairs].view(-1, 2 * SIDE)
    # the two boxes of the upper half, which the lower half has in other places
    fits = (halves[:, [0, 1, 4, 5]].sort(-1).values == torch.arange(SIDE)).all(-1)
    fits &= (halves[:, [2, 3, 6, 7]].sort(-1).values == torch.arange(SIDE)).all(-1)
    halves = halves[fits]
    pairs = torch.cartesian_prod(*[torch.arange(len(halves))] * 2)
    grids = halves[pairs].view(-1, CELLS)
    return grids[solved(grids)]


def part(name: str) -> Int64[Tensor, "N 16"]:
    """Return the grids of a part."""
    grids = all_grids()
    order = torch.randperm(len(grids), generator=torch.Generator().manual_seed(0))
    begin = 0
    for other, count in PARTS.items():
        if other == name:
            return grids[order[begin : begin + count]]
        begin += count
    raise ValueError(f"name is {name!r}, must be one of {', '.join(PARTS)}")


def puzzles(
    name: str, count: int, generator: torch.Generator
) -> tuple[Int64[Tensor, "B 16"], Bool[Tensor, "B 16"]]:
    """Draw puzzles: grids of a part, and True at their clues."""
    grids = part(name)
    chosen = torch.randint(len(grids), (count,), generator=generator)
    scores = torch.rand(count, CELLS, generator=generator)
    clues = scores.argsort(-1).argsort(-1) < CLUES
    return grids[chosen], clues
