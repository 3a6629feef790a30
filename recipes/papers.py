"""What the recipes of the papers share: the variants, and how each becomes small enough to run in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recipes.cli import choose
from recipes.config import Recipe
from recipes.console import plain_errors
from recipes.data import prepare, speeches
from recipes.engine import train
from recipes.variants import GIDD, HDLM, MDLM, HDLMLevels


def variants(recipe: Recipe, weight_clip: float) -> Mapping[str, tuple[str, Recipe]]:
    """The processes of the papers in one setting, by the name that the command line knows them by.

    Args:
        recipe: the setting, whatever its process.
        weight_clip: the highest weight of a loss.
    """
    processes = {
        "mdlm": ("masked diffusion", MDLM()),
        "gidd": ("masks and uniform noise", GIDD()),
        "hdlm": ("words, clusters, the mask", HDLM()),
        "hdlm-levels": ("words, several levels of clusters, the mask", HDLMLevels()),
    }
    loss, output = replace(recipe.loss, weight_clip=(0.0, weight_clip)), recipe.output
    return {
        name: (text, replace(recipe, process=process, loss=loss, output=replace(output, folder=output.folder / name)))
        for name, (text, process) in processes.items()
    }


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe on text that is here, so small that it teaches nothing and runs in seconds."""
    process = recipe.process
    if isinstance(process, HDLM):
        process = replace(process, clusters=8)
    if isinstance(process, HDLMLevels):
        process = replace(process, clusters=(16, 4))
    folder, run = Path("runs/smoke"), recipe.output.folder
    return replace(
        recipe,
        data=replace(recipe.data, corpus=speeches(), folder=folder / "data", length=64),
        process=process,
        model=replace(recipe.model, dim=32, depth=2, heads=2, cond_dim=16, pad_to=1),
        optimizer=replace(recipe.optimizer, warmup=5),
        output=replace(
            recipe.output, folder=folder / run.parent.name / run.name,
            log_every=1, validate_every=20, validate_sequences=32, sample_every=20, sample_steps=16, samples=1,
            save_every=10,
        ),
        hardware=replace(recipe.hardware, micro_batch=None, bf16=False, compile=False, shard=False, threads=1),
        batch=16,
        steps=20,
    )  # fmt: skip


def run(recipes: Mapping[str, tuple[str, Recipe]], prog: str, arguments: Sequence[str] | None = None) -> None:
    """Trains the recipe that a command line asks for."""
    with plain_errors():
        recipe, switches = choose(recipes, smoke, prog, arguments)
        if switches.smoke:
            prepare(recipe.data.corpus, recipe.data.folder)
        train(recipe, switches.accept_changes)
