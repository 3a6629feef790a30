"""The text that a model is measured on."""

from pathlib import Path

from recipes.data import Prepared, open_prepared
from recipes.data.agreement import Vocabulary, check_same_tokens, prepare_with
from recipes.model_io.base import LoadedModel
from recipes.model_io.names import WEIGHTS

MOST = 512
"""Tokens of a sequence where the model knows rows of any length."""


def held_out(saved: LoadedModel, folder: Path | None = None) -> Prepared:
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
            f"{prepare_with(saved.name)} makes it"
        )
    data = open_prepared(place)
    # a network that reads every text in a row of its own sees no padding, which may be a word that it has not
    unseen = data.pad_id if saved.rows == "free" else None
    model = Vocabulary(saved.name, saved.tokenizer.get_vocab())
    place = Path(saved.name) / WEIGHTS
    advice = f"Prepare text with it: {prepare_with(place if place.is_dir() else saved.name)}"
    check_same_tokens(
        f"data={data.folder}", data.vocabulary, model, advice, size=saved.process.vocab_size, padding=unseen
    )
    return data


def measured_length(saved: LoadedModel, asked: int | None, block: int) -> int:
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
