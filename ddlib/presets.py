"""The papers' processes, each in one line."""

from collections.abc import Sequence
from typing import Any

from ddlib.checks import require
from ddlib.hierarchies import Tree
from ddlib.hierarchies.maps import parent_vectors
from ddlib.processes import GIDD, Hierarchical, Masked
from ddlib.schedules import Linear


def mdlm(vocab_size: int) -> Masked:
    """Masked diffusion with the linear clock (Sahoo et al., 2024)."""
    return Masked(vocab_size, Linear())


def gidd(vocab_size: int, p_uniform: float) -> GIDD:
    """Masked diffusion with a share ``p_uniform`` of uniform noise at t = 1/2 (von Rütte et al., 2025)."""
    return GIDD(vocab_size, p_uniform=p_uniform, gamma=1.0)


def hdlm(parents: Any, gamma: float = 1.0, xi: float = 1.0) -> Hierarchical:
    """Hierarchical diffusion with one level of clusters: alpha = (1 - t)^gamma (Zhou et al., 2025).

    Args:
        parents: (V,) the 0-based cluster of each word; or a list of this one vector, as ``Tree`` takes it.
        gamma: speed of the words' jump; clusters jump at speed 1.
        xi: probability that a word jumps to its own cluster.
    """
    levels = len(parent_vectors(parents))
    require(levels == 1, f"parents holds {levels} levels of clusters, hdlm has one; hdlm_levels has any")
    return hdlm_levels(parents, xi=xi, speed=(gamma, 1.0))


def hdlm_levels(parents: Any, xi: float | Sequence[float] = 1.0, speed: Sequence[float] | None = None) -> Hierarchical:
    """Hierarchical diffusion with any number of levels under the linear clock; arguments as ``Tree``."""
    return Hierarchical(Tree(parents, xi=xi, speed=speed), Linear())
