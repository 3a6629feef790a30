"""Names and colours of states, the same in all plots."""

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.hierarchies.level_names import NO_NAMES, Names
from ddlib.processes import ForwardProcess
from ddlib.typing import HasLevelWeights
from ddlib.utils.validation import require

# Okabe & Ito, "Color universal design" (2008): distinguishable with every common kind of colour
# blindness.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILION = "#D55E00"
DARK = "#2B2B2B"
GREY = "#5A5A5A"
_CLUSTERS = (ORANGE, GREEN, "#CC79A7", "#56B4E9", VERMILION, "#F0E442")
_DASHES = ("-", "--", "-.", ":")


class Band(NamedTuple):
    """A group of states: name, colour, and dash pattern of its curve for print without colours."""

    name: str
    colour: str
    dash: str


def bands(subject: ForwardProcess | Hierarchy, names: Sequence[str] | None = None) -> list[Band]:
    """Return the groups of states that plots of ``subject`` distinguish.

    These are the levels of a hierarchy, or of a process whose levels have occupancies and weights
    (``HasLevelWeights``). Otherwise they are the clean token, another token, and the mask. With
    more than six levels of clusters, colours repeat.

    Args:
        subject: a process or a hierarchy.
        names: one for each band, tokens first.

    Raises:
        TypeError: ``subject`` is something else.
        ValueError: a wrong number of names.
    """
    if not isinstance(subject, ForwardProcess | Hierarchy):
        raise TypeError(f"{subject!r} is neither a process nor a hierarchy of ddlib")
    if isinstance(subject, Hierarchy | HasLevelWeights):
        token, *middle, last = level_names(subject)
        kinds = [(token, BLUE), *zip(middle, cycle(_CLUSTERS), strict=False), (last, DARK)]
    else:
        kinds = [("own token", BLUE), ("another token", VERMILION)]
        beyond = len(subject.levels) > 1
        kinds += [("mask" if subject.levels[-1] == 1 else "no token", DARK)] * beyond
    listed = ", ".join(name for name, _ in kinds)
    names = [name for name, _ in kinds] if names is None else names
    require(
        len(names) == len(kinds),
        f"names has {len(names)} entries, must have {len(kinds)}: for {listed}",
    )
    return [
        Band(names[i], colour, _DASHES[i % len(_DASHES)]) for i, (_, colour) in enumerate(kinds)
    ]


def level_names(subject: ForwardProcess | Hierarchy) -> list[str]:
    """Return the names of the levels: token, cluster (or cluster 1, cluster 2, ..., or those of the
    tree), mask.

    Example:
        >>> import ddlib as dd
        >>> level_names(dd.presets.hdlm([0, 0, 1]))
        ['token', 'cluster', 'mask']
    """
    above = len(subject.levels) - 1
    middle = ["cluster"] if above == 2 else [f"cluster {i}" for i in range(1, above)]
    named = list(_names(subject).levels)
    middle = named if len(named) == len(middle) else middle
    return ["token", *middle, *["mask" if subject.levels[-1] == 1 else "no token"] * (above > 0)]


def band_of(
    process: ForwardProcess, states: Int64[Tensor, "n L"], x: Int64[Tensor, "L"]
) -> Int64[Tensor, "n L"]:
    """Return the index of the band of each state.

    Args:
        process: the process of the states.
        states: (n, L), one row per time.
        x: (L,) clean state of each position.
    """
    if isinstance(process, HasLevelWeights):
        return process.level_of(states)
    return torch.where(process.level_of(states) > 0, 2, (states != x).to(torch.int64))


def state_names(
    subject: ForwardProcess | Hierarchy, members: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """Return a name for each state.

    Args:
        subject: a process or a hierarchy.
        members: names of the tokens, then of the clusters of each level; levels may be omitted at
            the end. Default names are w0, w1, ... for tokens; those of the tree for clusters, or
            c0, c1, ... for the first level of clusters, cc0, ... for the second; mask.

    Raises:
        ValueError: too many levels, or a number of names that differs from the size of the level.
    """
    sizes = subject.levels
    groups = list(members or [])
    require(
        len(groups) <= len(sizes),
        f"members has {len(groups)} entries, must have at most {len(sizes)}: the tokens, then each "
        "level above them",
    )
    result: list[str] = []
    of_tree = ((), *_names(subject).members)
    for level, size in enumerate(sizes):
        default = [f"{'c' * level or 'w'}{i}" for i in range(size)]
        if 0 < level == len(sizes) - 1 and size == 1:
            default = ["mask"]
        if level < len(of_tree) and len(of_tree[level]) == size:
            default = list(of_tree[level])
        names = list(groups[level]) if level < len(groups) else default
        require(
            len(names) == size,
            f"members[{level}] has {len(names)} names, level {level} has {size} members",
        )
        result += names
    return result


def _names(subject: ForwardProcess | Hierarchy) -> Names:
    """Return the names of the hierarchy; those of none are empty."""
    hierarchy = subject if isinstance(subject, Hierarchy) else subject.hierarchy
    return NO_NAMES if hierarchy is None else hierarchy.names
