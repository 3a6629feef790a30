"""Sampling of a process whose noise is a chain of a level and a flag for resampling."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ddlib.hierarchies import Hierarchy
from ddlib.hierarchies.base import descendant_logits, reachable_by_all
from ddlib.processes.argument_checks import check_schedule, check_tree
from ddlib.processes.base import (
    ForwardProcess,
    draw_one,
    evidence,
    identity,
    replaceable_by_all,
    sharpen_possible,
)
from ddlib.processes.broadcasting import (
    elapsed,
    gather_columns,
    gather_last,
    interior,
    unsqueeze_times,
)
from ddlib.processes.resampling_chain import (
    LevelProbs,
    ResamplingChain,
    check_shares,
    ratio_of,
    token_frequencies,
)
from ddlib.schedules import Schedule
from ddlib.typing import Logits, PerToken, Sharpen, Times, Tokens
from ddlib.utils.categorical import draw, draw_logits
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.random import Generator, rand, uniforms


class ResamplingProcess(ForwardProcess):
    """Base class of ``Noisy``: draws of levels and flags, forwards and backwards.

    Arguments and errors as there.
    """

    schedule: Schedule
    hierarchy: Hierarchy
    typical: Tensor
    """Distribution pi_i within each level after resampling, for all states, (S,)."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        schedule: Schedule,
        p_uniform: float | Sequence[float] | Tensor,
        frequency: Any = None,
    ) -> None:
        check_tree(hierarchy, check_schedule(schedule))
        super().__init__(hierarchy.vocab_size, hierarchy.num_states, hierarchy.starts.device)
        self.declare(p_uniform=p_uniform, frequency=frequency)
        self.hierarchy = hierarchy
        self.schedule = schedule
        self.p_uniform = check_shares(p_uniform, hierarchy.depth)
        self.ratios = tuple(map(ratio_of, self.p_uniform))
        frequencies = token_frequencies(frequency, hierarchy)
        self.frequency = None if frequency is None else frequencies
        self.typical = torch.cat(hierarchy.level_probs(frequencies))
        self.chain = self._chain(torch.tensor(hierarchy.speeds, dtype=torch.float64))

    frequency: Tensor | None
    chain: ResamplingChain
    """Chain of levels and flags."""

    def shares(self, t: Times) -> LevelProbs:
        """Return k_i(t) and r_i(t), the probability of each level, kept and resampled, (B, n + 1)
        each.
        """
        return self.chain.occupancies(self._hazard(t))

    def shares_between(self, s: Times, t: Times) -> LevelProbs:
        """Return the transition of levels from s to t, kept and resampled since s, (B, n + 1, n +
        1) each.
        """
        return self.chain.transition(elapsed(self.schedule, s, t))

    def level_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return self.hierarchy.level_of(z)

    @property
    def levels(self) -> tuple[int, ...]:
        return self.hierarchy.levels

    def sample(
        self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent"
    ) -> Tokens:
        """Draw z_t ~ q_t(.|x): first level and flag, then the state.

        No (B, L, S) tensor is built.
        """
        self.check_inputs(x=x, t=t)
        probs = torch.stack(self.shares(t), -1).flatten(-2)
        state = (
            self._uniforms(x, generator, levels)[..., None]
            >= unsqueeze_times(probs, 1)[..., :-1].cumsum(-1)
        ).sum(-1)
        if levels == "balanced":
            arrivals = unsqueeze_times(torch.stack(self._inflow(t), -1).flatten(-2), 1).expand(
                *x.shape, -1
            )
            total = unsqueeze_times(self.schedule.rate(interior(t))) * arrivals.sum(-1)
            state = draw_one(state, total, arrivals, generator)
        return self._ascend(x, state, generator)

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draw z_t ~ q_{t|s}(.|z_s): first level and flag, then the state."""
        self.check_inputs(z=z, t=t, s=s)
        level = self.level_of(z)
        probs = torch.stack(
            [gather_columns(part.mT, level) for part in self.shares_between(s, t)], -1
        ).flatten(-2)
        state = draw(probs, rand(z.shape, generator, z.device))
        return self._ascend(z, state, generator)

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """Mean over noise of the bound's weight, and the weight at z.

        The mean is the sum of all fluxes.
        """
        kept, resampled = self._inflow(t)
        mean = self.schedule.rate(interior(t)) * (kept + resampled).sum(-1)
        return unsqueeze_times(mean).expand(z.shape), self.loss_weight(x, z, t)

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """True at states that resampling may draw, the mask, and clusters that tokens of other
        clusters may enter.
        """
        rates = torch.tensor([*self.ratios, 0.0], device=z.device)
        resampled = (rates.cumsum(0) > 0)[self.level_of(z)] & (self.typical[z] > 0)
        return resampled | reachable_by_all(self.hierarchy, z)

    replaceable = replaceable_by_all

    @property
    def num_uniforms(self) -> int:
        return 3 + sum(not edge.plain for edge in self.hierarchy.maps)

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
        """Draw z_s without a (B, L, S) tensor: first level and flags of resampling before and after
        s, then z_s.

        ``force`` applies to tokens of the network; states that were resampled before s may be in
        other clusters.
        """
        cavity = self.sharpen(logits, z, t, sharpen)
        way_u, u, *resample_u = noise
        level = self.level_of(z)
        n = self._depth
        result = z.clone()
        before = [unsqueeze_times(part, 1) for part in self.shares(s)]
        kept, resampled = (gather_columns(part, level) for part in self.shares_between(s, t))
        typical = self.typical[z][..., None]
        model_u = self._model_reach(cavity, z)[..., None]
        ways = torch.stack(
            [
                kept * before[0] * model_u,
                kept * before[1] * typical,
                resampled * typical * before[0],
                resampled * typical * before[1],
            ],
            -1,
        ).flatten(-2)
        impossible = ~(
            ways.sum(-1, keepdim=True) > 0
        )  # a given state that no noise leads to, a prompt, stays
        ways = torch.where(impossible, one_hot(4 * level, ways.shape[-1]).to(ways), ways)
        way = draw(ways, way_u)
        to = way // 4
        since = way % 4 >= 2
        earlier = way % 2 == 1
        draws = iter(resample_u)
        resampled_z = self.hierarchy.ascent(self._resample(draws), to, draws)
        result = torch.where(since & earlier, resampled_z, result)
        log_typical = self.typical[: self.vocab_size].log()
        # a forced descent is within one cluster, which the sharpened distribution may exclude
        own, own_change = (logits, sharpen) if force else (cavity, identity)
        for i in range(n):
            for j in range(i, n + 1):
                at = (to == i) & (level == j)
                for rows, log_probs, top, forced, change in (
                    (at & ~since & ~earlier & (j > i), own, j, force, own_change),
                    (
                        at & ~since & earlier & (j > i),
                        log_typical.expand_as(logits),
                        j,
                        False,
                        identity,
                    ),
                    (at & since & ~earlier, cavity, n, False, identity),
                ):
                    if rows.any():
                        members = change(
                            descendant_logits(
                                self.hierarchy, log_probs[rows], z[rows], top, i, forced
                            )
                        )
                        result[rows] = self.hierarchy.offsets[i] + draw_logits(members, u[rows])
        return result

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits, sharpen: Sharpen = identity
    ) -> Float64[Tensor, "B L"]:
        """Exit rate: the flux into z over q_t(z|p), minus the rate of resampling z as z.

        Without a (B, L, S) tensor.
        """
        known, possible = evidence(self, z, t)
        cavity = sharpen_possible(logits, known, sharpen)
        shares = self.shares(interior(t))
        model_u = self._model_reach(cavity, z)
        flux = self._at(self.chain.inflow(shares), model_u, z)
        prob = self._at(shares, model_u, z)
        unchanged_rate = pad(self.chain.rates, (0, 1))[self.level_of(z)] * self.typical[z]
        rate = unsqueeze_times(self.schedule.rate(interior(t))) * (
            flux / torch.where(prob > 0, prob, 1.0) - unchanged_rate
        )
        return torch.where(possible[..., 0] & (prob > 0), rate.clamp_min(0), 0.0)

    @property
    def _depth(self) -> int:
        return self.hierarchy.depth

    @property
    def _level(self) -> Int64[Tensor, "n"]:
        return self.hierarchy.level_of(torch.arange(self.num_states, device=self.device))

    def _chain(self, speeds: Tensor) -> ResamplingChain:
        return ResamplingChain(
            speeds, speeds * torch.tensor(self.ratios, dtype=torch.float64, device=speeds.device)
        )

    def _hazard(self, t: Tensor) -> Tensor:
        return self.schedule.hazard(t.to(torch.float64))

    def _inflow(self, t: Times) -> LevelProbs:
        """Flux into each level per unit of -log alpha, kept and resampled."""
        return self.chain.inflow(self.shares(interior(t)))

    def _at(self, shares: LevelProbs, given_level: PerToken, z: Tokens) -> Float64[Tensor, "B L"]:
        """Shares at z: kept, times the probability ``given_level`` of z within its level, plus
        resampled.
        """
        kept, resampled = (gather_last(part, self.level_of(z)) for part in shares)
        return kept * given_level + resampled * self.typical[z]

    def _model_reach(self, logits: Logits, z: Tokens) -> Float64[Tensor, "B L"]:
        """Return u(z|p), the probability that z is the ancestor of the network's token in the level
        of z.
        """
        log_probs = float32_or_wider(logits).log_softmax(-1)
        level = self.level_of(z)
        total = torch.zeros_like(log_probs[..., 0])
        for i in range(self._depth + 1):
            log_probs = log_probs if i == 0 else self.hierarchy.maps[i - 1].log_push(log_probs)
            log_prob = log_probs.gather(-1, self.hierarchy.local(z, i)[..., None])[..., 0]
            total = torch.where(level == i, log_prob, total)
        return total.to(torch.float64).exp()

    def _resample(self, noise: Iterator[Tensor]) -> Tokens:
        """Draw tokens from pi."""
        cumulative = self.typical[: self.vocab_size].cumsum(0)
        u = next(noise) * cumulative[-1]
        return torch.searchsorted(cumulative, u, right=True).clamp_max(self.vocab_size - 1)

    def _ascend(self, z: Tokens, state: Tokens, generator: Generator) -> Tokens:
        """Draw states given ``state``, which is twice the level, plus one if resampled."""
        noise = uniforms(z.shape, generator, z.device)
        start = torch.where(state % 2 == 1, self._resample(noise), z)
        level = torch.div(state, 2, rounding_mode="floor")
        return self.hierarchy.ascent(start, level.maximum(self.level_of(start)), noise)
