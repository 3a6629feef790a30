"""The contract of a guidance: a denoiser made of others, which steers them."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.guidance.targets import ChildTarget, StepTarget, TokenTarget
from ddlib.parameterization.logits import Parameterization, takes_own_times, tree_of
from ddlib.parameterization.tree_softmax import children_of
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser, StateProbs, Times, Tokens
from ddlib.utils.renamed import Renamed
from ddlib.utils.validation import check_number, require

Strength = float | Callable[[float], float]
"""A number, or a function of the time, which runs from 1, noise, to 0."""

_PLACES = ("words", "states")


class Guidance(ABC):
    """A denoiser ``(z, t) -> logits`` that steers what others say; pass it on with its ``parameterization``.

    What is steered is said by ``on``. "tokens": the distribution of the token at each position. "states": the
    distribution of where the position goes next. In a plain hierarchy these are the children of its state; the logits
    are child logits, (B, L, S - 1), and every sampler goes by them edge by edge. For masks tokens and states are the
    same. In other processes no distribution of tokens tells a steered distribution of z_s, so ``step_distribution``
    tells it in its place, which ``Ancestral`` draws from. When positions jump, and over how many levels, is not
    steered: where that does not depend on the network it stays as it is.

    It may be told a time per position, and so follow a pace, where every part that is asked may (``own_times``). It
    keeps nothing about earlier blocks.

    A subclass calls ``super().__init__``, and says what it is made of by ``special_cases`` and how it steers by
    ``steer``.

    Args:
        process: the forward process.
        strength: a number, or a function of the time.
        on: "tokens" or "states".
        interval: two times; outside the strength is ``outside``.
        parameterization: what the logits of the parts mean, as in ``nelbo``.

    Raises:
        TypeError: no process, a strength that is neither a number nor a function.
        ValueError: a strength below ``least`` or not finite, another ``on``, an interval outside [0, 1] or without a
            width, an unknown parameterization.
    """

    parts: ClassVar[tuple[str, ...]]
    """The arguments that are called."""

    outside: ClassVar[float]
    """The strength outside ``interval``."""

    least: ClassVar[float] = -1e6
    """The smallest strength."""

    def __init__(
        self, process: ForwardProcess, strength: Strength, on: str, interval: Sequence[float],
        parameterization: Parameterization,
    ) -> None:  # fmt: skip
        if not isinstance(process, ForwardProcess):
            raise TypeError(f"process is {process!r}, must be a ddlib.processes.ForwardProcess")
        self.process = process
        self.strength = strength if callable(strength) else self._checked("strength", strength)
        require(on in _PLACES, f"on is {on!r}, must be one of {', '.join(map(repr, _PLACES))}")
        self.on = on
        require(len(interval) == 2, f"interval is {interval!r}, must be two times")
        low, high = (check_number(f"interval[{i}]", end, 0, 1, "in [0, 1]") for i, end in enumerate(interval))
        require(low < high, f"interval is {interval!r}, must be two times, the earlier first")
        self.interval = (low, high)
        tree_of(process, parameterization)  # refuses what it does not know
        self.of_parts = parameterization
        self._place = place_of(process) if on == "states" else TokenTarget
        if self._place is ChildTarget:
            assert process.hierarchy is not None
            children_of(process.hierarchy)  # refuses a state without children

    @property
    @abstractmethod
    def special_cases(self) -> Mapping[float, Denoiser]:
        """The part that it is at a strength, to the bit and without calling another."""

    @abstractmethod
    def steer(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        """Steered log-distributions at a place, not normalised."""

    @property
    def parameterization(self) -> Parameterization:
        """What its logits mean, for ``dd.sample``, ``dd.bound`` and ``nelbo``."""
        if self._alone is not None:
            return self.of_parts
        return "children" if self._place is ChildTarget else "cavity"

    @property
    def step_distribution(self) -> Callable[[Tokens, Times, Times], StateProbs] | None:
        """``(z, t, s)`` to the log-distribution of z_s, (B, L, S), not normalised; None where the logits tell it."""
        return self._step_distribution if self._place is StepTarget and self._alone is None else None

    def __call__(self, z: Tokens, t: Times) -> Float[Tensor, "B L K"]:
        """The steered logits."""
        if self._alone is not None:
            return self._alone(z, t)
        place = self._place
        if place is StepTarget:
            if bool((t > 0).any()):
                raise TypeError(
                    f"{self!r} tells the law of the state that comes next, which no law of words of "
                    f"{type(self.process).__name__} does: the sampler Ancestral draws from it; on='words' serves all"
                )
            place = TokenTarget  # nothing comes before t = 0 but the token itself
        return self.steer(place(self.process, self.of_parts, z, t))

    @property
    def heard(self) -> Mapping[str, Any]:
        """The parts that are asked, by the names of the arguments."""
        parts = {name: getattr(self, name) for name in self.parts}
        return {name: part for name, part in parts.items() if self._alone is None or part is self._alone}

    @property
    def own_times(self) -> bool:
        """Whether it may be told a time per position, ``typing.OwnTimes``: all parts that are asked say so."""
        return all(map(takes_own_times, self.heard.values()))

    def strength_at(self, t: Times) -> Float64[Tensor, "*n"]:
        """The strength at times (B,) or (B, L), of their shape.

        Raises:
            TypeError, ValueError: a function that gives no number in range.
        """
        if callable(self.strength):  # asked once for each time
            times, which = t.unique(return_inverse=True)
            said = [self._checked(f"strength({u:g})", self.strength(u)) for u in times.tolist()]
            strength = torch.tensor(said, dtype=torch.float64, device=t.device)[which]
        else:
            strength = torch.full(t.shape, self.strength, dtype=torch.float64, device=t.device)
        low, high = self.interval
        return torch.where((t >= low) & (t <= high), strength, self.outside)

    def replaced(self, **changes: Any) -> Self:
        """The same with other arguments of its constructor, such as another strength."""
        names = inspect.signature(type(self)).parameters
        own = {name: getattr(self, "of_parts" if name == "parameterization" else name) for name in names}
        return type(self)(**(own | changes))

    def evaluate(self, place: TokenTarget, *names: str) -> list[Float[Tensor, "B L n"]]:
        """The log-distributions of parts, by the names of the arguments; errors name them.

        Raises:
            TypeError, ValueError: logits as in ``nelbo``, or of parts with different vocabularies.
        """
        parts: dict[str, Denoiser] = {name: getattr(self, name) for name in names}
        said = {name: part(place.z, place.told) for name, part in parts.items()}
        widths = {name: logits.shape[-1] for name, logits in said.items() if isinstance(logits, Tensor)}
        check_widths(widths)
        laws = []
        for name, logits in said.items():
            try:
                laws.append(place.laws(logits))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
        return laws

    def __repr__(self) -> str:
        fields = [repr(self.process), f"strength={self.strength!r}", f"on={self.on!r}"]
        fields += [f"interval={self.interval}"] * (self.interval != (0.0, 1.0))
        return f"{type(self).__name__}({', '.join(fields)})"

    hear, limits, step_law = Renamed("evaluate"), Renamed("special_cases"), Renamed("step_distribution")

    @property
    def _alone(self) -> Denoiser | None:
        """The part that says everything, where one strength at all times makes it so."""
        if callable(self.strength):
            return None
        everywhere = self.interval == (0.0, 1.0) or self.strength == self.outside
        return self.special_cases.get(self.strength) if everywhere else None

    def _checked(self, name: str, value: float) -> float:
        return check_number(name, value, self.least, 1e6, f"between {self.least:g} and 1e+06, or a function of t")

    def _step_distribution(self, z: Tokens, t: Times, s: Times) -> StateProbs:
        return self.steer(StepTarget(self.process, self.of_parts, z, t, s))

    @classmethod
    @abstractmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a class is verified."""


def check_part(name: str, part: Any, rule: str) -> None:
    """Raises TypeError, naming the argument, unless a part can be called."""
    if not callable(part):
        raise TypeError(f"{name} is {part!r}, must be {rule}")


def check_widths(widths: Mapping[str, int]) -> None:
    """Raises ValueError unless all parts, by name, give logits with as many columns."""
    told = " and ".join(f"{name} has {columns} columns" for name, columns in widths.items())
    require(len(set(widths.values())) <= 1, f"{told}: they must be of one vocabulary")


def place_of(process: ForwardProcess) -> type[TokenTarget]:
    """Where the distribution of the next state lies: with the tokens, the children, or nowhere but in the step itself."""
    edges = range(1, len(process.levels))
    plain = process.hierarchy is not None and all(process.subtree_logits_suffice(level, level - 1) for level in edges)
    if not plain:
        return StepTarget
    return TokenTarget if len(edges) == 1 else ChildTarget
