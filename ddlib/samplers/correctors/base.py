"""Abstract interface of a corrector: moves of the states at a constant time."""

from abc import abstractmethod

from ddlib.samplers.base import Guarantees, ReversePart, SamplingContext
from ddlib.typing import Times, Tokens
from ddlib.utils.repr import format_part


class Corrector(ReversePart):
    """Base class of correctors, which move states at a time t and keep their distribution q_t.

    ``Corrected`` calls ``check`` once, ``correct`` after each step of its predictor, and ``end`` on
    the final tokens.
    """

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(max_finalize_calls=0)

    @abstractmethod
    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        """Return the states after one correction, (B, L); the caller restores the prompt.

        Args:
            run: the call of ``sample``.
            z: (B, L) states at ``t``, with the prompt in its place.
            t: (B,) times, in (0, 1).
            h: (B,) lengths of the last steps, from ``t + h`` to ``t``.
        """

    def end(self, run: SamplingContext, tokens: Tokens) -> Tokens:
        """Return the final tokens, (B, L); unchanged by default."""
        return tokens

    def __repr__(self) -> str:
        return format_part(self, Corrector)
