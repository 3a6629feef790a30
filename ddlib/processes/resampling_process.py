"""Level and flag of a token that may be redrawn: what samplers ask of a hierarchy whose words can be wrong."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ddlib.hierarchies import Hierarchy
from ddlib.processes.base import ForwardProcess, beside, elapsed, interior, into, taken, unchanged
from ddlib.processes.resampling_chain import LevelProbs, ResamplingChain, checked_shares, ratio_of, token_frequencies
from ddlib.processes.tree_kernels import ascend, descendant_logits, shared
from ddlib.schedules import Schedule
from ddlib.typing import Logits, PerToken, Sharpen, Times, Tokens
from ddlib.utils.categorical import draw, draw_logits
from ddlib.utils.random import Generator, rand


class ResamplingProcess(ForwardProcess):
    """The part of ``Noisy`` that draws: forwards, backwards, levels and flags. Arguments and errors are its own."""

    schedule: Schedule
    hierarchy: Hierarchy
    typical: Tensor
    """pi of every state: the law of the member of each level above a redrawn word, (S,)."""

    def __init__(
        self, hierarchy: Hierarchy, schedule: Schedule, p_uniform: float | Sequence[float] | Tensor,
        frequency: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(hierarchy, Hierarchy):
            raise TypeError(f"hierarchy is {hierarchy!r}, must be a ddlib.hierarchies.Hierarchy")
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
        schedule.check()
        slowest = min(hierarchy.speeds)
        schedule.check_resolves(f"speed {slowest:g}", lambda duration: math.exp(-slowest * duration))
        super().__init__(hierarchy.vocab_size, hierarchy.num_states)
        self.hierarchy, self.schedule = hierarchy, schedule
        self.p_uniform = checked_shares(p_uniform, hierarchy.depth)
        self.ratios = tuple(map(ratio_of, self.p_uniform))
        words = token_frequencies(frequency, hierarchy)
        self.frequency = None if frequency is None else words
        self.typical = torch.cat(hierarchy.laws(words))
        self._fixed = (
            self._chain(torch.tensor(hierarchy.speeds, dtype=torch.float64)) if hierarchy.learned is None else None
        )

    frequency: Tensor | None

    @property
    def chain(self) -> ResamplingChain:
        """Levels and flags alone; made anew for each answer where speeds are learned, so that gradients reach them."""
        learned = self.hierarchy.learned
        return cast(ResamplingChain, self._fixed) if learned is None else self._chain(learned())

    def shares(self, t: Times) -> LevelProbs:
        """k_i(t) and r_i(t), the probability of each level, kept and redrawn, (B, n + 1) each."""
        return self.chain.occupancies(self._clock(t))

    def shares_between(self, s: Times, t: Times) -> LevelProbs:
        """The same at t for tokens of each level at s, counted from there, (B, n + 1, n + 1) each."""
        return self.chain.transition(elapsed(self.schedule, s, t))

    def level_of(self, z: Tokens) -> Tokens:
        return self.hierarchy.level_of(z)

    @property
    def levels(self) -> tuple[int, ...]:
        return self.hierarchy.levels

    def sample(self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent") -> Tokens:
        """Draws z_t ~ q_t(.|x): level and flag first, the way up second; no (B, L, S) tensor is built."""
        self.check_inputs(x=x, t=t)
        law = torch.stack(self.shares(t), -1).flatten(-2)
        state = (self._uniforms(x, generator, levels)[..., None] >= beside(law, 1)[..., :-1].cumsum(-1)).sum(-1)
        if levels == "balanced":
            one = rand((len(x), 2), generator, x.device)
            arrivals = beside(torch.stack(self._inflow(t), -1).flatten(-2), 1).expand(*x.shape, -1)
            which = draw(beside(self.schedule.rate(interior(t))) * arrivals.sum(-1), one[:, 0])
            there = arrivals[torch.arange(len(x), device=x.device), which]
            state = state.scatter(1, which[:, None], draw(there, one[:, 1])[:, None])
        return self._climb(x, state, generator)

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draws z_t ~ q_{t|s}(.|z_s): level and flag first, the way up second."""
        self.check_forwards(z, s, t)
        level = self.level_of(z)
        law = torch.stack([into(part.mT, level) for part in self.shares_between(s, t)], -1).flatten(-2)
        state = draw(law, rand(z.shape, generator, z.device))
        return self._climb(z, state, generator)

    def _weight_and_mean(self, x: Tokens, z: Tokens, t: Times) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """The weight of the bound: its mean over states is the sum of all fluxes."""
        kept, redrawn = self._inflow(t)
        mean = self.schedule.rate(interior(t)) * (kept + redrawn).sum(-1)
        return beside(mean).expand(z.shape), self.loss_weight(x, z, t)

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """States that redraws lead to, the mask, and clusters that tokens of other clusters may stray to."""
        rates = torch.tensor([*self.ratios, 0.0], device=z.device)
        redrawn = (rates.cumsum(0) > 0)[self.level_of(z)] & (self.typical[z] > 0)
        return redrawn | shared(self.hierarchy, z)

    def sample_given_level(
        self, logits: Logits, z: Tokens, t: Times, s: Times, target: Tokens | None,
        generator: Generator = None, *, force: bool = False, sharpen: Sharpen = unchanged,
    ) -> Tokens:  # fmt: skip
        """Draws z_s without a (B, L, S) tensor: the level, and whether it was redrawn before s and since; then who.

        ``force`` acts on the network's words; noise that was there at s already may have strayed.
        """
        level, n, result = self.level_of(z), self._depth, z.clone()
        before = [beside(part, 1) for part in self.shares(s)]
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
        fresh = ascend(self.hierarchy, self._redraw(z, generator), to, generator)
        result = torch.where(since & earlier, fresh, result)
        known = self.typical[: self.vocab_size].log()
        for i in range(n):
            for j in range(i, n + 1):
                at = (to == i) & (level == j)
                for rows, law, top, forced, change in (
                    (at & ~since & ~earlier & (j > i), logits, j, force, sharpen),
                    (at & ~since & earlier & (j > i), known.expand_as(logits), j, False, unchanged),
                    (at & since & ~earlier, logits, n, False, sharpen),
                ):
                    if rows.any():
                        members = change(descendant_logits(self.hierarchy, law[rows], z[rows], top, i, forced))
                        result[rows] = self.hierarchy.offsets[i] + draw_logits(members, u[rows])
        return result

    def exit_rate(self, z: Tokens, t: Times, logits: Logits, sharpen: Sharpen = unchanged) -> Float64[Tensor, "B L"]:
        """The flux into z over q_t(z|p), less what z itself has in it by redraws; without a (B, L, S) tensor."""
        cavity, possible = self._sharpened(logits, z, t, sharpen)
        shares, here = self.shares(interior(t)), self._model_here(cavity, z)
        entered, law = self._at(self.chain.inflow(shares), here, z), self._at(shares, here, z)
        again = pad(self.chain.rates, (0, 1))[self.level_of(z)] * self.typical[z]
        rate = beside(self.schedule.rate(interior(t))) * (entered / torch.where(law > 0, law, 1.0) - again)
        return torch.where(possible[..., 0] & (law > 0), rate.clamp_min(0), 0.0)

    @property
    def _depth(self) -> int:
        return self.hierarchy.depth

    @property
    def _level(self) -> Int64[Tensor, "n"]:
        return self.hierarchy.level_of(torch.arange(self.num_states, device=self.device))

    def _chain(self, speeds: Tensor) -> ResamplingChain:
        return ResamplingChain(speeds, speeds * torch.tensor(self.ratios, dtype=torch.float64, device=speeds.device))

    def _clock(self, t: Tensor) -> Tensor:
        return self.schedule.hazard(t.to(torch.float64))

    def _inflow(self, t: Times) -> LevelProbs:
        """The flux into each level per unit of the clock, as it is once redrawn and as it is not."""
        return self.chain.inflow(self.shares(interior(t)))

    def _at(self, shares: LevelProbs, here: PerToken, z: Tokens) -> Float64[Tensor, "B L"]:
        """What comes to z by its own way, of which there is ``here``, and by redraws."""
        kept, redrawn = (taken(part, self.level_of(z)) for part in shares)
        return kept * here + redrawn * self.typical[z]

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
        return ascend(self.hierarchy, start, level.maximum(self.level_of(start)), generator)
