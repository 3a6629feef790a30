"""OpenWebText in the training setup of the HDLM paper: 512 x 512 tokens a step, 500,000 steps, 131
billion tokens.

    python -m recipes.prepare owt --out data/owt                          # once
    python -m recipes.owt hdlm                                            # one device
    torchrun --nproc-per-node 8 -m recipes.owt hdlm --hardware.micro-batch 64
    python -m recipes.owt hdlm --smoke                                    # seconds, on local text

The variants are mdlm, gidd, hdlm, hdlm-levels and noisy, all in the setup of the HDLM paper;
hdlm-base, its BASE with 128 clusters; ar, the autoregressive baseline
(``recipes.papers.autoregressive``); mdlm-paper, in the setup of MDLM's own paper
(``recipes.papers.mdlm``); and block diffusion with the numbers of BD3-LM's paper
(``recipes.papers.blocks``): bd3lm-4, -8 and -16, which begin at the weights of bd3lm-start.
``python -m recipes.owt hdlm --help`` shows the values most often changed, ``--help-all`` every
value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddlib_models import sizes
from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.console import command
from recipes.data import openwebtext
from recipes.papers import autoregressive_variant, block_variants, mdlm_variant, run, variants


def small() -> Recipe:
    """Return the paper's SMALL: 12 layers of width 768.

    The paper keeps no average of the weights; this recipe does.
    """
    return Recipe(
        data=Data(corpus=openwebtext(), folder=Path("data/owt"), length=512),
        process={"kind": "mdlm"},
        model={"kind": "dit", **sizes.small()},
        optimizer=Optimizer(
            lr=5e-4,
            betas=(0.9, 0.99),
            eps=1e-9,
            weight_decay=0.02,
            max_grad_norm=1.0,
            warmup=10_000,
            final=0.1,
        ),
        hardware=Hardware(bf16=True, compile=True),
        output=Output(folder=Path("runs/owt")),
        batch=512,
        steps=500_000,
    )


def base(recipe: Recipe) -> Recipe:
    """Return the paper's BASE of ``recipe``: 24 layers of width 1,024, 128 clusters.

    It trains as SMALL does.
    """
    return replace(
        recipe,
        process=recipe.process | {"clusters": 128},
        model=recipe.model | sizes.base(),
        output=replace(recipe.output, folder=recipe.output.folder.with_name("hdlm-base")),
    )


def recipes() -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name."""
    papers = variants(small(), weight_clip=2.0)
    large = {
        "hdlm-base": (
            "hdlm with the network and the clusters of the paper's BASE",
            base(papers["hdlm"][1]),
        )
    }
    others = autoregressive_variant(small()) | mdlm_variant(small(), length=1024)
    return papers | large | others | block_variants(small(), length=1024)


def main(arguments: Sequence[str] | None = None) -> None:
    run(recipes(), "python -m recipes.owt", arguments)


if __name__ == "__main__":
    command(main)
