"""Run context: the arguments that a run fills in by name, see ``ddlib.build``."""

from abc import ABC, abstractmethod
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.processes import ForwardProcess


class RunContext(ABC):
    """Values for building a run's process.

    The arguments of a method are keys of the part's configuration.
    """

    @abstractmethod
    def vocab_size(self) -> int:
        """Vocabulary size V of the tokenizer, special tokens included."""

    @abstractmethod
    def vocabulary(self) -> dict[str, int]:
        """Token ids of the tokenizer, by token."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Fingerprint of the vocabulary, see ``ddlib.vocabulary.fingerprint``."""

    @abstractmethod
    def counts(self) -> Int[Tensor, " V"]:
        """Number of occurrences of each token in the training text, or in about 20 million tokens
        of it.
        """

    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the data's labels; () without labels."""
        return ()

    def shape(self) -> list[int]:
        """Shape of a sequence that is a picture, such as [28, 28].

        Raises:
            ValueError: sequences without a shape.
        """
        raise ValueError("the sequences of the data have no shape")

    @abstractmethod
    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        """Return the cluster of each token, then of each cluster of the level below, in the format
        of ``Tree``.

        ``clusters`` is their number, finest level first, for clusters from the text's
        co-occurrences, which are stored beside it; or the path, without suffix, of a result of
        ``python -m recipes.clusters``; or that of a CSV file, ``x.csv``, with a row
        ``token,parent`` per token.
        """

    def names(self) -> dict[str, list[str]] | list[list[str]]:
        """Return the names of those clusters, in the format of ``Tree``: from a CSV file, else
        none.
        """
        return []


class ModelContext:
    """Values available when a run builds its network: the process and the run context.

    Args:
        known: context of the run.
        process: the noise.
    """

    def __init__(self, known: RunContext, process: ForwardProcess) -> None:
        self._known = known
        self._process = process

    def vocab_size(self) -> int:
        """Vocabulary size V."""
        return self._process.vocab_size

    def num_states(self) -> int:
        """Number of states S: tokens, then those of the noise, the mask last if there is one."""
        return self._process.num_states

    def vocabulary(self) -> dict[str, int]:
        """Token ids of the tokenizer, by token."""
        return self._known.vocabulary()

    def fingerprint(self) -> str:
        """Fingerprint of the vocabulary."""
        return self._known.fingerprint()

    def counts(self) -> Int[Tensor, " V"]:
        """Number of occurrences of each token in the training text."""
        return self._known.counts()

    def parents(self) -> list[list[int]]:
        """Clusters of the process's hierarchy, in the format of ``Tree``.

        Raises:
            ValueError: it has none.
        """
        return [edge.parents.tolist() for edge in self._tree().maps[:-1]]

    def tree(
        self,
        head: Literal["words", "children"] = "words",
        clusters: int | list[int] | str | None = None,
    ) -> list[list[int]] | None:
        """Return the tree whose children the output layer predicts.

        None for a ``head`` over tokens.

        ``clusters`` is as for a process. Without it the tree is that of the process; if that has no
        clusters, a tree with as many clusters as the square root of the vocabulary size, so that
        the softmax over clusters and the one inside a cluster have the same size.
        """
        if head == "words":
            return None
        process = self._process.hierarchy
        if clusters is None and process is not None and process.depth > 1:
            return self.parents()
        count = round(self.vocab_size() ** 0.5) if clusters is None else clusters
        return [level.tolist() for level in self._known.parents(count)]

    def num_classes(self) -> int:
        """Number of classes of the data's labels.

        Raises:
            ValueError: data without labels.
        """
        if not (classes := self._known.classes()):
            raise ValueError("the data has no labels: prepare it with --labels COLUMN")
        return len(classes)

    def shape(self) -> list[int]:
        """Shape of a sequence that is a picture.

        Raises:
            ValueError: sequences without a shape.
        """
        return self._known.shape()

    def num_clusters(self) -> int:
        """Number of clusters of the finest level.

        Raises:
            ValueError: the process has none.
        """
        return self._tree().levels[1]

    def _tree(self) -> Hierarchy:
        tree = self._process.hierarchy
        if tree is None or tree.depth < 2:
            raise ValueError(f"the process has no clusters: {self._process!r}")
        return tree
