"""Initial weights of a run: from the text, or from the folder of another run."""

import json
import warnings
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ddlib as dd
from ddlib import parts
from ddlib.hierarchies import Clusters, load_clusters
from ddlib_models import Pretrained
from ddlib_models.io.json_files import is_there
from ddlib_models.io.manifest import check_manifest
from ddlib_models.io.tensors import fill
from recipes.config import Recipe, read_recipe
from recipes.data import Prepared
from recipes.data.agreement import Vocabulary, check_same_tokens, prepare_with
from recipes.data.tokens import load_tokenizer
from recipes.embeddings.neighbours import neighbourhoods, stream
from recipes.embeddings.starting import log_probs, state_vectors
from recipes.metrics.conditioned import takes_labels
from recipes.model_io import CLUSTERS, RECIPE, WEIGHTS
from recipes.model_io.opening import layout_of

FREE = {
    "anneal",
    "architecture",
    "attention",
    "block_size",
    "dropout",
    "label_dropout",
    "lora",
    "memory",
    "name_or_path",
    "pad_to",
    "revision",
    "shape",
}
"""Arguments of a network that may differ from those of the run that it starts from.

They concern training alone, are meant to change from one run to the next (``block_size`` and
``attention``: what a position attends to; ``shape``: the size of pictures), or show in the shapes
of the weights.
"""


def check_start(recipe: Recipe, data: Prepared) -> None:
    """Refuse weights with another meaning than that of the run, or text of another tokenizer.

    Raises:
        ValueError: nothing was published at ``start``; its output has another meaning; ids of the
            text mean other tokens to the weights, see ``check_same_tokens``.
    """
    if recipe.start in ("random", "text"):
        return
    folder = published_folder(recipe)
    check_manifest(folder)
    check_same_meaning(recipe, folder)
    layout = layout_of(folder)
    mine = Vocabulary.of(str(folder), load_tokenizer(str(folder)).get_vocab(), layout)
    advice = f"Prepare data for it: {prepare_with(folder, layout)}"
    check_same_tokens(f"start={recipe.start!r}", data.vocabulary, mine, advice)


def check_same_meaning(recipe: Recipe, folder: Path) -> None:
    """Refuse weights whose output means another distribution to the objective of their run."""
    theirs = read_recipe(folder / RECIPE).objective().parameterization
    ours = recipe.objective().parameterization
    if theirs != ours:
        raise ValueError(
            f"loss.parameterization={ours!r}: the weights of start={recipe.start!r} were trained "
            f"with {theirs!r}, which this run must keep"
        )


def check_pretrained(recipe: Recipe, data: Prepared) -> None:
    """Refuse text of another tokenizer than that of a network with an argument ``name_or_path``.

    That is a folder or a model on the hub with its tokenizer. Where no tokenizer lies beside such
    weights it warns that nothing could be compared.

    Raises:
        ValueError: ids of the text mean other tokens to the weights; see ``check_same_tokens``.
    """
    if (name := recipe.model.get("name_or_path")) is None:
        return
    try:
        tokens = load_tokenizer(name, recipe.model.get("revision")).get_vocab()
    except (FileNotFoundError, ValueError):
        if is_there(
            name, "config.json", recipe.model.get("revision")
        ):  # else the network refuses the name
            warnings.warn(
                f"model.name_or_path={name!r}: has no tokenizer.json to compare with the text's "
                "tokenizer, "
                f"{data.vocabulary}; check that an id is the same token in both",
                stacklevel=2,
            )
        return
    # a row beyond the model's own tokens may be the padding
    padding = None if data.pad_id in tokens.values() else data.pad_id
    advice = f"Prepare the text with it: {prepare_with(name)}"
    place = f"data.folder={data.folder}"
    check_same_tokens(
        place,
        data.vocabulary,
        Vocabulary(name, tokens),
        advice,
        size=data.vocab_size,
        padding=padding,
    )


def published_folder(recipe: Recipe) -> Path:
    """Return the folder of the weights that the recipe starts from.

    Raises:
        ValueError: nothing was published there.
    """
    folder = Path(recipe.start)
    folder = folder / WEIGHTS if (folder / WEIGHTS).is_dir() else folder
    if not (folder / RECIPE).exists():
        raise ValueError(
            f"start={recipe.start!r}: must be 'random', 'text' or the folder of a run with saved "
            "weights, and "
            + ("has none" if Path(recipe.start).is_dir() else "there is no such folder")
        )
    return folder


def start(
    recipe: Recipe,
    model: nn.Module,
    process: dd.processes.ForwardProcess,
    data: Prepared,
    clusters: Clusters | None = None,
) -> None:
    """Initialise an untrained network as ``recipe.start`` specifies, on every process the same.

    Raises:
        ValueError: weights that do not fit, or of a network with other arguments; weights for other
            ``clusters`` than those of the process, or for other classes than those of the labels.
    """
    if recipe.start == "random":
        return
    if recipe.start != "text":
        folder = published_folder(recipe)
        if clusters is not None and (folder / f"{CLUSTERS}.json").exists():
            theirs = load_clusters(folder / CLUSTERS, data.fingerprint).parents
            same = len(theirs) == len(clusters.parents) and all(
                map(torch.equal, theirs, clusters.parents)
            )
            if not same:
                raise ValueError(
                    f"start={recipe.start!r}: its states are other clusters than those of the "
                    "process. Use those of "
                    f"the run: --process.clusters {folder / CLUSTERS}"
                )
        try:
            read = model.fill if isinstance(model, Pretrained) else partial(fill, model)
            read(folder / "model.safetensors", getattr(model, "initially_neutral", ()))
        except ValueError as error:
            other = parts.difference(read_recipe(folder / RECIPE).model, recipe.model, "model")
            raise ValueError(
                f"start={recipe.start!r}: {error}. The network must be that of {folder / RECIPE}, "
                "with the same "
                f"numbers of tokens and states{f'; {other}' if other else ''}"
            ) from error
        check_same_network(recipe, model, folder)
        if takes_labels(model):
            check_same_classes(recipe, data, folder)
        # the file may hold bfloat16; weights, moments and their average are trained in float32
        model.float()
        return
    text = stream(data)
    counts = text.bincount(minlength=data.vocab_size)
    vectors = neighbourhoods(text, data.vocab_size, model.dim)
    model.start_at(
        log_probs(counts), state_vectors(process, counts, 0.3 * model.dim**0.5 * vectors)
    )


def check_same_classes(recipe: Recipe, data: Prepared, folder: Path) -> None:
    """Refuse labels that index other classes than those of the weights."""
    layout = layout_of(folder)
    theirs = () if layout is None else layout.classes
    if theirs and theirs != data.classes:
        raise ValueError(
            f"start={recipe.start!r}: its classes are {', '.join(theirs)}, those of "
            f"data.folder={data.folder} are {', '.join(data.classes)}; they must be the same, in "
            "the same order"
        )


def check_same_network(recipe: Recipe, model: nn.Module, folder: Path) -> None:
    """Refuse weights of a network whose arguments differ although their shapes agree, such as the
    number of heads.

    The arguments are those of ``ddlib_models.Pretrained``; another network may have any, so it
    warns.

    Raises:
        ValueError: an argument that is not in ``FREE`` differs.
    """
    path = folder / "config.json"
    if isinstance(model, Pretrained) and path.exists():
        recorded = True
        theirs = json.loads(path.read_text(encoding="utf-8"))
        ours = json.loads(json.dumps(model.saved_arguments()))
        defaults = {name: one.default for name, one in signature(type(model)).parameters.items()}
        names = (ours.keys() | theirs.keys()) & defaults.keys()
    else:
        recorded = False
        defaults = {}
        # what the run fills in is compared where it comes from
        theirs, ours = (
            {name: value for name, value in dict(each.model).items() if value != parts.RUN}
            for each in (read_recipe(folder / RECIPE), recipe)
        )
        names = (ours.keys() & theirs.keys()) - {"kind"}

    def values(given: dict[str, Any]) -> dict[str, Any]:
        result = {name: given.get(name, defaults.get(name)) for name in sorted(names - FREE)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in result.items()
        }

    if not (other := parts.difference(values(theirs), values(ours), "model")):
        return
    message = (
        f"start={recipe.start!r}: {other}: the weights fit, but they are those of another network"
    )
    if recorded:
        raise ValueError(
            f"{message}. It must be that of {folder / RECIPE}; arguments such as dropout and "
            "block_size may differ"
        )
    warnings.warn(f"{message}; check that the argument concerns training alone", stacklevel=2)
