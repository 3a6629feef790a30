"""Tree softmax: a distribution over tokens from the distributions over the children of each state.

An output layer has a logit for every state of a tree except its root. A softmax over *siblings* is
the distribution over the children of a state, and the product along the path from the root is a
distribution over tokens (theory section 11). At a state of a plain hierarchy the bound needs the
distribution over its children alone: about 224 logits for 50,257 tokens in 224 clusters.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Self, TypeGuard
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.hierarchies import Flat, Hierarchy, Map, Tree
from ddlib.typing import ChildDenoiser, implements
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.repr import digest
from ddlib.utils.validation import check_shape, due, require


def token_logits(tree: Hierarchy, logits: Float[Tensor, "*n children"]) -> Float[Tensor, "*n V"]:
    r"""Compute log-probabilities of tokens from the logits of states.

    :math:`\log p(x) = \sum_e \log \mathrm{softmax}_{siblings}`, over the edges e from the root to x
    (theory section 11).

    Args:
        tree: the tree, of which the parents alone matter; speeds and perturbations do not.
        logits: (..., S - 1), one per state except the root, in the order of the states; any
            floating dtype.

    Returns:
        (..., V), normalised, in float32 or float64; -inf at tokens below a family whose logits are
        all -inf.

    Raises:
        ValueError: another number of columns.

    Example:
        >>> import ddlib as dd
        >>> tree = dd.hierarchies.Tree([[0, 0, 1]])
        >>> token_logits(tree, torch.zeros(6 - 1)).exp()  # each cluster 1/2, and so on
        tensor([0.2500, 0.2500, 0.5000])
    """
    count = tree.num_states - 1
    require(
        logits.shape[-1:] == (count,),
        f"logits has shape {tuple(logits.shape)}, must be (..., S - 1 = {count})",
    )
    logits = float32_or_wider(logits)
    log_probs = torch.zeros_like(logits[..., :1])
    for edge, siblings in reversed(
        list(zip(tree.maps, logits.split(tree.levels[:-1], -1), strict=True))
    ):
        log_probs = edge.log_shares(siblings) + log_probs.index_select(-1, edge.parents)
    return log_probs


class Siblings(NamedTuple):
    """Location of the children of one state."""

    columns: slice | Tensor
    """Columns of the output layer's logits."""
    size: int


def is_tree(hierarchy: Hierarchy) -> bool:
    """True if each state has one right parent, and all lead to one mask."""
    return all(isinstance(edge, Map) for edge in hierarchy.maps) and hierarchy.levels[-1] == 1


class Grouping:
    """Children sorted by parent: the children of one parent are contiguous.

    Args:
        parents: (children,) parent of each child, counted from 0.
        count: number of parents; by default up to the last with a child.
        order: all children, in the order of siblings; ascending by default.
    """

    def __init__(
        self,
        parents: Int64[Tensor, "children"],
        count: int = 0,
        order: Int64[Tensor, "children"] | None = None,
    ) -> None:
        self.parents = parents
        ordered = parents if order is None else parents[order]
        by_parent = ordered.argsort(stable=True)
        self.order = order = by_parent if order is None else order[by_parent]
        """Children, group after group."""
        self.sizes = torch.bincount(parents, minlength=count)
        """Number of children of each parent."""
        ends = self.sizes.cumsum(0)
        self.starts = ends - self.sizes
        self.bounds = [0, *ends.tolist()]
        """Start of each group in ``order``, and the end of the last."""
        self.rank = torch.empty_like(parents)
        """Index of each child among its siblings."""
        self.rank[order] = (
            torch.arange(len(parents), device=parents.device) - self.starts[parents[order]]
        )

    def members(self, parent: int) -> Int64[Tensor, "n"]:
        """Return the children of a parent."""
        return self.order[self.bounds[parent] : self.bounds[parent + 1]]

    def pad_children(
        self, parents: Int64[Tensor, "n"]
    ) -> tuple[Int64[Tensor, "n K"], Bool[Tensor, "n K"]]:
        """Return the children of several parents, padded to the largest number, and where they are
        padding.
        """
        sizes = self.sizes[parents][:, None]
        place = torch.arange(int(sizes.max()), device=parents.device)
        index = (self.starts[parents][:, None] + place).clamp_max(len(self.order) - 1)
        return self.order[index], place >= sizes


class Families(Grouping):
    """Families of children of the members of a level, with ascending rows of the output layer in
    each family.

    Args:
        parents: (children,) parent of each child, counted from 0 within its level; every parent has
            a child.
        rows: (children,) row of each child in the output layer's matrix.
    """

    def __init__(self, parents: Int64[Tensor, "children"], rows: Int64[Tensor, "children"]) -> None:
        super().__init__(parents, order=rows.argsort(stable=True))
        self.columns = rows[self.order]
        """Rows of the output layer, family after family."""
        # the empty family has no columns
        self.limits = torch.cat([self.starts, self.starts.new_full((2,), len(rows))])
        """Index of the first column of each family and of an empty one behind them, and the end of
        both.
        """
        self.widest = max(end - start for start, end in pairwise(self.bounds))
        """Size of the largest family."""
        ends = self.sizes.cumsum(0)
        self._first, self._last = (
            self.columns[ends - self.sizes].tolist(),
            self.columns[ends - 1].tolist(),
        )

    def of(self, parent: int) -> Siblings:
        """Return the family of a member.

        Its columns, those of ``members``, are a slice if siblings are contiguous.
        """
        start = self.bounds[parent]
        end = self.bounds[parent + 1]
        first = self._first[parent]
        size = end - start
        if self._last[parent] - first + 1 == size:
            return Siblings(slice(first, first + size), size)
        return Siblings(self.columns[start:end], size)


def has_tree(denoiser: object) -> TypeGuard[ChildDenoiser]:
    """Return whether a network predicts the children of a tree."""
    return implements(denoiser, ChildDenoiser) and denoiser.tree is not None


class Children:
    """Parameterization by children.

    Meaning of an output layer with a logit for every state of a tree but its root.

    The string "children" stands for ``Children(process.hierarchy)``. The tree of the output may
    differ from the hierarchy of the noise: masked diffusion, GIDD and uniform noise take any tree
    over their tokens.

    Args:
        tree: the tree, of which the parents alone matter; speeds and perturbations do not.
        parameterization: meaning of the distribution over tokens, "cavity" or "posterior"; see
            ``ddlib.parameterization.logits``.
        rows: (S - 1,) row of each state except the root in the output layer's matrix, for
            ``ddlib.Hidden``; the matrix may have more rows. By default
            they are in the order of the states. They are fastest where siblings are contiguous.
            Logits are always in the order of the states.

    Raises:
        TypeError: a tree or ``parameterization`` of another kind.
        ValueError: a state without children; rows of another number, negative, or given twice.
    """

    def __init__(
        self, tree: Hierarchy, parameterization: str = "cavity", rows: Tensor | None = None
    ) -> None:
        if not isinstance(tree, Hierarchy):
            raise TypeError(f"tree is {tree!r}, must be a ddlib.hierarchies.Hierarchy")
        require(
            parameterization in ("cavity", "posterior"),
            f"parameterization is {parameterization!r}, must be 'cavity' or 'posterior'",
        )
        require(
            is_tree(tree),
            f"tree is {tree!r}, must have one parent for each state and one mask, as Tree and "
            "Flat do",
        )
        for level, edge in enumerate(tree.maps, start=1):
            empty = torch.bincount(edge.parents, minlength=edge.num_parents) == 0
            if bool(empty.any()):
                where = tree.offsets[level] + int(empty.nonzero()[0])
                raise ValueError(
                    f"tree has a state without children, {where} in level {level}: only tokens may "
                    "be without"
                )
        if rows is not None:
            check_shape(
                "rows", rows, (tree.num_states - 1,), f"(S - 1,) = ({tree.num_states - 1},)"
            )
            if due(rows):
                require(
                    int(rows.min()) >= 0,
                    f"rows holds {int(rows.min())}, must be indices of rows, >= 0",
                )
                require(
                    rows.unique().numel() == len(rows),
                    "rows holds a row twice, must have another for each state",
                )
        self.tree = tree
        self.parameterization = parameterization
        self.rows = rows
        self.columns = tree.num_states - 1
        """Number of logits, S - 1."""
        self.num_rows = self.columns if rows is None else int(rows.max()) + 1
        """Least number of rows of the output layer's matrix."""
        self._families: dict[tuple[int, torch.device], Families] = {}
        self._tables: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}
        self._levels: WeakKeyDictionary[Hierarchy, tuple[int | None, ...]] = WeakKeyDictionary()

    def __eq__(self, other: object) -> bool:
        """Return whether the other one has the same meaning for the same output layer."""
        if not isinstance(other, Children):
            return NotImplemented
        return self is other or (
            repr(self.tree) == repr(other.tree)
            and self.parameterization == other.parameterization
            and self._row_list() == other._row_list()
        )

    def __hash__(self) -> int:
        return hash((self.parameterization, self.columns))

    def _row_list(self) -> list[int]:
        return list(range(self.columns)) if self.rows is None else self.rows.tolist()

    def __getstate__(self) -> dict[str, Any]:
        """Attributes without the caches: their keys include weak references, which cannot be
        pickled.
        """
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("_families", "_tables", "_levels")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._families = {}
        self._tables = {}
        self._levels = WeakKeyDictionary()

    @classmethod
    def of(cls, denoiser: ChildDenoiser, parameterization: str = "cavity") -> Self:
        """Return the parameterization of a network that predicts children, such as a DiT with a
        ``tree``.

        Args:
            denoiser: the network.
            parameterization: as in the constructor.

        Raises:
            ValueError: the network predicts tokens.
        """
        require(
            denoiser.tree is not None, f"{type(denoiser).__name__} has no tree: it predicts tokens"
        )
        weight, _, rows = denoiser.siblings()
        parents = list(denoiser.tree or ())
        count = len(parents[0]) if parents else len(rows)
        tree = Tree(parents) if parents else Flat(count)
        return cls(tree.to(weight.device), parameterization, rows)

    @classmethod
    def meaning(cls, denoiser: object, parameterization: str) -> Self | str:
        """Return the meaning of a network's logits: ``Children`` of its tree if it has one, else
        the given parameterization.
        """
        return cls.of(denoiser, parameterization) if has_tree(denoiser) else parameterization

    def token_logits(self, logits: Float[Tensor, "*n children"]) -> Float[Tensor, "*n V"]:
        """Compute log-probabilities of tokens from logits of states, see ``token_logits``."""
        return token_logits(self.tree, logits)

    def check(self, parents: Sequence[Tensor]) -> None:
        """Raise ValueError unless an output layer made for these parents is one for this tree."""
        expected = [edge.parents for edge in self.tree.maps[:-1]]
        digests = digest(*parents)
        wanted = digest(*expected)
        require(
            digests == wanted,
            f"the output layer was made for a tree with {[len(level) for level in parents]} "
            "children by level and "
            f"parents={digests}, parameterization has {[len(level) for level in expected]} and "
            f"parents={wanted}",
        )

    def families(self, level: int) -> Families:
        """Return the families whose children are the members of ``level``; cached."""
        parents = self.tree.maps[level].parents
        offset = self.tree.offsets[level]
        if (level, parents.device) not in self._families:
            states = torch.arange(offset, offset + len(parents), device=parents.device)
            rows = states if self.rows is None else self.rows.to(states.device)[states]
            self._families[level, parents.device] = Families(parents, rows)
        return self._families[level, parents.device]

    def level_table(self, levels: Sequence[int], device: torch.device) -> Int64[Tensor, "n"]:
        """Return the tree level of each plain level of a process as a tensor; cached."""
        key = (tuple(levels), device)
        if key not in self._tables:
            self._tables[key] = torch.tensor(levels, device=device)
        return self._tables[key]

    def levels_of(self, noise: Hierarchy) -> tuple[int | None, ...]:
        """Return the level of the tree that equals each level of a process's hierarchy.

        None where there is none.

        Levels are equal if they have the same tokens under each member; those of the tokens and of
        the root always are. The comparison is made once for each hierarchy, since it synchronises
        an accelerator.
        """
        if noise not in self._levels:
            levels: list[int | None] = [0]
            for level in range(1, noise.depth):
                above = noise.between(0, level)
                trees = range(1, self.tree.depth)
                same = (
                    j for j in trees if torch.equal(self.tree.between(0, j).parents, above.parents)
                )
                levels.append(next(same, None) if isinstance(above, Map) else None)
            self._levels[noise] = (*levels, self.tree.depth)
        return self._levels[noise]

    def __repr__(self) -> str:
        return f"Children({self.tree!r}, parameterization={self.parameterization!r})"


@lru_cache(maxsize=8)  # called at every call of a loss, and families are expensive to compute
def children_of(hierarchy: Hierarchy) -> Children:
    """Return ``Children(hierarchy)``, the same object at every call."""
    return Children(hierarchy)
