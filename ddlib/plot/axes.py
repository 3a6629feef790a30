"""Axes to draw into, made without pyplot; matplotlib is imported only when the first are made."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure
else:  # so that the library is whole without matplotlib, its annotations included
    Axes = Figure = Any

TIME_LABEL = "t  (0 = data, 1 = noise)"


def panels(rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.0, 4.0)) -> tuple[Figure, list[Axes]]:
    """A figure of its own and its panels, row by row.

    Args:
        rows: of panels.
        columns: of panels.
        size: width and height of one panel in inches.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("ddlib.plot needs matplotlib: pip install 'ddlib[plot]'", name=error.name) from error
    figure = Figure(figsize=(columns * size[0], rows * size[1]), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def own(axes: Axes | None, size: tuple[float, float] = (6.0, 4.0)) -> Axes:
    """The axes given, or those of a new figure."""
    return panels(size=size)[1][0] if axes is None else axes


def dress(axes: Axes, title: str, **settings: Any) -> None:
    """Title, labels and limits in the style of the house."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(**settings)
