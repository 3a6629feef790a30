"""Recipes on data that is not text: one setting, several processes, at full size and in minutes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.config.command import choose
from recipes.console import plain_errors
from recipes.data import SymbolCorpus
from recipes.papers.variants import with_processes

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a run: the network, and how long it trains."""

    dim: int
    depth: int
    heads: int
    batch: int
    steps: int
    lr: float
    warmup: int
    every: int
    """Steps between validation bounds, samples and checkpoints."""


FULL = Size(dim=384, depth=12, heads=6, batch=256, steps=200_000, lr=3e-4, warmup=2500, every=5000)
"""Size for one GPU."""

SMOKE = Size(dim=64, depth=3, heads=4, batch=32, steps=400, lr=3e-3, warmup=20, every=400)
"""Size for two CPU cores and two to three minutes; enough to see that samples resemble the data."""


def setting(
    name: str,
    corpus: SymbolCorpus,
    length: int,
    size: Size,
    network: Values | None = None,
    packed: bool = False,
) -> Recipe:
    """Return the recipe of a data set with masks, at a size.

    The loss is the bound itself, with times from the density of its least variance: weights need no
    clip.

    Args:
        name: name of the data set, and of its folders in ``data`` and ``runs``.
        corpus: the data.
        length: symbols of a row.
        size: size of the run.
        network: further values of the network.
        packed: whether rows hold several sequences, as sequences of different lengths require.
    """
    smoke = size is SMOKE
    shape = {"dim": size.dim, "depth": size.depth, "heads": size.heads}
    run = Path("runs/smoke" if smoke else "runs") / name
    return Recipe(
        data=Data(
            corpus=corpus,
            folder=run / "data" if smoke else Path("data") / name,
            length=length,
            packed=packed,
        ),
        process={"kind": "mdlm"},
        model={"kind": "dit", **shape, **(network or {})},
        loss={"weighting": {"kind": "clip", "high": None}, "times": "optimal"},
        optimizer=Optimizer(
            lr=size.lr,
            warmup=size.warmup,
            weight_decay=0.05,
            muon=smoke,
            ema=1 - 10 / size.steps if smoke else 0.9999,
        ),
        hardware=Hardware(bf16=not smoke, compile=not smoke, threads=1 if smoke else 4),
        output=Output(
            folder=run,
            validate_every=size.every,
            validate_sequences=64 if smoke else 1024,
            sample_every=size.every,
            samples=16,
            sample_steps=64 if smoke else 128,
            save_every=size.every,
            tensorboard=not smoke,
        ),
        batch=size.batch,
        steps=size.steps,
    )


def processes(
    recipe: Recipe, more: Mapping[str, tuple[str, Values]]
) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipe with masks, GIDD and uniform noise, and with the processes of this data,
    each in its folder.

    Args:
        recipe: the setting.
        more: description and values of further processes by name.
    """
    every = {
        "masks": ("masked diffusion", {"kind": "mdlm"}),
        "gidd": ("masks and uniform noise", {"kind": "gidd", "p_uniform": 0.1}),
        "uniform": ("uniform noise", {"kind": "uniform", "schedule": "linear"}),
    } | dict(more)
    return with_processes(recipe, every)


def run(
    full: Mapping[str, tuple[str, Recipe]],
    smoke: Mapping[str, tuple[str, Recipe]],
    prog: str,
    arguments: Sequence[str] | None = None,
) -> None:
    """Prepare the data if it is not there, and train the recipe of a command line.

    Args:
        full: recipes of full size by name.
        smoke: those that ``--smoke`` takes in their place.
        prog: name of the program.
        arguments: in place of those of the process.
    """
    with plain_errors():
        recipe, switches = choose(
            full, lambda given: smoke[given.output.folder.name][1], prog, arguments
        )
        # local imports: they take seconds, and --help ends before them
        from recipes.data import prepare
        from recipes.engine import estimate, train

        if switches.folder is None and recipe.data.corpus is not None:
            prepare(recipe.data.corpus, recipe.data.folder)
        if switches.estimate is None:
            train(recipe, switches.accept_changes)
        else:
            print(estimate(recipe, switches.estimate))
