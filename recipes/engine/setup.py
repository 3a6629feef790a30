"""From a recipe to the objects of a run, and everything that can be refused before the first
step.
"""

import hashlib
import json
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

import ddlib as dd
from ddlib import parts, registry
from ddlib.hierarchies import Clusters, random_parents
from recipes.config import ModelContext, Recipe, RunContext, fitting, numbers, own_times
from recipes.data import Prepared
from recipes.data.layout import Layout
from recipes.embeddings.grouping import clusters_for, clusters_there
from recipes.embeddings.neighbours import stream
from recipes.engine.model_protocols import Packs, Starts, able, supported_pace
from recipes.engine.parallel import World


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
        self._recipe = recipe
        self._data = data
        self._layout = data.layout
        self._world = world

    def vocab_size(self) -> int:
        return self._data.vocab_size

    def vocabulary(self) -> dict[str, int]:
        return self._data.tokenizer.get_vocab()

    def fingerprint(self) -> str:
        return self._data.fingerprint

    def counts(self) -> Int[Tensor, " V"]:
        return self._counts

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        if self._world.first and not clusters_there(clusters, self._data):
            # whatever else is wrong with the process is found before the work of clustering
            dd.build(
                "processes",
                self._recipe.process,
                Rehearsal(self._recipe, self._data, self._world),
                "process",
            )
            clusters_for(clusters, self._data)
        self._world.barrier()
        assigned = clusters_for(clusters, self._data)
        if self._asked not in (None, clusters):
            raise ValueError(
                f"clusters={clusters!r}: must be the same in all parts of a process, another part "
                f"has {self._asked!r}"
            )
        self._asked = clusters
        self.clusters = assigned
        return list(assigned.parents)

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
    """Run context with random clusters, to check a process before clusters are computed."""

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        if isinstance(clusters, str):
            return list(clusters_for(clusters, self._data).parents)
        return random_parents(self.vocab_size(), clusters)


def fingerprint(recipe: Recipe) -> str:
    """Return a hash of all values of a recipe that determine the numbers: not folders, not the
    machine.
    """
    return hashlib.sha256(json.dumps(numbers(recipe), sort_keys=True).encode()).hexdigest()


def process_hash(process: dd.processes.ForwardProcess, clusters: Clusters | None) -> str:
    """Return a hash of a process as it was built, and of the clusters of its run.

    A recipe may only name the file that they are read from, or their number.
    """
    plain = [_plain(part) for part in process.modules() if isinstance(part, parts.Part)]
    parents = [] if clusters is None else [level.tolist() for level in clusters.parents]
    return hashlib.sha256(json.dumps([plain, parents], sort_keys=True).encode()).hexdigest()


def _plain(part: parts.Part) -> Any:
    """Return the plain values of a part, or the name of its class if it does not store them."""
    try:
        return dd.values(part)
    except TypeError:
        return f"{type(part).__module__}:{type(part).__qualname__}"


def make_process(
    recipe: Recipe, known: RunContext, data: Prepared, world: World
) -> dd.processes.ForwardProcess:
    """The noise for the vocabulary of the data.

    Raises:
        ValueError: what a part refuses, another vocabulary, a training mode that the process does
            not have.
    """
    process = dd.build("processes", recipe.process, known, "process").to(world.device)
    dd.check_vocabulary(process, data.tokenizer.get_vocab(), pad=data.pad_id)
    if data.layout is not None and data.layout.positions:
        check_alphabets(process, data.layout)
    recipe.objective().check_process(process)
    return process


def check_alphabets(process: dd.processes.ForwardProcess, layout: Layout) -> None:
    """Raise ValueError unless each position of the noise has the alphabet of the data there."""
    first = torch.zeros((1, len(layout.positions)), dtype=torch.int64, device=process.device)
    numbers = process.component_of(process.tokens_as_states(first))[0].tolist()
    for place, (number, field) in enumerate(zip(numbers, layout.by_position, strict=True)):
        count = process.components[number].process.vocab_size
        if count != len(field.symbols):
            raise ValueError(
                f"process: has {count} tokens at position {place}, field {field.name!r}, must have "
                f"{len(field.symbols)}, the alphabet of the data; kind product with every or "
                "by_field takes those of the data"
            )


def fitting_pace(recipe: Recipe) -> dd.paces.Pace:
    """Return the pace, checked for the recipe's sequences.

    Raises:
        ValueError: it does not fit; an option that takes one time per sequence only.
    """
    pace = fitting(recipe.order(), recipe.data.length)
    if own_times(pace, recipe.data.length):
        option = f"pace={pace!r}"
        if recipe.data.packed:
            raise ValueError(
                f"{option}: not with data.packed, whose rows contain several documents"
            )
    return pace


def make_model(recipe: Recipe, known: ModelContext) -> nn.Module:
    """Build the network, from the recipe's seed alone, and check the capabilities that the recipe
    requires.

    Raises:
        ValueError: an argument that the network rejects, or a capability that it lacks.
    """
    torch.manual_seed(recipe.seed)
    model = dd.build("backbones", recipe.network, known, "model")
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model: {recipe.model['kind']} returns {model!r}, must return a torch.nn.Module"
        )
    if recipe.data.packed:
        able(model, Packs, "data.packed=True", "pack")
    elif (limit := getattr(model, "max_length", None)) is not None and recipe.data.length > limit:
        raise ValueError(
            f"data.length={recipe.data.length}: must be at most {limit}, the positions of the "
            "network"
        )
    supported_pace(recipe.order(), recipe.data.length, model)
    recipe.objective().check_network(model, recipe)
    if recipe.start == "text":
        able(model, Starts, "start='text'", "start_at")
    return model


def micro_batch(recipe: Recipe, world: World) -> int:
    """Sequences of one forward pass.

    Raises:
        ValueError: a batch that does not divide into equal parts.
    """
    share, rest = divmod(recipe.batch, world.size)
    micro = recipe.hardware.micro_batch or share
    if rest or share % micro:
        raise ValueError(
            f"batch={recipe.batch}: must be a multiple of {world.size} processes times "
            f"hardware.micro_batch={micro}"
        )
    return micro


def write_out(recipe: Recipe) -> dict[str, Any]:
    """Return the values of the training objective, with those that the process decides."""
    kind = registry.find("objectives", recipe.loss["kind"])
    return kind.write_out(recipe.loss, recipe.process["kind"])
