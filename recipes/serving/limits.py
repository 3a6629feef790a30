"""Limits of JSON schemas from requests: each is converted in a process of its own first.

A pattern of twenty characters may have an automaton of a million states, and nothing in a process
can stop its construction. The other process makes the same conversion with a limit of time and of
memory. It reads the schema and the vocabulary from its input, and prints the number of transitions.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import chain
from typing import Any

from recipes.generation.patterns import schema_pattern, tokens_by_piece, transitions_of

NAME = "response_format"
CHARACTERS = 16_384
"""Largest size of a schema as JSON."""
TRANSITIONS = 2**21
"""Largest number of transitions of the automaton over tokens."""
SECONDS = 3
"""Largest time of the conversion on a processor."""
MEMORY = 2**30
"""Bytes of memory of the conversion."""


def write_vocabulary(pieces: Mapping[int, bytes]) -> str:
    """Return the bytes of each token in the form that ``check_schema`` takes."""
    return json.dumps({piece.hex(): tokens for piece, tokens in tokens_by_piece(pieces).items()})


def check_schema(schema: Mapping[str, Any], vocabulary: str) -> None:
    """Check that a schema can be converted within the limits.

    Args:
        schema: the schema.
        vocabulary: see ``write_vocabulary``.

    Raises:
        ValueError: it cannot, or it is not one that is supported.
    """
    text = json.dumps(schema)
    if len(text) > CHARACTERS:
        raise ValueError(
            f"{NAME}: the schema has {len(text)} characters, must have at most {CHARACTERS}"
        )
    command = [sys.executable, "-m", "recipes.serving.limits"]
    try:
        child = subprocess.run(
            command,
            input=f"[{text}, {vocabulary}]",
            capture_output=True,
            text=True,
            timeout=3 * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(_too_large()) from None
    if child.returncode == 2:
        raise ValueError(child.stdout)
    if child.returncode != 0 or int(child.stdout) > TRANSITIONS:
        raise ValueError(_too_large())


def _too_large() -> str:
    return (
        f"{NAME}: the automaton of the schema is too large, must have at most {TRANSITIONS} "
        f"transitions and be made in {SECONDS} seconds; bound its patterns, lengths and nesting"
    )


def main() -> int:
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    schema, vocabulary = json.load(sys.stdin)
    tokens = {bytes.fromhex(piece): numbers for piece, numbers in vocabulary.items()}
    size = max(chain(*tokens.values()), default=0) + 1
    try:
        transitions, *_ = transitions_of(NAME, schema_pattern(NAME, schema), tokens, size)
    except (ValueError, ModuleNotFoundError) as error:
        print(error, end="")
        return 2
    print(sum(map(len, transitions.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
