"""A hierarchy whose words can be wrong."""

from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.categorical import draw, draw_logits
from ddlib.checks import check_number, check_shape, require
from ddlib.exact import digest
from ddlib.hierarchies import Flat, Hierarchy, Tree
from ddlib.noise import Generator, rand
from ddlib.processes.base import ForwardProcess, elapsed, interior, into, scalar, span, unchanged
from ddlib.processes.mixture import falls_short, log1p_exp
from ddlib.processes.redraws import RedrawChain, Shares, ratio_of
from ddlib.processes.ways import climb, dense, descent, reach, reach_of_words, shared
from ddlib.schedules import Cosine, Linear, Schedule
from ddlib.typing import Logits, PerToken, Sharpen, StateLaw, StateMatrix, Times, Tokens, WordLaw


class Noisy(ForwardProcess):
    r"""Tokens climb a hierarchy, and on their way are redrawn: words by other words, clusters by other clusters.

    In level i a token climbs at :math:`s_i` and is redrawn at :math:`\lambda_i` times the rate of the clock, from the
    law :math:`\pi_i` of the level: that of a uniform or of a frequent word, pushed up by the maps. A redraw forgets the
    word and commutes with the maps, so a token is a level and a flag, kept or redrawn (theory section 13). With
    :math:`k_i(t)` and :math:`r_i(t)` the probabilities of level i, kept and redrawn,

    .. math:: q_t(z|x) = k_i(t) u_i(z|x) + r_i(t) \pi_i(z), \qquad z \in L_i.

    Without redraws it is ``Hierarchical``; without clusters it is masks and uniform noise at a fixed ratio of rates.
    Levels move on their own, but which of them a token comes from depends on whether it was redrawn, and so, in
    reverse, on the network.

    Args:
        hierarchy: where tokens climb.
        schedule: when; ``alpha`` is the survival of a token on an edge of speed 1.
        p_uniform: in [0, 1), the largest share, over all times, of tokens that are words and were redrawn. It is what
            ``GIDD`` means, where the largest share is that at t = 1/2. Or one number for each level below the mask: of
            the tokens that come to the level, the largest share that is in it and was redrawn in it. A single number is
            for words. It sets :math:`\lambda_i / s_i`, whatever the schedule and the speeds.
        frequency: (V,) how often each word is drawn, at least 0, in any unit; default all alike.

    Raises:
        TypeError: arguments of another kind.
        ValueError: p_uniform outside [0, 1) or not one number, or one per level below the mask; a frequency that is
            negative, not finite, 0 everywhere, or not one per word; alpha not decreasing from 1 to 0.

    Example:
        >>> from ddlib.schedules import Linear
        >>> process = Noisy(Tree([[0, 0, 1, 1]]), Linear(), p_uniform=0.2)
        >>> process.likelihood(torch.tensor([[0, 1, 3, 4, 6]]), torch.zeros(1, 5).long(), torch.tensor([0.5]))
        tensor([[0.3039, 0.0490, 0.0490, 0.2485, 0.1534]], dtype=torch.float64)
    """

    schedule: Schedule
    hierarchy: Hierarchy
    typical: Tensor
    """pi of every state: the law of the member of each level above a redrawn word, (S,)."""

    def __init__(
        self, hierarchy: Hierarchy, schedule: Schedule, p_uniform: float | Sequence[float], frequency: Any = None
    ) -> None:
        if not isinstance(hierarchy, Hierarchy):
            raise TypeError(f"hierarchy is {hierarchy!r}, must be a ddlib.hierarchies.Hierarchy")
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
        schedule.check()
        super().__init__(hierarchy.vocab_size, hierarchy.num_states)
        self.hierarchy, self.schedule = hierarchy, schedule
        self.p_uniform = _shares(p_uniform, hierarchy.depth)
        self.ratios = tuple(map(ratio_of, self.p_uniform))
        words = _law(frequency, hierarchy)
        self.register_buffer("frequency", None if frequency is None else words)
        self.register_buffer("typical", torch.cat(hierarchy.laws(words)))
        self._fixed = (
            self._chain(torch.tensor(hierarchy.speeds, dtype=torch.float64)) if hierarchy.learned is None else None
        )

    frequency: Tensor | None

    @property
    def chain(self) -> RedrawChain:
        """Levels and flags alone; made anew for each answer where speeds are learned, so that gradients reach them."""
        learned = self.hierarchy.learned
        return cast(RedrawChain, self._fixed) if learned is None else self._chain(learned())

    def shares(self, t: Times) -> Shares:
        """k_i(t) and r_i(t), the probability of each level, kept and redrawn, (B, n + 1) each."""
        return self.chain.occupancies(self._clock(t))

    def shares_between(self, s: Times, t: Times) -> Shares:
        """The same at t for tokens of each level at s, counted from there, (B, n + 1, n + 1) each."""
        return self.chain.transition(elapsed(self.schedule, s, t))

    def level_of(self, z: Tokens) -> Tokens:
        return self.hierarchy.level_of(z)

    @property
    def levels(self) -> tuple[int, ...]:
        return self.hierarchy.levels

    def marginal(self, x: Tokens, t: Times) -> StateLaw:
        self.check_inputs(x=x, t=t)
        words = one_hot(x, self.vocab_size).to(torch.float64)
        given = [words] + [self.hierarchy.between(0, i).row(x) for i in range(1, self._depth + 1)]
        return self._mixed(self.shares(t), given).to(t.dtype)

    def predictive(self, p: WordLaw, t: Times) -> StateLaw:
        return self._mixed(self.shares(t), self.hierarchy.laws(p))

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        return self._at(self.shares(t), reach(self.hierarchy, x, z), z)

    def word_likelihood(self, z: Tokens, t: Times) -> WordLaw:
        kept, redrawn = (part.gather(1, self.level_of(z))[..., None] for part in self.shares(t))
        return kept * reach_of_words(self.hierarchy, z) + redrawn * self.typical[z][..., None]

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        chain = self.chain
        again = torch.cat([chain.rates, chain.rates.new_zeros(1)])[self._level]
        redraws = again[:, None] * (self._level[:, None] == self._level) * self.typical
        return self.schedule.rate(interior(scalar(t, "t", self.device))) * (
            dense(self.hierarchy, chain.levels()) + redraws
        )

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        kept, redrawn = self.chain.transition(elapsed(self.schedule, *span(s, t, self.device)))
        return dense(self.hierarchy, kept) + redrawn[self._level][:, self._level] * self.typical

    def sample(self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent") -> Tokens:
        """Draws z_t ~ q_t(.|x): level and flag first, the way up second; no (B, L, S) tensor is built."""
        self.check_inputs(x=x, t=t)
        law = torch.stack(self.shares(t), -1).flatten(-2)
        state = (self._uniforms(x, generator, levels)[..., None] >= law[:, None, :-1].cumsum(-1)).sum(-1)
        if levels == "balanced":
            one = rand((len(x), 2), generator, x.device)
            which = (one[:, :1] * x.shape[1]).to(torch.int64)
            arrivals = torch.stack(self._inflow(t), -1).flatten(-2)
            state = state.scatter(1, which, draw(arrivals, one[:, 1])[:, None])
        return self._climb(x, state, generator)

    def advance(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draws z_t ~ q_{t|s}(.|z_s): level and flag first, the way up second."""
        self.check_forwards(z, s, t)
        level = self.level_of(z)
        law = torch.stack([into(part.mT, level) for part in self.shares_between(s, t)], -1).flatten(-2)
        state = draw(law, rand(z.shape, generator, z.device))
        return self._climb(z, state, generator)

    def _pull(self, x: Tokens, z: Tokens, t: Times) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """The weight of the bound: its mean over states is the sum of all fluxes."""
        kept, redrawn = self._inflow(t)
        rate = self.schedule.rate(interior(t))[:, None]
        return (rate * (kept + redrawn).sum(-1, keepdim=True)).expand(z.shape), self.loss_weight(x, z, t)

    def posterior(self, p: WordLaw, z: Tokens, t: Times, s: Times) -> StateLaw:
        self.check_inputs(z=z, t=t, s=s, p=p)
        level = self.level_of(z)
        kept, redrawn = (into(part, level).to(p.dtype) for part in self.shares_between(s, t))
        ways = [
            kept[..., i : i + 1] * self._leads(z, i).to(p.dtype)
            + redrawn[..., i : i + 1] * self.typical[z][..., None].to(p.dtype)
            for i in range(self._depth + 1)
        ]
        joint = torch.cat(ways, -1) * self.predictive(p, s)
        total = joint.sum(-1, keepdim=True)
        stay = one_hot(z, self.num_states).to(p.dtype)  # a word given at t = 1 (a prompt) stays
        return torch.where(total > 0, joint / torch.where(total > 0, total, 1.0), stay)

    def reverse_rate(self, p: WordLaw, z: Tokens, t: Times) -> StateLaw:
        self.check_inputs(z=z, t=t, p=p)
        t = interior(t)
        law = self.predictive(p, t)
        rates = torch.cat([self._arrivals(z, i) for i in range(self._depth + 1)], -1)
        rates = (self.schedule.rate(t)[:, None, None] * rates).to(p.dtype) * law / law.gather(-1, z[..., None])
        return rates.scatter(-1, z[..., None], 0.0)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        shares = self.shares(self._one().expand(len(x)) if t is None else t)
        result = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        uniform = torch.full((1, 1, self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=x.device)
        for i, law in enumerate(self.hierarchy.laws(uniform)[:-1]):  # all words lead to the mask
            kept, fresh = self._of_level(shares, i)
            own = self._own(x, i)
            if own is None:
                truth = kept * self.hierarchy.between(0, i).row(x) + fresh
                result += (torch.xlogy(truth, truth) - torch.xlogy(truth, kept * law + fresh)).sum(-1)
                continue
            before, after = torch.xlogy(fresh, fresh), torch.xlogy(fresh, kept * law + fresh)
            others = (before - after).sum(-1) - _pick(before - after, own)
            same = (kept + _expand(fresh, own)).gather(-1, own[..., None])[..., 0]
            result += others + torch.xlogy(same, same) - torch.xlogy(same, _pick(kept * law + fresh, own))
        return result.clamp_min(0)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        """The rate into z, from every state and from z itself by redraws, over q_t(z|x)."""
        t = interior(t)
        here = reach(self.hierarchy, x, z)
        arrival, likelihood = self._at(self._inflow(t), here, z), self._at(self.shares(t), here, z)
        share = torch.where(likelihood > 0, arrival / torch.where(likelihood > 0, likelihood, 1.0), 0.0)
        return self.schedule.rate(t)[:, None] * share

    def weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken]:
        r"""The rate into z over q_t(z|x), and the mean divergence of where z may have come from.

        Into z of level i come its children y at :math:`s_{i-1} K(z|y)` and all members y of its own level at
        :math:`\lambda_i \pi_i(z)`, which is one sum over the level. With :math:`A(y) = q_t(y|x)`, :math:`B(y) =
        q_t(y|p)` and :math:`m(y) = \log \frac{B(y)}{A(y)} - \log \frac{B(z)}{A(z)}` each costs :math:`A(y) (e^{m(y)} -
        1 - m(y)) / A(z)` (theory section 1).
        """
        t, level, dtype = interior(t), self.level_of(z), logits.dtype
        shares, laws = self.shares(t), [logits.log_softmax(-1)]
        for edge in self.hierarchy.maps[:-1]:
            laws.append(edge.log_push(laws[-1]))
        sides = [self._sides(shares, i, law, x) for i, law in enumerate(laws)]
        here = torch.zeros(z.shape, dtype=dtype, device=z.device)
        for i, (_, _, gap) in enumerate(sides):
            there = gap.gather(-1, self.hierarchy.local(z, i)[..., None])[..., 0]
            here = torch.where(level == i, there, here)
        total = torch.zeros_like(here)
        for i, (truth, log_model, gap) in enumerate(sides):
            shift = gap - here[..., None]
            near = shift.clamp(-1, 1)
            # of two forms the one that loses no digits; the other must not be infinite, for its gradient's sake
            cost = torch.where(
                shift.abs() < 1,
                truth * (torch.expm1(near) - near),
                (log_model - here[..., None]).exp() - truth * (1 + shift),
            )
            total = total + (self._arrivals(z, i).to(dtype) * cost).sum(-1)
        flow = self._at(self._inflow(t), reach(self.hierarchy, x, z), z).to(dtype)
        divergence = torch.where(flow > 0, total / torch.where(flow > 0, flow, 1.0), 0.0)
        return self.loss_weight(x, z, t).to(dtype), divergence

    def from_anywhere(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """States that redraws lead to, the mask, and clusters that tokens of other clusters may stray to."""
        rates = torch.tensor([*self.ratios, 0.0], device=z.device)
        redrawn = (rates.cumsum(0) > 0)[self.level_of(z)] & (self.typical[z] > 0)
        return redrawn | shared(self.hierarchy, z)

    def land(
        self, logits: Logits, z: Tokens, t: Times, s: Times, target: Tokens | None,
        generator: Generator = None, *, force: bool = False, sharpen: Sharpen = unchanged,
    ) -> Tokens:  # fmt: skip
        """Draws z_s without a (B, L, S) tensor: the level, and whether it was redrawn before s and since; then who.

        ``force`` acts on those that were not redrawn since.
        """
        level, n, result = self.level_of(z), self._depth, z.clone()
        before = [part[:, None] for part in self.shares(s)]
        climbed, anew = (into(part, level) for part in self.shares_between(s, t))
        typical = self.typical[z][..., None]
        here = self._model_here(logits, z)[..., None]
        ways = torch.stack(
            [climbed * before[0] * here, climbed * before[1] * typical, anew * typical * before[0],
             anew * typical * before[1]], -1,
        ).flatten(-2)  # fmt: skip
        impossible = ~(ways.sum(-1, keepdim=True) > 0)  # it was given, and stays
        ways = torch.where(impossible, one_hot(4 * level, ways.shape[-1]).to(ways), ways)
        way = draw(ways, rand(z.shape, generator, z.device))
        to, since, earlier = way // 4, way % 4 >= 2, way % 2 == 1
        u = rand(z.shape, generator, z.device)
        fresh = climb(self.hierarchy, self._redraw(z, generator), to, generator)
        result = torch.where(since & earlier, fresh, result)
        known = self.typical[: self.vocab_size].log()
        for i in range(n):
            for j in range(i, n + 1):
                at = (to == i) & (level == j)
                for rows, law, top, change in (
                    (at & ~since & ~earlier & (j > i), logits, j, sharpen),
                    (at & ~since & earlier & (j > i), known.expand_as(logits), j, unchanged),
                    (at & since & ~earlier, logits, n, sharpen),
                ):
                    if rows.any():
                        members = change(descent(self.hierarchy, law[rows], z[rows], top, i, force))
                        result[rows] = self.hierarchy.offsets[i] + draw_logits(members, u[rows])
        return result

    def reduced(self, vocab_size: int) -> Self:
        """The same shares over ``hierarchy.reduced``; of the frequencies as many, from the smallest to the largest."""
        small, frequency = self.hierarchy.reduced(vocab_size), self.frequency
        if frequency is not None:
            kept = torch.linspace(0, self.vocab_size - 1, small.vocab_size, dtype=torch.float64).round().long()
            frequency = frequency.sort().values[kept.to(frequency.device)]
            frequency = frequency + (frequency.sum() == 0)
        return type(self)(small, self.schedule, self.p_uniform, frequency)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        words, clusters = [0, 0, 1, 1, 2, 3], [0, 1, 1, 0]
        return [
            cls(Flat(4), Linear(), 0.3),
            cls(Tree([words[:5]]), Cosine(), 0.2, [3.0, 1.0, 1.0, 2.0, 5.0]),
            cls(Tree([words], xi=0.8), Linear(), [0.1, 0.4]),
            cls(Tree([words, clusters], xi=[1.0, 0.9], speed=[0.7, 1.3, 2.0]), Linear(), [0.2, 0.0, 0.1]),
        ]

    def __repr__(self) -> str:
        shares = self.p_uniform[0] if not any(self.p_uniform[1:]) else self.p_uniform
        often = "" if self.frequency is None else f", frequency={digest(self.frequency)}"
        return f"{type(self).__name__}({self.hierarchy!r}, {self.schedule!r}, p_uniform={shares}{often})"

    @property
    def _depth(self) -> int:
        return self.hierarchy.depth

    @property
    def _level(self) -> Int64[Tensor, "states"]:
        return self.hierarchy.level_of(torch.arange(self.num_states, device=self.device))

    def _chain(self, speeds: Tensor) -> RedrawChain:
        return RedrawChain(speeds, speeds * torch.tensor(self.ratios, dtype=torch.float64, device=speeds.device))

    def _clock(self, t: Tensor) -> Tensor:
        return self.schedule.hazard(t.to(torch.float64))

    def _inflow(self, t: Times) -> Shares:
        """The flux into each level per unit of the clock, as it is once redrawn and as it is not."""
        return self.chain.inflow(self._clock(interior(t)))

    def _mixed(self, shares: Shares, laws: list[Tensor]) -> Tensor:
        """q of all states from the laws of each level's member, not redrawn."""
        parts = []
        for i, law in enumerate(laws):
            kept, fresh = self._of_level(shares, i)
            parts.append(kept.to(law.dtype) * law + fresh.to(law.dtype))
        return torch.cat(parts, -1)

    def _of_level(self, shares: Shares, i: int) -> tuple[Float64[Tensor, "B 1 1"], Float64[Tensor, "B 1 K"]]:
        """k_i, and r_i pi_i of each member."""
        kept, redrawn = (part[:, None, i : i + 1] for part in shares)
        return kept, redrawn * self.typical[self.hierarchy.states(i)]

    def _at(self, shares: Shares, here: PerToken, z: Tokens) -> Float64[Tensor, "B L"]:
        """What comes to z by its own way, of which there is ``here``, and by redraws."""
        kept, redrawn = (part.gather(1, self.level_of(z)) for part in shares)
        return kept * here + redrawn * self.typical[z]

    def _leads(self, z: Tokens, i: int) -> Float64[Tensor, "B L K"]:
        """K(z|y) from every member y of level i to ``z``."""
        level = self.level_of(z)
        itself = one_hot(self.hierarchy.local(z, i), self.levels[i]).to(torch.float64)
        leads = torch.where((level == i)[..., None], itself, 0.0)
        for j in range(i + 1, self._depth + 1):
            column = self.hierarchy.between(i, j).column(self.hierarchy.local(z, j))
            leads = torch.where((level == j)[..., None], column, leads)
        return leads

    def _arrivals(self, z: Tokens, i: int) -> Float64[Tensor, "B L K"]:
        """The rate on the clock at which every member of level i becomes ``z``, itself included."""
        level, chain = self.level_of(z)[..., None], self.chain
        if i == self._depth:
            return torch.zeros(*z.shape, 1, dtype=torch.float64, device=z.device)
        above = self.hierarchy.maps[i].column(self.hierarchy.local(z, i + 1)) * chain.speeds[i]
        again = chain.rates[i] * self.typical[z][..., None]
        return torch.where(level == i + 1, above, torch.where(level == i, again, 0.0))

    def _own(self, x: Tokens, i: int) -> Tokens | None:
        """The member of level i that words lead to; None where they may lead to several."""
        if i == 0:
            return x
        route = self.hierarchy.between(0, i)
        return route.parents[x] if route.spread is None else None

    def _sides(self, shares: Shares, i: int, log_law: Tensor, x: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """A(y), log B(y) and log B(y) / A(y) of every member of level i, (B, L, K) each."""
        (kept, fresh), dtype, own = self._of_level(shares, i), log_law.dtype, self._own(x, i)
        log_fresh = fresh.log().clamp_min(-1e4)  # e^-1e4 is 0, and unlike -inf has a gradient
        log_model = torch.logaddexp(kept.log().to(dtype) + log_law, log_fresh.to(dtype))
        if own is None:
            truth = kept * self.hierarchy.between(0, i).row(x) + fresh
            return truth.to(dtype), log_model, log_model - truth.log().to(dtype)
        odds = (kept.log() - fresh.log()).clamp(-1e4, 745.0)
        gap = log1p_exp(odds.to(dtype) + log_law)
        at, log_own = own[..., None], log_law.gather(-1, own[..., None])
        mine = _expand(odds, own).gather(-1, at).to(dtype)
        truth = _expand(fresh, own)
        truth = truth.scatter(-1, at, truth.gather(-1, at) + kept).to(dtype)
        return truth, log_model, gap.scatter(-1, at, -falls_short(mine, log_own))

    def _model_here(self, logits: Logits, z: Tokens) -> Float64[Tensor, "B L"]:
        """u(z|p), the probability that the way up of the network's word leads through z, given z's level."""
        law = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        level, found = self.level_of(z), torch.zeros_like(law[..., 0])
        for i, edge in enumerate(self.hierarchy.maps):
            there = law.gather(-1, self.hierarchy.local(z, i)[..., None])[..., 0]
            found = torch.where(level == i, there, found)
            law = edge.log_push(law)
        return found.to(torch.float64).exp()

    def _redraw(self, like: Tokens, generator: Generator) -> Tokens:
        """Words drawn from pi."""
        law = self.typical[: self.vocab_size].cumsum(0)
        u = rand(like.shape, generator, like.device) * law[-1]
        return torch.searchsorted(law, u, right=True).clamp_max(self.vocab_size - 1)

    def _climb(self, z: Tokens, state: Tokens, generator: Generator) -> Tokens:
        """The states of levels and flags, twice the level and one more if redrawn."""
        start = torch.where(state % 2 == 1, self._redraw(z, generator), z)
        level = torch.div(state, 2, rounding_mode="floor")
        return climb(self.hierarchy, start, level.maximum(self.level_of(start)), generator)


def _expand(values: Tensor, like: Tokens) -> Tensor:
    return values.expand(*like.shape, -1)


def _pick(values: Tensor, index: Tokens) -> Tensor:
    """values (B, 1, K) at the index of each token, (B, L)."""
    return _expand(values, index).gather(-1, index[..., None])[..., 0]


def _shares(p_uniform: Any, depth: int) -> tuple[float, ...]:
    """One share for each level below the mask."""
    given = list(p_uniform) if isinstance(p_uniform, Iterable) and not isinstance(p_uniform, str) else None
    if given is None:
        words = check_number("p_uniform", p_uniform, 0, 1 - 1e-6, "in [0, 1)")
        return (words, *[0.0] * (depth - 1))
    require(
        len(given) == depth,
        f"p_uniform has {len(given)} entries, must be one number, for words, or have {depth}: one per level below the "
        "mask",
    )
    return tuple(check_number(f"p_uniform[{i}]", share, 0, 1 - 1e-6, "in [0, 1)") for i, share in enumerate(given))


def _law(frequency: Any, hierarchy: Hierarchy) -> Float64[Tensor, "V"]:
    """pi of the words."""
    size, device = hierarchy.vocab_size, hierarchy.maps[0].parents.device
    if frequency is None:
        return torch.full((size,), 1 / size, dtype=torch.float64, device=device)
    try:
        seen = torch.as_tensor(frequency).to(device, torch.float64)
    except (TypeError, RuntimeError, ValueError) as error:
        raise TypeError(f"frequency is {frequency!r}, must be one number per word: {error}") from None
    check_shape("frequency", seen, (size,), f"(V,) = ({size},): one number per word")
    require(bool(seen.isfinite().all()), "frequency holds NaN or infinity, must be finite")
    require(bool((seen >= 0).all()), f"frequency holds {float(seen.min()):g}, must be at least 0")
    require(bool(seen.sum() > 0), "frequency is 0 everywhere, must be above 0 at some word")
    return seen / seen.sum()
