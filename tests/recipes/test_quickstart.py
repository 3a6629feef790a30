"""The quickstart from the text to the figure, at the size that teaches nothing."""

import contextlib
import io
import math
import re

import pytest
import torch

from recipes import quickstart
from recipes.engine.run import Run


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
    assert re.search(r"step 12/12  loss [\d.]+ nats/token \(clipped at 2\)  ", shown)


def test_texts_on_their_way_are_shown_as_everywhere(ran):
    assert "t = 1.000: _ _ _ _" in ran[1] and re.search("\u2039.+?\u203a", ran[1])


def test_the_figure_is_a_png(smoke):
    assert smoke.figure.read_bytes().startswith(b"\x89PNG")
    assert smoke.figure.stat().st_size > 10_000


def test_the_numbers_are_finite_and_near_the_unigram_entropy(smoke):
    assert set(smoke.bounds) == {"masked", "hierarchical"}
    for tally in [*smoke.bounds.values(), smoke.unigram]:
        for measure in (tally.per_token, tally.bits_per_byte):
            assert measure.value > 0 and math.isfinite(measure.value) and measure.standard_error > 0
    assert smoke.entropy <= smoke.unigram.per_token.value
    for tally in smoke.bounds.values():
        assert abs(tally.per_token.value - smoke.unigram.per_token.value) < 0.5


def test_the_difference_is_that_of_the_bounds(smoke):
    gap = smoke.bounds["masked"].per_token.value - smoke.bounds["hierarchical"].per_token.value
    assert smoke.difference.per_token.value == pytest.approx(gap, abs=1e-5)


def test_the_samples_are_text(smoke):
    assert all(sample.strip() for samples in smoke.samples.values() for sample in samples)


def test_the_same_seed_gives_the_same_numbers(smoke, tmp_path):
    again = quickstart.main(["--smoke", "--out", str(tmp_path)])
    assert again.samples == smoke.samples
    assert {k: v.per_token for k, v in again.bounds.items()} == {
        k: v.per_token for k, v in smoke.bounds.items()
    }


def test_an_error_of_one_run_stops_the_other(tmp_path, monkeypatch):
    step = Run.step
    threads = torch.get_num_threads()

    def broken(run, batches, stop):
        if run.process.hierarchy.depth > 1:
            raise RuntimeError("out of memory")
        return step(run, batches, stop)

    monkeypatch.setattr(Run, "step", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        quickstart.main(["--smoke", "--steps", "1000000", "--out", str(tmp_path)])
    assert torch.get_num_threads() == threads


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
