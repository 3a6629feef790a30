"""Runs of the engine for its tests: tiny recipes, in processes that can be killed."""

import functools
import json
import multiprocessing
import os
import shutil
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch

import ddlib as dd
from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.config.recipe import read_part
from recipes.data import prepare, speeches
from recipes.engine.network import Network
from recipes.logging import TIMING, read_metrics


@functools.cache
def text(folder: Path, words: int = 300, held_out: int = 60) -> Path:
    """A folder of prepared text of a few words: a copy, since its preparation takes as long as
    fifty steps.
    """
    shutil.copytree(_made(words, held_out).name, folder)
    return folder


def smoke_text(folder: Path) -> None:
    """The text of ``--smoke`` where a command in this folder looks for it."""
    text(folder / "runs" / "smoke" / "data", 1024, 1000)


@functools.cache
def _made(words: int, held_out: int) -> TemporaryDirectory:
    made = TemporaryDirectory()
    prepare(speeches(words=words, held_out=held_out), Path(made.name))
    return made


def recipe(data: Path, folder: Path, **changes) -> Recipe:
    """Twenty steps that take a second."""
    given = Recipe(
        data=Data(corpus=speeches(words=300, held_out=60), folder=data, length=16),
        process=dict(kind="hdlm", clusters=6, xi=0.9),
        model=dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, pad_to=1, dropout=0.1),
        optimizer=Optimizer(lr=3e-3, warmup=4, ema=0.9),
        hardware=Hardware(threads=1),
        output=Output(
            folder=folder,
            log_every=1,
            validate_every=10,
            validate_sequences=24,
            sample_every=20,
            sample_steps=4,
            samples=2,
            save_every=4,
            keep=2,
            tensorboard=False,
        ),
        batch=8,
        steps=20,
    )
    return replace(given, **changes)


def context():
    """Processes forked off one that has imported everything and has no threads."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["recipes.engine", __name__])
    return chosen


def start(given: Recipe, size: int = 1, accept_changes: bool = False) -> list:
    """Trains in separate processes; their output goes to a file beside the run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = given.output.folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [(given, rank, size, port, accept_changes, log) for rank in range(size)]
    processes = [context().Process(target=_work, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    return processes


def finish(processes: list, seconds: float = 120) -> list[int]:
    """The exit codes."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(end - time.monotonic(), 0.1))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def trained(given: Recipe, size: int = 1, accept_changes: bool = False) -> Path:
    """Trains to the end and returns the run's folder."""
    codes = finish(start(given, size, accept_changes))
    assert codes == [0] * size, f"exit codes {codes}:\n{output_of(given)}"
    return given.output.folder


def output_of(given: Recipe) -> str:
    """Output of the processes, if they came that far."""
    log = given.output.folder.with_suffix(".log")
    return (
        log.read_text(encoding="utf-8")
        if log.exists()
        else "no log: it failed before it wrote one, see stderr"
    )


def curve(folder: Path) -> list[dict]:
    """All that a run measured, but for the time it took."""
    records = [record for _, record in read_metrics(folder / "metrics.jsonl")]
    return [
        {name: value for name, value in record.items() if name not in TIMING} for record in records
    ]


def losses(folder: Path) -> list[float]:
    """The loss of every step."""
    return [record["loss"] for record in curve(folder) if record["kind"] == "train"]


def steps_made(folder: Path) -> int:
    """Number of steps in metrics.jsonl, which may be being written."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except ValueError:
            continue
    return 0


def _work(given: Recipe, rank: int, size: int, port: int, accept_changes: bool, log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    if size > 1:
        os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
        os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    from recipes.engine import train

    train(given, accept_changes)


def loss(**keys) -> dict:
    """All values of ``loss`` of a recipe with these keys."""
    return read_part("loss", keys)


def objective(**keys):
    """The training objective with these keys of ``loss``."""
    return dd.build("objectives", loss(**keys), place="loss")


def loss_of(given, model, process, noisy, scale, half=False):
    """What an objective returns for a noisy batch and a network."""
    network = Network(model, given.parameterization, half)
    given.setting = SimpleNamespace(process=process, network=network)
    return given.loss(noisy, network, scale)
