"""The contract of a forward process, and everything that follows from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.categorical import draw, draw_logits
from ddlib.checks import check_count, check_devices, check_times, check_tokens, require, visible
from ddlib.exact import ExactModule
from ddlib.noise import Generator, rand
from ddlib.schedules import Schedule
from ddlib.typing import Logits, PerToken, Sharpen, StateLaw, StateMatrix, Times, Tokens, WordLaw

INTERIOR = (1e-16, 1 - 2**-53)
"""Rates and bounds are evaluated no closer than this to the ends of time, where they may be infinite."""


def unchanged(log_law: Tensor) -> Tensor:
    """Neither temperature nor top-p."""
    return log_law


class ForwardProcess(ExactModule, ABC):
    r"""A continuous-time Markov chain :math:`q_t(z|x)` that noises each position on its own.

    A leaf answers ``marginal``, ``rate_matrix`` and ``transition``; from these follow sampling, the posterior, the
    reverse rates, the prior and the generic bound, for small state spaces. Leaves with structure override what they
    can do without dense tensors, and offer ``weighted_divergence`` when the bound has a closed form.

    Precision follows the arguments; functions of time alone are computed in float64.

    Args:
        vocab_size: number of words V; states 0..V-1 are the words.
        num_states: number of states S >= V.
    """

    def __init__(self, vocab_size: int, num_states: int) -> None:
        super().__init__()
        self.vocab_size = check_count("vocab_size", vocab_size)
        self.num_states = check_count("num_states", num_states, vocab_size)

    schedule: Schedule | None = None
    """The clock, in processes that have one."""

    @property
    def exact_ends(self) -> bool:
        """Whether the process starts at the data and ends in its limit: always, unless its clock says no."""
        return self.schedule is None or self.schedule.exact_ends

    @property
    def device(self) -> torch.device:
        """Where the process's constants live; the CPU if it has none."""
        buffer = next(self.buffers(), None)
        return torch.device("cpu") if buffer is None else buffer.device

    @abstractmethod
    def marginal(self, x: Tokens, t: Times) -> StateLaw:
        """q_t(.|x), the law of z_t given the word, (B, L, S); in the dtype of ``t``."""

    @abstractmethod
    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        """Q_t, rates per unit of time at the scalar ``t``, dense float64 (S, S), rows sum to 0."""

    @abstractmethod
    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        """q_{t|s}, dense float64 (S, S) at scalar ``s <= t``, row = from, rows sum to 1."""

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        """q_t(z|x), elementwise (B, L), float64."""
        return self.marginal(x, t.to(torch.float64)).gather(-1, z[..., None]).squeeze(-1)

    def word_likelihood(self, z: Tokens, t: Times) -> WordLaw:
        """q_t(z|x) for every word x, (B, L, V), float64."""
        return into(each_time(self._word_marginals, t), z)

    def predictive(self, p: WordLaw, t: Times) -> StateLaw:
        """q_t(.|p) = sum_x p(x) q_t(.|x), (B, L, S)."""
        return p @ each_time(self._word_marginals, t).to(p.dtype)

    def sample(self, x: Tokens, t: Times, generator: Generator = None) -> Tokens:
        """Draws z_t ~ q_t(.|x).

        Raises:
            TypeError, ValueError: x not int64 words (B, L); t not (B,) in [0, 1]; different devices.
        """
        self.check_inputs(x=x, t=t)
        law = self.marginal(x, t.to(torch.float64)).flatten(0, 1)
        return draw(law, rand(x.shape, generator, x.device).flatten()).view_as(x)

    def prior(self) -> Tensor:
        """The law from which generation starts, (S,) float64: z_1 of a uniformly drawn word.

        With exact ends this is the limit of the noise; otherwise it still covers every z_1, so ``prior_kl`` is finite.
        """
        return self._typical(self._one())

    def sample_prior(
        self, shape: Sequence[int], generator: Generator = None, device: torch.device | str | None = None
    ) -> Tokens:
        """Draws z_1 of shape (B, L) from the prior."""
        place = self.device if device is None else torch.device(device)
        words = self._uniform_words(shape, generator, place)
        return self.sample(words, self._one().to(place).expand(shape[0]), generator)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        """KL(q_t(.|x) || q_t(.|uniform word)) in nats per token; ``t`` defaults to 1 and may be where time is cut."""
        t = self._one().expand(len(x)) if t is None else t
        law = self.marginal(x, t.to(torch.float64))
        prior = each_time(self._typical, t)[:, None]
        return (torch.xlogy(law, law) - torch.xlogy(law, prior)).sum(-1).clamp_min(0)

    def posterior(self, p: WordLaw, z: Tokens, t: Times, s: Times) -> StateLaw:
        """The law of z_s given z_t and the word law ``p`` (cavity), s < t, (B, L, S).

        q_{t|s}(z|y) q_s(y|p) / q_t(z|p) (theory section 3).

        Raises:
            TypeError, ValueError: as ``sample``, or s not below t.
        """
        self.check_inputs(z=z, t=t, s=s, p=p)
        joint = into(each_time(self.transition, s, t).to(p.dtype), z) * self.predictive(p, s)
        return joint / joint.sum(-1, keepdim=True)

    def reverse_rate(self, p: WordLaw, z: Tokens, t: Times) -> StateLaw:
        """Rates of the reverse chain from z to each other state, (B, L, S); 0 at z itself.

        Q_t(y, z) q_t(y|p) / q_t(z|p) (theory section 1, with rates per unit of time, running backwards).
        """
        self.check_inputs(z=z, t=t, p=p)
        law = self.predictive(p, t)
        rates = into(each_time(self.rate_matrix, t).to(p.dtype), z) * law / law.gather(-1, z[..., None])
        return rates.scatter(-1, z[..., None], 0.0)

    def weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken] | None:
        """The closed form of the bound's integrand as (weight, divergence), whose product it is; None if there is none.

        ``logits`` are of the cavity law. The weight depends on time and state alone and is what training clips.
        """
        return None

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        """The weight of ``weighted_divergence``, which training clips, in float64; no network is needed for it.

        Without a closed form it is the rate at which z is left backwards in time, given the word.
        """
        words = one_hot(x, self.vocab_size).to(torch.float64)
        return self.reverse_rate(words, z, t.to(torch.float64)).sum(-1)

    def level_of(self, z: Tokens) -> Tokens:
        """The level of each state: 0 for words, then upwards; the mask is highest."""
        return (z >= self.vocab_size).to(torch.int64)

    def jump(self, z: Tokens, t: Times, s: Times, generator: Generator = None) -> Tokens | None:
        """Where the positions go between t and s < t as far as the network has no say; None if it always has one.

        A process with levels returns the level of each position at s. Positions that keep theirs do not move.
        """
        return None

    def land(
        self, logits: Logits, z: Tokens, t: Times, s: Times, target: Tokens | None,
        generator: Generator = None, *, force: bool = False, sharpen: Sharpen = unchanged,
    ) -> Tokens:  # fmt: skip
        """Draws z_s from the posterior, given what ``jump`` said (``target``); ``logits`` are of the cavity law.

        ``force`` keeps a token inside its cluster on its way down (the paper's force transition), where there are any.
        ``sharpen`` acts on every law of words or clusters from which one is drawn, after the evidence of z has come in:
        here on p(x|z_t), so that z_s is drawn given z_t and a word.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        evidence = self.word_likelihood(z, t).log().to(logits.dtype)
        words = sharpen(logits.log_softmax(-1) + evidence).flatten(0, 1)
        x = draw_logits(words, rand(z.shape, generator, z.device).flatten()).view_as(z)
        law = self.posterior(one_hot(x, self.vocab_size).to(torch.float64), z, t, s).flatten(0, 1)
        return draw(law, rand(z.shape, generator, z.device).flatten()).view_as(z)

    def needed_words(self, z: int, target: int, force: bool = False) -> Tensor | None:
        """The words (n,) whose logits decide where state ``z`` lands in level ``target``; None for all.

        A common constant may not matter either. In place of the other logits ``land`` may be given -inf.
        """
        return None

    def draw_path(self, shape: Sequence[int], generator: Generator, device: torch.device) -> tuple[Tensor, Tokens]:
        """Times (B, L, n) at which each position enters levels 1..n, above 1 for never, and the states (B, L) at t = 1.

        Raises:
            TypeError: the jumps of this process depend on the network, so they cannot be drawn before it runs.
        """
        raise TypeError(f"{type(self).__name__} cannot draw its jump times up front: they depend on the network")

    def reduced(self, vocab_size: int) -> Self:
        """A process of the same class and structure over at most ``vocab_size`` words, small enough to be enumerated.

        ``dd.verify`` proves a large process right on it.

        Raises:
            TypeError: the class offers none.
            ValueError: too few words for its structure.
        """
        raise TypeError(f"{type(self).__name__} offers no reduction to fewer words")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a registered class is verified; override where the constructor needs arguments."""
        return [cls()]  # type: ignore[call-arg] # a leaf's constructor may need nothing

    def check_inputs(
        self, *, x: Tensor | None = None, z: Tensor | None = None, t: Tensor | None = None,
        s: Tensor | None = None, p: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Raises unless the arguments are of the right type, shape, range and device."""
        tokens = z if x is None else x
        if x is not None:
            check_tokens("x", x, self.vocab_size, "words")
        if z is not None:
            check_tokens("z", z, self.num_states, "states")
        for name, time in (("t", t), ("s", s)):
            if time is not None and tokens is not None:
                check_times(name, time, len(tokens))
        if x is not None and z is not None:
            require(x.shape == z.shape, f"z has shape {tuple(z.shape)}, must be that of x, {tuple(x.shape)}")
        if s is not None and t is not None and visible(s) and visible(t):
            require(bool((s < t).all()), f"s = {s.tolist()} must be below t = {t.tolist()}")
        if p is not None and tokens is not None:
            want = (*tokens.shape, self.vocab_size)
            require(tuple(p.shape) == want, f"p has shape {tuple(p.shape)}, must be (B, L, V) = {want}")
            if visible(p):
                total = p.sum(-1)
                bad = ~((p >= 0).all(-1) & ((total - 1).abs() < 0.01))
                require(not bool(bad.any()), "p holds a row that is no law: negative, NaN, or not of sum 1")
        check_devices(x=x, z=z, t=t, s=s, p=p, process=next(self.buffers(), None))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, num_states={self.num_states})"

    def _one(self) -> Tensor:
        return torch.ones((), dtype=torch.float64, device=self.device)

    def _uniform_words(self, shape: Sequence[int], generator: Generator, device: torch.device) -> Tokens:
        return (rand(shape, generator, device) * self.vocab_size).to(torch.int64)

    def _typical(self, t: Tensor) -> Tensor:
        """The marginal of a uniformly drawn word at the scalar ``t``, (S,) float64."""
        uniform = torch.full((1, 1, self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=t.device)
        return self.predictive(uniform, t.to(torch.float64)[None])[0, 0]

    def _word_marginals(self, t: Tensor) -> Tensor:
        """q_t(z|x) for every word and state, (V, S) float64, at the scalar ``t``."""
        words = torch.arange(self.vocab_size, device=t.device)[None]
        return self.marginal(words, t.to(torch.float64)[None])[0]


def each_time(function: Callable[..., Tensor], *times: Tensor) -> Tensor:
    """``function`` of scalar times for every sequence, stacked; computed once per distinct time."""
    distinct, which = torch.stack([time.to(torch.float64) for time in times]).unique(dim=1, return_inverse=True)
    return torch.stack([function(*column) for column in distinct.unbind(1)])[which]


def into(matrices: Tensor, z: Tokens) -> Tensor:
    """Columns z of each sequence's matrix: (B, N, S) and (B, L) give (B, L, N)."""
    return matrices.transpose(1, 2)[torch.arange(len(z), device=z.device)[:, None], z]


def span(s: float | Tensor, t: float | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """``s`` and ``t`` as scalars, checked to be in order."""
    early, late = scalar(s, "s", device), scalar(t, "t", device)
    require(bool(early <= late), f"s = {float(early)} must be at most t = {float(late)}")
    return early, late


def scalar(t: float | Tensor, name: str, device: torch.device) -> Tensor:
    """``t`` as a float64 scalar on ``device``, checked to lie in [0, 1]."""
    time = torch.as_tensor(t, dtype=torch.float64, device=device)
    require(time.ndim == 0, f"{name} has shape {tuple(time.shape)}, must be a scalar")
    check_times(name, time[None], 1)
    return time


def interior(t: Tensor) -> Tensor:
    """``t`` in float64, kept away from the ends of time, where rates and odds are infinite, by a rounding error."""
    return t.to(torch.float64).clamp(*INTERIOR)
