"""Tree diagram of a hierarchy: mask on the left, tokens on the right, one line per token shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ddlib.hierarchies import Hierarchy
from ddlib.plot.axes import Axes, axes_or_new, dress
from ddlib.plot.colors import BLUE, DARK, GREY, bands, state_names
from ddlib.utils.validation import check_count

LINE = "#9A9A9A"


@dataclass
class _Layout:
    """Layout in lines from the top; a state is a pair (level, index)."""

    place: dict[tuple[int, int], float] = field(default_factory=dict)
    edges: list[tuple[tuple[int, int], float]] = field(default_factory=list)
    """A parent, and the line of a child one level below."""
    hidden: list[tuple[int, float, int]] = field(default_factory=list)
    """Level, line and number of children that are not shown."""
    lines: int = 0

    def line(self) -> float:
        self.lines += 1
        return self.lines - 1.0


def hierarchy(
    hierarchy: Hierarchy,
    axes: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    members: Sequence[Sequence[str]] | None = None,
    most: int = 40,
) -> Axes:
    """Plot a hierarchy as a tree, with the speed and xi of each edge where they are not 1.

    With more tokens than ``most`` only the first members of each cluster are shown. The name of a
    cluster is then followed by its number of tokens, and +5 stands for five more members. With xi <
    1 a child is drawn under its right parent.

    Args:
        hierarchy: the hierarchy.
        axes: matplotlib ``Axes`` to draw into; default those of a new figure of suitable height.
        names: names of the levels, see ``bands``.
        members: names of tokens and clusters, see ``state_names``.
        most: maximum number of lines, at least 1; exceeded if one member of each cluster needs
            more.

    Returns:
        The axes.

    Raises:
        ModuleNotFoundError: ``axes`` is None and matplotlib is not installed.
        TypeError, ValueError: as ``bands`` and ``state_names``; ``most`` below 1.
    """
    check_count("most", most)
    groups = bands(hierarchy, names)
    state = state_names(hierarchy, members)
    layout = _fit_layout(hierarchy, most)
    complete = not layout.hidden
    axes = axes_or_new(axes, (2.0 + 1.6 * hierarchy.depth, 0.9 + 0.22 * layout.lines))
    column = [hierarchy.depth - level for level in range(hierarchy.depth + 1)]
    for (level, index), place in layout.edges:
        start = (column[level], layout.place[level, index])
        end = (column[level - 1], place)
        middle = (start[0] + end[0]) / 2
        axes.plot(
            [start[0], middle, middle, end[0]],
            [start[1]] * 2 + [end[1]] * 2,
            color=LINE,
            linewidth=0.8,
        )
    size = min(9.0, max(4.0, 0.6 * 72 * axes.bbox.height / axes.figure.dpi / layout.lines))

    def label(level: int, place: float, text: str, colour: str, background: str) -> None:
        axes.text(
            column[level],
            place,
            text,
            fontsize=size,
            ha="center" if level else "left",
            va="center",
            color=colour,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": background, "edgecolor": "none"},
        )

    parents = [hierarchy.between(0, i).parents for i in range(1, hierarchy.depth + 1)]
    sizes = [
        torch.bincount(edge, minlength=hierarchy.levels[i])
        for i, edge in enumerate(parents, start=1)
    ]
    for (level, index), place in layout.place.items():
        count = f" ({int(sizes[level - 1][index]):,})" if level and not complete else ""
        background = groups[level].colour
        dark = background in (BLUE, DARK)
        label(
            level,
            place,
            state[hierarchy.offsets[level] + index] + count,
            "white" if dark else "black",
            background,
        )
    for level, place, left_out in layout.hidden:
        label(level, place, f"+{left_out:,}", GREY, "white")
    _head(hierarchy, axes, [band.name for band in groups], column)
    dress(
        axes, "where a token jumps, right to left", yticks=[], xlim=(-0.35, hierarchy.depth + 0.45)
    )
    axes.set_ylim(layout.lines - 0.3, -0.7)
    axes.spines[:].set_visible(False)
    return axes


def edge_text(hierarchy: Hierarchy, level: int) -> str:
    """Format speed and xi of the edge above ``level`` where they are not 1."""
    edge = hierarchy.maps[level]
    parts = [f"speed {hierarchy.speeds[level]:g}"] * (hierarchy.speeds[level] != 1)
    if not edge.plain:
        parts.append(f"xi {edge.xi}")
    return ", ".join(parts)


def _fit_layout(hierarchy: Hierarchy, lines: int) -> _Layout:
    """Return a layout of the whole hierarchy, or with as many children per state as fit into
    ``lines`` lines.
    """
    widths = [hierarchy.vocab_size] if hierarchy.vocab_size <= lines else range(1, lines + 1)
    best: _Layout | None = None
    for width in widths:
        layout = _Layout()
        _arrange(hierarchy, hierarchy.depth, 0, width, layout)
        if best is not None and layout.lines > lines:
            break
        best = layout
    assert best is not None  # there is a width
    return best


def _arrange(hierarchy: Hierarchy, level: int, index: int, width: int, layout: _Layout) -> float:
    """Place a state and its descendants; return the line of the state."""
    if level == 0:
        place = layout.line()
    else:
        children = (hierarchy.maps[level - 1].parents == index).nonzero()[:, 0].tolist()
        visible = children[:width]
        places = [_arrange(hierarchy, level - 1, child, width, layout) for child in visible]
        if len(visible) < len(children):
            places.append(layout.line())
            layout.hidden.append((level - 1, places[-1], len(children) - len(visible)))
        layout.edges += [((level, index), child) for child in places]
        places = places or [layout.line()]  # a state that is not a child's most likely parent
        place = (places[0] + places[-1]) / 2
    layout.place[level, index] = place
    return place


def _head(hierarchy: Hierarchy, axes: Axes, names: Sequence[str], column: Sequence[int]) -> None:
    """Write names and sizes of the levels above their columns, speed and xi between them."""
    sizes = [f"{name}\n{size:,}" for name, size in zip(names, hierarchy.levels, strict=True)]
    axes.set_xticks(list(column), sizes)
    axes.tick_params(axis="x", top=False, bottom=False, labeltop=True, labelbottom=False)
    for level in range(hierarchy.depth):
        text = edge_text(hierarchy, level).replace(", ", "\n")
        axes.text(
            column[level] - 0.5,
            -0.02,
            text,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=8,
            color=GREY,
        )
