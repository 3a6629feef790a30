"""The contract of a corrector: what moves a text while the time stands still."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from ddlib.arguments import Part
from ddlib.processes import ForwardProcess
from ddlib.samplers.base import SamplingContext
from ddlib.typing import Times, Tokens
from ddlib.utils.repr import shown


class Corrector(Part):
    """Moves states at a time t, which they follow q_t at before and after. A leaf is one file and says how.

    ``Corrected`` asks ``check`` once, ``correct`` after each step of its predictor, ``end`` about the finished words.
    """

    exact_marginals: bool = True
    """Whether one token, given the best denoiser, keeps its law q_t."""

    consistent_joint: bool = True
    """Whether a text, given the best denoiser, follows its law as the steps grow many, the corrections small with
    them. Each token of it keeps its law q_t in every correction, then, while others' noise is what it was."""

    exact_joint: bool = False
    """Whether every correction, however large, keeps the joint law of a whole text."""

    max_model_calls: int = 1
    """Network calls of a correction, at most."""

    max_finalize_calls: int = 0
    """Network calls of ``end``, at most."""

    def check(self, process: ForwardProcess) -> None:  # most serve every process
        """Raises TypeError where a process cannot be served, with the reason and what serves it."""

    @abstractmethod
    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        """The states after one correction, (B, L). What stands at the prompt does not matter.

        Args:
            run: the call of ``sample``.
            z: (B, L) states at ``t``, with the prompt in its place.
            t: (B,) times, in (0, 1).
            h: (B,) the lengths of the steps that led to ``t``, from ``t + h``.
        """

    def end(self, run: SamplingContext, words: Tokens) -> Tokens:
        """The finished words, (B, L); as they are, unless a leaf corrects them too."""
        return words

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a registered class is verified; override where the constructor needs arguments."""
        return [cls()]

    def __repr__(self) -> str:
        return shown(self, Corrector)
