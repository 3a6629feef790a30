"""Hierarchies of one's own symbols: from a similarity, from neighbours in sequences and pictures,
with names.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import ddlib as dd
from ddlib.hierarchies import blosum62, load_clusters
from ddlib.hierarchies.similarities import AMINO_ACIDS
from recipes import clusters, train
from recipes.data import prepare_ids
from recipes.embeddings.naming import cluster_names
from recipes.embeddings.neighbours import stream, symbol_cooccurrences
from recipes.embeddings.similarity import read_similarity, similarity_vectors
from recipes.generate import main as generate
from recipes.model_io import open_saved

GROUPS = ["KR", "DE", "ILMV", "FWY"]


@pytest.fixture(scope="module")
def proteins(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 20, rng.integers(5, 12)) for _ in range(60)]
    return prepare_ids(
        rows, 9, 20, tmp_path_factory.mktemp("proteins") / "data", symbols=AMINO_ACIDS, ends=True
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of 6 x 6 whose neighbours differ by one level of grey at most, in both
    directions.
    """
    rng = np.random.default_rng(0)
    ramp = rng.integers(0, 3, (80, 1, 1)) + np.arange(6)[:, None] // 2 + np.arange(6) // 2
    return prepare_ids(
        ramp, 9, 7, tmp_path_factory.mktemp("ramps") / "data", values=range(0, 252, 36)
    )


def written(folder, name, *lines):
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


def test_inner_products_of_the_vectors_are_the_similarity():
    matrix = np.array([[4.0, 1.0, -1.0], [1.0, 3.0, 0.5], [-1.0, 0.5, 2.0]])
    rows, left_out = similarity_vectors(matrix)
    torch.testing.assert_close(rows @ rows.T, torch.from_numpy(matrix).float())
    assert left_out < 1e-12
    assert similarity_vectors(np.array([[0.0, 1.0], [1.0, 0.0]]))[1] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no positive eigenvalue; of a distance take the negative"):
        similarity_vectors(-np.eye(3))


def test_amino_acids_of_like_chemistry_fall_together(tmp_path, proteins, capsys):
    data = ["--data", str(proteins.folder), "--out", str(tmp_path)]
    found = clusters.main(["--similarity", "blosum62", "--clusters", "8", "2", *data])
    own = found.of_tokens(0)
    for group in GROUPS:
        places = torch.tensor([AMINO_ACIDS.index(letter) for letter in group])
        assert len(own[places].unique()) == 1, group
    assert torch.nonzero(own == own[20]).flatten().tolist() == [20, 21]  # end and padding
    shown = capsys.readouterr().out
    assert "20 symbols in 19 dimensions" in shown and "--data.length 12" in shown
    assert load_clusters(tmp_path / "clusters", proteins.fingerprint).tree().levels == (22, 8, 2, 1)
    assert "[PAD]" in (tmp_path / "clusters.md").read_text()


def test_a_file_and_a_name_give_the_same_in_any_order_of_symbols(tmp_path, proteins):
    letters = AMINO_ACIDS[::-1]
    rows = blosum62(letters).tolist()
    vocabulary = proteins.tokenizer.get_vocab()
    special = [proteins.pad_id, proteins.eos_id]
    want = read_similarity("blosum62").of(vocabulary, special)
    table = [
        ",".join(["", *letters]),
        *(",".join([name, *map(str, row)]) for name, row in zip(letters, rows, strict=True)),
    ]
    bare = ["\t".join(letters), *("\t".join(map(str, row)) for row in rows)]
    np.save(tmp_path / "x.npy", blosum62().numpy())
    for source in (
        written(tmp_path, "x.csv", *table),
        written(tmp_path, "x.tsv", *bare),
        str(tmp_path / "x.npy"),
    ):
        np.testing.assert_array_equal(read_similarity(source).of(vocabulary, special), want)
    assert np.isnan(want[20:]).all() and not np.isnan(want[:20, :20]).any()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["A,R", "1,2", "3,1"],
            r"that of 'A' and 'R' is 2 and 3 in the other order, must be symmetric",
        ),
        (["A,R", "1,nan", "nan,1"], r"that of 'A' and 'R' is nan, must be a finite number"),
        (["A,R", "1,x", "x,1"], r"row 1, 'R' is 'x', must be a number"),
        (["A,R", "1,2"], r"has shape \(1, 2\), must be square"),
        (["A,R", "1,2,3", "2,1,3"], r"row 1 has 3 entries, the first 2"),
        ([",A,R", "A,1,2", "N,2,1"], r"row 2 is of 'N', must be of 'R' as the column"),
        (["A,A", "1,2", "2,1"], r"the symbol 'A' occurs twice"),
        (
            ["A,R", "1,2", "2,1"],
            r"has 2 symbols, but not 18 of the vocabulary's 20: 'N', 'D', 'C', 'Q', 'E'",
        ),
    ],
)
def test_a_matrix_that_is_none_or_does_not_fit_is_refused_by_the_place(
    lines, message, tmp_path, proteins
):
    source = written(tmp_path, "x.csv", *lines)
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        clusters.main(["--similarity", source, "--data", str(proteins.folder), "--out", str(out)])
    assert not out.exists()


def test_other_bad_similarities_are_refused(tmp_path, proteins):
    np.save(tmp_path / "x.npy", np.eye(7))
    data = ["--data", str(proteins.folder)]
    for given, message in (
        (
            [str(tmp_path / "x.npy"), *data],
            "has 7 rows, the vocabulary 22 symbols, or 20 without end",
        ),
        ([str(tmp_path / "x.npy")], "contains no names of symbols: give --data or --tokenizer"),
        ([str(tmp_path / "none.csv"), *data], "there is no such file"),
        (["pam250", *data], "must be blosum62, .csv, .tsv, .npy"),
    ):
        with pytest.raises(SystemExit, match=message):
            clusters.main(["--similarity", *given, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        clusters.main(["--similarity", "blosum62", "--vectors", "glove.txt"])


def test_a_matrix_with_symbols_needs_no_data(tmp_path):
    found = clusters.main(["--similarity", "blosum62", "--clusters", "5", "--out", str(tmp_path)])
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert list(vocabulary) == list(AMINO_ACIDS) and len(found.parents[0]) == 20


def test_neighbours_are_those_of_a_sequence_and_of_a_shape(tmp_path, pictures):
    rows = [np.array([0, 1]), np.array([2, 1, 2]), np.array([0]), np.array([1, 1])]
    data = prepare_ids([*rows, *rows[:2]], 2, 3, tmp_path / "rows")
    near = symbol_cooccurrences(data, 1).toarray()
    np.testing.assert_array_equal(
        near, [[0, 1, 0], [1, 2, 2], [0, 2, 0]]
    )  # no pair of two sequences
    assert (
        symbol_cooccurrences(data, 2).toarray()[2, 2] == 1
    )  # two apart, in both directions, with half the weight
    whole = symbol_cooccurrences(pictures, 1)
    values = stream(pictures).numpy().reshape(-1, 6, 6)
    want = np.zeros((7, 7))
    for one, other in ((values[:, 1:], values[:, :-1]), (values[:, :, 1:], values[:, :, :-1])):
        np.add.at(want, (one, other), 1)
        np.add.at(want, (other, one), 1)
    np.testing.assert_array_equal(whole.toarray(), want)
    with pytest.raises(ValueError, match="no sequence has two symbols"):
        symbol_cooccurrences(prepare_ids(np.zeros((4, 1), dtype=int), 2, 3, tmp_path / "single"), 4)


def test_levels_of_grey_next_to_each_other_fall_together_from_pictures_alone(
    tmp_path, pictures, capsys
):
    data = ["--data", str(pictures.folder), "--out", str(tmp_path / "out")]
    found = clusters.main(["--clusters", "3", "--max-ratio", "2", *data])
    groups = [torch.nonzero(found.parents[0] == index).flatten() for index in range(3)]
    assert all(int(group.max() - group.min()) <= 3 for group in groups), groups
    assert "--data.length 36 --process.clusters" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["table", "literal"])
def test_names_of_a_csv_file_and_of_a_recipe_are_shown(
    kind, tmp_path, proteins, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    group = {letter: n % 4 for n, letter in enumerate(AMINO_ACIDS)} | {"[EOS]": 0, "[PAD]": 0}
    names = ["acidic", "basic", "polar", "rest"]
    coarse = ["charged", "other"]
    lines = [f"{token},{names[n]},{coarse[n // 2]}" for token, n in group.items()]
    tree = {
        "parents": [
            [group[token] for token in sorted(group, key=proteins.tokenizer.get_vocab().get)],
            [0, 0, 1, 1],
        ],
        "names": {"chemistry": names, "charge": coarse},
    }
    if kind == "table":
        tree = {"clusters": written(tmp_path, "acids.csv", "token,chemistry,charge", *lines)}
    recipe = {
        "data": {"folder": str(proteins.folder), "length": 12},
        "process": {
            "kind": "hierarchical",
            "schedule": "linear",
            "hierarchy": {"kind": "tree", **tree},
        },
        "model": {"kind": "dit", "dim": 16, "depth": 1, "heads": 2, "cond_dim": 8},
        "optimizer": {"lr": 0.01, "warmup": 1, "ema": 0},
        "output": {
            "folder": "run",
            "validate_sequences": 4,
            "sample_steps": 12,
            "samples": 1,
            "tensorboard": False,
        },
        "batch": 4,
        "steps": 2,
        "hardware": {"threads": 1},
    }
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    train.main(["recipe.yaml"])
    shown = Path("run", "samples", "step_00000002.txt").read_text()
    assert (
        "‹charged›" in shown
        and any(f"‹{one}›" in shown for one in names)
        and not re.search(r"‹c\d", shown)
    )
    saved = open_saved("run")
    assert saved.process.hierarchy.names.levels == ("chemistry", "charge")
    assert cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer) == [
        *names,
        *coarse,
    ]
    generate(["run", "--samples", "1", "--steps", "12", "--trajectory", "--html", "page.html"])
    assert "‹other›" in capsys.readouterr().out
    page = Path("page.html").read_text(encoding="utf-8")
    assert "acidic" in page and "chemistry" in page
    if kind == "literal":
        return
    again = load_clusters(
        next(proteins.folder.glob("clusters-named-*.json")).with_suffix(""), proteins.fingerprint
    )
    assert (
        again.names.members == (tuple(names), tuple(coarse)) and again.tree().names == again.names
    )
    assert dd.values(again.tree())["names"] == {"chemistry": names, "charge": coarse}
