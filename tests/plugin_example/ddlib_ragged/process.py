"""Process in which the number of levels between a token and the mask depends on the token."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Self, cast

import torch
from torch import Tensor, nn

from ddlib.hierarchies import Hierarchy, Tree
from ddlib.processes import ForwardProcess, Hierarchical, identity, unsqueeze_times
from ddlib.schedules import Geometric, Schedule
from ddlib.typing import (
    Logits,
    PerToken,
    Sharpen,
    StateMatrix,
    StateProbs,
    Times,
    TokenProbs,
    Tokens,
)
from ddlib.utils.categorical import draw_logits
from ddlib.utils.precision import Float64Module
from ddlib.utils.random import Generator
from ddlib.utils.validation import require
from ddlib_ragged.hierarchy import Bands, Straight
from ddlib_ragged.schedule import LogOdds


class Family(Float64Module):
    """Tokens with a common process, and the ids of the states of this process in the combined
    process.

    Args:
        process: process of the tokens.
        states: ids of the states of ``process`` in the combined process, (S of ``process``,) int64,
            tokens first, the mask last.
        num_states: number of states S of the combined process.
    """

    states: Tensor
    place: Tensor

    def __init__(self, process: Hierarchical, states: Tensor, num_states: int) -> None:
        super().__init__()
        self.process = process
        self.states = states
        self.place = torch.full((num_states,), -1)
        self.place[states] = torch.arange(len(states))

    @property
    def words(self) -> Tensor:
        """Ids of the tokens of the family, (V of ``process``,)."""
        return self.states[: self.process.vocab_size]

    def owns(self, z: Tokens) -> Tensor:
        """True at states of the family; the mask is a state of every family."""
        return self.place[z] >= 0

    def local(self, z: Tokens) -> Tokens:
        """Ids of the states in ``process``; 0, the id of a token, at states of other families."""
        return self.place[z].clamp_min(0)


class Ragged(ForwardProcess):
    r"""Process in which words pass through the levels of a hierarchy and punctuation jumps directly
    to the mask.

    Words and punctuation are two families f of tokens. At states other than the mask each family is
    a separate hierarchical process, with the bound of theory section 2. The mask is a state of
    both. Let :math:`a_f` be the probability that a token of family f is masked, :math:`F_f` the
    flux of the family into the mask and :math:`p_f` the sum of p over the family. Then
    :math:`q_t(m|p) = \sum_f p_f a_f`, and a masked token belongs to family f with probability
    :math:`e_f = p_f a_f / q_t(m|p)`. For a child y of the mask in f, a top cluster or a punctuation
    token,

    .. math:: a_y = \frac{q_t(y|x)}{a_f} [x \in f], \qquad b_y = e_f \frac{q_t(y|p_f)}{a_f}

    where :math:`q_t(\cdot|p_f)` is the marginal of the process of the family for p conditioned on
    the family. All children of the mask in f jump to it at the same rate :math:`Q_f`, and
    :math:`Q_f \sum_{y \in f} q_t(y|x) / a_f = F_f / a_f = w_f`. Therefore :math:`\sum_y Q_t(y, m)
    D(a_y, b_y)` (theory section 1) is, for x in f,

    .. math:: w_f \left(\mathrm{KL}_f - \log e_f - (1 - e_f)\right) + \sum_{g \ne f} w_g e_g

    with :math:`\mathrm{KL}_f` the divergence in the bound of the process of family f. The first
    term is the loss of the token within its family and of the family; the sum is that of the other
    families. At states other than the mask :math:`e_f` is 1 and the sum is empty.

    Args:
        hierarchy: hierarchy of the words, which are the tokens not in ``punctuation``, in order.
        punctuation: ids of the tokens that jump directly to the mask, at least one.
        schedule: schedule of both families.
        speed: speed of punctuation; the speeds of words are in the hierarchy.

    Raises:
        TypeError: hierarchy or schedule has another type.
        ValueError: punctuation is empty, repeated or out of range, or alpha does not decrease from
            1 to 0.

    Example:
        >>> tree = dd.hierarchies.Tree([[0, 0, 1, 1]])
        >>> process = Ragged(tree, punctuation=[2], schedule=dd.schedules.Linear())
        >>> process.sample(torch.arange(5)[None], torch.tensor([1.0]))
        tensor([[7, 7, 7, 7, 7]])
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        punctuation: Sequence[int],
        schedule: Schedule,
        speed: float = 1.0,
    ) -> None:
        climb = Hierarchical(hierarchy, schedule)
        size = climb.vocab_size + len(punctuation)
        good = len(set(punctuation)) == len(punctuation) > 0 and all(
            0 <= y < size for y in punctuation
        )
        require(
            good,
            f"punctuation is {list(punctuation)}, must be distinct tokens in [0, {size}), at "
            "least one",
        )
        super().__init__(size, climb.num_states + len(punctuation))
        self.declare(hierarchy=hierarchy, punctuation=punctuation, speed=speed)
        self.schedule = schedule
        is_mark = torch.zeros(size, dtype=torch.bool)
        is_mark[list(punctuation)] = True
        leap = Hierarchical(Straight(len(punctuation), speed), schedule)
        above = torch.arange(size, self.num_states)
        words = Family(climb, torch.cat([(~is_mark).nonzero()[:, 0], above]), self.num_states)
        marks = Family(leap, torch.cat([is_mark.nonzero()[:, 0], above[-1:]]), self.num_states)
        self.families = cast(Sequence[Family], nn.ModuleList([words, marks]))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        tree = Tree([[0, 0, 1, 1, 2], [0, 1, 1]], xi=[0.8, 1.0])
        bands = Bands([5, 1, 4], 2)
        return [cls(bands, [1, 3], LogOdds(1.5), speed=0.5), cls(tree, [0], Geometric(), speed=2.0)]

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        probs = torch.zeros(*x.shape, self.num_states, dtype=t.dtype, device=t.device)
        for family in self.families:
            inside = family.process.marginal(family.local(x), t) * family.owns(x)[..., None]
            probs.index_add_(-1, family.states, inside)
        return probs

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        probs = p.new_zeros(*p.shape[:-1], self.num_states)
        for family in self.families:
            inside = p[..., family.words]
            mass = inside.sum(-1, keepdim=True)
            given = inside / mass.clamp_min(torch.finfo(p.dtype).tiny)
            probs.index_add_(-1, family.states, mass * family.process.predictive(given, t))
        return probs

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        result = torch.zeros(z.shape, dtype=torch.float64, device=z.device)
        for family in self.families:
            inside = family.process.likelihood(family.local(z), family.local(x), t)
            result = torch.where(family.owns(z) & family.owns(x), inside, result)
        return result

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        result = torch.zeros(*z.shape, self.vocab_size, dtype=torch.float64, device=z.device)
        for family in self.families:
            inside = family.process.token_likelihood(family.local(z), t)
            result[..., family.words] = inside * family.owns(z)[..., None]
        return result

    def sample(self, x: Tokens, t: Times, generator: Generator = None) -> Tokens:
        """Draw z_t ~ q_t(.|x) with the process of each family, without tensors of size S."""
        self.check_inputs(x=x, t=t)
        result = x
        for family in self.families:
            inside = family.states[family.process.sample(family.local(x), t, generator)]
            result = torch.where(family.owns(x), inside, result)
        return result

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        return self._assemble(lambda process: process.rate_matrix(t))

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        return self._assemble(lambda process: process.transition(s, t))

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """Sum of w_f over the families, which depends on time and state only, and the bound divided
        by it.
        """
        log_p = logits.log_softmax(-1)
        log_e = self._hidden(log_p, z, t)
        weights = []
        terms = []
        for family, log_own in zip(self.families, log_e.unbind(-1), strict=True):
            inside = _inside(log_p, family)
            weight, kl = family.process.weighted_divergence(
                inside, family.local(x), family.local(z), t
            )
            weights.append(weight)
            terms.append(
                torch.where(family.owns(x), kl - log_own + torch.expm1(log_own), log_own.exp())
            )
        weight = torch.stack(weights)
        flux = torch.stack(weights) * torch.stack(terms)
        total = weight.sum(0)
        divergence = flux.sum(0) / torch.where(total > 0, total, 1.0)
        return total, divergence.clamp_min(0).to(logits.dtype)  # rounding may make it negative

    @property
    def levels(self) -> tuple[int, ...]:
        level = self.level_of(torch.arange(self.num_states, device=self.device)[None])[0]
        return tuple(torch.bincount(level).tolist())

    def level_of(self, z: Tokens) -> Tokens:
        words = self.families[0]
        return words.process.level_of(words.local(z))

    @property
    def num_uniforms(self) -> int:
        return 1 + sum(family.process.num_uniforms for family in self.families)

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
        """Draw the family of each masked token, then its state with the process of the family."""
        log_p = self.sharpen(logits, z, t, sharpen).log_softmax(-1)
        hidden = self._hidden(log_p, z, t).flatten(0, 1)
        draws = iter(noise)
        chosen = draw_logits(hidden, next(draws).flatten()).view_as(z)
        result = z
        for i, family in enumerate(self.families):
            here = torch.where(
                chosen == i, family.local(z), 0
            )  # 0 is a token, and tokens do not change
            there = family.process.sample_posterior(
                _inside(log_p, family),
                here,
                t,
                s,
                list(islice(draws, family.process.num_uniforms)),
                force=force,
            )
            result = torch.where(chosen == i, family.states[there], result)
        return result

    def small_copy(self, vocab_size: int) -> Self:
        """Return a process of this class over at most ``vocab_size`` tokens, with a similar share
        of punctuation.

        Raises:
            ValueError: ``vocab_size`` is below 2, or too small for the hierarchy of the words.
        """
        require(
            vocab_size >= 2, f"vocab_size is {vocab_size}, must be at least 2: a word and a mark"
        )
        words, marks = (family.process for family in self.families)
        share = round(vocab_size * marks.vocab_size / self.vocab_size)
        share = min(max(1, share), vocab_size - 1)
        hierarchy = words.small_copy(vocab_size - share).hierarchy
        straight = marks.small_copy(share).hierarchy
        return type(self)(hierarchy, range(straight.vocab_size), self.schedule, straight.speeds[0])

    def _hidden(self, log_p: Tensor, z: Tokens, t: Times) -> Tensor:
        """Return log e_f, the log-probability of each family given the state, (B, L, families)."""
        scores = []
        for family in self.families:
            masked = unsqueeze_times(family.process.occupancies(t)[..., -1]).clamp_min(
                torch.finfo(torch.float64).tiny
            )
            score = _inside(log_p, family).logsumexp(-1) + masked.log().to(log_p.dtype)
            scores.append(torch.where(family.owns(z), score, -torch.inf))
        return torch.stack(scores, -1).log_softmax(-1)

    def _assemble(self, block: Callable[[Hierarchical], Tensor]) -> StateMatrix:
        """Combine the matrices of the families.

        They share only the mask, which no family leaves.
        """
        result = torch.zeros(
            self.num_states, self.num_states, dtype=torch.float64, device=self.device
        )
        for family in self.families:
            result[family.states[:, None], family.states] = block(family.process)
        return result


def _inside(log_p: Tensor, family: Family) -> Tensor:
    """Log-probabilities of the tokens of a family, not normalised, and finite: -inf for all tokens
    would give NaN.
    """
    return log_p[..., family.words].clamp_min(-1e30)
