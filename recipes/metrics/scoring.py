"""Generative perplexity and the entropy beside it: how another language model likes samples, and how varied they are.

    perplexity = exp(sum of -log p(token | text before it) / number of tokens)   over all tokens of all samples
    entropy    = -sum over words of f log f,   f = the word's share of one sample; then the mean over samples

Repetition lowers both, so the one says nothing without the other. The samples' text is retokenised for the scorer,
since its words are others.
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
from recipes.data.hub import ask

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
    """The most tokens it reads; what is behind them is not scored."""


@dataclass(frozen=True)
class Scores:
    """What the scorer says of each text."""

    nats: Float[Tensor, " N"]
    """-log p of all tokens that were predicted."""
    tokens: Int[Tensor, " N"]
    """Their number; 0 for a text too short to predict anything in."""
    cut: int
    """Texts whose end was not scored, since the scorer reads no further."""


@dataclass(frozen=True)
class Generative:
    """Both numbers of a set of samples, and what they rest on."""

    per_token: dd.Measure
    """Nats per token of the scorer; its standard error is over samples."""
    entropy: dd.Measure
    """Nats; its standard error is over samples."""
    samples: int
    empty: int
    """Samples without a word: they count in neither number."""
    cut: int
    scored_tokens: int


def load_scorer(name: str, device: torch.device | str = "cpu", bos: bool = False) -> Scorer:
    """A causal language model from a folder, or from the hub or its cache. The hub is asked once.

    Raises:
        ModuleNotFoundError: transformers is not installed, with the command that does.
        ValueError: it cannot be loaded, or has no beginning of text where ``bos`` asks for one; says what to do without
            a network.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ModuleNotFoundError('generative perplexity needs transformers: pip install "ddlib[eval]"') from error
    # transformers asks five times for each of its files; whether the hub answers is known by then
    silent = None if Path(name).is_dir() else ask(name)
    here = silent is not None or Path(name).is_dir()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=here)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, local_files_only=here)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"scorer={name!r} cannot be loaded: {silent or str(error).strip().splitlines()[0]}. Without a network give "
            "the folder of a causal language model: --scorer FOLDER; or leave generative perplexity out: --scorer none"
        ) from error
    limit = getattr(model.config, "max_position_embeddings", None)
    revision = getattr(model.config, "_commit_hash", None) or _hash(Path(name))
    scorer = Scorer(name, revision, model.to(device).eval(), tokenizer, limit)
    if bos:
        beginning(scorer)
    return scorer


@torch.no_grad()
def score(scorer: Scorer, texts: Sequence[str], bos: bool = False, batch: int = 16) -> Scores:
    """-log p of every text in nats, and the number of tokens that were predicted.

    Args:
        scorer: who reads.
        texts: samples.
        bos: put the scorer's beginning of text before each; without it the first token is given, not predicted.
        batch: texts at a time.

    Raises:
        ValueError: a beginning of text is asked of a scorer that has none.
    """
    start = beginning(scorer) if bos else []
    ids = [start + scorer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    nats, counts = [torch.zeros(0, dtype=torch.float64)], [max(len(row[: scorer.limit]) - 1, 0) for row in ids]
    for first in range(0, len(ids), batch):
        nats.append(_nats(scorer, [row[: scorer.limit] for row in ids[first : first + batch]]))
    cut = sum(scorer.limit is not None and len(row) > scorer.limit for row in ids)
    return Scores(torch.cat(nats), torch.tensor(counts, dtype=torch.int64), cut)


def beginning(scorer: Scorer) -> list[int]:
    """The scorer's beginning of text.

    Raises:
        ValueError: it has none.
    """
    if scorer.tokenizer.bos_token_id is None:
        raise ValueError(f"scorer_bos: the tokenizer of {scorer.name} has no beginning of text")
    return [scorer.tokenizer.bos_token_id]


def unigram_entropy(words: Sequence[Hashable]) -> float:
    """Of the word frequencies of one sample, in nats: 0 if it repeats one word, log n if all differ; NaN if empty."""
    if not words:
        return math.nan
    return sum(count / len(words) * math.log(len(words) / count) for count in Counter(words).values())


def generative(scores: Scores, documents: Sequence[Sequence[int]]) -> Generative:
    """Perplexity and entropy of samples.

    Args:
        scores: of their texts.
        documents: their words by our own tokenizer, without special ones.

    Raises:
        ValueError: no sample has anything to score.
    """
    predicted = scores.tokens > 0
    if not predicted.any():
        raise ValueError(f"none of the {len(documents)} samples has text to score")
    entropies = torch.tensor([unigram_entropy(words) for words in documents if len(words)], dtype=torch.float64)
    return Generative(
        dd.Measure.ratio(scores.nats[predicted], scores.tokens[predicted].double(), "nats/scorer token"),
        dd.Measure.ratio(entropies, torch.ones_like(entropies), "nats"),
        len(documents),
        sum(not words for words in documents),
        scores.cut,
        int(scores.tokens.sum()),
    )


def _nats(scorer: Scorer, rows: Sequence[Sequence[int]]) -> Float[Tensor, " B"]:
    longest = max(map(len, rows))
    if longest < 2:
        return torch.zeros(len(rows), dtype=torch.float64)
    device = scorer.model.device
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    real = torch.arange(longest, device=device) < torch.tensor([len(row) for row in rows], device=device)[:, None]
    logits = scorer.model(input_ids=ids, attention_mask=real.long()).logits[:, :-1].float()
    nats = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(rows), -1)
    return torch.where(real[:, 1:], nats.double(), 0.0).sum(1).cpu()


def _hash(folder: Path) -> str:
    """Of all weights of a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        with path.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
