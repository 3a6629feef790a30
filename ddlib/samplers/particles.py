"""Sequential Monte Carlo with a reward: several particles per sequence, resampled by weight."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.samplers.wrapper import Wrapper
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw
from ddlib.utils.random import KeyedGenerator, rand
from ddlib.utils.validation import check_count, check_devices, check_number, check_shape

Reward = Callable[[Tokens, Times], Tensor]
"""``(z, t) -> (N,)``: the reward of N sequences of states z (N, L) at times t (N,), in nats if the
scale is 1.
"""


class Constant:
    """Constant reward: 0 for every sequence."""

    def __call__(self, z: Tokens, t: Times) -> Tensor:
        return torch.zeros_like(t)

    def __repr__(self) -> str:
        return "Constant()"


class Cloud(NamedTuple):
    """Particles of every row and their weights."""

    state: State
    """State of the inner sampler, with n rows in place of each: the particles of row b are b n,
    ..., b n + n - 1.
    """
    gain: Float64[Tensor, "B n"]
    """``scale`` times the reward at its last evaluation; 0 before."""
    weight: Float64[Tensor, "B n"]
    """Log weights since the row was last resampled; -inf for excluded particles."""
    total: Float64[Tensor, "B"]
    """Sum of the logs of the mean weights at the times of resampling."""
    u: Float64[Tensor, "B"]
    """Uniform of each row, for the choice of the particle that represents the row and is returned
    in the end.
    """

    def log_mean(self) -> Float64[Tensor, "B"]:
        r"""Compute the log of :math:`\hat Z` per row, an estimate of E[exp(scale r)] under the
        inner sampler.

        :math:`\hat Z` is unbiased for any number of particles. So is :math:`\hat Z` times any
        function f of the particle ``drawn``, as an estimate of E[f exp(scale r)].
        """
        return self.total + self.weight.logsumexp(-1) - math.log(self.weight.shape[1])

    def draw_particles(self) -> State:
        """Draw one particle per row, in proportion to its weight."""
        rows, number = self.weight.shape
        which = draw(self.weight.softmax(-1), self.u) + number * torch.arange(
            rows, device=self.u.device
        )
        return State(self.state.z[which], self.state.t[which])


class Particles(Wrapper):
    r"""Sequential Monte Carlo with ``number`` particles per sequence, weighted and resampled by a
    reward.

    Let the inner sampler have the distribution p over sequences, and let r be a reward of states.
    The distribution of the result converges to :math:`p(x) \exp(scale\, r(x, 0))`, normalised, as
    the number of particles grows. The target at time t is :math:`p(z) \exp(scale\, r(z, t))`: each
    log weight grows by scale times the increase of r. If the effective sample size of a row,
    :math:`(\sum w)^2 / \sum w^2`, falls below ``ess`` times ``number``, its particles are resampled
    by weight (systematic resampling, within the row) and have equal weights again. In the end one
    particle per row is drawn by weight. For masked language models arXiv 2505.22524 and 2507.08390;
    in general Del Moral, Doucet and Jasra (2006).

    The reward takes states: tokens, clusters, masks. A reward that is defined on clusters separates
    particles before their tokens are drawn. A reward that is defined on tokens only may return 0
    while t > 0; the weights are then set at the end. A reward of -inf excludes a particle until it
    is replaced in resampling.

    A constant reward keeps the distribution of the inner sampler, exactly; so does ``scale = 0``.
    ``number = 1`` is the inner sampler, to the bit. The number of network calls is that of the
    inner sampler, on ``number`` times as many sequences. The state of a row after a step is the
    particle that would be drawn if the step were the last, so the final state is the result.

    Args:
        sampler: the inner sampler; ``Corrected`` goes inside, not around.
        reward: ``(z, t) -> (N,)``, rewards of N sequences of states z (N, L) at times t (N,); with
            the prompt in place.
        number: number of particles per sequence, at least 1.
        ess: in [0, 1]: 0 never resamples (importance sampling), 1 at every step.
        scale: factor of the reward; finite.

    Raises:
        TypeError: not a sampler, or particles again; a reward that cannot be called, or that does
            not return numbers.
        ValueError: number, ess or scale out of range; when sampling, a reward of another shape, NaN
            or +inf, or -inf for all particles of a row.
    """

    def __init__(
        self,
        sampler: Sampler,
        reward: Reward,
        number: int = 4,
        ess: float = 0.5,
        scale: float = 1.0,
    ) -> None:
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"sampler is {sampler!r}, must be a ddlib.samplers.Sampler object such as "
                "Ancestral()"
            )
        if isinstance(sampler, Particles):
            raise TypeError(
                f"sampler is {sampler!r}, must not be Particles: add the rewards and increase "
                "number"
            )
        if not callable(reward) or isinstance(reward, type):
            raise TypeError(
                f"reward is {reward!r}, must be a function (z, t) -> (N,) of states (N, L) and "
                "times (N,)"
            )
        self.sampler = sampler
        self.reward = reward
        self.number = check_count("number", number)
        self.ess = check_number("ess", ess, 0, 1, "in [0, 1]")
        self.scale = check_number("scale", scale, -math.inf, math.inf, "finite")

    @property
    def guarantees(self) -> Guarantees:
        """Those of the inner sampler; a reward changes its distribution."""
        inner = self.sampler.guarantees
        indifferent = self.scale == 0 or isinstance(self.reward, Constant)
        return replace(
            inner,
            exact_marginals=inner.exact_marginals and indifferent,
            consistent_joint=inner.consistent_joint and indifferent,
            on_time_grid=False,
            independent_draws=False,
            keeps_tokens=False,
            movable_positions=False,
            supports_stopping=False,
            own_times=False,
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [
            cls(Ancestral(), Constant(), 2)
        ]  # its distribution is that of Ancestral; separate claims test rewards

    @property
    def inner(self) -> Sampler:
        return self.sampler

    def time_of(self, run: SamplingContext, state: State) -> Times:
        return state.t

    def init(self, run: SamplingContext) -> State:
        """Draw the particles at t = 1, with equal weights."""
        inner = self.sampler.init(self._inner(run))
        rows = len(run.free)
        device = run.free.device
        none = torch.zeros(rows, self.number, dtype=torch.float64, device=device)
        u = none[:, 0] if self.number == 1 else rand((rows,), run.generator, device)
        return _draw_particles(Cloud(inner, none, none, none[:, 0], u))

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        inner = self._inner(run)
        cloud = state.memo
        here = self._with_prompt(inner, cloud.state, state.z)
        if k == 0:  # so that an invalid reward is rejected before the network runs
            cloud = self._weigh(cloud, here, "before the first step")
        here = self.sampler.step(inner, here, k)
        cloud = self._weigh(cloud, self._with_prompt(inner, here, state.z), f"at step {k}")
        # after the last step a draw by weight is more accurate than resampling
        return _draw_particles(cloud if k + 1 == run.steps else self._resample(run, cloud))

    def weigh(self, run: SamplingContext, state: State) -> Cloud:
        """Return all particles as tokens at t = 0 with their weights; ``finalize`` draws from them.

        Args:
            run: the call of ``sample``.
            state: after the last step.
        """
        inner = self._inner(run)
        cloud = state.memo
        last = self._with_prompt(inner, cloud.state, state.z)
        tokens = torch.where(inner.free, self.sampler.finalize(inner, last), last.z)
        if torch.equal(tokens, last.z) and not bool(
            last.t.any()
        ):  # the last step has evaluated their reward
            return cloud._replace(state=last)
        return self._weigh(cloud, State(tokens, torch.zeros_like(last.t)), "in the end")

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        """Draw one particle per row, in proportion to its weight."""
        return self.weigh(run, state).draw_particles().z

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """Return the state of selected rows with all their particles."""
        cloud: Cloud = state.memo
        each = rows[:, None] * self.number + torch.arange(self.number, device=rows.device)
        inner = self.sampler.select_rows(cloud.state, each.flatten())
        return State(
            state.z[rows], state.t[rows], Cloud(inner, *(of_row[rows] for of_row in cloud[1:]))
        )

    def __repr__(self) -> str:
        name = getattr(self.reward, "__qualname__", repr(self.reward))
        return super().__repr__().replace(f"reward={self.reward!r}", f"reward={name}")

    def _inner(self, run: SamplingContext) -> SamplingContext:
        """Return the context of the inner sampler, with one row per particle."""
        if self.number == 1:
            return run
        noise = (
            run.generator.split(self.number)
            if isinstance(run.generator, KeyedGenerator)
            else run.generator
        )
        return replace(run, free=run.free.repeat_interleave(self.number, 0), generator=noise)

    def _with_prompt(self, inner: SamplingContext, state: State, shown: Tokens) -> State:
        """Return all particles with the prompt in place, as in the state ``shown`` of the loop."""
        return state._replace(
            z=torch.where(inner.free, state.z, shown.repeat_interleave(self.number, 0))
        )

    def _weigh(self, cloud: Cloud, state: State, when: str) -> Cloud:
        """Move the particles to their new states and add the increase of the reward to their log
        weights.
        """
        gain = self._gain(state.z, state.t, when).view_as(cloud.gain)
        dead = cloud.weight == -torch.inf
        weight = torch.where(
            dead, -torch.inf, cloud.weight + gain - torch.where(dead, 0.0, cloud.gain)
        )
        lost = (weight == -torch.inf).all(-1)
        if bool(lost.any()):
            raise ValueError(
                f"reward is -inf for every particle of row {int(lost.nonzero()[0])} {when}, must "
                "be finite for at "
                f"least one of the {self.number}: use more particles, or a reward with smaller "
                "differences"
            )
        return cloud._replace(state=state, gain=gain, weight=weight)

    def _gain(self, z: Tokens, t: Times, when: str) -> Float64[Tensor, "N"]:
        """Compute ``scale`` times the reward, checked."""
        reward = self.reward(z.clone(), t)  # a reward may write into its input
        if not isinstance(reward, Tensor) or reward.is_complex():
            raise TypeError(f"reward(z, t) is {reward!r}, must be a tensor (N,) of real numbers")
        check_shape(
            "reward(z, t)",
            reward,
            (len(z),),
            f"(N,) = ({len(z)},), a number for each sequence of states",
        )
        check_devices(reward=reward, z=z)
        reward = reward.detach().to(torch.float64)
        gain = self.scale * reward if self.scale else torch.zeros_like(reward)
        bad = reward.isnan() | (reward == torch.inf) | (gain == torch.inf)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"reward is {reward[first].item()} for particle {first % self.number} of row "
                f"{first // self.number} "
                f"{when}, must be finite, or -inf for excluded states; scale * reward must be as "
                "well"
            )
        return gain

    def _resample(self, run: SamplingContext, cloud: Cloud) -> Cloud:
        """Resample the particles of rows with a low effective sample size."""
        if self.number == 1:
            return cloud
        share = cloud.weight.softmax(-1)
        # always drawn, so that a row's noise does not depend on its weights
        u = rand((len(share),), run.generator, share.device)
        unlike = self._unlike(share)
        if not bool(unlike.any()):
            return cloud
        same = torch.arange(self.number, device=share.device)
        ancestors = torch.where(unlike[:, None], systematic(share, u), same)
        rows = ancestors + self.number * torch.arange(len(share), device=share.device)[:, None]
        return cloud._replace(
            state=self.sampler.select_rows(cloud.state, rows.flatten()),
            gain=cloud.gain.gather(1, ancestors),
            weight=torch.where(unlike[:, None], 0.0, cloud.weight),
            total=torch.where(unlike, cloud.log_mean(), cloud.total),
        )

    def _unlike(self, share: Float64[Tensor, "B n"]) -> Bool[Tensor, "B"]:
        """Return whether the effective sample size of each row is too low; the weights sum to 1."""
        return 1 / share.square().sum(-1) < self.ess * self.number


def systematic(share: Float[Tensor, "B n"], u: Float64[Tensor, "B"]) -> Int64[Tensor, "B n"]:
    """Draw indices by systematic resampling: a particle of weight w is taken floor(n w) or ceil(n
    w) times.

    The expected number over ``u`` is n w; a particle of weight 0 is never taken. Carpenter,
    Clifford and Fearnhead (1999).

    Args:
        share: (B, n) weights, not negative, at least one of each row positive.
        u: (B,) uniforms in [0, 1).

    Returns:
        (B, n) indices of particles in each row, ascending.
    """
    number = share.shape[1]
    reached = share.to(torch.float64).cumsum(-1)
    reached = reached / reached[:, -1:]
    points = (torch.arange(number, device=share.device) + u[:, None]) / number
    return torch.searchsorted(reached, points.clamp_max(1 - 2**-53), right=True)


def _draw_particles(cloud: Cloud) -> State:
    return cloud.draw_particles()._replace(memo=cloud)
