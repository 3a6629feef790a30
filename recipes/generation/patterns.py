"""Automata of regular expressions and JSON schemas over bytes or tokens, by outlines-core."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from recipes.generation.schemas import adapt_schema

INSTALL = 'pip install "ddlib[constraints]"'
END = "\U0010ffff"
"""Mark behind a pattern, a character that no text has."""
OF_BYTES = {bytes([byte]): [byte] for byte in range(256)}
"""Tokens of one byte each."""


def without_anchors(pattern: str) -> str:
    """Return the pattern without ^ at the beginning and $ at the end: it matches whole texts."""
    ended = pattern.removeprefix("^")
    before = ended[:-1]
    escaped = (len(before) - len(before.rstrip("\\"))) % 2
    return before if ended.endswith("$") and not escaped else ended


def _outlines(name: str) -> Any:
    """Import outlines_core.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import outlines_core
        import outlines_core.json_schema
    except ImportError as error:
        raise ModuleNotFoundError(f"{name} needs outlines-core; run: {INSTALL}") from error
    return outlines_core


def regex_of(name: str, schema: Any) -> str:
    """Return the regular expression of a schema.

    Raises:
        ValueError: outlines-core has none.
    """
    try:
        return _outlines(name).json_schema.build_regex_from_schema(json.dumps(schema))
    except ValueError as error:
        raise ValueError(f"{name}: outlines-core cannot convert it: {error}") from error


def schema_pattern(name: str, schema: Any) -> str:
    """Return the regular expression of a JSON schema, whose texts are all valid.

    Raises:
        ValueError: as in ``adapt_schema`` and ``regex_of``.
    """
    return regex_of(name, adapt_schema(schema, partial(is_quotable, name), f"{name}: #"))


def tokens_by_piece(pieces: Mapping[int, bytes]) -> dict[bytes, list[int]]:
    """Return the tokens of each sequence of bytes, from the bytes of each token."""
    tokens: dict[bytes, list[int]] = {}
    for token, piece in pieces.items():
        tokens.setdefault(piece, []).append(token)
    return tokens


def is_quotable(name: str, schema: Any) -> bool:
    """Return whether no text of a schema of strings has a quote, a backslash or a control character
    inside.
    """
    transitions, first, accepting = transitions_of(name, regex_of(name, schema), OF_BYTES, 256)
    inside = [row for state, row in transitions.items() if state != first]
    ends = {row[ord('"')] for row in inside if ord('"') in row}
    barred = {ord("\\"), *range(ord(" "))}
    return not any(row.keys() & barred for row in inside) and all(
        state in accepting and transitions.get(state, {}).keys() <= set(END.encode())
        for state in ends
    )


def transitions_of(
    name: str, pattern: str, tokens: Mapping[bytes, list[int]], size: int
) -> tuple[dict[int, dict[int, int]], int, set[int]]:
    """Return the transitions of a pattern's automaton by tokens, the first state, and the accepting
    states.

    outlines-core 0.2.14 alone takes the shortest match: its index of "1(.5)?" has no transition
    behind "1" by "." and none by the second alternative of "a|ab". So a mark stands behind the
    pattern, as one more token: before it there is no match, and the states that it leads to a match
    are those that accept. It is a character, so that "." and "[^a]" may lead on by it without a
    match.
    """
    mark = size + 1
    index = index_of(name, f"(?:{pattern}){END}", {**tokens, END.encode(): [mark]}, size)
    table = index.get_transitions()
    transitions = {
        state: {token: to for token, to in row.items() if token < size}
        for state, row in table.items()
    }
    matches = index.get_final_states()
    return (
        transitions,
        index.get_initial_state(),
        {state for state, row in table.items() if row.get(mark) in matches},
    )


def index_of(name: str, pattern: str, tokens: Mapping[bytes, list[int]], end: int) -> Any:
    """Return the index of outlines-core for a pattern.

    Raises:
        ValueError: it has none.
    """
    outlines = _outlines(name)
    try:
        return outlines.Index(pattern, outlines.Vocabulary(end, dict(tokens)))
    except ValueError as error:
        raise ValueError(
            f"{name}: outlines-core cannot convert it, as it does not support look-around and "
            f"back-references: {error}"
        ) from error
