"""Base class of paces, i.e. paths of per-position times, draws of times with their weights, and the
default pace.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.times import TimeDensity
from ddlib.times.base import Interval, check_density, check_interval, position_in, time_in
from ddlib.times.draws import (
    WeightedTimes,
    latest_time,
    round_times,
    stratified_uniforms,
    times_of_uniforms,
)
from ddlib.typing import Times
from ddlib.utils.agreement import check_agreement
from ddlib.utils.derivative import derivative
from ddlib.utils.random import Generator, rand
from ddlib.utils.repr import format_part
from ddlib.utils.validation import check_count, check_roughly, due, require


class Draw(NamedTuple):
    """Drawn times of a batch, and the weight of each position's term of the bound."""

    t: Times
    """(B,) if all positions of a sequence share their time, else (B, L)."""
    measure: Float64[Tensor, "*n"]
    """Importance weight of the bound's integrand or discrete term, shaped like ``t``; 0 where
    positions do not move.
    """
    s: Times | None = None
    """The previous grid time, shaped like ``t``, if the bound is in discrete time."""
    u: Times | None = None
    """(B,) path parameter of each sequence, or its time if it has only one; None if blocks have
    separate parameters.
    """


_PLACES = 64
"""Number of places at which the speeds of a pace are added up in a check."""
_ROUGHLY = 0.1


class Pace(Part):
    r"""Path of times :math:`t_l(u)`, u in [0, 1], one time for each position l of a sequence.

    Given the tokens, positions are noised independently. So the bound holds along any nondecreasing
    path that takes each position from 0 to 1 (theory section 14):

    .. math:: -\log p(x) \le
        \sum_l \int_0^1 t_l'(u)\, E[\mathrm{nelbo}_l \text{ at times } t(u)]\, du

    A subclass implements ``times``, and overrides ``speeds`` if automatic differentiation is not
    good enough. If positions move one after the other it also overrides ``parts``, the number of
    segments of [0, 1]; a density of times, or a grid of steps, then applies to each segment. A
    subclass with other ``times`` cannot inherit a closed form of ``speeds``, nor ``block``:
    TypeError.

    Example:
        >>> class Halves(Pace):
        ...     def times(self, u, chance):
        ...         late = torch.arange(chance.shape[1]) >= chance.shape[1] / 2
        ...         return (2 * u[:, None] - 1 + late.double()).clamp(0, 1)
        >>> Halves().times(torch.tensor([0.25, 0.75]), torch.zeros(2, 4)).tolist()
        [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]
    """

    random: bool = False
    """True if the path depends on ``chance``; otherwise no uniforms are drawn."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_agreement(cls, "times", "speeds", "block")

    @property
    def block(self) -> int | None:
        """Number of positions per block if blocks move one after the other from left to right, else
        None.

        Such sequences can be sampled block by block, and all blocks can be trained in one pass.
        """
        return None

    @abstractmethod
    def times(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "*n"]:
        """Compute the times of all positions, (B, L), or (B,) if all positions always share one
        time.

        Args:
            u: (B,) path parameter in [0, 1]: 0 is data, 1 is noise.
            chance: (B, L) uniforms, constant along the path of a sequence; zeros if the pace is not
                ``random``.
        """

    def speeds(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "*n"]:
        """Compute the derivative of ``times`` with respect to u, at least 0."""
        return derivative(lambda place: self.times(place, chance), u)

    def parts(self, length: int) -> int:
        """Return the number of equal segments of [0, 1], in each of which other positions move.

        Raises:
            ValueError: the pace does not support sequences of this length.
        """
        return 1

    def check(self, length: int, device: torch.device | str | None = None) -> None:
        """Raise ValueError unless each of ``length`` positions goes from time 0 to time 1, always
        on the same path, and without jumps.

        This is a rough check, once for each length; ``dd.verify`` checks more precisely.
        """
        if not check_roughly() or length in self._checked:
            return
        u = torch.linspace(0, 1, 2 * _PLACES + 1, dtype=torch.float64, device=device)
        chance = (torch.arange(length, dtype=torch.float64, device=device) + 0.5) / length
        chance = (chance if self.random else 0 * chance).expand(len(u), -1)
        path = self.check_path(self.times(u, chance), chance).detach()
        again = self.times(u, chance)
        require(
            torch.equal(path, again),
            f"{self!r}: two calls of times with the same arguments differ, must be equal: random "
            "paths depend on chance",
        )
        for end, row in ((0, path[0]), (1, path[-1])):
            off = float((row - end).abs().max())
            require(
                off < 1e-6,
                f"{self!r}: at u = {end} a position has the time {abs(end - off):.6g}, must be "
                f"{end}: each goes from 0 to 1",
            )
        if self.parts(length) == 1:  # else positions move within a few of these places
            speeds = self.check_path(self.speeds(u, chance), chance, limit=None)[1::2]
            off = float((speeds.detach().mean(0) - 1).abs().max())
            require(
                off < _ROUGHLY,
                f"{self!r}: the integral of the speeds of a position over [0, 1] differs from 1 by "
                f"{off:.3g}, must be 1: times rise from 0 to 1 without jumps",
            )
        self._checked.add(length)

    @cached_property
    def _checked(self) -> set[int]:
        """Lengths whose paths were checked."""
        return set()

    def draw(
        self,
        rows: int,
        length: int,
        generator: Generator = None,
        *,
        density: TimeDensity | None = None,
        interval: Interval = (0.0, 1.0),
        steps: int | None = None,
        at_once: bool = False,
        weigh: bool = True,
        device: torch.device | str | None = None,
    ) -> Draw:
        """Draw times for a batch of sequences: one path parameter per sequence.

        The mean over draws of ``measure`` times the bound's integrand, summed over positions, is
        the bound. Path parameters are stratified over the whole path, and keyed, as in
        ``sample_times``.

        Times are rounded to torch's default dtype; those of a grid are float64. A time below 1 is
        never rounded up to
        1. Beyond the last representable time before 1, where a bound ends, the measure is 0.

        Args:
            rows: number of sequences; with a KeyedGenerator the length of its index.
            length: number of positions of each sequence.
            generator: source of randomness.
            density: density of the path parameter within a segment; None is uniform.
            interval: range of the times of each position, 0 <= low < high <= 1.
            steps: number of steps of an even grid in each segment, for the bound in discrete time.
            at_once: whether every block of a sequence gets a separate path parameter, evenly
                spread, and counts separately. For denoisers that take the clean sequence beside the
                noisy one (``typing.BlockDenoiser``).
            weigh: whether the measure is divided by the density, as an unbiased bound requires.
                Without it a training loss puts more weight on times that are drawn more often.
                False is not allowed with ``steps``, whose measure includes the number of steps.
            device: default the generator's device.

        Raises:
            TypeError, ValueError: as ``sample_times``; a length that the pace does not support;
                ``at_once`` for a pace without blocks; times that are negative, above 1 or of
                another shape or type; speeds that are negative or not finite.
        """
        parts = self.parts(check_count("length", length))
        size = self.block
        density = check_density(density)
        check_interval(interval)
        require(
            weigh or steps is None,
            f"weigh is False and steps is {steps}, must be None: the bound in discrete time is "
            "weighted",
        )
        if at_once and size is None:
            raise TypeError(f"at_once is True, which {self!r} does not support: it has no blocks")
        unit = stratified_uniforms(rows, generator, device)
        self.check(length, unit.device)

        dtype = torch.get_default_dtype() if steps is None else torch.float64

        def times_of(unit: Tensor) -> WeightedTimes:
            place = times_of_uniforms(unit, density, interval, steps)
            return place if weigh else place._replace(weight=torch.ones_like(place.weight))

        def until_last(
            measure: Tensor, time: Tensor
        ) -> Tensor:  # the bound accounts for the rest separately
            return measure.masked_fill(time > latest_time(dtype), 0.0)

        if at_once and size is not None:
            turn = torch.arange(parts, dtype=torch.float64, device=unit.device) / parts
            place = times_of((unit[:, None] + turn) % 1)
            exact, counts, s = (
                values.repeat_interleave(size, 1) for values in (place.t, place.weight, place.s)
            )
            if steps is not None:
                return Draw(exact, counts, s)
            t = round_times(exact)
            return Draw(t, until_last(counts, exact))
        # all at once if there is one part
        part = (unit * parts).floor() if parts > 1 else None
        place = times_of(unit if part is None else unit * parts - part)
        chance = torch.zeros(rows, length, dtype=torch.float64, device=unit.device)
        if self.random:
            chance = rand(chance.shape, generator, unit.device)

        def along(time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            share = position_in(interval, time)
            u = share if part is None else (part + share) / parts
            path = self.check_path(self.times(u, chance), chance)
            exact = time_in(interval, path)
            # a position that rests at noise has time 1 exactly; one that moves is never rounded up
            # to it
            moves = torch.minimum(path, exact) < 1
            rounded = exact.to(dtype)
            return u, exact, torch.where(moves, round_times(rounded, dtype), rounded)

        u, exact, t = along(place.t)
        counts, where = (place.weight, t) if t.ndim == 1 else (place.weight[:, None], u)
        if steps is None:
            speeds = self.check_path(self.speeds(u, chance), chance, limit=None)
            if speeds.ndim > t.ndim:
                rule = f"must be that of times, {tuple(t.shape)}, or (B,)"
                raise ValueError(f"{self!r}: speeds have shape {tuple(speeds.shape)}, {rule}")
            speeds = speeds[:, None].expand(t.shape) if speeds.ndim < t.ndim else speeds
            return Draw(t, until_last(speeds * counts, exact), u=where)
        s = along(place.s)[2]
        # positions that rest have no term
        return Draw(t, torch.where(s < t, parts * counts, 0.0), s, where)

    def check_path(self, values: Tensor, chance: Tensor, limit: float | None = 1.0) -> Tensor:
        """Check type, shape and range of times, or of speeds if ``limit`` is None, and return
        them.
        """
        kind = "speeds" if limit is None else "times"
        shapes = (chance.shape, chance.shape[:1])
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(
                f"{self!r}: {kind} have type {got}, must be a floating-point tensor (B, L) or (B,)"
            )
        wrong = ""
        if values.shape not in shapes:
            wrong = (
                f"have shape {tuple(values.shape)}, must be (B, L) = {tuple(chance.shape)}, or (B,)"
            )
        elif due(values):
            low, high = (float(end) for end in values.detach().aminmax())
            if not low >= 0:
                wrong = f"hold {low:g}, must be at least 0"
            elif not high < torch.inf:
                wrong = f"hold {high:g}, must be finite"
            elif limit is not None and high > limit:
                wrong = f"hold {high:g}, must be at most {limit}"
        require(not wrong, wrong and f"{self!r}: {kind} {wrong}")
        return values

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Instances on which a registered class is verified.

        Override if the constructor requires arguments.
        """
        return [cls()]

    def __repr__(self) -> str:
        return format_part(self, Pace)


class Together(Pace):
    """One time for all positions of a sequence, t = u, as in ordinary diffusion.

    Bounds and samplers have faster forms for it, so it has no subclasses.
    """

    def __init_subclass__(cls) -> None:
        raise TypeError(f"{cls.__name__} derives from Together, must derive from ddlib.paces.Pace")

    def times(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B"]:
        return u

    def speeds(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B"]:
        return u.new_ones(u.shape)


_TOGETHER = Together()


def check_pace(pace: object) -> Pace:
    """Return the pace; without one a single time for all positions.

    Raises:
        TypeError: not a pace.
    """
    if pace is None:
        return _TOGETHER
    if not isinstance(pace, Pace):
        raise TypeError(
            f"pace is {pace!r}, must be a ddlib.paces.Pace object such as Blocks(32), or None"
        )
    return pace
