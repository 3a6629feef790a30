"""Steps by rates that stand still: the oldest way to run a chain, for whoever compares with it."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Sampler, SamplingContext, State, at, joint
from ddlib.samplers.runtime.reverse_step import move
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.random import rand


class Leap(Sampler):
    """A position jumps at most once in a step of length h, by its ``reverse_rate`` R at the step's start.

    A leaf says how likely it is, by R h. The destination is drawn in proportion to the rates. The error falls as
    1 / steps. Towards both ends of time rates may grow without bound, so the first and the last step are
    ``Ancestral``'s.

    For processes with levels R does not depend on the network, which runs only on sequences in which a position jumps;
    that lands one level lower. Others are asked at every position, without a tensor over states if they have structure.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    exact_marginals = False
    on_time_grid = False

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = force_transition

    @property
    def order(self) -> int | None:
        return None if self.force_transition else 1

    @abstractmethod
    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """The probability to jump, given R h, the jumps expected at a rate that stands still."""

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        process, z, t, s = run.process, state.z, at(run, k), at(run, k + 1)
        if k in (0, run.steps - 1):
            return State(Ancestral(self.force_transition).back(run, z, t, s), s)
        length, u = (t - s)[:, None], rand(z.shape, run.generator, z.device)
        if isinstance(process, LevelProcess):
            moves = run.free & (u < self.chance(process.exit_rate(z, t) * length))
            target = process.level_of(z) - moves.long()
            return State(move(run, z, t, s, target, self.force_transition), s)
        logits = run.predict(z, t)
        moves = run.free & (u < self.chance(process.exit_rate(z, t, logits, run.sharpen) * length))
        z = process.sample_exit(logits, z, t, moves, run.generator, force=self.force_transition, sharpen=run.sharpen)
        return State(z, s)

    def kernel(
        self, process: ForwardProcess, predict: Callable[[Tokens, Times], Logits], texts: Tokens, t: Times, s: Times
    ) -> Float64[Tensor, "N N"]:
        if float(t[0]) == 1 or float(s[0]) == 0:
            return Ancestral().kernel(process, predict, texts, t, s)
        rates = process.reverse_rate(predict(texts, t).softmax(-1), texts, t).to(torch.float64)
        total = rates.sum(-1)
        chance = self.chance(total * (t - s)[:, None])
        moving = rates * (chance / torch.where(total > 0, total, 1.0))[..., None]
        return joint(moving.scatter(-1, texts[..., None], 1 - chance[..., None]), texts)


class Euler(Leap):
    r"""A position jumps with probability :math:`\min(1, R h)`, where R is its reverse rate and h the step's length.

    As SEDD samples (Lou et al., 2024). The destination is drawn in proportion to the rates; the first and the last step
    are ``Ancestral``'s, as rates may grow without bound towards the ends of time. A baseline: ``Ancestral`` costs as
    much and is exact for one word. For masks on a linear clock the two have one law, as :math:`R h = h / t`.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return hits.clamp_max(1.0)


class TauLeaping(Leap):
    r"""Each destination is hit Poisson-many times in a step; a position hit exactly once, of all, jumps there.

    The chance is :math:`R h\, e^{-R h}` with R the reverse rate and h the step's length: more than one hit means
    nothing where states have no order, so such a step is rejected at that position (tauLDR, Campbell et al., 2022). The
    first and the last step are ``Ancestral``'s, as rates may grow without bound towards the ends of time. A baseline,
    as ``Euler``.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return hits * torch.exp(-hits)
