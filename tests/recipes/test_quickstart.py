"""The quickstart from the text to the figure, at the size that teaches nothing."""

import contextlib
import io
import math
import re

import pytest

from recipes import quickstart
from recipes.config import differences


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Result and output of the quickstart."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = quickstart.main(["--smoke", "--out", str(tmp_path_factory.mktemp("smoke"))])
    return result, printed.getvalue()


@pytest.fixture(scope="module")
def smoke(ran):
    return ran[0]


def test_numbers_are_printed_with_their_meaning(ran):
    shown = ran[1]
    assert re.search(
        r"bound on the validation text, over [\d,]+ texts x 2 draws \(lower is better\)", shown
    )
    assert re.search(r"step 12/12  loss [\d.]+ nats/token \(clipped at 2", shown)
    assert re.search(r"(masked|hierarchical) is lower by 0\.\d{4} ± 0\.\d{4} nats/token", shown)


def test_texts_on_their_way_are_shown_as_everywhere(ran):
    assert "t = 1.000: _ _ _ _" in ran[1] and re.search("\u2039.+?\u203a", ran[1])


def test_the_figure_is_a_png(smoke):
    assert smoke.figure.read_bytes().startswith(b"\x89PNG")
    assert smoke.figure.stat().st_size > 10_000


def test_the_numbers_are_finite_and_near_the_unigram_entropy(smoke):
    assert set(smoke.bounds) == {"masked", "hierarchical"}
    for measure in smoke.bounds.values():
        assert measure.value > 0 and math.isfinite(measure.value) and measure.standard_error > 0
        assert abs(measure.value - smoke.references.unigram) < 0.5


def test_the_difference_is_that_of_the_bounds(smoke):
    gap = smoke.bounds["masked"].value - smoke.bounds["hierarchical"].value
    assert smoke.difference.value == pytest.approx(gap, abs=1e-5)
    assert smoke.difference.standard_error < smoke.bounds["masked"].standard_error


def test_the_recipes_differ_in_the_process_alone(tmp_path):
    first, second = quickstart.recipes(quickstart.SMOKE, tmp_path, 0).values()
    (kind, *others) = differences(first, second)
    assert kind.startswith("process.kind") and all(one.startswith("process.") for one in others)


def test_the_same_seed_gives_the_same_numbers(smoke, tmp_path):
    again = quickstart.main(["--smoke", "--out", str(tmp_path)])
    assert again.bounds == smoke.bounds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stepz", "3"], "unrecognized arguments: --stepz"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--steps", "many"], "invalid int value"),
    ],
)
def test_bad_flags_end_the_program(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        quickstart.main(arguments)
    assert message in capsys.readouterr().err
