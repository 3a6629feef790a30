"""Symbols that a tokenizer does not have: counted, listed and refused, in prepared text and in
prompts.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

import ddlib as dd
from recipes import prepare as command
from recipes.data import local, open_prepared, prepare
from recipes.data.summary import table
from recipes.data.text import train_tokenizer
from recipes.data.tokens import SpecialIds
from recipes.data.unknown import Symbols, show_symbol
from recipes.generate import Options
from recipes.generation.pipeline import Pipeline
from recipes.generation.prompt import check_known
from recipes.model_io import LoadedModel

ENDS = ["[CLS]", "[SEP]", "[PAD]"]


def ids(words):
    return {word: number for number, word in enumerate(words)}


def word_level(unk="[UNK]"):
    made = Tokenizer(models.WordLevel(ids(["[UNK]", *ENDS, "the", "cat", "sat"]), unk_token=unk))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def characters(unk=None, fuse=False):
    more = {} if unk is None else {"unk_token": unk, "fuse_unk": fuse}
    made = Tokenizer(models.BPE(ids(["[UNK]", *ENDS, *"abc "]), [], **more))
    made.add_special_tokens([AddedToken(token, normalized=False) for token in ENDS])
    return made


def byte_level():
    return train_tokenizer("the cat sat on the mat. " * 20, 260)


def pieces(unk_id):
    made = Tokenizer(
        models.Unigram(
            [("[UNK]", 0.0), *((token, -1.0) for token in [*ENDS, *"abc "])], unk_id=unk_id
        )
    )
    made.add_special_tokens([AddedToken(token, normalized=False) for token in ENDS])
    return made


def accents_gone():
    made = characters()
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    return made


CASES = {
    "a word": (word_level(), "the dog sat, dog", ["dog", ",", "dog"], True),
    "the unknown token as a word of the text": (characters("[PAD]"), "ab[PAD]", [], True),
    "a character": (characters("[UNK]"), "aébé", ["é", "é"], True),
    "a run of them": (characters("[UNK]", fuse=True), "aéxb", ["éx"], True),
    "a character that is left out": (characters(), "aébé\u200b", ["é", "é", "\u200b"], True),
    "what a normalizer takes away by design": (accents_gone(), "áb", [], True),
    "a piece": (pieces(0), "azb", ["z"], True),
    "a word that nothing stands for": (word_level("none"), "the dog sat", ["dog"], False),
    "words that all have a token": (word_level("none"), "the cat", [], False),
    "a piece that nothing stands for": (pieces(None), "azb", ["azb"], False),
    "bytes": (byte_level(), "Ω 漢字 🙂\u200b\x00", [], True),
}


@pytest.mark.parametrize(("tokenizer", "text", "found", "reads_all"), CASES.values(), ids=CASES)
def test_the_unknown_symbols_of_a_text_are_found_in_their_order(tokenizer, text, found, reads_all):
    symbols = Symbols(tokenizer)
    assert symbols.unknown(text) == found and symbols.reads_all == reads_all
    read, _ = symbols.read([text])[0]
    assert read == (
        tokenizer.encode(text, add_special_tokens=False).ids if reads_all or not found else []
    )


@settings(max_examples=50, deadline=None)
@given(text=st.text(min_size=1, max_size=40))
def test_every_character_of_a_text_has_a_token_or_is_listed(text):
    symbols = Symbols(characters())
    read, lacking = symbols.read([text])[0]
    assert len(read) + len(lacking) == len(text)
    assert lacking == [letter for letter in text if letter not in "abc "]
    assert Symbols(byte_level()).unknown(text) == []


def test_symbols_that_cannot_be_printed_are_named_by_code_point():
    assert (
        show_symbol("é") == "'é'"
        and show_symbol("\u200b") == "U+200B ZERO WIDTH SPACE"
        and show_symbol("\x00") == "U+0000"
    )
    assert show_symbol("x" * 99) == repr("x" * 40 + "...")


def corpus(tokenizer, lines):
    tokenizer.save("words.json")
    with open("text.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return local("text.txt", "words.json", 2)


LINES = ["the cat sat"] * 60 + ["the dog sat", "the cat\u200b sat"] + ["the cat sat"] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_text_of_which_the_tokenizer_lacks_too_much_is_refused(here, workers, capsys):
    wanted = corpus(word_level(), LINES)
    message = (
        r"train: 2 symbols of text.txt \(1.05% of the tokens, at most 1.00% are accepted\) "
        r"are not in .*words.json' "
        r"and would become \[UNK\]: 'dog' \(1\), U\+200B ZERO WIDTH SPACE \(1\)\. .*--unknown 0.02"
    )
    with pytest.raises(ValueError, match=message):
        prepare(wanted, here / "out", workers)
    assert not (here / "out").exists()
    words = [
        "local",
        "--files",
        "text.txt",
        "--tokenizer",
        "words.json",
        "--held-out",
        "2",
        "--out",
        "out",
    ]
    command.main([*words, "--unknown", "0.02"])
    shown_there = capsys.readouterr().out
    assert (
        "train: unknown symbols, the first 2 of them: 'dog' (1), U+200B ZERO WIDTH SPACE (1)"
        in shown_there
    )
    assert open_prepared(here / "out").manifest["unknown"]["train"]["count"] == 2
    with pytest.raises(
        SystemExit, match=r"2 symbols of text.txt"
    ):  # the folder of a larger share is not passed on
        command.main(words)


def test_a_tokenizer_without_an_unknown_token_ends_in_a_line_and_not_in_a_traceback(here):
    wanted = corpus(word_level("none"), LINES)
    with pytest.raises(
        ValueError, match=r"2 symbols .* cannot be read: 'dog' \(1\), U\+200B [^-]*every byte\)$"
    ):
        prepare(wanted, here / "out", unknown=1)
    assert not (here / "out").exists()


def test_symbols_that_are_left_out_are_counted_and_the_rest_stays_as_it_was(here):
    wanted = corpus(characters(), ["abc é", "éé", "abc", "abc", "abc"])
    with pytest.raises(ValueError, match=r"train: 3 symbols .* would be left out: 'é' \(3\)"):
        prepare(wanted, here / "out")
    found = prepare(wanted, here / "out", unknown=0.5)
    assert [document.tolist() for document in found.train] == [[1, 4, 5, 6, 7, 2], [1, 4, 5, 6, 2]]
    assert found.manifest["train"]["empty"] == 1
    with pytest.raises(ValueError, match=r"unknown=2: must lie in \[0, 1\]"):
        prepare(wanted, here / "out", unknown=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_special_tokens_that_a_text_spells_are_counted(here, workers, capsys):
    wanted = corpus(characters("[CLS]"), ["abc", "[SEP]", "a[PAD]b[SEP]", "[CLS]", "ab", "ab"])
    message = (
        r"train: text.txt spells special tokens of tokenizer='words.json', which become these "
        r"tokens: '\[SEP\]' \(2\), '\[PAD\]' \(1\)\. .*\.jsonl"
    )
    with pytest.warns(UserWarning, match=message) as warned:
        found = prepare(wanted, here / "out", workers)
    assert len(warned) == 1
    assert [document.tolist() for document in found.train][1:3] == [[1, 2, 2], [1, 4, 3, 5, 2, 2]]
    symbols = {"[SEP]": 2, "[PAD]": 1}
    assert found.manifest["special"]["train"] == {"count": 3, "symbols": symbols}
    assert found.manifest["special"]["validation"] == {"count": 0, "symbols": {}}
    assert "train: special tokens that the text spells: '[SEP]' (2), '[PAD]' (1)" in table(found, 8)
    older = {name: value for name, value in found.manifest.items() if name != "special"}
    assert "spells" not in table(replace(found, manifest=older), 8)


def saved(tokenizer):
    process = dd.presets.mdlm(tokenizer.get_vocab_size())
    return LoadedModel(
        process=process,
        model=None,
        denoiser=lambda z, t: None,
        token_parameterization="cavity",
        tokenizer=tokenizer,
        special=SpecialIds(None, None, 2),
        length=20,
        rows="free",
        pace=dd.paces.Together(),
        sha256="",
        name="mine",
    )


def test_a_prompt_with_unknown_symbols_is_refused_unless_they_may_pass():
    model = saved(word_level())
    check_known(model, "prompt", "the [MASK:2] sat")
    message = (
        r"prompt: 2 symbols are not in the tokenizer of mine and would become \[UNK\]: 'dog' "
        r"\(2\); --unknown acc"
    )
    for prompt in ("the dog[MASK]dog", "dog dog"):
        with pytest.raises(ValueError, match=message):
            check_known(model, "prompt", prompt)
    check_known(model, "prompt", "the dog", allowed=True)
    for allowed in (False, True):  # nothing could stand for it
        with pytest.raises(ValueError, match=r"1 symbols .* cannot be read: 'dog' \(1\)$"):
            check_known(saved(word_level("none")), "prompt", "the dog", allowed)


def test_generate_refuses_them_before_anything_is_drawn():
    model = saved(word_level())
    options = Options(run="mine", prompt="the dog")
    with pytest.raises(ValueError, match=r"prompt: 1 symbols are not in"):
        Pipeline(model).rows(options.all_prompts(), options.request)
    accepting = replace(options, unknown=True, new=2)
    (row,) = Pipeline(model).rows(accepting.all_prompts(), accepting.request)
    assert row.states.tolist() == [4, 0]


def test_a_tokenizer_in_python_passes(monkeypatch):
    spelling = SimpleNamespace(encode=lambda text, add_special_tokens: SimpleNamespace(ids=[1]))
    check_known(replace(saved(word_level()), tokenizer=spelling), "prompt", "the dog")
