"""Generative perplexity, as an evaluation reports it."""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from recipes.engine.parallel import World
from recipes.generation.sampling import Sampling, protocol
from recipes.metrics import Estimate
from recipes.metrics.scoring import Scorer, generative, load_scorer, score
from recipes.model_io import LoadedModel

NONE = "none"
"""Says that nobody is to score."""


def judge(name: str, bos: bool, world: World) -> tuple[Scorer | None, str | None]:
    """Who scores samples, in the process that does so; or why nobody does."""
    if name == NONE or not world.first:
        return None, "not asked for"
    try:
        return load_scorer(name, world.device, bos), None
    except (ValueError, ImportError) as error:
        return None, warned(error)


def warned(error: Exception) -> str:
    """What is missing, after it was told: the bound is worth having without it."""
    print(f"warning: no generative perplexity, the bound alone: {error}", file=sys.stderr)
    return str(error)


def generated(
    saved: LoadedModel,
    scorer: Scorer,
    drawn: Sequence[Sequence[int]],
    sampling: Sampling,
    seed: int,
    bos: bool = False,
    batch: int = 16,
) -> dict[str, Any]:
    """Generative perplexity and entropy of samples, and how they were found.

    Args:
        saved: the model.
        scorer: who reads them.
        drawn: words of each sample, all of one length.
        sampling: how they were drawn.
        seed: of their noise.
        bos: see ``score``.
        batch: samples that the scorer reads at a time.

    Raises:
        ValueError: fewer than two samples have anything to score.
    """
    documents = [saved.document(words) for words in drawn]
    texts = [saved.tokenizer.decode(words) for words in documents]
    found = generative(score(scorer, texts, bos, batch), documents)
    per_token = Estimate.of(found.per_token, [])
    if math.isnan(per_token.error):
        raise ValueError(
            f"only 1 of the {found.samples} samples has text to score, so there is no standard error: draw more samples"
        )
    apart = len(saved.beginning) if saved.leads else 0  # no part of what is drawn at the pace
    return {
        "perplexity": asdict(per_token.perplexity("per scorer token")),
        "nats_per_token": asdict(per_token),
        "entropy": asdict(Estimate.of(found.entropy, [])),
        "samples": found.samples,
        "empty_samples": found.empty,
        "samples_cut_by_scorer": found.cut,
        "scored_tokens": found.scored_tokens,
        "protocol": protocol(saved, sampling, seed, len(drawn[0]) - apart)
        | {
            "scorer": scorer.name,
            "scorer_revision": scorer.revision,
            "scorer_precision": "float32",
            "scorer_limit": scorer.limit,
            "scorer_bos": bos,
            "transformers": version("transformers"),
            "text": "from the beginning of a sample to its first end of text or padding, without special tokens",
            "retokenised": "decoded by our tokenizer, encoded by the scorer's",
            "average": "exp of all nats over all tokens; standard errors are over samples",
            "entropy": "of our tokens' frequencies in each sample, mean over samples that are not empty",
        },
    }
