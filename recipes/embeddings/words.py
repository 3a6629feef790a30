"""Vocabulary and vectors for ``python -m recipes.clusters``."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

from recipes.data import Prepared, open_prepared, text
from recipes.data.agreement import Vocabulary, check_same_tokens
from recipes.data.names import named_tokenizer
from recipes.embeddings import vectors
from recipes.embeddings.embeddings import word_embeddings
from recipes.embeddings.neighbours import stream, vectors_of
from recipes.embeddings.similarity import read_similarity, similarity_vectors


@dataclass(frozen=True)
class Words:
    """A vocabulary: its tokenizer, an embedding of each token, and the token counts of the text."""

    tokenizer: Tokenizer
    vectors: Float[Tensor, "V dim"]
    counts: Int[Tensor, " V"]

    def name(self, token: int) -> str:
        """Return the token's text; a pilcrow for a line break, the code of unprintable characters,
        a special's name.
        """
        decoded = self.tokenizer.decode([token])
        shown = decoded.strip() or ("¶" if decoded else self.tokenizer.id_to_token(token) or "¶")
        return shown if shown.isprintable() else repr(shown)[1:-1]


def fill_missing(vectors: Float[Tensor, "V dim"], console: Console) -> Float[Tensor, "V dim"]:
    """Replace rows of zeros by the mean of the others, which has no direction of preference."""
    present = (vectors != 0).any(1)
    others = "" if present.all() else ", the others get the mean"
    console.print(f"vectors    {int(present.sum())} of {len(vectors)} tokens have one{others}")
    if not present.any():
        raise ValueError(
            "vectors: no token of the vocabulary has one; is it the same language and tokenizer?"
        )
    return torch.where(present[:, None], vectors, vectors[present].mean(0))


def read_words(options: argparse.Namespace, console: Console) -> Words:
    """Read the vocabulary and the embeddings that the command line specifies."""
    data = None if options.data is None else open_prepared(options.data)
    source = options.vectors
    if options.similarity is not None:
        return similar_words(options.similarity, data, options.tokenizer, console)
    speeches = "" if data is not None else text.join(text.load_speeches(options.first_year))
    tokenizer = Tokenizer.from_file(str(options.tokenizer)) if options.tokenizer else None
    tokenizer = tokenizer if data is None else data.tokenizer
    table: Tensor | None = None
    if source is not None and not vectors.is_word_list(source):
        table, model_tokenizer = vectors.model_vectors(source)
        if tokenizer is not None and model_tokenizer is not None:
            token_vocabulary = (
                Vocabulary(str(options.tokenizer), tokenizer.get_vocab())
                if data is None
                else data.vocabulary
            )
            vocabulary = model_tokenizer.get_vocab()
            padding = None if data is None or data.pad_id in vocabulary.values() else data.pad_id
            advice = "Use prepared text, or --tokenizer, of that model"
            size = tokenizer.get_vocab_size()
            model = Vocabulary(source, vocabulary)
            check_same_tokens(
                f"--vectors {source}", token_vocabulary, model, advice, size=size, padding=padding
            )
        tokenizer = tokenizer or model_tokenizer
        if tokenizer is None:
            raise ValueError(
                f"--vectors {source} has no tokenizer beside it: give --tokenizer tokenizer.json"
            )
    tokenizer = tokenizer or text.train_tokenizer(speeches, options.vocab_size)
    tokens = text.encode(tokenizer, speeches) if data is None else stream(data)
    vocab_size = tokenizer.get_vocab_size()
    if table is not None:
        rows = vectors.first_rows(table, vocab_size)
    elif source is not None:
        rows = vectors.spelled_vectors(tokenizer, *vectors.word_vectors(Path(source)))
    else:
        dim = min(options.dim, vocab_size - 1)
        rows = (
            word_embeddings(tokens, vocab_size, dim, seed=options.seed)
            if data is None
            else vectors_of(data, dim, seed=options.seed)
        )
    return Words(tokenizer, fill_missing(rows, console), tokens.bincount(minlength=vocab_size))


def similar_words(
    source: str, data: Prepared | None, place: Path | None, console: Console
) -> Words:
    """Return the symbols of data, of a tokenizer, or of the matrix itself, with vectors of their
    similarity.

    Args:
        source: name or file of the similarity.
        data: the prepared data, if given.
        place: tokenizer.json, if given.
        console: for messages.

    Raises:
        ValueError: a matrix that does not fit the vocabulary, or without symbols where nothing else
            names them.
    """
    similarity = read_similarity(source)
    if data is None and place is None:
        if not similarity.symbols:
            raise ValueError(
                f"similarity={source!r}: contains no names of symbols: give --data or --tokenizer"
            )
        separator = "" if all(len(symbol) == 1 for symbol in similarity.symbols) else " "
        tokenizer = named_tokenizer(similarity.symbols, separator, ends=False)
    else:
        tokenizer = Tokenizer.from_file(str(place)) if data is None else data.tokenizer
    special = (
        ()
        if data is None
        else [index for index in (data.pad_id, data.bos_id, data.eos_id) if index is not None]
    )
    rows, left_out = similarity_vectors(similarity.of(tokenizer.get_vocab(), special))
    console.print(
        f"similarity {len(similarity.matrix)} symbols in {rows.shape[1]} dimensions; "
        f"{left_out:.1%} of its spectrum is "
        "negative and left out"
    )
    # end and padding have no similarity: they are like each other and unlike all symbols
    other = (rows == 0).all(1, keepdim=True)
    rows = (
        torch.cat([rows, other * rows.norm(dim=1)[~other[:, 0]].mean()], 1)
        if bool(other.any())
        else rows
    )
    vocab_size = tokenizer.get_vocab_size()
    counts = (
        torch.ones(vocab_size, dtype=torch.int64)
        if data is None
        else stream(data).bincount(minlength=vocab_size)
    )
    return Words(tokenizer, fill_missing(rows, console), counts)
