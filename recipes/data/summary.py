"""Summary of prepared data as a table: its size, how text was cut, and symbols that its tokenizer
lacks.
"""

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from recipes.data.layout import Layout
from recipes.data.prepared import SPLITS, Prepared
from recipes.data.source import cutting
from recipes.data.unknown import list_symbols

MANY = 0.2
"""Share of empty lines above which they are likely to separate the documents of a text."""

WIDTH = 110
"""Columns of a note of several words."""

FIRST = 12
"""Maximum number of ids, and of classes, that are listed."""


def table(prepared: Prepared, length: int) -> str:
    """Return documents, tokens and bytes of both splits, the rule that cut them, and unknown
    symbols, as a table.

    Args:
        prepared: the text.
        length: the last column is the share of documents that are longer, in tokens.
    """
    if prepared.layout is not None:
        return _symbols_table(prepared, prepared.layout)
    head = (
        "",
        "documents",
        "left out as empty",
        "tokens",
        "bytes",
        "unknown",
        "tokens/document",
        "bytes/token",
    )
    rows = [(*head, f"over {length} tokens")]
    for name in SPLITS:
        facts = prepared.manifest[name]
        documents = getattr(prepared, name)
        counts = tuple(f"{facts[key]:,}" for key in ("documents", "empty", "tokens", "bytes"))
        means = (facts["tokens"] / facts["documents"], facts["bytes"] / facts["tokens"])
        longer = f"{(documents.lengths > length).mean():.1%}"
        unknown = f"{prepared.manifest['unknown'][name]['count']:,}"
        rows.append((name, *counts, unknown, *(f"{mean:.2f}" for mean in means), longer))
    lines = _align(rows)
    ids = f"pad {prepared.pad_id}, begin {prepared.bos_id}, end {prepared.eos_id}"
    tokens = f"{prepared.vocab_size} tokens ({ids}), vocabulary {prepared.fingerprint[:12]}"
    return "\n".join([f"{prepared.folder}: {tokens}", *lines, *_notes(prepared)])


def _symbols_table(prepared: Prepared, layout: Layout) -> str:
    """Return sequences, symbols and lengths of both splits, and remarks of the source."""
    rows = [("", "sequences", "left out as empty", "symbols", "shortest", "mean", "longest")]
    for name in SPLITS:
        facts = prepared.manifest[name]
        lengths = getattr(prepared, name).lengths - layout.ends
        counts = (f"{facts['documents']:,}", f"{facts['empty']:,}", f"{int(lengths.sum()):,}")
        rows.append(
            (name, *counts, str(lengths.min()), f"{lengths.mean():.2f}", str(lengths.max()))
        )
    facts = [f"{prepared.vocab_size} symbols"]
    if layout.fields:
        facts = [f"{len(layout.fields)} fields of up to {prepared.vocab_size} symbols"]
    if layout.ends:
        facts[0] += f" (end {prepared.eos_id}, pad {prepared.pad_id})"
    if layout.shape:
        facts.append(f"shape {' x '.join(map(str, layout.shape))}")
    if layout.classes:
        facts.append(f"{len(layout.classes)} class{'es' * (len(layout.classes) > 1)}")
    notes = [_wrap(f"ids: {_ids(prepared)}")]
    if layout.fields:
        sizes = ", ".join(f"{one.name} {len(one.symbols)}" for one in layout.fields)
        notes = [_wrap(f"symbols of each field: {sizes}")]
    if layout.classes:
        notes.append(_wrap(f"sequences of each class, train + validation: {_classes(prepared)}"))
    notes += _remarks(prepared)
    if len(prepared.validation) < 2:
        notes.append("validation: a single sequence, but a run requires at least 2")
    notes += _count_shared(prepared)
    facts.append(f"vocabulary {prepared.fingerprint[:12]}")
    return "\n".join([f"{prepared.folder}: {', '.join(facts)}", *_align(rows), *notes])


def _remarks(prepared: Prepared) -> Iterator[str]:
    """Yield the remarks of the source on each split, or on both in one line."""
    remarks = prepared.manifest["notes"]
    for note in dict.fromkeys(note for name in SPLITS for note in remarks[name]):
        yield f"{', '.join(name for name in SPLITS if note in remarks[name])}: {note}"


def _ids(prepared: Prepared) -> str:
    """Return the first ids with their symbols, and the last."""
    count = prepared.vocab_size
    names = [
        f"{index} {prepared.tokenizer.id_to_token(index)!r}" for index in range(min(count, FIRST))
    ]
    if count > FIRST + 1:
        names.append("...")
    if count > FIRST:
        names.append(f"{count - 1} {prepared.tokenizer.id_to_token(count - 1)!r}")
    return ", ".join(names)


def _classes(prepared: Prepared) -> str:
    """Return the number of sequences of the first classes in both splits."""
    names = prepared.classes
    train, validation = (
        np.bincount(one.labels, minlength=len(names))
        for one in (prepared.train, prepared.validation)
    )
    pairs = zip(names[:FIRST], train, validation, strict=False)
    counts = [f"{name}: {here} + {there}" for name, here, there in pairs]
    return ", ".join(counts + ["..."] * (len(names) > FIRST))


def _wrap(note: str) -> str:
    return textwrap.fill(note, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _count_shared(prepared: Prepared) -> Iterator[str]:
    """Yield the number of validation documents that training contains, if any."""
    if count := prepared.manifest.get("shared", {}).get("documents", 0):
        unit = "documents" if prepared.is_text else "sequences"
        yield f"validation: also in train: {count:,} of {len(prepared.validation):,} {unit}"


def _notes(prepared: Prepared) -> Iterator[str]:
    manifest = prepared.manifest
    if len(prepared.validation) < 2:
        yield "validation: a single document, but a run requires at least 2"
    yield from _count_shared(prepared)
    rules = {split: manifest["corpus"][split]["sample_by"] for split in SPLITS}
    cuts = {split: cutting(rules[split], manifest["inputs"][split]["content"]) for split in SPLITS}
    alike = {"text": cuts["train"]} if cuts["train"] == cuts["validation"] else cuts
    yield from (f"{split}: {cut}" for split, cut in alike.items() if cut)
    for split in SPLITS:
        facts = manifest[split]
        empty = facts["empty"] / (facts["empty"] + facts["documents"])
        if cuts[split] and rules[split] == "line" and empty >= MANY:
            yield (
                f"{split}: {empty:.0%} of the lines are empty, --sample-by paragraph splits at them"
            )
    for name in SPLITS:
        if symbols := manifest["unknown"][name]["symbols"]:
            listed = list_symbols(symbols)
            yield f"{name}: unknown symbols, the first {len(symbols)} of them: {listed}"
    for name, counts in manifest.get("special", {}).items():  # older folders did not count them
        if counts["count"]:
            yield f"{name}: special tokens that the text spells: {list_symbols(counts['symbols'])}"
