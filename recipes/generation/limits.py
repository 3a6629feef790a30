"""Limits of JSON schemas: each is converted in a process of its own first.

A pattern of twenty characters may have an automaton of a million states, and nothing in a process
can stop its construction. The other process makes the same conversion with a limit of time and of
memory. It reads name, schema and tokens from its input, and prints the number of transitions.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from recipes.generation.patterns import schema_pattern, transitions_of

CHARACTERS = 16_384
"""Largest size of a schema as JSON."""
TRANSITIONS = 2**21
"""Largest number of transitions of the automaton over tokens."""
SECONDS = 3
"""Largest time of the conversion on a processor."""
MEMORY = 2**30
"""Bytes of memory of the conversion."""


def check_schema(name: str, schema: Any, tokens: Mapping[bytes, list[int]]) -> None:
    """Check that a schema can be converted within the limits.

    Args:
        name: name of the schema, for messages.
        schema: the schema.
        tokens: the tokens of each sequence of bytes.

    Raises:
        ValueError: it cannot, or it is not one that is supported.
    """
    text = json.dumps(schema)
    if len(text) > CHARACTERS:
        raise ValueError(
            f"{name}: the schema has {len(text)} characters, must have at most {CHARACTERS}"
        )
    vocabulary = {piece.hex(): numbers for piece, numbers in tokens.items()}
    command = [sys.executable, "-m", "recipes.generation.limits"]
    try:
        child = subprocess.run(
            command,
            input=json.dumps([name, schema, vocabulary]),
            capture_output=True,
            text=True,
            timeout=3 * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(_too_large(name)) from None
    if child.returncode == 2:
        raise ValueError(child.stdout)
    if child.returncode != 0 or int(child.stdout) > TRANSITIONS:
        raise ValueError(_too_large(name))


def _too_large(name: str) -> str:
    return (
        f"{name}: the automaton of the schema is too large, must have at most {TRANSITIONS} "
        f"transitions and be made in {SECONDS} seconds; bound its patterns, lengths and nesting"
    )


def main() -> int:
    with suppress(ModuleNotFoundError):  # on Windows, where the time of the caller is the limit
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    name, schema, vocabulary = json.load(sys.stdin)
    tokens = {bytes.fromhex(piece): numbers for piece, numbers in vocabulary.items()}
    size = max(chain(*tokens.values()), default=0) + 1
    try:
        transitions, *_ = transitions_of(name, schema_pattern(name, schema), tokens, size)
    except (ValueError, ModuleNotFoundError) as error:
        print(error, end="")
        return 2
    print(sum(map(len, transitions.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
