"""Ancestral sampling that takes words back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.checks import check_number, require
from ddlib.samplers.base import Run, Sampler, State, at
from ddlib.samplers.landing import exchange

_RULES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cap": torch.minimum,
    "rescale": torch.mul,
}


class Remask(Sampler):
    r"""Lets some tokens climb again, and as many more come down: a word drawn too early is drawn anew.

    On each edge of the hierarchy a token that would stay climbs with probability :math:`\sigma_i`, and tokens above
    that would stay come down in its place, so that every level keeps its law at every time (theory section 8). For
    masks it is ReMDM (Wang et al., 2025), :math:`\sigma \le \min(1, (1 - \alpha_s) / \alpha_t)`:

        cap      sigma = min(eta, most)
        rescale  sigma = eta most

    In a hierarchy a word climbs to a cluster, which forgets the word and keeps its meaning. Climbing needs no network.
    With ``eta = 0`` it is ``Ancestral``, to the bit. Needs a process with levels; ``Psi`` serves any.

    Args:
        eta: in [0, 1], how much is taken back.
        rule: "cap" or "rescale".
        lift: one factor in [0, 1] per edge, words' edge first, by which ``eta`` is multiplied; default all 1.
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.

    Raises:
        TypeError, ValueError: eta or a factor outside [0, 1], another rule; when sampling, another number of factors
            than the process has edges, or a process without levels.
    """

    def __init__(
        self, eta: float = 0.02, rule: str = "cap", lift: Sequence[float] | None = None, force_transition: bool = False
    ) -> None:
        self.eta = check_number("eta", eta, 0, 1, "in [0, 1]")
        require(rule in _RULES, f"rule is {rule!r}, must be one of {', '.join(map(repr, _RULES))}")
        self.rule = rule
        factors = [check_number(f"lift[{i}]", value, 0, 1, "in [0, 1]") for i, value in enumerate(lift or ())]
        self.lift = None if lift is None else tuple(factors)
        self.force_transition = force_transition

    def init(self, run: Run) -> State:
        """As for every sampler, after the process was asked whether it has levels."""
        edges = len(run.process.levels) - 1
        if run.process.most_lift(at(run, 0), at(run, 1)) is None:
            raise TypeError(
                f"{type(self).__name__} needs a process with levels, {run.process!r} has none: Psi serves it"
            )
        if self.lift is not None:
            require(len(self.lift) == edges, f"lift has {len(self.lift)} entries, must have {edges}: one per edge")
        return super().init(run)

    def step(self, run: Run, state: State, k: int) -> State:
        t, s = at(run, k), at(run, k + 1)
        most = run.process.most_lift(t, s) if self.eta else None
        sigma = None if most is None else self.sigma(most)
        return State(exchange(run, state.z, t, s, sigma, self.force_transition), s)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5), cls(1.0, "rescale")]  # so much that a mistake shows

    def sigma(self, most: Float64[Tensor, "B n"]) -> Float64[Tensor, "B n"]:
        """The chance to climb each edge, given the largest that there may be."""
        factors = torch.ones(most.shape[1]) if self.lift is None else torch.tensor(self.lift)
        return _RULES[self.rule](most, (self.eta * factors.to(most)).expand_as(most))
