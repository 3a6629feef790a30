"""Masked against hierarchical diffusion on real text, in minutes on a laptop's CPU.

    python -m recipes.quickstart

Trains two recipes that differ in the process alone (same network, same data order, same keyed
noise) on the State of the Union addresses, measures both bounds on the most recent speeches,
samples from both and draws their curves in runs/quickstart/quickstart.png. The hierarchy has
clusters of tokens with similar neighbours.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

import ddlib as dd
from recipes import generate, plot
from recipes.config import IN_STRATA, Data, Hardware, Optimizer, Output, Recipe, time_density
from recipes.console import command, make_console, plain_errors
from recipes.data import open_prepared, prepare, speeches
from recipes.engine import train
from recipes.engine.parallel import World
from recipes.engine.validation import NOISE, references, validate
from recipes.metrics import References, Terms, basis
from recipes.model_io import open_saved

ALONE = World(0, 1, torch.device("cpu"))
SEQUENCES = 10**6
"""More sequences than there are: the comparison takes all of the validation text."""


@dataclass(frozen=True)
class Size:
    """Values that decide how long the quickstart takes."""

    vocab_size: int = 2048
    clusters: int = 64
    dim: int = 128
    depth: int = 2
    heads: int = 4
    steps: int = 600
    batch: int = 32
    warmup: int = 40
    draws: int = 4
    """Draws of times and noise of the comparison."""
    sample_steps: int = 128


SMOKE = Size(512, 16, 32, 1, 1, 12, 8, 2, draws=2, sample_steps=8)
"""The whole pipeline at a size that teaches nothing but runs in seconds."""


@dataclass(frozen=True)
class Result:
    """The comparison, in nats per token of the validation text."""

    bounds: Mapping[str, dd.Measure]
    difference: dd.Measure
    """First minus second, paired by text."""
    references: References
    figure: Path


def recipes(size: Size, out: Path, seed: int) -> dict[str, Recipe]:
    """Return the two recipes.

    Muon (Jordan et al. 2024) trains the matrices of the blocks, AdamW all else: with AdamW alone a
    run this short stays at the unigram frequencies.
    """
    first = Recipe(
        data=Data(corpus=speeches(size.vocab_size), folder=out / "data", length=64),
        process={"kind": "mdlm"},
        model={"kind": "dit", "dim": size.dim, "depth": size.depth, "heads": size.heads},
        optimizer=Optimizer(
            lr=6e-3,
            betas=(0.9, 0.98),
            eps=1e-8,
            weight_decay=0.1,
            warmup=size.warmup,
            final=0.0,
            muon=True,
            ema=0.0,
        ),
        loss={"weighting": "clip:2"},
        output=Output(
            folder=out / "masked",
            validate_every=max(size.steps // 6, 1),
            validate_sequences=128,
            sample_every=size.steps,
            sample_steps=size.sample_steps,
            samples=1,
            save_every=size.steps,
            tensorboard=False,
        ),
        hardware=Hardware(bf16=getattr(torch.cpu, "_is_avx512_bf16_supported", bool)(), threads=1),
        batch=size.batch,
        steps=size.steps,
        start="text",
        seed=seed,
    )
    second = replace(
        first,
        process={"kind": "hdlm", "clusters": size.clusters},
        output=replace(first.output, folder=out / "hierarchical"),
    )
    return {"masked": first, "hierarchical": second}


def measure(recipe: Recipe, draws: int) -> tuple[Terms, References]:
    """Measure the bound of a finished run on all of the validation text, and its references."""
    saved = open_saved(str(recipe.output.folder))
    data = open_prepared(recipe.data.folder)
    length = recipe.data.length
    terms = [
        validate(
            saved.process,
            saved.denoiser,
            data,
            length,
            ALONE,
            sequences=SEQUENCES,
            batch=128,
            seed=NOISE + 1,
            replicate=number,
            density=time_density("optimal", saved.process, length, IN_STRATA, saved.pace),
            parameterization=saved.token_parameterization,
        )
        for number in range(draws)
    ]
    beside = references(data, length, ALONE, sequences=SEQUENCES, batch=128)
    return Terms.average(terms), beside


def pair_differences(first: Terms, second: Terms) -> Terms:
    """Return the differences of two bounds, text by text."""
    return replace(first, nats=first.nats - second.nats, apart=first.apart - second.apart)


def report(result: Result, on: str, console: Console) -> None:
    """Print the comparison."""
    console.rule(f"bound on the validation text, over {on} (lower is better)", align="left")
    for name, bound in result.bounds.items():
        console.print(f"  {name:<14}<= {bound}")
    console.print(f"  {'unigram model':<14} = {result.references.unigram:.4f} nats/token")
    gap = result.difference
    winner = "hierarchical" if gap.value > 0 else "masked"
    sure = abs(gap.value) > 2 * gap.standard_error
    console.print(
        f"  {winner} is lower by {abs(gap.value):.4f} ± {gap.standard_error:.4f} nats/token "
        f"(paired: same texts)" + ("" if sure else "; within two standard errors, so a tie")
    )
    console.print(
        "  ± is one standard error over texts; it does not include that over training runs",
        style="dim",
    )


def run(size: Size, out: Path, seed: int, console: Console) -> Result:
    """The experiment from the text to the figure."""
    started = time.perf_counter()
    compared = recipes(size, out, seed)
    prepare(compared["masked"].data.corpus, out / "data")
    for name, recipe in compared.items():
        console.rule(f"training: {name}", align="left")
        train(recipe)
    measured = {name: measure(recipe, size.draws) for name, recipe in compared.items()}
    first, second = (terms for terms, _ in measured.values())
    result = Result(
        {name: terms.per_token for name, (terms, _) in measured.items()},
        pair_differences(first, second).per_token,
        measured["masked"][1],
        out / "quickstart.png",
    )
    for recipe in compared.values():
        steps = str(size.sample_steps)
        folder = str(recipe.output.folder)
        generate.main(
            [folder, "--samples", "2", "--steps", steps, "--top-p", "0.9", "--trajectory"]
        )
    report(result, basis(len(first.index), size.draws), console)
    folders = [recipe.output.folder for recipe in compared.values()]
    plot.write_plot(result.figure, plot.collect(folders), "step", smooth=0.95)
    console.print(f"figure {result.figure}; all of it took {time.perf_counter() - started:.0f} s")
    return result


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.quickstart", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--steps", type=int, help=f"training steps of each model (default {Size.steps})"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/quickstart"),
        help="folder of the runs and the figure",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="the whole pipeline, tiny: seconds, and numbers without meaning",
    )
    options = parser.parse_args(arguments)
    size = SMOKE if options.smoke else Size()
    if options.steps is not None:
        if options.steps < 1:
            parser.error(f"--steps {options.steps}: must be at least 1")
        size = replace(size, steps=options.steps)
    with plain_errors():
        return run(size, options.out, options.seed, make_console())


if __name__ == "__main__":
    command(main)
