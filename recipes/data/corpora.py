"""Which text is trained on, which is held out, and how both are cut into tokens."""

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
    """Becomes a word of the vocabulary where it is none."""
    bos: str | None = None
    """None: <|endoftext|>, [CLS] or <s>, whichever the tokenizer has."""
    eos: str | None = None
    """None: <|endoftext|>, [SEP] or </s>."""
    detokenizer: Literal["lm1b"] | None = None
    """What undoes the spacing of a corpus that was cut into words."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.train == self.validation:
            raise ValueError(f"validation={self.validation}: the same documents as train, hold others out")


def openwebtext(held_out: int = 100_000) -> Corpus:
    """OpenWebText in GPT-2's tokens; the last 100,000 documents are held out, as MDLM, GIDD and HDLM do."""
    return _last_held_out(
        held_out,
        tokenizer="gpt2",
        path="Skylion007/openwebtext",
        name="plain_text",
        revision="79d93d786212f7344586290adb811d4ae6a1762c",
    )


def lm1b() -> Corpus:
    """The One Billion Word benchmark in BERT's tokens, its test split held out, spaced as written (MDLM's protocol)."""
    return Corpus(
        train=Source(path="dvruette/lm1b"),
        validation=Source(path="dvruette/lm1b", split="test"),
        tokenizer="bert-base-uncased",
        detokenizer="lm1b",
    )


def speeches(words: int = 1024, held_out: int = 1000) -> Corpus:
    """Paragraphs of State of the Union addresses, the newest held out: needs no network, is prepared in seconds."""
    return _last_held_out(held_out, tokenizer=f"train:{words}", path=SOTU)


def local(
    files: str,
    tokenizer: str,
    held_out: int | str,
    column: str = "text",
    sample_by: SampleBy = BY_LINE,
) -> Corpus:
    """One's own files.

    Args:
        files: a file, a folder or a pattern.
        tokenizer: see ``Corpus``.
        held_out: how many of the last documents, or the files that hold other ones.
        column: where the documents stand.
        sample_by: what a document of a .txt file is, see ``Source``.
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
