"""Base class of processes with a hierarchy and a schedule, whose levels are a Markov chain."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy, Map
from ddlib.hierarchies.base import descendant_logits, reachable_by_all
from ddlib.processes.argument_checks import check_tree
from ddlib.processes.base import (
    ForwardProcess,
    draw_one,
    evidence,
    identity,
    replaceable_by_all,
)
from ddlib.processes.broadcasting import (
    gather_columns,
    gather_last,
    normalise_or_stay,
    unsqueeze_times,
)
from ddlib.processes.edge_chain import ScheduleChain, chain_of
from ddlib.processes.level_chain import LevelChain, PowerChain, max_remask_prob, remask_coupling
from ddlib.processes.moments import nats_of_levels
from ddlib.schedules import Schedule
from ddlib.schedules.base import breaks
from ddlib.typing import Logits, Sharpen, Times, Tokens
from ddlib.utils.categorical import draw, draw_logits
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.random import Generator, rand, uniforms


class LevelProcess(ForwardProcess):
    """A process whose levels are a Markov chain: base class of processes with a hierarchy and a
    schedule.

    The positions that jump, their times and the number of levels do not depend on the tokens, nor,
    in reverse, on the network. So samplers draw levels first (``sample_level``) and run the network
    where they change.

    Args:
        hierarchy: the levels, and the transition matrices between them.
        schedule: the schedule alpha, of all edges, or one schedule for each edge, the edge above
            the tokens first. An edge survives with probability alpha to the power of its speed.

    Raises:
        TypeError: arguments of another kind.
        ValueError: alpha not decreasing from 1 to 0; schedules of another number than edges; a
            schedule of several without exact ends; windows that end before those of lower edges, or
            leave a time without a jump.
    """

    hierarchy: Hierarchy
    chain: LevelChain
    """Markov chain of the levels."""

    def __init__(self, hierarchy: Hierarchy, schedule: Schedule | Sequence[Schedule]) -> None:
        schedules = check_tree(hierarchy, schedule)
        super().__init__(hierarchy.vocab_size, hierarchy.num_states, hierarchy.starts.device)
        self.hierarchy = hierarchy
        self._schedules = schedules
        if len(schedules) == 1:
            self.schedule = schedules[0]
        else:
            self.declare(schedule=schedules)
        speeds = torch.tensor(hierarchy.speeds, dtype=torch.float64)
        self.chain = (
            PowerChain(schedules[0], speeds) if len(schedules) == 1 else chain_of(schedules, speeds)
        )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return self._schedules

    @property
    def breaks(self) -> list[float]:
        chain = self.chain
        return breaks(chain.schedules) if isinstance(chain, ScheduleChain) else super().breaks

    def occupancies(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n levels"]:
        """Return a_i(t), the probability of each level, (..., n + 1), at times of any shape."""
        return self.chain.occupancies(t.to(torch.float64))

    def weights(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n levels"]:
        """Return w_i(t), the loss weight of each level in nats per nat of divergence, (..., n + 1).

        0 for tokens.

        Each weight times its occupancy integrates to one. Where weights may be infinite, at t = 0
        and 1 and where a schedule ends, times are shifted by a rounding error.
        """
        return self.chain.weights(t.to(torch.float64))

    def level_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return self.hierarchy.level_of(z)

    @property
    def levels(self) -> tuple[int, ...]:
        return self.hierarchy.levels

    def sample(
        self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent"
    ) -> Tokens:
        """Draw z_t ~ q_t(.|x): first the level, then its state.

        No tensor larger than (B, L, levels) is built.
        """
        self.check_inputs(x=x, t=t)
        reached = self.chain.at_most(t.to(torch.float64))
        level = draw_levels(reached, self._uniforms(x, generator, levels))
        if levels == "balanced":
            inflow = unsqueeze_times(self._inflow(t), 1)
            total = inflow.sum(-1).expand(x.shape)
            level = draw_one(level, total, inflow.expand(*x.shape, -1), generator)
        return self.ascend(x, level, generator)

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """Mean over noise of the bound's weight, and the weight at z.

        The mean is the sum of the fluxes.
        """
        return unsqueeze_times(self._inflow(t).sum(-1)).expand(z.shape), gather_last(
            self.weights(t), self.level_of(z)
        )

    def _inflow(self, t: Times) -> Float64[Tensor, "*n levels"]:
        return self.chain.inflow(t.to(torch.float64))

    def level_posterior(
        self, level: Tokens, t: Times, s: Times, lift: Tensor | None = None
    ) -> Float64[Tensor, "B L levels"]:
        """Return the distribution of the level at s given the level at t, (B, L, n + 1): theory
        section 3, in brackets.

        With ``lift`` the levels at t and at s have another coupling, see
        ``level_chain.remask_coupling``.
        """
        joint = self._joint(t, s)
        probs = gather_columns(joint, level)
        if lift is not None:
            probs = probs + remask_coupling(joint, level, lift)
        return normalise_or_stay(probs, level)

    def level_transition(self, s: Times, t: Times) -> Float64[Tensor, "*n levels levels"]:
        """Return the transition matrix of levels from s (rows) to t >= s (columns), (..., n + 1, n
        + 1).
        """
        return self.chain.transition(s.to(torch.float64), t.to(torch.float64))

    def expected_level(self, t: Float64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """Return the mean level of a position at each time, (n,)."""
        levels = torch.arange(len(self.levels), dtype=torch.float64, device=t.device)
        return self.occupancies(t) @ levels

    def max_remask_prob(self, t: Times, s: Times) -> Float64[Tensor, "*n levels"]:
        """Return the largest ``lift`` of each edge in ``sample_level``, (B, n) or (B, L, n).

        See ``level_chain``.
        """
        return max_remask_prob(self._joint(t, s))

    def sample_level(
        self, z: Tokens, t: Times, s: Times, generator: Generator = None, lift: Tensor | None = None
    ) -> Tokens:
        """Draw the levels at s of states ``z`` at t from ``level_posterior``."""
        probs = self.level_posterior(self.level_of(z), t, s, lift)
        return draw(probs, rand(z.shape, generator, z.device))

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
        """Draw the levels at s from ``level_posterior``, then the states."""
        level_u, u = noise
        target = draw(self.level_posterior(self.level_of(z), t, s), level_u)
        return self.descend(logits, z, target, u, force=force, sharpen=sharpen)

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
        """Draw the states of moving positions from ``descendant_logits``.

        Other rows of ``logits`` are not read.
        """
        target = self.sample_level(z, t, s, generator) if target is None else target
        u = rand(z.shape, generator, z.device)
        return self.descend(logits, z, target, u, force=force, sharpen=sharpen)

    def descend(
        self,
        logits: Float[Tensor, "*n V"],
        z: Int64[Tensor, "*n"],
        target: Int64[Tensor, "*n"],
        u: Float64[Tensor, "*n"],
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Int64[Tensor, "*n"]:
        """Draw states in lower levels from ``descendant_logits``, one uniform for each.

        Args:
            logits: (..., V) cavity logits; rows of states that stay are not read.
            z: (...) states.
            target: (...) their new levels; a state of a level that is not higher stays.
            u: (...) uniforms in [0, 1).
            force: see ``sample_given_level``.
            sharpen: see ``sample_given_level``.
        """
        level = self.level_of(z)
        result = z.clone()
        for i in range(self._depth):
            for j in range(i + 1, self._depth + 1):
                rows = (target == i) & (level == j)
                if rows.any():
                    log_probs = descendant_logits(
                        self.hierarchy, logits[rows], z[rows], j, i, force
                    )
                    result[rows] = self.hierarchy.offsets[i] + draw_logits(
                        sharpen(log_probs), u[rows]
                    )
        return result

    def sharpen(self, logits: Logits, z: Tokens, t: Times, sharpen: Sharpen) -> Logits:
        """Compute cavity logits with which the token given z follows the sharpened distribution.

        ``sharpen`` acts on it as on every distribution that ``descend`` draws from.
        """
        logits = float32_or_wider(logits)
        if sharpen is identity:
            return logits
        known, _ = evidence(self, z, t)
        known = known.to(logits.dtype)
        drawn = sharpen((logits.log_softmax(-1) + known).log_softmax(-1))
        return torch.where(known > -torch.inf, drawn - known, -torch.inf)

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits | None = None, sharpen: Sharpen = identity
    ) -> Float64[Tensor, "B L"]:
        """Rate at which the reverse chain leaves each state: ``weights``, which depend on no
        network.
        """
        return gather_last(self.weights(t), self.level_of(z))

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
        """Draw the states of moving positions one level below."""
        target = (self.level_of(z) - moves.long()).clamp_min(0)
        return self.sample_given_level(
            logits, z, t, t, target, generator, force=force, sharpen=sharpen
        )

    def subtree_logits_suffice(self, level: int, target: int, force: bool = False) -> bool:
        """True if only the logits of tokens below the state matter, without weights: if xi = 1 on
        the edges between.

        Logits of other tokens may then be -inf, and the distribution over a state's children is
        enough to descend from child to child: from the mask, or from a cluster that tokens do not
        leave, to members that are reached from there alone. With ``force`` this holds in a tree of
        any xi, but not for other kernels, whose entries differ.
        """
        if target >= level:
            return False
        mixed = target > 0 and not self.hierarchy.between(0, target).plain
        route = self.hierarchy.between(target, level)
        by_children = level == self._depth or route.plain or (force and isinstance(route, Map))
        return by_children and not mixed

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """True at the mask, and at clusters that tokens of other clusters may enter."""
        return reachable_by_all(self.hierarchy, z)

    replaceable = replaceable_by_all

    def sample_jump_times(
        self, shape: Sequence[int], generator: Generator, device: torch.device
    ) -> tuple[Float64[Tensor, "B L n"], Tokens]:
        """Draw the times (B, L, n) at which positions enter levels 1..n, 2 for never, and the
        states (B, L) at t = 1.

        The levels of the reverse process are those of the forward process, so their path is drawn
        forwards.
        """
        draws = -torch.log1p(-rand((*shape, self._depth), generator, device))
        entries = self.chain.entry_times(draws)
        tokens = self._uniform_tokens(shape, generator, device)
        return entries, self.ascend(tokens, (entries <= 1).sum(-1), generator)

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draw z_t ~ q_{t|s}(.|z_s): first the level, then its state; no tensor larger than (B, L,
        levels) is built.
        """
        self.check_inputs(z=z, t=t, s=s)
        probs = gather_columns(self.level_transition(s, t).mT, self.level_of(z))
        level = draw_levels(probs[..., :-1].cumsum(-1), rand(z.shape, generator, z.device))
        return self.ascend(
            z, level.maximum(self.level_of(z)), generator
        )  # rounding may leave a level no mass

    def ascend(self, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
        """Draw the ancestors of ``z`` at levels that are not below theirs, with one draw per
        edge.
        """
        ancestors: Tokens = self.hierarchy.ascent(z, level, uniforms(z.shape, generator, z.device))
        return ancestors

    @torch.no_grad()
    def time_moments(
        self, t: Times, divergences: Sequence[float] | None = None
    ) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
        """Return sums over levels of occupancy times weight times divergence, and of the square of
        both.
        """
        nats = t.new_tensor(nats_of_levels(self.hierarchy, divergences))
        occupancies = self.occupancies(t)[:, 1:]
        costs = self.weights(t)[:, 1:] * nats
        return (occupancies * costs).sum(-1), (occupancies * costs**2).sum(-1)

    @property
    def _depth(self) -> int:
        return self.hierarchy.depth

    def _joint(self, t: Times, s: Times) -> Float64[Tensor, "*n levels levels"]:
        """Joint probability of the level at s (rows) and the level at t (columns)."""
        return self.level_transition(s, t) * self.occupancies(s)[..., None]


def draw_levels(
    at_most: Float64[Tensor, "*n edges"], u: Float64[Tensor, "B L"]
) -> Int64[Tensor, "B L"]:
    """Draw levels by inversion.

    Args:
        at_most: probability of each level but the last, or a lower one, of each sequence (B, n) or
            position (B, L, n).
        u: (B, L) uniforms in [0, 1).
    """
    if at_most.ndim == 2:
        return torch.searchsorted(at_most, u.contiguous(), right=True)
    return torch.searchsorted(at_most, u[..., None].contiguous(), right=True).squeeze(-1)
