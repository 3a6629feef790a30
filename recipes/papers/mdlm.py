"""Masked diffusion in MDLM's training setup (Sahoo et al., NeurIPS 2024, arXiv 2406.07524), on one
corpus.

From the paper and its code (github.com/kuleshov-group/mdlm, ``configs`` and ``scripts``): AdamW at
3e-4 after 2,500 steps, betas 0.9 and 0.999, no weight decay, batches of 512, dropout 0.1, a moving
average of the weights with decay 0.9999, no time condition, the log-linear schedule, which is
``Linear`` here, times from [0.001, 1], weights not clipped, a million steps. Rows of 1,024 tokens
are cut from the concatenation of all documents (``data.wrap``).

Different here: the schedule reaches 0 and 1, and theirs ends at 0.001; ``[PAD]`` is one more token
of the vocabulary, which no row holds; only the last remainder of the text is dropped, not one for
every 1,000 documents.

    python -m recipes.owt mdlm-paper
"""

from collections.abc import Mapping
from dataclasses import replace

from recipes.config import Recipe

FIRST_TIME = 1e-3
"""Lowest time of training: ``sampling_eps``."""


def masks_by_mdlm(recipe: Recipe, length: int, steps: int) -> Recipe:
    """Return masked diffusion with optimizer, network and batch of MDLM, whose successor BD3-LM has
    the same.

    Args:
        recipe: the corpus, the size of the network and the folder of runs.
        length: tokens of a sequence.
        steps: steps of the optimizer.
    """
    optimizer = replace(
        recipe.optimizer,
        lr=3e-4,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        warmup=2500,
        final=1.0,
        ema=0.9999,
    )
    return replace(
        recipe,
        data=replace(recipe.data, length=length),
        process={"kind": "mdlm"},
        model=recipe.model | {"dropout": 0.1, "time_conditioned": False},
        optimizer=optimizer,
        loss={"weighting": {"kind": "clip", "high": None}},
        batch=512,
        steps=steps,
    )


def mdlm_variant(recipe: Recipe, length: int) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipe ``mdlm-paper`` by its name.

    Args:
        recipe: the corpus, the size of the network and the folder of runs.
        length: tokens of a row.
    """
    one = masks_by_mdlm(recipe, length, steps=1_000_000)
    loss = one.loss | {"interval": [FIRST_TIME, 1.0], "count_padding": False}
    output = replace(one.output, folder=one.output.folder / "mdlm-paper")
    one = replace(one, data=replace(one.data, wrap=True), loss=loss, output=output)
    return {"mdlm-paper": ("masked diffusion as in MDLM's own paper, rows cut from all texts", one)}
