"""Transformations of the weights of the bound."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, interior, unsqueeze_times
from ddlib.times import Tabulated
from ddlib.typing import Interpolating, Times, Tokens
from ddlib.utils.precision import numbers_on
from ddlib.utils.validation import check_count, check_flag, check_number, require
from ddlib.weightings.base import Weighting, is_bound, loss_weights


class Clip(Weighting):
    """Weights of the bound, clipped to an interval, so that a few draws with huge weights do not
    dominate the loss.

    HDLM and GIDD clip at 2 or 10. Without arguments the weights are those of the bound.

    Args:
        high: the largest weight, in nats per nat of divergence; default no limit.
        low: the smallest nonzero weight.

    Raises:
        TypeError: not numbers.
        ValueError: NaN, or not 0 <= low <= high, high > 0.
    """

    def __init__(self, high: float | None = None, *, low: float = 0.0) -> None:
        self.declare(high=high)
        high = math.inf if high is None else high  # in a YAML file, null stands for no limit
        for name, value in (("high", high), ("low", low)):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} is {value!r}, must be a number")
        require(
            0 <= low <= high and high > 0,
            f"low is {low}, high {high}, must be 0 <= low <= high, high > 0",
        )
        self.high, self.low = float(high), float(low)

    @property
    def bound(self) -> bool:
        return self.high == math.inf and self.low == 0

    @property
    def limit(self) -> float:
        return self.high

    @property
    def about(self) -> str:
        clipped = (
            [f"clipped at {self.high:g}"]
            if self.high < math.inf
            else []
            if self.low
            else ["not clipped"]
        )
        return ", ".join(clipped + [f"no weight below {self.low:g}"] * (self.low > 0))

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        return torch.where(weight > 0, weight.clamp(self.low, self.high), 0.0)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(2.0), cls(10.0, low=0.5)]


class Constant(Weighting):
    """One constant in place of every nonzero weight.

    For masks the loss is the mean cross-entropy of masked tokens.

    Args:
        value: the weight, in nats per nat of divergence.

    Raises:
        TypeError, ValueError: not a number in (0, 1e6].
    """

    def __init__(self, value: float = 1.0) -> None:
        self.value = check_number("value", value, 1e-6, 1e6, "in [1e-6, 1e6]")

    @property
    def about(self) -> str:
        return f"all weights {self.value:g}"

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        return torch.where(weight > 0, self.value, 0.0).to(weight)


class PerLevel(Weighting):
    """One factor per level above the tokens: in a hierarchy (token loss, cluster loss, ...), else
    one for the mask.

    The weights of tokens (level 0) are unchanged.

    Args:
        factors: one number for each level 1..n of ``process.levels``.
        weighting: weights that are multiplied; default those of the bound.

    Raises:
        TypeError: factors that are not numbers; ``weighting`` is not a weighting.
        ValueError: a factor outside [0, 1e6], or no factors.
    """

    def __init__(self, factors: Sequence[float], weighting: Weighting | None = None) -> None:
        if not isinstance(factors, Sequence) or isinstance(factors, str):
            raise TypeError(
                f"factors is {factors!r}, must be a list of numbers, one per level above the tokens"
            )
        rule = "in [0, 1e6]"
        self.factors = tuple(
            check_number(f"factors[{i}]", v, 0, 1e6, rule) for i, v in enumerate(factors)
        )
        require(
            len(self.factors) > 0,
            "factors is empty, must have one factor per level above the tokens",
        )
        if weighting is not None and not isinstance(weighting, Weighting):
            raise TypeError(
                f"weighting is {weighting!r}, must be a ddlib.weightings.Weighting or None"
            )
        self.weighting = weighting

    @property
    def bound(self) -> bool:
        return set(self.factors) == {1.0} and is_bound(self.weighting)

    @property
    def limit(self) -> float:
        return math.inf if self.weighting is None else self.weighting.limit

    @property
    def about(self) -> str:
        inner = "" if self.weighting is None else f"{self.weighting.about}, "
        return f"{inner}levels times {', '.join(f'{factor:g}' for factor in self.factors)}"

    def check(self, process: ForwardProcess) -> None:
        depth = len(process.levels) - 1
        if depth == 0:
            raise TypeError(
                f"factors is {self.factors}, {type(process).__name__} has only tokens: no level "
                "above them to weight"
            )
        require(
            len(self.factors) == depth,
            f"factors has {len(self.factors)} entries, must have {depth}: one per level above the "
            "tokens",
        )
        if self.weighting is not None:
            self.weighting.check(process)

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        factors = numbers_on(z.device, [1.0, *self.factors])
        return loss_weights(self.weighting, process, weight, x, z, t) * factors[process.level_of(z)]

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls([2.0]), cls([2.0, 0.5]), cls([1.0, 0.0, 3.0])]


class Dynamic(Weighting):
    r"""GIDD's dynamic weights (von Rütte et al., 2503.04482): constant for noise, time-dependent
    for kept tokens.

    .. math:: w = \frac{h}{2} \Bigl( 1 + \delta_{z,m}
        + \bigl( \tfrac{B}{N} e^{-\lambda_t / 2} - 1 \bigr)
        \delta_{z,x} \Bigr), \qquad \lambda_t = \log \frac{\alpha_t}{1 - \alpha_t},

    at most h: masks have weight h, other tokens h/2, and the clean token nearly 0, as in the bound.
    With an exponent :math:`\gamma` of the mixing schedule the authors' code uses :math:`e^{-\gamma
    \lambda_t / 2}`; for the paper's exponent 1 both agree. Weights that are 0 in the bound stay 0.

    Since release 1.1 the authors' code uses :math:`e^{\gamma \sigma(-t) / 2}` instead, which hardly
    depends on t: with 50,000 tokens and 10 % uniform noise it is 1.2e-5 instead of 1e-6 to 1e-4.
    Their published checkpoints are older.

    Args:
        high: h, twice the paper's :math:`w_{max}`.
        released: whether the weight of the clean token follows the authors' code since release 1.1.

    Raises:
        TypeError, ValueError: high not in (0, 1e6].
    """

    def __init__(self, high: float = 2.0, released: bool = False) -> None:
        self.high = check_number("high", high, 1e-6, 1e6, "in [1e-6, 1e6]")
        self.released = check_flag("released", released)

    @property
    def about(self) -> str:
        return f"dynamic weights up to {self.high:g}" + ", as released" * self.released

    def check(self, process: ForwardProcess) -> None:
        self._mixing(process)

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        mixing = self._mixing(process)
        t = unsqueeze_times(t)
        keep = mixing.mixture(interior(t)).keep
        half = mixing.gamma / 2
        odds = (
            (half * torch.sigmoid(-t.to(keep))).exp()
            if self.released
            else ((1 - keep) / keep) ** half
        )
        clean_share = (mixing.scale * odds).clamp_max(2.0)
        share = torch.where(z == x, clean_share, torch.where(z < process.vocab_size, 1.0, 2.0))
        return torch.where(weight > 0, self.high / 2 * share, 0.0)

    def _mixing(self, process: ForwardProcess) -> Interpolating:
        if not isinstance(process, Interpolating):
            raise TypeError(
                f"{self!r} requires the mixing schedule of GIDD, {type(process).__name__} has none "
                "(no scale, gamma "
                f"and mixture): use Clip({self.high:g}) or Constant(), which support every process"
            )
        return process

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(1.0, released=True)]


class Optimal(Weighting):
    r"""Weights of the bound divided by the standard deviation of the integrand: all times have
    equal magnitude.

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
        """Attributes without the cached densities, whose keys are weak references: they cannot be
        pickled.
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
        # C, the mean of 1/g over uniform times: 1/g is width over mass in each cell
        mean = (density.edges.diff().square() / density.masses).sum()
        return density.weight(t) / mean.to(t.device)
