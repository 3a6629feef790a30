"""Sizes of the study of output layers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from studies.corpus.build import spans
from studies.weights.texts import HASHES

HELD_OUT = "moby_dick"
"""The source outside of the training text."""


def sealed_hash() -> str:
    """Return the hash of the sealed text that was committed before any run."""
    return json.loads(HASHES.read_text(encoding="utf-8"))["sealed"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    words: int = 50_257
    length: int = 128
    batch: int = 16
    width: int = 128
    clusters: int = 224
    cutoffs: tuple[int, ...] = (2_000, 10_000)
    """First ranks of the tail clusters of adaptive softmax."""
    bins: tuple[int, ...] = (100, 1_000, 10_000)
    """First ranks of the classes of frequency."""
    sources: Mapping[str, tuple[int, int]] = field(default_factory=spans)
    """First token and number of tokens."""
    windows: int = 100
    """Held-out windows of a source, for the test and for the search each."""
    draws: int = 4
    """Draws of times and noise for a window."""
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    """First learning rates of the search, in units of 0.003."""
    further: int = 3
    """Largest number of further ones, for a layer whose best one is at the edge."""
    search_steps: int = 1_024
    """2.1 million tokens."""
    steps: int = 2_048
    """4.2 million tokens."""
    compute_steps: int = 512
    """Steps of the layer over tokens whose operations and processor time others may use."""
    seeds: tuple[int, ...] = (0, 1, 2)
    points: int = 8
    """Points of a curve up to equal steps."""
    timed: int = 15
    """Measured steps of each arm for its cost."""
    save_every: int = 128
    sealed: int = 600
    """Windows of the sealed text."""
    sealed_sha256: str = field(default_factory=sealed_hash)


TINY = Sizes(
    words=257,
    length=16,
    batch=4,
    width=16,
    clusters=16,
    cutoffs=(32, 128),
    bins=(10, 50, 200),
    sources={name: (5000 * place, 5000) for place, name in enumerate(spans())},
    windows=4,
    draws=2,
    factors=(1.0, 2.0),
    further=1,
    search_steps=3,
    steps=4,
    compute_steps=2,
    seeds=(0, 1),
    points=2,
    timed=1,
    save_every=2,
    sealed=24,
)
