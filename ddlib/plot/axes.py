"""Creation and styling of matplotlib axes without pyplot; matplotlib is imported on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure
else:  # annotations must resolve without matplotlib
    Axes = Figure = Any

TIME_LABEL = "t  (0 = data, 1 = noise)"


def panels(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.0, 4.0)
) -> tuple[Figure, list[Axes]]:
    """Create a new figure and return it with its panels, row by row.

    Args:
        rows: number of rows of panels.
        columns: number of columns of panels.
        size: width and height of one panel in inches.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ddlib.plot needs matplotlib: pip install 'ddlib[plot]'", name=error.name
        ) from error
    figure = Figure(figsize=(columns * size[0], rows * size[1]), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def axes_or_new(axes: Axes | None, size: tuple[float, float] = (6.0, 4.0)) -> Axes:
    """Return the given axes, or those of a new figure."""
    return panels(size=size)[1][0] if axes is None else axes


def dress(axes: Axes, title: str, **settings: Any) -> None:
    """Set title, labels and limits in the style of all plots."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(**settings)
