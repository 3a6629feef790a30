import gzip
import json
from inspect import signature

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused_with

from recipes import adapt
from recipes.data import Source, load_documents, local, source
from recipes.data.detokenize import detokenize_lm1b
from recipes.data.making import twentieth

LINES = ["one", "zwei ü", "three"]


pytestmark = pytest.mark.usefixtures("here")


def write(name, lines=LINES, column="text"):
    records = "".join(json.dumps({column: line}) + "\n" for line in lines)
    if name.endswith(".parquet"):
        pq.write_table(pa.table({column: lines}), name)
    elif name.endswith(".gz"):
        with gzip.open(name, "wt", encoding="utf-8") as file:
            file.write(records)
    else:
        text = records if "json" in name else "\n".join(lines) + "\n"
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    return name


def test_documents_without_a_text_are_not_the_ones_held_out_by_default():
    assert twentieth(Source(path=write("a.jsonl", ["a", "b", "c", None, None]))) == 4


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"])
def test_every_kind_of_file_gives_the_same_documents(name):
    documents = load_documents(Source(path=write(name)))
    assert documents.column_names == ["text"]
    assert documents["text"][:] == LINES


def test_folders_and_patterns_are_read_in_order(tmp_path):
    (tmp_path / "texts" / "more").mkdir(parents=True)
    write("texts/b.txt", ["b"])
    write("texts/a.txt", ["a"])
    write("texts/more/c.txt", ["c"])
    assert load_documents(Source(path="texts"))["text"][:] == ["a", "b", "c"]
    assert load_documents(Source(path="texts/*.txt"))["text"][:] == ["a", "b"]
    assert load_documents(Source(path="texts/**/*.txt"))["text"][:] == ["a", "b", "c"]


def test_documents_of_a_text_file():
    with open("a.txt", "w", encoding="utf-8") as file:
        file.write("a\nb\n\nc\n")
    counts = {
        by: len(load_documents(Source(path="a.txt", sample_by=by)))
        for by in ("line", "paragraph", "document")
    }
    assert counts == {"line": 4, "paragraph": 2, "document": 1}


def test_files_folders_and_recipes_are_cut_by_one_rule_and_coarse_cuts_name_it(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        write(f"texts/{name}.txt", ["one", "", "two"])
    assert load_documents(Source(path="texts"))["text"][:] == ["one", "", "two"] * 2
    assert load_documents(Source(path="texts/a.txt"))["text"][:] == ["one", "", "two"]
    default = signature(adapt.corpus_for).parameters["sample_by"].default
    assert (
        local("texts", "words.json", 1).train.sample_by == Source(path="texts").sample_by == default
    )
    message = (
        "contains none of the 2 documents of texts: 2 .txt files, each document is a whole file"
    )
    with pytest.raises(ValueError, match=rf"{message} \(--sample-by doc"):
        load_documents(Source(path="texts", sample_by="document", split="train[:-2]"))


def test_another_column_becomes_text():
    path = write("a.jsonl", column="body")
    assert load_documents(Source(path=path, column="body"))["text"][:] == LINES
    with pytest.raises(ValueError, match=r"column='text': a.jsonl has the columns body"):
        load_documents(Source(path=path))


def test_slices_of_a_split_part_the_documents():
    path = write("a.txt")
    parts = [
        load_documents(Source(path=path, split=f"train[{part}]"))["text"][:]
        for part in (":-1", "-1:", "1:2")
    ]
    assert parts == [LINES[:2], LINES[2:], LINES[1:2]]


@pytest.mark.parametrize("split", ["train[-4:]", "train[:4]"])
def test_a_slice_larger_than_the_data_is_refused(split):
    with pytest.raises(ValueError, match=r"split=.*a.txt has only 3 documents"):
        load_documents(Source(path=write("a.txt"), split=split))


def test_one_document_can_be_read_but_not_split():
    path = write("a.txt", ["alone"])
    assert len(load_documents(Source(path=path))) == 1
    with pytest.raises(ValueError, match="contains none of the 1 documents"):
        load_documents(Source(path=path, split="train[:-1]"))


@pytest.mark.parametrize("split", ["train[:99%]", "train[1]", "", "train+test"])
def test_other_splits_are_refused_at_once(split):
    with pytest.raises(ValueError, match=r"split=.*must be like train"):
        Source(path="a.txt", split=split)


def test_files_have_no_other_split():
    with pytest.raises(ValueError, match="has the one split train"):
        load_documents(Source(path=write("a.txt"), split="test"))


@pytest.mark.parametrize("before", [0, 5, 2**20 - 1])
def test_bytes_that_are_not_utf8_are_named(before):
    with open("a.txt", "wb") as file:
        file.write(b"x" * before + "é".encode() + b"\xe9\n")
    with pytest.raises(ValueError, match=rf"a.txt is not UTF-8 at byte {before + 2}"):
        load_documents(Source(path="a.txt"))


UNREADABLE = [
    ("a.txt", b"abc" + "é".encode()[:1], "is not UTF-8 at byte 3"),  # cut off within a character
    ("a.jsonl.gz", gzip.compress(b'{"text": "caf\xe9"}\n'), "is not UTF-8 at byte 13"),
    ("a.parquet", b"text\na\n", "cannot be read as parquet"),
    ("a.jsonl", b'{"text": "a"}\n{', "cannot be read as json"),
    ("a.csv", b"text\na\n", "of a kind that cannot be read"),
    ("a.txt", b"", "is empty"),
    ("a.jsonl", b"", "is empty"),
    ("a.jsonl.gz", gzip.compress(b""), "is empty"),
]


# compressed content holds the time, which must not be in the name of a test: workers must collect
# the same names
@pytest.mark.parametrize(
    ("name", "content", "message"), UNREADABLE, ids=[f"{case[0]} {case[2]}" for case in UNREADABLE]
)
def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}:? {message}"):
        load_documents(Source(path=name))


def test_an_empty_table_is_refused():
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet is empty"):
        load_documents(Source(path="a.parquet"))


@pytest.mark.parametrize("values", [[1, 2], [["a"], ["b"]], [b"a", b"b"]])
def test_columns_that_are_no_text_are_refused(values):
    pq.write_table(pa.table({"text": values}), "a.parquet")
    with pytest.raises(ValueError, match=r"column='text' of a.parquet holds .* must hold strings"):
        load_documents(Source(path="a.parquet"))


@pytest.mark.parametrize("path", ["none/*.txt", "none.txt", "none/a.jsonl.gz"])
def test_no_file_is_refused(path):
    with pytest.raises(FileNotFoundError, match="there is no"):
        load_documents(Source(path=path))


def test_files_of_several_kinds_are_refused(tmp_path):
    (tmp_path / "texts").mkdir()
    write("texts/a.txt")
    write("texts/b.parquet")
    with pytest.raises(ValueError, match="several kinds, parquet, text"):
        load_documents(Source(path="texts"))


def test_a_name_is_looked_up_on_the_hub(monkeypatch):
    calls = []

    def hub(path, name, *, split, revision):
        calls.append((path, name, split, revision))
        return datasets.Dataset.from_dict({"text": LINES})

    monkeypatch.setattr(datasets, "load_dataset", hub)
    wanted = Source(path="someone/texts", name="plain", revision="abc", split="train[:-1]")
    assert load_documents(wanted)["text"][:] == LINES[:2]
    assert calls == [("someone/texts", "plain", "train", "abc")]


def test_the_error_repeats_the_message_of_the_hub(monkeypatch):
    def hub(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("no such thing")

    monkeypatch.setattr(datasets, "load_dataset", hub)
    refused_with()(r"""
        load_documents(Source(path="someone/texts"))
            | ValueError
                | 'someone/texts' is not a local file or folder, and the hub answers: no such thing
        load_documents(Source(path="some one/texts/deep")) | ValueError | not the name of a data set
    """)


def test_the_identity_of_files_is_their_content():
    def identity(path):
        return source.place(Source(path=path)).identity(Source(path=path))

    write("a.txt")
    before = identity("a.txt")
    assert identity("a.txt") == before
    write("a.txt", [*LINES, "more"])
    assert identity("a.txt") != before


@pytest.mark.parametrize(
    ("cut", "written"),
    [
        ("They do n't know , do they ?", "They don't know, do they?"),
        ('He said , " I \'m well , " and left .', 'He said, "I\'m well," and left.'),
        (
            "It cost $ 5.2 million ( or 3 % ) ; she 's sure !",
            "It cost $5.2 million (or 3%); she's sure!",
        ),
        ("the players ' union and / or `` us ''", 'the players\' union and/or "us"'),
        ("see http : / / a.org : now", "see http://a.org: now"),
        ("U.S. stocks -- up 1,000 .", "U.S. stocks -- up 1,000."),
    ],
)
def test_words_are_set_close_again(cut, written):
    assert detokenize_lm1b(cut) == written
    assert detokenize_lm1b(written) == written
