"""Text for the first result table.

The 37M-token public-domain corpus as documents, by source, with hold-outs.

    python -m studies.corpus.build CORPUS                # writes the file and the tokenizer
    python -m studies.corpus.public_domain CORPUS/public_domain_gpt2.uint16.xz CORPUS/gpt2 OUT

The corpus is a file of GPT-2 tokens (uint16, little-endian, xz), six sources one after another,
each ended by <|endoftext|>. Held out are all of Moby Dick and the last tenth of every other source.
OUT gets ``train.jsonl``, ``held_out.jsonl`` and one ``held_out_SOURCE.jsonl`` per source; documents
are about 2,000 bytes, cut at line ends.
"""

import argparse
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

SOURCES = ("poetry", "state_of_the_union", "spurgeon", "austen", "moby_dick", "king_james")
END = 50256
HELD_OUT = 0.1
DOCUMENT = 2000


def documents(text: str) -> Iterator[str]:
    """Yield the text in pieces of about ``DOCUMENT`` characters, cut at line ends."""
    return cut(text.splitlines(keepends=True), DOCUMENT)


def cut(lines: Iterable[str], least: int) -> Iterator[str]:
    """Yield the lines joined in pieces of at least so many characters, but for the last."""
    piece, size = list[str](), 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= least:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def write(path: Path, texts: list[str]) -> None:
    """Write one JSON object per line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def split(texts: Mapping[str, str], out: Path) -> None:
    """Write the documents of all sources, those for training apart from those that are held out."""
    out.mkdir(parents=True, exist_ok=True)
    train, held_out = list[str](), list[str]()
    for name, text in texts.items():
        found = list(documents(text))
        cut = 0 if name == "moby_dick" else round(len(found) * (1 - HELD_OUT))
        train += found[:cut]
        held_out += found[cut:]
        write(out / f"held_out_{name}.jsonl", found[cut:])
        print(f"{name:<20} {cut:>6} documents to train on, {len(found) - cut:>6} held out")
    write(out / "train.jsonl", train)
    write(out / "held_out.jsonl", held_out)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of GPT-2, or a folder with it")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    path = options.tokenizer / "tokenizer.json" if options.tokenizer.is_dir() else options.tokenizer
    tokenizer = Tokenizer.from_file(str(path))
    tokens = np.frombuffer(lzma.decompress(options.corpus.read_bytes()), dtype="<u2")
    ends = np.flatnonzero(tokens == END)
    if len(ends) != len(SOURCES):
        raise ValueError(f"{options.corpus}: {len(ends)} sources, expected {len(SOURCES)}")
    texts, begin = {}, 0
    for name, end in zip(SOURCES, ends.tolist(), strict=True):
        texts[name] = tokenizer.decode(tokens[begin:end].tolist())
        begin = end + 1
    split(texts, options.out)


if __name__ == "__main__":
    main()
