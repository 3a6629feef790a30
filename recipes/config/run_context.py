"""Run context: the arguments that a run fills in by name, see ``ddlib.build``."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from jaxtyping import Int
from torch import Tensor

import ddlib as dd
from ddlib.hierarchies import Hierarchy
from ddlib.processes import ForwardProcess
from recipes.data.fields import Field
from recipes.data.layout import Layout

NO_FIELD: Mapping[str, ForwardProcess] = MappingProxyType({})


class RunContext(ABC):
    """Values for building a run's process.

    The arguments of a method are keys of the part's configuration.
    """

    _layout: Layout | None = None
    """Layout of the sequences of symbols; None for text."""

    def vocab_size(self) -> int:
        """Vocabulary size V of the tokenizer, special tokens included."""
        return len(self.vocabulary())

    @abstractmethod
    def vocabulary(self) -> dict[str, int]:
        """Token ids of the tokenizer, by token."""

    def fingerprint(self) -> str:
        """Fingerprint of the vocabulary, see ``ddlib.vocabulary.fingerprint``."""
        return dd.fingerprint(self.vocabulary())

    @abstractmethod
    def counts(self) -> Int[Tensor, " V"]:
        """Number of occurrences of each token in the training text, or in about 20 million tokens
        of it.
        """

    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the data's labels; () without labels."""
        return () if self._layout is None else self._layout.classes

    def shape(self) -> list[int]:
        """Shape of a sequence that is a picture, such as [28, 28].

        Raises:
            ValueError: sequences without a shape.
        """
        if self._layout is None or not self._layout.shape:
            raise ValueError("the sequences of the data have no shape")
        return list(self._layout.shape)

    def fields(self) -> Sequence[str] | None:
        """Name of the field of each position; None for data of one alphabet."""
        return None if self._layout is None else self._layout.positions or None

    def processes(
        self,
        every: ForwardProcess | None = None,
        by_field: Mapping[str, ForwardProcess] = NO_FIELD,
    ) -> dict[str, ForwardProcess]:
        """Process of each field of the data, at its alphabet.

        Args:
            every: plain values of the process of all fields; by default that which the data propose
                for each.
            by_field: plain values of the process of a field, in their place.

        Raises:
            ValueError: data of one alphabet, a name that is not a field, a process that does not
                fit.
        """
        fields = () if self._layout is None else self._layout.fields
        if not fields:
            raise ValueError("the data have one alphabet, must have fields")
        names = [one.name for one in fields]
        for name in by_field:
            if name not in names:
                listed = ", ".join(map(repr, names))
                raise ValueError(f"by_field has {name!r}, must be a field of the data: {listed}")
        result = {}
        for one in fields:
            values = by_field.get(one.name, one.process if every is None else every)
            result[one.name] = dd.build("processes", values, FieldContext(one), one.name)
        return result

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


class FieldContext(RunContext):
    """Values for building the process of one field.

    Args:
        field: the field of the data.
    """

    def __init__(self, field: Field) -> None:
        self._field = field

    def vocabulary(self) -> dict[str, int]:
        return self._field.place_of

    def counts(self) -> Int[Tensor, " V"]:
        raise ValueError(f"tokens are not counted in one field, here {self._field.name!r}")

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        raise ValueError(
            f"clusters={clusters!r}: are not made for one field, here {self._field.name!r}; state "
            "the tree, by kind tree and its parents"
        )


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

    def fields(self) -> list[tuple[int, int]]:
        """Numbers of states and of tokens of each field of the noise."""
        every = (one.process for one in self._process.components)
        return [(each.num_states, each.vocab_size) for each in every]

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
