"""Base class of hierarchies, and functions of its time-independent transition kernels, upwards and
downwards.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Self, cast

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ddlib.config.part import Part, record_maker
from ddlib.config.state import check_extra_state, extra_state
from ddlib.hierarchies.ascent import Ascent, ascent_of
from ddlib.hierarchies.kernels import Kernel
from ddlib.hierarchies.level_names import Named
from ddlib.hierarchies.maps import Map, chain, check_top
from ddlib.typing import PerToken, StateMatrix, Tokens
from ddlib.utils.positive import check_positive
from ddlib.utils.precision import Float64Module, float32_or_wider
from ddlib.utils.repr import digest
from ddlib.utils.validation import check_count, require


class Hierarchy(Named, Float64Module, Part):
    r"""Levels :math:`L_0` (tokens), ..., :math:`L_n` (the mask), and a transition matrix for each
    edge between them.

    A subclass builds its maps and passes them to ``super().__init__``. States are numbered tokens
    first, then each level's clusters in order, the mask last. A hierarchy of n levels has n levels
    above the tokens, the mask included.

    Args:
        maps: one ``Kernel`` per edge, lowest first, in a tree of the class ``Map``; the last one
            leads to the mask.
        speeds: one positive jump speed per edge, the edge to the mask last; default all 1.

    Raises:
        ValueError: maps that do not chain, a top level whose states depend on the token, or bad
            speeds.
    """

    # a state dict holds the constructor's arguments, which loading compares
    get_extra_state = extra_state
    set_extra_state = check_extra_state

    def __init__(
        self,
        maps: Sequence[Kernel],
        speeds: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        require(
            len(maps) > 0, "maps is empty, must contain at least the edge from tokens to the mask"
        )
        for i, (lower, upper) in enumerate(pairwise(maps)):
            require(
                lower.num_parents == upper.num_children,
                f"maps[{i}] leads to {lower.num_parents} clusters, maps[{i + 1}] starts from "
                f"{upper.num_children}: "
                "the numbers must be equal",
            )
        speeds = [1.0] * len(maps) if speeds is None else speeds
        if not isinstance(speeds, Iterable):
            raise TypeError(f"speed is {speeds!r}, must be a list of numbers, one per edge")
        speeds = list(speeds)
        require(
            len(speeds) == len(maps),
            f"speed has {len(speeds)} entries, must have {len(maps)}: one per edge, the edge to "
            "the mask last",
        )
        self.speeds = check_positive("speed", speeds)
        self.levels = (maps[0].num_children, *(m.num_parents for m in maps))
        self.maps = cast(Sequence[Kernel], nn.ModuleList(maps))
        n = len(maps)
        self.composed = nn.ModuleDict(
            {f"{i}-{j}": chain(maps[i:j]) for i in range(n) for j in range(i + 1, n + 1)}
        )
        check_top(self.between(0, n))
        self.starts = torch.tensor([0, *self.levels], device=maps[0].parents.device).cumsum(0)
        # torch < 2.13, compiled on a GPU, reads a view from its memory's start
        self.ends = self.starts[1:-1].clone()
        self.ascent = ascent_of(maps, self.starts)

    starts: Tensor
    ascent: Ascent
    """Draws of ancestors."""
    speeds: tuple[float, ...]
    """Speed of each edge, the edge to the mask last."""
    fingerprint: str | None = None
    """Hash of the vocabulary this hierarchy was made for (``ddlib.fingerprint``), or
    None.
    """

    @property
    def depth(self) -> int:
        """Number n of levels above the tokens, the mask included; also the number of edges."""
        return len(self.levels) - 1

    @property
    def vocab_size(self) -> int:
        """Number of tokens V."""
        return self.levels[0]

    @property
    def num_states(self) -> int:
        """Number of states S: tokens, clusters of every level, the mask."""
        return sum(self.levels)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Index of the first state of each level."""
        return tuple(sum(self.levels[:i]) for i in range(len(self.levels)))

    def between(self, lower: int, upper: int) -> Kernel:
        """Return the kernel K from level ``lower`` to level ``upper`` > ``lower``."""
        return cast(Kernel, self.composed[f"{lower}-{upper}"])

    def level_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Return the level of each state."""
        return torch.bucketize(z.contiguous(), self.ends, right=True)

    def local(self, z: Int64[Tensor, "*n"], level: int) -> Int64[Tensor, "*n"]:
        """Return the index of each state within ``level``.

        Clamped, so meaningless for states of other levels.
        """
        return (z - self.offsets[level]).clamp(0, self.levels[level] - 1)

    def states(self, level: int) -> slice:
        """Return the slice of the states of a level."""
        return slice(self.offsets[level], self.offsets[level] + self.levels[level])

    def level_probs(self, p: Float[Tensor, "*n children"]) -> list[Tensor]:
        """Return u_i(.|p), the distribution over each level's states if the token is drawn from
        ``p``; tokens first.
        """
        distributions = [p]
        for edge in self.maps:
            distributions.append(edge.push(distributions[-1]))
        return distributions

    def under(self, state: int) -> Int64[Tensor, "n"]:
        """Return the descendant tokens of a state, in ascending order.

        The only one of a token is itself.

        In a tree with xi < 1 these are the tokens whose right ancestor it is. Every mask has all
        tokens.

        Raises:
            ValueError: a state outside [0, S).
        """
        require(
            0 <= state < self.num_states, f"state is {state}, must be in [0, {self.num_states})"
        )
        level = bisect_right(self.offsets, state) - 1
        if level in (0, self.depth):
            alone = torch.tensor([state], device=self.starts.device)
            return alone if level == 0 else torch.arange(self.vocab_size, device=self.starts.device)
        edge = self.between(0, level)
        member = state - self.offsets[level]
        below = (
            edge.parents == member
            if isinstance(edge, Map)
            else edge.column(edge.parents.new_tensor(member)) > 0
        )
        return below.nonzero()[:, 0]

    def small_copy(self, vocab_size: int) -> Self:
        """Return a hierarchy of the same class over at most ``vocab_size`` tokens, small enough to
        be enumerated.

        It keeps a few clusters of every level and a few members of each, with the same maps, speeds
        and xi. A subclass whose methods use more than ``maps`` and ``speeds`` must override this
        method.

        Raises:
            ValueError: ``vocab_size`` is too small to keep two clusters where xi < 1.
        """
        check_count("vocab_size", vocab_size)
        masks = min(self.levels[-1], 2)
        kept_states = [torch.arange(masks, device=self.starts.device)]
        likeliest = [torch.ones(self.vocab_size, dtype=torch.bool, device=self.starts.device)]
        for edge in self.maps:  # the states that are the likeliest ancestor of some token
            likeliest.append(
                torch.bincount(edge.parents[likeliest[-1]], minlength=edge.num_parents) > 0
            )
        for i in reversed(range(self.depth)):
            edge = self.maps[i]
            least = 2 if i > 0 and not self.maps[i - 1].plain else 1
            size = max(least, len(kept_states[0]), round(vocab_size ** (1 - i / self.depth)))
            kept_states.insert(
                0, _spread_over(torch.where(likeliest[i], edge.parents, -1), kept_states[0], size)
            )
        require(
            len(kept_states[0]) <= vocab_size,
            f"vocab_size is {vocab_size}, must be at least {len(kept_states[0])} where xi < 1",
        )
        # bypasses __init__: subclasses have different arguments
        copy = type(self).__new__(type(self))
        maps = [
            edge.restrict(*ends)
            for edge, ends in zip(self.maps, pairwise(kept_states), strict=True)
        ]
        Hierarchy.__init__(copy, maps, self.speeds)
        named_copy: Self = record_maker(copy, reduction, hierarchy=self, vocab_size=vocab_size)
        return named_copy

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Instances on which a registered class is verified.

        Override if the constructor requires arguments.
        """
        return [cls()]  # type: ignore[call-arg] # a subclass's constructor may have no required arguments

    def __repr__(self) -> str:
        """Return the level sizes, tokens first, a six-digit digest of the parents, and all
        non-default values.
        """
        fields = [f"levels={self.levels}"]
        parents = [edge.parents for edge in self.maps[:-1] if edge.num_parents > 1]
        if parents:
            fields.append(f"parents={digest(*parents)}")
        if not all(edge.plain for edge in self.maps[:-1]):
            fields.append(
                f"xi=({', '.join(edge.xi for edge in self.maps[:-1])}{',' * (self.depth == 2)})"
            )
        if set(self.speeds) != {1.0}:
            fields.append(f"speed={self.speeds}")
        if self.fingerprint is not None:
            fields.append(f"fingerprint={self.fingerprint[:12]}")
        return f"{type(self).__name__}({', '.join(fields)})"


def reduction(hierarchy: Hierarchy, vocab_size: int) -> Hierarchy:
    """Return ``hierarchy.small_copy(vocab_size)``.

    Plain values (``Part.arguments``) refer to this function by name.
    """
    return hierarchy.small_copy(vocab_size)


def reach(hierarchy: Hierarchy, x: Tokens, z: Tokens) -> PerToken:
    """Return u(z|x), the probability that z is the token's ancestor in the level of z.

    Elementwise, float64.
    """
    level = hierarchy.level_of(z)
    result = (z == x).to(torch.float64)
    for i in range(1, hierarchy.depth + 1):
        result = torch.where(
            level == i, hierarchy.between(0, i).entry(x, hierarchy.local(z, i)), result
        )
    return result


def reach_of_tokens(hierarchy: Hierarchy, z: Tokens, lower: int = 0) -> Float64[Tensor, "B L K"]:
    """Return ``reach`` of every token, (B, L, V), or of every member of level ``lower``, (B, L,
    K).
    """
    level = hierarchy.level_of(z)
    result = one_hot(hierarchy.local(z, lower), hierarchy.levels[lower]).to(torch.float64)
    if lower > 0:  # no member of a level becomes a state below it
        result = torch.where((level == lower)[..., None], result, 0.0)
    for i in range(lower + 1, hierarchy.depth + 1):
        column = hierarchy.between(lower, i).column(hierarchy.local(z, i))
        result = torch.where((level == i)[..., None], column, result)
    return result


def state_matrix(hierarchy: Hierarchy, levels: Float64[Tensor, "levels levels"]) -> StateMatrix:
    """Build the (S, S) matrix whose block from level i to level j >= i is ``levels[i, j]`` times
    their map.
    """
    states = hierarchy.states
    result = torch.zeros(
        hierarchy.num_states, hierarchy.num_states, dtype=torch.float64, device=levels.device
    )
    for i in range(hierarchy.depth + 1):
        result[states(i), states(i)] = levels[i, i] * torch.eye(hierarchy.levels[i]).to(levels)
        for j in range(i + 1, hierarchy.depth + 1):
            result[states(i), states(j)] = levels[i, j] * hierarchy.between(i, j).matrix()
    return result


def descendant_logits(
    hierarchy: Hierarchy,
    logits: Float[Tensor, "N V"],
    z: Int64[Tensor, "N"],
    level: int,
    target: int,
    force: bool = False,
) -> Float[Tensor, "N K"]:
    """Logits of the members of a level below states, in proportion to K(z|y) u(y|p) (theory
    section 10).

    They depend neither on the time nor on other positions, given the states and ``logits``.

    Args:
        hierarchy: the levels.
        logits: (N, V) cavity logits.
        z: (N,) states, all in ``level``.
        level: their level.
        target: the level of their descendants, below ``level``.
        force: see ``LevelProcess.sample_given_level``.

    Returns:
        (N, K) log-probabilities of the K members of ``target``, in nats, not normalised.
    """
    log_probs = float32_or_wider(logits)
    if target > 0:
        ascent = hierarchy.between(0, target)
        # with a spread, log_push takes normalised probabilities
        log_probs = ascent.log_push(log_probs if ascent.plain else log_probs.log_softmax(-1))
    route = hierarchy.between(target, level)
    state = hierarchy.local(z, level)
    if route.num_parents == 1:  # every state leads to the root
        return log_probs
    if route.plain:
        return log_probs.masked_fill(route.parents != state[:, None], -torch.inf)
    weight = route.column(state)
    # no descendant leaves the mask, and parents do not apply between masks
    if force and level < hierarchy.depth:
        right = route.parents == state[:, None]
        # a state may be no likeliest parent
        weight = torch.where(right | ~right.any(-1, keepdim=True), weight, 0.0)
    return log_probs + weight.log().to(log_probs.dtype)


def reachable_by_all(hierarchy: Hierarchy, z: Tokens) -> Bool[Tensor, "B L"]:
    """True where every token may reach the state: the mask, and clusters that tokens of other
    clusters may enter.
    """
    tokens = torch.full((hierarchy.vocab_size,), hierarchy.vocab_size == 1, device=z.device)
    routes = [hierarchy.between(0, i) for i in range(1, hierarchy.depth + 1)]
    return torch.cat([tokens, *(route.parents_of_all for route in routes)])[z]


def _spread_over(parents: Tensor, kept_parents: Tensor, size: int) -> Tensor:
    """Return ``size`` children of the kept parents, sorted: first child of each, then second child
    of each, ...
    """
    child = torch.isin(parents, kept_parents).nonzero()[:, 0]
    parent = parents[child]
    order = parent.argsort(stable=True)
    counts = torch.bincount(parent)
    rank = torch.empty_like(child)
    rank[order] = (
        torch.arange(len(child), device=child.device) - (counts.cumsum(0) - counts)[parent[order]]
    )
    return child[rank.argsort(stable=True)[:size]].sort().values
