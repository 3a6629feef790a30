"""Clusters of a recipe from a CSV file, as Python reads it, and what ends a run that names no
clusters.
"""

import csv

import pytest
import torch
from zoo.runs import recipe_in, text

from ddlib.hierarchies import csv_parents
from recipes.data import open_prepared
from recipes.engine import train
from recipes.model_io import open_saved


def tabled(tmp_path, clusters):
    noise = dict(
        kind="hierarchical",
        hierarchy=dict(kind="tree", clusters=str(clusters), xi=0.9),
        schedule="linear",
    )
    return recipe_in(tmp_path, process=noise, steps=2)


@pytest.fixture
def table(tmp_path):
    """Every token in one of five groups, and these in two."""
    path = tmp_path / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        for token, index in open_prepared(text(tmp_path / "data")).tokenizer.get_vocab().items():
            rows.writerow([token, f"group{index % 5}", f"half{index % 5 % 2}"])
    return path


def test_a_csv_file_is_read_as_python_reads_it(tmp_path, table, capsys):
    vocabulary = open_prepared(text(tmp_path / "data")).tokenizer.get_vocab()
    train(tabled(tmp_path, table))
    tree = open_saved(tmp_path / "run" / "weights").process.hierarchy
    want, _ = csv_parents(table, vocabulary)
    assert [edge.parents.tolist() for edge in tree.maps[:-1]] == [level.tolist() for level in want]
    assert tree.levels == (len(vocabulary), 5, 2, 1)


def test_a_csv_file_without_a_token_and_a_path_without_files_are_refused(tmp_path, table):
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join(lines[1:]), encoding="utf-8")
    with pytest.raises(ValueError, match="table lacks 1 tokens of vocabulary"):
        train(tabled(tmp_path, table))
    with pytest.raises(
        FileNotFoundError, match=r"clusters is '.*nowhere', must be the path of .*nowhere\.json"
    ):
        train(tabled(tmp_path, tmp_path / "nowhere"))


def test_given_clusters_have_the_centroids_of_their_words():
    from recipes.embeddings.grouping import complete_clusters

    vectors = torch.nn.functional.normalize(
        torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1
    )
    parents = [torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 1])]
    found = complete_clusters(vectors, parents, "f" * 64)
    for level, words in enumerate(([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1])):
        for cluster in set(words):
            mine = vectors[torch.tensor(words) == cluster]
            mean = mine.mean(0)
            assert torch.allclose(found.centroids[level][cluster], mean / mean.norm(), atol=1e-6)
            assert float(found.coherence[level][cluster]) == pytest.approx(
                float((mine @ mean / mean.norm()).mean())
            )
    assert found.tree().levels == (6, 3, 2, 1)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path):
    from recipes.embeddings.grouping import clusters_there

    message = r"clusters='none.csv': there is no such file; python -m recipes.clusters"
    with pytest.raises(FileNotFoundError, match=message):
        clusters_there("none.csv", None)
