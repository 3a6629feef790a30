"""Base class of all forward processes: two abstract methods, and defaults that follow from them."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import islice, pairwise
from typing import ClassVar, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.config.part import Part
from ddlib.config.state import check_extra_state, extra_state
from ddlib.hierarchies import Hierarchy
from ddlib.processes import optimal_times
from ddlib.processes.broadcasting import (
    each_time,
    interior,
    multiply_rows,
    normalise_or_stay,
    products_at,
    quotient,
    rows_at,
    unsqueeze_times,
)
from ddlib.processes.chain_check import check_chain
from ddlib.processes.integrand import dense_integrand
from ddlib.processes.places import Everywhere, Place
from ddlib.schedules import Schedule
from ddlib.schedules.base import breaks
from ddlib.times import Tabulated, TimeDensity
from ddlib.typing import (
    Logits,
    PaddingMask,
    PerToken,
    Sharpen,
    StateMatrix,
    StateProbs,
    Times,
    TokenProbs,
    Tokens,
)
from ddlib.utils.agreement import check_agreement
from ddlib.utils.categorical import draw, draw_logits
from ddlib.utils.precision import Float64Module, float32_or_wider
from ddlib.utils.random import Generator, rand, uniforms
from ddlib.utils.validation import (
    check_count,
    check_devices,
    check_order,
    check_roughly,
    check_times,
    check_tokens,
    due,
    refuse,
    require,
)

LEVELS = ("independent", "balanced")
"""Couplings of the levels of a sequence's tokens, see ``ForwardProcess.sample``."""


def identity(log_probs: Tensor) -> Tensor:
    """Return log-probabilities (..., n) as they are: the default of ``sharpen`` in
    ``sample_given_level``.
    """
    return log_probs


def check_process(process: object, other: object = None) -> None:
    """Raise TypeError unless ``process`` is a process, and ValueError, as ``check_chain``, for a
    small one without a closed form whose matrices are not those of a chain.

    ``other`` is the argument that it may be exchanged with.
    """
    if not isinstance(process, ForwardProcess):
        exchanged = (
            "; process and denoiser are exchanged" if isinstance(other, ForwardProcess) else ""
        )
        raise TypeError(
            f"process is {process!r}, must be a ddlib.processes.ForwardProcess object{exchanged}"
        )
    if check_roughly() and not process.closed_form and due(process._place):
        check_chain(process)


_OF_THE_CHAIN = (
    "rates_into",
    "marginal",
    "sample",
    "sample_forward",
    "likelihood",
    "token_likelihood",
    "token_evidence",
    "predictive",
    "posterior",
    "reverse_rate",
    "prior",
    "sample_prior",
    "prior_kl",
    "integrand",
    "weighted_divergence",
    "hard_weighted_divergence",
    "edges_weighted_divergence",
    "loss_weight",
    "step_divergence",
    "time_moments",
    "equivalence_classes",
    "num_uniforms",
    "sample_posterior",
    "exit_rate",
    "sample_exit",
    "reachable_from_all_tokens",
    "replaceable",
    "_weight_and_mean",
    "_token_marginals",
    "_typical",
)
"""Methods that follow from ``rate_matrix`` and ``transition``."""


class Component(NamedTuple):
    """Process of some positions of a sequence."""

    process: "ForwardProcess"
    first_state: int
    """Number, among the states of the sequence, of its state 0."""
    label: str
    """Text before the process in messages, such as its field; empty for all positions."""

    def __repr__(self) -> str:
        return f"{self.label}{self.process!r}"


class ForwardProcess(Float64Module, Part):
    r"""A continuous-time Markov chain :math:`q_t(z|x)` that noises each position independently.

    A subclass implements ``rate_matrix`` and ``transition``, functions of scalar times. All else
    has a default that is right for every process and builds tensors of size (B, L, S), and (S, S)
    for each distinct time. Subclasses with structure override these methods by faster ones, which a
    subclass with another ``rate_matrix`` or ``transition`` cannot inherit: TypeError. Times
    are (B,), one per sequence, or (B, L), one per position. Precision follows the arguments;
    functions of time alone are computed in float64.

    Args:
        vocab_size: number of tokens V; states 0..V-1 are the tokens.
        num_states: number of states S >= V.
        device: device of the constants, if an argument of the subclass determines it.
    """

    # ---- required of a subclass

    @abstractmethod
    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        """Rate matrix Q_t per unit of time at the scalar ``t``, dense float64 (S, S).

        Rows sum to 0.
        """

    @abstractmethod
    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        """Transition matrix q_{t|s} at scalars ``s <= t``, dense float64 (S, S), row = from.

        Rows sum to 1.
        """

    # ---- what the process is

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for source in ("rate_matrix", "transition"):
            check_agreement(cls, source, *_OF_THE_CHAIN)

    # a state dict holds the constructor's arguments, which loading compares
    get_extra_state = extra_state
    set_extra_state = check_extra_state

    def __init__(
        self, vocab_size: int, num_states: int, device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.vocab_size = check_count("vocab_size", vocab_size)
        self.num_states = check_count("num_states", num_states, vocab_size)
        self._place = torch.zeros((), dtype=torch.int64, device=device)
        self.hierarchy = (
            None  # no default of the class: it would hide the submodule that a subclass sets
        )

    _place: Tensor
    """Scalar whose device is that of the process."""

    hierarchy: Hierarchy | None
    """The hierarchy of the states; None where there is none."""

    schedule: Schedule
    """The schedule; not set where there is none, or one for each edge (``schedules``)."""

    training_weighting: ClassVar[str] = "clip"
    """Weighting of the training loss of a recipe that sets none: the weights of the bound ("clip"
    without a limit), or that of the paper that published the process, such as "clip:2"."""

    fused: ClassVar[str] = ""
    """Rule of ``ddlib.kernels`` for the losses of this class, stated again by subclasses that
    override them.
    """

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedules: one, one for each edge, or none."""
        return (self.schedule,) if hasattr(self, "schedule") else ()

    @property
    def breaks(self) -> list[float]:
        """Times inside (0, 1) at which rates are not smooth, sorted, such as the ends of
        windows.
        """
        return breaks(self.schedules)

    @property
    def exact_ends(self) -> bool:
        """True unless a schedule truncates alpha at either end."""
        return all(schedule.exact_ends for schedule in self.schedules)

    @property
    def device(self) -> torch.device:
        """The device of the process's constants."""
        return self._place.device

    def level_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Level of each state, of the shape of z.

        0 for tokens, then upwards; the mask is highest.
        """
        return (z >= self.vocab_size).to(torch.int64)

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of states of each level, tokens first: (V, 1) with a mask alone, (V,) if every
        state is a token.

        A subclass with other levels overrides this and ``level_of``.
        """
        beyond = self.num_states - self.vocab_size
        return (self.vocab_size, beyond) if beyond else (self.vocab_size,)

    # ---- what a sequence of it is made of: one alphabet, unless it is a product

    @property
    def components(self) -> tuple[Component, ...]:
        """Processes of one alphabet that its positions have: itself, or the fields of a product."""
        return (Component(self, 0, ""),)

    @property
    def component_shares(self) -> Float64[Tensor, "N"]:
        """Share of the positions of each component."""
        return torch.ones(1, dtype=torch.float64, device=self.device)

    def component_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Number of the component of each state, of the shape of z."""
        return torch.zeros_like(z)

    def places(self, z: Int64[Tensor, "B L"]) -> Iterator[tuple[int, Place]]:
        """Yield the number and the positions of each component that occurs in a batch of states."""
        yield 0, Everywhere()

    def at_positions(self, positions: slice) -> Self:
        """Return the process of some positions of its sequences."""
        return self

    def tokens_as_states(self, x: Tokens) -> Tokens:
        """States of clean tokens (B, L): the tokens themselves, plus the first state of their field
        in a product.
        """
        return x

    def states_as_tokens(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Tokens of clean states, inverse of ``tokens_as_states``; any token at other states."""
        return z.clamp_max(self.vocab_size - 1)

    def restrict_logits(self, logits: Float[Tensor, "B L K"], z: Tokens) -> Logits:
        """Return logits (B, L, V) with -inf at entries beyond the tokens of the position.

        The position is that of the state ``z``. Logits of the tokens of all fields, (B, L, N), are
        replaced by those of the position. Without fields all entries are tokens.
        """
        return logits

    def widened(self, vocab_size: int) -> "ForwardProcess":
        """Return a process over at least ``vocab_size`` tokens that is this one at its tokens.

        That is, losses, likelihoods and draws are equal, given logits of -inf at the others. By
        default the process itself, as noise depends on the number of tokens.
        """
        return self

    def small_copy(self, vocab_size: int) -> Self:
        """Return a process of the same class and structure over at most ``vocab_size`` tokens.

        It is small enough to be enumerated; ``dd.verify`` checks a large process on it.

        Raises:
            TypeError: the class has no such copy.
            ValueError: too few tokens for its structure.
        """
        raise TypeError(f"{type(self).__name__} has no reduction to fewer tokens")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Return objects on which a registered class is verified.

        Override where the constructor needs arguments.
        """
        return [cls()]  # type: ignore[call-arg] # the constructor of a subclass may need no argument

    def check_inputs(
        self,
        *,
        x: Tensor | None = None,
        z: Tensor | None = None,
        t: Tensor | None = None,
        s: Tensor | None = None,
        p: Tensor | None = None,
    ) -> None:
        """Raise unless the arguments that are given are well formed.

        Args:
            x: (B, L) tokens.
            z: (B, L) states.
            t: (B,) or (B, L) times.
            s: times of the shape of ``t``, none later.
            p: (B, L, V) distributions over tokens.

        Raises:
            TypeError, ValueError: the first argument that is not of the right type, shape, range or
                device.
        """
        tokens = z if x is None else x
        if x is not None:
            check_tokens("x", x, self.vocab_size, "tokens")
        if z is not None:
            check_tokens("z", z, self.num_states, "states")
        for name, time in (("t", t), ("s", s)):
            if time is not None and tokens is not None:
                check_times(name, time, *tokens.shape)
        if x is not None and z is not None:
            require(
                x.shape == z.shape,
                f"z has shape {tuple(z.shape)}, must be that of x, {tuple(x.shape)}",
            )
        if s is not None and t is not None:
            require(
                s.shape == t.shape,
                f"s has shape {tuple(s.shape)}, must be that of t, {tuple(t.shape)}",
            )
            check_order(s, t)
        if p is not None and tokens is not None:
            want = (*tokens.shape, self.vocab_size)
            require(
                tuple(p.shape) == want, f"p has shape {tuple(p.shape)}, must be (B, L, V) = {want}"
            )
            if due(p):
                total = p.sum(-1)
                bad = ~((p >= 0).all(-1) & ((total - 1).abs() < 0.01))
                require(
                    not bool(bad.any()),
                    "p holds a row that is not a distribution: negative, NaN, or not of sum 1",
                )
        check_devices(x=x, z=z, t=t, s=s, p=p, process=self._place)

    def check_noised(self, x: Tokens, z: Tokens, t: Times, mask: PaddingMask | None = None) -> None:
        """Raise ValueError unless every state can come from its token at t.

        Padding, False in ``mask``, may hold any state. The arguments were checked before.
        """
        if due(z):
            impossible = self.likelihood(z, x, t) <= 0
            impossible = impossible if mask is None else impossible & mask
            if bool(impossible.any()):
                b, i = (int(v) for v in impossible.nonzero()[0])
                refuse(
                    f"z[{b}, {i}] = {int(z[b, i])} has probability 0 given x[{b}, {i}] = "
                    f"{int(x[b, i])} "
                    f"at t = {float(unsqueeze_times(t).expand_as(z)[b, i])}: z must be drawn by "
                    "process.sample(x, t) "
                    "of the same process"
                )

    def __repr__(self) -> str:
        fields = [f"vocab_size={self.vocab_size}", f"num_states={self.num_states}"]
        fields += [f"hierarchy={self.hierarchy!r}"] * (self.hierarchy is not None)
        fields += [f"schedule={schedule!r}" for schedule in self.schedules]
        return f"{type(self).__name__}({', '.join(fields)})"

    # ---- forwards: draws and probabilities

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        """Distribution q_t(.|x) of z_t given the token, (B, L, S), in the dtype of ``t``."""
        self.check_inputs(x=x, t=t)
        return rows_at(lambda time: self.transition(0.0, time), x, t).to(t.dtype)

    def sample(
        self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent"
    ) -> Tokens:
        """Draw z_t ~ q_t(.|x).

        Args:
            x: (B, L) clean tokens.
            t: (B,) times, or (B, L), one for each position.
            generator: source of randomness.
            levels: coupling of the tokens of a sequence. "independent" is the process. "balanced"
                forces one random position of each sequence into a state with positive loss weight.
                Multiply the loss of the sequence by ``importance_weight(x, z, t)`` to remove the
                bias.

        Raises:
            TypeError, ValueError: x not int64 tokens (B, L); t not (B,) or (B, L) in [0, 1];
                different devices; unknown levels.
        """
        self.check_inputs(x=x, t=t)
        z = draw(self.marginal(x, t.to(torch.float64)), self._uniforms(x, generator, levels))
        if levels != "balanced":
            return z
        weighted = self._all_weights(x, t)[1]
        return draw_one(z, weighted.sum(-1), weighted, generator)

    def importance_weight(self, x: Tokens, z: Tokens, t: Times) -> Float64[Tensor, "B"]:
        r"""Factor of a sequence's bound or loss where z was drawn with ``levels="balanced"``.

        :math:`\sum_l E\,\varphi_l / \sum_l \varphi_l(z_l)`, the mean over noise of the sequence's
        weight at t over its weight at z, with :math:`\varphi` the weight of the bound where there
        is a closed form. Balanced draws follow :math:`q_t(z|x)` divided by it. This is valid for
        losses that are 0 when all loss weights of the sequence are 0, such as the continuous-time
        bound.

        Args:
            x: (B, L) clean tokens.
            z: (B, L) noisy states.
            t: (B,) times.

        Returns:
            (B,) float64; 0 where no balanced draw leads to z.
        """
        mean, weight = self._weight_and_mean(x, z, t)
        return quotient(mean.sum(-1), weight.sum(-1))

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draw z_t ~ q_{t|s}(.|z_s) from states ``z`` at s <= t.

        Args:
            z: (B, L) states at ``s``.
            s: (B,) times.
            t: (B,) later times; where they are no later nothing moves.
            generator: source of randomness.

        Raises:
            TypeError, ValueError: as ``sample``, z not int64 states, or s later than t.
        """
        self.check_inputs(z=z, t=t, s=s)
        probs = rows_at(self.transition, z, s, t)
        return draw(probs, rand(z.shape, generator, z.device))

    @property
    def closed_form(self) -> bool:
        """Whether ``weighted_divergence``, a closed form of the bound's integrand, is
        implemented.
        """
        return type(self).weighted_divergence is not ForwardProcess.weighted_divergence

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes of ``training_loss``: "standard", and "hard" and "edges" where
        ``hard_weighted_divergence`` and ``edges_weighted_divergence`` are implemented.
        """
        own = type(self)
        hard = own.hard_weighted_divergence is not ForwardProcess.hard_weighted_divergence
        edges = own.edges_weighted_divergence is not ForwardProcess.edges_weighted_divergence
        return ("standard", *["hard"] * hard, *["edges"] * edges)

    @property
    def couplings(self) -> tuple[str, ...]:
        """Couplings of levels that ``sample`` takes: "independent" alone without an argument
        ``levels``.
        """
        return LEVELS if "levels" in signature(self.sample).parameters else LEVELS[:1]

    def check_levels(self, levels: str) -> None:
        """Raise unless ``sample`` takes this coupling.

        Raises:
            TypeError: the class does not take it, see ``couplings``.
            ValueError: an unknown coupling.
        """
        require(
            levels in LEVELS, f"levels is {levels!r}, must be one of {', '.join(map(repr, LEVELS))}"
        )
        if levels != "independent" and levels not in self.couplings:
            raise TypeError(
                f"levels is {levels!r}, which {self!r} does not support: its sample, or that of a "
                "component, has no argument levels"
            )

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        """Probability q_t(z|x) of each state given its token, (B, L) float64."""
        return self.marginal(x, t.to(torch.float64)).gather(-1, z[..., None]).squeeze(-1)

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        """Probability q_t(z|x) of each state given every token x, (B, L, V) float64."""
        return rows_at(lambda time: self._token_marginals(time).mT, z, t)

    def token_evidence(self, z: Tokens, t: Times) -> TokenProbs:
        """Likelihood of each token up to a factor of the state, which a posterior over tokens does
        not depend on.

        Override it where that factor may be 0: ordered samplers pass states and times that the
        process never has.
        """
        return self.token_likelihood(z, t)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        """Marginal q_t(.|p) = sum_x p(x) q_t(.|x), (B, L, S)."""
        return products_at(p, self._token_marginals, t)

    # ---- backwards: posterior, reverse rates, prior

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        """Posterior of z_s given z_t and a distribution ``p`` over tokens (cavity), s <= t, (B, L,
        S).

        q_{t|s}(z|y) q_s(y|p) / q_t(z|p) (theory section 3). A state that no token of ``p`` can
        become stays.

        Raises:
            TypeError, ValueError: as ``sample``, or s later than t.
        """
        self.check_inputs(z=z, t=t, s=s, p=p)
        return normalise_or_stay(
            rows_at(lambda *times: self.transition(*times).mT, z, s, t).to(p.dtype)
            * self.predictive(p, s),
            z,
        )

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        """Rates of the reverse chain from z to each other state, (B, L, S); 0 at z itself.

        Q_t(y, z) q_t(y|p) / q_t(z|p) (theory section 1), per unit of time; 0 from a state that no
        token of ``p`` can become.
        """
        self.check_inputs(z=z, t=t, p=p)
        return self._reverse_rates(self.predictive(p, t), z, t)

    def rates_into(self, z: Tokens, t: Times) -> Float64[Tensor, "B L S"]:
        """Forward rates Q_t(y, z) into z from every state y, (B, L, S).

        Minus the exit rate at z itself.
        """
        return rows_at(lambda time: self.rate_matrix(time).mT, z, t)

    def _reverse_rates(self, marginal: StateProbs, z: Tokens, t: Times) -> StateProbs:
        """Reverse rates of a chain from its marginal distributions, (B, L, S)."""
        rates = quotient(
            self.rates_into(z, t).to(marginal.dtype) * marginal, marginal.gather(-1, z[..., None])
        )
        return rates.scatter(-1, z[..., None], 0.0)

    def prior(self) -> Tensor:
        """Distribution of z_1 of a uniformly drawn token, from which generation starts, (S,)
        float64.

        With exact ends it is the limit of the noise; otherwise it covers every z_1, so ``prior_kl``
        is finite.
        """
        return self._typical(self._one())

    def sample_prior(
        self,
        shape: Sequence[int],
        generator: Generator = None,
        device: torch.device | str | None = None,
    ) -> Tokens:
        """Draw z_1 of shape (B, L) from the prior."""
        place = self.device if device is None else torch.device(device)
        x = self._uniform_tokens(shape, generator, place)
        return self.sample(x, self._one().to(place).expand(shape[0]), generator)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        """KL(q_t(.|x) || q_t(.|uniform token)) in nats per token.

        ``t`` is 1 by default, or the time of a cut.
        """
        t = self._end_or(t, x)
        probs = self.marginal(x, t.to(torch.float64))
        prior = unsqueeze_times(each_time(self._typical, t), 1)
        return (torch.xlogy(probs, probs) - torch.xlogy(probs, prior)).sum(-1).clamp_min(0)

    # ---- terms of the bound

    def integrand(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
        """Integrand of the bound at (t, z), (B, L) nats per token, >= 0: the closed form, else the
        dense sum.

        Args:
            logits: (B, L, V) cavity logits.
            x: (B, L) clean tokens.
            z: (B, L) noisy states.
            t: (B,) times, or (B, L).
        """
        if not self.closed_form:
            return dense_integrand(self, logits, x, z, t)
        weight, divergence = self.weighted_divergence(logits, x, z, t)
        return weight.to(divergence.dtype) * divergence

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """Closed form of the bound's integrand as (weight, divergence), whose product it is.

        Requires ``closed_form``.

        Returns:
            ``loss_weight(x, z, t)`` in float64, and the divergence in the dtype of the logits, (B,
            L) each.

        Raises:
            TypeError: the process has none.
        """
        raise TypeError(f"{type(self).__name__} has no closed form of the bound")

    def integrand_parts(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """The bound's integrand as (weight, divergence), for losses that replace the weight.

        They are those of ``weighted_divergence``, or ``loss_weight`` and the dense sum over it,
        both in float64. ``integrand`` is the product, computed without a quotient. Arguments as
        there.
        """
        if self.closed_form:
            return self.weighted_divergence(logits, x, z, t)
        weight = self.loss_weight(x, z, t)
        return weight, quotient(dense_integrand(self, logits, x, z, t).to(torch.float64), weight)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        r"""Weight of ``weighted_divergence``, (B, L) float64; it depends on no network.

        Without a closed form it is the rate at which z is left backwards in time, given the token
        or given a token drawn uniformly, whichever is larger:

        .. math:: w = \max(r(x), r(u)),
            \qquad r(p) = \sum_{y \ne z} Q_t(y, z) \frac{q_t(y|p)}{q_t(z|p)}

        They are equal where the rate depends on the state alone, as for masks and levels. The first
        alone is no scale of the bound's integrand: given the token, states may be impossible from
        which the network expects z to come. There r(x) is 0, or as small as floats are, while the
        integrand is :math:`\sum_y Q_t(y, z) D(0, b_y) = r(p)` for the network's p (theory section
        1). The second is 0 only where the integrand of every network is.
        """
        t = interior(t)
        typical = unsqueeze_times(each_time(self._typical, t), 1).expand(*z.shape, -1)
        given_token = self._reverse_rates(self.marginal(x, t), z, t).sum(-1)
        return torch.maximum(given_token, self._reverse_rates(typical, z, t).sum(-1))

    def step_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times, s: Times) -> PerToken:
        """KL(p(z_s|z_t, x) || p(z_s|z_t, p)), s <= t: the term of a step of the bound in discrete
        time.

        The default takes it from the posterior, dense in the states.

        Args:
            logits: (B, L, V) cavity logits.
            x: (B, L) clean tokens.
            z: (B, L) states at ``t`` that x can become.
            t: (B,) times.
            s: (B,) earlier times.

        Returns:
            (B, L) nats per token, >= 0. Divided by t - s it nears the integrand of the continuous
            bound as s nears t.
        """
        t = t.to(torch.float64)
        s = s.to(torch.float64)
        truth = self.posterior(one_hot(x, self.vocab_size).to(torch.float64), z, t, s)
        predicted = self.posterior(logits.to(torch.float64).softmax(-1), z, t, s)
        reached = truth > 0
        ratio = torch.where(reached, truth, 1.0).log() - torch.where(reached, predicted, 1.0).log()
        return (truth * ratio).sum(-1).clamp_min(0).to(logits.dtype)

    def hard_weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """``weighted_divergence`` of the paper's hard training mode.

        Requires "hard" among ``modes``.

        Raises:
            TypeError: the process has no such mode.
        """
        raise TypeError(f"{type(self).__name__} has no hard mode")

    def edges_weighted_divergence(
        self,
        logits: Logits,
        x: Tokens,
        z: Tokens,
        t: Times,
        edge_weights: Sequence[float] | None = None,
    ) -> tuple[PerToken, PerToken]:
        """``weighted_divergence`` with losses on all edges below a state.

        Requires "edges" among ``modes``.

        Raises:
            TypeError: the process has no edges.
        """
        raise TypeError(
            f"{type(self).__name__} has no edges below its states: mode='edges' is for hierarchies"
        )

    # ---- times

    def time_density(
        self, length: int, divergences: Sequence[float] | None = None, chance: float = 1.0
    ) -> Tabulated:
        r"""Density of times under which the bound of a sequence has least variance.

        .. math:: g(t) \propto \sqrt{(c\, m(t))^2 + v(t) / L}

        with m and v the mean and the variance of the bound's integrand at one position (theory
        section 12), from ``time_moments`` on a grid that is fine at both ends. Any table is
        unbiased, so the divergences need only be guesses: where a level costs twice or half of
        that, the variance is at most 1.9 times the least, in strata 1.1 times (two levels, L = 128;
        docs/concepts/times.md).

        Args:
            length: L, positions of a sequence, at least 1.
            divergences: as in ``time_moments``.
            chance: c, in [0.01, 1]: the share of the mean that is random. c = 1 for independent
                times; with stratified times about 0.2, since the mean varies less.

        Raises:
            TypeError, ValueError: as ``time_moments``; a bad length or chance.

        Example:
            >>> import ddlib as dd
            >>> density = dd.presets.mdlm(5).time_density(length=128)
            >>> density.density(torch.tensor([0.001, 0.1, 0.9]).double())
            tensor([2.8541, 1.0075, 0.9766], dtype=torch.float64)
        """
        return optimal_times.density(self, length, divergences, chance)

    @torch.no_grad()
    def time_moments(
        self, t: Times, divergences: Sequence[float] | None = None
    ) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
        """Mean and mean square of the bound's integrand at one position, over uniform tokens and
        their noise.

        The integrand is that under a distribution over tokens that costs every token alike: over
        pairs of token and state where there is a closed form, else by matrix products over all
        states, up to 1,024 of them. A process whose levels have weights takes sums over levels
        (``LevelProcess``).

        Args:
            t: (B,) float64 times.
            divergences: the divergences of the network, in nats: one number for each level above
                the tokens, or one for a token where there are no such levels. By default those of
                uniform predictions, whose sum is the logarithm of the number of tokens. Only ratios
                between levels matter.

        Raises:
            TypeError, ValueError: other divergences; a large process without a closed form that has
                no small copy.
        """
        return optimal_times.moments(self, t, divergences)

    def tail_exponents(self, density: TimeDensity | None = None) -> dict[float, float]:
        r"""Exponents of the growth of the bound's variance near t = 0, t = 1 and all starts and
        ends of schedules.

        The exponents b in :math:`E[f(t)^2] / g(t) \sim t^{-b}` and :math:`(1 - t)^{-b}`, with f the
        integrand of ``time_moments`` at one position, over the decade that begins at 4e-7 from
        either end. The variance is an integral of this ratio: it has a finite value where all are
        below 1. At b = 1, as for masks under uniform times, it grows as the logarithm of the number
        of draws, and stated errors are nearly right (a self-normalised sum is asymptotically
        normal: Gine, Goetze and Mason, 1997). Where tokens that cost :math:`(1/t) \log(1/t)` have a
        probability of t, as under uniform and ordinal noise, it grows as the cube of the logarithm
        and b is about 1.15: most runs draw no such token, and state errors that are too small.

        At a start or end inside (0, 1) it is the larger exponent of the times before and the times
        after. Before it the decade is the one up to 2^-11, where a diverging flux is cut off
        (``Hierarchical``): the variance is then finite, but due to times that most runs do not
        draw.

        Args:
            density: of the times; None is uniform.

        Returns:
            Exponent by time: of 0.0, 1.0 and the times between at which a schedule starts or ends.

        Raises:
            TypeError, ValueError: as ``time_moments``.
        """
        return optimal_times.tail_exponents(self, density)

    def equivalence_classes(
        self,
    ) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "N"], Float64[Tensor, "N"]]:
        """Pairs of token and state that represent all pairs, and how many pairs each represents,
        (N,) each.

        By default every state with some tokens; a subclass whose tokens are alike returns fewer.
        """
        return optimal_times.pairs(self)

    # ---- draws of samplers

    def sample_given_level(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        s: Times,
        target: Tokens | None,
        generator: Generator = None,
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        """Draw z_s from the posterior, given cavity logits and, in a ``LevelProcess``, the levels
        at s.

        Args:
            logits: (B, L, V) cavity logits.
            z: (B, L) states at ``t``.
            t: (B,) times, or (B, L).
            s: earlier times.
            target: (B, L) levels at s from ``sample_level``; None to draw them here, or where there
                are none.
            generator: source of randomness.
            force: keep a token inside its cluster as it descends (the paper's force transition).
            sharpen: temperature and truncation: of the network's distribution, as in ``sharpen``,
                and in a ``LevelProcess`` of every distribution of tokens or clusters that is drawn
                from.
        """
        noise = self.draw_uniforms(z, generator)
        return self.sample_posterior(logits, z, t, s, noise, force=force, sharpen=sharpen)

    def sharpen(self, logits: Logits, z: Tokens, t: Times, sharpen: Sharpen) -> Logits:
        """Compute cavity logits after ``sharpen`` of the distribution over tokens that may have
        become z.

        The evidence of z is not sharpened: z_s then follows the exact posterior given the
        sharpened distribution, in any number of steps.

        Args:
            logits: (B, L, V) cavity logits.
            z: (B, L) states at ``t``.
            t: (B,) times, or (B, L).
            sharpen: temperature and truncation of log-probabilities.

        Returns:
            (B, L, V) logits, -inf at the other tokens; all as given without temperature and
            truncation.
        """
        if sharpen is identity:  # the evidence, a dense tensor, is not needed
            return float32_or_wider(logits)
        known, _ = evidence(self, z, t)
        return sharpen_possible(logits, known, sharpen)

    @property
    def num_uniforms(self) -> int:
        """Number of uniforms per position that ``sample_posterior`` takes."""
        return 2

    def draw_uniforms(self, z: Tokens, generator: Generator = None) -> tuple[Tensor, ...]:
        """Draw the uniforms of ``sample_posterior``, each of the shape of ``z``, before the network
        is evaluated.
        """
        return tuple(islice(uniforms(z.shape, generator, z.device), self.num_uniforms))

    def sample_posterior(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        s: Times,
        noise: Sequence[Tensor],
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        """Compute z_s from the result of ``draw_uniforms``, as ``sample_given_level``."""
        token_u, state_u = noise
        known, possible = evidence(self, z, t)
        cavity = sharpen_possible(logits, known, sharpen)
        x = draw_logits(cavity + known.to(cavity.dtype), token_u)
        probs = self.posterior(one_hot(x, self.vocab_size).to(torch.float64), z, t, s)
        probs = torch.where(possible, probs, one_hot(z, self.num_states))
        return draw(probs, state_u)

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits, sharpen: Sharpen = identity
    ) -> Float64[Tensor, "B L"]:
        """Rate at which the reverse chain leaves each state, per unit of time: ``reverse_rate``
        summed over states.

        Args:
            z: (B, L) states.
            t: (B,) times.
            logits: (B, L, V) cavity logits.
            sharpen: see ``sample_given_level``.
        """
        return self._rates(logits, z, t, sharpen).sum(-1).to(torch.float64)

    def sample_exit(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        moves: Bool[Tensor, "B L"],
        generator: Generator = None,
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        """Draw the next state of the reverse chain from ``z``, in proportion to ``reverse_rate``.

        Args:
            logits: (B, L, V) cavity logits.
            z: (B, L) states.
            t: (B,) times.
            moves: (B, L) the positions that jump, where the rate is not 0; the others stay.
            generator: source of randomness.
            force: see ``sample_given_level``.
            sharpen: see ``sample_given_level``.
        """
        u = rand(z.shape, generator, z.device)
        result = z.clone()
        rates = self._rates(logits, z, t, sharpen)
        rows = moves & (rates.sum(-1) > 0)
        result[rows] = draw(rates[rows], u[rows])
        return result

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """True where every token may have become the state, at times between 0 and 1, (B, L) bool.

        Only there does a network's output determine the distribution of a position given the
        others, from which Gibbs steps draw: a token that is never replaced determines itself.
        """
        return self._possible_tokens(z).all(-1)

    def replaceable(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """True at tokens that noise may have put in place of another one, (B, L) bool.

        Any value at other states.

        Where that holds for all other tokens or for none, ``replaceable_by_all`` replaces it: a
        dense tensor is not needed then.
        """
        return self._possible_tokens(z).sum(-1) > 1

    def _possible_tokens(self, z: Tokens) -> Bool[Tensor, "B L V"]:
        """Tokens that may have become the state at a time between 0 and 1."""
        possible = torch.zeros(*z.shape, self.vocab_size, dtype=torch.bool, device=z.device)
        # the same at all times between two breaks
        for start, end in pairwise([0.0, *self.breaks, 1.0]):
            middle = torch.full((len(z),), (start + end) / 2, dtype=torch.float64, device=z.device)
            possible |= self.token_likelihood(z, middle) > 0
        return possible

    def _rates(self, logits: Logits, z: Tokens, t: Times, sharpen: Sharpen) -> StateProbs:
        """``reverse_rate`` after ``sharpen``; 0 from states that no noise leads to."""
        known, possible = evidence(self, z, t)
        cavity = sharpen_possible(logits, known, sharpen)
        return torch.where(possible, self.reverse_rate(cavity.softmax(-1), z, t), 0.0)

    def _uniforms(self, x: Tokens, generator: Generator, levels: str) -> Float64[Tensor, "B L"]:
        """Uniforms from which each token's level, or its state, is drawn."""
        if levels != "independent":
            self.check_levels(levels)
        return rand(x.shape, generator, x.device)

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """Mean over noise of the weight phi of ``importance_weight``, and phi at z.

        0 only where the bound is.
        """
        probs, weighted = self._all_weights(x, t)
        prob_z, weighted_z = (
            values.gather(-1, z[..., None]).squeeze(-1) for values in (probs, weighted)
        )
        return weighted.sum(-1), quotient(weighted_z, prob_z)

    def _all_weights(
        self, x: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L S"], Float64[Tensor, "B L S"]]:
        """Marginal q_t(z|x), and q_t(z|x) phi(z), for every state z.

        The weight phi(z) is the rate at which the reverse chain leaves z given the token, plus the
        same rate given a uniformly drawn token. The second term keeps phi from 0 wherever the bound
        of some network is not 0.
        """
        time = interior(t)
        probs = self.marginal(x, time)
        typical = unsqueeze_times(each_time(self._typical, time), 1)
        rates = each_time(self.rate_matrix, time)
        rates = rates - torch.diag_embed(rates.diagonal(dim1=-2, dim2=-1))
        left = quotient(multiply_rows(typical, rates), typical)
        return probs, torch.where(probs > 0, multiply_rows(probs, rates) + probs * left, 0.0)

    def _end_or(self, t: Times | None, x: Tokens) -> Times:
        """Return the times, or 1 for every sequence where there are none."""
        return self._one().expand(len(x)) if t is None else t

    def _one(self) -> Tensor:
        return torch.ones((), dtype=torch.float64, device=self.device)

    def _uniform_tokens(
        self, shape: Sequence[int], generator: Generator, device: torch.device
    ) -> Tokens:
        return (rand(shape, generator, device) * self.vocab_size).to(torch.int64)

    def _typical(self, t: Tensor) -> Tensor:
        """Marginal distribution of a uniformly drawn token at the scalar ``t``, (S,) float64."""
        uniform = torch.full(
            (1, 1, self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=t.device
        )
        return self.predictive(uniform, t.to(torch.float64)[None])[0, 0]

    def _token_marginals(self, t: Tensor) -> Tensor:
        """Marginals q_t(z|x) of every token, (V, S) float64, at the scalar ``t``."""
        tokens = torch.arange(self.vocab_size, device=t.device)[None]
        return self.marginal(tokens, t.to(torch.float64)[None])[0]


def replaceable_by_all(process: ForwardProcess, z: Tokens) -> Bool[Tensor, "B L"]:
    """True at tokens that every other token may have become; the others are final."""
    return process.reachable_from_all_tokens(z) & (process.vocab_size > 1)


def evidence(
    process: ForwardProcess, z: Tokens, t: Times
) -> tuple[Float64[Tensor, "B L V"], Bool[Tensor, "B L 1"]]:
    """Log-likelihood log q_t(z|.) of every token, and True where some token may have become ``z``;
    where none may, 0 for all tokens.

    A token that is given, a prompt, may be one that no noise leads to at this time: it stays.
    """
    likelihood = process.token_likelihood(z, t)
    possible = (likelihood > 0).any(-1, keepdim=True)
    return torch.where(possible, likelihood, 1.0).log(), possible


def sharpen_possible(logits: Logits, known: Float64[Tensor, "B L V"], sharpen: Sharpen) -> Logits:
    """Cavity logits after ``sharpen`` of the distribution over tokens whose ``evidence`` is above
    -inf; of all tokens where the network excludes these.
    """
    logits = float32_or_wider(logits)
    possible = logits.masked_fill(known == -torch.inf, -torch.inf)
    some = (possible > -torch.inf).any(-1, keepdim=True)
    return sharpen(torch.where(some, possible, logits).log_softmax(-1))


def reduction(process: ForwardProcess, vocab_size: int) -> ForwardProcess:
    """Return ``process.small_copy(vocab_size)``: the function that plain values name."""
    return process.small_copy(vocab_size)


def draw_one(
    z: Tokens,
    total: Float64[Tensor, "B L"],
    weights: Float64[Tensor, "B L K"],
    generator: Generator,
) -> Tokens:
    """Draw one position of each sequence, and a new state, or level, for it: a "balanced" draw.

    Args:
        z: (B, L) states or levels, of which all others stay.
        total: weight of each position.
        weights: weight of each new state at each position.
        generator: source of randomness.
    """
    u = rand((len(z), 2), generator, z.device)
    which = draw(total, u[:, 0])
    here = weights[torch.arange(len(z), device=z.device), which]
    return z.scatter(1, which[:, None], draw(here, u[:, 1])[:, None])
