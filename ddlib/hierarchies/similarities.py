"""Similarities of alphabets, for ``Blur.from_similarity``."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.utils.validation import require

AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"
"""The 20 amino acids, in the order of ``blosum62``."""

_BLOSUM62 = """
    4
    -1 5
    -2 0 6
    -2 -2 1 6
    0 -3 -3 -3 9
    -1 1 0 0 -3 5
    -1 0 0 2 -4 2 5
    0 -2 0 -1 -3 -2 -2 6
    -2 0 1 -1 -3 0 0 -2 8
    -1 -3 -3 -3 -1 -3 -3 -4 -3 4
    -1 -2 -3 -4 -1 -2 -3 -4 -3 2 4
    -1 2 0 -1 -3 1 1 -2 -1 -3 -2 5
    -1 -1 -2 -3 -1 0 -2 -3 -2 1 2 -1 5
    -2 -3 -3 -3 -2 -3 -3 -3 -1 0 0 -3 0 6
    -1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4 7
    1 -1 1 0 -1 0 0 0 -1 -2 -2 0 -1 -2 -1 4
    0 -1 0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1 1 5
    -3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1 1 -4 -3 -2 11
    -2 -2 -2 -3 -2 -1 -2 -3 2 -1 -1 -2 -1 3 -3 -2 -2 2 7
    0 -3 -3 -3 -1 -2 -2 -3 -3 3 1 -2 1 -1 -2 -2 0 -3 -1 4
"""


def blosum62(letters: str = AMINO_ACIDS) -> Float64[Tensor, "V V"]:
    """Return the BLOSUM62 similarity of amino acids in half bits (Henikoff and Henikoff, 1992).

    Args:
        letters: the amino acids in the order of the tokens, some or all of the 20, each once.

    Raises:
        ValueError: a letter that is not one of them, or that is given twice.

    Example:
        >>> blosum62("ILD")
        tensor([[ 4.,  2., -3.],
                [ 2.,  4., -4.],
                [-3., -4.,  6.]], dtype=torch.float64)
    """
    unknown = sorted(set(letters) - set(AMINO_ACIDS))
    require(not unknown, f"letters holds {unknown}, must be among {AMINO_ACIDS}")
    require(
        len(set(letters)) == len(letters) > 0,
        f"letters is {letters!r}, must hold each amino acid at most once",
    )
    rows = [list(map(float, line.split())) for line in _BLOSUM62.split("\n") if line.strip()]
    lower = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for i, row in enumerate(rows):
        lower[i, : i + 1] = torch.tensor(row, dtype=torch.float64)
    order = torch.tensor([AMINO_ACIDS.index(letter) for letter in letters])
    return (lower + lower.tril(-1).mT)[order][:, order]
