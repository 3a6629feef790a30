"""Constraints on the drawn text: a regular expression or a JSON schema, as an automaton over the
tokens of a model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

import ddlib as dd
from ddlib.samplers import Sampler
from recipes.generation.limits import check_schema
from recipes.generation.patterns import (
    OF_BYTES,
    index_of,
    schema_pattern,
    tokens_by_piece,
    transitions_of,
    without_anchors,
)
from recipes.generation.prompt import Row, has_gaps, mask_row, together
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadedModel, make_sampler

SPACE = "▁"
"""Character for a space in the tokens of SentencePiece."""


@dataclass(frozen=True)
class Constraint:
    """Regular expression or JSON schema that the drawn text matches, before the model is known.

    The constraint is on the text behind a prompt, or on the whole text of a prompt with gaps.

    Args:
        regex: the regular expression, in the syntax of outlines-core, for the whole text.
        json_schema: a JSON schema, or a file with one.

    Raises:
        ValueError: both arguments, or none.
    """

    regex: str | None = None
    json_schema: Path | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.regex is None) == (self.json_schema is None):
            raise ValueError(
                f"regex={self.regex!r}: not with json_schema={self.json_schema}, give one of them"
            )

    def check(self) -> None:
        """Check the pattern before there is a model.

        Raises:
            ModuleNotFoundError: outlines-core is not installed.
            OSError: no file that can be read.
            ValueError: a pattern or a schema that is invalid, or that outlines-core does not
                support, or a schema above the limits of ``recipes.generation.limits``.
        """
        if self.json_schema is not None:
            check_schema(self.name, self.schema, OF_BYTES)
            return
        # alone: "a)(b" is a pattern between brackets
        index_of(self.name, self.pattern, OF_BYTES, 256)
        transitions_of(self.name, self.pattern, OF_BYTES, 256)

    @property
    def name(self) -> str:
        """Name and value of the option, for messages."""
        if self.json_schema is None:
            return f"regex={self.regex!r}"
        return (
            f"json_schema={self.json_schema}"
            if isinstance(self.json_schema, Path)
            else "json_schema"
        )

    @property
    def pattern(self) -> str:
        """Regular expression of the text."""
        if self.json_schema is None:
            assert self.regex is not None
            return without_anchors(self.regex)
        return schema_pattern(self.name, self.schema)

    @property
    def schema(self) -> Any:
        """The JSON schema.

        Raises:
            OSError: no file that can be read.
            ValueError: a file that is not JSON in UTF-8.
        """
        assert self.json_schema is not None
        if not isinstance(self.json_schema, Path):
            return dict(self.json_schema)
        try:
            return json.loads(self.json_schema.read_text(encoding="utf-8"))
        except OSError as error:
            raise type(error)(f"{self.name}: cannot be read: {error.strerror}") from error
        except ValueError as error:  # also what is not UTF-8
            raise ValueError(f"{self.name}: must be a file of JSON: {error}") from error

    @property
    def setting(self) -> Mapping[str, Any]:
        """Value that determines a sample, for its protocol."""
        return {"regex": self.regex} if self.json_schema is None else {"json_schema": self.schema}

    def automaton(self, saved: LoadedModel) -> dd.contrib.Automaton:
        """Return the automaton over the tokens of a model.

        A text ends by the end token of the model, and what fills its rows stands behind. For a
        model without an end the text fills the row.

        Raises:
            ValueError: a tokenizer whose tokens do not stand for bytes; a pattern that its tokens
                cannot form; a schema above the limits of ``recipes.generation.limits``.
        """
        size = saved.process.vocab_size
        end = saved.special.eos
        tokens = tokens_by_piece(pieces(saved))
        if self.json_schema is not None:
            check_schema(self.name, self.schema, tokens)
        transitions, first, accepting = transitions_of(self.name, self.pattern, tokens, size)
        return dd.contrib.Automaton(
            transitions, first, accepting, size, end, None if end is None else saved.behind
        )

    def automaton_of(
        self, saved: LoadedModel, sampling: Sampling, rows: Sequence[Row]
    ) -> dd.contrib.Automaton:
        """Return the automaton, after checking that the rows can be drawn by it.

        Raises:
            ValueError: the process, the sampler or the options do not support it; no text as long
                as a row matches; or as in ``automaton``.
        """
        automaton = self.automaton(saved)
        sampler = make_sampler(saved, sampling.sampler)
        try:
            for row in rows:
                dd.plan(
                    saved.process,
                    saved.denoiser,
                    (1, row.length - row.lead),
                    sampler,
                    prompt=mask_row(saved, row)[row.lead :].to(saved.process.device),
                    controls=[
                        dd.controls.Forbidden(sampling.forbidden_tokens(saved)),
                        *sampling.endings(saved),
                        dd.contrib.Constraint(automaton.behind(start(saved, row))),
                    ],
                )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name}: {error}") from error
        return automaton


def begun(saved: LoadedModel, row: Row) -> Row:
    """Return the row with the beginning of a text given, where it would be drawn."""
    if row.text is not None or len(row.states) or row.lead or not saved.beginning:
        return row
    return replace(
        row, states=torch.tensor(saved.beginning, dtype=torch.int64), prompted=len(saved.beginning)
    )


def start(saved: LoadedModel, row: Row) -> int:
    """Return the number of positions before the text that is constrained, without the lead."""
    whole = not row.chat and has_gaps(row.text)
    return (len(saved.beginning) if whole else len(row.states)) - row.lead


def alike(
    saved: LoadedModel, rows: Sequence[Row], block: int | None, sampler: Sampler, size: int
) -> Iterator[list[int]]:
    """Yield indices of rows that can be drawn in one batch under a constraint: those of one start
    and length.
    """
    kinds: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(rows):
        kinds.setdefault((start(saved, row), row.length), []).append(number)
    for numbers in kinds.values():
        for group in together(saved, [rows[number] for number in numbers], block, sampler, size):
            yield [numbers[place] for place in group]


def pieces(saved: LoadedModel) -> dict[int, bytes]:
    """Return the bytes of each token, without special and empty ones.

    Raises:
        ValueError: a tokenizer whose tokens depend on others when they are decoded, as those of
            WordPiece do.
    """
    tokenizer = saved.tokenizer
    backend = getattr(saved.tokenizer, "backend", saved.tokenizer)
    special = {word for word in (saved.special.bos, *saved.ends) if word is not None}
    added: dict[int, str] = {}
    kinds: set[str] = set()
    if isinstance(backend, Tokenizer):
        for word, token in backend.get_added_tokens_decoder().items():
            if token.special:
                special.add(word)
            else:
                added[word] = token.content
        kinds = _kinds(json.loads(backend.to_str())["decoder"])
    size = min(saved.process.vocab_size, tokenizer.get_vocab_size())
    entries = {word: tokenizer.id_to_token(word) for word in range(size) if word not in special}
    entries = {word: entry for word, entry in entries.items() if entry is not None}
    if saved.symbols is not None and saved.symbols.token is not None:
        entries = {word: entry for word, entry in entries.items() if entry != saved.symbols.token}
    if "ByteLevel" in kinds:
        bytes_of = {
            word: _from_byte_level(entry) for word, entry in entries.items() if word not in added
        }
    elif kinds & {"ByteFallback", "Metaspace"}:
        bytes_of = {
            word: _from_sentence_piece(entry)
            for word, entry in entries.items()
            if word not in added
        }
    else:
        bytes_of = {
            word: tokenizer.decode([word]).encode() for word in entries if word not in added
        }
        if tokenizer.decode(list(bytes_of)).encode() != b"".join(bytes_of.values()):
            raise ValueError(
                f"{saved.name}: its tokenizer decodes tokens jointly, for example with spaces "
                "between them, so a "
                "constraint on text cannot be converted to one on tokens. It must be byte-level, "
                "have byte fallback "
                "or be one of symbols; in Python dd.contrib.Constraint takes an Automaton over "
                "tokens"
            )
    bytes_of |= {word: text.encode() for word, text in added.items() if word in entries}
    return {word: piece for word, piece in bytes_of.items() if piece}


def _kinds(decoder: Any) -> set[str]:
    """Return the names of a decoder of ``tokenizers`` and of the parts of a sequence of them."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", ())))


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte for which each character of a byte-level token stands, as in GPT-2."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
    assert table.keys() == set(ByteLevel.alphabet())
    return table


_BYTES = _bytes_of_characters()


def _from_byte_level(entry: str) -> bytes:
    return (
        bytes(_BYTES[character] for character in entry)
        if all(c in _BYTES for c in entry)
        else entry.encode()
    )


def _from_sentence_piece(entry: str) -> bytes:
    if len(entry) == 6 and entry.startswith("<0x") and entry.endswith(">"):
        return bytes([int(entry[3:5], 16)])
    return entry.replace(SPACE, " ").encode()
