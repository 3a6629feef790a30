"""Plot of the curves of several training runs: validation bounds, training losses, losses level by
level.

    python -m recipes.plot runs/owt/mdlm runs/owt/hdlm --out owt.png
    python -m recipes.plot runs/owt/* --smooth 0.99 --x hours

A point with its standard error is a validation bound; exp of it is the perplexity, on the right. A
line is a training loss, on a separate axis: its kind is in the title, and it is not a bound. Hours
count training and saving only.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from ddlib.plot import BLUE, GREEN, GREY, ORANGE
from recipes.config import about_loss
from recipes.console import command, plain_errors
from recipes.logging import METRICS, Record, read_metrics
from recipes.metrics import basis
from recipes.model_io import RECIPE

Numbers = Float[np.ndarray, " n"]

COLOURS = (BLUE, ORANGE, GREEN, "#D55E00", "#CC79A7", "#56B4E9", "#2B2B2B", "#B8A800")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
BEGINNING = 0.05
"""Share of a run at its beginning that may exceed the limits of the plot."""


@dataclass(frozen=True)
class Curve:
    """Numbers, and the steps at which they were recorded."""

    step: Numbers
    value: Numbers


@dataclass(frozen=True)
class Run:
    """Records of a run, losses in nats per token."""

    name: str
    loss: Curve
    levels: dict[str, Curve]
    """By the level's name."""
    bound: Curve
    error: Numbers
    """Standard error of the bound; NaN for a single sequence."""
    seconds: Curve
    """Time spent in training."""
    tokens: float
    """Tokens of a step."""
    about: str = ""
    """Kind of the training loss; empty without a recipe."""
    rests_on: str = ""
    """Basis of the last bound; empty for metrics without it."""


def collect(folders: Sequence[Path]) -> list[Run]:
    """Read the runs.

    Raises:
        FileNotFoundError: a folder is not there, or is not a run's.
        ValueError: damaged or empty metrics, nothing to draw in them, the same folder twice.
    """
    names = unique([folder.resolve() for folder in folders])
    return [read_run(name, folder) for name, folder in zip(names, folders, strict=True)]


def unique(folders: Sequence[Path]) -> list[str]:
    """Return the shortest suffix of each path that distinguishes it from the others.

    Raises:
        ValueError: two are the same.
    """
    for folder in folders:
        if folders.count(folder) > 1:
            raise ValueError(f"{folder}: given twice")
    return [_name(folder, [other for other in folders if other != folder]) for folder in folders]


def _name(folder: Path, others: Sequence[Path]) -> str:
    ends = (folder.parts[-length:] for length in range(1, len(folder.parts) + 1))
    return str(
        Path(*next(end for end in ends if all(other.parts[-len(end) :] != end for other in others)))
    )


def read_run(name: str, folder: Path) -> Run:
    path = folder / METRICS
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; is {folder} the output.folder of a run?")
    records = [record for _, record in read_metrics(path)]
    if not records:
        raise ValueError(f"{path}: is empty")
    train, bounds = (
        [record for record in records if record["kind"] == kind] for kind in ("train", "bound")
    )
    if not train:
        raise ValueError(f"{path}: nothing to draw, it has no records of training")
    levels = dict.fromkeys(level for record in train for level in record["levels"])
    return Run(
        name,
        loss=curve(train, "loss"),
        levels={level: curve(train, "levels", level) for level in levels},
        bound=curve(bounds, "nats_per_token"),
        error=curve(bounds, "standard_error").value,
        seconds=curve(train, "seconds"),
        tokens=float(np.mean([record["tokens"] for record in train])),
        about=about_loss(folder / RECIPE),
        rests_on=basis(bounds[-1]["sequences"], bounds[-1].get("draws", 1))
        if bounds and "sequences" in bounds[-1]
        else "",
    )


def curve(records: Sequence[Record], name: str, key: str | None = None) -> Curve:
    """Return a field of records, or its entry under a key, NaN where there is none."""
    values = [record[name] if key is None else record[name].get(key) for record in records]
    return Curve(np.array([record["step"] for record in records], float), np.array(values, float))


def smooth_curve(values: Numbers, decay: float) -> Numbers:
    """Return the exponential moving average, divided by its accumulated weight; NaN is skipped."""
    total = 0.0
    weight = 0.0
    means = []
    for value in values:
        if not np.isnan(value):
            total = decay * total + (1 - decay) * value
            weight = decay * weight + (1 - decay)
        means.append(total / weight if weight else np.nan)
    return np.array(means)


def _hours(seconds: Curve, step: Numbers) -> Numbers:
    """Return the hours of training after each step, 0 at the first."""
    begin = (np.insert(values, 0, 0.0) for values in (seconds.step, seconds.value))
    return np.interp(step, *begin) / 3600


Place = Callable[[Run, Numbers], Numbers]
Line = tuple[Run, Numbers, Numbers]

PLACES: dict[str, tuple[str, Place]] = {
    "step": ("step", lambda run, step: step),
    "tokens": ("tokens seen", lambda run, step: step * run.tokens),
    "hours": ("hours of training", lambda run, step: _hours(run.seconds, step)),
}
"""Label of the horizontal axis, and the coordinate of a run after a number of steps."""


def draw_bounds(axes: Axes, runs: Sequence[Run], place: Place) -> None:
    """Plot validation bounds with their standard errors; perplexities on the right."""
    shown: list[Line] = []
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        marker = MARKERS[number % len(MARKERS)]
        axes.errorbar(
            place(run, run.bound.step),
            run.bound.value,
            run.error,
            color=colour,
            linewidth=1.8,
            marker=marker,
            markersize=5,
            capsize=2,
            label=run.name,
        )
        error = np.nan_to_num(run.error)
        shown += [
            (run, run.bound.step, end) for end in (run.bound.value - error, run.bound.value + error)
        ]
    axes.set(
        title=_title("validation bound", " over ", [run.rests_on for run in runs]),
        ylabel="nats per token",
    )
    if any(len(run.bound.step) for run in runs):
        frame(axes, shown)
        add_perplexity(axes)


def draw_losses(axes: Axes, runs: Sequence[Run], place: Place, smooth: float) -> None:
    """Plot training losses: no bounds, so without perplexities and on separate axes."""
    shown: list[Line] = []
    for number, run in enumerate(runs):
        loss = smooth_curve(run.loss.value, smooth)
        axes.plot(
            place(run, run.loss.step),
            loss,
            color=COLOURS[number % len(COLOURS)],
            linewidth=1,
            label=run.name,
        )
        shown.append((run, run.loss.step, loss))
    frame(axes, shown)
    axes.set(
        title=_title("training loss, not a bound", ": ", [run.about for run in runs]),
        ylabel="nats per token",
    )


def _title(what: str, how: str, of_runs: Sequence[str]) -> str:
    """Return a title with the descriptions of the runs, each once."""
    descriptions = "; ".join(dict.fromkeys(filter(None, of_runs)))
    return what + how + descriptions if descriptions else what


def draw_levels(axes: Axes, runs: Sequence[Run], place: Place, smooth: float) -> None:
    """Plot training losses of the tokens at each level of the noise."""
    shown: list[Line] = []
    dashes: dict[str, str] = {}
    for number, run in enumerate(runs):
        for level, series in run.levels.items():
            if not np.nan_to_num(
                series.value
            ).any():  # the loss is zero at a level whose tokens are known
                continue
            dash = dashes.setdefault(level, DASHES[len(dashes) % len(DASHES)])
            loss = smooth_curve(series.value, smooth)
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(place(run, series.step), loss, color=colour, linewidth=1, linestyle=dash)
            shown.append((run, series.step, loss))
    axes.set(title="training loss by level of the noise", ylabel="nats per token of the level")
    if not shown:
        return
    frame(axes, shown)
    handles = [
        Line2D([], [], color=GREY, linestyle=dash, label=level) for level, dash in dashes.items()
    ]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles))


def frame(axes: Axes, shown: Sequence[Line]) -> None:
    """Set limits that leave out the beginning of a run, far above the rest."""
    value = np.concatenate([value for _, _, value in shown])
    if not np.isfinite(value).any():  # of runs that diverged from the first record on
        return
    late = np.concatenate([step >= BEGINNING * run.loss.step[-1] for run, step, _ in shown])
    low = np.nanmin(value)
    high = np.nanmax(value[late] if np.isfinite(value[late]).any() else value)
    margin = 0.06 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)


def add_perplexity(axes: Axes) -> None:
    """Add exp(nats) at round numbers on the right."""
    low, high = axes.get_ylim()
    near = high - low < np.log(10)
    numbers = (MaxNLocator(8) if near else LogLocator(subs=(1, 1.5, 2, 3, 5, 7))).tick_values(
        np.exp(low), np.exp(high)
    )
    numbers = numbers[(numbers > np.exp(low)) & (numbers < np.exp(high))]
    right = axes.twinx()
    right.set(
        ylim=(low, high),
        ylabel="perplexity",
        yticks=np.log(numbers),
        yticklabels=[f"{n:,.5g}" for n in numbers],
    )
    right.spines["right"].set_visible(True)


def write_plot(path: Path, runs: Sequence[Run], x: str, smooth: float) -> None:
    """Plot runs together into a PNG."""
    label, place = PLACES[x]
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
    }
    with matplotlib.rc_context(style | {"legend.frameon": False}):
        figure = Figure(figsize=(11, 12), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        upper, middle, lower = figure.subplots(3, 1, sharex=True)
        draw_bounds(upper, runs, place)
        draw_losses(middle, runs, place, smooth)
        draw_levels(lower, runs, place, smooth)
        lower.set(xlabel=label)
        lower.xaxis.set_major_formatter("{x:,.12g}")
        widest = max(len(run.name) for run in runs)
        figure.legend(
            *upper.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=max(1, 120 // (widest + 12)),
        )
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Plot the runs of the command line."""
    options = _parser().parse_args(arguments)
    with plain_errors():
        write_plot(options.out, collect(options.runs), options.x, options.smooth)
    print(options.out)


def _decay(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must lie in [0, 1)")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output.folder of a run")
    parser.add_argument(
        "--out", type=Path, default=Path("plot.png"), help="file of the figure (default plot.png)"
    )
    parser.add_argument(
        "--smooth",
        type=_decay,
        default=0.9,
        help="decay of the running mean of losses (default 0.9)",
    )
    parser.add_argument(
        "--x", choices=PLACES, default="step", help="horizontal axis (default step)"
    )
    return parser


if __name__ == "__main__":
    command(main)
