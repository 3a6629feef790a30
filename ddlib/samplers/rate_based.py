"""Solvers with reverse rates held constant during a step, kept as baselines: Euler and
tau-leaping.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State, at, joint
from ddlib.samplers.reverse_step import move
from ddlib.schedules.base import breaks
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.random import rand
from ddlib.utils.validation import check_flag


class Leap(Sampler):
    """Base class: a position jumps at most once in a step of length h, by its ``reverse_rate`` R at
    the step's start.

    A subclass computes the probability of a jump from R h. The destination is drawn in proportion
    to the rates. The error falls as 1 / steps. Rates may diverge towards both ends of time, so
    ``Ancestral`` takes the first and the last step.

    In a process with levels R does not depend on the network, and a jump descends one level. The
    network then runs only on sequences in which a position jumps. In other processes it runs at
    every position; structured processes need no tensor over states.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            exact_marginals=False,
            on_time_grid=False,
            movable_positions=True,
            forces_transitions=self.force_transition,
        )

    @property
    def order(self) -> int:
        return 0 if self.force_transition else 1

    @abstractmethod
    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """Compute the probability of a jump from R h, the expected number of jumps at a constant
        rate.
        """

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        process = run.process
        z = state.z
        t = at(run, k)
        s = at(run, k + 1)
        if k in (0, run.steps - 1) or _window_ends(process, t, s):
            return State(Ancestral(self.force_transition).back(run, z, t, s), s)
        length = (t - s)[:, None]
        u = rand(z.shape, run.generator, z.device)
        if isinstance(process, LevelProcess):
            moves = run.free & (u < self.chance(process.exit_rate(z, t) * length))
            target = process.level_of(z) - moves.long()
            return State(move(run, z, t, target, self.force_transition), s)
        logits = run.predict(z, t)
        moves = run.free & (u < self.chance(process.exit_rate(z, t, logits, run.sharpen) * length))
        z = process.sample_exit(
            logits, z, t, moves, run.generator, force=self.force_transition, sharpen=run.sharpen
        )
        return State(z, s)

    def kernel(
        self,
        process: ForwardProcess,
        predict: Callable[[Tokens, Times], Logits],
        z: Tokens,
        t: Times,
        s: Times,
    ) -> Float64[Tensor, "N N"]:
        if float(t[0]) == 1 or float(s[0]) == 0 or _window_ends(process, t, s):
            return Ancestral().kernel(process, predict, z, t, s)
        rates = process.reverse_rate(predict(z, t).softmax(-1), z, t).to(torch.float64)
        total = rates.sum(-1)
        chance = self.chance(total * (t - s)[:, None])
        moving = rates * (chance / torch.where(total > 0, total, 1.0))[..., None]
        return joint(moving.scatter(-1, z[..., None], 1 - chance[..., None]), z)


class Euler(Leap):
    r"""Euler solver: a position of reverse rate R jumps with probability :math:`\min(1, R h)` in a
    step of length h.

    This is the sampler of SEDD (Lou et al., 2024). The destination is drawn in proportion to the
    rates. ``Ancestral`` takes the first and the last step, as rates may diverge towards the ends of
    time. A baseline: ``Ancestral`` costs as much and is exact for a single token. For masks with a
    linear schedule both have the same distribution, as :math:`R h = h / t`.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return hits.clamp_max(1.0)


class TauLeaping(Leap):
    r"""Tau-leaping: each destination has a Poisson number of hits in a step.

    A position with one hit in total jumps.

    The probability of a jump is :math:`R h\, e^{-R h}` with R the reverse rate and h the step's
    length. Several hits have no meaning for states without an order, so the position then keeps its
    state (tauLDR, Campbell et al., 2022). ``Ancestral`` takes the first and the last step, as rates
    may diverge towards the ends of time. A baseline, as ``Euler``.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return hits * torch.exp(-hits)


def _window_ends(process: ForwardProcess, t: Times, s: Times) -> bool:
    """True if a schedule begins or ends inside the time, within the step from t to s."""
    return any(float(s[0]) <= end <= float(t[0]) for end in breaks(process.schedules))
