"""Text for training: prepared once, then read in an order that (seed, position) decides.

prepare(openwebtext(), folder)    tokens on disk, or: python -m recipes.prepare owt --out folder
examples(open_prepared(folder).train, length=512, ...)    batches, from any position on
"""

from recipes.data.corpora import Corpus, lm1b, local, openwebtext, speeches
from recipes.data.making import prepare
from recipes.data.packing import pack
from recipes.data.prepared import Documents, Prepared, corpus_of, open_prepared
from recipes.data.source import Source, load_documents
from recipes.data.stream import Batch, examples

__all__ = [
    "Batch",
    "Corpus",
    "Documents",
    "Prepared",
    "Source",
    "corpus_of",
    "examples",
    "lm1b",
    "load_documents",
    "local",
    "open_prepared",
    "openwebtext",
    "pack",
    "prepare",
    "speeches",
]
