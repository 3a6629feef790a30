"""LM1B in the training setup of the HDLM paper: sequences of 128 tokens without packing, a million
steps.

    python -m recipes.prepare lm1b --out data/lm1b                        # once
    python -m recipes.lm1b hdlm                                           # one device
    torchrun --nproc-per-node 8 -m recipes.lm1b hdlm
    python -m recipes.lm1b hdlm --data.packed  # no padding: several sentences in a row
    python -m recipes.lm1b bd3lm-16 --start runs/lm1b/bd3lm-start          # by blocks
    python -m recipes.lm1b hdlm --smoke                                   # seconds, on local text

A million steps of the paper's batch of 512 are 65.5 billion tokens; the paper states 33 billion:
``--batch 256``.

Tokens are those of bert-base-uncased, and the text is first detokenised to its form before LM1B
split it, as in the protocol of MDLM (Sahoo et al. 2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recipes.config import Data, Recipe
from recipes.console import command
from recipes.data import lm1b
from recipes.owt import small as owt_small
from recipes.papers import autoregressive_variant, block_variants, run, variants


def small() -> Recipe:
    """Return the paper's SMALL on LM1B: as on OpenWebText, but for a constant rate of 3e-4 and
    dropout.
    """
    recipe = owt_small()
    return replace(
        recipe,
        data=Data(corpus=lm1b(), folder=Path("data/lm1b"), length=128),
        model=recipe.model | {"dropout": 0.1},
        optimizer=replace(recipe.optimizer, lr=3e-4, warmup=2500, final=1.0),
        output=replace(recipe.output, folder=Path("runs/lm1b")),
        steps=1_000_000,
    )


def recipes() -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name."""
    papers = variants(small(), weight_clip=10.0) | autoregressive_variant(small())
    return papers | block_variants(small(), length=128)


def main(arguments: Sequence[str] | None = None) -> None:
    run(recipes(), "python -m recipes.lm1b", arguments)


if __name__ == "__main__":
    command(main)
