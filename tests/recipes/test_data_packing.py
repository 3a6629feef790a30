import numpy as np
import pytest

from recipes.data import pack


def lengths(count, longest, seed=0):
    return np.random.default_rng(seed).integers(1, longest + 1, count)


CASES = [(1, 5, 8), (1, 20, 8), (500, 30, 32), (500, 90, 32), (40, 1, 7)]


@pytest.mark.parametrize(("count", "longest", "length"), CASES)
def test_every_document_stands_whole_in_one_row(count, longest, length):
    sizes = lengths(count, longest)
    rows = pack(sizes, length, seed=0)
    assert sorted(np.concatenate(list(rows))) == list(range(count))
    for row in rows:
        assert len(row) > 0
        assert np.minimum(sizes[row], length).sum() <= length


def test_rows_are_nearly_full():
    sizes = lengths(5000, 60)
    rows = pack(sizes, 128, seed=0)
    assert sizes.sum() / (len(rows) * 128) > 0.99


def test_no_two_rows_would_fit_into_one():
    sizes = lengths(300, 40)
    filled = np.sort([sizes[row].sum() for row in pack(sizes, 64, seed=0)])
    assert filled[0] + filled[1] > 64


def test_the_seed_decides_which_of_equals_meet():
    sizes = np.full(60, 4)
    one, again, other = (pack(sizes, 12, seed=seed) for seed in (0, 0, 1))
    assert (one.order == again.order).all() and (one.begins == again.begins).all()
    assert (one.order != other.order).any()
