"""Corpora: training text, held-out text and tokenizer."""

from dataclasses import dataclass
from typing import Literal

from recipes.data.source import BY_LINE, SOTU, STRICT, SampleBy, Source


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text and tokenizer. A document becomes ``bos``, its tokens, ``eos``.

    Raises:
        ValueError: training and validation are the same documents.
    """

    train: Source
    validation: Source
    tokenizer: str
    """A model of the hub; a tokenizer.json or a folder with one; or "train:4096" to learn that many from the text."""
    pad: str = "[PAD]"
    """Padding token, added to the vocabulary if missing."""
    bos: str | None = None
    """None: <|endoftext|>, [CLS] or <s>, whichever the tokenizer has."""
    eos: str | None = None
    """None: <|endoftext|>, [SEP] or </s>."""
    detokenizer: Literal["lm1b"] | None = None
    """Rule that undoes the spacing of a corpus that was split into words."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.train == self.validation:
            raise ValueError(f"validation={self.validation}: the same documents as train, hold others out")


def openwebtext(held_out: int = 100_000) -> Corpus:
    """Return OpenWebText in GPT-2's tokens; the last 100,000 documents are held out, as in MDLM, GIDD and HDLM."""
    return _last_held_out(
        held_out,
        tokenizer="gpt2",
        path="Skylion007/openwebtext",
        name="plain_text",
        revision="79d93d786212f7344586290adb811d4ae6a1762c",
    )


def lm1b() -> Corpus:
    """Return One Billion Word in BERT's tokens, its test split held out, detokenised (MDLM's protocol)."""
    return Corpus(
        train=Source(path="dvruette/lm1b"),
        validation=Source(path="dvruette/lm1b", split="test"),
        tokenizer="bert-base-uncased",
        detokenizer="lm1b",
    )


def speeches(words: int = 1024, held_out: int = 1000) -> Corpus:
    """Return paragraphs of State of the Union addresses, the newest held out: no download, prepared in seconds."""
    return _last_held_out(held_out, tokenizer=f"train:{words}", path=SOTU)


def local(
    files: str,
    tokenizer: str,
    held_out: int | str,
    column: str = "text",
    sample_by: SampleBy = BY_LINE,
) -> Corpus:
    """Return a corpus of local files.

    Args:
        files: a file, a folder or a pattern.
        tokenizer: see ``Corpus``.
        held_out: number of held-out documents at the end, or the files with other ones.
        column: name of the documents' column.
        sample_by: unit of a document in a .txt file, see ``Source``.
    """
    if isinstance(held_out, int):
        return _last_held_out(held_out, tokenizer=tokenizer, path=files, column=column, sample_by=sample_by)
    train, validation = (Source(path=path, column=column, sample_by=sample_by) for path in (files, held_out))
    return Corpus(train=train, validation=validation, tokenizer=tokenizer)


def _last_held_out(count: int, tokenizer: str, **source: str) -> Corpus:
    if count < 1:
        raise ValueError(f"held_out={count}: must be at least 1 document")
    train, validation = (Source(**source, split=split) for split in (f"train[:-{count}]", f"train[-{count}:]"))
    return Corpus(train=train, validation=validation, tokenizer=tokenizer)
