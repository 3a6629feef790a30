"""Trees of any depth over the tokens."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

from ddlib.hierarchies.base import Hierarchy
from ddlib.hierarchies.level_names import check_names
from ddlib.hierarchies.maps import Map, parent_map, parent_vectors, to_masks
from ddlib.utils.validation import require


class Tree(Hierarchy):
    """Hierarchy of tokens, clusters of tokens, clusters of clusters, ..., and the mask.

    Args:
        parents: one vector per given edge; ``parents[i][j]`` is the 0-based cluster, in level i +
            1, of member j of level i. The edge from the last given level to the mask is implied. A
            vector that is not in a list is taken as the only one.
        xi: probability that a child goes to its parent rather than to another cluster, in (0, 1]:
            one number per given edge, or one for all. Default 1.
        speed: one number per edge, the edge to the mask last. Default all 1.
        vocab_size: checked against ``len(parents[0])`` when given.
        fingerprint: hash of the vocabulary the parents were made for; ``check_vocabulary`` compares
            it.
        masks: number of masks K, as in ``Flat``.
        names: names of the clusters for display: a list for each vector in ``parents``, the list
            alone for one vector, or a mapping from the name of each level to its list. Default
            none.

    Raises:
        TypeError: parents that are not integers, or in a mapping; names that are not strings.
        ValueError: parents negative, not surjective, of the wrong length for their level, or not
            coarser than the level below; xi outside (0, 1], below 1 with one cluster, or of the
            wrong number; bad speeds; names of the wrong number, empty or not distinct within a
            level.

    Example:
        >>> tree = Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]], xi=[0.9, 1.0])
        >>> tree.levels, tree.num_states
        ((6, 3, 2, 1), 12)
        >>> Tree([0, 0, 1, 1], names=["acidic", "basic"]).names.members
        (('acidic', 'basic'),)
    """

    def __init__(
        self,
        parents: Any,
        xi: float | Sequence[float] = 1.0,
        speed: Sequence[float] | None = None,
        vocab_size: int | None = None,
        fingerprint: str | None = None,
        masks: int = 1,
        names: Any = None,
    ) -> None:
        vectors = parent_vectors(parents)
        require(
            len(vectors) > 0,
            "parents is empty, must hold one vector per edge; use Flat(vocab_size) for a "
            "hierarchy without clusters",
        )
        # a tensor without axes is iterable by its class alone
        rates: list[Any] = [xi] * len(vectors)
        if isinstance(xi, Iterable) and getattr(xi, "ndim", 1) > 0:
            rates = list(xi)
        require(
            len(rates) == len(vectors),
            f"xi has {len(rates)} entries, must have {len(vectors)}: one per vector in parents",
        )
        maps: list[Map] = []
        for i, ((name, vector), x) in enumerate(zip(vectors.items(), rates, strict=True)):
            edge = parent_map(vector, x, name=name)
            expected = vocab_size if i == 0 else maps[-1].num_parents
            require(
                expected is None or edge.num_children == expected,
                f"{name} has {edge.num_children} entries, must have {expected}: "
                + (
                    "one per token (the mask is not a token)"
                    if i == 0
                    else f"one per cluster of parents[{i - 1}]"
                ),
            )
            maps.append(edge)
        maps.append(to_masks(maps[-1].num_parents, masks))
        super().__init__(maps, speed)
        parents_of_edges = [edge.parents for edge in maps[:-1]]
        self.declare(
            parents=parents_of_edges[0] if "parents" in vectors else parents_of_edges,
            xi=rates if isinstance(xi, Iterable) else xi,
            speed=speed,
            vocab_size=vocab_size,
            masks=masks,
            names=names,
        )
        self.fingerprint = fingerprint
        if (checked := check_names(names, self.levels[1:-1])).members:
            self._names = checked

    @classmethod
    def examples(cls) -> Sequence[Self]:
        parents = [0, 0, 1, 1, 2, 3]
        clusters = [0, 1, 1, 0]
        return [
            cls([parents]),
            cls([parents], xi=0.8),
            cls([parents, clusters], xi=[0.6, 0.9], speed=[0.7, 1.3, 2.0]),
        ]
