"""Metrics of samples of symbols as plug-ins, ``ddlib.metrics``: what ``recipes.evaluate`` measures
of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

if TYPE_CHECKING:
    from recipes.data import Prepared
    from recipes.domains.pictures.metrics import Classifier

# imported where they are used: `python -m ddlib` loads this file to list it, and scipy and datasets
# take a second

Samples = Sequence[Int[np.ndarray, " L"]]
CANONICAL = 100
"""Number of held-out molecules by which data are recognised as canonical SMILES, which MOSES and
GuacaMol have.
"""
COMPARED = 10_000
"""Number of graphs of a side that are compared, the first ones."""


class Pictures:
    """Fréchet distance, diversity and classes in the features of a classifier that is trained on
    the data.
    """

    def check(self, data: Prepared) -> None:
        """Raise ValueError unless the data are labelled pictures."""
        if data.layout is None or not data.layout.is_picture or not len(data.train.labels):
            raise ValueError(
                "metrics: the data must be pictures (shape and values) with labels, to train a "
                "classifier"
            )

    def measure(
        self, samples: Samples, data: Prepared, labels: Int[np.ndarray, " N"] | None = None
    ) -> dict[str, float]:
        """Return the metrics of ``recipes.domains.pictures.metrics.measure`` against the held-out
        pictures.

        Args:
            samples: ids of each sample.
            data: labelled pictures.
            labels: class that each sample was drawn for, if any.

        Raises:
            ValueError: a class of which the data has no picture to train the classifier on.
        """
        from recipes.domains.pictures import metrics as pictures

        if labels is not None and len(unseen := np.setdiff1d(labels, data.train.labels)):
            raise ValueError(
                f"label={data.classes[unseen[0]]!r}: {data.folder} has no training picture of this "
                "class, so that no classifier recognises it"
            )
        return pictures.measure(
            _classifier(data.folder, data.classes),
            np.stack(samples),
            np.stack(list(data.validation)),
            labels,
        )


class Molecules:
    """Validity, uniqueness, novelty and properties of molecules, as MOSES defines them."""

    def check(self, data: Prepared) -> None:
        """Raise ModuleNotFoundError without rdkit, ValueError if no held-out sequence is a
        molecule.
        """
        from recipes.domains.molecules import metrics as molecules

        molecules.rdkit()
        if not any(
            molecules.molecule(one) for one in _strings(_symbols(data.validation, data), data)
        ):
            raise ValueError("metrics: none of the held-out sequences is the SMILES of a molecule")

    def measure(
        self, samples: Samples, data: Prepared, labels: Int[np.ndarray, " N"] | None = None
    ) -> dict[str, float]:
        """Return the metrics of ``recipes.domains.molecules.metrics.measure``.

        Novelty is that against the training split.
        """
        from recipes.domains.molecules import metrics as molecules

        train, held = (
            frozenset(_strings(_symbols(split, data), data))
            for split in (data.train, data.validation)
        )
        part = sorted(held)[:CANONICAL]
        if molecules.canonical(part) != part:
            train = frozenset(one for one in molecules.canonical(sorted(train)) if one is not None)
        return molecules.measure(_strings(samples, data), sorted(held), train)


class Graphs:
    """Distances of degrees, clustering coefficients and orbits; of molecules also their metrics.

    Novelty is that against the first 10,000 training graphs.
    """

    def check(self, data: Prepared) -> None:
        """Raise ValueError unless the data are graphs."""
        from recipes.domains.graphs.sequences import is_graphs

        if data.layout is None or not is_graphs(data.layout):
            raise ValueError("metrics: the data must be graphs, with fields size, node and edge")

    def measure(
        self, samples: Samples, data: Prepared, labels: Int[np.ndarray, " N"] | None = None
    ) -> dict[str, float]:
        """Return the metrics of ``recipes.domains.graphs.metrics.measure``, then those of
        ``recipes.domains.molecules.metrics.measure`` where nodes and edges are atoms and bonds.
        """
        from recipes.domains.graphs import metrics as graphs
        from recipes.domains.graphs.molecules import smiles_of
        from recipes.domains.graphs.saving import is_molecules
        from recipes.domains.graphs.sequences import slots_of
        from recipes.domains.molecules import metrics as molecules

        assert data.layout is not None
        decode = slots_of(data.layout).decode
        sides = samples, data.validation, data.train
        parts = [[decode(one) for one in islice(side, COMPARED)] for side in sides]
        result = graphs.measure(*parts)
        if not is_molecules(data.layout):
            return result
        drawn, held, train = map(smiles_of, parts)
        return result | molecules.measure(drawn, held, frozenset(train))


class Music:
    """Distances of the histograms of pitch classes, intervals and durations."""

    def check(self, data: Prepared) -> None:
        """Raise ValueError if a symbol is not a pitch, a hold or a rest."""
        from recipes.domains.music.pitches import midi_of

        midi_of(_names(data))

    def measure(
        self, samples: Samples, data: Prepared, labels: Int[np.ndarray, " N"] | None = None
    ) -> dict[str, float]:
        """Return the metrics of ``recipes.domains.music.metrics.measure`` against the held-out
        pieces.
        """
        from recipes.domains.music import metrics as music

        voices = 1 if data.layout is None else data.layout.voices
        return music.measure(samples, _symbols(data.validation, data), _names(data), voices)


@cache
def _classifier(folder: Path, classes: tuple[str, ...]) -> Classifier:
    """Train the classifier of a folder's pictures, with labels that index ``classes``."""
    from recipes.data import open_prepared
    from recipes.domains.pictures import metrics as pictures

    data = open_prepared(folder).in_classes(classes)
    labels = np.asarray(data.train.labels)
    return pictures.train_classifier(np.stack(list(data.train)), labels, data.shape, data.values)


def _names(data: Prepared) -> list[str]:
    """Return the names of the symbols in the order of their ids."""
    from recipes.data.names import names_of

    return names_of(data.tokenizer, data.ends)


def _symbols(sequences: Samples, data: Prepared) -> Samples:
    """Return sequences of the data without their end."""
    return [one[:-1] for one in sequences] if data.ends else sequences


def _strings(sequences: Samples, data: Prepared) -> list[str]:
    """Return sequences spelt in their symbols."""
    from recipes.data.names import spelt

    names = _names(data)
    return [spelt(one, names, "") for one in sequences]
