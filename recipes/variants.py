"""The processes that recipes train, as plain values: what stands in a config and on the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

import ddlib as dd
from ddlib.hierarchies.clusters import Clusters
from recipes.data.source import STRICT


@dataclass(frozen=True, kw_only=True)
class MDLM:
    """Masked diffusion with the linear clock (Sahoo et al. 2024)."""

    kind: Annotated[Literal["mdlm"], tyro.conf.Suppress] = "mdlm"

    __pydantic_config__ = STRICT

    @property
    def levels(self) -> int:
        """Levels of clusters."""
        return 0

    def build(self, vocab_size: int, clusters: Clusters | None) -> dd.processes.ForwardProcess:
        return dd.presets.mdlm(vocab_size)


@dataclass(frozen=True, kw_only=True)
class GIDD:
    """Masks and uniform noise (von Rütte et al. 2025)."""

    kind: Annotated[Literal["gidd"], tyro.conf.Suppress] = "gidd"
    p_uniform: float = 0.1
    """Share of uniform noise at t = 1/2."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not 0 <= self.p_uniform < 1:
            raise ValueError(f"p_uniform={self.p_uniform}: must lie in [0, 1)")

    @property
    def levels(self) -> int:
        """Levels of clusters."""
        return 0

    def build(self, vocab_size: int, clusters: Clusters | None) -> dd.processes.ForwardProcess:
        return dd.presets.gidd(vocab_size, self.p_uniform)


@dataclass(frozen=True, kw_only=True)
class HDLM:
    """Words, one level of clusters, the mask (Zhou et al. 2025)."""

    kind: Annotated[Literal["hdlm"], tyro.conf.Suppress] = "hdlm"
    clusters: int | Path = 64
    """So many, made from the text's own co-occurrences; or what ``python -m recipes.clusters`` saved (no suffix)."""
    gamma: float = 1.0
    """Words survive with probability (1 - t)^gamma."""
    xi: float = 1.0
    """Probability that a word goes to its own cluster, not to another."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        check_xi(self.xi)
        if not self.gamma > 0:
            raise ValueError(f"gamma={self.gamma}: must be positive")

    @property
    def levels(self) -> int:
        """Levels of clusters."""
        return 1

    def build(self, vocab_size: int, clusters: Clusters | None) -> dd.processes.ForwardProcess:
        return hierarchical(vocab_size, clusters, (self.xi,), (self.gamma, 1.0))


@dataclass(frozen=True, kw_only=True)
class HDLMLevels:
    """Words, several nested levels of clusters, the mask."""

    kind: Annotated[Literal["hdlm-levels"], tyro.conf.Suppress] = "hdlm-levels"
    clusters: tuple[int, ...] | Path = (256, 16)
    """So many on each level, finest first, made from the text's own co-occurrences; or saved ones (no suffix)."""
    xi: tuple[float, ...] = (1.0, 1.0)
    """Per edge between levels of words and clusters."""
    speed: tuple[float, ...] = (1.0, 1.0, 1.0)
    """Per edge, the one to the mask last."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        check_xi(*self.xi)
        counts = self.levels if isinstance(self.clusters, Path) else len(self.clusters)
        if not self.xi or len(self.xi) != counts or len(self.speed) != counts + 1:
            raise ValueError(
                f"clusters={self.clusters}, xi={self.xi}, speed={self.speed}: needs one xi per level of clusters, "
                "and one speed more than that, for the edge to the mask"
            )

    @property
    def levels(self) -> int:
        """Levels of clusters."""
        return len(self.xi)

    def build(self, vocab_size: int, clusters: Clusters | None) -> dd.processes.ForwardProcess:
        return hierarchical(vocab_size, clusters, self.xi, self.speed)


def check_xi(*xi: float) -> None:
    """Raises ValueError unless all lie in (0, 1]."""
    for value in xi:
        if not 0 < value <= 1:
            raise ValueError(f"xi={value}: must lie in (0, 1]")


def hierarchical(
    vocab_size: int, clusters: Clusters | None, xi: tuple[float, ...], speed: tuple[float, ...]
) -> dd.processes.ForwardProcess:
    """The process of these clusters under the linear clock.

    Raises:
        ValueError: another number of levels or of words than the recipe says.
    """
    found = () if clusters is None else clusters.parents
    if len(found) != len(xi) or len(found[0]) != vocab_size:
        sizes = [len(vector) for vector in found]
        raise ValueError(f"clusters of {sizes} members: the recipe has {len(xi)} levels over {vocab_size} words")
    return dd.processes.Hierarchical(clusters.tree(xi, speed), dd.schedules.Linear())
