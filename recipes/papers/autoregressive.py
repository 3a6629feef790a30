"""The autoregressive baseline of the HDLM paper, with the network of its other models, on one
corpus.

Masks along the pace ``left_to_right``: a token is predicted from the clean tokens on its left and
from nothing else, so the bound is the negative log-likelihood of an autoregressive model (theory
section 14). The network predicts a token at its own position, which holds a mask, and not at the
position before it. It reads the clean and the noisy tokens side by side, so that a step costs that
of two causal ones.

The prediction does not depend on the time. Times from [0.999, 1] mask nearly every token, with the
weight 1 / t of the bound: the loss is cross-entropy at every position, without the variance of
tokens that are not masked.

    python -m recipes.owt ar
"""

from collections.abc import Mapping
from dataclasses import replace

from recipes.config import Recipe

MASKED = (0.999, 1.0)
"""Training times at which nearly every token is masked."""


def autoregressive_variant(recipe: Recipe) -> Mapping[str, tuple[str, Recipe]]:
    """Return the recipe ``ar`` by its name.

    Args:
        recipe: the corpus, the size of the network and the folder of runs.
    """
    one = replace(
        recipe,
        process={"kind": "mdlm"},
        pace="left_to_right",
        model=recipe.model | {"time_conditioned": False},
        loss=recipe.loss | {"weighting": "clip", "interval": MASKED, "weigh_times": False},
        output=replace(recipe.output, folder=recipe.output.folder / "ar"),
    )
    return {
        "ar": ("an autoregressive model: the same network, each token from those on its left", one)
    }
