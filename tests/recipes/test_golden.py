"""Losses of short runs, kept in a file: a change that moves them is seen and must be meant.

python tests/recipes/test_golden.py     # writes the file anew
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from training_runs import losses
from zoo.runs import recipe_in, text

from ddlib.hierarchies import random_parents, save_clusters
from ddlib.hierarchies.clusters import Clusters
from recipes.data import open_prepared
from recipes.engine import train

GOLDEN = Path(__file__).with_name("golden_losses.json")
RUNS = {
    "mdlm": dict(process=dict(kind="mdlm")),
    "gidd": dict(process=dict(kind="gidd", p_uniform=0.1)),
    "hdlm": dict(process=dict(kind="hdlm", clusters=6)),
    "hdlm, xi": dict(process=dict(kind="hdlm", clusters=6, xi=0.9, gamma=2.0)),
    "hdlm, hard, auxiliary": dict(
        process=dict(kind="hdlm", clusters=6), loss=dict(kind="auxiliary", mode="hard")
    ),
    "gidd, dynamic": dict(process=dict(kind="gidd", p_uniform=0.1), loss=dict(weighting="dynamic")),
    "hdlm-levels, edges": dict(
        process=dict(kind="hdlm_levels", clusters=[24, 4], speed=[2.0, 1.0, 1.0]),
        model=dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, pad_to=1, head="children"),
        loss=dict(mode="edges", weighting="optimal"),
    ),
    "hdlm-levels": dict(
        process=dict(kind="hdlm_levels", clusters=[24, 4], xi=[0.9, 1.0], speed=[2.0, 1.0, 1.0])
    ),
}


def fixed_clusters(data, counts):
    """Clusters where the run would look for its own: those come from matrices that processors
    multiply otherwise.
    """
    words = open_prepared(data)
    parents = random_parents(words.vocab_size, counts)
    none = tuple(torch.zeros(count) for count in counts)
    made = Clusters(
        tuple(parents),
        tuple(torch.zeros(count, 1) for count in counts),
        none,
        (0.0,) * len(counts),
        (0,) * len(counts),
        "cosine",
        "none",
        words.fingerprint,
    )
    save_clusters(data / "clusters-{}".format("-".join(map(str, counts))), made)


def run(folder, name):
    torch.set_num_threads(1)
    data = text(folder / "data")
    for counts in ([6], [24, 4]):
        fixed_clusters(data, counts)
    tiny = recipe_in(folder, name.replace(", ", "-"), steps=10, **RUNS[name])
    train(tiny)
    return losses(tiny.output.folder)


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_as_they_were(folder, name):
    # not bit by bit: other processors multiply in another order
    assert run(folder, name) == pytest.approx(json.loads(GOLDEN.read_text())[name], rel=1e-4)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = {name: run(Path(place), name) for name in RUNS}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
