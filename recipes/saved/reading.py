"""The text that a model is measured on."""

from collections.abc import Mapping
from pathlib import Path

from recipes.data import Prepared, open_prepared
from recipes.saved.base import Saved

MOST = 512
"""Tokens of a sequence where the model knows rows of any length."""


def held_out(saved: Saved, folder: Path | None = None) -> Prepared:
    """Prepared text of a model's own words.

    Args:
        saved: the model.
        folder: of the text; by default that which the model was trained on.

    Raises:
        FileNotFoundError: there is none.
        ValueError: nobody says where; it is of other words, or as ``open_prepared``.
    """
    place = saved.data if folder is None else folder
    if place is None:
        raise ValueError(
            f"data: nothing says what text {saved.name} is to be measured on. Give prepared text by --data FOLDER; "
            f"python -m recipes.prepare local --files FILES --tokenizer {saved.name} --out FOLDER makes it"
        )
    data = open_prepared(place)
    # how a text is filled up is no matter: it may be done by a word that the model has not
    words, known = (
        _words(saved, data.pad_id, one) for one in (data.tokenizer.get_vocab(), saved.tokenizer.get_vocab())
    )
    if words != known:
        raise ValueError(f"data={data.folder}: made with another tokenizer than the model was trained with")
    return data


def measured_length(saved: Saved, asked: int | None, block: int) -> int:
    """Tokens of a sequence that text is measured in: as asked for; or as the model knows rows, or up to ``MOST``.

    Args:
        saved: the model.
        asked: how many; None for as many as it knows.
        block: rows that are as long as their texts are whole blocks of so many.

    Raises:
        ValueError: more than the model knows.
    """
    if asked is not None and asked > saved.length:
        raise ValueError(f"length={asked}: must be at most {saved.length}, which {saved.name} knows")
    if asked is not None or saved.rows != "free":
        return asked or saved.length
    return min(saved.length, MOST) // block * block


def _words(saved: Saved, pad: int, vocabulary: Mapping[str, int]) -> dict[str, int]:
    return {token: word for token, word in vocabulary.items() if word < saved.process.vocab_size and word != pad}
