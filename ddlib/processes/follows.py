"""What follows from the contract, each answer dense and slow until a leaf knows better."""

from collections.abc import Sequence
from inspect import signature

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.processes.broadcasting import beside, columns_at, each_time, interior, rows_at, through
from ddlib.processes.contract import Contract
from ddlib.typing import Logits, PerToken, StateProbs, Times, TokenProbs, Tokens
from ddlib.utils.categorical import draw
from ddlib.utils.random import Generator, rand
from ddlib.utils.validation import check_devices, check_order, check_times, require

LEVELS = ("independent", "balanced")
"""How the levels of a text's tokens may be drawn, see ``Follows.sample``."""


class Follows(Contract, own_times=True):
    """Draws, likelihoods, the reverse direction, the prior, the terms of the bound: all from the three answers.

    Right for every leaf, by tensors of size (S, S) and (B, L, S). Leaves with structure override what they can do
    without, and ``weighted_divergence`` where the bound has a closed form.
    """

    def sample(self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent") -> Tokens:
        """Draws z_t ~ q_t(.|x).

        ``levels`` says how the tokens of a text share its noise; each text keeps to itself.

        - "independent": not at all. This is the process.
        - "balanced": one token of the text, chosen at random, is drawn where the bound has its weight, the others as
          ever. With each text's terms multiplied by ``importance_weight(x, z, t)`` all means of the bound are what they
          were, and what changes with the number of tokens at a level is gone.

        Args:
            x: (B, L) clean words.
            t: (B,) times, or (B, L), one for each position.
            generator: source of randomness.
            levels: "independent" or "balanced".

        Raises:
            TypeError, ValueError: x not int64 words (B, L); t not (B,) or (B, L) in [0, 1]; different devices; unknown
                levels.
        """
        self.check_inputs(x=x, t=t)
        z = draw(self.marginal(x, t.to(torch.float64)), self._uniforms(x, generator, levels))
        if levels != "balanced":
            return z
        pull = self._all_weights(x, t)[1]
        rows, one = torch.arange(len(x), device=x.device), rand((len(x), 2), generator, x.device)
        which = draw(pull.sum(-1), one[:, 0])
        return z.scatter(1, which[:, None], draw(pull[rows, which], one[:, 1])[:, None])

    def importance_weight(self, x: Tokens, z: Tokens, t: Times) -> Float64[Tensor, "B"]:
        r"""By what to multiply a text's bound or loss where z was drawn with ``levels="balanced"``.

        :math:`\sum_l E\,\varphi_l / \sum_l \varphi_l(z_l)`, the mean over noise of the texts' weight at t over the
        weight of this one, with :math:`\varphi` the weight of the bound where there is a closed form. Balanced draws
        follow :math:`q_t(z|x)` divided by it, so means come out as over independent draws, for whatever is 0 where no
        token has a weight, as the bound is.

        Args:
            x: (B, L) clean words.
            z: (B, L) noisy states.
            t: (B,) times.

        Returns:
            (B,) float64; 0 where no balanced draw leads to z.
        """
        mean, here = self._weight_and_mean(x, z, t)
        total = here.sum(-1)
        return torch.where(total > 0, mean.sum(-1) / torch.where(total > 0, total, 1.0), 0.0)

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draws z_t ~ q_{t|s}(.|z_s) from states ``z`` at s <= t: a step forwards in time, for whoever noises again.

        Args:
            z: (B, L) states at ``s``.
            s: (B,) times.
            t: (B,) later times; where they are no later nothing moves.
            generator: source of randomness.

        Raises:
            TypeError, ValueError: as ``sample``, z not int64 states, or s later than t.
        """
        self.check_forwards(z, s, t)
        law = rows_at(self.transition, z, s, t)
        return draw(law, rand(z.shape, generator, z.device))

    def check_levels(self, levels: str) -> None:
        """Raises unless ``sample`` can draw the levels of a text in this way.

        Raises:
            TypeError: the class has a ``sample`` of its own that takes no ``levels``.
            ValueError: an unknown one.
        """
        require(
            levels != "systematic",
            "levels is 'systematic', which was removed after 0.1.0: its mean is not that of the bound; use 'balanced'",
        )
        require(levels in LEVELS, f"levels is {levels!r}, must be one of {', '.join(map(repr, LEVELS))}")
        if levels != "independent" and "levels" not in signature(self.sample).parameters:
            raise TypeError(
                f"levels is {levels!r}, which {type(self).__name__} cannot: its sample(x, t, generator) takes no levels"
            )

    def check_forwards(self, z: Tokens, s: Times, t: Times) -> None:
        """Raises unless states and times are well formed and s <= t."""
        self.check_inputs(z=z, t=t)
        check_times("s", s, *z.shape)
        require(s.shape == t.shape, f"s has shape {tuple(s.shape)}, must be that of t, {tuple(t.shape)}")
        check_devices(z=z, s=s)
        check_order(s, t)

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        """q_t(z|x), elementwise (B, L), float64."""
        return self.marginal(x, t.to(torch.float64)).gather(-1, z[..., None]).squeeze(-1)

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        """q_t(z|x) for every word x, (B, L, V), float64."""
        return columns_at(self._token_marginals, z, t)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        """q_t(.|p) = sum_x p(x) q_t(.|x), (B, L, S)."""
        return through(p, each_time(self._token_marginals, t).to(p.dtype))

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        """The law of z_s given z_t and the word law ``p`` (cavity), s < t, (B, L, S).

        q_{t|s}(z|y) q_s(y|p) / q_t(z|p) (theory section 3).

        Raises:
            TypeError, ValueError: as ``sample``, or s not below t.
        """
        self.check_inputs(z=z, t=t, s=s, p=p)
        joint = columns_at(self.transition, z, s, t).to(p.dtype) * self.predictive(p, s)
        return joint / joint.sum(-1, keepdim=True)

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        """Rates of the reverse chain from z to each other state, (B, L, S); 0 at z itself.

        Q_t(y, z) q_t(y|p) / q_t(z|p) (theory section 1, with rates per unit of time, running backwards).
        """
        self.check_inputs(z=z, t=t, p=p)
        return self._reversed(self.predictive(p, t), z, t)

    def rates_into(self, z: Tokens, t: Times) -> Float64[Tensor, "B L S"]:
        """Q_t(y, z), the forward rates into z from every state y, (B, L, S); minus its exit rate at z itself."""
        return columns_at(self.rate_matrix, z, t)

    def _reversed(self, marginal: StateProbs, z: Tokens, t: Times) -> StateProbs:
        """The reverse rates of a chain from its marginal distributions, (B, L, S)."""
        rates = self.rates_into(z, t).to(marginal.dtype) * marginal / marginal.gather(-1, z[..., None])
        return rates.scatter(-1, z[..., None], 0.0)

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
        words = self._uniform_tokens(shape, generator, place)
        return self.sample(words, self._one().to(place).expand(shape[0]), generator)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        """KL(q_t(.|x) || q_t(.|uniform word)) in nats per token; ``t`` defaults to 1 and may be where time is cut."""
        t = self._one().expand(len(x)) if t is None else t
        law = self.marginal(x, t.to(torch.float64))
        prior = beside(each_time(self._typical, t), 1)
        return (torch.xlogy(law, law) - torch.xlogy(law, prior)).sum(-1).clamp_min(0)

    def weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken] | None:
        """The closed form of the bound's integrand as (weight, divergence), whose product it is; None if there is none.

        ``logits`` are of the cavity law. The weight depends on time and state alone and is what training clips.
        """
        return None

    def step_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times, s: Times) -> PerToken:
        """KL(p(z_s|z_t, x) || p(z_s|z_t, p)), s < t, in nats: what a step of the bound in discrete time costs.

        Here by the posterior, dense in the states. ``logits`` are of the cavity law; z must be one that x can become.

        Args:
            logits: (B, L, V) over words.
            x: (B, L) clean words.
            z: (B, L) states at ``t``.
            t: (B,) times.
            s: (B,) earlier times.

        Returns:
            (B, L) nats per token, >= 0. Divided by t - s it nears the integrand of the continuous bound as s nears t.
        """
        t, s = t.to(torch.float64), s.to(torch.float64)
        truth = self.posterior(one_hot(x, self.vocab_size).to(torch.float64), z, t, s)
        believed = self.posterior(logits.to(torch.float64).softmax(-1), z, t, s)
        reached = truth > 0
        ratio = torch.where(reached, truth, 1.0).log() - torch.where(reached, believed, 1.0).log()
        return (truth * ratio).sum(-1).clamp_min(0).to(logits.dtype)

    def hard_weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken]:
        """``weighted_divergence`` of the paper's hard training mode, in processes that have "hard" among their modes.

        Raises:
            TypeError: this one does not.
        """
        raise TypeError(f"{type(self).__name__} has no hard mode")

    def edges_weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times, edge_weights: Sequence[float] | None = None
    ) -> tuple[PerToken, PerToken]:
        """``weighted_divergence`` with losses on all edges below a state, in processes with "edges" among their modes.

        Raises:
            TypeError: this one has no edges.
        """
        raise TypeError(f"{type(self).__name__} has no edges below its states: mode='edges' is for hierarchies")

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        """The weight of ``weighted_divergence``, which training clips, in float64; no network is needed for it.

        Without a closed form it is the rate at which z is left backwards in time, given the word.
        """
        t = t.to(torch.float64)
        return self._reversed(self.marginal(x, t), z, t).sum(-1)

    def _uniforms(self, x: Tokens, generator: Generator, levels: str) -> Float64[Tensor, "B L"]:
        """By which each token's level, or its state, is drawn."""
        if levels != "independent":
            self.check_levels(levels)
        return rand(x.shape, generator, x.device)

    def _weight_and_mean(self, x: Tokens, z: Tokens, t: Times) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """Mean over noise of the weight phi of ``importance_weight``, and phi at z; 0 only where the bound is."""
        law, pull = self._all_weights(x, t)
        chance, here = (of.gather(-1, z[..., None]).squeeze(-1) for of in (law, pull))
        return pull.sum(-1), here / torch.where(chance > 0, chance, 1.0)

    def _all_weights(self, x: Tokens, t: Times) -> tuple[Float64[Tensor, "B L S"], Float64[Tensor, "B L S"]]:
        """q_t(z|x), and times it phi(z): the rates at which z is left backwards in time given the word and given none.

        The second of these keeps phi from 0 wherever some network's bound is not.
        """
        time = interior(t)
        law, typical = self.marginal(x, time), beside(each_time(self._typical, time), 1)
        rates = each_time(self.rate_matrix, time)
        rates = rates - torch.diag_embed(rates.diagonal(dim1=-2, dim2=-1))
        left = torch.where(typical > 0, through(typical, rates) / torch.where(typical > 0, typical, 1.0), 0.0)
        return law, torch.where(law > 0, through(law, rates) + law * left, 0.0)

    def _one(self) -> Tensor:
        return torch.ones((), dtype=torch.float64, device=self.device)

    def _uniform_tokens(self, shape: Sequence[int], generator: Generator, device: torch.device) -> Tokens:
        return (rand(shape, generator, device) * self.vocab_size).to(torch.int64)

    def _typical(self, t: Tensor) -> Tensor:
        """The marginal of a uniformly drawn word at the scalar ``t``, (S,) float64."""
        uniform = torch.full((1, 1, self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=t.device)
        return self.predictive(uniform, t.to(torch.float64)[None])[0, 0]

    def _token_marginals(self, t: Tensor) -> Tensor:
        """q_t(z|x) for every word and state, (V, S) float64, at the scalar ``t``."""
        words = torch.arange(self.vocab_size, device=t.device)[None]
        return self.marginal(words, t.to(torch.float64)[None])[0]
