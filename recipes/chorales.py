"""Chorales of J. S. Bach: the soprano of 403 pieces, or all four voices, on a grid of sixteenths.

    pip install "ddlib[music]"  # the scores are in the package music21
    python -m recipes.chorales masks --smoke  # two to three minutes on two cores
    python -m recipes.evaluate runs/smoke/chorales/masks --samples 64 --steps 32
    python -m recipes.chorales pitch-classes                               # full size, one device

A symbol is the pitch that begins at a step, "hold" or "rest". Full size has four voices,
interleaved, in windows of 256 steps; with ``--smoke`` the soprano in windows of 64. Variants:
masks, gidd, uniform, pitch-classes (a tree in which the parent of a pitch is its pitch class).
"""

from collections.abc import Mapping, Sequence

from recipes.config import Recipe
from recipes.console import command
from recipes.data import SymbolCorpus
from recipes.domains.music.chorales import HIGHEST, LOWEST
from recipes.domains.music.pitches import HOLD, NAMES, REST, alphabet, pitch_classes_of
from recipes.papers.symbols import FULL, SMOKE, Size, processes, run, setting


def recipes(size: Size = FULL) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name."""
    voices, length = ("soprano", 64) if size is SMOKE else ("four", 1024)
    corpus = SymbolCorpus(source={"kind": "chorales", "voices": voices}, held_out=40)
    recipe = setting("chorales", corpus, length, size, packed=True)
    names = {"pitch class": [*NAMES, HOLD, REST]}
    tree = {
        "kind": "tree",
        "parents": [pitch_classes_of(alphabet(LOWEST, HIGHEST))],
        "names": names,
    }
    by_class = {"kind": "hierarchical", "hierarchy": tree, "schedule": "linear"}
    return processes(recipe, {"pitch-classes": ("pitches, pitch classes, the mask", by_class)})


def main(arguments: Sequence[str] | None = None) -> None:
    run(recipes(), recipes(SMOKE), "python -m recipes.chorales", arguments)


if __name__ == "__main__":
    command(main)
