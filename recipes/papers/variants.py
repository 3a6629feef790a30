"""Variants of the papers' recipes, and their reduction to runs of seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddlib import parts
from recipes.config import Recipe, RunContext
from recipes.config.command import choose
from recipes.console import plain_errors
from recipes.data import speeches


def variants(recipe: Recipe, weight_clip: float) -> Mapping[str, tuple[str, Recipe]]:
    """Return the processes of the papers in one setting, by their name on the command line.

    ``noisy`` is of no paper: the HDLM paper suggests tokens that can be wrong as future work.

    Args:
        recipe: the setting, whatever its process.
        weight_clip: the highest weight of a loss; GIDD has the dynamic weights of its paper.
    """
    levels = {
        "kind": "hdlm_levels",
        "clusters": [256, 16],
        "xi": [1.0, 1.0],
        "speed": [1.0, 1.0, 1.0],
    }
    processes = {
        "mdlm": ("masked diffusion", {"kind": "mdlm"}),
        "gidd": ("masks and uniform noise", {"kind": "gidd", "p_uniform": 0.1}),
        "hdlm": ("tokens, clusters, the mask", {"kind": "hdlm", "clusters": 64}),
        "hdlm-levels": ("tokens, several levels of clusters, the mask", levels),
        "noisy": (
            "hdlm with tokens that can be wrong",
            {"kind": "hdlm_noisy", "clusters": 64, "p_uniform": 0.1},
        ),
    }
    losses = {name: recipe.loss | {"weighting": f"clip:{weight_clip}"} for name in processes}
    losses["gidd"] = recipe.loss | {"weighting": "dynamic"}
    return {
        name: (text, replace(variant, loss=losses[name]))
        for name, (text, variant) in with_processes(recipe, processes).items()
    }


def with_processes(
    recipe: Recipe, processes: Mapping[str, tuple[str, dict[str, Any]]]
) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipe with each process, in a folder of its name.

    Args:
        recipe: the setting, whatever its process.
        processes: description and values of processes by name.
    """
    output = recipe.output
    return {
        name: (
            text,
            replace(
                recipe,
                process=process,
                output=replace(output, folder=output.folder / name),
            ),
        )
        for name, (text, process) in processes.items()
    }


def smoke(recipe: Recipe) -> Recipe:
    """Return the recipe on local text, so small that it learns nothing and runs in seconds.

    It begins at no other run, whose network is of another size.
    """
    folder = Path("runs/smoke")
    run = recipe.output.folder
    return replace(
        recipe,
        data=replace(recipe.data, corpus=speeches(), folder=folder / "data", length=64),
        process=_few_clusters("processes", recipe.process),
        model=recipe.model | (TINY if recipe.model["kind"] == "dit" else {}),
        optimizer=replace(recipe.optimizer, warmup=5),
        output=replace(
            recipe.output,
            folder=folder / run.parent.name / run.name,
            log_every=1,
            validate_every=20,
            validate_sequences=32,
            sample_every=20,
            sample_steps=16,
            samples=1,
            save_every=10,
            wandb=None,
        ),
        hardware=replace(
            recipe.hardware, micro_batch=None, bf16=False, compile=False, shard=False, threads=1
        ),
        batch=16,
        steps=20,
        start="text" if recipe.start == "text" else "random",
    )


TINY = {"dim": 32, "depth": 2, "heads": 2, "cond_dim": 16, "pad_to": 1}
"""Tiny size of the papers' network; other networks keep their size."""


def _few_clusters(group: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a part with few clusters where its values set their number.

    Saved ones are of another vocabulary.
    """
    changed: dict[str, Any] = {}
    for name, key in parts.keys(group, values["kind"], RunContext, values).items():
        value = values.get(name)
        if key.group and isinstance(value, dict):
            changed[name] = _few_clusters(key.group, value)
        elif key.filled == "parents" != name:
            changed[name] = (
                [2 * 4**level for level in range(len(value), 0, -1)]
                if isinstance(value, list)
                else 8
            )
    return values | changed


def run(
    recipes: Mapping[str, tuple[str, Recipe]], prog: str, arguments: Sequence[str] | None = None
) -> None:
    """Train the recipe of a command line."""
    with plain_errors():
        recipe, switches = choose(recipes, smoke, prog, arguments)
        # local imports: they take seconds, and --help ends before them
        from recipes.data import prepare
        from recipes.engine import estimate, train

        if switches.smoke and switches.folder is None:
            prepare(recipe.data.corpus, recipe.data.folder)
        if switches.estimate is None:
            train(recipe, switches.accept_changes)
        else:
            print(estimate(recipe, switches.estimate))
