"""Documents that training and validation share: whole files, their copies, single documents."""

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refused_with

from recipes import prepare as command
from recipes.data import Corpus, Source, SymbolCorpus, local, open_prepared, prepare, prepare_ids

IMAGE = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def files(here):
    for number, name in enumerate("abc"):
        write(f"texts/{name}.txt", number * 100, 100)
    write("other.txt", 300, 40)


def write(name, first, count):
    """Write lines that are all different: numbers from ``first`` on."""
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("".join(f"{number:04d}\n" for number in range(first, first + count)))


def symbols(files, validation, kind="lines", **options):
    source, other = ({"kind": kind, "files": name, **options} for name in (files, validation))
    return prepare(SymbolCorpus(source=source, validation=other), "out")


def text(files, validation, **options):
    return prepare(local(files, "train:257", validation, **options), "out")


def test_files_of_both_splits_are_refused_by_name():
    Path("alias.txt").symlink_to("texts/b.txt")
    Path("link.txt").hardlink_to("texts/c.txt")
    refused_with()(r"""
        text("texts/*.txt", "texts/b.txt") | ValueError
            | validation='texts/b\.txt': 1 of its 1 files are files of 'texts/\*\.txt' too, must be
                others: texts/b\.txt
        text("texts", "./texts/a.txt") | ValueError | 1 of its 1 files are files of 'texts' too
        text("texts/b.txt", "texts") | ValueError
            | 1 of its 3 files are .* must be others: texts/b\.txt
        text("texts", "alias.txt") | ValueError | must be others: alias\.txt
        symbols("texts/*.txt", "link.txt") | ValueError | must be others: link\.txt
        symbols("texts/*.txt", "texts/[bc].txt") | ValueError
            | 2 of its 2 files .* texts/b\.txt, texts/c\.txt
    """)


def test_copies_of_documents_are_refused_with_their_number(tmp_path):
    write("copy.txt", 20, 40)
    write("half.txt", 280, 40)
    np.save("ids.npy", np.arange(300)[:, None].repeat(2, 1))
    np.save("copy.npy", np.arange(40)[:, None].repeat(2, 1))
    for number in range(30):
        for folder in ("pictures", "copies")[: 1 + (number < 20)]:
            Path(folder).mkdir(exist_ok=True)
            grey = np.random.default_rng(number).integers(0, 256, (4, 4), dtype=np.uint8)
            IMAGE.fromarray(grey).save(f"{folder}/{number}{folder}.png")
    for name in ("records", "same"):
        letters = [
            np.random.default_rng(number).choice([*"ACDEFGHIKLMNPQRSTVWY"], 30)
            for number in range(20)
        ]
        Path(f"{name}.fasta").write_text("".join(f">{name}\n{''.join(one)}\n" for one in letters))
    refused_with()(r"""
        text("texts", "copy.txt") | ValueError
            | validation: 40 of 40 documents are in train too, the first is number 0; must be other
        text("texts", "half.txt") | ValueError
            | 20 of 40 documents .* repeats within train, 0 of 300$
        symbols("texts", "copy.txt") | ValueError | 40 of 40 documents are in train too
        symbols("texts", "copy.txt", tokens="words") | ValueError
            | 40 of 40 documents are in train too
        symbols("ids.npy", "copy.npy", "array", vocab=300) | ValueError
            | 40 of 40 documents are in train too
        symbols("pictures", "copies", "images", levels=4) | ValueError
            | 20 of 20 documents are in train too
        symbols("records.fasta", "same.fasta", "fasta") | ValueError
            | 20 of 20 documents are in train too
        prepare_ids(np.eye(8, dtype=int), np.eye(8, dtype=int)[2:], 2, "out") | ValueError
            | 6 of 6 documents
    """)
    assert not (tmp_path / "out").exists()


def test_slices_that_overlap_are_refused_and_those_of_a_hold_out_are_not():
    def sliced(train, validation):
        splits = (Source(path="texts", split=split) for split in (train, validation))
        return prepare(
            Corpus(
                **dict(zip(("train", "validation"), splits, strict=True)), tokenizer="train:257"
            ),
            "out",
        )

    with pytest.raises(ValueError, match="30 of 60 documents are in train too"):
        sliced("train[:270]", "train[240:]")
    assert len(sliced("train[:240]", "train[240:]").validation) == 60


def test_documents_that_repeat_by_nature_are_counted_but_not_refused(capsys):
    write("texts/b.txt", 0, 100)  # every second document of training repeats
    Path("mixed.txt").write_text(Path("other.txt").read_text() + "0001\n0002\n")
    made = text("texts", "mixed.txt")
    assert made.manifest["shared"] == {"documents": 2, "repeated": 200}
    command.main(
        [
            "local",
            "--files",
            "texts",
            "--tokenizer",
            "train:257",
            "--validation",
            "mixed.txt",
            "--out",
            "out",
        ]
    )
    assert "validation: also in train: 2 of 42 documents" in capsys.readouterr().out
    draws = np.random.default_rng(0).integers(
        0, 2, (400, 3)
    )  # eight sequences: almost all are on both sides
    assert prepare_ids(draws[:300], draws[300:], 2, "few").manifest["shared"]["documents"] == 100
    held_out = prepare_ids([[0, 1], [1, 0], [0, 1]], 1, 2, "held_out")
    assert held_out.manifest["shared"] == {"documents": 1, "repeated": 0}, (
        "not named apart: counted alone"
    )
    command.main(["lines", "--files", "texts", "--validation", "other.txt", "--out", "apart"])
    assert (
        "also in train" not in capsys.readouterr().out
        and open_prepared(Path("apart")).manifest["shared"]
    )


def test_two_columns_of_one_file_are_other_documents():
    rows = [{"text": f"question {number}", "reply": f"answer {number}"} for number in range(40)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, validation = (Source(path="rows.jsonl", column=column) for column in ("text", "reply"))
    assert (
        len(
            prepare(
                Corpus(train=train, validation=validation, tokenizer="train:257"), "out"
            ).validation
        )
        == 40
    )
    np.savez("both.npz", x=np.arange(60).reshape(20, 3), y=np.arange(60, 90).reshape(10, 3))
    source, other = (
        {"kind": "array", "files": "both.npz", "column": name, "vocab": 90} for name in "xy"
    )
    assert len(prepare(SymbolCorpus(source=source, validation=other), "both").validation) == 10
