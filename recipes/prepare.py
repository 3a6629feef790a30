"""Tokenisation of a corpus, once for all runs that read it.

    python -m recipes.prepare speeches --out data/speeches
    python -m recipes.prepare owt --out data/owt
    python -m recipes.prepare local --files 'texts/**/*.txt' --tokenizer train:4096 --out data/mine
    python -m recipes.prepare local --files 'texts/**/*.txt' --tokenizer gpt2 --held-out 1000 --out data/mine

It ends with the command that trains on the text. A second call does nothing; a folder with other content is an error.
"""

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from recipes.console import plain_errors
from recipes.data import Corpus, Source, lm1b, local, openwebtext, prepare, speeches
from recipes.data.making import twentieth
from recipes.data.source import BY_LINE, CUTS
from recipes.data.summary import table
from recipes.data.unknown import UNKNOWN


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the text of the command line and print a summary."""
    given = _parser().parse_args(arguments)
    with plain_errors():
        prepared = prepare(CORPORA[given.corpus](given), given.out, given.workers, given.unknown)
    print(table(prepared, given.length))
    print(advice(given.corpus, given.out))


def advice(corpus: str, folder: Path) -> str:
    """Return the command that trains on the folder: the paper's recipe of its text, or a small run on local text."""
    place = shlex.quote(str(folder))
    if corpus in PAPERS:
        return f"train on it: python -m recipes.{corpus} hdlm --data.folder {place}"
    output = shlex.quote(str(Path("runs") / folder.resolve().name))
    return (
        f"train on it: python -m recipes.owt hdlm --smoke --data.folder {place} --output.folder {output}\n"
        "(--smoke is tiny and takes seconds; without it the size is the paper's, for GPUs)"
    )


def _local(given: argparse.Namespace) -> Corpus:
    held_out = given.held_out if given.validation is None else given.validation
    if held_out is None:
        held_out = twentieth(Source(path=given.files, column=given.column, sample_by=given.sample_by))
    corpus = local(given.files, given.tokenizer, held_out, given.column, given.sample_by)
    pad = corpus.pad if given.pad is None else given.pad
    return replace(corpus, bos=given.bos, eos=given.eos, pad=pad)


CORPORA: dict[str, Callable[[argparse.Namespace], Corpus]] = {
    "owt": lambda given: openwebtext(),
    "lm1b": lambda given: lm1b(),
    "speeches": lambda given: speeches(given.words),
    "local": _local,
}
"""The corpus of each command."""

PAPERS = ("owt", "lm1b")
"""The commands for whose text there is a paper's recipe of the same name."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="corpus", required=True)
    commands.add_parser("owt", help="OpenWebText, GPT-2's tokens; from the hub")
    commands.add_parser("lm1b", help="One Billion Word benchmark, BERT's tokens; from the hub")
    sotu = commands.add_parser("speeches", help="State of the Union addresses; no download")
    sotu.add_argument("--words", type=int, default=1024, help="size of the vocabulary learned from them (default 1024)")
    files = commands.add_parser("local", help="local files, or any other data set of the hub")
    files.add_argument("--files", required=True, help="file, folder, quoted pattern, or name on the hub")
    files.add_argument("--tokenizer", required=True, help="name on the hub, tokenizer.json, folder, or train:4096")
    held = files.add_mutually_exclusive_group()
    held.add_argument(
        "--held-out",
        type=int,
        help="number of documents at the end for validation (default a twentieth, at least two)",
    )
    held.add_argument("--validation", help="files for validation")
    files.add_argument("--column", default="text", help="column of the documents (default text)")
    cuts = "; ".join(f"{by}: {unit}" for by, unit in CUTS.items())
    rule = f"what a document is. {cuts} (default {BY_LINE})"
    files.add_argument("--sample-by", choices=tuple(CUTS), default=BY_LINE, help=rule)
    files.add_argument("--bos", metavar="TOKEN", help="token that begins a document, if it is not found")
    files.add_argument("--eos", metavar="TOKEN", help="token that ends a document, if it is not found")
    files.add_argument("--pad", metavar="TOKEN", help="padding token, in place of a new one, for a finished model")
    for command in commands.choices.values():
        command.add_argument("--out", type=Path, required=True, help="folder for the tokens")
        command.add_argument("--workers", type=int, default=1, help="processes that tokenise (default 1)")
        command.add_argument(
            "--unknown", type=float, default=UNKNOWN, metavar="SHARE",
            help=f"largest accepted share of tokens that are symbols which the tokenizer lacks (default {UNKNOWN})",
        )  # fmt: skip
        command.add_argument("--length", type=int, default=512, help="context of the table's last column (default 512)")
    return parser


if __name__ == "__main__":
    main()
