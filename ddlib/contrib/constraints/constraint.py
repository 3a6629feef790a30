"""Constraint on the drawn sequences: an automaton that accepts them."""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.contrib.constraints.accepted_draws import AcceptedDraws
from ddlib.contrib.constraints.automaton import Automaton
from ddlib.hierarchies.maps import Map
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.control import Control, Needs, SamplingCall, check_single
from ddlib.samplers.controls.endings import Ending, EndOfText
from ddlib.samplers.controls.tokens import Forbidden
from ddlib.typing import Tokens
from ddlib.utils.validation import require


class Constraint(Control):
    """Automaton that accepts each sequence, prompt included.

    It excludes tokens first; forbidden tokens, temperature and truncation act on the others. For
    masks, and trees whose clusters keep their tokens (xi = 1), and samplers that draw by
    ``SamplingContext.draws`` alone (``Guarantees.supports_joint_draws``).

    Args:
        automaton: over the tokens of the process.

    Raises:
        TypeError: not an ``Automaton``; when sampling, an ending that may break the constraint.
        ValueError: when sampling, another number of tokens than the process has, or a constraint
            that no sequence satisfies.
    """

    breaks = Needs.INDEPENDENT_DRAWS

    def __init__(self, automaton: Automaton) -> None:
        if not isinstance(automaton, Automaton):
            raise TypeError(
                f"constraint is {automaton!r}, must be a ddlib.contrib.Automaton object"
            )
        self.automaton = automaton

    @property
    def needs(self) -> Needs:
        return (
            Needs.MASKED_TREE
            | Needs.JOINT_DRAWS
            | Needs.TOKEN_DISTRIBUTIONS
            | Needs.FIXED_LENGTH
            | Needs.ONE_ALPHABET
        )

    def check(self, call: SamplingCall) -> None:
        check_single(call, Constraint)
        constraint = self.automaton
        require(
            constraint.vocab_size == call.process.vocab_size,
            f"constraint has vocab_size={constraint.vocab_size}, must be that of the process, "
            f"{call.process.vocab_size}",
        )
        states = call.fixed.masked_fill(call.free, call.process.num_states - 1)
        endings = [control for control in call.controls if isinstance(control, Ending)]
        for ending in endings:
            self._check_ending(ending)
        require(
            not endings or not bool((states[:, : constraint.skip] >= constraint.vocab_size).any()),
            f"constraint is {constraint!r}, whose first {constraint.skip} positions must be given "
            "in prompt with endings: a sequence could end there",
        )
        _check_satisfiable(self._reduce(call), states)

    def prepare(self, run: SamplingCall) -> SamplingCall:
        return replace(run, draws=AcceptedDraws(self._reduce(run)))

    def finish(self, run: SamplingCall, tokens: Tokens) -> Tokens:
        if not bool(self.automaton.to(tokens.device).accepts(tokens).all()):
            raise RuntimeError(
                f"{run.sampler!r} has supports_joint_draws = True and drew a sequence that "
                f"{self.automaton!r} rejects"
            )
        return tokens

    def _check_ending(self, ending: Ending) -> None:
        """Raise TypeError unless the constraint accepts the tokens that an ending sets."""
        constraint = self.automaton
        if not isinstance(ending, EndOfText):
            raise TypeError(
                f"constraint is {constraint!r}, which {ending!r} does not support: it sets tokens "
                "without the constraint"
            )
        if ending.least:
            raise TypeError(
                f"constraint is {constraint!r} and least of {ending!r} is {ending.least}, must be "
                "0: a minimum length is part of the constraint"
            )
        if ending.last and not constraint.ends_by(ending.token, ending.fill):
            raise TypeError(
                f"constraint is {constraint!r}, which {ending!r} does not support: the constraint "
                "must accept any number of fill tokens after the token, as after its own end"
            )

    def _reduce(self, call: SamplingCall) -> Automaton:
        """Return the automaton without forbidden tokens, over the states of the process."""
        excluded = [
            token
            for control in call.controls
            if isinstance(control, Forbidden)
            for token in control.tokens
        ]
        automaton = self.automaton.to(call.free.device).without(excluded)
        return automaton.over(token_ancestors(call.process))


def token_ancestors(process: ForwardProcess) -> Int64[Tensor, "V n"]:
    """Return the state of each token in each level between the tokens and the mask, of a process
    that is supported.
    """
    assert isinstance(process, LevelProcess)
    ancestors = torch.zeros(process.vocab_size, 0, dtype=torch.int64, device=process.device)
    for level in range(1, process.hierarchy.depth):
        above = (
            cast(Map, process.hierarchy.between(0, level)).parents
            + process.hierarchy.offsets[level]
        )
        ancestors = torch.cat([ancestors, above[:, None]], 1)
    return ancestors


def _check_satisfiable(constraint: Automaton, states: Tokens) -> None:
    """Raise ValueError unless each sequence has a completion.

    Args:
        constraint: the constraint, on the device of the states.
        states: (B, L) given tokens, and numbers of at least V at positions to draw.
    """
    possible: Bool[Tensor, B] = constraint.has_completion(states)
    if bool(possible.all()):
        return
    row = int((~possible).nonzero()[0])
    length = states.shape[1]
    prompted = (states[row, constraint.skip :] < constraint.vocab_size).any()
    beside = f" with the tokens that row {row} of the prompt gives" if prompted else ""
    raise ValueError(
        f"constraint is {constraint!r}, which no sequence of length {length} satisfies{beside}: "
        "use another "
        f"length{', prompt' if prompted else ''} or constraint, or fewer forbidden tokens"
    )
