"""Forbidden and repeated tokens."""

from collections.abc import Iterable, Sequence
from functools import partial
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.hierarchies import Map
from ddlib.processes import ForwardProcess
from ddlib.samplers.control import Control, Needs, Processor, SamplingCall
from ddlib.utils.validation import check_number, require

_NEEDS = Needs.TOKEN_DISTRIBUTIONS | Needs.ONE_ALPHABET
_NEVER = 1e-9
"""Probability of a token at t = 1 that no run meets."""


class Forbidden(Control):
    """Tokens that are never drawn; those in the prompt are kept.

    Args:
        tokens: their numbers.

    Raises:
        TypeError: not numbers.
        ValueError: when sampling, numbers that are not tokens, all tokens of a cluster, or tokens
            that the process has at t = 1 and that never change.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        if not isinstance(tokens, Iterable):
            raise TypeError(f"forbidden is {tokens!r}, must be a list of token ids")
        self.tokens = tuple(tokens)
        for token in self.tokens:
            if isinstance(token, bool) or not isinstance(token, Integral):
                raise TypeError(f"forbidden holds {token!r}, must hold token ids")

    @property
    def needs(self) -> Needs:
        return _NEEDS if self.tokens else Needs.NOTHING

    def check(self, call: SamplingCall) -> None:
        if not self.tokens:
            return
        check_noise(call.process, self.tokens, self)
        together = [
            token for one in call.controls if isinstance(one, Forbidden) for token in one.tokens
        ]
        forbidden_mask(call.process, together)

    def logits(self, process: ForwardProcess, length: int) -> Sequence[Processor]:
        excluded = forbidden_mask(process, self.tokens)
        return [partial(_exclude, excluded[None])] if bool(excluded.any()) else []


class RepetitionPenalty(Control):
    """Presence penalty, as in chat interfaces: tokens elsewhere in the sequence have their
    probability divided by it, before normalisation.

    Its logarithm is subtracted from the logits. The result does not depend on a constant added to
    the logits, unlike a factor of the logits (CTRL).

    Args:
        penalty: at least 1.

    Raises:
        TypeError, ValueError: a penalty below 1.
    """

    def __init__(self, penalty: float) -> None:
        self.penalty = check_number("repetition_penalty", penalty, 1, 1e30, "at least 1")

    @property
    def needs(self) -> Needs:
        return Needs.NOTHING if self.penalty == 1 else _NEEDS

    def logits(self, process: ForwardProcess, length: int) -> Sequence[Processor]:
        return [] if self.penalty == 1 else [self._penalise]

    def _penalise(
        self, logits: Float[Tensor, "N V"], states: Int64[Tensor, "N L"], i: Int64[Tensor, "N"]
    ) -> Float[Tensor, "N V"]:
        penalty = torch.tensor(self.penalty, dtype=logits.dtype).log()
        return logits - _present(logits, states, i) * penalty


def _exclude(
    excluded: Bool[Tensor, "1 V"],
    logits: Float[Tensor, "N V"],
    states: Int64[Tensor, "N L"],
    i: Int64[Tensor, "N"],
) -> Float[Tensor, "N V"]:
    return logits.masked_fill(excluded.to(logits.device), -torch.inf)


def _present(logits: Tensor, states: Tensor, i: Tensor) -> Float[Tensor, "N V"]:
    """Return 1 at tokens that are present at other positions of the sequence, else 0."""
    vocabulary = logits.shape[1]
    # an extra column for other states
    tokens = states.clamp_max(vocabulary).scatter(1, i[:, None], vocabulary)
    present = logits.new_zeros(len(logits), vocabulary + 1).scatter_(1, tokens, 1.0)
    return present[:, :vocabulary]


def check_noise(process: ForwardProcess, tokens: Sequence[int], control: Control) -> None:
    """Raise ValueError if the process has tokens at t = 1 that a control does not draw, and that
    stay.
    """
    numbers = torch.tensor(tokens, dtype=torch.int64, device=process.device)
    stay = ~process.replaceable(numbers[:, None])[:, 0]
    chance = float(process.prior()[numbers[stay]].sum())
    require(
        chance < _NEVER,
        f"controls holds {control!r}, and the noise of {process!r} at t = 1 has these tokens with "
        f"probability {chance:.2g}, which then stay: it must have only masks there",
    )


def forbidden_mask(process: ForwardProcess, tokens: Sequence[int]) -> Bool[Tensor, "V"]:
    """Return True at forbidden tokens, checked."""
    excluded = torch.zeros(process.vocab_size, dtype=torch.bool, device="cpu")
    for token in tokens:
        require(
            0 <= int(token) < process.vocab_size,
            f"forbidden holds {token}, must be tokens in [0, {process.vocab_size})",
        )
        excluded[int(token)] = True
    require(not bool(excluded.all()), "forbidden holds all tokens, must leave at least one")
    hierarchy = process.hierarchy
    if hierarchy is None:
        return excluded
    for level in range(1, hierarchy.depth):
        edge = hierarchy.between(0, level)
        if isinstance(edge, Map):
            left = torch.bincount(edge.parents.cpu()[~excluded], minlength=hierarchy.levels[level])
        else:
            left = edge.push((~excluded).to(edge.device, torch.float64)).cpu()
        empty = (left == 0).nonzero()[:, 0].tolist()
        require(
            not empty,
            f"forbidden holds all tokens of cluster {empty[:5]} of level {level}, must leave one "
            "in each: a "
            "sampler that keeps tokens in their cluster finds none for a state of this cluster",
        )
    return excluded
