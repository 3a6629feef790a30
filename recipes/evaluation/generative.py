"""Generative perplexity in the results of an evaluation."""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from recipes.engine.parallel import World
from recipes.generation.samples import protocol
from recipes.generation.sampling import Sampling
from recipes.metrics import Estimate
from recipes.metrics.scoring import Scorer, generative, load_scorer, score
from recipes.model_io import LoadedModel

NONE = "none"
"""Name for no scorer."""
TEXTS = (
    "from the beginning of a sample to its first end of text or padding, without special tokens",
    "the whole sample, which may be parts of several texts, without special tokens",
)
"""Text of a sample that is scored: by default, and where rows are cut from the concatenation of
texts.
"""


def judge(name: str, bos: bool, world: World) -> tuple[Scorer | None, str | None]:
    """Return the scorer, in the process that uses it; or the reason that there is none.

    Raises:
        TypeError: it is not causal.
    """
    if name == NONE or not world.first:
        return None, "not requested"
    try:
        return load_scorer(name, world.device, bos), None
    except (ValueError, ImportError) as error:
        return None, warn_missing(error)


def warn_missing(error: Exception, missing: str = "generative perplexity") -> str:
    """Warn about what is missing, and return the reason: the bound is useful without it."""
    print(f"warning: no {missing}, only the bound: {error}", file=sys.stderr)
    return str(error)


def generate_and_judge(
    saved: LoadedModel,
    scorer: Scorer,
    drawn: Sequence[Sequence[int]],
    sampling: Sampling,
    seed: int,
    bos: bool = False,
    batch: int = 16,
) -> dict[str, Any]:
    """Return generative perplexity and entropy of samples, and the method.

    Args:
        saved: the model.
        scorer: the language model.
        drawn: tokens of each sample, all of one length.
        sampling: options of the draws.
        seed: seed of their noise.
        bos: see ``score``.
        batch: samples that the scorer takes at a time.

    Raises:
        ValueError: fewer than two samples have anything to score.
    """
    documents = [saved.document(tokens) for tokens in drawn]
    texts = [saved.tokenizer.decode(tokens) for tokens in documents]
    result = generative(score(scorer, texts, bos, batch), documents)
    per_token = Estimate.of(result.per_token, [])
    if math.isnan(per_token.error):
        raise ValueError(
            f"only 1 of the {result.samples} samples has text to score, so there is no standard "
            "error: draw more samples"
        )
    apart = len(saved.beginning) if saved.leads else 0  # not part of what is drawn at the pace
    return {
        "perplexity": asdict(per_token.perplexity("per scorer token")),
        "nats_per_token": asdict(per_token),
        "entropy": asdict(Estimate.of(result.entropy, [])),
        "samples": result.samples,
        "empty_samples": result.empty,
        "samples_cut_by_scorer": result.cut,
        "scored_tokens": result.scored_tokens,
        "protocol": protocol(saved, sampling, seed, len(drawn[0]) - apart)
        | {
            "scorer": scorer.name,
            "scorer_revision": scorer.revision,
            "scorer_precision": "float32",
            "scorer_limit": scorer.limit,
            "scorer_bos": bos,
            "transformers": version("transformers"),
            "text": TEXTS[saved.rows == "wrapped"],
            "retokenised": "decoded by our tokenizer, encoded by the scorer's",
            "average": "exp of all nats over all tokens; standard errors are over samples",
            "entropy": (
                "of our tokens' frequencies in each sample, mean over samples that are not empty"
            ),
        },
    }
