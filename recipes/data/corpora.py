"""Corpora: training text, held-out text and tokenizer.

Or sequences of symbols that are not text.
"""

from dataclasses import dataclass
from typing import Any, Literal

from recipes.data.source import BY_LINE, POETRY, SOTU, STRICT, SampleBy, Source


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text and tokenizer. A document becomes ``bos``, its tokens, ``eos``.

    Raises:
        ValueError: training and validation are the same documents.
    """

    train: Source
    validation: Source
    tokenizer: str
    """A model of the hub; a tokenizer.json or a folder with one; or "train:4096" to learn 4096 from
    the text.
    """
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
            raise ValueError(f"validation={self.validation}: must be other documents than train")


@dataclass(frozen=True, kw_only=True)
class SymbolCorpus:
    """Sequences of symbols that are not text, from a source of ``ddlib.sources``, and those held
    out.

    Raises:
        ValueError: held-out sequences in two ways; none.
    """

    source: dict[str, Any] | str
    """A source of ``ddlib.sources`` with its options: {kind: array, files: codes.npy} or
    "array:codes.npy".
    """
    held_out: int | None = None
    """Number of sequences for validation, the last ones, of each class in equal shares.

    None: a twentieth, at least two.
    """
    validation: dict[str, Any] | str | None = None
    """Another source, for validation."""
    shuffle: int | None = None
    """Seed of a shuffle before sequences are held out; none keeps their order."""
    ends: bool = False
    """Add an end symbol and padding: the model learns lengths, as for text."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if self.validation is not None:
            if self.held_out is not None:
                raise ValueError(
                    f"held_out={self.held_out}: not with validation, which names the held-out "
                    "sequences"
                )
            if self.validation == self.source:
                raise ValueError(
                    f"validation={self.validation}: must be other sequences than source"
                )
        if self.held_out is not None and self.held_out < 1:
            raise ValueError(f"held_out={self.held_out}: must be at least 1 sequence")
        if self.shuffle is not None and self.shuffle < 0:
            raise ValueError(f"shuffle={self.shuffle}: must be at least 0, as it is a seed")


def openwebtext(held_out: int = 100_000) -> Corpus:
    """Return OpenWebText in GPT-2's tokens.

    The last 100,000 documents are held out, as in MDLM, GIDD and HDLM.
    """
    return _last_held_out(
        held_out,
        tokenizer="gpt2",
        path="Skylion007/openwebtext",
        name="plain_text",
        revision="79d93d786212f7344586290adb811d4ae6a1762c",
    )


def lm1b() -> Corpus:
    """Return One Billion Word in BERT's tokens, its test split held out, detokenised (MDLM's
    protocol).
    """
    return Corpus(
        train=Source(path="dvruette/lm1b"),
        validation=Source(path="dvruette/lm1b", split="test"),
        tokenizer="bert-base-uncased",
        detokenizer="lm1b",
    )


def speeches(words: int = 1024, held_out: int = 1000) -> Corpus:
    """Return paragraphs of State of the Union addresses, the newest held out: no download, prepared
    in seconds.
    """
    return _last_held_out(held_out, tokenizer=f"train:{words}", path=SOTU)


def poetry(words: int = 4096, held_out: int = 2000) -> Corpus:
    """Return passages of verse of the Gutenberg Poetry Corpus, the last ones held out: no
    download.
    """
    return _last_held_out(held_out, tokenizer=f"train:{words}", path=POETRY)


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
        return _last_held_out(
            held_out, tokenizer=tokenizer, path=files, column=column, sample_by=sample_by
        )
    train, validation = (
        Source(path=path, column=column, sample_by=sample_by) for path in (files, held_out)
    )
    return Corpus(train=train, validation=validation, tokenizer=tokenizer)


def _last_held_out(count: int, tokenizer: str, **source: str) -> Corpus:
    if count < 1:
        raise ValueError(f"held_out={count}: must be at least 1 document")
    train, validation = (
        Source(**source, split=split) for split in (f"train[:-{count}]", f"train[-{count}:]")
    )
    return Corpus(train=train, validation=validation, tokenizer=tokenizer)
