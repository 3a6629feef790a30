"""Graphs: communities of 12 to 20 nodes, and drug-like molecules of MOSES as atoms and bonds.

    pip install "ddlib[graphs]"
    python -m recipes.graphs communities --smoke  # one to two minutes on two cores
    python -m recipes.generate runs/smoke/graphs/communities --samples 24 --out graphs.png
    python -m recipes.evaluate runs/smoke/graphs/communities --samples 128 --steps 128
    # molecules; the data are in molsets
    pip install "ddlib[molecules]" && pip install --no-deps molsets
    python -m recipes.graphs molecules --smoke    # 16,000 of at most 27 atoms, two minutes
    python -m recipes.graphs molecules                                     # full size, one device

A sequence is the number of nodes, which is given, then the nodes and the pairs of nodes, each with
its own alphabet and its own noise. The network is a graph transformer: a permutation of the nodes
changes no bound. Variants: communities, molecules, and each with uniform noise of the edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from recipes.config import Recipe
from recipes.console import command
from recipes.data import SymbolCorpus
from recipes.domains.graphs.molecules import MOST
from recipes.papers.symbols import FULL, SMOKE, Size, Values, run, setting


def recipes(size: Size = FULL) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name."""
    smoke = size is SMOKE
    communities = SymbolCorpus(
        source={"kind": "communities", "count": 2128 if smoke else 20_256},
        held_out=128 if smoke else 256,
    )
    limit = {"limit": 16_500} if smoke else {}
    molecules = SymbolCorpus(
        source={"kind": "molecule_graphs", **limit}, held_out=500 if smoke else 10_000
    )
    data = {
        "communities": ("graphs of two communities", communities, 20),
        "molecules": ("molecules as atoms and bonds", molecules, MOST),
    }
    uniform = {"by_field": {"edge": {"kind": "uniform", "schedule": "linear"}}}
    result = {}
    for name, (text, corpus, slots) in data.items():
        for variant, noise in (("", {}), ("-uniform", uniform)):
            words = f"{text}, uniform noise of the edges" if noise else text
            result[name + variant] = (
                words,
                _recipe(name, name + variant, corpus, slots, size, noise),
            )
    return result


def _recipe(
    data: str, name: str, corpus: SymbolCorpus, slots: int, size: Size, noise: Values
) -> Recipe:
    recipe = setting(f"graphs/{data}", corpus, 1 + slots * (slots + 1) // 2, size)
    smoke = size is SMOKE
    network = {
        "kind": "graph_transformer",
        "dim": size.dim if smoke else 256,
        "pair_dim": 32 if smoke else 64,
        "depth": size.depth if smoke else 8,
        "heads": size.heads if smoke else 8,
        "cond_dim": 64 if smoke else 128,
    }
    return replace(
        recipe,
        process={"kind": "product", **noise},
        model=network,
        output=replace(recipe.output, folder=recipe.output.folder.with_name(name)),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    run(recipes(), recipes(SMOKE), "python -m recipes.graphs", arguments)


if __name__ == "__main__":
    command(main)
