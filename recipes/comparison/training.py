"""Several processes at one budget.

Recipes that differ in the process alone, trained and measured side by side.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int
from rich.console import Console
from torch import Tensor, nn

import ddlib as dd
from recipes.comparison.figure import Curve
from recipes.config import IN_STRATA, Hardware, Loss, Optimizer, Output, Recipe
from recipes.config import Data as TextOf
from recipes.console import training_progress
from recipes.data import Batch, Documents, Prepared, speeches, text
from recipes.embeddings.starting import log_probs
from recipes.engine.parallel import World
from recipes.engine.run import Run
from recipes.metrics import Terms, measure

ALONE = World(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Config:
    """All values that decide the numbers."""

    seed: int = 0
    out: Path = Path("runs/quickstart")

    first_year: int = 1934
    held_out: float = 0.05
    vocab_size: int = 2048
    window: int = 64

    num_clusters: int = 64
    cluster_dim: int = 64
    cluster_reach: int = 1  # adjacent neighbours group words by syntax, distant ones by topic

    dim: int = 128
    depth: int = 2
    heads: int = 4

    steps: int = 600
    batch_size: int = 32
    learning_rate: float = 6e-3
    warmup: int = 40
    weight_decay: float = 0.1
    weight_clip: float = 2.0

    curve_points: int = 8
    curve_windows: int = 128
    passes: int = 4
    sample_steps: int = 128
    samples: int = 2
    temperature: float = 1.0
    top_p: float = 0.9

    def recipe(self, process: dict[str, Any] | str) -> Recipe:
        """Return the recipe of one process.

        The recipes of a comparison differ in the process alone.

        Muon (Jordan et al. 2024) trains the matrices of the blocks, AdamW all else: with AdamW
        alone a run this short stays at the unigram frequencies.
        """
        has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
        return Recipe(
            data=TextOf(corpus=speeches(self.vocab_size), folder=self.out, length=self.window),
            process=process,
            model={"kind": "dit", "dim": self.dim, "depth": self.depth, "heads": self.heads},
            optimizer=Optimizer(
                lr=self.learning_rate,
                betas=(0.9, 0.98),
                eps=1e-8,
                weight_decay=self.weight_decay,
                warmup=self.warmup,
                final=0.0,
                muon=True,
                ema=0.0,
            ),
            loss=Loss(weighting=f"clip:{self.weight_clip}"),
            output=Output(folder=self.out, validate_sequences=self.curve_windows),
            hardware=Hardware(bf16=has_bf16, threads=1),
            batch=self.batch_size,
            steps=self.steps,
            start="text",
            seed=self.seed,
        )


@dataclass(frozen=True)
class Data:
    """The text: as one stream of tokens, and cut into windows, the documents of ``prepared``."""

    prepared: Prepared
    stream: Int[Tensor, " N"]
    validation: text.Windows


@dataclass(frozen=True)
class Trained:
    """A trained model, its process and its learning curve."""

    process: dd.processes.ForwardProcess
    model: nn.Module
    curve: Curve


def documents(windows: text.Windows, vocab_size: int) -> Documents:
    """Return windows as documents in memory."""
    count, length = windows.tokens.shape
    offsets = pa.array(np.arange(0, (count + 1) * length, length, dtype=np.int32))
    rows = pa.ListArray.from_arrays(offsets, pa.array(windows.tokens.flatten().numpy()))
    return Documents(
        pa.chunked_array([rows]), pa.chunked_array([windows.num_bytes.numpy()]), vocab_size
    )


def train(
    config: Config, processes: Mapping[str, dict[str, Any] | str], data: Data, console: Console
) -> dict[str, Trained]:
    """Train a model for each process, all at the same time.

    Measure the bounds of a few windows on the way.

    Each run has an equal share of torch's threads: on a few cores two small networks side by side
    take less time than one after the other with twice as many threads.
    """
    # one after the other, since initial weights are drawn from torch's global generator
    recipes = {name: config.recipe(process) for name, process in processes.items()}
    runs = {name: Run.prepare(recipe, ALONE, data.prepared) for name, recipe in recipes.items()}
    about = next(iter(recipes.values())).loss.about(padded=False)
    threads = torch.get_num_threads()
    stopped = Event()
    torch.set_num_threads(max(1, threads // len(runs)))
    try:
        with (
            training_progress(
                console, list(runs), config.steps, config.batch_size * config.window, about
            ) as reports,
            ThreadPoolExecutor(len(runs)) as pool,
        ):
            curves = {
                name: pool.submit(learn, config, run, reports[name], stopped)
                for name, run in runs.items()
            }
            try:
                wait(curves.values(), return_when=FIRST_EXCEPTION)
            finally:
                stopped.set()  # after an error of one run, or an interrupt, the others stop too
    finally:
        torch.set_num_threads(threads)
    return {
        name: Trained(run.process, run.objective.model.eval(), curves[name].result())
        for name, run in runs.items()
    }


def learn(config: Config, run: Run, report: Callable[[int, float], None], stopped: Event) -> Curve:
    """Make the steps of a run, until another run stopped.

    Return the loss of each step and a few bounds.
    """
    curve = Curve()
    marks = {
        round(config.steps * point / config.curve_points)
        for point in range(1, config.curve_points + 1)
    }
    curve.bound.append((0, run.validate().per_token.value))
    with closing(run.batches()) as batches:
        for step, batch in enumerate(islice(batches, config.steps), start=1):
            if stopped.is_set():
                break
            curve.loss.append(run.step(batch, stop=False).loss)
            report(step, curve.loss[-1])
            if step in marks:
                curve.bound.append((step, run.validate().per_token.value))
    return curve


def bound(config: Config, run: Trained, data: Data) -> Terms:
    """Measure the bound of every validation window, the mean over ``config.passes`` draws of times
    and noise.
    """
    windows = data.validation.tokens
    batches = [
        Batch(x=x, mask=torch.ones_like(x, dtype=torch.bool), index=index)
        for x, index in zip(windows.split(128), torch.arange(len(windows)).split(128), strict=True)
    ]
    density = run.process.time_density(config.window, chance=IN_STRATA)
    draws = [
        measure(
            run.process,
            run.model,
            batches,
            config.seed + 1,
            number,
            density=density,
            levels="balanced",
        )
        for number in range(config.passes)
    ]
    return Terms.average(draws)


def evaluate(
    config: Config, trained: dict[str, Trained], data: Data
) -> tuple[dict[str, dd.Tally], dd.Tally]:
    """Return the bounds of all models, and the paired difference of the first two, first minus
    second.
    """
    nats = {
        name: bound(config, run, data).nats.sum(-1, keepdim=True) for name, run in trained.items()
    }
    first, second = (list(nats.values()) * 2)[:2]
    tallies = [dd.Tally() for _ in range(len(nats) + 1)]
    for tally, values in zip(tallies, [*nats.values(), first - second], strict=True):
        tally.add(
            (values / config.window).expand(-1, config.window), num_bytes=data.validation.num_bytes
        )
    return dict(zip(nats, tallies, strict=False)), tallies[-1]


def baselines(config: Config, data: Data) -> tuple[float, dd.Tally]:
    """Return the entropy of the validation text's tokens in nats, and its nats under the
    frequencies of training.
    """
    counts = data.validation.tokens.flatten().bincount(minlength=config.vocab_size).double()
    shares = counts / counts.sum()
    learned = log_probs(data.stream.bincount(minlength=config.vocab_size))
    nats = -learned.double()[data.validation.tokens]
    tally = dd.Tally()
    tally.add(nats, num_bytes=data.validation.num_bytes)
    return float(-torch.xlogy(shares, shares).sum()), tally
