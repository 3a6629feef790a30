"""The contract of a weighting: by what training multiplies a divergence in place of the bound's weight."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.arguments import Part
from ddlib.processes import ForwardProcess
from ddlib.typing import PerToken, Times, Tokens
from ddlib.utils.repr import shown
from ddlib.utils.validation import require, visible


class Weighting(Part):
    """A rule that gives the training loss other weights than the bound's. A subclass is one file and says how.

    The bound is the mean of weight times divergence. A weighting changes the first factor and leaves the second, so it
    decides how much each state counts, not which distribution is best for it. It knows no network and no other row of
    the batch.
    """

    @property
    def bound(self) -> bool:
        """Whether it leaves all weights as they are, so that the loss is the bound."""
        return False

    @property
    def about(self) -> str:
        """What it does, in a few tokens to stand beside a loss; empty where there is nothing to say."""
        return repr(self)

    def check(self, process: ForwardProcess) -> None:  # most serve every process
        """Raises TypeError or ValueError where a process cannot be served, with the reason and what serves it."""

    @abstractmethod
    def __call__(
        self, process: ForwardProcess, weight: Float64[Tensor, "B L"], x: Tokens, z: Tokens, t: Times
    ) -> Float64[Tensor, "B L"]:
        """The weight in training, finite and not negative; 0 wherever the bound's is, as at the tokens of a hierarchy.

        Args:
            process: the noise.
            weight: (B, L) of the bound, ``process.loss_weight(x, z, t)``, in float64.
            x: (B, L) clean tokens.
            z: (B, L) noisy states.
            t: (B,) times, or (B, L); ``ddlib.processes.beside`` places what depends on them beside the weights.
        """

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a registered class is verified; override where the constructor needs arguments."""
        return [cls()]

    def __repr__(self) -> str:
        return shown(self, Weighting)


def weighted(
    weighting: Weighting | None, process: ForwardProcess, weight: PerToken, x: Tokens, z: Tokens, t: Times
) -> PerToken:
    """The weights as a loss takes them: the bound's own without a weighting, else what that makes of them.

    Raises:
        ValueError: a weighting that gives another shape, NaN or something negative.
    """
    if weighting is None:
        return weight
    found = weighting(process, weight.to(torch.float64), x, z, t)
    require(found.shape == z.shape, f"{weighting!r} gives weights of shape {tuple(found.shape)}, z {tuple(z.shape)}")
    if visible(found) and not bool((found >= 0).all()):
        raise ValueError(f"{weighting!r} gives the weight {float(found.min())}, must be 0 or more")
    return found


def optional(weighting: Weighting | None) -> Weighting | None:
    """The argument of a weighting that changes another's.

    Raises:
        TypeError: it is none.
    """
    if weighting is not None and not isinstance(weighting, Weighting):
        raise TypeError(f"weighting is {weighting!r}, must be a ddlib.weightings.Weighting or None")
    return weighting
