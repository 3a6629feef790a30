"""Base class of guidance: a denoiser that combines the predictions of other models."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.guidance.targets import ChildTarget, StepTarget, TokenTarget
from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import Parameterization, layout_of
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.typing import Denoiser, StateProbs, Times, Tokens
from ddlib.utils.validation import check_interval, check_number, require

Strength = float | Callable[[float], float]
"""A number, or a function of the time t (1 is noise, 0 is data)."""

_PLACES = ("tokens", "states")


class Guidance(Part):
    """A denoiser ``(z, t) -> logits`` that steers other models.

    Pass it to samplers with its ``parameterization``.

    ``on`` selects the distribution that is steered. "tokens": the distribution of the clean token
    at each position. "states": the distribution of the next state. In a plain hierarchy these are
    the children of the current state; the logits are child logits, (B, L, S - 1), and every sampler
    uses them edge by edge. For masked diffusion both are the same. In other processes no
    distribution of clean tokens gives the steered distribution of z_s. There ``step_distribution``
    returns it directly, and the sampler ``Ancestral`` draws from it. Jump times, and the levels
    that positions jump to, are not steered if they do not depend on the network.

    A guidance takes a time per position, and so supports paces, if all parts that it evaluates do
    (``own_times``). It has no cache of earlier blocks.

    A subclass calls ``super().__init__``, sets ``parts`` and ``outside``, and implements
    ``special_cases``, ``steer`` and ``examples``.

    Args:
        process: the forward process.
        strength: a number, or a function of the time.
        on: "tokens" or "states".
        interval: two times; outside this interval the strength is ``outside``.
        parameterization: meaning of the logits of the denoising parts, as in ``nelbo``; None for
            their attribute of that name, or "cavity" without one.
        denoisers: the denoising parts, by name, whose attribute is read.

    Raises:
        TypeError: not a process; a strength that is neither a number nor a function.
        ValueError: a strength below ``least`` or not finite, another ``on``, an interval outside
            [0, 1] or of width 0, an unknown parameterization; denoisers that state different ones.
    """

    parts: ClassVar[tuple[str, ...]]
    """Names of the arguments that are models."""

    outside: ClassVar[float]
    """Strength outside ``interval``."""

    least: ClassVar[float] = -1e6
    """Smallest strength."""

    def __init__(
        self,
        process: ForwardProcess,
        strength: Strength,
        on: str,
        interval: Sequence[float],
        parameterization: Parameterization | None,
        denoisers: Mapping[str, Denoiser] | None = None,
    ) -> None:
        if not isinstance(process, ForwardProcess):
            raise TypeError(f"process is {process!r}, must be a ddlib.processes.ForwardProcess")
        for name in ("parts", "outside"):
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no attribute {name}, must set it")
        self.process = process
        self.strength = (
            strength if callable(strength) else self._check_strength("strength", strength)
        )
        require(on in _PLACES, f"on is {on!r}, must be one of {', '.join(map(repr, _PLACES))}")
        self.on = on
        self.interval = check_interval(interval)
        self.of_parts = (
            _common_parameterization(denoisers or {})
            if parameterization is None
            else parameterization
        )
        self.declare(parameterization=parameterization)
        layout_of(process, self.of_parts)  # raises if unknown
        self._place = place_of(process) if on == "states" else TokenTarget
        if self._place is ChildTarget:
            layout_of(process, "children")  # raises if a state has no children

    @property
    @abstractmethod
    def special_cases(self) -> Mapping[float, Denoiser]:
        """Strengths at which the guidance equals one of its parts.

        Then only that part is called.
        """

    @abstractmethod
    def steer(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        """Compute steered, unnormalised log-probabilities over the choices of a target."""

    @property
    def parameterization(self) -> Parameterization:
        """Meaning of its logits, for ``dd.sample``, ``dd.bound`` and ``nelbo``."""
        if self._alone is not None:
            return self.of_parts
        return "children" if self._place is ChildTarget else "cavity"

    @property
    def has_step_distribution(self) -> bool:
        """True if samplers draw from ``step_distribution``, as no distribution of tokens is the
        steered one.
        """
        return self._place is StepTarget and self._alone is None

    def step_distribution(self, z: Tokens, t: Times, s: Times) -> StateProbs:
        """Compute unnormalised log-probabilities of z_s, (B, L, S).

        Requires ``has_step_distribution``.

        Args:
            z: (B, L) states at ``t``.
            t: (B,) times.
            s: (B,) earlier times.

        Raises:
            TypeError: the logits suffice.
        """
        if not self.has_step_distribution:
            raise TypeError(
                f"{self!r} has no step distribution: its logits have the parameterization of the "
                "guided network"
            )
        return self.steer(StepTarget(self.process, self.of_parts, z, t, s))

    def __call__(self, z: Tokens, t: Times) -> Float[Tensor, "B L K"]:
        """Compute the steered logits."""
        if self._alone is not None:
            return self._alone(z, t)
        place = self._place
        if place is StepTarget:
            if bool((t > 0).any()):
                raise TypeError(
                    f"{self!r} guides the distribution of the next state, which cannot be "
                    "expressed as a token "
                    f"distribution of {type(self.process).__name__}: use the sampler Ancestral, or "
                    "on='tokens', which "
                    "all samplers support"
                )
            place = TokenTarget  # at t = 0 only the token remains to be predicted
        return self.steer(place(self.process, self.of_parts, z, t))

    @property
    def evaluated_parts(self) -> Mapping[str, Any]:
        """The parts that are evaluated, by argument name."""
        parts = {name: getattr(self, name) for name in self.parts}
        return {
            name: part for name, part in parts.items() if self._alone is None or part is self._alone
        }

    @property
    def own_times(self) -> bool:
        """True if a time per position is accepted (``typing.OwnTimes``), i.e. if all evaluated
        parts accept it.
        """
        return all(Capabilities.of(part).own_times for part in self.evaluated_parts.values())

    def strength_at(self, t: Times) -> Float64[Tensor, "*n"]:
        """Compute the strength at times (B,) or (B, L), in the shape of ``t``.

        Raises:
            TypeError, ValueError: a function that does not return a number in range.
        """
        if callable(self.strength):  # called once for each distinct time
            times, inverse = t.unique(return_inverse=True)
            values = [
                self._check_strength(f"strength({u:g})", self.strength(u)) for u in times.tolist()
            ]
            strength = torch.tensor(values, dtype=torch.float64, device=t.device)[inverse]
        else:
            strength = torch.full(t.shape, self.strength, dtype=torch.float64, device=t.device)
        low, high = self.interval
        return torch.where((t >= low) & (t <= high), strength, self.outside)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some constructor arguments replaced, such as the strength."""
        return type(self)(**(dict(self.arguments()) | changes))

    def evaluate(self, place: TokenTarget, *names: str) -> list[Float[Tensor, "B L n"]]:
        """Evaluate the named parts and return their log-probabilities; errors name the part.

        Raises:
            TypeError, ValueError: invalid logits, as in ``nelbo``; parts with different
                vocabularies.
        """
        parts: dict[str, Denoiser] = {name: getattr(self, name) for name in names}
        # copies, since a part may write into its input
        outputs = {name: part(place.z.clone(), place.network_time) for name, part in parts.items()}
        widths = {
            name: logits.shape[-1] for name, logits in outputs.items() if isinstance(logits, Tensor)
        }
        check_widths(widths)
        log_probs = []
        for name, logits in outputs.items():
            try:
                log_probs.append(place.choice_logits(logits))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
        return log_probs

    def __repr__(self) -> str:
        fields = [repr(self.process), f"strength={self.strength!r}", f"on={self.on!r}"]
        fields += [f"interval={self.interval}"] * (self.interval != (0.0, 1.0))
        return f"{type(self).__name__}({', '.join(fields)})"

    @property
    def _alone(self) -> Denoiser | None:
        """The only part that is evaluated, if the strength is a special case at all times.

        Else None.
        """
        if callable(self.strength):
            return None
        everywhere = self.interval == (0.0, 1.0) or self.strength == self.outside
        return self.special_cases.get(self.strength) if everywhere else None

    def _check_strength(self, name: str, value: float) -> float:
        return check_number(
            name, value, self.least, 1e6, f"between {self.least:g} and 1e+06, or a function of t"
        )

    @classmethod
    @abstractmethod
    def examples(cls) -> Sequence[Self]:
        """Instances on which a class is verified."""


def check_part(name: str, part: Any, rule: str) -> None:
    """Raise TypeError, with the argument's name, unless a part is callable."""
    if not callable(part):
        raise TypeError(f"{name} is {part!r}, must be {rule}")


def check_widths(widths: Mapping[str, int]) -> None:
    """Raise ValueError unless the logits of all parts have the same number of columns."""
    listed = " and ".join(f"{name} has {columns} columns" for name, columns in widths.items())
    require(len(set(widths.values())) <= 1, f"{listed}, must have the same number: one vocabulary")


def _common_parameterization(denoisers: Mapping[str, Denoiser]) -> Parameterization:
    """Return the meaning of the logits that all denoisers state; "cavity" for none."""
    meanings = {name: Capabilities.of(part).parameterization for name, part in denoisers.items()}
    listing = ", ".join(f"{name} has {meaning!r}" for name, meaning in meanings.items())
    require(len({*meanings.values()}) < 2, f"parameterization is None, must be given: {listing}")
    return next(iter(meanings.values()), "cavity")


def place_of(process: ForwardProcess) -> type[TokenTarget]:
    """Return the target that determines the next state: tokens, children, or the state after the
    step itself.
    """
    edges = range(1, len(process.levels))
    if not isinstance(process, LevelProcess) or not all(
        process.subtree_logits_suffice(i, i - 1) for i in edges
    ):
        return StepTarget
    if len(edges) == 1:
        return TokenTarget
    return StepTarget if process.hierarchy is None else ChildTarget
