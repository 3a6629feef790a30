"""Checks of a constraint before sampling: processes, samplers and options that support it, lengths that satisfy it."""

from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

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
        TypeError: not an ``Automaton``; a process other than masked diffusion, with masks alone at t = 1; a sampler
            that draws tokens in another way; endings that may break the constraint.
        ValueError: another number of tokens than the process has.
    """
    if not isinstance(constraint, Automaton):
        raise TypeError(f"constraint is {constraint!r}, must be a ddlib.samplers.Automaton object or None")
    if not isinstance(process, LevelProcess) or len(process.levels) != 2 or not process.exact_ends:
        raise TypeError(
            f"constraint is {constraint!r}, which needs masks and no clusters, and nothing but masks at t = 1, as "
            f"Masked(V, Linear()): {process!r} cannot serve it"
        )
    require(
        constraint.vocab_size == process.vocab_size,
        f"constraint has vocab_size={constraint.vocab_size}, must be that of the process, {process.vocab_size}",
    )
    if not sampler.supports_constraint:
        raise TypeError(
            f"constraint is {constraint!r}, which {sampler!r} cannot serve: it must draw every token once it is "
            "unmasked and leave it so, or remask it, as LeftToRight(), Confidence() and Ancestral() do"
        )
    for ending in endings:
        ending.check_constraint(constraint)


def check_satisfiable(constraint: Automaton, states: Tokens) -> None:
    """Raise ValueError unless each sequence has a completion.

    Args:
        constraint: the constraint, on the device of the states.
        states: (B, L) given tokens, and numbers of at least V at positions to draw.
    """
    possible: Bool[Tensor, B] = constraint.has_completion(states)
    if bool(possible.all()):
        return
    row, length = int((~possible).nonzero()[0]), states.shape[1]
    given = (states[row, constraint.skip :] < constraint.vocab_size).any()
    beside = f" with the tokens that row {row} of the prompt gives" if given else ""
    raise ValueError(
        f"constraint is {constraint!r}, which no sequence of length {length} satisfies{beside}: take another length"
        f"{', prompt' if given else ''} or constraint, or fewer forbidden tokens"
    )
