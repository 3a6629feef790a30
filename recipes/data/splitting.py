"""Sequences of symbols as two splits: those that are held out, in the symbols and classes of the
others.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from ddlib import registry
from recipes.data.corpora import SymbolCorpus
from recipes.data.names import ENDS
from recipes.data.prepared import SPLITS
from recipes.data.sequences import Sequences


def split(
    corpus: SymbolCorpus, sources: Mapping[str, registry.Source]
) -> tuple[dict[str, Sequences], dict[str, int]]:
    """Return the sequences of each split without empty ones, and the number of those."""
    read = {}
    empty = dict.fromkeys(SPLITS, 0)
    for name, source in sources.items():
        corpora = source.load()
        if not isinstance(corpora, Sequences):
            raise TypeError(
                f"{name}: {source!r} loads {type(corpora).__name__}, must be recipes.data.Sequences"
            )
        rows = np.flatnonzero(corpora.ragged.lengths)
        empty[name] = len(corpora) - len(rows)
        if not len(rows):
            raise ValueError(f"{name}: all {len(corpora)} sequences are empty")
        read[name] = corpora if empty[name] == 0 else corpora.select(rows)
    whole = read["train"]
    if corpus.ends and whole.shape:
        raise ValueError(
            f"ends=True: not for sequences of one shape, here {whole.shape}, which all end at one "
            "place"
        )
    if corpus.ends and (reserved := {*ENDS} & set(whole.symbols)):
        raise ValueError(f"ends=True: {reserved.pop()!r} is the name of a symbol already")
    order = np.arange(len(whole))
    if corpus.shuffle is not None:
        order = np.random.Generator(np.random.Philox(corpus.shuffle)).permutation(order)
    if "validation" in read:
        return {
            "train": whole.select(order),
            "validation": read["validation"].match(whole, "validation"),
        }, empty
    count = max(len(whole) // 20, 2) if corpus.held_out is None else corpus.held_out
    if count >= len(whole):
        raise ValueError(f"held_out={count}: must be below {len(whole)}, the number of sequences")
    held = np.zeros(len(whole), dtype=bool)
    held[_held_out(whole, order, count)] = True
    train, validation = (whole.select(order[rows[order]]) for rows in (~held, held))
    return {"train": train, "validation": validation.match(train, "validation")}, empty


def _held_out(whole: Sequences, order: Int[np.ndarray, " N"], count: int) -> Int[np.ndarray, " n"]:
    """Return the rows that are held out: the last of the order, of each class of the labels in
    equal shares.
    """
    if whole.labels is None:
        return order[-count:]
    labels = np.asarray(whole.labels)[order]
    there = np.bincount(labels, minlength=len(whole.classes))
    exact = there * count / len(order)
    shares = np.floor(exact).astype(int)
    for _ in range(count - int(shares.sum())):  # the largest remainders get the rest
        remainders = np.where(shares + 1 < there, exact - shares, -np.inf)
        if np.isneginf(remainders.max()):
            name = whole.classes[int(np.argmax(exact - shares))]
            most = int(np.maximum(there - 1, 0).sum())
            raise ValueError(
                f"held_out={count}: would hold out every sequence of the class {name!r}, must be "
                f"at most {most}"
            )
        shares[remainders.argmax()] += 1
    return np.concatenate(
        [order[labels == label][-share:] for label, share in enumerate(shares) if share]
    )
