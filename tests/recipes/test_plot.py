"""Drawing runs together: what is read from their metrics, and the picture."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from recipes import plot
from recipes.logging import METRICS
from recipes.logging.metrics import Metrics
from recipes.model_io import RECIPE

STEPS = range(10, 210, 10)


def write_run(folder: Path, shift: float = 0.0, bounds: bool = True) -> Path:
    """A run of 200 steps of 64 tokens, half a second each.

    Masks are missing at every other record.
    """
    folder.mkdir(parents=True)
    with Metrics(folder / METRICS, 0) as metrics:
        for step in STEPS:
            levels = {"token": 0.0, "cluster": 4 + shift} | (
                {"mask": 6 + shift} if step % 20 else {}
            )
            metrics.write(train_record(step, 3 + shift + 100 / step, levels, step / 2))
            metrics.write({"step": step, "kind": "weights", "count": 3})
            if bounds and step % 50 == 0:
                found = {
                    "nats_per_token": 4.0 + shift,
                    "standard_error": 0.1 if step < 200 else np.nan,
                }
                metrics.write({"step": step, "kind": "bound", "sequences": 32} | found)
    return folder


def train_record(step: int, loss: float, levels: dict, seconds: float, tokens: int = 64) -> dict:
    return dict(step=step, kind="train", loss=loss, tokens=tokens, levels=levels, seconds=seconds)


def test_collected_curves(tmp_path):
    one, other = plot.collect(
        [write_run(tmp_path / "one"), write_run(tmp_path / "other", 0.5, bounds=False)]
    )
    assert (one.name, other.name, one.tokens) == ("one", "other", 64)
    assert one.loss.step.tolist() == list(STEPS)
    assert other.loss.value.tolist() == [3.5 + 100 / step for step in STEPS]
    assert (one.bound.step.tolist(), one.bound.value.tolist()) == ([50, 100, 150, 200], [4.0] * 4)
    np.testing.assert_array_equal(one.error, [0.1, 0.1, 0.1, np.nan])
    assert not len(other.bound.step)
    assert list(one.levels) == ["token", "cluster", "mask"]
    np.testing.assert_array_equal(other.levels["mask"].value, [6.5, np.nan] * 10)


def test_a_run_that_is_writing_is_read_up_to_its_last_whole_line(tmp_path):
    path = write_run(tmp_path / "run") / METRICS
    path.write_bytes(path.read_bytes()[:-5])
    (run,) = plot.collect([path.parent])
    assert run.bound.step.tolist() == [50, 100, 150]


def test_names_are_as_short_as_possible_and_distinct():
    paths = [Path(path) for path in ("/runs/a/small", "/runs/b/small", "/runs/large", "/small")]
    assert plot.unique(paths) == ["a/small", "b/small", "large", "/small"]


@pytest.mark.parametrize(
    ("x", "places"), [("step", [20, 50]), ("tokens", [1280, 3200]), ("hours", [1 / 360, 1 / 144])]
)
def test_steps_on_each_axis(tmp_path, x, places):
    (run,) = plot.collect([write_run(tmp_path / "run")])
    assert plot.PLACES[x][1](run, np.array([20.0, 50.0])) == pytest.approx(places)


def test_smoothing():
    values = np.array([4.0, np.nan, 1.0, 1.0])
    np.testing.assert_array_equal(plot.smooth_curve(values, 0.0), [4.0, 4.0, 1.0, 1.0])
    np.testing.assert_allclose(
        plot.smooth_curve(values, 0.5), [4.0, 4.0, 2.0, (4 + 2 * 1 + 4 * 1) / 7]
    )
    np.testing.assert_allclose(plot.smooth_curve(np.full(50, 7.0), 0.9), 7.0)


def panels(runs, smooth=0.0):
    upper, middle, lower = Figure().subplots(3, 1)
    plot.draw_bounds(upper, runs, plot.PLACES["step"][1])
    plot.draw_losses(middle, runs, plot.PLACES["step"][1], smooth)
    plot.draw_levels(lower, runs, plot.PLACES["step"][1], smooth)
    return upper, middle, lower


def test_the_lines_are_the_numbers(tmp_path):
    runs = plot.collect([write_run(tmp_path / "one"), write_run(tmp_path / "two", 0.5)])
    upper, middle, lower = panels(runs)
    loss = middle.lines[0]
    np.testing.assert_array_equal(
        loss.get_xydata(), np.stack([runs[0].loss.step, runs[0].loss.value], 1)
    )
    assert upper.get_legend_handles_labels()[1] == ["one", "two"]
    points = [container[0].get_xydata() for container in upper.containers]
    assert [found[:, 1].tolist() for found in points] == [[4.0] * 4, [4.5] * 4]
    segments = upper.containers[0][2][0].get_segments()
    np.testing.assert_allclose(segments[0], [[50, 3.9], [50, 4.1]])
    # two levels of two runs; words cost nothing and are left out
    assert [np.nanmean(line.get_ydata()) for line in lower.lines] == [4.0, 6.0, 4.5, 6.5]
    assert [text.get_text() for text in lower.get_legend().get_texts()] == ["cluster", "mask"]


def test_levels_of_different_depth_have_distinct_names(tmp_path):
    """The mask of masked diffusion and that of a hierarchy are one line's dashes."""
    depths = {"flat": {"token": 0.0, "mask": 5.0}, "other": {"token": 0.0, "level 1": 4.0}}
    for name, levels in depths.items():
        (tmp_path / name).mkdir()
        with Metrics(tmp_path / name / METRICS, 0) as metrics:
            for step in (10, 20):
                metrics.write(train_record(step, 3.0, levels, 1.0))
    _, _, lower = panels(
        plot.collect([write_run(tmp_path / "deep"), tmp_path / "flat", tmp_path / "other"])
    )
    assert [text.get_text() for text in lower.get_legend().get_texts()] == [
        "cluster",
        "mask",
        "level 1",
    ]
    cluster, mask, other, numbered = (line.get_linestyle() for line in lower.lines)
    assert mask == other and len({cluster, mask, numbered}) == 3


def test_the_beginning_does_not_set_the_scale(tmp_path):
    _, middle, _ = panels(plot.collect([write_run(tmp_path / "run")]))
    low, high = middle.get_ylim()
    assert low < 3.5 and 13 < high < 14  # the first record is 5 % of the way


def test_perplexity_stands_at_the_height_of_its_logarithm(tmp_path):
    upper, _, _ = panels(plot.collect([write_run(tmp_path / "run")]))
    (right,) = [axes for axes in upper.figure.axes if axes.get_ylabel() == "perplexity"]
    numbers = [float(label.get_text().replace(",", "")) for label in right.get_yticklabels()]
    assert len(numbers) > 3
    np.testing.assert_allclose(np.log(numbers), right.get_yticks())
    assert right.get_ylim() == upper.get_ylim()


def test_the_loss_has_an_axis_of_its_own_and_no_perplexity(tmp_path):
    folder = write_run(tmp_path / "run")
    text = "loss: {weighting: clip:10, count_padding: false}\nprocess: {kind: not_here}\n"
    (folder / RECIPE).write_text(text)
    (tmp_path / "theirs").write_text(text.replace("clip:10", "not_here:Rule"))
    assert plot.about_loss(tmp_path / "theirs") == ""
    upper, middle, _ = panels(plot.collect([folder, write_run(tmp_path / "other")]))
    assert middle.get_title() == "training loss, not a bound: clipped at 10, padding left out"
    assert upper.get_title() == "validation bound over 32 texts x 1 draw"
    assert not middle.containers and all(len(line.get_xdata()) <= 4 for line in upper.lines)
    # beside the bound alone there is a second axis
    beside = [axes for axes in upper.figure.axes if axes.get_ylabel() == "perplexity"]
    assert [axes.get_position().bounds for axes in beside] == [upper.get_position().bounds]


def test_the_picture(tmp_path, capsys):
    runs = [
        str(write_run(tmp_path / name, shift, bounds=not shift))
        for name, shift in (("a", 0.0), ("b", 0.3))
    ]
    out = tmp_path / "runs.png"
    plot.main([*runs, "--out", str(out), "--x", "hours"])
    assert capsys.readouterr().out == f"{out}\n"
    picture = imread(out)[..., :3]
    colours = {
        tuple(colour) for colour in np.round(picture * 255).astype(int).reshape(-1, 3).tolist()
    }
    assert {(0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)} <= colours  # both runs are there


def test_a_run_without_levels_or_bounds(tmp_path):
    with Metrics(tmp_path / METRICS, 0) as metrics:
        metrics.write(train_record(1, 3.0, {}, 1.0, tokens=4))
    plot.write_plot(tmp_path / "plot.png", plot.collect([tmp_path]), "step", 0.9)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; is"),
        ("", "is empty"),
        ('{"step": 1, "kind": "weights"}\n', "nothing to draw, it has no records of training"),
        ('{"step"\n{"step": 1, "kind": "weights"}\n', "line 1: not a JSON object"),
    ],
)
def test_files_that_cannot_be_plotted_are_refused(tmp_path, capsys, content, message):
    out = tmp_path / "out.png"
    if content is not None:
        (tmp_path / METRICS).write_text(content)
    with pytest.raises(SystemExit) as ended:
        plot.main([str(tmp_path), "--out", str(out)])
    assert str(ended.value).startswith(f"error: {tmp_path / METRICS}") and message in str(
        ended.value
    )
    assert capsys.readouterr().out == "" and not out.exists()


def test_a_run_given_twice_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    with pytest.raises(SystemExit, match=re.escape(f"{folder}: given twice")):
        plot.main([str(folder), f"{folder}/../run"])


@pytest.mark.parametrize(
    "flags", ["--smooth 1", "--smooth -0.1", "--smooth much", "--x epochs", ""]
)
def test_bad_flags_end_the_program(tmp_path, capsys, flags):
    with pytest.raises(SystemExit, match="2"):
        plot.main([str(tmp_path), *flags.split()] if flags else [])
    assert "error" in capsys.readouterr().err
