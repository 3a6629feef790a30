"""Drawings of molecules, by rdkit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recipes.metrics.molecules import molecule, rdkit

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST = 40
"""Characters of an invalid SMILES below its empty place."""


def draw(
    smiles: Sequence[str], *, columns: int = 4, size: tuple[int, int] = (240, 180), captions: Sequence[str] = ()
) -> "Image":
    """Return one picture with all molecules side by side; the place of an invalid SMILES shows the string itself.

    Args:
        smiles: the molecules.
        columns: molecules in a row.
        size: width and height of the place of a molecule in pixels.
        captions: text below each molecule; by default none for valid ones.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: no molecules, fewer than one column, a size below 1, a wrong number of captions.
    """
    rdkit()
    from rdkit import Chem
    from rdkit.Chem import Draw

    if not smiles:
        raise ValueError("smiles is empty: must have at least one molecule")
    if columns < 1 or min(size) < 1:
        raise ValueError(f"columns={columns}, size={size}: must be at least 1")
    if captions and len(captions) != len(smiles):
        raise ValueError(f"captions has {len(captions)} entries, must have {len(smiles)}: one for each molecule")
    found = [molecule(one) for one in smiles]
    below = [
        caption if one is not None else f"invalid: {text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"
        for one, text, caption in zip(found, smiles, captions or [""] * len(smiles), strict=True)
    ]
    return Draw.MolsToGridImage(
        [Chem.Mol() if one is None else one for one in found],
        molsPerRow=min(columns, len(smiles)),
        subImgSize=size,
        legends=below,
        returnPNG=False,
    )
