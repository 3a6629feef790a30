"""Presets: the processes of the papers."""

from collections.abc import Sequence
from typing import Any

import torch

from ddlib.hierarchies import Tree
from ddlib.hierarchies.maps import parent_vectors
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord
from ddlib.schedules import Linear, Schedule
from ddlib.schedules.window import in_turn
from ddlib.utils.positive import HIGH, LOW, RULE
from ddlib.utils.validation import check_number, require

__all__ = [
    "genmd4",
    "gidd",
    "hdlm",
    "hdlm_levels",
    "hdlm_noisy",
    "mdlm",
    "staged",
    "staged_levels",
]


def mdlm(vocab_size: int) -> Masked:
    """Masked diffusion with the linear schedule (Sahoo et al., 2024)."""
    return Masked(vocab_size, Linear())


mdlm.training_weighting = "clip:2"  # type: ignore[attr-defined] # that of the paper


def gidd(vocab_size: int, p_uniform: float) -> GIDD:
    """Masked diffusion with a fraction ``p_uniform`` of uniform noise at t = 1/2 (von Rütte et al.,
    2025).
    """
    return GIDD(vocab_size, p_uniform=p_uniform, gamma=1.0)


def genmd4(counts: Any, ratio: float = 4.0) -> PerWord:
    """Masked diffusion with a power of the linear schedule per token (GenMD4, Shi et al., 2024).

    The powers depend on the frequency rank of the token; tokens of equal frequency have equal
    powers.

    Args:
        counts: (V,) frequency of each token.
        ratio: power of the most frequent token over that of the rarest, in [0.01, 100]. Above 1
            frequent tokens are masked first and unmasked last, below 1 rare ones are.

    Raises:
        ValueError: counts that are not one number >= 0 per token; a ratio outside its limits.

    Example:
        >>> genmd4([900, 5, 5, 80], ratio=4.0).powers
        tensor([2.0000, 0.6300, 0.6300, 1.2599], dtype=torch.float64)
    """
    check_number("ratio", ratio, 0.01, 100, "in [0.01, 100]")
    frequency = torch.as_tensor(counts, dtype=torch.float64)
    require(
        frequency.ndim == 1 and frequency.numel() > 0,
        f"counts has shape {tuple(frequency.shape)}, must be (V,): one per token",
    )
    require(bool((frequency >= 0).all()), f"counts holds {float(frequency.min()):g}, must be >= 0")
    order = frequency.sort().values
    below = torch.searchsorted(order, frequency)
    above = torch.searchsorted(order, frequency, right=True)
    place = (below + above - len(frequency)).to(torch.float64) / 2 / max(len(frequency) - 1, 1)
    return PerWord(Linear(), (ratio**place).tolist())


def hdlm(parents: Any, gamma: float = 1.0, xi: float = 1.0, names: Any = None) -> Hierarchical:
    """Hierarchical diffusion with one level of clusters: alpha = (1 - t)^gamma (Zhou et al., 2025).

    Args:
        parents: (V,) the 0-based cluster of each token; or a list of this one vector, as ``Tree``
            takes it.
        gamma: speed of the tokens' jump; clusters jump at speed 1.
        xi: probability that a token jumps to its cluster rather than to another one.
        names: names of the clusters, as in ``Tree``.
    """
    check_number("gamma", gamma, LOW, HIGH, RULE)
    levels = len(parent_vectors(parents))
    require(
        levels == 1,
        f"parents holds {levels} levels of clusters, must hold one; use hdlm_levels for more",
    )
    return hdlm_levels(parents, xi=xi, speed=(gamma, 1.0), names=names)


hdlm.training_weighting = "clip:2"  # type: ignore[attr-defined] # that of the paper


def hdlm_levels(
    parents: Any,
    xi: float | Sequence[float] = 1.0,
    speed: Sequence[float] | None = None,
    names: Any = None,
) -> Hierarchical:
    """Hierarchical diffusion with any number of levels under the linear schedule.

    Arguments as in ``Tree``.
    """
    return Hierarchical(Tree(parents, xi=xi, speed=speed, names=names), Linear())


hdlm_levels.training_weighting = "clip:2"  # type: ignore[attr-defined] # that of hdlm


def staged(
    parents: Any,
    overlap: float = 0.0,
    schedule: Schedule | None = None,
    xi: float = 1.0,
    names: Any = None,
) -> Hierarchical:
    """Coarse to fine: all clusters are generated before the first token.

    Two masked diffusions, one after the other: tokens become clusters in [0, 1/2], and clusters the
    mask in [1/2, 1].

    Args:
        parents: as in ``hdlm``.
        overlap: in [0, 1], how much the windows of the two edges overlap: 0 for [0, 1/2] and [1/2,
            1], 1 for [0, 1] both, which is ``hdlm`` with equal speeds.
        schedule: the schedule within each window, with exact ends; ``Linear()`` by default.
        xi: as in ``hdlm``.
        names: as in ``hdlm``.

    Raises:
        TypeError, ValueError: as ``Tree`` and ``Window``; an overlap outside [0, 1].

    Example:
        >>> staged([0, 0, 1, 1]).occupancies(torch.tensor([0.25, 0.5, 0.75])).round(decimals=6)
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 1.0000, 0.0000],
                [0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    levels = len(parent_vectors(parents))
    require(
        levels == 1,
        f"parents holds {levels} levels of clusters, must hold one; use staged_levels for more",
    )
    return staged_levels(parents, overlap, schedule, xi, names)


def staged_levels(
    parents: Any,
    overlap: float = 0.0,
    schedule: Schedule | None = None,
    xi: float | Sequence[float] = 1.0,
    names: Any = None,
) -> Hierarchical:
    """``staged`` with any number of levels: with overlap 0 edge i of n acts in [i/n, (i + 1)/n]."""
    check_number("overlap", overlap, 0, 1, "in [0, 1]")
    tree = Tree(parents, xi=xi, names=names)
    inner = Linear() if schedule is None else schedule
    return Hierarchical(tree, in_turn([inner] * tree.depth, overlap))


def hdlm_noisy(
    parents: Any,
    p_uniform: float | Sequence[float],
    counts: Any = (),
    xi: float | Sequence[float] = 1.0,
    speed: Sequence[float] | None = None,
    names: Any = None,
) -> Noisy:
    """Hierarchical diffusion as ``hdlm_levels``, with tokens or clusters that are resampled at
    random.

    Args:
        parents: as in ``Tree``.
        p_uniform: as in ``Noisy``.
        counts: (V,) frequency of each token; tokens are resampled in proportion. None or empty:
            uniformly.
        xi: as in ``Tree``.
        speed: as in ``Tree``.
        names: as in ``Tree``.
    """
    tree = Tree(parents, xi=xi, speed=speed, names=names)
    return Noisy(tree, Linear(), p_uniform, None if counts is None or not len(counts) else counts)
