"""Weighting that normalises the bound's integrand by its standard deviation."""

from typing import Any
from weakref import WeakKeyDictionary

from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.times import Tabulated
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_count
from ddlib.weightings.base import Weighting


class Optimal(Weighting):
    r"""Weights of the bound divided by the standard deviation of the integrand.

    All times have equal magnitude.

    .. math:: w'(z, t) = \frac{w(z, t)}{C \sqrt{m(t)^2 + v(t) / L}}

    with m and v the mean and the variance of the bound's integrand at one position (theory section
    12). The denominator is the root mean square of the loss per token of a sequence of L tokens at
    time t. The standard deviation about the mean would vanish at t = 1, where all positions are
    noise. The factor is computed once per process from ``process.time_density(length)``; C
    normalises its mean over times to 1.

    Args:
        length: number of tokens L over which terms are summed; 1 for single tokens.

    Raises:
        TypeError, ValueError: length not an integer of at least 1.
    """

    def __init__(self, length: int = 1) -> None:
        self.length = check_count("length", length)
        self._densities: WeakKeyDictionary[ForwardProcess, Tabulated] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Attributes without the cached densities, whose keys are weak references.

        They cannot be pickled.
        """
        return {name: value for name, value in vars(self).items() if name != "_densities"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._densities = WeakKeyDictionary()

    @property
    def about(self) -> str:
        return f"equal magnitude at all times, for {self.length} token{'s' * (self.length > 1)}"

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        return weight * unsqueeze_times(self.factor(process, t))

    def factor(self, process: ForwardProcess, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Compute 1 / (C sqrt(m^2 + v / L)) at times of any shape.

        Raises:
            TypeError, ValueError: as ``process.time_density``.
        """
        density = self._densities.get(process)
        if density is None:
            density = self._densities[process] = process.time_density(self.length)
        mean = (density.edges.diff().square() / density.masses).sum()
        return density.weight(t) / mean.to(t.device)
