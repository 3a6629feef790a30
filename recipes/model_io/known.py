"""Run context restored from a published run directory."""

from pathlib import Path

from jaxtyping import Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

import ddlib as dd
from ddlib.hierarchies import Clusters, load_clusters
from recipes.config import RunContext
from recipes.data.sequences import Layout
from recipes.model_io.names import CLUSTERS, COUNTS


class Published(RunContext):
    """Run context of a folder whose manifest was checked.

    Args:
        folder: folder of the weights.
        tokenizer: their tokenizer.
        layout: layout of the sequences of symbols; None for text.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, layout: Layout | None = None) -> None:
        self._folder, self._vocabulary, self._layout = folder, tokenizer.get_vocab(), layout

    def vocab_size(self) -> int:
        return len(self._vocabulary)

    def vocabulary(self) -> dict[str, int]:
        return self._vocabulary

    def fingerprint(self) -> str:
        return dd.fingerprint(self._vocabulary)

    def counts(self) -> Int[Tensor, " V"]:
        return load_file(self._folder / COUNTS)["counts"]

    def classes(self) -> tuple[str, ...]:
        return () if self._layout is None else self._layout.classes

    def shape(self) -> list[int]:
        return (
            super().shape()
            if self._layout is None or not self._layout.shape
            else list(self._layout.shape)
        )

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        return list(load_clusters(self._folder / CLUSTERS, self.fingerprint()).parents)

    def names(self) -> dict[str, list[str]] | list[list[str]]:
        return super().names() if (found := self.saved_clusters()) is None else found.names.plain()

    def saved_clusters(self) -> Clusters | None:
        """Clusters of the process, if it has any."""
        there = (self._folder / f"{CLUSTERS}.json").exists()
        return load_clusters(self._folder / CLUSTERS, self.fingerprint()) if there else None
