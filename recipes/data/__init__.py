"""Data for training: prepared once, then read in an order determined by (seed, position).

prepare(openwebtext(), folder)    tokens on disk, or: python -m recipes.prepare owt --out folder
prepare_ids(train, validation, vocab_size, folder)    arrays of ids that are not text
examples(open_prepared(folder).train, length=512, ...)    batches, from any position on
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recipes.data.batch import Batch
from recipes.data.corpora import Corpus, SymbolCorpus, lm1b, local, openwebtext, poetry, speeches
from recipes.data.fields import Field
from recipes.data.source import Source, load_documents

if TYPE_CHECKING:
    from recipes.data.fielded import Fielded
    from recipes.data.layout import Layout
    from recipes.data.making import prepare
    from recipes.data.packing import pack
    from recipes.data.pairs import Pairs, read_pairs
    from recipes.data.prepared import Documents, Prepared, corpus_of, open_prepared
    from recipes.data.sequences import Sequences
    from recipes.data.stream import examples, lookup
    from recipes.data.symbols import prepare_ids
    from recipes.data.wrapping import wrap

_LATER = {
    "Documents": "prepared",
    "Fielded": "fielded",
    "Layout": "layout",
    "Pairs": "pairs",
    "Prepared": "prepared",
    "Sequences": "sequences",
    "corpus_of": "prepared",
    "examples": "stream",
    "lookup": "stream",
    "open_prepared": "prepared",
    "pack": "packing",
    "prepare": "making",
    "prepare_ids": "symbols",
    "read_pairs": "pairs",
    "wrap": "wrapping",
}
"""Names with slow imports, and their modules: a recipe, and its help, do not need them."""

__all__ = [
    "Batch",
    "Corpus",
    "Documents",
    "Field",
    "Fielded",
    "Layout",
    "Pairs",
    "Prepared",
    "Sequences",
    "Source",
    "SymbolCorpus",
    "corpus_of",
    "examples",
    "lm1b",
    "load_documents",
    "local",
    "lookup",
    "open_prepared",
    "openwebtext",
    "pack",
    "poetry",
    "prepare",
    "prepare_ids",
    "read_pairs",
    "speeches",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    target = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = target
    return target
