"""The contract of a hierarchy: where a token jumps."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Self, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ddlib.arguments import Identified, made_by
from ddlib.hierarchies.maps import Map, chain
from ddlib.utils.positive import PositiveParameter, check_positive
from ddlib.utils.renamed import Renamed
from ddlib.utils.repr import digest
from ddlib.utils.validation import check_count, require


class Hierarchy(Identified):
    r"""Where tokens jump: levels :math:`L_0` (words), ..., :math:`L_n` (the mask) and a map for each edge between them.

    A leaf builds its maps and hands them to ``super().__init__``. States are numbered words first, then each level's
    clusters in order, the mask last. A hierarchy of n levels has n above the words, the mask included.

    Args:
        maps: one ``Map`` per edge, lowest first; the last one leads to the mask alone.
        speeds: one positive jump speed per edge, the edge to the mask last; default all 1.
        learn_speeds: whether they are where parameters start, of which occupancies and weights are functions.

    Raises:
        ValueError: maps that do not chain, a top level that is not a single mask, or bad speeds.
    """

    def __init__(self, maps: Sequence[Map], speeds: Sequence[float] | None = None, learn_speeds: bool = False) -> None:
        super().__init__()
        require(len(maps) > 0, "maps is empty, a hierarchy needs at least the edge from words to the mask")
        for i, (lower, upper) in enumerate(pairwise(maps)):
            require(
                lower.num_parents == upper.num_children,
                f"maps[{i}] leads to {lower.num_parents} clusters, maps[{i + 1}] starts from {upper.num_children}: "
                "each level must have as many members as the level below has clusters",
            )
        require(maps[-1].num_parents == 1, f"maps[-1] leads to {maps[-1].num_parents} states, must lead to the mask")
        speeds = [1.0] * len(maps) if speeds is None else list(speeds)
        require(
            len(speeds) == len(maps),
            f"speed has {len(speeds)} entries, must have {len(maps)}: one per edge, the edge to the mask last",
        )
        self._speeds = check_positive("speed", speeds)
        self.learned = PositiveParameter("speed", self._speeds) if learn_speeds else None
        self.levels = (maps[0].num_children, *(m.num_parents for m in maps))
        self.maps = cast(Sequence[Map], nn.ModuleList(maps))
        n = len(maps)
        self.composed = nn.ModuleDict({f"{i}-{j}": chain(maps[i:j]) for i in range(n) for j in range(i + 1, n + 1)})
        self.starts = torch.tensor([0, *self.levels], device=maps[0].parents.device).cumsum(0)

    starts: Tensor
    learned: PositiveParameter | None
    """The speeds as a function of parameters, where they are learned."""
    fingerprint: str | None = None
    """Hash of the vocabulary this hierarchy was made for (``ddlib.vocabulary.fingerprint``), if it is known."""

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each edge, the edge to the mask last; as it is now where speeds are learned.

        Raises:
            ValueError: one was learned to 0 or infinity.
        """
        return self._speeds if self.learned is None else tuple(self.learned().tolist())

    @property
    def depth(self) -> int:
        """Number of levels n above the words, the mask included; as many edges."""
        return len(self.levels) - 1

    @property
    def vocab_size(self) -> int:
        """Number of words V."""
        return self.levels[0]

    @property
    def num_states(self) -> int:
        """Number of states S: words, clusters of every level, the mask."""
        return sum(self.levels)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first state of each level."""
        return tuple(sum(self.levels[:i]) for i in range(len(self.levels)))

    def between(self, lower: int, upper: int) -> Map:
        """The map K from level ``lower`` to level ``upper`` > ``lower``."""
        return cast(Map, self.composed[f"{lower}-{upper}"])

    def level_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """The level of each state."""
        return torch.bucketize(z.contiguous(), self.starts[1:-1], right=True)

    def local(self, z: Int64[Tensor, "*n"], level: int) -> Int64[Tensor, "*n"]:
        """Index of each state within ``level``; clamped, so meaningless for states of other levels."""
        return (z - self.offsets[level]).clamp(0, self.levels[level] - 1)

    def states(self, level: int) -> slice:
        """The states of a level."""
        return slice(self.offsets[level], self.offsets[level] + self.levels[level])

    def laws(self, p: Float[Tensor, "*n children"]) -> list[Tensor]:
        """u_i(.|p), the law of the member of each level above a word of law ``p``; words first."""
        found = [p]
        for edge in self.maps:
            found.append(edge.push(found[-1]))
        return found

    def under(self, state: int) -> Int64[Tensor, "n"]:
        """The words under a state, in ascending order; a word is under itself."""
        level = bisect_right(self.offsets, state) - 1
        if level == 0:
            return torch.tensor([state], device=self.starts.device)
        return (self.between(0, level).parents == state - self.offsets[level]).nonzero()[:, 0]

    def small_copy(self, vocab_size: int) -> Self:
        """A hierarchy of the same kind over at most ``vocab_size`` words, small enough to be enumerated.

        It has a few clusters of every level and a few members of each; maps, speeds and the probability of the right
        parent are those of this one. A leaf whose own methods need more than ``maps`` and ``speeds`` must override it.

        Raises:
            ValueError: too few words to keep two clusters where xi < 1.
        """
        check_count("vocab_size", vocab_size)
        kept = [torch.zeros(1, dtype=torch.int64, device=self.starts.device)]
        for i in reversed(range(self.depth)):
            edge = self.maps[i]
            least = 2 if i > 0 and self.maps[i - 1].spread is not None else 1
            size = max(least, len(kept[0]), round(vocab_size ** (1 - i / self.depth)))
            kept.insert(0, _spread_over(edge.parents, kept[0], size))
        require(len(kept[0]) <= vocab_size, f"vocab_size is {vocab_size}, must be at least {len(kept[0])} where xi < 1")
        other = type(self).__new__(type(self))  # the arguments of a subclass are not known here
        maps = [edge.restricted(*ends) for edge, ends in zip(self.maps, pairwise(kept), strict=True)]
        Hierarchy.__init__(other, maps, self.speeds, self.learned is not None)
        made: Self = made_by(other, reduction, hierarchy=self, vocab_size=vocab_size)
        return made

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a registered class is verified; override where the constructor needs arguments."""
        return [cls()]  # type: ignore[call-arg] # a leaf's constructor may need nothing

    def __repr__(self) -> str:
        """Sizes of the levels, words first, and what is not the default; six digits that tell the parents apart."""
        fields = [f"levels={self.levels}"]
        chosen = [edge.parents for edge in self.maps if edge.num_parents > 1]
        if chosen:
            fields.append(f"parents={digest(*chosen)}")
        if any(edge.spread is not None for edge in self.maps):
            fields.append(f"xi=({', '.join(edge.xi for edge in self.maps[:-1])}{',' * (self.depth == 2)})")
        if self.learned is not None:
            fields.append(f"speed={self.learned!r}")
        elif set(self.speeds) != {1.0}:
            fields.append(f"speed={self.speeds}")
        if self.fingerprint is not None:
            fields.append(f"fingerprint={self.fingerprint[:12]}")
        return f"{type(self).__name__}({', '.join(fields)})"

    reduced = Renamed("small_copy")


def reduction(hierarchy: Hierarchy, vocab_size: int) -> Hierarchy:
    """``hierarchy.small_copy(vocab_size)``, as plain values name it."""
    return hierarchy.small_copy(vocab_size)


def _spread_over(parents: Tensor, kept: Tensor, size: int) -> Tensor:
    """``size`` children of the ``kept`` parents, sorted: the first child of each, then the second of each, ..."""
    child = torch.isin(parents, kept).nonzero()[:, 0]
    mine = parents[child]
    order = mine.argsort(stable=True)
    counts = torch.bincount(mine)
    rank = torch.empty_like(child)
    rank[order] = torch.arange(len(child), device=child.device) - (counts.cumsum(0) - counts)[mine[order]]
    return child[rank.argsort(stable=True)[:size]].sort().values
