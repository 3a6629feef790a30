"""Hierarchical diffusion: a process from a hierarchy and a schedule."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.config.part import record_maker
from ddlib.hierarchies import Flat, Hierarchy, Tree
from ddlib.hierarchies.base import reach, reach_of_tokens, state_matrix
from ddlib.processes.base import reduction
from ddlib.processes.broadcasting import (
    gather_last,
    interior,
    quotient,
    scalar,
    span,
    unsqueeze_times,
)
from ddlib.processes.hierarchical_kl import children, children_at, descendants, descendants_at
from ddlib.processes.level_process import LevelProcess
from ddlib.schedules import Cosine, Linear, Polynomial, Schedule, Window
from ddlib.typing import Logits, PerToken, StateMatrix, StateProbs, Times, TokenProbs, Tokens
from ddlib.utils.precision import numbers_on
from ddlib.utils.validation import require


class Hierarchical(LevelProcess):
    r"""Tokens ascend the levels of a hierarchy, at rates that a schedule gives.

    With level occupancies :math:`a_i(t)` and the constant distributions :math:`u_i(\cdot|x)` of the
    state of level i given the token, :math:`q_t(z|x) = a_i(t) u_i(z|x)` for z in level i (theory
    section 2). The levels are a Markov chain that is independent of the tokens and, in reverse, of
    the network.

    The flux over every edge is finite at the ends of windows inside (0, 1). Where alpha to the
    power of the speed has an infinite derivative there, as :math:`(end - t)^{1/2}` has, it is
    linear in the last 2^-11 of time instead.

    Args:
        hierarchy: the levels, and the transition matrices between them.
        schedule: the schedule; ``alpha`` is the survival of a token on an edge of speed 1. Or one
            schedule for each edge in a list, the edge above the tokens first (theory section 15).

    Raises:
        TypeError: arguments of another kind.
        ValueError: see ``LevelProcess``.
    """

    @staticmethod
    def from_occupancies(hierarchy: Hierarchy, formulas: Sequence[Any]) -> "Hierarchical":
        r"""Return the process whose levels have these occupancies, the paper's arbitrary
        :math:`\alpha_t, \beta_{t,c}`.

        Args:
            hierarchy: the levels, all edges of speed 1.
            formulas: the probability of each level below the mask over time, tokens first, as in
                ``schedules.Occupancies``: strings or sympy expressions in t.

        Raises:
            TypeError, ValueError: as ``schedules.Occupancies``; another number of formulas than of
                edges; a speed other than 1.

        Example:
            >>> tree = Tree([[0, 0, 1, 1]])
            >>> process = Hierarchical.from_occupancies(tree, ["1 - t", "t*(1 - t)"])
            >>> process.occupancies(torch.tensor([0.5]))
            tensor([[0.5000, 0.2500, 0.2500]], dtype=torch.float64)
        """
        from ddlib.schedules import Occupancies  # imported here: sympy takes a while to load

        if not isinstance(hierarchy, Hierarchy):
            raise TypeError(f"hierarchy is {hierarchy!r}, must be a ddlib.hierarchies.Hierarchy")
        if isinstance(formulas, str) or not hasattr(formulas, "__len__"):
            raise TypeError(
                f"formulas is {formulas!r}, must be a list of one formula for each level below the "
                "mask"
            )
        require(
            len(formulas) == hierarchy.depth,
            f"formulas holds {len(formulas)} formulas, must hold one for each of the "
            f"{hierarchy.depth} levels below "
            "the mask",
        )
        speeds = hierarchy.speeds
        require(
            set(speeds) == {1.0},
            f"speed of the hierarchy is {speeds}, must be 1: the formulas determine the speed of "
            "each edge",
        )
        return Hierarchical(hierarchy, Occupancies(formulas).schedules())

    fused = "hierarchical"

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        tokens = one_hot(x, self.vocab_size).to(torch.float64)
        rows = [tokens] + [self.hierarchy.between(0, i).row(x) for i in range(1, self._depth + 1)]
        return self._join_levels(self.occupancies(t), rows).to(t.dtype)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        return self._join_levels(self.occupancies(t).to(p.dtype), self.hierarchy.level_probs(p))

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        return reach(self.hierarchy, x, z) * gather_last(self.occupancies(t), self.level_of(z))

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        return (
            self.token_evidence(z, t)
            * gather_last(self.occupancies(t), self.level_of(z))[..., None]
        )

    def token_evidence(self, z: Tokens, t: Times) -> TokenProbs:
        return reach_of_tokens(self.hierarchy, z)

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        return state_matrix(self.hierarchy, self.chain.rate_matrix(scalar(t, "t", self.device)))

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        return state_matrix(self.hierarchy, self.chain.transition(*span(s, t, self.device)))

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, s=s, p=p)
        level = self.level_of(z)
        given_level = self.hierarchy.level_probs(p)
        jumps = self.level_posterior(level, t, s).to(p.dtype)
        blocks = []
        possible = level == 0
        for i, probs in enumerate(given_level):
            mass = probs.gather(-1, self.hierarchy.local(z, i)[..., None]).squeeze(-1)
            possible = possible | ((level == i) & (mass > 0))
            itself = one_hot(self.hierarchy.local(z, i), probs.shape[-1]).to(p.dtype)
            block = torch.where((level == i)[..., None], itself, 0.0)
            for j in range(i + 1, self._depth + 1):
                block = torch.where(
                    (level == j)[..., None], self._descendants(z, i, j, probs), block
                )
            blocks.append(block * jumps[..., i : i + 1])
        return torch.where(
            possible[..., None], torch.cat(blocks, -1), one_hot(z, self.num_states).to(p.dtype)
        )

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, p=p)
        level = self.level_of(z)
        given_level = self.hierarchy.level_probs(p)
        weight = gather_last(self.weights(t).to(p.dtype), level)
        blocks = [torch.zeros_like(probs) for probs in given_level]
        for i in range(self._depth):
            rates = self._descendants(z, i, i + 1, given_level[i]) * weight[..., None]
            blocks[i] = torch.where((level == i + 1)[..., None], rates, 0.0)
        return torch.cat(blocks, -1)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        occupancies = unsqueeze_times(self.occupancies(self._end_or(t, x)), 1)
        result = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        uniform = torch.full(
            (self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64, device=x.device
        )
        for i, typical in enumerate(self.hierarchy.level_probs(uniform)):
            if i == 0:
                nats = torch.full_like(result, -float(uniform[0].log()))
            elif self.hierarchy.between(0, i).plain:
                nats = -typical[self.hierarchy.between(0, i).parents[x]].log()
            else:
                truth = self.hierarchy.between(0, i).row(x)
                nats = (torch.xlogy(truth, truth) - torch.xlogy(truth, typical)).sum(-1)
            result += occupancies[..., i] * nats
        return result.clamp_min(0)

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """Closed form of the bound: w_i(t), and KL(pi(.|z, x) || pi(.|z, p)) over children of z
        (theory section 2).
        """
        return self._divergence(logits, x, z, t, None)

    def step_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times, s: Times) -> PerToken:
        """Sum over levels of the posterior probability times the KL of the descendants of z (theory
        section 3).
        """
        self.check_inputs(x=x, z=z, t=t, s=s)
        probs = self.level_posterior(self.level_of(z), t, s).to(logits.dtype)
        if self._selects:
            return descendants_at(self.hierarchy, logits, x, z, probs)
        return descendants(self.hierarchy, *self._model_terms(logits, x), x, z, probs)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        return gather_last(self.weights(t), self.level_of(z))

    def hard_weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """The paper's hard training mode: -log p(x) in place of the KL at levels 2 and above.

        It is an upper bound of the KL at masks, and below them where xi = 1.
        """
        weight, divergence = self.weighted_divergence(logits, x, z, t)
        nats = -logits.log_softmax(-1).gather(-1, x[..., None]).squeeze(-1)
        return weight, torch.where(self.level_of(z) >= 2, nats, divergence)

    def edges_weighted_divergence(
        self,
        logits: Logits,
        x: Tokens,
        z: Tokens,
        t: Times,
        edge_weights: Sequence[float] | None = None,
    ) -> tuple[PerToken, PerToken]:
        r"""Losses on all edges below a state: w_i(t) and the sum over edges j <= i of s_ij times
        the KL of edge j.

        A position in level i has a loss on edge j, from level j - 1 to j, wherever j <= i: at the
        state of level j on the path from its token to z. Where xi < 1 allows several paths it is
        the mean over them. The network's distribution of the child of that state does not depend on
        i if the network ignores the position's own state, as the optimal cavity distribution does.
        So only the sum of the weights over levels matters:

        - by default :math:`w_i s_{ij} = F_{j-1} / (a_j + \dots + a_n)`, see ``edge_shares``. Given
          t the mean weight of edge j is :math:`F_{j-1}`, as in the bound. For a network that
          ignores the position's own state this is an unbiased estimate of the bound. For any other
          network it estimates an upper bound on :math:`-\log p(x)`, but for a model other than the
          sampled one: in that model the token first ascends to a level drawn from :math:`a_i / (a_j
          + \dots + a_n)`, and the network is evaluated there (convexity of the KL).
        - With ``edge_weights`` e it is :math:`s_{ij} = e_j`. If all are at least 1 the loss is at
          least the bound, for every network. With :math:`e_j = 1/(n - j + 1)` the weight of an edge
          sums to 1 over time, but at later times: a noisier context is less informative about a
          child, so for the best network the loss is at least the bound. Otherwise it is a loss, not
          a bound. All 1 is the paper's hard mode where n <= 2; for n > 2 the hard mode also has
          losses at intermediate levels for edges above them.

        Args:
            logits: (B, L, V) cavity logits.
            x: (B, L) clean tokens.
            z: (B, L) noisy states.
            t: (B,) times, or (B, L).
            edge_weights: e_j, one for each edge, the edge above the tokens first; not checked.
        """
        return self._divergence(logits, x, z, t, self.edge_shares(z, t, edge_weights))

    def edge_shares(
        self, z: Tokens, t: Times, edge_weights: Sequence[float] | None = None
    ) -> Float64[Tensor, "B L n"]:
        r"""Factor s_ij of each edge j <= i at states of level i, as a share of the level's weight.

        0 for edges above z.

        By default :math:`s_{ij} = F_{j-1} / ((a_j + \dots + a_n) w_i)`: 1 for the last edge at the
        mask.

        Args:
            z: (B, L) states.
            t: (B,) times, or (B, L).
            edge_weights: e_j, in place of the default.
        """
        n = self._depth
        level = self.level_of(z)
        below = level[..., None] > torch.arange(n, device=z.device)
        if edge_weights is not None:
            return torch.where(below, numbers_on(z.device, edge_weights), 0.0)
        reached = self.occupancies(interior(t)).flip(-1).cumsum(-1).flip(-1)[..., 1:]
        share = quotient(self._inflow(t)[..., 1:], reached)
        weight = gather_last(self.weights(t), level)[..., None]
        return torch.where(below, quotient(unsqueeze_times(share, 1), weight), 0.0)

    def small_copy(self, vocab_size: int) -> Self:
        """Return the process of the same schedule over ``hierarchy.small_copy``.

        A subclass with further arguments must override it.
        """
        other = type(self).__new__(type(self))
        Hierarchical.__init__(other, self.hierarchy.small_copy(vocab_size), self._one_or_all)
        copy: Self = record_maker(other, reduction, process=self, vocab_size=vocab_size)
        return copy

    @classmethod
    def examples(cls) -> Sequence[Self]:
        staged = [Window(Linear(), 0.0, 0.5), Window(Linear(), 0.5, 1.0)]
        tree = Tree([[0, 0, 1, 1]])
        deep = Tree([[0, 0, 1, 1, 2, 2], [0, 0, 1]], xi=[0.8, 0.9], speed=[2.0, 1.0, 0.7])
        plain = [cls(each, Linear()) for each in (*Flat.examples(), *Tree.examples())]
        return [*plain, cls(tree, staged), cls(deep, [Cosine(), Polynomial(2.0), Linear()])]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hierarchy!r}, {self._one_or_all!r})"

    @property
    def _one_or_all(self) -> Schedule | list[Schedule]:
        """The schedule, or a list with one for each edge."""
        return self.schedules[0] if len(self.schedules) == 1 else list(self.schedules)

    @property
    def _selects(self) -> bool:
        """True if positions are sorted by level, which pays where a push costs more than a pass
        over the logits.
        """
        return not torch.compiler.is_compiling() and not all(
            edge.one_pass for edge in self.hierarchy.maps
        )

    def _model_terms(self, logits: Logits, x: Tokens) -> tuple[Tensor, Tensor]:
        """Terms of the network that the bound needs: log p(x), (B, L), and log u_1(.|p), (B, L,
        clusters).
        """
        log_p = logits.log_softmax(-1)
        return log_p.gather(-1, x[..., None]).squeeze(-1), self.hierarchy.maps[0].log_push(log_p)

    def _divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times, shares: Tensor | None
    ) -> tuple[PerToken, PerToken]:
        weight = self.loss_weight(x, z, t)
        if self._selects:
            return weight, children_at(self.hierarchy, logits, x, z, shares)
        return weight, children(self.hierarchy, *self._model_terms(logits, x), x, z, shares)

    def _descendants(self, z: Tokens, lower: int, upper: int, probs: Tensor) -> Tensor:
        """Distribution of the descendant in ``lower`` of ``z`` in ``upper``, in proportion to
        K(z|y) u(y|p).
        """
        joint = (
            self.hierarchy.between(lower, upper)
            .column(self.hierarchy.local(z, upper))
            .to(probs.dtype)
            * probs
        )
        return joint / joint.sum(-1, keepdim=True).clamp_min(torch.finfo(probs.dtype).tiny)

    def _join_levels(self, occupancies: Tensor, given_level: list[Tensor]) -> Tensor:
        """Distribution over all states from the occupancies and the distribution within each
        level.
        """
        occupancies = unsqueeze_times(occupancies, 1)
        return torch.cat(
            [occupancies[..., i : i + 1] * probs for i, probs in enumerate(given_level)], -1
        )
