"""Checks of a constraint before sampling.

Processes, samplers and options that support it, lengths that satisfy it.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.hierarchies.maps import Map
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.base import Sampler
from ddlib.samplers.constraints.automaton import Automaton
from ddlib.samplers.stopping import Ending
from ddlib.typing import Tokens
from ddlib.utils.validation import require


def check_constraint(
    constraint: Automaton, process: ForwardProcess, sampler: Sampler, endings: Sequence[Ending] = ()
) -> None:
    """Raise unless tokens of the process can be drawn under a constraint by the sampler.

    Raises:
        TypeError: not an ``Automaton``; a process in which a state is not a set of tokens, or with
            others than masks at t = 1; a sampler that draws tokens in another way; endings that may
            break the constraint.
        ValueError: another number of tokens than the process has.
    """
    if not isinstance(constraint, Automaton):
        raise TypeError(
            f"constraint is {constraint!r}, must be a ddlib.samplers.Automaton object or None"
        )
    if not isinstance(process, LevelProcess) or not process.exact_ends or not _is_tree(process):
        raise TypeError(
            f"constraint is {constraint!r}, which needs masks, clusters that keep their tokens (xi "
            "= 1), and only "
            f"masks at t = 1, such as Masked(V, Linear()): {process!r} does not support it"
        )
    require(
        constraint.vocab_size == process.vocab_size,
        f"constraint has vocab_size={constraint.vocab_size}, must be that of the process, "
        f"{process.vocab_size}",
    )
    if not sampler.guarantees.supports_constraint:
        raise TypeError(
            f"constraint is {constraint!r}, which {sampler!r} does not support: a sampler must "
            "draw each token when "
            "it is unmasked and keep it or remask it, as LeftToRight(), Confidence() and "
            "Ancestral() do"
        )
    for ending in endings:
        ending.check_constraint(constraint)


def token_ancestors(process: ForwardProcess) -> Int64[Tensor, "V n"]:
    """Return the state of each token in each level between the tokens and the mask, of a process
    that is supported.
    """
    assert isinstance(process, LevelProcess)
    found = torch.zeros(process.vocab_size, 0, dtype=torch.int64, device=process.device)
    for level in range(1, process.hierarchy.depth):
        above = (
            cast(Map, process.hierarchy.between(0, level)).parents
            + process.hierarchy.offsets[level]
        )
        found = torch.cat([found, above[:, None]], 1)
    return found


def _is_tree(process: LevelProcess) -> bool:
    """Return whether each token has one ancestor in every level below the mask."""
    return all(edge.plain for edge in process.hierarchy.maps[:-1])


def check_satisfiable(
    constraint: Automaton, states: Tokens, endings: Sequence[Ending] = ()
) -> None:
    """Raise ValueError unless each sequence has a completion.

    Args:
        constraint: the constraint, on the device of the states.
        states: (B, L) given tokens, and numbers of at least V at positions to draw.
        endings: criteria for finishing a sequence early, which must not act before the constraint.
    """
    require(
        not endings or not bool((states[:, : constraint.skip] >= constraint.vocab_size).any()),
        f"constraint is {constraint!r}, whose first {constraint.skip} positions must be given in "
        "prompt with endings: "
        "a sequence could end there",
    )
    possible: Bool[Tensor, B] = constraint.has_completion(states)
    if bool(possible.all()):
        return
    row = int((~possible).nonzero()[0])
    length = states.shape[1]
    given = (states[row, constraint.skip :] < constraint.vocab_size).any()
    beside = f" with the tokens that row {row} of the prompt gives" if given else ""
    raise ValueError(
        f"constraint is {constraint!r}, which no sequence of length {length} satisfies{beside}: "
        "use another "
        f"length{', prompt' if given else ''} or constraint, or fewer forbidden tokens"
    )
