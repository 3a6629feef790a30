"""Sequences of symbols that are not text: sources, the folder, the command, and runs on it."""

import gzip
import json
import random
import shlex
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from refusals import refused_with, refuses
from zoo.runs import ALONE

import ddlib as dd
from recipes import evaluate, generate, owt
from recipes import prepare as command
from recipes.config import Data, Hardware, Optimizer, Output, Recipe, read_recipe, recipe_yaml
from recipes.console import make_console
from recipes.data import (
    Corpus,
    Layout,
    Sequences,
    SymbolCorpus,
    corpus_of,
    examples,
    open_prepared,
    prepare,
    prepare_ids,
)
from recipes.data.lengths import check_lengths
from recipes.data.names import named_tokenizer
from recipes.data.sequences import Ragged
from recipes.data.sources.array import Array
from recipes.data.sources.lines import Lines
from recipes.domains.pictures.images import Images
from recipes.domains.proteins.fasta import Fasta
from recipes.engine import train
from recipes.model_io import open_saved

pytestmark = pytest.mark.usefixtures("here")
MOLECULES = ["CCO", "c1ccccc1", "CC(=O)O", "CCl", "CBr", "C[nH]C", "CC(C)O", "OCC"]


def pictures(count=40, seed=0):
    """Pictures of 12 x 12 with 16 values: a ramp in a random direction, and noise."""
    draws = np.random.default_rng(seed)
    down, right = np.mgrid[:12, :12] / 11
    slopes = draws.random((count, 1, 1))
    ramps = 15 * (slopes * down + (1 - slopes) * right)
    return np.clip(ramps + draws.integers(0, 2, (count, 12, 12)), 0, 15).astype(int)


def molecules():
    """Lines of different lengths, by a fixed draw."""
    Path("molecules.txt").write_text(
        "\n".join(random.Random(0).choices(MOLECULES, k=80)) + "\n", encoding="utf-8"
    )


def smiles():
    molecules()
    return {
        "kind": "recipes.data.sources.lines:Lines",
        "files": "molecules.txt",
        "tokens": "smiles",
    }


def lists(sequences: Sequences):
    return [one.tolist() for one in sequences.ragged]


# sources


def test_arrays_of_any_shape_are_sequences_of_a_shape():
    np.save("codes.npy", pictures())
    found = Array("codes.npy").load()
    assert (found.shape, len(found), found.separator) == ((12, 12), 40, " ")
    assert found.symbols == tuple(map(str, range(16))), "the vocabulary is found"
    assert len(Array("codes.npy", vocab=20).load().symbols) == 20
    np.save("rows.npy", pictures().reshape(40, -1))
    assert Array("rows.npy").load().shape == () and Array(
        "rows.npy", shape=[12, 12]
    ).load().shape == (12, 12)
    np.savez("both.npz", x=pictures(), y=np.arange(40) % 3)
    labelled = Array("both.npz", labels="y").load()
    assert labelled.classes == ("0", "1", "2") and labelled.labels.tolist() == [
        n % 3 for n in range(40)
    ]


def test_columns_of_ints_and_lists_of_ints():
    rows = [[1, 2, 3], [4], [0, 0, 5, 1]]
    pq.write_table(
        pa.table({"ids": rows, "kind": ["b", "a", "b"], "one": [7, 8, 9]}), "ids.parquet"
    )
    found = Array("ids.parquet", column="ids", labels="kind").load()
    assert (
        lists(found) == rows and found.classes == ("a", "b") and found.labels.tolist() == [1, 0, 1]
    )
    assert lists(Array("ids.parquet", column="one").load()) == [[7], [8], [9]]
    pq.write_table(pa.table({"ids": [[[1, 2], [3, 4]], [[5, 6], [7, 0]]]}), "square.parquet")
    found = Array("square.parquet").load()
    assert found.shape == (2, 2) and lists(found) == [[1, 2, 3, 4], [5, 6, 7, 0]]


def test_lines_of_characters_and_of_a_rule():
    with gzip.open("some.txt.gz", "wt", encoding="utf-8") as file:
        file.write("ACGT\n\nGA\n")
    found = Lines("some.txt.gz").load()
    assert found.symbols == ("A", "C", "G", "T") and lists(found) == [[0, 1, 2, 3], [], [2, 0]]
    molecules()
    found = Lines("molecules.txt", tokens="smiles").load()
    assert {"Cl", "Br", "[nH]", "c", "("} <= set(found.symbols)
    assert ["".join(found.symbols[i] for i in row) for row in lists(found)] == Path(
        "molecules.txt"
    ).read_text().split()
    Path("words.txt").write_text("a b\nb c a\n")
    found = Lines("words.txt", tokens="words").load()
    assert (found.symbols, found.separator, lists(found)) == (
        ("a", "b", "c"),
        " ",
        [[0, 1], [1, 2, 0]],
    )
    Path("table.csv").write_text("SMILES,good\nCCO,yes\nCO,no\n")
    found = Lines("table.csv", column="SMILES", labels="good").load()
    assert found.classes == ("no", "yes") and lists(found) == [[0, 0, 1], [0, 1]]
    Path("table.csv").write_text(
        'SMILES,good\n"C\nC",yes\n', encoding="utf-8-sig"
    )  # with a byte order mark
    found = Lines("table.csv", column="SMILES", labels="good").load()
    assert found.symbols == ("\n", "C") and lists(found) == [[1, 0, 1]]


def pairs(line):
    """A tokenizer rule from outside: two characters each."""
    return [line[at : at + 2] for at in range(0, len(line), 2)]


def test_a_tokenizer_rule_from_outside():
    Path("some.txt").write_text("abcd\ncdab\n")
    values = {
        "kind": "recipes.data.sources:Lines",
        "files": "some.txt",
        "tokenizer": f"{__name__}:pairs",
    }
    source = dd.build("sources", values)
    assert source.load().symbols == ("ab", "cd") and lists(source.load()) == [[0, 1], [1, 0]]


def test_fasta_counts_unknown_letters():
    Path("some.fasta").write_text(">one [kind=a]\nACDEF\nGH\n>two [kind=b]\nWYX\n")
    found = Fasta("some.fasta", unknown=0.1, labels=r"kind=(\w)").load()
    assert ["".join(found.symbols[i] for i in row) for row in lists(found)] == ["ACDEFGH", "WYX"]
    assert found.symbols[-1] == "X" and found.classes == ("a", "b") and found.notes == ()
    Path("lower.fasta").write_text(">one\nACGTacgtZ\n")
    found = Fasta("lower.fasta", alphabet="dna", unknown=0.6).load()
    assert "".join(found.symbols[i] for i in lists(found)[0]) == "ACGTACGTN"
    assert found.notes == (
        "4 letters in lower case, read as capitals",
        "1 unknown letters became N: 'Z'",
    )
    message = r"5 letters are in lower case or no letters of dna \(55.56%, at most unknown=0.01"
    with pytest.raises(ValueError, match=message):
        Fasta("lower.fasta", alphabet="dna").load()


def test_pictures_are_quantised_by_name(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate("aabb"):
        (tmp_path / "folder" / name).mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((4, 6), 80 * number, dtype=np.uint8)).save(
            f"folder/{name}/{number}.png"
        )
    found = Images("folder", levels=4, labels="folder").load()
    assert (found.shape, found.values, found.symbols) == (
        (4, 6),
        (0, 85, 170, 255),
        ("0", "85", "170", "255"),
    )
    assert [row[0] for row in lists(found)] == [0, 1, 2, 3] and found.labels.tolist() == [
        0,
        0,
        1,
        1,
    ]
    coloured = Images("folder", colour=True).load()
    assert coloured.shape == (4, 6, 3) and len(coloured.symbols) == 256
    assert Images("folder", size=[2, 2]).load().shape == (2, 2)
    np.save("grey.npy", np.arange(2 * 3 * 3).reshape(2, 3, 3))
    assert lists(Images("grey.npy").load())[1] == list(range(9, 18))
    row = {"bytes": Path("folder/a/0.png").read_bytes(), "path": None}
    pq.write_table(pa.table({"image": [row], "label": [7]}), "some.parquet")
    assert Images("some.parquet", labels="label").load().classes == ("7",)
    image.fromarray(np.zeros((5, 6), dtype=np.uint8)).save("folder/c.png")
    with pytest.raises(
        ValueError, match=r"c\.png: is of another size than the first picture, 5 x 6 and 4 x 6"
    ):
        Images("folder").load()
    image.fromarray(np.full((4, 6), 4096, dtype=np.uint16)).save("deep.png")
    with pytest.raises(
        ValueError, match=r"deep\.png: has values of more than 8 bits, of Pillow's mode I;16; scale"
    ):
        Images("deep.png").load()


# bad input


def saved(array, **options):
    np.save("a.npy", array)
    return Array("a.npy", **options)


def columns(**values):
    pq.write_table(pa.table(values), "a.parquet")
    return "a.parquet"


def written(name, text):
    Path(name).write_text(text)
    return name


PAIRS = np.ones((2, 2), int)

test_bad_input_is_named = refuses(r"""
    saved([[0, 1], [2, 300]], vocab=256).load()
        | ValueError | a\.npy: row 1 holds id 300 at position 1, must be below vocab=256
    saved([[0, 1], [-2, 0]]).load() | ValueError
        | a\.npy: row 1 holds id -2 at position 0, must not be negative
    saved(np.ones((2, 2))).load() | TypeError | a\.npy: holds float64, must hold ints
    saved(np.ones((2, 2), bool)).load() | TypeError | a\.npy: holds bool, must hold ints
    Array(columns(x=[[1, 2, 3, 4], [1, 2]]), shape=[2, 2]).load()
        | ValueError | shape=\[2, 2\]: row 1 of a\.parquet has 2 ids, every row must have 4
    Array(columns(x=[[1, 2], None])).load() | ValueError | a\.parquet: column x: row 1 is missing
    saved(np.arange(4)).load() | ValueError | a\.npy: has shape \(4,\), must have a row for each
    Array(columns(x=[[1], [2]], y=["a", None]), column="x", labels="y").load()
        | ValueError | labels='y': row 1 has no label, every row must have one
    saved(PAIRS, labels=written("y.txt", "1\n\n")).load() | ValueError
        | labels='y\.txt': row 1 has no label
    saved(PAIRS, labels=written("y.txt", "1\n")).load()
        | ValueError | labels='y\.txt': holds 1, must hold one for each of 2 sequences
    saved(PAIRS, labels="y").load() | FileNotFoundError
        | labels='y': neither a column nor a file; must be a column .* or a file with one label on
            each line
    saved(np.ones((0, 2), int)).load() | ValueError | a\.npy: has shape \(0, 2\), must hold an id
    (saved(np.ones((0, 2, 2), int)), Images("a.npy").load()) | ValueError
        | shape \(0, 2, 2\), must hold a picture
    (saved(np.ones((1, 2, 2)) / 2), Images("a.npy").load()) | TypeError
        | a\.npy: holds float64, must hold whole numbers of 0\.\.255: save
            x\.round\(\)\.astype\('uint8'\), or
    (saved(np.ones((1, 2, 2), int)), Images("a.npy", labels="folder").load()) | ValueError
        | labels='folder': takes the folder of each picture file, and a\.npy holds many .* or a file
            with one label
    Fasta(written("a.fa", ">a\nACGTACGTN\n>b\nCCGTARNACGTACGTNNACGTTAACG\n")).load() | ValueError
        | alphabet='protein', but the letters are those of dna: 'A' .*; read them with --alphabet
            dna
    Fasta(written("a.fa", ">a\nacgtacgtn\n")).load() | ValueError | letters are those of dna
    Fasta(written("a.fa", ">a\nACGUACGUN\n")).load() | ValueError | read them with --alphabet rna
    Lines(written("a.txt", "CCO\nC!O\n"), tokens="smiles").load()
        | ValueError | a\.txt, line 2: '!' is not a token of tokens='smiles': 'C!O'
    Lines(written("a.txt", "CCO\n"), tokens="smile").load() | ValueError
        | line 1: 'C' is not a token of tokens='smile' \(a regular expression, none of characters,
            .*smiles.*\): 'CCO'
    Fasta(written("a.fa", "ACGT\n>one\nACGT\n")).load()
        | ValueError | a\.fa, line 1: sequence before the first header
    Images(written("a.png", "no")).load() | ValueError | a\.png: cannot be read as a picture
    (saved(np.full((1, 2, 2), 256)), Images("a.npy").load())
        | ValueError | a\.npy: row 0 holds values 256 to 256, must lie in 0\.\.255
    prepare_ids(np.ones((20, 2), int), 0.1, 2, "out") | ValueError
        | validation: has shape \(\), must have a row for each .*; a number of held-out sequences is
            an int
    prepare_ids(np.ones((4, 2), int), 2, 2, "out", labels=(np.arange(2), np.arange(2)))
        | ValueError | labels: must be one for each sequence, not a pair
    prepare_ids([[0, 1], [4]], 1, 4, "out") | ValueError
        | train: row 1 holds id 4 at position 0, must be below vocab=4
    prepare_ids([[0, 1], [0.5]], 1, 4, "out") | TypeError
        | train: row 1: holds float64, must hold ints
    prepare_ids([[0, 1], [1]], 1, 4, "out", shape=(1, 2))
        | ValueError | shape=\(1, 2\): row 1 has 1 symbols, every row must have 2
    prepare_ids([[0, 1], [1]], [[1]], 4, "out", labels=(["a", "b"], ["c"]))
        | ValueError | labels: row 0 of validation is 'c', a class that train does
    prepare_ids([[0, 1], [1]], 2, 4, "out") | ValueError | held_out=2: must be below 2, the number
    prepare_ids([[0], [1]], 1, 2, "out", symbols="aa") | ValueError
        | symbols: 'a' is empty or occurs twice
    prepare_ids(np.zeros((4, 2, 2), int), 2, 4, "out", ends=True)
        | ValueError | ends=True: not for sequences of one shape, here \(2, 2\)
    prepare_ids(np.zeros((10, 2), int), 9, 4, "out", labels=[*"aaaaaaaaab"])
        | ValueError | held_out=9: would hold out every sequence of the class 'b', must be at most 8
    Sequences(ids=np.zeros((2, 1), int), symbols=("a",), labels=np.array([0, 3]), classes=("x",
        "y"))
        | ValueError | labels: row 1 is 3, there are 2 classes
""")


def test_labels_are_refused_for_other_sequences_than_those_of_training():
    words = [
        "lines",
        "--files",
        written("a.txt", "ab\nba\n"),
        "--labels",
        written("l.txt", "0\n1\n"),
        "--out",
        "out",
    ]
    message = r"labels='l\.txt': a file of the training labels, not with validation='a\.txt'"
    with pytest.raises(SystemExit, match=message):
        command.main([*words, "--validation", "a.txt"])


def test_proteins_of_few_letters_are_no_dna():
    assert len(Fasta(written("a.fa", ">a\nAAGAAGTAAGCAAGAKLAG\n>b\nAAAA\n")).load()) == 2
    assert Fasta(written("a.fa", ">a\nAAGGAAGGCCAA\n")).load().symbols == tuple(
        "ACDEFGHIKLMNPQRSTVWY"
    )


# the order of symbols, and what is held out


def test_whole_numbers_are_symbols_in_their_order():
    Path("events.txt").write_text("10 2 1\n-3 0 11\n")
    found = Lines("events.txt", tokens="words").load()
    assert (found.symbols, lists(found)) == (
        ("-3", "0", "1", "2", "10", "11"),
        [[4, 3, 2], [0, 1, 5]],
    )
    Path("events.txt").write_text("10 2 a\n")
    assert Lines("events.txt", tokens="words").load().symbols == ("10", "2", "a")


def test_numbers_that_are_read_as_characters_are_remarked(capsys):
    Path("events.txt").write_text("10 2 1\n" * 40)
    command.main(["lines", "--files", "events.txt", "--out", "events"])
    remark = (
        "train, validation: all characters are digits, signs and white space: --tokens words "
        "takes each number as"
    )
    assert remark in capsys.readouterr().out
    Path("digits.txt").write_text("1021\n" * 40)
    command.main(["lines", "--files", "digits.txt", "--out", "digits"])
    command.main(["lines", "--files", "events.txt", "--tokens", "words", "--out", "words"])
    output = capsys.readouterr().out
    assert "--tokens words takes" not in output and "ids: 0 '1', 1 '2', 2 '10'\n" in output


def test_the_summary_lists_ids_and_the_sequences_of_each_class(capsys):
    np.savez("both.npz", x=np.arange(40)[:, None].repeat(2, 1), y=np.arange(40) % 20)
    command.main(
        [
            "array",
            "--files",
            "both.npz",
            "--vocab",
            "40",
            "--column",
            "x",
            "--labels",
            "y",
            "--out",
            "out",
        ]
    )
    output = capsys.readouterr().out
    assert "ids: 0 '0', 1 '1', 2 '2'," in output and "11 '11', ..., 39 '39'\n" in output
    assert "sequences of each class, train + validation: 0: 1 + 1, 1: 1 + 1, 2: 2 + 0," in output
    np.savez("both.npz", x=np.arange(40)[:, None].repeat(2, 1), y=np.zeros(40, int))
    command.main(
        [
            "array",
            "--files",
            "both.npz",
            "--column",
            "x",
            "--labels",
            "y",
            "--vocab",
            "40",
            "--out",
            "one",
        ]
    )
    output = capsys.readouterr().out
    assert "1 class," in output and "train + validation: 0: 38 + 2\n" in output


def test_labelled_sequences_are_held_out_by_class_and_a_file_that_is_sorted_by_class_too(tmp_path):
    made = prepare_ids(
        np.arange(64)[:, None].repeat(2, 1), 8, 64, tmp_path / "out", labels=[0] * 56 + [1] * 8
    )
    assert [np.bincount(one.labels).tolist() for one in (made.train, made.validation)] == [
        [49, 7],
        [7, 1],
    ]
    assert [int(row[0]) for row in made.validation] == [*range(49, 56), 63], (
        "the last ones of each class"
    )
    rare = prepare_ids(
        np.arange(44)[:, None], 4, 44, tmp_path / "rare", labels=[0] * 40 + [1, 2, 3, 4]
    )
    assert np.bincount(rare.validation.labels, minlength=5).tolist() == [4, 0, 0, 0, 0]


def test_symbols_of_the_held_out_rows_alone_are_refused_where_the_alphabet_is_not_given(tmp_path):
    Path("mixed.txt").write_text("a b\nb a\n" * 20 + "a c\nd b\n")
    np.save("ids.npy", np.concatenate([np.arange(40) % 2, [2, 3]])[:, None].repeat(2, 1))
    words = {"kind": "lines", "files": "mixed.txt", "tokens": "words"}
    ids = {"kind": "array", "files": "ids.npy"}
    refused_with(words=words, ids=ids)(r"""
        prepare(SymbolCorpus(source=words), "out") | ValueError
            | validation: contains 2 symbols that train does not contain: 'c', 'd'\. Hold out other
                .*--shuffle SEED
        prepare(SymbolCorpus(source=ids), "out") | ValueError
            | 2 symbols that train does not contain: '2', '3'
    """)
    assert prepare(SymbolCorpus(source=words, shuffle=1), tmp_path / "shuffled").vocab_size == 4
    given = prepare(SymbolCorpus(source=ids | {"vocab": 4}), tmp_path / "given")
    assert given.manifest["notes"]["validation"] == [
        "contains 2 symbols that train does not contain: '2', '3'"
    ]


# the folder


def test_ids_in_memory_become_a_folder_once(tmp_path):
    labels = [f"kind {number % 3}" for number in range(40)]
    made = prepare_ids(pictures(), 8, 16, tmp_path / "out", labels=labels, shuffle=1)
    assert (made.shape, made.vocab_size, made.pad_id, made.eos_id) == ((12, 12), 16, None, None)
    assert (made.is_text, made.ends) == (False, False)
    assert (
        made.classes == ("kind 0", "kind 1", "kind 2")
        and made.layout.fixed == 144
        and not made.ragged
    )
    assert (
        np.bincount(made.validation.labels).tolist() == [3, 3, 2]
        or np.bincount(made.validation.labels).sum() == 8
    )
    known = {
        row.tobytes(): label for row, label in zip(pictures().reshape(40, -1), labels, strict=True)
    }
    for split in (made.train, made.validation):
        for row, label in zip(split, split.labels, strict=True):
            assert known[row.astype(int).tobytes()] == made.classes[label]
    before = (tmp_path / "out" / "manifest.json").stat()
    again = prepare_ids(pictures(), 8, 16, tmp_path / "out", labels=labels, shuffle=1)
    assert (tmp_path / "out" / "manifest.json").stat() == before and again.layout == made.layout
    with pytest.raises(ValueError, match="contains other data, choose another folder"):
        prepare_ids(pictures(seed=1), 8, 16, tmp_path / "out", labels=labels, shuffle=1)
    with pytest.raises(ValueError, match="not text"):
        made.train.bits_per_byte(1.0)
    assert made.tokenizer.decode(made.train[0][:3].tolist()) == " ".join(
        map(str, made.train[0][:3].tolist())
    )


def test_a_second_split_has_the_symbols_of_the_first(tmp_path):
    Path("train.txt").write_text("abc\ncab\n")
    Path("valid.txt").write_text("cc\nba\n")
    train, valid = (
        {"kind": "recipes.data.sources:Lines", "files": name} for name in ("train.txt", "valid.txt")
    )
    corpus = SymbolCorpus(source=train, validation=valid)
    made = prepare(corpus, tmp_path / "out")
    assert [one.tolist() for one in made.validation] == [[2, 2], [1, 0]]
    assert corpus_of(tmp_path / "out").source["tokens"] == "characters", "with all its values"
    assert open_prepared(tmp_path / "out", corpus).layout == made.layout, (
        "values that are not given are defaults"
    )
    with pytest.raises(
        ValueError,
        match=r"data\.corpus\.ends=True: .*out holds another corpus, prepared with False",
    ):
        open_prepared(tmp_path / "out", replace(corpus, ends=True))
    Path("valid.txt").write_text("cd\n")
    with pytest.raises(
        ValueError, match="validation: contains 1 symbol that train does not contain: 'd'"
    ):
        prepare(corpus, tmp_path / "other")


def test_arrays_of_several_types_of_ints_are_ints(tmp_path):
    for name, kind in (("a", np.uint64), ("b", np.int64)):
        np.save(f"{name}.npy", np.arange(4, dtype=kind).reshape(2, 2))
    assert Array("*.npy").load().ragged.values.dtype == np.int64


def test_a_slice_of_a_data_set_of_the_hub_is_read(monkeypatch):
    whole = datasets.Dataset.from_dict({"ids": [[n, n] for n in range(10)]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **named: whole)
    assert len(Array("owner/data-v1.0", split="train[:3]").load()) == 3
    assert len(Array("owner/data", split="train").load()) == 10
    with pytest.raises(FileNotFoundError, match=r"files='missing\.npy': there is no"):
        Array("missing.npy").load()


@pytest.mark.parametrize("split", ["test", "train[:2]"])
def test_files_have_no_other_split(tmp_path, split):
    np.save(tmp_path / "ids.npy", np.arange(12).reshape(3, 2, 2))
    for source in (Array, Images):
        with pytest.raises(ValueError, match=r"split='.*': .*ids.npy has the one split train"):
            source(str(tmp_path / "ids.npy"), split=split).load()


def test_a_length_of_validation_alone_is_never_drawn():
    layout = Layout(kind="x", lengths={3: 5, 9: 0})
    assert layout.draw_length(0, 0, least=5) == 5 and layout.draw_length(0, 0) == 3


def test_an_end_and_padding_exist_only_on_request(tmp_path):
    sequences = [[0, 1], [1], [2, 0, 1], [1, 1]]
    with_end = prepare_ids(sequences, 1, 3, tmp_path / "ends", symbols="abc", ends=True)
    assert (with_end.vocab_size, with_end.eos_id, with_end.pad_id) == (5, 3, 4) and with_end.ends
    assert [one.tolist() for one in with_end.train] == [[0, 1, 3], [1, 3], [2, 0, 1, 3]]
    assert with_end.tokenizer.decode([2, 0, 1, 3, 4]) == "cab"
    without = prepare_ids(sequences, 1, 3, tmp_path / "none", symbols="abc")
    assert (
        without.vocab_size == 3 and without.ragged and without.layout.lengths == {1: 1, 2: 1, 3: 1}
    )
    draws = [without.layout.draw_length(0, number) for number in range(300)]
    assert {one: draws.count(one) // 75 for one in (1, 2, 3)} == {1: 1, 2: 1, 3: 1}
    assert min(without.layout.draw_length(0, number, least=3) for number in range(20)) == 3
    assert max(without.layout.draw_length(0, number, most=2) for number in range(50)) == 2


def test_labels_come_with_their_sequences():
    made = prepare_ids(np.arange(40)[:, None].repeat(3, 1), 4, 40, "out", labels=np.arange(40) % 5)
    batch = next(examples(made.train, length=3, pad_id=0, batch_size=8, seed=0, threads=0))
    assert (
        torch.equal(batch.labels, batch.x[:, 0] % 5)
        and batch.to(torch.device("cpu")).labels is not None
    )
    packed = next(
        examples(made.train, length=7, pad_id=0, batch_size=4, seed=0, threads=0, packed=True)
    )
    begins = packed.x.flatten()[packed.cu_seqlens[:-1]]
    real = packed.mask.flatten()[packed.cu_seqlens[:-1]]
    assert torch.equal(packed.labels, torch.where(real, begins % 5, -1)) and not bool(real.all())


def test_names_of_symbols_are_a_tokenizer():
    names = ("C", "Cl", "[nH]", "c", "(", "1")
    tokenizer = named_tokenizer(names, "", ends=False)
    assert tokenizer.encode("Cl(C[nH]c1").tokens == ["Cl", "(", "C", "[nH]", "c", "1"]
    assert tokenizer.decode([1, 4, 0, 2]) == "Cl(C[nH]"
    assert named_tokenizer(("10", "2"), " ", ends=False).encode("2 10 2").ids == [1, 0, 1]
    assert named_tokenizer((" ", "\n", "\u2603"), "", ends=False).encode("\u2603 \n").ids == [
        2,
        0,
        1,
    ]


def test_a_recipe_names_either_corpus():
    corpus = {"source": {"kind": "array", "files": "a.npy"}, "held_out": 3}
    values = {
        "data": {"folder": "out", "corpus": corpus, "length": 4},
        "process": "mdlm",
        "model": {"kind": "dit", "dim": 8, "depth": 1, "heads": 1},
        "optimizer": {"lr": 0.1},
        "output": {"folder": "run"},
        "batch": 2,
        "steps": 1,
    }
    path = Path("recipe.yaml")
    path.write_text(yaml.safe_dump(values))
    found = read_recipe(path)
    assert isinstance(found.data.corpus, SymbolCorpus) and found.data.corpus.held_out == 3
    path.write_text(recipe_yaml(found))
    assert read_recipe(path) == found
    values["data"]["corpus"]["held_ou"] = 3
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(
        ValueError, match=r"recipe\.yaml: data\.corpus\.held_ou: no such key; did you mean held_out"
    ):
        read_recipe(path)
    values["data"]["corpus"] = {
        "tokenizer": "gpt2",
        "train": {"path": "a"},
        "validation": {"path": "b"},
    }
    path.write_text(yaml.safe_dump(values))
    assert isinstance(read_recipe(path).data.corpus, Corpus)


# runs


def recipe(folder, length, packed=False, process="mdlm", steps=6, **changes):
    return Recipe(
        data=Data(folder=folder, length=length, packed=packed),
        process=process,
        model=dict(kind="dit", dim=16, depth=1, heads=2, cond_dim=8, pad_to=1),
        optimizer=Optimizer(lr=3e-3, warmup=2, ema=0.9),
        hardware=Hardware(threads=1),
        output=Output(
            folder=folder.parent / "run",
            log_every=1,
            validate_every=6,
            validate_sequences=16,
            sample_every=6,
            sample_steps=4,
            samples=3,
            save_every=6,
            tensorboard=False,
        ),
        batch=4,
        steps=steps,
        **changes,
    )


def measured(run, **options):
    return evaluate.evaluate(evaluate.Options(run=str(run), replicates=2, **options), ALONE)


def drawn(run, **options):
    return generate.generate(generate.Options(run=str(run), **options), make_console())


def test_pictures_from_the_array_to_samples(tmp_path, capsys):
    data = prepare_ids(pictures(), 8, 16, tmp_path / "data")
    train(recipe(tmp_path / "data", 144))
    output = capsys.readouterr().out
    assert (
        "over 8 sequences x 1 draw" in output
        and "bits/dimension)" in output
        and "padding" not in output
    )
    result = measured(tmp_path / "run")
    bound = result["bound"]
    assert (
        "bits_per_byte" not in bound
        and "bits_per_token" not in bound
        and result["generative"] is None
    )
    assert bound["bits_per_dimension"]["value"] == pytest.approx(
        bound["nats_per_token"]["value"] / np.log(2)
    )
    assert result["protocol"]["tokens"] == 8 * 144 and result["protocol"]["shape"] == [12, 12]
    assert result["validation"]["value"] == pytest.approx(
        json.loads(_last_bound(tmp_path / "run"))["nats_per_token"]
    )
    texts = drawn(tmp_path / "run", samples=2, sampling=generate.Sampling(steps=4))
    assert all(
        len(text.split()) == 144 and set(text.split()) <= set(map(str, range(16))) for text in texts
    )
    saved = open_saved(tmp_path / "run")
    assert (saved.rows, saved.special.ends, saved.layout.shape, saved.draws_lengths) == (
        "exact",
        (),
        (12, 12),
        False,
    )
    start = " ".join(map(str, data.validation[0][:30].tolist()))
    assert all(text.startswith(start) for text in drawn(tmp_path / "run", samples=1, prompt=start))
    gaps = f"{start} [MASK:114]"
    assert drawn(tmp_path / "run", samples=1, prompt=gaps)[0].split()[:30] == start.split()
    with pytest.raises(ValueError, match="prompt: has 40 symbols and gaps, must have 144"):
        drawn(tmp_path / "run", prompt=f"{start} [MASK:10]")
    with pytest.raises(
        ValueError, match=r"length=100: must be 144, the sequences of .*run have shape 12 x 12"
    ):
        drawn(tmp_path / "run", length=100)
    with pytest.raises(ValueError, match="length=100: must be 144"):
        measured(tmp_path / "run", length=100)
    with pytest.raises(
        ValueError, match="scorer='gpt2': a language model scores text, and the data is not text"
    ):
        measured(tmp_path / "run", scorer="gpt2")


def _last_bound(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if json.loads(line)["kind"] == "bound"][-1]


def test_lines_of_different_lengths_without_an_end(tmp_path, capsys):
    data = prepare(SymbolCorpus(source=smiles(), held_out=20), tmp_path / "data")
    train(recipe(tmp_path / "data", 16, packed=True))
    output = capsys.readouterr().out
    assert "bits/token)" in output
    result = measured(tmp_path / "run", likelihood="confidence", sequences=8)
    assert result["bound"].keys() >= {"nats_per_token", "bits_per_token", "perplexity"}
    assert "bits_per_byte" not in result["bound"]
    assert result["protocol"]["tokens"] == result["likelihood"]["protocol"]["tokens"]
    same = measured(tmp_path / "run")
    assert same["validation"]["value"] == pytest.approx(
        json.loads(_last_bound(tmp_path / "run"))["nats_per_token"]
    )
    whole = same["protocol"]
    assert whole["tokens"] == int(data.validation.lengths.sum()), (
        "all symbols count, the first too, and nothing else"
    )
    saved = open_saved(tmp_path / "run")
    assert saved.draws_lengths and saved.layout.lengths == data.layout.lengths
    texts = drawn(
        tmp_path / "run",
        samples=12,
        sampling=generate.Sampling(steps=4),
        out=tmp_path / "out.jsonl",
    )
    lengths = [
        len(json.loads(line)["tokens"])
        for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    assert set(lengths) <= set(data.layout.lengths) and len(set(lengths)) > 1
    assert lengths == [saved.layout.draw_length(0, number, most=16) for number in range(12)]
    again = drawn(tmp_path / "run", numbers=(5,), sampling=generate.Sampling(steps=4))
    assert again == [texts[5]], "a sample depends on its number alone"
    assert all(
        len(saved.encode(text)) == 5 for text in drawn(tmp_path / "run", samples=2, length=5)
    )
    longer = drawn(tmp_path / "run", samples=3, prompt="CC(=O)")
    assert all(text.startswith("CC(=O)") and len(saved.encode(text)) > 6 for text in longer)
    assert len(saved.encode(drawn(tmp_path / "run", samples=1, prompt="C[MASK:2]O")[0])) == 4
    with pytest.raises(
        ValueError, match="length=99: must be at most 16, the tokens of a sequence in the training"
    ):
        drawn(tmp_path / "run", length=99)


def test_lines_with_an_end_learn_their_lengths(tmp_path):
    data = prepare(SymbolCorpus(source=smiles(), held_out=20, ends=True), tmp_path / "data")
    train(recipe(tmp_path / "data", 12))
    saved = open_saved(tmp_path / "run")
    assert (saved.rows, saved.special.pad, saved.special.ends) == (
        "padded",
        data.pad_id,
        (data.eos_id,),
    )
    assert all("[" not in text.replace("[nH]", "") for text in drawn(tmp_path / "run", samples=2))
    assert "bits_per_token" in measured(tmp_path / "run", sequences=4)["bound"]


def test_rows_that_do_not_fit_are_refused_before_training(tmp_path):
    fixed = prepare_ids(pictures(), 8, 16, tmp_path / "fixed")
    flat = prepare_ids(pictures().reshape(40, -1), 8, 16, tmp_path / "flat")
    ragged = prepare_ids([[0, 1], [1, 0], [1, 1, 0], [0]], 2, 2, tmp_path / "ragged")
    refused_with(fixed=fixed, ragged=ragged, tmp_path=tmp_path)(r"""
        train(recipe(tmp_path / "fixed", 200))
            | ValueError
                | data\.length=200: .* sequences of 144 symbols without padding, must be at most 144
        check_lengths(fixed, 100, packed=False)
            | ValueError | data\.length=100: .* of shape 12 x 12, which cannot be cut: must be 144
        check_lengths(ragged, 4, packed=False)
            | ValueError
                | data\.packed=False: .* sequences of 1 to 3 symbols without padding, so a row must
    """)
    check_lengths(flat, 100, packed=False)  # windows
    check_lengths(ragged, 4, packed=True)


def test_the_rest_of_a_packed_row_is_not_trained_on(tmp_path):
    data = prepare_ids([[1, 1, 1], [1, 1, 1], [1, 1], [1, 1, 1]], 2, 2, tmp_path / "data")
    batch = next(
        examples(
            data.train, length=4, pad_id=data.fill_id, batch_size=1, seed=0, threads=0, packed=True
        )
    )
    assert 0 in batch.x[0] and bool((batch.x[batch.mask] == 1).all())


# the command


def test_the_command_prepares_any_source(tmp_path, capsys):
    np.save("codes.npy", pictures())
    Path("labels.txt").write_text("\n".join(str(number % 4) for number in range(40)))
    words = [
        "source",
        "recipes.data.sources.array:Array",
        "--files",
        "codes.npy",
        "--vocab",
        "16",
        "--out",
        "data/codes",
    ]
    labelled = [*words, "--labels", "labels.txt", "--shuffle", "3", "--held-out", "8"]
    command.main(labelled)
    output = capsys.readouterr().out
    assert "data/codes: 16 symbols, shape 12 x 12, 4 classes, vocabulary" in output
    flags = (
        "--model.num-classes run --model.positions rope2d --model.shape run --output.folder "
        "runs/codes"
    )
    printed = " ".join(output.replace("\\\n", "").split())
    assert (
        f"python -m recipes.owt mdlm --smoke --data.folder data/codes --data.length 144 {flags}"
        in printed
    )
    found = open_prepared(tmp_path / "data/codes")
    assert np.bincount(found.validation.labels).tolist() == [2, 2, 2, 2]
    command.main(labelled)
    with pytest.raises(SystemExit, match="contains other data"):
        command.main(words)
    with pytest.raises(SystemExit):
        command.main([*words[:4], "--vocab", "many", "--out", "x"])
    assert "--vocab: " in capsys.readouterr().err
    molecules()
    words = [
        "source",
        "recipes.data.sources:Lines",
        "--files",
        "molecules.txt",
        "--tokens",
        "smiles",
        "--out",
    ]
    command.main([*words, "data/mol"])
    assert "--data.length 8 --data.packed" in capsys.readouterr().out
    command.main([*words, "data/mol-ends", "--ends"])
    output = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert "--data.length 9 --output" in output and "(end 10, pad 11)" in output


def test_help_states_defaults(capsys):
    for kind, shown in (
        ("images", "symbols (default 256)"),
        ("lines", "consist of (default characters)"),
    ):
        with pytest.raises(SystemExit):
            command.main([kind, "--help"])
        assert shown in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("ids", ["pictures", "lines"])
def test_the_printed_command_trains_on_labels_and_positions(tmp_path, capsys, ids, labels):
    rows = pictures() if ids == "pictures" else [[n % 3] * (3 + n % 4) for n in range(40)]
    data = prepare_ids(rows, 8, 16, tmp_path / "data", labels=np.arange(40) % 4 if labels else None)
    line = command.advice("array", tmp_path / "data", data).rpartition("\n")[0]
    words = shlex.split(
        line.removeprefix("train on it: python -m recipes.owt ").replace("\\\n", "")
    )
    owt.main([*words, "--steps", "2"])
    network = json.loads(Path("runs/data/weights/config.json").read_text())
    assert network.get("num_classes", 0) == 4 * labels
    assert network.get("positions", "rope") == ("rope2d" if ids == "pictures" else "rope")


def test_a_source_from_outside_becomes_data_and_a_run(tmp_path, capsys):
    words = [
        "source",
        "ddlib_ragged:Walks",
        "--count",
        "40",
        "--places",
        "6",
        "--held-out",
        "8",
        "--out",
        "data",
    ]
    command.main(words)
    assert "data: 6 symbols, 2 classes, vocabulary" in capsys.readouterr().out
    found = open_prepared(tmp_path / "data")
    assert found.classes == ("down", "up") and found.layout.kind == "ddlib_ragged:Walks"
    same = corpus_of(tmp_path / "data")
    assert same.source == {
        "kind": "ddlib_ragged:Walks",
        "count": 40,
        "length": 16,
        "places": 6,
        "seed": 0,
    }
    train(recipe(tmp_path / "data", 16, steps=1))
    assert open_saved(tmp_path / "run").layout.classes == ("down", "up")
    with pytest.raises(
        SystemExit, match=r"contains other data, choose another folder: .*source.seed was 0, is 1"
    ):
        command.main([*words, "--seed", "1"])
    with pytest.raises(ValueError, match="ddlib_ragged:Walks has no files; hold out sequences by"):
        command._symbols(
            command._parser(words).parse_args([*words[:2], "--validation", "x", "--out", "y"])
        )
    with pytest.raises(
        TypeError, match=r"source: .*:no_source returns 3, must be a ddlib\.sources\.Source"
    ):
        prepare(SymbolCorpus(source=f"{__name__}:no_source"), tmp_path / "other")
    with pytest.raises(
        SystemExit, match="has an argument held_out, which is an option of prepare; give it another"
    ):
        command.main(["source", "recipes.data:SymbolCorpus", "--source", "x", "--out", "other"])


def no_source():
    return 3


def test_a_layout_is_plain_values():
    layout = Layout(kind="array", shape=(2, 2), values=(0, 255), classes=("a",), lengths={4: 7})
    assert Layout.read(json.loads(json.dumps(layout.plain()))) == layout and layout.fixed == 4


def test_sequences_in_one_array_select_and_slice():
    found = Ragged.of([[1, 2], [], [3]])
    assert (
        [one.tolist() for one in found[1:]] == [[], [3]]
        and found[-1].tolist() == [3]
        and len(found) == 3
    )
    assert [one.tolist() for one in found.select(np.array([2, 0]))] == [[3], [1, 2]]
