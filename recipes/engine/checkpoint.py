"""Checkpoints of a run: written atomically, verified by hashes, damaged ones skipped.

A checkpoint is a folder ``step_00001000`` that ``torch.distributed.checkpoint`` writes under
another name; it gets a manifest and is renamed. Its metadata is a pickle, so it is used only to
resume trusted runs; the published format is ``weights``, safetensors and JSON.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ddlib_models.io.manifest import (
    ManifestError,
    check_manifest,
    flush,
    read_facts,
    write_manifest,
)
from recipes.config import Output
from recipes.engine.folder import check_place
from recipes.engine.objectives.base import Objective
from recipes.engine.optimizer import Average
from recipes.engine.parallel import World

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in the folder of a run."""
_NAME = re.compile(r"step_(\d+)")
_PARTS = {
    "model": "the network",
    "optimizer": "optimizer.muon, or the trained weights of the network",
    "objective": "loss.kind, its keys and the batch",
}
"""Parts of the state, and what they depend on in a recipe."""


@dataclass(frozen=True)
class Facts:
    """Metadata of a checkpoint."""

    step: int
    """Steps that were made; the next example has the index ``step`` times the batch size."""
    recipe: str
    """Hash of the values that affect results."""
    vocabulary: str
    """Fingerprint of the tokenizer."""
    content: str
    """Fingerprint of the content of the prepared data."""
    process: str
    """Hash of the noise as it was built, see ``process_hash``."""
    world: int
    """Number of processes."""
    bound: float | None = None
    """The last validation bound in nats per token."""

    @classmethod
    def of(cls, path: Path, recorded: dict[str, Any]) -> Self:
        """Return the metadata that the checkpoint at ``path`` recorded.

        Raises:
            ValueError: other entries than these.
        """
        names = {one.name for one in fields(cls)}
        if recorded.keys() != names:
            raise ValueError(
                f"{path} records {', '.join(sorted(recorded))}, must record "
                f"{', '.join(sorted(names))}: another version of ddlib wrote it. Choose another "
                "output.folder, with --start FOLDER for the weights of this run"
            )
        return cls(**recorded)


@dataclass(frozen=True)
class TrainingState:
    """State that training changes."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    average: Average | None
    objective: Objective

    def tensors(self) -> dict[str, Any]:
        """Return all of it by name; the names do not depend on how the model is sharded."""
        state: dict[str, Any] = {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizers),
        }
        if self.average is not None:
            state["average"] = self.average.weights
        extra = self.objective.tensors()
        if extra:
            state["objective"] = extra
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of ``tensors``; the averages were read in place.

        The options of the optimizers, such as ``weight_decay``, stay those of the recipe.
        """
        set_model_state_dict(self.model, state["model"])
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        options = [
            {name: value for name, value in group.items() if name != "params"} for group in groups
        ]
        set_optimizer_state_dict(self.model, self.optimizers, state["optimizer"])
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, values in zip(groups, options, strict=True):
            group.update(values)
        if "objective" in state:
            self.objective.load(state["objective"])


def name_of(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step_{step:08d}"


def _step(path: Path) -> int:
    """Return the step of a checkpoint's folder name."""
    return int(path.name.removeprefix("step_"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a run's folder, newest first.

    Other names, such as a copy of one, are left out.
    """
    return sorted(
        (path for path in folder.glob("step_*") if _NAME.fullmatch(path.name)),
        key=_step,
        reverse=True,
    )


def save(folder: Path, state: TrainingState, facts: Facts, world: World, keep: int) -> Path:
    """Write a checkpoint; remove those that are neither among the newest ``keep`` nor the one of
    the best bound.
    """
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
        _prune(folder, keep, facts.step)
    world.barrier()
    return final


def newest(folder: Path, say: Callable[[str], None]) -> Iterator[tuple[Path, Facts]]:
    """Yield the intact checkpoints, newest first.

    ``say`` is called for each damaged one that is skipped.

    Raises:
        ValueError: one of another version of ddlib.
    """
    for path in list_checkpoints(folder):
        try:
            yield path, Facts.of(path, check_manifest(path))
        except ManifestError as error:
            say(f"skipping a damaged checkpoint: {error}")


def load(path: Path, state: TrainingState, world: World) -> list[str]:
    """Read a checkpoint into the model, the optimizer and the averages, for any earlier number of
    processes.

    Returns:
        messages for the user.

    Raises:
        ValueError: the checkpoint has no such state, by the part of the recipe that it depends on.
    """
    tensors = state.tensors()
    missing = _missing(path, tensors)
    if missing - {"average"}:
        parts = ", ".join(f"{part} ({_PARTS[part]})" for part in _PARTS if part in missing)
        raise ValueError(
            f"{path} cannot continue with the changed recipe: it lacks the state of {parts}. These "
            "values must stay "
            "those of the checkpoint; to change them begin a new run, with --start FOLDER for its "
            "weights"
        )
    if "average" in missing:
        del tensors["average"]
    with quietly():
        dcp.load(tensors, checkpoint_id=path, no_dist=world.size == 1)
    state.load(tensors)
    if state.average is None or "average" not in missing:
        return []
    state.average.restart()
    return [f"{path} has no average of the weights: it starts at the weights of this step"]


def _missing(path: Path, tensors: dict[str, Any]) -> set[str]:
    """Return the parts of a state with tensors that the checkpoint lacks, or has in another
    shape.
    """
    metadata = dcp.FileSystemReader(path).read_metadata()
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(
        tensors, metadata, is_coordinator=True
    )  # flattens the names as in a checkpoint
    saved = metadata.state_dict_metadata
    return {
        name.partition(".")[0]
        for name, value in planner.state_dict.items()
        if name not in saved
        or (
            isinstance(value, torch.Tensor)
            and getattr(saved[name], "size", value.shape) != value.shape
        )
    }


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress the warning about a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def check_folder(output: Output, model: torch.nn.Module, averaged: bool) -> None:
    """Raise if the run could not write its checkpoints.

    Args:
        output: files of the run. Checkpoints that are there already will be replaced.
        model: the network.
        averaged: whether an average of the weights is saved too.

    Raises:
        ValueError: as ``check_place``.
        OSError: the folder cannot be written to, or its disk cannot hold the checkpoints.
    """
    folder = output.folder
    check_place(folder)
    size, trained = (
        sum(
            p.numel() * p.element_size()
            for p in model.parameters()
            if p.requires_grad or everything
        )
        for everything in (True, False)
    )
    # weights and the average, and two moments of what is trained
    one = size * (1 + averaged) + 2 * trained
    held = sum(path.stat().st_size for path in (folder / CHECKPOINTS).rglob("*") if path.is_file())
    # room for the kept checkpoints, the best one, and the new one, which is written before an old
    # one is removed
    needed = max(one * (output.keep + 2) - held, one)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"output.folder={folder}: {_bytes(free)} are free there, the checkpoints need "
            f"{_bytes(needed)} more; "
            "free some, keep fewer (output.keep), or choose another folder"
        )


def _bytes(number: float) -> str:
    """Format a number of bytes."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def _prune(folder: Path, keep: int, step: int) -> None:
    """Remove the checkpoints that are not kept, and those of later steps, which are damaged or of
    an abandoned run.

    One whose metadata cannot be read is neither counted nor removed.
    """
    bounds: dict[Path, float | None] = {}
    for path in list_checkpoints(folder):
        if _step(path) > step:
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            bounds[path] = read_facts(path)["bound"]
        except ManifestError:
            continue
    measured = {path: bound for path, bound in bounds.items() if bound is not None}
    # of several with one bound the oldest: later ones repeat the bound of its weights
    best = min(reversed(measured), key=measured.__getitem__, default=None)
    for path in list(bounds)[keep:]:
        if path != best:
            shutil.rmtree(path)
