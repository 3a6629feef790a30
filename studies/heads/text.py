"""Text of the study: tokens of GPT-2, their frequencies, and trees over them."""

import json
import lzma
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from ddlib.hierarchies import semantic_clusters
from recipes.embeddings.neighbours import neighbourhoods
from studies.heads.sizes import HELD_OUT, Sizes
from studies.weights.texts import check, path_of

TREES = ("semantic", "random", "frequency")
TEST = "test"
SEARCH = "search"
"""Held-out windows that choose the learning rates."""


class Text:
    """Tokens of a folder, for training and held out.

    Held out are the last tenth of every source and the whole of one.
    """

    def __init__(self, work: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self.tokens = np.load(work / "tokens.npy", mmap_mode="r")
        parts = [
            self.tokens[start : start + int(count * 0.9)]
            for name, (start, count) in sizes.sources.items()
            if name != HELD_OUT
        ]
        self.training = np.concatenate(parts)

    def batch(self, seed: int, step: int) -> Int[Tensor, "B L"]:
        """Return training windows, the same for every run of a seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        last = len(self.training) - self.sizes.length
        first = torch.randint(last, (self.sizes.batch, 1), generator=generator)
        return _windows(self.training, first, self.sizes.length)

    def held_out(self, source: str, part: str) -> Int[Tensor, "n L"]:
        """Return held-out windows of a source, evenly spaced; every other one is for the search."""
        start, count = self.sizes.sources[source]
        skipped = 0 if source == HELD_OUT else int(count * 0.9)
        tokens = self.tokens[start + skipped : start + count]
        last = len(tokens) - self.sizes.length
        places = torch.linspace(0, last, 2 * self.sizes.windows, dtype=torch.float64).long()
        windows = _windows(tokens, places[:, None], self.sizes.length)
        return windows[(part == SEARCH) :: 2]


def sealed_windows(texts: Path, tokenizer: Path, sizes: Sizes) -> Int[Tensor, "n L"]:
    """Return windows of the sealed text, evenly spaced over those that lie within one document.

    Args:
        texts: working folder of ``studies.weights``, which has the documents.
        tokenizer: ``tokenizer.json`` of GPT-2.
        sizes: sizes of the study.

    Raises:
        FileNotFoundError: the documents are missing.
        ValueError: the documents are not those whose hash was committed.
    """
    check(texts, {"sealed": sizes.sealed_sha256})
    lines = path_of(texts, "sealed").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line)["text"] for line in lines]
    encoded = Tokenizer.from_file(str(tokenizer)).encode_batch_fast(documents)
    tokens = [torch.tensor(one.ids) for one in encoded if len(one.ids) >= sizes.length]
    windows = torch.cat([one.unfold(0, sizes.length, 1) for one in tokens])
    return windows[torch.linspace(0, len(windows) - 1, sizes.sealed, dtype=torch.float64).long()]


def _windows(tokens: np.ndarray, first: Tensor, length: int) -> Tensor:
    index = (first + torch.arange(length)).numpy()
    return torch.from_numpy(tokens[index].astype(np.int64))


def prepare(work: Path, packed: Path, sizes: Sizes) -> None:
    """Write tokens, counts, vectors and trees, from the training text alone, unless they are there.

    Args:
        work: folder of the study.
        packed: compressed tokens of ``studies.corpus.build``.
        sizes: sizes of the study.
    """
    if (work / "trees.pt").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    np.save(work / "tokens.npy", np.frombuffer(lzma.decompress(packed.read_bytes()), dtype="<u2"))
    training = torch.from_numpy(Text(work, sizes).training.astype(np.int64))
    counts = training.bincount(minlength=sizes.words)
    vectors = neighbourhoods(training, sizes.words, sizes.width)
    torch.save({"counts": counts, "vectors": vectors}, work / "statistics.pt")
    found = semantic_clusters(neighbourhoods(training, sizes.words), [sizes.clusters])
    torch.save(trees_of(found.parents[0], counts), work / "trees.pt")


def trees_of(
    semantic: Int[Tensor, " V"], counts: Int[Tensor, " V"]
) -> dict[str, Int[Tensor, " V"]]:
    """Return the parents of the tokens in three trees whose clusters have the same sizes.

    "random" permutes the tokens; "frequency" fills the clusters in ascending order of size with the
    tokens in descending order of frequency.
    """
    order = torch.randperm(len(semantic), generator=torch.Generator().manual_seed(0))
    sizes = semantic.bincount()
    clusters = sizes.argsort(stable=True)
    frequency = torch.empty_like(semantic)
    frequency[counts.argsort(descending=True, stable=True)] = clusters.repeat_interleave(
        sizes[clusters]
    )
    return {"semantic": semantic, "random": semantic[order], "frequency": frequency}
