"""Limits of JSON schemas from requests: each is converted in a process of its own first.

    python -m recipes.serving.limits < schema.json

A pattern of twenty characters may have an automaton of a million states, and nothing in this
process can stop its construction. The other process has a limit of time and of memory, and prints
the number of states over bytes.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from recipes.generation.patterns import OF_BYTES, is_quotable, regex_of, transitions_of
from recipes.generation.schemas import adapt_schema

NAME = "response_format"
CHARACTERS = 16_384
"""Largest size of a schema as JSON."""
STATES = 4096
"""Largest number of states over bytes."""
SECONDS = 2
"""Largest time of the conversion."""
MEMORY = 2**30
"""Bytes of memory of the conversion."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema can be converted within the limits.

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
            command, input=text, capture_output=True, text=True, timeout=3 * SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(_too_large()) from None
    if child.returncode == 2:
        raise ValueError(child.stdout)
    if child.returncode != 0 or int(child.stdout) > STATES:
        raise ValueError(_too_large())


def _too_large() -> str:
    return (
        f"{NAME}: the automaton of the schema is too large, must have at most {STATES} states over "
        f"bytes and be made in {SECONDS} seconds; bound its patterns, lengths and nesting"
    )


def main() -> int:
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    schema = json.load(sys.stdin)
    try:
        adapted = adapt_schema(schema, partial(is_quotable, NAME), f"{NAME}: #")
        transitions, *_ = transitions_of(NAME, regex_of(NAME, adapted), OF_BYTES, 256)
    except (ValueError, ModuleNotFoundError) as error:
        print(error, end="")
        return 2
    print(len(transitions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
