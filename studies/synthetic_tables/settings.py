"""Sizes of the study, and the names of what it compares."""

from collections.abc import Sequence
from dataclasses import dataclass, field

EDGES = {"masks": 1, "blur": 3, "intervals": 2}
"""Jumps of an ordered column, by the noise."""
NOISES = tuple(EDGES)
ARMS = (*NOISES, "CTGAN", "Gaussian copula", "independent columns")


@dataclass(frozen=True)
class Network:
    """Size and training of a network."""

    dim: int = 64
    depth: int = 2
    heads: int = 4
    batch: int = 128
    rate: float = 2e-3


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    seconds: float = 30.0
    """CPU time of a network's training."""
    seeds: Sequence[int] = (0, 1, 2)
    groups: Sequence[Sequence[str]] = (("diamonds", "bikes"), ("health",))
    """Tables in the order of runs: those of a group by seed."""
    arms: Sequence[str] = ARMS
    halvings: int = 20
    classifiers: int = 4
    """Halvings for the classifier."""
    held_out: int = 4000
    network: Network = field(default_factory=Network)


TINY = Sizes(
    seconds=0.3,
    seeds=(0, 1),
    groups=(("bikes",),),
    arms=(*NOISES, "independent columns"),
    halvings=2,
    classifiers=2,
    held_out=60,
    network=Network(8, 1, 1, 8),
)
"""Sizes of a test; without the generators of other packages."""
