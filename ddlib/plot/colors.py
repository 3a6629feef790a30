"""What a state is called and how it is coloured, the same in every picture."""

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.processes import ForwardProcess
from ddlib.typing import HasLevelWeights
from ddlib.utils.validation import require

# Okabe & Ito, "Color universal design" (2008): told apart with every common kind of colour blindness.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
DARK, GREY = "#2B2B2B", "#5A5A5A"
_CLUSTERS = (ORANGE, GREEN, "#CC79A7", "#56B4E9", VERMILION, "#F0E442")
_DASHES = ("-", "--", "-.", ":")


class Band(NamedTuple):
    """A kind of states: its name, its colour, and the dashes of its curve, for print without colours."""

    name: str
    colour: str
    dash: str


def bands(subject: ForwardProcess | Hierarchy, names: Sequence[str] | None = None) -> list[Band]:
    """The kinds of states that pictures of ``subject`` tell apart.

    These are the levels of a hierarchy, or of a process whose levels have occupancies and weights
    (``HasLevelWeights``). Otherwise a token is its own token, another token, or not a token, the mask. With more than
    six levels of clusters colours repeat.

    Args:
        subject: a process or a hierarchy.
        names: one for each band, tokens first.

    Raises:
        TypeError: ``subject`` is something else.
        ValueError: another number of names.
    """
    if not isinstance(subject, ForwardProcess | Hierarchy):
        raise TypeError(f"{subject!r} is neither a process nor a hierarchy of ddlib")
    if isinstance(subject, Hierarchy | HasLevelWeights):
        word, *middle, last = level_names(subject)
        kinds = [(word, BLUE), *zip(middle, cycle(_CLUSTERS), strict=False), (last, DARK)]
    else:
        kinds = [("own word", BLUE), ("another word", VERMILION)]
        beyond = subject.num_states - subject.vocab_size
        kinds += [("mask" if beyond == 1 else "no word", DARK)] * (beyond > 0)
    listed = ", ".join(name for name, _ in kinds)
    names = [name for name, _ in kinds] if names is None else names
    require(len(names) == len(kinds), f"names has {len(names)} entries, must have {len(kinds)}: for {listed}")
    return [Band(names[i], colour, _DASHES[i % len(_DASHES)]) for i, (_, colour) in enumerate(kinds)]


def level_names(subject: ForwardProcess | Hierarchy) -> list[str]:
    """What each level is called where nobody says otherwise: token, cluster (or cluster 1, cluster 2, ...), mask.

    Example:
        >>> import ddlib as dd
        >>> level_names(dd.presets.hdlm([0, 0, 1]))
        ['token', 'cluster', 'mask']
    """
    above = len(subject.levels) - 1
    middle = ["cluster"] if above == 2 else [f"cluster {i}" for i in range(1, above)]
    return ["word", *middle, *["mask" if subject.levels[-1] == 1 else "no word"] * (above > 0)]


def band_of(process: ForwardProcess, states: Int64[Tensor, "n L"], x: Int64[Tensor, "L"]) -> Int64[Tensor, "n L"]:
    """The number of the band that each state is in.

    Args:
        process: whose states they are.
        states: (n, L), one row per time.
        x: (L,) each position's own token.
    """
    if isinstance(process, HasLevelWeights):
        return process.level_of(states)
    return torch.where(states >= process.vocab_size, 2, (states != x).to(torch.int64))


def state_names(subject: ForwardProcess | Hierarchy, members: Sequence[Sequence[str]] | None = None) -> list[str]:
    """A name for each state.

    Args:
        subject: a process or a hierarchy.
        members: names of the tokens, then of each level's clusters, as far as there are any; the others become w0,
            w1, ...; c0, c1, ... on the first level of clusters, cc0, ... on the second; mask.

    Raises:
        ValueError: more levels than there are, or another number of names than a level has members.
    """
    sizes = subject.levels
    given = list(members or [])
    require(
        len(given) <= len(sizes),
        f"members has {len(given)} entries, must have at most {len(sizes)}: the words, then each level above them",
    )
    result: list[str] = []
    for level, size in enumerate(sizes):
        default = ["mask"] if level and size == 1 else [f"{'c' * level or 'w'}{i}" for i in range(size)]
        names = list(given[level]) if level < len(given) else default
        require(len(names) == size, f"members[{level}] has {len(names)} names, level {level} has {size} members")
        result += names
    return result
