"""From a recipe to the objects of a run, and everything that can be refused before the first step."""

import hashlib
import json
import os
import shutil
import warnings
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

import ddlib as dd
from ddlib import parts
from ddlib.arguments.compared import difference
from ddlib.hierarchies import load_clusters, random_parents
from ddlib.hierarchies.clusters import Clusters
from ddlib.objective.training import check_mode, check_weighting
from ddlib_models.io.json_files import is_there
from ddlib_models.io.manifest import check_manifest
from ddlib_models.io.tensors import fill
from recipes.config import ModelContext, Recipe, RunContext, fitting, numbers, own_times, read_recipe
from recipes.data import Prepared
from recipes.data.agreement import Vocabulary, check_same_tokens, prepare_with
from recipes.data.tokens import load_tokenizer
from recipes.embeddings.grouping import clusters_for, clusters_there
from recipes.embeddings.neighbours import neighbourhoods, stream
from recipes.embeddings.starting import log_probs, state_vectors
from recipes.engine.model_protocols import ClusterHead, Packs, Starts, able, served
from recipes.engine.parallel import World
from recipes.engine.self_conditioning import check_memory
from recipes.model_io import CLUSTERS, RECIPE, WEIGHTS


class FromText(RunContext):
    """Run context from the prepared text.

    Args:
        recipe: of the run.
        data: the text.
        world: this process among others, of which the first makes clusters and the others wait.
    """

    clusters: Clusters | None = None
    """Clusters that a part required."""

    _asked: int | list[int] | str | None = None

    def __init__(self, recipe: Recipe, data: Prepared, world: World) -> None:
        self._recipe, self._data, self._world = recipe, data, world

    def vocab_size(self) -> int:
        return self._data.vocab_size

    def vocabulary(self) -> dict[str, int]:
        return self._data.tokenizer.get_vocab()

    def fingerprint(self) -> str:
        return self._data.fingerprint

    def counts(self) -> Int[Tensor, " V"]:
        return self._counts

    def classes(self) -> tuple[str, ...]:
        return self._data.classes

    def shape(self) -> list[int]:
        return list(self._data.shape) or super().shape()

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        if self._world.first and not clusters_there(clusters, self._data):
            # whatever else is wrong with the process is found before the work of clustering
            parts.build("processes", self._recipe.process, Rehearsal(self._recipe, self._data, self._world), "process")
            clusters_for(clusters, self._data)
        self._world.barrier()
        found = clusters_for(clusters, self._data)
        if self._asked not in (None, clusters):
            raise ValueError(
                f"clusters={clusters!r}: must be the same in all parts of a process, another part has {self._asked!r}"
            )
        self._asked, self.clusters = clusters, found
        return list(found.parents)

    def names(self) -> dict[str, list[str]] | list[list[str]]:
        return super().names() if self.clusters is None else self.clusters.names.plain()

    @cached_property
    def _counts(self) -> Int[Tensor, " V"]:
        return stream(self._data).bincount(minlength=self._data.vocab_size)

    @property
    def counted(self) -> Int[Tensor, " V"] | None:
        """The counts, if a part required them."""
        return self.__dict__.get("_counts")


class Rehearsal(FromText):
    """Run context with clusters that need no work."""

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        if isinstance(clusters, str):
            return list(clusters_for(clusters, self._data).parents)
        return random_parents(self.vocab_size(), clusters)


def fingerprint(recipe: Recipe) -> str:
    """Return a hash of all values of a recipe that determine the numbers: not folders, not the machine."""
    return hashlib.sha256(json.dumps(numbers(recipe), sort_keys=True).encode()).hexdigest()


def check_pretrained(recipe: Recipe, data: Prepared) -> None:
    """Refuse text of another tokenizer than the weights that the network begins at.

    These are the weights of the run that ``start`` names, and those of any network with an argument ``name_or_path``, a
    folder or a model on the hub with its tokenizer. Where no tokenizer lies beside such weights it warns that nothing
    could be compared.

    Raises:
        ValueError: ids of the text mean other tokens to the weights; see ``check_same_tokens``.
    """
    if recipe.start not in ("random", "text"):
        folder = published(recipe)
        check_manifest(folder)
        own = Vocabulary(str(folder), load_tokenizer(str(folder)).get_vocab())
        check_same_tokens(f"start={recipe.start!r}", data.vocabulary, own, f"Prepare text: {prepare_with(folder)}")
    if (name := recipe.model.get("name_or_path")) is None:
        return
    try:
        tokens = load_tokenizer(name, recipe.model.get("revision")).get_vocab()
    except (FileNotFoundError, ValueError):
        if is_there(name, "config.json", recipe.model.get("revision")):  # else the network refuses the name
            warnings.warn(
                f"model.name_or_path={name!r}: has no tokenizer.json to compare with the text's tokenizer, "
                f"{data.vocabulary}; check that an id is the same token in both",
                stacklevel=2,
            )
        return
    # a row beyond the model's own tokens may serve as padding
    padding = None if data.pad_id in tokens.values() else data.pad_id
    advice = f"Prepare the text with it: {prepare_with(name)}"
    place = f"data.folder={data.folder}"
    check_same_tokens(place, data.vocabulary, Vocabulary(name, tokens), advice, size=data.vocab_size, padding=padding)


def make_process(recipe: Recipe, known: RunContext, data: Prepared, world: World) -> dd.processes.ForwardProcess:
    """The noise for the vocabulary of the data.

    Raises:
        ValueError: what a part refuses, another vocabulary, a training mode that the process does not have.
    """
    process = parts.build("processes", recipe.process, known, "process").to(world.device)
    dd.check_vocabulary(process, data.tokenizer.get_vocab(), pad=data.pad_id)
    if recipe.loss.mode not in process.modes:
        raise ValueError(f"loss.mode={recipe.loss.mode!r}: {process!r} has only {', '.join(process.modes)}")
    try:
        process.check_levels(recipe.loss.levels)
    except TypeError as error:
        raise ValueError(f"loss.{error}") from error
    try:
        check_mode(process, recipe.loss.mode, recipe.loss.edge_weights)
        check_weighting(process, recipe.loss.rule())
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss: {error}") from error
    return process


def fitting_pace(recipe: Recipe) -> dd.paces.Pace:
    """Return the pace, checked for the recipe's sequences.

    Raises:
        ValueError: it does not fit; an option that takes one time per sequence only.
    """
    pace = fitting(recipe.order(), recipe.data.length)
    if own_times(pace, recipe.data.length):
        option = f"pace={pace!r}"
        if recipe.data.packed:
            raise ValueError(f"{option}: not with data.packed, whose rows contain several documents")
        if recipe.loss.levels != "independent":
            raise ValueError(
                f"{option}: not with loss.levels={recipe.loss.levels!r}, which draws the tokens of one time together; "
                "must be 'independent'"
            )
    return pace


def published(recipe: Recipe) -> Path:
    """Return the folder of the weights that the recipe starts from.

    Raises:
        ValueError: nothing was published there.
    """
    folder = Path(recipe.start)
    folder = folder / WEIGHTS if (folder / WEIGHTS).is_dir() else folder
    if not (folder / RECIPE).exists():
        raise ValueError(f"start={recipe.start!r}: must be 'random', 'text' or the folder of a run with saved weights")
    return folder


def make_model(recipe: Recipe, known: ModelContext) -> nn.Module:
    """Build the network, from the recipe's seed alone, and check the capabilities that the recipe requires.

    Raises:
        ValueError: an argument that the network rejects, or a capability that it lacks.
    """
    torch.manual_seed(recipe.seed)
    model = parts.build("backbones", recipe.network, known, "model")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: {recipe.model['kind']} returns {model!r}, must return a torch.nn.Module")
    if recipe.data.packed:
        able(model, Packs, "data.packed=True", "pack")
    elif (limit := getattr(model, "max_length", None)) is not None and recipe.data.length > limit:
        raise ValueError(f"data.length={recipe.data.length}: must be at most {limit}, the positions of the network")
    served(recipe.order(), recipe.data.length, model)
    check_memory(recipe.loss.memory, recipe.order(), model)
    if recipe.loss.auxiliary:
        able(model, ClusterHead, f"loss.auxiliary={recipe.loss.auxiliary}", "features_with_clusters")
    if recipe.start == "text":
        able(model, Starts, "start='text'", "start_at")
    return model


def start(
    recipe: Recipe,
    model: nn.Module,
    process: dd.processes.ForwardProcess,
    data: Prepared,
    clusters: Clusters | None = None,
) -> None:
    """Initialise an untrained network as ``recipe.start`` specifies, on every process the same.

    Raises:
        ValueError: weights that do not fit; weights for other ``clusters`` than those of the process.
    """
    if recipe.start == "random":
        return
    if recipe.start != "text":
        folder = published(recipe)
        if clusters is not None and (folder / f"{CLUSTERS}.json").exists():
            theirs = load_clusters(folder / CLUSTERS, data.fingerprint).parents
            same = len(theirs) == len(clusters.parents) and all(map(torch.equal, theirs, clusters.parents))
            if not same:
                raise ValueError(
                    f"start={recipe.start!r}: its states are other clusters than those of the process. Use those of "
                    f"the run: --process.clusters {folder / CLUSTERS}"
                )
        try:
            fill(model, folder / "model.safetensors", getattr(model, "initially_neutral", ()))
        except ValueError as error:
            other = difference(read_recipe(folder / RECIPE).model, recipe.model, "model")
            raise ValueError(
                f"start={recipe.start!r}: {error}. The network must be that of {folder / RECIPE}, with the same "
                f"numbers of tokens and states{f'; {other}' if other else ''}"
            ) from error
        return
    text = stream(data)
    counts, vectors = text.bincount(minlength=data.vocab_size), neighbourhoods(text, data.vocab_size, model.dim)
    model.start_at(log_probs(counts), state_vectors(process, counts, 0.3 * model.dim**0.5 * vectors))


def micro_batch(recipe: Recipe, world: World) -> int:
    """Sequences of one forward pass.

    Raises:
        ValueError: a batch that does not divide into equal parts.
    """
    share, rest = divmod(recipe.batch, world.size)
    micro = recipe.hardware.micro_batch or share
    if rest or share % micro:
        raise ValueError(
            f"batch={recipe.batch}: must be a multiple of {world.size} processes times hardware.micro_batch={micro}"
        )
    return micro


def check_folder(recipe: Recipe, model: nn.Module) -> None:
    """Raises before training starts if the run could not write its checkpoints.

    Raises:
        OSError: the folder cannot be written to, or its disk cannot hold the checkpoints.
    """
    folder = recipe.output.folder
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        raise OSError(f"output.folder={folder}: cannot be written ({error.strerror})") from error
    # weights, two moments and the average, in each of those kept, the best one, and the one being written
    copies = 3 + (recipe.optimizer.ema > 0)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    needed, free = size * copies * (recipe.output.keep + 2), shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"output.folder={folder}: {free / 1e9:.1f} GB are free there, the checkpoints need {needed / 1e9:.1f} GB; "
            "free some, keep fewer (output.keep), or choose another folder"
        )
