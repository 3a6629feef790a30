"""The clusters recipe: from the text, from word vectors, from a model, to files that load."""

import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

from ddlib.hierarchies import load_clusters
from ddlib.hierarchies.clusters import Clusters
from ddlib.vocabulary import fingerprint
from recipes import clusters
from recipes.data import text

SMALL = ["--first-year", "2010", "--vocab-size", "400", "--dim", "8", "--restarts", "1"]


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer(text.join(text.load_speeches(2010)), 400)


@pytest.fixture
def run(tmp_path):
    return lambda *arguments: clusters.main(
        [*SMALL, "--out", str(tmp_path / "out"), *map(str, arguments)]
    )


def test_the_recipe_writes_a_report_a_plot_and_files_that_load(run, tmp_path, tokenizer, capsys):
    found = run("--clusters", 20, 4, "--nested", "down", "--max-ratio", 3)
    out = tmp_path / "out"
    mark = fingerprint(tokenizer.get_vocab())
    loaded = load_clusters(out / "clusters", mark)
    assert all(torch.equal(a, b) for a, b in zip(found.parents, loaded.parents, strict=True))
    assert loaded.tree().levels == (400, 20, 4, 1)
    assert (out / "clusters.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "clusters.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in report if line.startswith("| ") and line.split()[1].isdigit()]
    assert len(rows) == 24 and sum(int(row.split("|")[2]) for row in rows[:20]) == 400
    assert json.loads((out / "clusters.json").read_text())["tokenizer"] == mark
    shown = capsys.readouterr().out
    assert "20 clusters, up" in shown and "20 clusters, down" in shown and "4 at random" in shown


def test_vectors_of_words_go_to_tokens_by_their_spelling(run, tmp_path, tokenizer):
    rng = np.random.default_rng(0)
    names = {tokenizer.decode([token]).strip().lower() for token in range(400)} - {""}
    words = sorted(name for name in names if " " not in name and name.isalpha())[:60]
    lines = [" ".join([word, *(f"{x:.3f}" for x in rng.normal(size=5))]) for word in words]
    file = tmp_path / "glove.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = run("--clusters", 8, "--vectors", file, "--max-ratio", "8")
    assert found.centroids[0].shape == (8, 5)


def test_vectors_of_a_model_need_its_tokenizer(run, tmp_path, tokenizer):
    rows = torch.randn(405, 6, generator=torch.Generator().manual_seed(0))
    save_file({"embedding.weight": rows}, tmp_path / "model.safetensors")
    with pytest.raises(SystemExit, match=r"has no tokenizer beside it: give --tokenizer"):
        run("--clusters", 10, "--vectors", tmp_path)
    (tmp_path / "given").mkdir()
    given = tmp_path / "given" / "tokenizer.json"
    tokenizer.save(str(given))
    first = run("--clusters", 10, "--vectors", tmp_path, "--tokenizer", given)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    second = run("--clusters", 10, "--vectors", tmp_path)
    assert torch.equal(first.parents[0], second.parents[0])
    assert first.source == second.source == Clusters.source_of(rows[:400])


def test_no_name_in_the_plot_covers_another_one_or_leaves_the_frame():
    figure = Figure(figsize=(4, 3))
    axes = figure.add_subplot()
    points = np.random.default_rng(0).random((60, 2))
    axes.scatter(*points.T, label="points")
    lines = [axes.axvline(0.5), axes.axhline(0.3)]
    axes.legend()
    names = [f"$name_{i}$" for i in range(60)]
    clusters.place_names(axes, points, names, range(59, -1, -1))
    boxes = [text.get_window_extent().padded(1) for text in axes.texts]
    assert axes.texts[0].get_text() == r"\$name_59\$" and 10 < len(boxes) < 60
    frame = axes.get_window_extent()
    legend = axes.get_legend().get_window_extent()
    for i, box in enumerate(boxes):
        assert not box.count_overlaps([*boxes[:i], legend])
        assert not box.count_overlaps([line.get_window_extent() for line in lines])
        assert frame.contains(*box.min) and frame.contains(*box.max)


def test_names_are_printable(tokenizer):
    words = clusters.Words(tokenizer, torch.zeros(400, 1), torch.zeros(400, dtype=torch.int64))
    vocabulary = tokenizer.get_vocab()
    assert words.name(vocabulary["Ċ"]) == "¶" and words.name(vocabulary["Ā"]) == r"\x00"
    assert all(words.name(token).isprintable() for token in range(400))
