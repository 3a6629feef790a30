"""Evaluation text for a model."""

from pathlib import Path

import numpy as np

from recipes.data import Prepared, open_prepared
from recipes.data.agreement import Vocabulary, check_same_tokens, prepare_with
from recipes.metrics.conditioned import takes_labels
from recipes.model_io.base import LoadedModel, ModelFiles
from recipes.model_io.names import WEIGHTS

MOST = 512
"""Default length of a sequence for a model that supports any."""


def open_held_out(saved: ModelFiles, folder: Path | None = None) -> Prepared:
    """Open prepared text in a model's vocabulary, with labels that index its classes by name.

    Args:
        saved: the model.
        folder: folder of the text; by default that which the model was trained on.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the folder is not known; it has other tokens; it is the model's own and holds
            other data than in training; or as in ``open_prepared``.
    """
    place = saved.data if folder is None else folder
    if place is None:
        raise ValueError(
            f"data: {saved.name} has no data to be measured on. Give prepared data by --data "
            "FOLDER; "
            f"prepare it by {prepare_with(saved.name, saved.layout)}"
        )
    data = open_prepared(place)
    # a network with one row per text never gets padding, which may be a token that it lacks
    unseen = data.pad_id if saved.rows == "free" else None
    model = Vocabulary.of(saved.name, saved.tokenizer.get_vocab(), saved.layout)
    place = Path(saved.name) / WEIGHTS
    command = prepare_with(place if place.is_dir() else saved.name, saved.layout)
    advice = f"Prepare data for it: {command}"
    # a text model may have tokens that no text has
    size = max(saved.process.vocab_size, data.vocab_size) if data.is_text else None
    check_same_tokens(
        f"data={data.folder}", data.vocabulary, model, advice, size=size, padding=unseen
    )
    if folder is None and saved.content not in ("", data.content):
        raise ValueError(
            f"data.folder={data.folder}: holds other data ({data.content[:12]}, by what they were "
            f"prepared from) than {saved.name} was trained on ({saved.content[:12]}). Prepare "
            f"those again, or measure on these on purpose: --data {data.folder}"
        )
    return data if saved.layout is None else data.in_classes(saved.layout.classes)


def check_labels(saved: LoadedModel, data: Prepared) -> None:
    """Raise ValueError for a validation sequence of a class that the network lacks.

    Args:
        saved: the model; one without labels is not given any.
        data: of ``open_held_out``.
    """
    if not takes_labels(saved.model):
        return
    names = saved.layout.classes if saved.layout is not None else ()
    known = names or tuple(map(str, range(saved.model.num_classes)))
    if len(unknown := np.flatnonzero(data.validation.labels >= len(known))):
        row = int(unknown[0])
        raise ValueError(
            f"data={data.folder}: validation sequence {row} is of class "
            f"{data.classes[data.validation.labels[row]]!r}, must be of one of the classes of "
            f"{saved.name}: {', '.join(known)}"
        )


def measured_length(saved: LoadedModel, length: int | None, block: int) -> int:
    """Return the length of evaluation sequences: as given, or that of the model's rows, or up to
    ``MOST``.

    Args:
        saved: the model.
        length: the length; None for the model's default.
        block: rows that are as long as their texts consist of whole blocks of this size.

    Raises:
        ValueError: longer than the model supports.
    """
    saved.check_length(length)
    if length is not None or saved.rows != "free":
        return length or saved.length
    return min(saved.length, MOST) // block * block
