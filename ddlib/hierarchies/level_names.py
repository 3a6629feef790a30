"""Names of the clusters of a tree and of its levels."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ddlib.utils.validation import require


class Names(NamedTuple):
    """Names of the levels between the tokens and the mask, and of their members.

    Both are empty without names.
    """

    levels: tuple[str, ...] = ()
    """Name of each level, lowest first; () where only the members have names."""
    members: tuple[tuple[str, ...], ...] = ()
    """Names of the clusters of each level, in their order."""

    def plain(self) -> dict[str, list[str]] | list[list[str]]:
        """Return the names as ``Tree`` takes them, as plain values."""
        lists = [list(names) for names in self.members]
        return dict(zip(self.levels, lists, strict=True)) if self.levels else lists


NO_NAMES = Names()
"""Names of a hierarchy without names."""


class Named:
    """Mixin of hierarchies whose clusters may have names."""

    _names = NO_NAMES

    @property
    def names(self) -> Names:
        """Names of the levels of clusters and of their members; empty if they have none."""
        return self._names


def check_names(names: Any, sizes: tuple[int, ...]) -> Names:
    """Return the names that ``Tree`` takes, checked against the sizes of its levels of clusters.

    Args:
        names: a list of the names of each level's clusters, or of those of the only level; a
            mapping from the name of each level to such a list; None or an empty list for no names.
        sizes: number of clusters of each level.

    Raises:
        TypeError: names that are not strings.
        ValueError: another number of levels or of names; an empty name, or one that occurs twice in
            a level.
    """
    if names is None or (not isinstance(names, str) and len(names) == 0):
        return NO_NAMES
    levels = tuple(names) if isinstance(names, Mapping) else ()
    lists = list(names.values()) if isinstance(names, Mapping) else names
    if isinstance(lists, str) or not all(isinstance(level, str) for level in levels):
        raise TypeError(
            f"names is {names!r}, must be lists of strings, one for each level of clusters"
        )
    lists = [lists] if all(isinstance(name, str) for name in lists) else list(lists)
    require(
        len(lists) == len(sizes),
        f"names has {len(lists)} levels, must have {len(sizes)}: one per vector in parents",
    )
    for i, (members, size) in enumerate(zip(lists, sizes, strict=True)):
        if isinstance(members, str) or not all(isinstance(name, str) for name in members):
            raise TypeError(f"names[{i}] is {members!r}, must be a list of strings")
        require(
            len(members) == size,
            f"names[{i}] has {len(members)} names, must have {size}: one per cluster",
        )
        twice = [name for n, name in enumerate(members) if not name or name in members[:n]]
        require(not twice, f"names[{i}] has {twice[:1]}, which is empty or occurs twice")
    return Names(levels, tuple(tuple(members) for members in lists))
