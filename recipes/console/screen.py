"""Console output: noisy text in colour, and errors in one line."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dis import opname
from itertools import groupby
from typing import NoReturn, TextIO

import torch
from jaxtyping import Int
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer
from torch import Tensor

from ddlib.processes import ForwardProcess

MASK, CLUSTER = "_", "\u2039{}\u203a"
"""Symbols of a mask and of a cluster in noisy text: brackets that are rare in natural text."""
OURS = ("ddlib", "ddlib_models", "recipes")
"""Packages whose TypeErrors and RuntimeErrors are reported in one line."""
CLUSTER_STYLE = "dark_orange italic"
MASK_STYLE = "grey50"


def command(main: Callable[[], object]) -> NoReturn:
    """Run a command of this process and exit.

    The exit status is that of ``main`` if it returns one, and 1 without a message if the reader of
    its output has exited, as ``head`` does.
    """
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()  # also of a SystemExit, after --help
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    raise SystemExit(status if isinstance(status, int) else 0)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report user errors in one line; with the traceback where DDLIB_DEBUG is set."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, TypeError, RuntimeError) as error:
        if isinstance(error, TypeError | RuntimeError) and not is_refusal(error):
            raise
        if os.environ.get("DDLIB_DEBUG", "0") not in ("", "0"):
            raise
        raise SystemExit(f"error: {error}") from error


def is_refusal(error: Exception) -> bool:
    """Return whether a ``raise`` statement of these packages raised the error, not a bug or another
    library.

    Errors of the interpreter, such as for None + 1, come from another instruction.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return False
    package = (place.tb_frame.f_globals.get("__package__") or "").partition(".")[0]
    return (
        package in OURS and opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
    )


def make_console(file: TextIO | None = None) -> Console:
    """Return a console that wraps plain output at 100 columns and never fails on unsupported
    characters.
    """
    file = sys.stdout if file is None else file
    if hasattr(file, "reconfigure"):
        file.reconfigure(errors="replace")
    return Console(file=file, highlight=False, width=None if file.isatty() else 100)


def sign(state: int, vocab_size: int, names: Sequence[str]) -> str:
    """Return the symbol of a state that is not a token: ‹name› for a cluster, _ for a mask.

    Args:
        state: at least ``vocab_size``.
        vocab_size: number of tokens.
        names: names of the clusters, in the order of their states.
    """
    return CLUSTER.format(names[state - vocab_size]) if state < vocab_size + len(names) else MASK


def displayed(process: ForwardProcess, z: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Return states as ``render`` takes them: of several fields the tokens, and masks elsewhere."""
    if len(process.components) == 1:
        return z
    clean = process.level_of(z) == 0
    return torch.where(clean, process.states_as_tokens(z), process.num_states)


def render(tokenizer: Tokenizer, states: Int[Tensor, " L"], names: Sequence[str]) -> Text:
    """Render one noisy sequence: tokens decoded, clusters as ‹name›, masks as _, the end of a line
    as ¶.

    A space stands on either side of a mask or a cluster, also within a token of the text. A
    sequence without them is exactly the tokenizer's output.

    Args:
        tokenizer: decodes the tokens 0..V-1.
        states: tokens, then clusters, then the mask.
        names: names of the clusters, in the order of their states.
    """
    vocab_size = tokenizer.get_vocab_size()
    pieces: list[Text] = []
    # Neighbouring tokens are decoded together: a character may be spread over several of them.
    for is_words, run in groupby(states.tolist(), lambda state: state < vocab_size):
        if is_words:
            pieces.append(Text(tokenizer.decode(list(run)).replace("\n", "¶")))
            continue
        for state in run:
            named = state < vocab_size + len(names)
            pieces.append(
                Text(sign(state, vocab_size, names), style=CLUSTER_STYLE if named else MASK_STYLE)
            )
    for piece in pieces[:-1]:
        piece.rstrip()
    for place, piece in enumerate(pieces[1:], start=1):
        pieces[place] = piece[len(piece.plain) - len(piece.plain.lstrip()) :]
    return Text(" ").join(piece for piece in pieces if piece)


def render_states(
    process: ForwardProcess, tokenizer: Tokenizer, z: Int[Tensor, " L"], names: Sequence[str]
) -> Text:
    """Render one noisy sequence of a process, of one field or of several, as ``render`` does."""
    return render(tokenizer, displayed(process, z), names)


def on_its_way(t: float, text: str | Text) -> Text:
    """Format one line of a denoising trajectory: time and noisy text."""
    return Text.assemble((f"t = {t:.3f}:", "bold"), " ", text)
