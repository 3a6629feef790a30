"""Draw the figures of the documentation into docs/images: ``python docs/figures.py``."""

from pathlib import Path

import ddlib as dd
from ddlib import plot
from ddlib.plot import inspection as show

IMAGES = Path(__file__).parent / "images"
GAMMAS = (1, 2, 3)
WORDS = (
    "cat",
    "dog",
    "horse",
    "sparrow",
    "eagle",
    "oak",
    "pine",
    "tulip",
    "rose",
    "car",
    "bus",
    "ship",
)
CLUSTERS = ("pet", "farm", "bird", "tree", "flower", "road", "sea")
KINDS = ("animal", "plant", "vehicle")
PARENTS = ([0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6], [0, 0, 0, 1, 1, 2, 2])
NAMES = ("token", "cluster", "kind", "mask")


def small_tree() -> dd.processes.Hierarchical:
    """Process with twelve tokens, seven clusters and three kinds.

    Xi = 0.9 allows jumps to other clusters.
    """
    tree = dd.hierarchies.Tree(list(PARENTS), xi=[0.9, 1.0], speed=[2.0, 1.5, 1.0])
    return dd.processes.Hierarchical(tree, dd.schedules.Linear())


def curves(path: Path) -> None:
    """Draw the two figures of the HDLM paper: occupancies and loss weights per level for gamma = 1,
    2, 3.
    """
    figure, axes = plot.panels(2, len(GAMMAS), size=(4.0, 3.0))
    for column, gamma in enumerate(GAMMAS):
        process = dd.presets.hdlm([0, 0, 1, 1], gamma=gamma)
        upper, lower = (
            plot.occupancies(process, axes[column]),
            plot.weights(process, axes[column + len(GAMMAS)], top=20),
        )
        upper.set_title(f"gamma = {gamma}: probabilities", loc="left", fontweight="bold")
        lower.set_title(f"gamma = {gamma}: loss weights", loc="left", fontweight="bold")
    figure.savefig(path)


def trajectory(path: Path) -> None:
    process = small_tree()
    times, states = show.example(process, 48, steps=200)
    plot.trajectory(
        process, times, states, plot.panels(size=(8.0, 4.0))[1][0], names=NAMES
    ).figure.savefig(path)


def small_hierarchy(path: Path) -> None:
    members = [WORDS, CLUSTERS, KINDS]
    plot.hierarchy(small_tree().hierarchy, names=NAMES, members=members).figure.savefig(path)


def large_hierarchy(path: Path) -> None:
    tree = dd.hierarchies.Tree(dd.hierarchies.random_parents(50257, [512, 64]))
    plot.hierarchy(tree, most=24).figure.savefig(path)


FIGURES = {
    "gamma.png": curves,
    "trajectory.png": trajectory,
    "hierarchy.png": small_hierarchy,
    "hierarchy_large.png": large_hierarchy,
}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        draw(IMAGES / name)
        print(IMAGES.name, name, sep="/")
