"""Generative perplexity under another language model, and the unigram entropy of the samples.

    perplexity = exp(sum of -log p(token | text before it) / number of tokens),
                 over all tokens of all samples
    entropy    = -sum over tokens of f log f,   f = the token's share of one sample;
                 then the mean over samples

Repetition lowers both, so either is meaningless alone. The samples' text is retokenised for the
scorer, whose vocabulary differs.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import ddlib as dd
from recipes.data.hub import lookup

WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Scorer:
    """A causal language model and its tokenizer."""

    name: str
    revision: str
    """Commit on the hub, or the sha256 of the weights of a folder."""
    model: Any
    tokenizer: Any
    limit: int | None
    """Maximum number of tokens; the rest of a text is not scored."""


@dataclass(frozen=True)
class Scores:
    """Scores of each text."""

    nats: Float[Tensor, " N"]
    """Sum of -log p over all predicted tokens."""
    tokens: Int[Tensor, " N"]
    """Number of predicted tokens; 0 for a text too short to predict anything in."""
    cut: int
    """Number of texts longer than the scorer's limit, whose end was not scored."""


@dataclass(frozen=True)
class Generative:
    """Perplexity and entropy of a set of samples, and their basis."""

    per_token: dd.Measure
    """Nats per token of the scorer; its standard error is over samples."""
    entropy: dd.Measure
    """Nats; its standard error is over samples."""
    samples: int
    empty: int
    """Samples without a token: they count in neither number."""
    cut: int
    scored_tokens: int


def load_scorer(name: str, device: torch.device | str = "cpu", bos: bool = False) -> Scorer:
    """Load a causal language model from a folder, or from the hub or its cache, with one request to
    the hub.

    Raises:
        ModuleNotFoundError: transformers is not installed, with the command that installs it.
        TypeError: it is not causal: the tokens to predict are among its inputs.
        ValueError: it cannot be loaded, or has no beginning of text where ``bos`` requires one;
            explains what to do without a network.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ModuleNotFoundError(
            'generative perplexity needs transformers: pip install "ddlib[eval]"'
        ) from error
    from ddlib_models.hub.networks import SEEN, influence  # imports transformers

    # transformers tries five times for each of its files; by then it is known whether the hub can
    # be reached
    silent = None if Path(name).is_dir() else lookup(name)
    here = silent is not None or Path(name).is_dir()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=here)
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, local_files_only=here
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"scorer={name!r} cannot be loaded: {silent or str(error).strip().splitlines()[0]}. "
            "Without a network give "
            "the folder of a causal language model: --scorer FOLDER; or leave generative "
            "perplexity out: --scorer none"
        ) from error
    if influence(lambda ids: model.eval()(input_ids=ids).logits, range(3), 1) > SEEN:
        raise TypeError(
            f"scorer={name!r}: {type(model).__name__} is not causal, its output at the first token "
            "depends on the "
            "second: generative perplexity requires a causal language model, such as gpt2-large"
        )
    limit = getattr(model.config, "max_position_embeddings", None)
    revision = getattr(model.config, "_commit_hash", None) or _hash(Path(name))
    scorer = Scorer(name, revision, model.to(device).eval(), tokenizer, limit)
    if bos:
        beginning(scorer)
    return scorer


@torch.no_grad()
def score(scorer: Scorer, texts: Sequence[str], bos: bool = False, batch: int = 16) -> Scores:
    """Return -log p of every text in nats, and the number of tokens that were predicted.

    Args:
        scorer: the language model.
        texts: samples.
        bos: put the scorer's beginning of text before each; without it the first token is given,
            not predicted.
        batch: texts at a time.

    Raises:
        ValueError: ``bos`` for a scorer without a beginning of text.
    """
    start = beginning(scorer) if bos else []
    ids = [start + scorer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    nats = torch.zeros(len(ids), dtype=torch.float64)
    counts = [max(len(row[: scorer.limit]) - 1, 0) for row in ids]
    # texts of like lengths together, which need little padding
    for group in torch.tensor(counts).argsort(stable=True).split(batch):
        nats[group] = _nats(scorer, [ids[text][: scorer.limit] for text in group.tolist()])
    cut = sum(scorer.limit is not None and len(row) > scorer.limit for row in ids)
    return Scores(nats, torch.tensor(counts, dtype=torch.int64), cut)


def beginning(scorer: Scorer) -> list[int]:
    """Return the scorer's beginning of text.

    Raises:
        ValueError: it has none.
    """
    if scorer.tokenizer.bos_token_id is None:
        raise ValueError(f"scorer_bos: the tokenizer of {scorer.name} has no beginning of text")
    return [scorer.tokenizer.bos_token_id]


def unigram_entropy(tokens: Sequence[Hashable]) -> float:
    """Return the entropy of one sample's token frequencies in nats: 0 to log n; NaN if the sample
    is empty.
    """
    if not tokens:
        return math.nan
    return sum(
        count / len(tokens) * math.log(len(tokens) / count) for count in Counter(tokens).values()
    )


def mean_entropy(documents: Sequence[Sequence[int]]) -> dd.Measure:
    """Return the mean of ``unigram_entropy`` over the samples that are not empty, in nats."""
    entropies = torch.tensor(
        [unigram_entropy(tokens) for tokens in documents if len(tokens)], dtype=torch.float64
    )
    return dd.Measure.ratio(entropies, torch.ones_like(entropies), "nats")


def generative(scores: Scores, documents: Sequence[Sequence[int]]) -> Generative:
    """Compute perplexity and entropy of samples.

    Args:
        scores: scores of their texts.
        documents: their tokens in the model's vocabulary, without special ones.

    Raises:
        ValueError: no sample has anything to score.
    """
    predicted = scores.tokens > 0
    if not predicted.any():
        raise ValueError(f"none of the {len(documents)} samples has text to score")
    return Generative(
        dd.Measure.ratio(
            scores.nats[predicted], scores.tokens[predicted].double(), "nats/scorer token"
        ),
        mean_entropy(documents),
        len(documents),
        sum(not tokens for tokens in documents),
        scores.cut,
        int(scores.tokens.sum()),
    )


def _nats(scorer: Scorer, rows: Sequence[Sequence[int]]) -> Float[Tensor, " B"]:
    longest = max(map(len, rows))
    if longest < 2:
        return torch.zeros(len(rows), dtype=torch.float64)
    device = scorer.model.device
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    real = (
        torch.arange(longest, device=device)
        < torch.tensor([len(row) for row in rows], device=device)[:, None]
    )
    logits = scorer.model(input_ids=ids, attention_mask=real.long()).logits[:, :-1].float()
    nats = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(
        len(rows), -1
    )
    return torch.where(real[:, 1:], nats.double(), 0.0).sum(1).cpu()


def _hash(folder: Path) -> str:
    """Return a hash of all weights of a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        with path.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
