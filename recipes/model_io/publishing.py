"""Publication of a network that was trained in one's own loop, for ``evaluate``, ``generate`` and
``harness``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from torch import nn

import ddlib as dd
from ddlib.integrations import process_values
from recipes.config import fitting, numbers, read_recipe, recipe_of
from recipes.data import Corpus, Layout, Prepared, Source, corpus_of, open_prepared
from recipes.data.corpora import SymbolCorpus
from recipes.data.lengths import check_lengths
from recipes.data.tokens import add_special, load_tokenizer
from recipes.model_io.names import RECIPE, TOKENIZER, WEIGHTS
from recipes.model_io.rebuilding import LISTED, Given, model_values, rebuilt, with_full_attention
from recipes.model_io.writing import Record, write_model

UNKNOWN = "(not recorded)"
"""Path of the text in the recipe of a model that was published with a tokenizer alone."""

SAME = ("process.", "pace.", "model.", "data.", "loss.parameterization")
"""Values of a recipe that identify a model; the others may differ from one publication to
the next.
"""


def publish(
    folder: str | Path,
    network: nn.Module,
    process: dd.processes.ForwardProcess,
    data: str | Path | Prepared | Tokenizer,
    *,
    model: Mapping[str, Any] | str | None = None,
    length: int | None = None,
    packed: bool = False,
    pace: Mapping[str, Any] | str = "together",
    parameterization: Literal["cavity", "posterior"] | None = None,
    bos: str | None = None,
    eos: str | None = None,
    pad: str | None = None,
    training: Mapping[str, Any] | None = None,
) -> Path:
    """Write a network and its process into a folder that ``generate``, ``evaluate`` and ``harness``
    take.

    The folder has the form of a run's: ``weights/`` holds the weights, the plain values of process
    and network as ``recipe.yaml``, the tokenizer and the layout of the data. It is written
    completely or not at all. A second call for the same process, network and data replaces the
    weights.

    Args:
        folder: folder of the model.
        network: the network, on any device; for averaged weights a copy that holds them.
        process: the process that it was trained for.
        data: prepared data, or its folder; or the tokenizer alone, a ``tokenizers.Tokenizer`` or a
            path to its ``tokenizer.json``.
        model: values that the network was built from, as ``model`` in a recipe: a short string or a
            mapping with ``kind`` and the arguments. Not for a ``ddlib_models.Pretrained`` such as
            ``DiT``, which records them.
        length: tokens of a row; by default that of data in which all sequences have one length.
        packed: True if rows held several sequences.
        pace: pace of the training.
        parameterization: meaning of the network's output, as in ``dd.nelbo``; by default its
            attribute of that name, or "cavity" without one.
        bos: token at the beginning of a text; by default one with a common name. For a tokenizer
            alone.
        eos: token at its end, likewise.
        pad: token behind the end in a row of text; by default ``[PAD]``, or the end where rows are
            packed. Likewise.
        training: further keys of the recipe, for the record, such as ``{"steps": 20_000, "batch":
            64}``.

    Returns:
        The folder of the weights.

    Raises:
        TypeError: a network that is not an ``nn.Module``; a process, or a network, that has no
            plain values, by name.
        ValueError: values that do not give this network or process; another parameterization than
            the network states; another vocabulary than the data; a length that does not fit; a
            folder with another model or other files. Nothing is written then.

    Example:
        >>> from recipes.model_io import publish
        >>> publish("runs/mine", network, process, "data/digits")  # doctest: +SKIP
    """
    folder = Path(folder)
    description = _describe(folder, data, packed, {"bos": bos, "eos": eos, "pad": pad})
    rows = _length(description.layout, length)
    values = {
        "data": {
            "corpus": description.corpus,
            "folder": description.folder,
            "length": rows,
            "packed": packed,
        },
        "process": process_values(process),
        "pace": pace if isinstance(pace, str) else dict(pace),
        "model": model_values(network, model),
        "loss": {"parameterization": _meaning(network, parameterization)},
        "optimizer": {"lr": 0.0, "warmup": 0, "ema": 0.0},
        "output": {"folder": folder},
        "start": str(folder),  # a run of the recipe continues from these weights
        "batch": 1,
        "steps": 1,
    }
    recipe = with_full_attention(recipe_of(_merge(values, training or {}), "publish"), network)
    if description.prepared is not None:
        check_lengths(description.prepared, rows, packed)
    fitting(recipe.order(), rows)
    dd.check_vocabulary(process, description.tokenizer.get_vocab())
    blank = rebuilt(recipe, process, network, Given(description.tokenizer, description.layout))
    record = Record(
        recipe=recipe,
        tokenizer=description.tokenizer,
        layout=description.layout,
        content="" if description.prepared is None else description.prepared.content,
    )
    _check_folder(folder, record)
    about = (
        f"A discrete diffusion model, {process!r}, trained in a loop of its author. `{RECIPE}` "
        "holds process, network "
        "and data; its optimizer, batch and steps are those of the training only where they were "
        "given. With ddlib's "
        "recipes `python -m recipes.generate FOLDER` samples from it and `recipes.evaluate` "
        "measures it."
    )
    write_model(blank, folder / WEIGHTS, record, folder.name, about)
    return folder / WEIGHTS


def _meaning(network: nn.Module, stated: str | None) -> str:
    """Return the meaning of a network's logits.

    Raises:
        ValueError: another one than the network states.
    """
    own = getattr(network, "parameterization", None)
    if stated is not None and own not in (None, stated):
        raise ValueError(
            f"parameterization={stated!r}: the network states {own!r}, must be that, or left out"
        )
    return stated or own or "cavity"


@dataclass(frozen=True)
class _Data:
    """Description of the data: what a recipe records of it, tokenizer and layout."""

    corpus: Corpus | SymbolCorpus
    folder: Path
    tokenizer: Tokenizer
    layout: Layout | None = None
    prepared: Prepared | None = None


def _describe(
    folder: Path,
    data: str | Path | Prepared | Tokenizer,
    packed: bool,
    special: Mapping[str, str | None],
) -> _Data:
    """Return the description of prepared data, or of text of which the tokenizer alone is given."""
    if isinstance(data, str | Path) and Path(data).name != TOKENIZER:
        data = open_prepared(Path(data))
    named = {role: token for role, token in special.items() if token is not None}
    if isinstance(data, Prepared):
        for role, token in named.items():
            raise ValueError(
                f"{role}={token!r}: only for a tokenizer alone, prepared data has its own"
            )
        return _Data(corpus_of(data.folder), data.folder, data.tokenizer, data.layout, data)
    if not isinstance(data, str | Path | Tokenizer):
        raise TypeError(
            f"data is {type(data).__name__}, must be prepared data, its folder, or a tokenizer"
        )
    tokenizer = (
        load_tokenizer(str(data))
        if isinstance(data, str | Path)
        else Tokenizer.from_str(data.to_str())
    )
    train, held_out = (Source(path=UNKNOWN, split=name) for name in ("train", "validation"))
    corpus = Corpus(
        train=train, validation=held_out, tokenizer=str(folder / WEIGHTS / TOKENIZER), **named
    )
    lacks_padding = tokenizer.token_to_id(corpus.pad) is None
    ids = add_special(
        Tokenizer.from_str(tokenizer.to_str()), corpus
    )  # a copy, to which padding may be added
    if lacks_padding and (named.get("pad") is not None or not packed):
        raise ValueError(
            f"pad={corpus.pad!r}: the tokenizer has no such token; choose one of its tokens, as "
            "its vocabulary is "
            "that of the network"
        )
    if lacks_padding:
        corpus = replace(corpus, pad=tokenizer.id_to_token(ids.eos))
    return _Data(corpus, folder / "data", tokenizer)


def _length(layout: Layout | None, length: int | None) -> int:
    if length is None:
        length = None if layout is None else layout.fixed
    if length is None:
        raise ValueError(
            "length=None: must be the tokens of a row, sequences of the data have no common length"
        )
    return length


def _check_folder(folder: Path, record: Record) -> None:
    """Raise ValueError for a folder that holds anything but earlier weights of the same model."""
    weights = folder / WEIGHTS
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (weights / RECIPE).is_file():
        raise ValueError(
            f"folder={folder}: exists and contains no published model: choose a new one"
        )
    old = numbers(read_recipe(weights / RECIPE)), (weights / TOKENIZER).read_text(encoding="utf-8")
    new = numbers(record.recipe), record.files()[TOKENIZER]
    faults = [
        f"{name} is {new[0].get(name)!r}, was {old[0].get(name)!r}"
        for name in dict.fromkeys((*new[0], *old[0]))
        if name.startswith(SAME) and new[0].get(name) != old[0].get(name)
    ] + ["the tokenizer is another one"] * (json.loads(old[1]) != json.loads(str(new[1])))
    if faults:
        raise ValueError(
            f"folder={folder}: holds another model: {'; '.join(islice(faults, LISTED))}; choose a "
            "new one"
        )


def _merge(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe with those of the training."""
    fixed: Sequence[str] = ("data", "process", "pace", "model", "output", "start")
    if twice := sorted(more.keys() & set(fixed)):
        raise ValueError(
            f"training: has the keys {', '.join(twice)}, which do not describe the training"
        )
    return {
        name: {**values[name], **more[name]}
        if isinstance(more.get(name), Mapping) and name in values
        else more.get(name, values.get(name))
        for name in dict.fromkeys((*values, *more))
    }
