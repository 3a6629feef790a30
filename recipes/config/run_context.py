"""What only a run knows: arguments of these names are filled in, see ``ddlib.parts.build``."""

from abc import ABC, abstractmethod
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.processes import ForwardProcess


class RunContext(ABC):
    """What a run knows when it composes its process; the arguments of a method are keys of the part that asks."""

    @abstractmethod
    def vocab_size(self) -> int:
        """Number of words V of the tokenizer, special ones included."""

    @abstractmethod
    def vocabulary(self) -> dict[str, int]:
        """The tokenizer's token -> id."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Of the vocabulary, see ``ddlib.vocabulary.fingerprint``."""

    @abstractmethod
    def counts(self) -> Int[Tensor, " V"]:
        """How often each word occurs in the training text, or in about 20 million tokens of it."""

    @abstractmethod
    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        """The cluster of each word, then of each cluster of the level below, as ``Tree`` takes them.

        ``clusters`` says how many, finest level first, made from the text's own co-occurrences and kept beside it; or
        the path, without suffix, of what ``python -m recipes.clusters`` saved; or that of a CSV file, ``x.csv``, with a
        row ``token,parent`` per token.
        """


class ModelContext:
    """What a run knows when it composes its network: the process, and what the run itself knows.

    Args:
        known: by the run.
        process: the noise.
    """

    def __init__(self, known: RunContext, process: ForwardProcess) -> None:
        self._known, self._process = known, process

    def vocab_size(self) -> int:
        """Number of words V."""
        return self._process.vocab_size

    def num_states(self) -> int:
        """Number of states S: words, then whatever the noise uses, the mask last if there is one."""
        return self._process.num_states

    def vocabulary(self) -> dict[str, int]:
        """The tokenizer's token -> id."""
        return self._known.vocabulary()

    def fingerprint(self) -> str:
        """Of the vocabulary."""
        return self._known.fingerprint()

    def counts(self) -> Int[Tensor, " V"]:
        """How often each word occurs in the training text."""
        return self._known.counts()

    def parents(self) -> list[list[int]]:
        """The clusters of the process's hierarchy, as ``Tree`` takes them.

        Raises:
            ValueError: it has none.
        """
        return [edge.parents.tolist() for edge in self._tree().maps[:-1]]

    def tree(
        self, head: Literal["words", "children"] = "words", clusters: int | list[int] | str | None = None
    ) -> list[list[int]] | None:
        """The tree whose children the output layer predicts; None for a ``head`` over words.

        ``clusters`` are asked for as for a process. Without them the tree is that of the process, or if it has no
        clusters one with as many as the square root of its words: then a softmax over the clusters and one inside a
        cluster are of the same size.
        """
        if head == "words":
            return None
        process = self._process.hierarchy
        if clusters is None and process is not None and process.depth > 1:
            return self.parents()
        wanted = round(self.vocab_size() ** 0.5) if clusters is None else clusters
        return [level.tolist() for level in self._known.parents(wanted)]

    def num_clusters(self) -> int:
        """Clusters of the finest level.

        Raises:
            ValueError: the process has none.
        """
        return self._tree().levels[1]

    def _tree(self) -> Hierarchy:
        tree = self._process.hierarchy
        if tree is None or tree.depth < 2:
            raise ValueError(f"the process has no clusters: {self._process!r}")
        return tree
