"""The quickstart from the text to the figure, at the size that teaches nothing."""

import math

import pytest

from recipes import quickstart


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return quickstart.main(["--smoke", "--out", str(tmp_path_factory.mktemp("smoke"))])


def test_the_figure_is_a_png(smoke):
    assert smoke.figure.read_bytes().startswith(b"\x89PNG")
    assert smoke.figure.stat().st_size > 10_000


def test_the_numbers_are_finite_and_near_the_unigram_law(smoke):
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


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(smoke, tmp_path):
    again = quickstart.main(["--smoke", "--out", str(tmp_path)])
    assert again.samples == smoke.samples
    assert {k: v.per_token for k, v in again.bounds.items()} == {k: v.per_token for k, v in smoke.bounds.items()}


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
