"""The console, noisy text in colour, and errors in one line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from jaxtyping import Int
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer
from torch import Tensor

MASK = "_"
CLUSTER_STYLE, MASK_STYLE = "dark_orange italic", "grey50"


@contextmanager
def plain_errors() -> Iterator[None]:
    """What a user can mend ends a command in one line; with the traceback where DDLIB_DEBUG is set."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("DDLIB_DEBUG", "0") not in ("", "0"):
            raise
        raise SystemExit(f"error: {error}") from error


def make_console(file: TextIO | None = None) -> Console:
    """A console that wraps plain output at 100 columns and never fails on what the terminal cannot spell."""
    file = sys.stdout if file is None else file
    if hasattr(file, "reconfigure"):
        file.reconfigure(errors="replace")
    return Console(file=file, highlight=False, width=None if file.isatty() else 100)


def render(tokenizer: Tokenizer, states: Int[Tensor, " L"], names: list[str]) -> Text:
    """Noisy text of one sequence: words as they are, clusters as [name], masks as _.

    Args:
        tokenizer: spells the words 0..V-1.
        states: words, then clusters, then the mask.
        names: of the clusters, in the order of their states.
    """
    vocab_size, text, run = tokenizer.get_vocab_size(), Text(), []

    def flush() -> None:
        # Neighbouring words are decoded together: a character may be spread over several of them.
        text.append(tokenizer.decode(run).replace("\n", " ¶ "))
        run.clear()

    for state in states.tolist():
        if state < vocab_size:
            run.append(state)
            continue
        flush()
        if state < vocab_size + len(names):
            text.append(f" [{names[state - vocab_size]}]", style=CLUSTER_STYLE)
        else:
            text.append(f" {MASK}", style=MASK_STYLE)
    flush()
    return text
