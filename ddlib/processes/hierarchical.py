"""WHEN x WHERE: a schedule and a hierarchy make a process."""

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.categorical import draw, draw_logits
from ddlib.hierarchies import Flat, Hierarchy, Tree
from ddlib.noise import Generator, rand
from ddlib.processes.base import ForwardProcess, elapsed, interior, into, scalar, span, unchanged
from ddlib.processes.divergence import children
from ddlib.processes.levels import LevelChain, exchange, most_lift
from ddlib.schedules import Linear, Schedule
from ddlib.typing import Logits, PerToken, Sharpen, StateLaw, StateMatrix, Times, Tokens, WordLaw


class Hierarchical(ForwardProcess):
    r"""Tokens climb a hierarchy at the pace of a clock.

    With level occupancies :math:`a_i(t)` and the constant laws :math:`u_i(\cdot|x)` of level i given the word,
    :math:`q_t(z|x) = a_i(t) u_i(z|x)` for z in level i (theory section 2). Levels move on their own: which positions
    jump, when and how far does not depend on the words, nor, in reverse, on the network.

    Args:
        hierarchy: where tokens jump.
        schedule: when; ``alpha`` is the survival of a token on an edge of speed 1.

    Raises:
        TypeError: arguments of another kind.
        ValueError: alpha not decreasing from 1 to 0.
    """

    schedule: Schedule
    hierarchy: Hierarchy
    modes: ClassVar[tuple[str, ...]] = ("standard", "hard")

    def __init__(self, hierarchy: Hierarchy, schedule: Schedule) -> None:
        if not isinstance(hierarchy, Hierarchy):
            raise TypeError(f"hierarchy is {hierarchy!r}, must be a ddlib.hierarchies.Hierarchy")
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
        schedule.check()
        super().__init__(hierarchy.vocab_size, hierarchy.num_states)
        self.hierarchy, self.schedule = hierarchy, schedule
        self.chain = LevelChain(hierarchy.speeds)

    def occupancies(self, t: Times) -> Float64[Tensor, "B levels"]:
        """a_i(t), the probability of each level, (B, n + 1)."""
        return self.chain.occupancies(self._clock(t))

    def weights(self, t: Times) -> Float64[Tensor, "B levels"]:
        """w_i(t), the loss weight of each level in nats per nat of divergence, (B, n + 1); 0 for words.

        Each integrates to one against its occupancy. At t = 0 and 1, where weights may be infinite, their value a
        rounding error away from the end is given.
        """
        t = interior(t)
        return self.chain.weights(self._clock(t), self.schedule.rate(t))

    def level_of(self, z: Tokens) -> Tokens:
        return self.hierarchy.level_of(z)

    @property
    def levels(self) -> tuple[int, ...]:
        return self.hierarchy.levels

    def marginal(self, x: Tokens, t: Times) -> StateLaw:
        self.check_inputs(x=x, t=t)
        words = one_hot(x, self.vocab_size).to(torch.float64)
        given = [words] + [self.hierarchy.between(0, i).row(x) for i in range(1, self._depth + 1)]
        return self._spread(self.occupancies(t), given).to(t.dtype)

    def predictive(self, p: WordLaw, t: Times) -> StateLaw:
        return self._spread(self.occupancies(t).to(p.dtype), self.hierarchy.laws(p))

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        level = self.level_of(z)
        result = (z == x).to(torch.float64)
        for i in range(1, self._depth + 1):
            result = torch.where(level == i, self.hierarchy.between(0, i).entry(x, self.hierarchy.local(z, i)), result)
        return result * self.occupancies(t).gather(1, level)

    def word_likelihood(self, z: Tokens, t: Times) -> WordLaw:
        level = self.level_of(z)
        result = one_hot(self.hierarchy.local(z, 0), self.vocab_size).to(torch.float64)
        for i in range(1, self._depth + 1):
            column = self.hierarchy.between(0, i).column(self.hierarchy.local(z, i))
            result = torch.where((level == i)[..., None], column, result)
        return result * self.occupancies(t).gather(1, level)[..., None]

    def sample(self, x: Tokens, t: Times, generator: Generator = None) -> Tokens:
        """Draws z_t ~ q_t(.|x): the level first, the way up second; nothing larger than (B, L, levels) is built."""
        self.check_inputs(x=x, t=t)
        reached = self.occupancies(t)[:, None, :-1].cumsum(-1)
        level = (rand(x.shape, generator, x.device)[..., None] >= reached).sum(-1)
        return self.climb(x, level, generator)

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        rate, states = self.schedule.rate(interior(scalar(t, "t", self.device))), self.hierarchy.states
        result = torch.zeros(self.num_states, self.num_states, dtype=torch.float64, device=rate.device)
        for i, edge in enumerate(self.hierarchy.maps):
            speed = rate * self.chain.speeds[i]
            result[states(i), states(i + 1)] = speed * edge.matrix()
            result[states(i), states(i)] -= speed * torch.eye(edge.num_children).to(rate)
        return result

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        jumps, states = self.chain.transition(self._duration(*span(s, t, self.device))), self.hierarchy.states
        result = torch.zeros(self.num_states, self.num_states, dtype=torch.float64, device=jumps.device)
        for i in range(self._depth + 1):
            result[states(i), states(i)] = jumps[i, i] * torch.eye(self.hierarchy.levels[i]).to(jumps)
            for j in range(i + 1, self._depth + 1):
                result[states(i), states(j)] = jumps[i, j] * self.hierarchy.between(i, j).matrix()
        return result

    def level_posterior(
        self, level: Tokens, t: Times, s: Times, lift: Tensor | None = None
    ) -> Float64[Tensor, "B L levels"]:
        """The law of the level at s given the level at t, (B, L, n + 1): the bracket of theory section 3.

        With ``lift`` it is another coupling of the levels at t and at s, see ``levels.exchange``.
        """
        joint = self._joint(t, s)
        law = into(joint, level)
        if lift is not None:
            law = law + exchange(joint, level, lift)
        total = law.sum(-1, keepdim=True)
        stay = one_hot(level, self._depth + 1).to(law)  # a word given at t = 1 (a prompt) stays
        return torch.where(total > 0, law / torch.where(total > 0, total, 1.0), stay)

    def most_lift(self, t: Times, s: Times) -> Float64[Tensor, "B levels"]:
        """(B, n), see ``levels.most_lift``."""
        return most_lift(self._joint(t, s))

    def posterior(self, p: WordLaw, z: Tokens, t: Times, s: Times) -> StateLaw:
        self.check_inputs(z=z, t=t, s=s, p=p)
        level, laws = self.level_of(z), self.hierarchy.laws(p)
        jumps = self.level_posterior(level, t, s).to(p.dtype)
        blocks = []
        for i, law in enumerate(laws):
            itself = one_hot(self.hierarchy.local(z, i), law.shape[-1]).to(p.dtype)
            block = torch.where((level == i)[..., None], itself, 0.0)
            for j in range(i + 1, self._depth + 1):
                block = torch.where((level == j)[..., None], self._descendants(z, i, j, law), block)
            blocks.append(block * jumps[..., i : i + 1])
        return torch.cat(blocks, -1)

    def reverse_rate(self, p: WordLaw, z: Tokens, t: Times) -> StateLaw:
        self.check_inputs(z=z, t=t, p=p)
        level, laws = self.level_of(z), self.hierarchy.laws(p)
        weight = self.weights(t).to(p.dtype).gather(1, level)
        blocks = [torch.zeros_like(law) for law in laws]
        for i in range(self._depth):
            rates = self._descendants(z, i, i + 1, laws[i]) * weight[..., None]
            blocks[i] = torch.where((level == i + 1)[..., None], rates, 0.0)
        return torch.cat(blocks, -1)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        occupancies = self.occupancies(self._one().expand(len(x)) if t is None else t)
        result = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        uniform = torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64, device=x.device)
        for i, typical in enumerate(self.hierarchy.laws(uniform)):
            if i == 0:
                nats = torch.full_like(result, -float(uniform[0].log()))
            elif self.hierarchy.between(0, i).spread is None:
                nats = -typical[self.hierarchy.between(0, i).parents[x]].log()
            else:
                law = self.hierarchy.between(0, i).row(x)
                nats = (torch.xlogy(law, law) - torch.xlogy(law, typical)).sum(-1)
            result += occupancies[:, i : i + 1] * nats
        return result.clamp_min(0)

    def weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken]:
        """w_i(t) and KL(pi(.|z, x) || pi(.|z, p)) over the children of z (theory section 2)."""
        log_p = logits.log_softmax(-1)
        weight = self.loss_weight(x, z, t).to(logits.dtype)
        log_px = log_p.gather(-1, x[..., None]).squeeze(-1)
        return weight, children(self.hierarchy, log_px, self.hierarchy.maps[0].log_push(log_p), x, z)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        return self.weights(t).gather(1, self.level_of(z))

    def hard_weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken]:
        """The paper's hard training mode: -log p(x) in place of the KL at levels 2 and above, an upper bound of it."""
        weight, divergence = self.weighted_divergence(logits, x, z, t)
        word = -logits.log_softmax(-1).gather(-1, x[..., None]).squeeze(-1)
        return weight, torch.where(self.level_of(z) >= 2, word, divergence)

    def jump(self, z: Tokens, t: Times, s: Times, generator: Generator = None, lift: Tensor | None = None) -> Tokens:
        law = self.level_posterior(self.level_of(z), t, s, lift)
        return draw(law.flatten(0, 1), rand(z.shape, generator, z.device).flatten()).view_as(z)

    def land(
        self, logits: Logits, z: Tokens, t: Times, s: Times, target: Tokens | None,
        generator: Generator = None, *, force: bool = False, sharpen: Sharpen = unchanged,
    ) -> Tokens:  # fmt: skip
        """Draws the members that jumping positions land on, in proportion to K_{i->j}(z|y) u_i(y|p).

        Only rows of ``logits`` at jumping positions are looked at.
        """
        level = self.level_of(z)
        target = self.jump(z, t, s, generator) if target is None else target
        u = rand(z.shape, generator, z.device)
        result = z.clone()
        for i in range(self._depth):
            for j in range(i + 1, self._depth + 1):
                rows = (target == i) & (level == j)
                if rows.any():
                    law = logits[rows].to(torch.promote_types(logits.dtype, torch.float32))
                    law = law if i == 0 else self.hierarchy.between(0, i).log_push(law.log_softmax(-1))
                    route, state = self.hierarchy.between(i, j), self.hierarchy.local(z[rows], j)
                    weight = route.column(state)
                    if force and j < self._depth:
                        weight = torch.where(route.parents == state[:, None], weight, 0.0)
                    result[rows] = self.hierarchy.offsets[i] + draw_logits(
                        sharpen(law + weight.log().to(law.dtype)), u[rows]
                    )
        return result

    def descends(self, level: int, target: int, force: bool = False) -> bool:
        """From the mask or from a cluster that tokens do not leave, to members that they reach from nowhere else."""
        if target >= level:
            return False
        mixed = target > 0 and self.hierarchy.between(0, target).spread is not None
        kept = level == self._depth or force or self.hierarchy.between(target, level).spread is None
        return kept and not mixed

    def draw_path(
        self, shape: Sequence[int], generator: Generator, device: torch.device
    ) -> tuple[Float64[Tensor, "B L n"], Tokens]:
        """The levels of the reverse process are those of the forward process, so their path is drawn forwards.

        Holding times are exponential on the clock.
        """
        holding = -torch.log1p(-rand((*shape, self._depth), generator, device)) / self.chain.speeds
        clock = holding.cumsum(-1)
        reached = clock <= self._clock(self._one().to(device))
        entries = torch.where(reached, self.schedule.inverse((-clock).exp()).clamp(0, 1), 2.0)
        return entries, self.climb(self._uniform_words(shape, generator, device), reached.sum(-1), generator)

    def advance(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draws z_t ~ q_{t|s}(.|z_s): how far up first, the way second; nothing larger than (B, L, levels) is built."""
        self.check_forwards(z, s, t)
        reached = into(self.chain.transition(self._duration(s, t)).mT, self.level_of(z))[..., :-1].cumsum(-1)
        level = (rand(z.shape, generator, z.device)[..., None] >= reached).sum(-1)
        return self.climb(z, level.maximum(self.level_of(z)), generator)  # rounding may leave a level no mass

    def climb(self, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
        """The states that ``z`` reach at levels not below theirs: edge by edge, each edge by its own draw."""
        now, result = self.level_of(z), z
        member = z - self.hierarchy.starts[now]
        for i, edge in enumerate(self.hierarchy.maps, start=1):
            climbing, child = now < i, torch.where(now < i, member, 0)
            plain = edge.spread is None
            parent = edge.parents[child] if plain else edge.sample(child, rand(z.shape, generator, z.device))
            member = torch.where(climbing, parent, member)
            result = torch.where(climbing & (level == i), parent + self.hierarchy.offsets[i], result)
        return result

    def reduced(self, vocab_size: int) -> Self:
        """The same schedule over ``hierarchy.reduced``. A subclass that holds more must override it."""
        other = type(self).__new__(type(self))
        Hierarchical.__init__(other, self.hierarchy.reduced(vocab_size), self.schedule)
        return other

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(tree, Linear()) for tree in (*Flat.examples(), *Tree.examples())]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hierarchy!r}, {self.schedule!r})"

    @property
    def _depth(self) -> int:
        return self.hierarchy.depth

    def _clock(self, t: Tensor) -> Tensor:
        return self.schedule.hazard(t.to(torch.float64))

    def _joint(self, t: Times, s: Times) -> Float64[Tensor, "B levels levels"]:
        """The probability of each level at s (rows) together with each at t."""
        return self.chain.transition(self._duration(s, t)) * self.occupancies(s)[:, :, None]

    def _duration(self, s: Tensor, t: Tensor) -> Tensor:
        return elapsed(self.schedule, s, t)

    def _descendants(self, z: Tokens, lower: int, upper: int, law: Tensor) -> Tensor:
        """The law of the member of ``lower`` that led to ``z`` in ``upper``, in proportion to K(z|y) u(y|p)."""
        joint = self.hierarchy.between(lower, upper).column(self.hierarchy.local(z, upper)).to(law.dtype) * law
        return joint / joint.sum(-1, keepdim=True).clamp_min(torch.finfo(law.dtype).tiny)

    def _spread(self, occupancies: Tensor, laws: list[Tensor]) -> Tensor:
        return torch.cat([occupancies[:, None, i : i + 1] * law for i, law in enumerate(laws)], -1)
