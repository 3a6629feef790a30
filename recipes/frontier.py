"""Quality against variety of a trained model's samples, for several samplers and numbers of network
calls.

    # a local causal language model
    python -m recipes.frontier runs/owt/hdlm --scorer models/gpt2-large
    python -m recipes.frontier runs/owt/hdlm --samplers ancestral remask:eta=0.05 --calls 8 32
    python -m recipes.frontier runs/owt/hdlm --temperature 1 0.85 0.7 --spacing time jumps
    python -m recipes.frontier runs/owt/hdlm --scorer none  # entropy and calls alone, without nats

A cell is a sampler, a number of calls, a temperature and a spacing of the steps; all cells draw
with the same keyed noise. For each it measures the scorer's nats per token, the entropy of a
sample's tokens, both with standard errors over samples, and the network calls per sample that were
made; and nats and entropy of held-out data, where the run's data is there. Prints a line per cell,
and writes frontier.json and a figure, frontier.png, into the folder of the run. The file is written
after each cell; the same command continues it, and more samplers, calls, temperatures or spacings
extend it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from recipes.config import at_least
from recipes.console import check_file, command, make_console, plain_errors
from recipes.engine.parallel import World, alone
from recipes.engine.provenance import provenance
from recipes.evaluation import frontier as cell_measures
from recipes.evaluation.generative import NONE
from recipes.evaluation.report import check_model, result_path, write
from recipes.evaluation.samples import draw_samples
from recipes.generation.calls import network_calls
from recipes.generation.samples import protocol
from recipes.generation.sampling import Sampling
from recipes.metrics.scoring import Scorer, load_scorer
from recipes.model_io import LoadedModel, LoadOptions, Precision, measured_length
from recipes.model_io.samplers import check_sampler

RESULT = "frontier.json"
USUAL = ("ancestral", "first_hitting", "confidence")
"""Default samplers, of which those are left out that do not support the process."""


@dataclass(frozen=True)
class Cell:
    """A sampler, a number of network calls, a temperature and a spacing of the steps."""

    sampler: str
    budget: int
    """Largest number of network calls of the steps."""
    steps: int
    """Steps of the sampler; at a pace of several parts those of each part."""
    temperature: float
    spacing: Literal["time", "jumps"]


COLUMNS = tuple(column.name for column in fields(Cell))
"""Names of the values that differ between cells."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.frontier``."""

    run: tyro.conf.Positional[str]
    """Folder of a run or of weights, or owner/name on the Hugging Face hub, also of a third-party
    denoiser.
    """
    scorer: str
    """Causal language model: owner/name on the hub, or a folder; "none" for entropy and calls
    without nats.
    """
    scorer_bos: bool = False
    """Put the scorer's beginning of text before each sample, so that the first token is predicted
    too.
    """
    samplers: tuple[str, ...] = ()
    """Samplers, with options as in recipes.generate; by default ancestral, and first_hitting and
    confidence where the process has levels."""
    calls: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    """Largest numbers of network calls per sample. A step in which no position changes makes none,
    so the number of calls that were made is measured as well.
    """
    samples: int = 64
    """Number of unconditional samples of each cell."""
    length: int | None = None
    """Tokens of a sample; as in training by default, and at most 512 for a third-party model."""
    spacing: tuple[Literal["time", "jumps"], ...] = ("time",)
    """Equal steps in time, or with equally many expected jumps in each step, for hierarchies. Given
    both, samplers that support both have cells for each; other samplers have cells for the first
    alone.
    """
    temperature: tuple[float, ...] = (1.0,)
    """Temperatures of all distributions that are sampled; cells for each."""
    top_p: float = 1.0
    """Keep the fewest tokens with this total probability."""
    pace: str | None = None
    """Schedule of positions; by default as the model was trained."""
    memory: bool = False
    """Each call of the network takes the features of the previous one; for a model trained with
    loss.memory.
    """
    precision: Precision = "float32"
    """Precision of the network; tokens are drawn in float64."""
    batch: int = 32
    """Samples drawn at a time; affects only memory and speed."""
    seed: int = 0
    """Seed of the noise, which is the same in all cells."""
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)
    out: Path | None = None
    """File for the result, with the figure beside it; by default frontier.json in the folder of the
    run, or frontier-NAME.json here for a model without one."""

    def __post_init__(self) -> None:
        at_least(2, samples=self.samples)  # one sample has no standard error
        length = 1 if self.length is None else self.length
        at_least(1, batch=self.batch, calls=min(self.calls, default=0), length=length)
        at_least(0, seed=self.seed)
        for name in self.samplers:
            check_sampler(name, "samplers")
        if self.path.suffix == ".png":
            raise ValueError(
                f"out={self.path}: is the file of the figure, must be another one, for JSON"
            )
        for name in ("spacing", "temperature"):
            if not getattr(self, name):
                raise ValueError(f"{name}=(): must have at least one value")
        for cell in self.variants(USUAL[0]):
            self.sampling(cell)

    def variants(self, sampler: str) -> Iterator[Cell]:
        """Yield a cell of one call and one step for every temperature and spacing."""
        for temperature, spacing in product(
            dict.fromkeys(self.temperature), dict.fromkeys(self.spacing)
        ):
            yield Cell(sampler, 1, 1, temperature, spacing)

    def sampling(self, cell: Cell) -> Sampling:
        """Return the sampling options of a cell."""
        flags = {name: value for name, value in vars(cell).items() if name != "budget"}
        return Sampling(**flags, top_p=self.top_p, pace=self.pace, memory=self.memory)

    @property
    def path(self) -> Path:
        """Path of the result: not among weights, whose folder has a manifest, but here with its
        name.
        """
        return result_path(RESULT, self.run, self.out)


def cells_of(saved: LoadedModel, options: Options, length: int) -> Iterator[Cell]:
    """Yield the cells: every sampler with every number of calls that suffices for one step of each
    part of the pace.

    Raises:
        ValueError: a sampler that does not support the process or the pace; too few calls for a
            single step.
    """
    for name in dict.fromkeys(options.samplers or USUAL):
        for variant in options.variants(name):
            try:
                each = cell_measures.fewest_calls(saved, options.sampling(variant), length)
            except ValueError:
                if variant.spacing == options.spacing[0] and (options.samplers or name == USUAL[0]):
                    raise
                continue
            if max(options.calls) < each:
                raise ValueError(
                    f"calls={max(options.calls)}: {name} makes up to {each} calls in its smallest "
                    "number of steps"
                )
            budgets = [calls for calls in sorted({*options.calls}) if calls >= each]
            yield from (replace(variant, budget=calls, steps=calls // each) for calls in budgets)


def settings_of(
    saved: LoadedModel, options: Options, length: int, scorer: Scorer | None
) -> dict[str, Any]:
    """Return all values that determine the numbers of every cell, the hash of the weights among
    them.
    """
    drawn = protocol(
        saved, options.sampling(next(options.variants(USUAL[0]))), options.seed, length
    )
    judge = (
        {}
        if scorer is None
        else {"revision": scorer.revision, "bos": options.scorer_bos, "limit": scorer.limit}
    )
    return {name: value for name, value in drawn.items() if name not in COLUMNS} | {
        **options.reading.options_of_results(),
        "samples": options.samples,
        "scorer": None if scorer is None else {"name": scorer.name, **judge},
    }


def measure_cell(
    saved: LoadedModel,
    options: Options,
    cell: Cell,
    length: int,
    scorer: Scorer | None,
    world: World,
) -> dict[str, Any]:
    """Draw and judge the samples of a cell."""
    sampling = options.sampling(cell)
    with network_calls(saved.model) as counter:
        drawn = draw_samples(
            saved, sampling, options.samples, length, options.batch, options.seed, world
        )
    documents = [saved.document(tokens) for tokens in drawn]
    calls = counter.sequences / options.samples
    return {
        **vars(cell),
        "calls": calls,
        **cell_measures.judge_documents(saved, documents, scorer, options.scorer_bos),
    }


def frontier(options: Options, console: Console) -> dict[str, Any]:
    """Measure every cell that the result file lacks; write and return the result.

    Raises:
        ValueError: before anything is drawn, for a sampler, a scorer or a file that does not fit.
    """
    check_file("out", options.path)
    check_model("out", options.path, options.run)
    world = alone()
    saved = options.reading.open(options.run, world.device, options.precision)
    first = options.sampling(next(options.variants(USUAL[0])))
    length = measured_length(saved, options.length, first.pace_of(saved).block or 1)
    cells = list(cells_of(saved, options, length))
    if options.scorer != NONE and saved.layout is not None:
        raise ValueError(
            f"scorer={options.scorer!r}: must be {NONE!r}, as the samples of {saved.name} are not "
            "text"
        )
    scorer = (
        None
        if options.scorer == NONE
        else load_scorer(options.scorer, world.device, options.scorer_bos)
    )
    settings = settings_of(saved, options, length, scorer)
    stored, starts = cell_measures.stored_cells(options.path, settings, console)
    starts.append(provenance(saved.plugins))
    real = cell_measures.held_out_documents(saved, length, options.samples)
    result = {
        "protocol": {"run": options.run, **settings},
        "held_out": None
        if real is None
        else cell_measures.judge_documents(saved, real, scorer, options.scorer_bos),
        "cells": stored,
        "starts": starts,
    }
    there = [{name: one[name] for name in COLUMNS} for one in stored]
    for cell in cells:
        if vars(cell) not in there:
            stored.append(measure_cell(saved, options, cell, length, scorer, world))
            write(options.path, result)
            console.print(cell_measures.in_a_line(stored[-1]), markup=False, soft_wrap=True)
    write(options.path, result)
    picture = options.path.with_suffix(".png")
    cell_measures.write_figure(
        picture, result, f"{options.samples} samples of {length} tokens each"
    )
    console.print(f"written to {options.path}, figure {picture}", markup=False, soft_wrap=True)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the run of the command line."""
    with plain_errors():
        options = tyro.cli(
            Options, args=arguments, prog="python -m recipes.frontier", description=__doc__
        )
        frontier(options, make_console())


if __name__ == "__main__":
    command(main)
