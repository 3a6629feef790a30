"""Sequential Monte Carlo: several texts in place of each, and those that a reward prefers go on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Sampler, SamplingContext, State
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw
from ddlib.utils.random import KeyedGenerator, rand
from ddlib.utils.validation import check_count, check_devices, check_number, check_shape

Reward = Callable[[Tokens, Times], Tensor]
"""``(z, t) -> (N,)``: a number for each of N texts of states z (N, L) at times t (N,), in nats where scale is 1."""


class Constant:
    """The reward that prefers nothing: 0 for every text."""

    def __call__(self, z: Tokens, t: Times) -> Tensor:
        return torch.zeros_like(t)

    def __repr__(self) -> str:
        return "Constant()"


class Cloud(NamedTuple):
    """The particles of every row, and what they weigh."""

    state: State
    """Of the inner sampler, n rows in place of each: row b's particles are its rows b n, ..., b n + n - 1."""
    gain: Float64[Tensor, "B n"]
    """``scale`` times the reward when it was last asked; 0 before."""
    weight: Float64[Tensor, "B n"]
    """Log weights since their row was last resampled; -inf where nothing can come of a particle any more."""
    total: Float64[Tensor, "B"]
    """Log of the mean weights at which the row was resampled, summed."""
    u: Float64[Tensor, "B"]
    """A uniform of each row, by which one of its particles is shown and, in the end, drawn."""

    def log_mean(self) -> Float64[Tensor, "B"]:
        r"""Of each row the log of :math:`\hat Z`, an estimate of E[exp(scale r)] over what the inner sampler draws.

        Its mean over runs is exact for any number of particles, and so is that of :math:`\hat Z` times any function of
        the particle ``drawn``, which estimates E[f exp(scale r)].
        """
        return self.total + self.weight.logsumexp(-1) - math.log(self.weight.shape[1])

    def drawn(self) -> State:
        """One particle of each row, by weight."""
        rows, number = self.weight.shape
        which = draw(self.weight.softmax(-1), self.u) + number * torch.arange(rows, device=self.u.device)
        return State(self.state.z[which], self.state.t[which])


class Particles(Sampler):
    r"""Runs ``number`` texts, the particles, in place of each; where a reward tells them apart, the better are copied.

    For any inner sampler with the law p of its texts, and any reward r of states, texts follow :math:`p(x) \exp(scale\,
    r(x, 0))`, normalised, as the number grows. On the way particles at time t are meant to follow :math:`p(z)
    \exp(scale\, r(z, t))`: the log weight of each grows by scale times what r has grown. Where the effective number of
    a row, :math:`(\sum w)^2 / \sum w^2`, falls below ``ess`` times ``number``, its particles are drawn anew by weight
    (systematic resampling, within the row) and weigh the same again. In the end one of each row is drawn by weight.
    For masked language models arXiv 2505.22524 and 2507.08390; in general Del Moral, Doucet and Jasra (2006).

    The reward is asked about states: words, clusters, masks. One that knows clusters tells particles apart before any
    of their words are drawn; one that knows words only may return 0 while t > 0, and the end weighs. -inf says that no
    text comes of a state that is wanted: that particle weighs nothing until another takes its place.

    A constant reward leaves the law of the inner sampler, exactly; so does ``scale = 0``. ``number = 1`` is the inner
    sampler, to the bit. The network is called as often as by it, on ``number`` times as many texts. What a step shows
    of a row is the particle that would be drawn if it were the last, so that a text's path ends in the text.

    Args:
        sampler: whatever draws the texts; ``Corrected`` goes inside, not around.
        reward: ``(z, t) -> (N,)``, numbers of N texts of states z (N, L) at times t (N,); with the prompt in place.
        number: of particles for each text, at least 1.
        ess: in [0, 1]: 0 never resamples (importance sampling), 1 at every step.
        scale: what the reward is multiplied by; finite.

    Raises:
        TypeError: no sampler, or particles again; a reward that cannot be called, or that returns no numbers.
        ValueError: number, ess or scale out of range; when sampling, a reward of another shape, NaN or +inf, or -inf
            for all particles of a row.
    """

    on_time_grid = False
    supports_stopping = False

    def __init__(self, sampler: Sampler, reward: Reward, number: int = 4, ess: float = 0.5, scale: float = 1.0) -> None:
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler is {sampler!r}, must be a ddlib.samplers.Sampler object such as Ancestral()")
        if isinstance(sampler, Particles):
            raise TypeError(f"sampler is {sampler!r}, must not be particles itself: add the rewards up, raise number")
        if not callable(reward) or isinstance(reward, type):
            raise TypeError(f"reward is {reward!r}, must be a function (z, t) -> (N,) of states (N, L) and times (N,)")
        self.sampler, self.reward, self.number = sampler, reward, check_count("number", number)
        self.ess = check_number("ess", ess, 0, 1, "in [0, 1]")
        self.scale = check_number("scale", scale, -math.inf, math.inf, "finite")
        indifferent = self.scale == 0 or isinstance(reward, Constant)
        self.exact_marginals = sampler.exact_marginals and indifferent
        self.consistent_joint = sampler.consistent_joint and indifferent
        self.max_model_calls, self.max_finalize_calls, self.by_times = (
            sampler.max_model_calls,
            sampler.max_finalize_calls,
            sampler.by_times,
        )

    @property
    def supports_step_distribution(self) -> bool:
        """As the inner sampler does."""
        return self.sampler.supports_step_distribution

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(Ancestral(), Constant(), 2)]  # a law is known; what rewards do has claims of its own

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError unless the inner sampler serves the process."""
        self.sampler.check(process)

    def init(self, run: SamplingContext) -> State:
        """The particles at t = 1, all of one weight."""
        inner, rows, device = self.sampler.init(self._inner(run)), len(run.free), run.free.device
        none = torch.zeros(rows, self.number, dtype=torch.float64, device=device)
        u = none[:, 0] if self.number == 1 else rand((rows,), run.generator, device)
        return _shown(Cloud(inner, none, none, none[:, 0], u))

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        inner, cloud = self._inner(run), state.memo
        here = self._prompted(inner, cloud.state, state.z)
        if k == 0:  # so that a reward that will not do is refused before the network runs
            cloud = self._weigh(cloud, here, "before the first step")
        here = self.sampler.step(inner, here, k)
        cloud = self._weigh(cloud, self._prompted(inner, here, state.z), f"at step {k}")
        # at the end weights say more than copies
        return _shown(cloud if k + 1 == run.steps else self._resample(run, cloud))

    def weighed(self, run: SamplingContext, state: State) -> Cloud:
        """All particles as words at t = 0, with their weights: what ``finalize`` draws from.

        Args:
            run: the call of ``sample``.
            state: after the last step.
        """
        inner, cloud = self._inner(run), state.memo
        last = self._prompted(inner, cloud.state, state.z)
        words = torch.where(inner.free, self.sampler.finalize(inner, last), last.z)
        if torch.equal(words, last.z) and not bool(last.t.any()):  # the last step has asked about these
            return cloud._replace(state=last)
        return self._weigh(cloud, State(words, torch.zeros_like(last.t)), "in the end")

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        """One particle of each row, by weight."""
        return self.weighed(run, state).drawn().z

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """Rows with all their particles."""
        cloud: Cloud = state.memo
        each = rows[:, None] * self.number + torch.arange(self.number, device=rows.device)
        inner = self.sampler.select_rows(cloud.state, each.flatten())
        return State(state.z[rows], state.t[rows], Cloud(inner, *(of_row[rows] for of_row in cloud[1:])))

    def __repr__(self) -> str:
        name = getattr(self.reward, "__qualname__", repr(self.reward))
        return super().__repr__().replace(f"reward={self.reward!r}", f"reward={name}")

    def _inner(self, run: SamplingContext) -> SamplingContext:
        """The call as the inner sampler sees it: with a row for every particle."""
        if self.number == 1:
            return run
        noise = run.generator.split(self.number) if isinstance(run.generator, KeyedGenerator) else run.generator
        return replace(run, free=run.free.repeat_interleave(self.number, 0), generator=noise)

    def _prompted(self, inner: SamplingContext, state: State, shown: Tokens) -> State:
        """All particles with the prompt in its place, which the loop put into what is shown."""
        return state._replace(z=torch.where(inner.free, state.z, shown.repeat_interleave(self.number, 0)))

    def _weigh(self, cloud: Cloud, state: State, when: str) -> Cloud:
        """The particles at their new states, by what the reward has grown."""
        gain = self._gain(state.z, state.t, when).view_as(cloud.gain)
        dead = cloud.weight == -torch.inf
        weight = torch.where(dead, -torch.inf, cloud.weight + gain - torch.where(dead, 0.0, cloud.gain))
        lost = (weight == -torch.inf).all(-1)
        if bool(lost.any()):
            raise ValueError(
                f"reward is -inf for every particle of row {int(lost.nonzero()[0])} {when}, must be finite for one of "
                f"the {self.number} at least: ask for more particles, or for a reward that falls more gently"
            )
        return cloud._replace(state=state, gain=gain, weight=weight)

    def _gain(self, z: Tokens, t: Times, when: str) -> Float64[Tensor, "N"]:
        """``scale`` times the reward, checked."""
        said = self.reward(z, t)
        if not isinstance(said, Tensor) or said.is_complex():
            raise TypeError(f"reward(z, t) is {said!r}, must be a tensor (N,) of real numbers")
        check_shape("reward(z, t)", said, (len(z),), f"(N,) = ({len(z)},), a number for each text of states")
        check_devices(reward=said, z=z)
        said = said.detach().to(torch.float64)
        gain = self.scale * said if self.scale else torch.zeros_like(said)
        bad = said.isnan() | (said == torch.inf) | (gain == torch.inf)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"reward is {said[first].item()} for particle {first % self.number} of row {first // self.number} "
                f"{when}, must be finite, or -inf for what is not wanted at all, and so must scale * reward be"
            )
        return gain

    def _resample(self, run: SamplingContext, cloud: Cloud) -> Cloud:
        """Rows whose weights have grown too unlike go on with particles drawn by weight."""
        if self.number == 1:
            return cloud
        share = cloud.weight.softmax(-1)
        u = rand((len(share),), run.generator, share.device)  # whether or not it is needed, so that a row's is its own
        unlike = self._unlike(share)
        if not bool(unlike.any()):
            return cloud
        own = torch.arange(self.number, device=share.device)
        ancestors = torch.where(unlike[:, None], systematic(share, u), own)
        rows = ancestors + self.number * torch.arange(len(share), device=share.device)[:, None]
        return cloud._replace(
            state=self.sampler.select_rows(cloud.state, rows.flatten()),
            gain=cloud.gain.gather(1, ancestors),
            weight=torch.where(unlike[:, None], 0.0, cloud.weight),
            total=torch.where(unlike, cloud.log_mean(), cloud.total),
        )

    def _unlike(self, share: Float64[Tensor, "B n"]) -> Bool[Tensor, "B"]:
        """Whether the effective number of a row's weights, which sum to 1, has fallen too low."""
        return 1 / share.square().sum(-1) < self.ess * self.number


def systematic(share: Float[Tensor, "B n"], u: Float64[Tensor, "B"]) -> Int64[Tensor, "B n"]:
    """Which of its n particles each row goes on with, ascending: one of share w is taken floor(n w) or ceil(n w) times.

    n w times in the mean over ``u``, and one without a share never. Carpenter, Clifford and Fearnhead (1999).

    Args:
        share: (B, n) weights, not negative, some of each row positive.
        u: (B,) uniforms in [0, 1).
    """
    number = share.shape[1]
    reached = share.to(torch.float64).cumsum(-1)
    reached = reached / reached[:, -1:]
    points = (torch.arange(number, device=share.device) + u[:, None]) / number
    return torch.searchsorted(reached, points.clamp_max(1 - 2**-53), right=True)


def _shown(cloud: Cloud) -> State:
    return cloud.drawn()._replace(memo=cloud)
