"""Checkpoints of a run: written atomically, verified by hashes, damaged ones skipped.

A checkpoint is a folder ``step_00001000`` that ``torch.distributed.checkpoint`` writes under another name; it gets a
manifest and is renamed. Its metadata is a pickle, so it serves only to resume trusted runs; the published format is
``weights``, safetensors and JSON.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ddlib_models.io.manifest import ManifestError, check_manifest, flush, read_facts, write_manifest
from recipes.engine.along_order import AlongOrder
from recipes.engine.optimizer import Average
from recipes.engine.parallel import World
from recipes.engine.speeds import Speeds


@dataclass(frozen=True)
class Facts:
    """Metadata of a checkpoint."""

    step: int
    """Steps that were made; the next example has the index ``step`` times the batch size."""
    recipe: str
    """Hash of the values that affect results."""
    vocabulary: str
    """Fingerprint of the tokenizer."""
    world: int
    """Number of processes."""
    bound: float | None = None
    """The last validation bound in nats per token."""


@dataclass(frozen=True)
class State:
    """State that training changes."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    average: Average | None
    speeds: Speeds | None = None
    along: AlongOrder | None = None

    def tensors(self) -> dict[str, Any]:
        """Return all of it by name; the names do not depend on how the model is sharded."""
        state: dict[str, Any] = {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizers),
        }
        if self.average is not None:
            state["average"] = self.average.weights
        if self.speeds is not None:
            state["speeds"] = self.speeds.tensors()
        if self.along is not None:
            state["along"] = self.along.tensors()
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of ``tensors``; the averages were read in place."""
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizers, state["optimizer"])
        if self.speeds is not None:
            self.speeds.load(state["speeds"])
        if self.along is not None:
            self.along.load(state["along"])


def name_of(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step_{step:08d}"


def found(folder: Path) -> list[Path]:
    """Return the checkpoints in a run's folder, newest first."""
    return sorted((path for path in folder.glob("step_*") if path.suffix != ".tmp"), reverse=True)


def save(folder: Path, state: State, facts: Facts, world: World, keep: int) -> Path:
    """Write a checkpoint; remove those that are neither among the newest ``keep`` nor the one of the best bound."""
    final = folder / name_of(facts.step)
    temporary = final.with_name(final.name + ".tmp")
    if world.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.barrier()
    with quietly():
        dcp.save(state.tensors(), checkpoint_id=temporary, no_dist=world.size == 1)
    world.barrier()
    if world.first:
        write_manifest(temporary, vars(facts))
        shutil.rmtree(final, ignore_errors=True)  # a damaged checkpoint of this step
        os.replace(temporary, final)
        flush(folder)
        _prune(folder, keep)
    world.barrier()
    return final


def newest(folder: Path, say: Callable[[str], None]) -> Iterator[tuple[Path, Facts]]:
    """Yield the intact checkpoints, newest first; ``say`` is called for each damaged one that is skipped."""
    for path in found(folder):
        try:
            yield path, Facts(**check_manifest(path))
        except ManifestError as error:
            say(f"skipping a damaged checkpoint: {error}")


def load(path: Path, state: State, world: World) -> None:
    """Read a checkpoint into the model, the optimizer and the averages, for any earlier number of processes."""
    tensors = state.tensors()
    with quietly():
        dcp.load(tensors, checkpoint_id=path, no_dist=world.size == 1)
    state.load(tensors)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress the warning about a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _prune(folder: Path, keep: int) -> None:
    facts = {path: Facts(**read_facts(path)) for path in found(folder)}
    bounds = {path: fact.bound for path, fact in facts.items() if fact.bound is not None}
    best = min(bounds, key=bounds.__getitem__, default=None)
    for path in list(facts)[keep:]:
        if path != best:
            shutil.rmtree(path)
