"""Measures of synthetic tables, on tables whose values are known."""

import math
from itertools import product

import numpy as np
import pytest

from recipes.metrics.tables import (
    Columns,
    closest,
    column_variation,
    cramers_v,
    floor,
    halved,
    measure,
    merged,
    pair_variation,
    transfer,
)

TWO = Columns(("a", "b"), (2, 3), (False, True))
EVERY = np.array([*product(range(2), range(3))])
"""Each pair of codes once: two independent columns."""


def rows_of(columns: Columns, number: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack([generator.integers(size, size=number) for size in columns.sizes], 1)


def test_variation_of_a_column_is_half_the_sum_of_differences():
    rows = np.array([[0, 0], [0, 0], [0, 1], [1, 2]])
    # (3/4, 1/4) and (1/2, 1/2, 0)... against equal shares
    want = [0.25, 0.5 * (1 / 2 - 1 / 3 + 2 * (1 / 3 - 1 / 4))]
    np.testing.assert_allclose(column_variation(rows, EVERY, TWO), want)
    np.testing.assert_array_equal(column_variation(rows, rows, TWO), 0)
    apart = np.array([[1, 2]])
    np.testing.assert_array_equal(column_variation(rows[:3], apart, TWO), 1)


def test_variation_of_pairs_sees_what_columns_do_not():
    columns = Columns(("a", "b"), (2, 2), (True, True))
    equal = np.array([[0, 0], [1, 1]])
    opposite = np.array([[0, 1], [1, 0]])
    independent = np.array([*product(range(2), range(2))])
    np.testing.assert_array_equal(column_variation(equal, opposite, columns), 0)
    np.testing.assert_array_equal(pair_variation(equal, opposite, columns), [[0, 1], [1, 0]])
    assert pair_variation(equal, independent, columns)[0, 1] == pytest.approx(0.5)
    # V cannot tell them apart: it has no sign
    np.testing.assert_allclose(cramers_v(equal, columns), cramers_v(opposite, columns))


def test_cramers_v_is_0_for_independent_and_1_for_equal_columns():
    np.testing.assert_allclose(cramers_v(EVERY, TWO), np.eye(2), atol=1e-12)
    columns = Columns(("a", "b", "constant", "unused"), (3, 3, 1, 9), (True,) * 4)
    codes = np.array([[0, 2, 0, 1], [1, 0, 0, 8], [2, 1, 0, 8]])
    strengths = cramers_v(codes, columns)
    assert strengths[0, 1] == pytest.approx(1)  # one-to-one, in another order
    assert strengths[0, 3] == pytest.approx(1)  # the second determines the fourth's two codes
    np.testing.assert_array_equal(strengths[2], [0, 0, 1, 0])


def test_cramers_v_of_two_by_two_is_the_absolute_correlation():
    columns = Columns(("a", "b"), (2, 2), (False, False))
    codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [5, 2, 1, 7], 0)
    want = abs(np.corrcoef(codes.T)[0, 1])
    assert cramers_v(codes, columns)[0, 1] == pytest.approx(want)


def test_ordered_columns_are_merged_in_groups_of_neighbours():
    names = ("ordered", "small", "category", "may miss")
    missing = (False, False, False, True)
    columns = Columns(names, (10, 2, 10, 10), (True, True, False, True), missing)
    codes = np.stack([np.arange(10), np.arange(10) % 2, np.arange(10), np.arange(10)], 1)
    fewer, coarse = merged(codes, columns, 4)
    assert coarse.sizes == [4, 2, 10, 5]
    assert fewer[:, 0].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    np.testing.assert_array_equal(fewer[:, 1:3], codes[:, 1:3])
    assert fewer[:, 3].tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4]
    coarse.check("fewer", fewer)


def test_a_classifier_reaches_what_is_in_the_samples():
    """The target is a function of the others; columns drawn alone do not have it."""
    columns = Columns(("a", "b", "y"), (4, 3, 4), (True, False, False))
    data = rows_of(columns, 1200)
    data[:, 2] = data[:, 0]
    train, test = data[:600], data[600:]
    right = transfer(train, test, columns, "y")
    assert right.accuracy == 1
    assert right.bits < 0.1
    alone = transfer(rows_of(columns, 600, 1), test, columns, "y")
    assert abs(alone.accuracy - 0.25) < 0.1
    assert alone.bits > 2


def test_an_ordered_target_is_predicted_by_groups_of_its_codes():
    columns = Columns(("a", "y"), (8, 8), (True, True))
    data = rows_of(columns, 800)
    data[:, 1] = data[:, 0] ^ 1  # the neighbour in the same pair of codes
    assert transfer(data[:400], data[400:], columns, "y").accuracy == 1
    data[:, 1] = data[:, 0] // 2 * 2 + np.random.default_rng(1).integers(2, size=800)
    assert transfer(data[:400], data[400:], columns, "y").accuracy == 1
    assert transfer(data[:400], data[400:], columns, "y", groups=8).accuracy < 0.7


def test_a_class_that_samples_lack_costs_finitely_many_bits():
    columns = Columns(("a", "y"), (2, 3), (False, False))
    train = np.array([[0, 0], [1, 0], [1, 0]])
    test = np.array([[0, 0], [1, 2]])
    quality = transfer(train, test, columns, "y")
    assert quality.accuracy == 0.5
    # probabilities (3 * (1, 0, 0) + 1) / (3 + 3)
    assert quality.bits == pytest.approx(-(math.log2(4 / 6) + math.log2(1 / 6)) / 2)


@pytest.mark.parametrize("may_miss", [False, True])
def test_the_closest_record_is_that_of_all_pairs(may_miss):
    names = ("age", "city", "constant")
    columns = Columns(names, (5, 4, 1), (True, False, True), (may_miss, False, False))
    training, rows = rows_of(columns, 7), rows_of(columns, 30, 1)
    ages = np.abs(rows[:, None, 0] - training[None, :, 0]) / (4 - may_miss)
    if may_miss:
        one, other = rows[:, None, 0] == 4, training[None, :, 0] == 4
        assert (one & ~other).any() and (one & other).any()
        ages = np.where(one | other, one != other, ages)
    cities = rows[:, None, 1] != training[None, :, 1]
    want = ((ages + cities) / 3).min(1)
    np.testing.assert_allclose(closest(rows, training, columns), want, atol=1e-12)
    np.testing.assert_array_equal(closest(training[:3], training, columns), 0)


def test_samples_of_the_data_measure_as_the_floor_and_others_do_not():
    columns = Columns(("a", "b", "c"), (4, 4, 3), (True, True, False))
    held_out = rows_of(columns, 800)
    held_out[:, 1] = held_out[:, 0]
    perfect, independent = rows_of(columns, 800, 1), rows_of(columns, 800, 2)
    perfect[:, 1] = perfect[:, 0]

    def distance(rows: np.ndarray, reference: np.ndarray) -> dict[str, float]:
        return measure(rows, reference, columns)

    least = floor(distance, held_out)
    same = halved(distance, perfect, held_out)
    other = halved(distance, independent, held_out)
    assert [*least] == ["marginals", "worst_marginal", "pairs", "associations"]
    for name in least:
        spread = least[name].standard_error + same[name].standard_error
        assert least[name].value > 0
        assert abs(same[name].value - least[name].value) < 3 * spread
    assert other["marginals"].value < 2 * least["marginals"].value
    assert other["pairs"].value > 3 * least["pairs"].value
    assert other["associations"].value > 0.3  # V of one pair of three is 1 in the data


def test_halves_have_the_error_of_a_mean_over_all_rows():
    """The deviation over halves of a mean is that of the mean of all rows."""
    columns = Columns(("a",), (2,), (False,))
    samples = rows_of(columns, 400)
    held_out = np.zeros((400, 1), dtype=np.int64)

    def ones(rows: np.ndarray, reference: np.ndarray) -> dict[str, float]:
        return {"ones": rows.mean() - reference.mean()}

    share = halved(ones, samples, held_out, halvings=400)["ones"]
    want = samples.std() / math.sqrt(len(samples))
    assert share.standard_error == pytest.approx(want, rel=0.15)
    assert share.value == pytest.approx(samples.mean(), abs=want)
    again = halved(ones, samples, held_out, halvings=400)["ones"]
    assert again == share


def test_halves_of_the_floor_share_no_row():
    held_out = np.arange(11)[:, None]

    def common(rows: np.ndarray, reference: np.ndarray) -> dict[str, float]:
        assert len(rows) == len(reference) == 5
        return {"common": len(np.intersect1d(rows, reference))}

    assert floor(common, held_out)["common"].value == 0


def wrong_inputs():
    rows = EVERY
    yield "names, sizes, ordered", lambda: Columns(("a",), (2, 3), (True,))
    yield "names, sizes, ordered", lambda: Columns((), (), ())
    yield "size of column 'a' is 0", lambda: Columns(("a",), (0,), (True,))
    yield r"rows\[0, 1\] = 3 in column 'b'", lambda: cramers_v(np.array([[0, 3]]), TWO)
    yield r"reference\[0, 0\] = -1", lambda: column_variation(rows, np.array([[-1, 0]]), TWO)
    yield r"shape \(0, 2\)", lambda: pair_variation(rows[:0], rows, TWO)
    yield r"shape \(6,\)", lambda: closest(rows[:, 0], rows, TWO)
    yield "groups is 0", lambda: merged(rows, TWO, 0)
    yield "target is 'c'", lambda: transfer(rows, rows, TWO, "c")
    yield "halvings is 1", lambda: floor(lambda a, b: {}, rows, 1)
    yield "held_out has 1 rows", lambda: floor(lambda a, b: {}, rows[:1])
    yield "samples has 2 rows", lambda: halved(lambda a, b: {}, rows[:2], rows)


@pytest.mark.parametrize("text, call", [*wrong_inputs()])
def test_bad_input_is_named(text, call):
    with pytest.raises(ValueError, match=text):
        call()
