"""Drawings of molecules, by rdkit."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from recipes.domains.molecules.metrics import molecule, rdkit

if TYPE_CHECKING:
    from PIL.Image import Image

LINE = 24
"""Characters of a line where the string of an invalid molecule is shown."""


def draw(
    smiles: Sequence[str],
    *,
    columns: int = 4,
    size: tuple[int, int] = (240, 180),
    captions: Sequence[str] = (),
) -> "Image":
    """Return one picture with all molecules side by side.

    The place of an invalid SMILES shows the string itself.

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
    from PIL import ImageDraw
    from rdkit import Chem
    from rdkit.Chem import Draw

    if not smiles:
        raise ValueError("smiles is empty: must have at least one molecule")
    if columns < 1 or min(size) < 1:
        raise ValueError(f"columns={columns}, size={size}: must be at least 1")
    if captions and len(captions) != len(smiles):
        raise ValueError(
            f"captions has {len(captions)} entries, must have {len(smiles)}: one for each molecule"
        )
    parsed = [molecule(one) for one in smiles]
    columns = min(columns, len(smiles))
    whole = Draw.MolsToGridImage(
        [Chem.Mol() if one is None else one for one in parsed],
        molsPerRow=columns,
        subImgSize=size,
        legends=list(captions) or None,
        returnPNG=False,
    )
    pen = ImageDraw.Draw(whole)
    for number, one in enumerate(parsed):
        if one is None:  # rdkit leaves the place empty, the caption too
            place = (number % columns * size[0] + 8, number // columns * size[1] + 8)
            pen.multiline_text(
                place, "\n".join(["invalid:", *wrap(smiles[number], LINE)]), fill="#a11236"
            )
    return whole
