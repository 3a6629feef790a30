"""Base class of weightings, the factors by which a training loss multiplies the divergences."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.processes import ForwardProcess
from ddlib.typing import PerToken, Times, Tokens
from ddlib.utils.agreement import holds
from ddlib.utils.repr import format_part
from ddlib.utils.validation import due, refuse


class Weighting(Part):
    """Weights of the training loss in place of the weights of the bound.

    A subclass implements ``__call__``.

    The bound is the mean of weight times divergence. A weighting replaces the weight and leaves the
    divergence: it multiplies the bound's integrand by the new weight over ``process.loss_weight``,
    in float64. Where both depend on state and time alone, as for masks and hierarchies, this
    determines how much each state counts, and the optimal prediction stays the same. Where the
    bound's weight also depends on the token, as for uniform noise and without a closed form, a
    weighting that limits it moves the optimum at a state towards tokens of smaller weight. A weight
    must not depend on the network or on other rows of the batch.
    """

    @property
    def bound(self) -> bool:
        """True if all weights are unchanged, so that the loss is the bound.

        ``is_bound`` reads it, and not from a subclass that overrides ``__call__`` alone.
        """
        return False

    @property
    def limit(self) -> float:
        """Weight of the bound above which the weighting clips; infinity if it does not."""
        return math.inf

    @property
    def about(self) -> str:
        """Short description printed beside a loss; may be empty."""
        return repr(self)

    def check(self, process: ForwardProcess) -> None:  # most weightings support every process
        """Raise TypeError or ValueError if the process is not supported, with the reason and an
        alternative.
        """

    @abstractmethod
    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        """Return the training weights, finite and nonnegative; 0 wherever the bound's weight is 0.

        Args:
            process: the forward process.
            weight: (B, L) weights of the bound, ``process.loss_weight(x, z, t)``, in float64.
            x: (B, L) clean tokens.
            z: (B, L) noisy states.
            t: (B,) times, or (B, L); ``ddlib.processes.unsqueeze_times`` makes functions of (B,)
                times broadcast with the weights.
        """

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Instances on which a registered class is verified.

        Override if the constructor requires arguments.
        """
        return [cls()]

    def __repr__(self) -> str:
        return format_part(self, Weighting)


def is_bound(weighting: Weighting | None) -> bool:
    """Return whether a loss with this weighting is the bound: its ``bound``, and True for None.

    False for a subclass that overrides ``__call__`` and inherits ``bound`` from a class with
    another ``__call__``.
    """
    return weighting is None or (weighting.bound and holds(type(weighting), "bound", "__call__"))


def loss_weights(
    weighting: Weighting | None,
    process: ForwardProcess,
    weight: PerToken,
    x: Tokens,
    z: Tokens,
    t: Times,
) -> PerToken:
    """Return the weights of a loss: the bound's weights if ``weighting`` is None, else the result
    of the weighting.

    Raises:
        TypeError: the weighting returns no tensor.
        ValueError: it returns another shape, NaN or a negative weight.
    """
    if weighting is None:
        return weight
    new_weight = weighting(process, weight.to(torch.float64), x, z, t)
    if not isinstance(new_weight, Tensor):
        raise TypeError(
            f"{weighting!r} returns a {type(new_weight).__name__}, must return a tensor of the "
            f"shape of z, {tuple(z.shape)}"
        )
    if new_weight.shape != z.shape:
        raise ValueError(
            f"{weighting!r} returns weights of shape {tuple(new_weight.shape)}, must be that of z, "
            f"{tuple(z.shape)}"
        )
    if due(new_weight) and not bool((new_weight >= 0).all()):
        refuse(f"{weighting!r} returns the weight {float(new_weight.min())}, must be 0 or more")
    return new_weight
