"""Pairs of answers to one prompt, of which one is preferred: from a file or a prepared folder."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int

from recipes.data.agreement import check_same_tokens
from recipes.data.prepared import Documents, Prepared, open_prepared
from recipes.data.tokens import special_pattern
from recipes.data.unknown import Symbols, show_symbol

KEYS = ("prompt", "chosen", "rejected")
"""Keys of a line of a file of pairs."""


@dataclass(frozen=True)
class Answer:
    """A prompt with an answer."""

    tokens: Int[np.ndarray, " n"]
    given: Bool[np.ndarray, " n"]
    """True at the prompt."""

    def plain(self) -> bytes:
        """Return the tokens and marks, ended by a semicolon."""
        return self.tokens.astype("<i8").tobytes() + self.given.tobytes() + b";"


@dataclass(frozen=True)
class Pairs:
    """Pairs of answers: ``chosen[i]`` and ``rejected[i]`` answer one prompt, their given tokens."""

    chosen: Documents
    rejected: Documents
    digest: bytes
    """SHA-256 of all tokens and marks."""

    def __len__(self) -> int:
        return len(self.chosen)


def read_pairs(path: Path, data: Prepared, length: int) -> Pairs:
    """Read pairs in the tokens of a run.

    A file has a JSON object per line with the keys ``prompt``, ``chosen`` and ``rejected``, each a
    text or a list of ids. Texts are encoded separately. The token of the beginning comes before a
    prompt and that of the end behind an answer; ids stay as they are. Of a prepared folder the
    training documents 2i and 2i + 1 are the chosen and the rejected answer of pair i, and their
    given tokens are the prompt. Pairs that repeat others count again, with a warning.

    Args:
        path: file or folder.
        data: the prepared data of the run, whose tokens they have.
        length: tokens of a row, which hold the prompt and an answer.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no pair; a line that is not such an object, or has further keys; a symbol or an
            id that the tokenizer lacks; a folder that was shuffled, or lacks sequences of its
            source; an odd number of documents; two prompts in a pair, equal
            answers, an answer without a token, or one that does not fit a row. The message has the
            place.
    """
    named = _read_folder(path, data) if path.is_dir() else _read_file(path, data)
    pairs = []
    places: dict[bytes, list[str]] = {}
    for place, chosen, rejected in named:
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            _check_answer(f"{place}: {name}", answer, data, length)
        _check_pair(place, chosen, rejected)
        pairs.append((chosen, rejected))
        places.setdefault(chosen.plain() + rejected.plain(), []).append(place)
    if not pairs:
        raise ValueError(f"pairs={path}: has no pair, must have at least 1")
    if repeated := [each for each in places.values() if len(each) > 1]:
        warnings.warn(
            f"{repeated[0][1]} repeats the pair of {repeated[0][0].removeprefix(f'pairs={path}: ')}"
            f"; {len(pairs) - len(places)} of {len(pairs)} pairs are repeated, and count again",
            stacklevel=2,
        )
    digest = hashlib.sha256()
    for answer in (answer for pair in pairs for answer in pair):
        digest.update(answer.plain())
    columns = (_documents(answers, data.vocab_size) for answers in zip(*pairs, strict=True))
    return Pairs(*columns, digest.digest())


def _documents(answers: Sequence[Answer], vocab_size: int) -> Documents:
    tokens, given = (
        pa.chunked_array([pa.array(rows, pa.list_(kind))])
        for rows, kind in (
            ([answer.tokens for answer in answers], pa.uint32()),
            ([answer.given.astype(np.uint8) for answer in answers], pa.uint8()),
        )
    )
    return Documents(tokens, None, vocab_size, given=given)


def _read_folder(path: Path, data: Prepared) -> Iterator[tuple[str, Answer, Answer]]:
    """Yield the place and the answers of each pair of a prepared folder."""
    folder = open_prepared(path)
    advice = "Prepare the pairs with the tokenizer of the run"
    check_same_tokens(f"pairs={path}", folder.vocabulary, data.vocabulary, advice)
    documents = folder.train
    if not documents.has_given:
        raise ValueError(
            f"pairs={path}: holds sequences without given tokens, must hold prompts, which are "
            "given, with the chosen and the rejected answer in turn"
        )
    facts = folder.manifest["train"]
    if left_out := facts["empty"] + facts.get("left_out", 0):
        raise ValueError(
            f"pairs={path}: {left_out} sequences of its source were left out, must hold all: the "
            "others are no longer chosen and rejected answers in turn; leave out both answers of "
            "a pair before preparing it, or prepare it without a limit (chat --longest)"
        )
    if folder.manifest["corpus"]["shuffle"] is not None:
        raise ValueError(
            f"pairs={path}: was shuffled, must be in the order of its source: chosen and rejected "
            "answers in turn; prepare it without --shuffle"
        )
    if len(documents) % 2:
        raise ValueError(
            f"pairs={path}: holds {len(documents)} training documents, must hold an even number: "
            "chosen and rejected answers in turn; hold out an even number (--held-out)"
        )
    for first in range(0, len(documents), 2):
        answers = [
            Answer(documents[number].astype(np.int64), documents.given(number))
            for number in (first, first + 1)
        ]
        yield f"pairs={path}: documents {first} and {first + 1}", answers[0], answers[1]


def _read_file(path: Path, data: Prepared) -> Iterator[tuple[str, Answer, Answer]]:
    """Yield the place and the answers of each line of a file."""
    if not path.is_file():
        raise FileNotFoundError(f"pairs={path}: there is no such file or folder")
    ids = _Ids(data)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"pairs={path}: must be text in UTF-8: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"pairs={path}: line {number}"
        values = _object(place, line)
        parts = {name: ids.read(f"{place}: {name}", values[name]) for name in KEYS}
        prompt = ids.begin(values["prompt"]) + parts["prompt"]
        answers = [_answer(prompt, parts[name] + ids.end(values[name])) for name in KEYS[1:]]
        yield place, answers[0], answers[1]


def _object(place: str, line: str) -> Mapping[str, Any]:
    """Return the object of a line."""
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}") from error
    keys = values if isinstance(values, dict) else ()
    wrong = {
        "has no": [name for name in KEYS if name not in keys],
        "has": [name for name in keys if name not in KEYS],
    }
    faults = [f"{what} {', '.join(names)}" for what, names in wrong.items() if names]
    if faults:
        raise ValueError(
            f"{place} {' and '.join(faults)}: must be an object with the keys {', '.join(KEYS)} "
            "alone; a prompt may be empty"
        )
    return values


class _Ids:
    """Token ids of the parts of a line.

    Args:
        data: the prepared data of the run.
    """

    def __init__(self, data: Prepared) -> None:
        self._symbols = Symbols(data.tokenizer)
        self._special = special_pattern(data.tokenizer.get_added_tokens_decoder())
        self._template = data.template
        self._bos = data.bos_id
        self._eos = data.eos_id

    def read(self, place: str, value: object) -> list[int]:
        """Return the ids of a text, or the ids themselves."""
        if isinstance(value, str):
            if self._template:
                raise ValueError(
                    f"{place} is a text, must be a list of ids: the run formats messages by a chat "
                    "template. Prepare the chosen and the rejected conversation in turn (python -m "
                    "recipes.prepare chat), and pass that folder"
                )
            special = self._special.search(value)
            if special is not None:
                raise ValueError(
                    f"{place} contains {special[0]!r}, a special token of the tokenizer, which a "
                    "text must not write; pass a list of ids"
                )
            ((ids, unknown),) = self._symbols.read([value])
            if unknown:
                raise ValueError(
                    f"{place} has {show_symbol(unknown[0])}, which the tokenizer of the run lacks "
                    f"and which {self._symbols.become}"
                )
            return ids
        if isinstance(value, list) and all(type(one) is int for one in value):
            return value
        raise ValueError(f"{place} is {value!r}, must be a text or a list of ids")

    def begin(self, prompt: object) -> list[int]:
        """Return what comes before a prompt."""
        return [self._bos] if isinstance(prompt, str) and self._bos is not None else []

    def end(self, answer: object) -> list[int]:
        """Return what comes behind an answer."""
        return [self._eos] if isinstance(answer, str) and self._eos is not None else []


def _answer(prompt: Sequence[int], answer: Sequence[int]) -> Answer:
    tokens = np.array([*prompt, *answer], dtype=np.int64)
    return Answer(tokens, np.arange(len(tokens)) < len(prompt))


def _check_answer(place: str, answer: Answer, data: Prepared, length: int) -> None:
    """Raise ValueError unless an answer has tokens of the run and fits a row."""
    size = len(answer.tokens)
    if answer.given.all():
        raise ValueError(f"{place} has no token behind the prompt, must have at least 1")
    for token in (int(answer.tokens.min()), int(answer.tokens.max())):
        if not 0 <= token < data.vocab_size:
            raise ValueError(f"{place} holds id {token}, must be in [0, {data.vocab_size})")
    if data.pad_id not in (None, data.eos_id) and (answer.tokens == data.pad_id).any():
        raise ValueError(
            f"{place} holds the padding {data.pad_id}, must not: rows are padded behind an answer"
        )
    if size > length:
        raise ValueError(
            f"{place} has {size} tokens with its prompt, must have at most data.length={length}"
        )
    if size < length and data.pad_id is None:
        raise ValueError(
            f"{place} has {size} tokens with its prompt, must have data.length={length}: "
            f"{data.folder} has no padding"
        )


def _check_pair(place: str, chosen: Answer, rejected: Answer) -> None:
    """Raise ValueError unless two answers differ and have one prompt."""
    prompts = [
        (np.flatnonzero(answer.given), answer.tokens[answer.given]) for answer in (chosen, rejected)
    ]
    if not all(map(np.array_equal, *prompts)):
        raise ValueError(
            f"{place}: the given tokens of the two answers differ, must be one prompt at the same "
            f"positions; they are {_short(prompts[0][1])} and {_short(prompts[1][1])}"
        )
    if np.array_equal(chosen.tokens, rejected.tokens):
        raise ValueError(f"{place}: chosen and rejected are equal, must differ")


def _short(ids: Int[np.ndarray, " n"], most: int = 12) -> str:
    """Return the first ids as text."""
    more = ", ..." if len(ids) > most else ""
    return f"[{', '.join(map(str, ids[:most]))}{more}]"
