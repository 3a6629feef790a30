"""Block diffusion in BD3-LM's training setup (Arriola et al., ICLR 2025, arXiv 2503.09573), on one
corpus.

Masks by blocks of 4, 8 or 16 tokens. From the paper and its code (github.com/kuleshov-group/bd3lms,
``configs`` and ``scripts/train``): AdamW at 3e-4 after 2,500 steps, betas 0.9 and 0.999, no weight
decay, batches of 512, dropout 0.1, a moving average of the weights with decay 0.9999, no time
condition, and a million steps: 850,000 of masked diffusion on whole sequences, 150,000 by blocks
from its weights.

In each block the time is drawn uniformly from an interval and its density not divided out, which
reduces the variance of gradients: [0.45, 0.95] for blocks of 4 and [0.3, 0.8] for 16, the clipped
schedules of the paper's comparison. For 8 no value is published, so that of 16 is used. The
original code searches for an interval at every validation and redraws a block whose share of masks
is outside of it; neither is done here. Rows are cut from the concatenation of all documents, as
there (``data.wrap``); here their first token counts too. Bounds are measured over all times.

    python -m recipes.owt bd3lm-start
    # begins at the weights in runs/owt/bd3lm-start; --start names others
    python -m recipes.owt bd3lm-16
"""

from collections.abc import Mapping
from dataclasses import replace

from recipes.config import Recipe
from recipes.papers.mdlm import masks_by_mdlm

INTERVALS = {4: (0.45, 0.95), 8: (0.3, 0.8), 16: (0.3, 0.8)}
"""Interval of training times, by the size of a block."""

BEGIN = "bd3lm-start"
"""Name of the recipe whose weights the others begin at."""


def block_variants(recipe: Recipe, length: int) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipes by name: the initial one of the others, and one for each size of a block.

    Args:
        recipe: the corpus, the size of the network and the folder of runs.
        length: tokens of a sequence.
    """
    whole = masks_by_mdlm(recipe, length, steps=850_000)
    whole = replace(
        whole, data=replace(whole.data, wrap=True), loss=whole.loss | {"count_padding": False}
    )
    variants = {BEGIN: ("masks, what the blocks below start from", whole)}
    start = str(recipe.output.folder / BEGIN)
    for size, interval in INTERVALS.items():
        loss = whole.loss | {"interval": interval, "weigh_times": False}
        variant = replace(whole, pace=f"blocks:size={size}", loss=loss, steps=150_000, start=start)
        variants[f"bd3lm-{size}"] = (
            f"masks by blocks of {size} tokens, from the weights of {start} (--start)",
            variant,
        )
    return {
        name: (text, replace(one, output=replace(one.output, folder=one.output.folder / name)))
        for name, (text, one) in variants.items()
    }
