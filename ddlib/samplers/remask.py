"""Ancestral sampling with remasking."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.processes import LevelProcess, unsqueeze_times
from ddlib.samplers.base import (
    Guarantees,
    Observer,
    Sampler,
    SamplingContext,
    State,
    at,
    level_process,
)
from ddlib.samplers.reverse_step import move, shift
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.state_draws import transition_log_prob
from ddlib.typing import Times
from ddlib.utils.precision import numbers_on
from ddlib.utils.random import rand
from ddlib.utils.validation import check_flag, check_number, require

_RULES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cap": torch.minimum,
    "rescale": torch.mul,
    "loop": torch.minimum,
    "confidence": torch.minimum,
}
_LOOP = {"t_on": 0.55, "t_off": 0.05, "plateau": 0.1}  # those of ReMDM's scripts


class Remask(Sampler):
    r"""Ancestral steps in which some tokens ascend a level and as many more descend, so that early
    tokens are redrawn.

    On each edge of the hierarchy, a position that would stay in its level ascends with probability
    :math:`\sigma_i`. Positions above that would stay descend in its place. The distribution of the
    levels thus stays the same at every time (theory section 8). For masks this is ReMDM (Wang et
    al., 2025), with :math:`\sigma \le most = \min(1, (1 - \alpha_s) / \alpha_t)`:

    - cap: sigma = min(eta, most);
    - rescale: sigma = eta most;
    - loop: ancestral steps to the time ``plateau``; there the time is constant and tokens ascend
      and descend with sigma = min(eta, most); then ancestral steps to 0;
    - confidence: sigma = min(eta, most) times the share of a position in exp(-psi), among the
      positions of its row that descended to its level; psi is the probability of its state when it
      was drawn.

    In a hierarchy a token ascends to its cluster, which retains part of the information. Ascending
    needs no network call. With ``eta = 0`` it is ``Ancestral``, to the bit, for "cap" and
    "rescale". It requires a process with levels; ``Psi`` supports every process.

    With "confidence", as published, tokens descend as if none ascended. The distribution of the
    levels is then not kept, and neither is that of sequences, as the least likely tokens are
    redrawn. psi is computed from the logits before temperature and truncation.

    Args:
        eta: in [0, 1], strength of remasking.
        rule: "cap", "rescale", "loop" or "confidence".
        lift: factors in [0, 1] of ``eta``, one per edge, starting at the tokens; default all 1.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
        t_on: for "loop", the time of the grid at which the plateau begins; default 0.55.
        t_off: for "loop", the time of the grid at which it ends; default 0.05.
        plateau: for "loop", the constant time of the process; default 0.1, at which nine of ten
            tokens are unmasked under the linear schedule.

    Raises:
        TypeError, ValueError: eta or a factor outside [0, 1]; another rule; times outside 1 > t_on
            > t_off > 0 or 1 > plateau > 0, or given for another rule than "loop"; when sampling,
            another number of factors than the process has edges, or a process without levels.
    """

    t_on: float
    t_off: float
    plateau: float

    requires = LevelProcess
    instead = "use Psi"

    def __init__(
        self,
        eta: float = 0.02,
        rule: str = "cap",
        lift: Sequence[float] | None = None,
        force_transition: bool = False,
        t_on: float | None = None,
        t_off: float | None = None,
        plateau: float | None = None,
    ) -> None:
        self.eta = check_number("eta", eta, 0, 1, "in [0, 1]")
        require(rule in _RULES, f"rule is {rule!r}, must be one of {', '.join(map(repr, _RULES))}")
        self.rule = rule
        factors = [
            check_number(f"lift[{i}]", value, 0, 1, "in [0, 1]")
            for i, value in enumerate(lift or ())
        ]
        self.lift = None if lift is None else tuple(factors)
        self.force_transition = check_flag("force_transition", force_transition)
        self.declare(t_on=t_on, t_off=t_off, plateau=plateau)
        for name, value in (("t_on", t_on), ("t_off", t_off), ("plateau", plateau)):
            if rule == "loop":
                value = _LOOP[name] if value is None else value
                setattr(self, name, check_number(name, value, 1e-9, 1 - 1e-9, "in (0, 1)"))
            require(
                rule == "loop" or value is None,
                f"{name} is {value}, must not be given for the rule {rule!r}",
            )
        if rule == "loop":
            require(
                self.t_on > self.t_off,
                f"t_on is {self.t_on} and t_off is {self.t_off}, must be 1 > t_on > t_off > 0",
            )

    @property
    def guarantees(self) -> Guarantees:
        keeps_levels = self.rule in ("cap", "rescale")
        return Guarantees(
            on_time_grid=self.rule != "confidence",
            consistent_joint=keeps_levels,
            own_times=keeps_levels,
            independent_draws=self.rule != "confidence",
            movable_positions=self.rule != "confidence",
            supports_joint_draws=True,
            forces_transitions=self.force_transition,
        )

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1; with "confidence" the memo holds the probability psi of each
        position.
        """
        edges = len(run.process.levels) - 1
        if self.lift is not None:
            require(
                len(self.lift) == edges,
                f"lift has {len(self.lift)} entries, must have {edges}: one per edge",
            )
        state = super().init(run)
        if self.rule != "confidence" or not self.eta:
            return state
        return state._replace(
            memo=torch.full(state.z.shape, torch.inf, dtype=torch.float64, device=state.z.device)
        )

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        process = level_process(run)
        z = state.z
        t = self.time(at(run, k))
        s = self.time(at(run, k + 1))
        if not self.eta or (self.rule == "loop" and not bool((t == s).all())):
            target = process.sample_level(z, t, s, run.generator)
            return State(move(run, z, t, target, self.force_transition), s)
        sigma = self.sigma(process.max_remask_prob(t, s))
        if self.rule != "confidence":
            target = process.sample_level(z, t, s, run.generator, sigma)
            return State(shift(run, z, t, target, self.force_transition), s)
        psi = state.memo.clone()
        level = process.level_of(z)
        target = process.sample_level(z, t, s, run.generator)
        ascends = rand(z.shape, run.generator, z.device) < ascent_probability(psi, level, sigma)
        target = torch.where(ascends & (target == level), level + 1, target)
        z = shift(replace(run, observer=DrawnChances(psi)), z, t, target, self.force_transition)
        # an ascended state was not drawn by descending
        return State(z, s, torch.where(target > level, torch.inf, psi))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        # large enough for errors to be detected
        return [
            cls(0.5),
            cls(1.0, "rescale"),
            cls(1.0, "loop", plateau=0.4),
            cls(1.0, "confidence"),
        ]

    def sigma(self, most: Float64[Tensor, "*n levels"]) -> Float64[Tensor, "*n levels"]:
        """Compute the probability to ascend each edge from its upper bound ``most``."""
        factors = [1.0] * most.shape[-1] if self.lift is None else self.lift
        lifted = numbers_on(most.device, [self.eta * factor for factor in factors])
        return _RULES[self.rule](most, lifted.expand_as(most))

    def time(self, grid: Times) -> Times:
        """Map times of the grid, (B,), to times of the process; the identity except for "loop"."""
        if self.rule != "loop":
            return grid
        before = 1 - (1 - grid) / (1 - self.t_on) * (1 - self.plateau)
        after = self.plateau * grid / self.t_off
        return torch.where(
            grid > self.t_on, before, torch.where(grid < self.t_off, after, self.plateau)
        )


class DrawnChances(Observer):
    """Observer of the probabilities with which states are drawn.

    Args:
        psi: (B, L), which it writes to.
    """

    def __init__(self, psi: Float64[Tensor, "B L"]) -> None:
        self.psi = psi

    def note_states(
        self,
        run: SamplingContext,
        predictions: Predictions,
        states: Int64[Tensor, "N"],
        force: bool,
    ) -> None:
        log_probs = transition_log_prob(predictions, states, force)
        self.psi[predictions.b, predictions.i] = log_probs.exp()


def ascent_probability(
    psi: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"], sigma: Float64[Tensor, "*n m"]
) -> Float64[Tensor, "B L"]:
    """Compute the probability of each position to ascend, for the rule "confidence".

    Args:
        psi: (B, L) probability of each position's state when it was drawn; infinite if it has not
            descended yet.
        level: (B, L) level of each position.
        sigma: (B, n), or (B, L, n), probability per edge, shared by the positions below the edge.

    Returns:
        (B, L) float64.
    """
    chance = torch.zeros_like(psi)
    for i, most in enumerate(sigma.unbind(-1)):
        here = (level == i) & psi.isfinite()
        share = (-psi).masked_fill(~here, -torch.inf).softmax(-1)
        chance = torch.where(here, unsqueeze_times(most) * share, chance)
    return chance
