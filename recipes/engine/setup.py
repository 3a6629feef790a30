"""From a recipe to the objects of a run, and everything that can be refused before the first step."""

import hashlib
import json
import os
import shutil

import torch

import ddlib as dd
from ddlib.hierarchies.clusters import Clusters
from ddlib_models import DiT
from recipes.config import numbers
from recipes.config import Recipe
from recipes.data import Prepared
from recipes.engine.parallel import World
from recipes.lexicon.grouping import clusters_for, neighbourhoods, stream
from recipes.lexicon.starting import start_from_text


def fingerprint(recipe: Recipe) -> str:
    """Hash of everything in a recipe that decides the numbers: not where they go, nor on what machine."""
    return hashlib.sha256(json.dumps(numbers(recipe), sort_keys=True).encode()).hexdigest()


def make_process(recipe: Recipe, data: Prepared, world: World) -> tuple[dd.processes.ForwardProcess, Clusters | None]:
    """The noise for the vocabulary of the data, and the clusters in it.

    Raises:
        ValueError: clusters of another vocabulary, another number of levels.
    """
    clusters = None
    if recipe.process.levels:
        if world.first:
            clusters_for(recipe.process.clusters, data)  # makes and keeps them if need be
        world.barrier()
        clusters = clusters_for(recipe.process.clusters, data)
    process = recipe.process.build(data.vocab_size, clusters).to(world.device)
    dd.check_vocabulary(process, data.tokenizer.get_vocab(), pad=data.pad_id)
    return process, clusters


def make_model(recipe: Recipe, process: dd.processes.ForwardProcess) -> DiT:
    """The network, from the recipe's seed alone."""
    config, hierarchy = recipe.model, getattr(process, "hierarchy", None)
    maps = hierarchy.maps[:-1] if recipe.process.levels else ()
    torch.manual_seed(recipe.seed)
    return DiT(
        process.num_states,
        process.vocab_size,
        config.dim,
        config.depth,
        config.heads,
        config.cond_dim,
        config.time_conditioned,
        config.dropout,
        tied=config.tied,
        pad_to=config.pad_to,
        parents=[edge.parents.cpu() for edge in maps] if config.mean_of_members else (),
        num_clusters=hierarchy.levels[1] if recipe.loss.auxiliary else 0,
        attention=config.attention,
    )


def start(recipe: Recipe, model: DiT, process: dd.processes.ForwardProcess, data: Prepared) -> None:
    """Gives an untrained network the start that the recipe asks for, on every process the same."""
    if recipe.model.start == "random":
        return
    hierarchy = getattr(process, "hierarchy", None) or dd.hierarchies.Flat(process.vocab_size)
    text = stream(data)
    counts, vectors = text.bincount(minlength=data.vocab_size), neighbourhoods(text, data.vocab_size, recipe.model.dim)
    start_from_text(model, hierarchy.cpu(), counts, vectors)
    hierarchy.to(process.device)


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


def check_folder(recipe: Recipe, model: DiT) -> None:
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
        raise OSError(f"output.folder={folder}: cannot be written to ({error.strerror})") from error
    # weights, two moments and the average, in each of those kept, the best one, and the one being written
    copies = 3 + (recipe.optimizer.ema > 0)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    needed, free = size * copies * (recipe.output.keep + 2), shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"output.folder={folder}: {free / 1e9:.1f} GB are free there, the checkpoints need {needed / 1e9:.1f} GB; "
            "free some, keep fewer (output.keep), or write elsewhere"
        )
