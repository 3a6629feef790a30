"""Drug-like molecules as SMILES: 1.58 million of MOSES.

    # rdkit; the data are in molsets
    pip install "ddlib[molecules]" && pip install --no-deps molsets
    python -m recipes.molecules masks --smoke  # two to three minutes on two cores
    python -m recipes.evaluate runs/smoke/molecules/masks --samples 64 --steps 32
    python -m recipes.molecules masks                                      # full size, one device

A symbol is a token of SMILES such as Cl or [nH]; with ``--smoke`` 20,000 molecules. Sequences have
different lengths and no end symbol: rows are packed, and each sample draws its length from those of
training. Variants: masks, gidd, uniform, clusters (of tokens with similar neighbours).
"""

from collections.abc import Mapping, Sequence

from recipes.config import Recipe
from recipes.console import command
from recipes.data import SymbolCorpus
from recipes.papers.symbols import FULL, SMOKE, Size, processes, run, setting


def recipes(size: Size = FULL) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name."""
    source = {"kind": "molecules", "tokens": "smiles"}
    smoke = size is SMOKE
    corpus = SymbolCorpus(
        source=source | ({"limit": 20_000} if smoke else {}), held_out=500 if smoke else 10_000
    )
    recipe = setting("molecules", corpus, 128 if smoke else 256, size, packed=True)
    return processes(
        recipe, {"clusters": ("tokens, clusters, the mask", {"kind": "hdlm", "clusters": 6})}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    run(recipes(), recipes(SMOKE), "python -m recipes.molecules", arguments)


if __name__ == "__main__":
    command(main)
