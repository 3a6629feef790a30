"""Numbers as tokens: cells, and values drawn back from them."""

from dataclasses import asdict

import numpy as np
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from recipes.data.cells import NOWHERE, Cells
from recipes.data.fields import MISSING, Field

decimals = st.integers(0, 3)


@st.composite
def columns(draw):
    """Numbers of a few decimals, with ties and values that occur often."""
    places = draw(decimals)
    whole = draw(st.lists(st.integers(-500, 500), min_size=1, max_size=60))
    often = [draw(st.sampled_from(whole))] * draw(st.integers(0, 30))
    return np.round(np.array(whole + often) / 10**places, places), places


bins = st.one_of(st.none(), st.integers(2, 12))


@settings(max_examples=examples(150))
@given(columns(), bins, st.integers(0, 2**32 - 1))
def test_values_return_through_their_tokens(column, count, seed):
    values, places = column
    cells = Cells.fit(values, count, places)
    tokens = cells.tokens(values)
    assert ((tokens >= 0) & (tokens < len(cells))).all()
    drawn = cells.draw(tokens, np.random.default_rng(seed).random(len(tokens)))
    assert np.array_equal(cells.tokens(drawn), tokens)
    assert np.array_equal(np.round(drawn, places), drawn)
    alone = np.array([len(cell) == 1 for cell in cells.quantiles])[tokens]
    assert np.array_equal(drawn[alone], values[alone])
    texts = [cells.text(value) for value in drawn]
    assert np.array_equal(np.array(texts, dtype=float), drawn)


@settings(max_examples=examples(100))
@given(columns(), st.integers(2, 12))
def test_cells_hold_about_a_bin_each(column, count):
    values, places = column
    cells = Cells.fit(values, count, places)
    sizes = np.bincount(cells.tokens(values), minlength=len(cells))
    assert sizes.min() > 0
    for cell, size in zip(cells.quantiles, sizes, strict=True):
        if len(cell) > 1:
            # a cell ends with the ties of its edge, fewer than a bin each
            assert size < 3 * len(values) / count + 1
    # each run of values between those that stand alone rounds its number of cells
    assert len(cells) <= 2 * count + 1


@settings(max_examples=examples(60))
@given(columns())
def test_all_values_are_tokens_without_bins(column):
    values, places = column
    cells = Cells.fit(values, None, places)
    assert cells.quantiles == tuple((value,) for value in np.unique(values).tolist())


def test_a_frequent_value_is_a_token_of_its_own():
    zeros = np.concatenate([np.zeros(90), np.arange(1.0, 11.0)])
    cells = Cells.fit(zeros, 20, 0)
    assert cells.quantiles[0] == (0.0,)
    assert cells.tokens(np.array([0.0, 1.0]))[1] > 0


def test_the_distribution_of_drawn_values_is_that_of_the_data():
    """Quantiles and mean, which a uniform draw in the last cell would miss for a long tail."""
    values = np.sort(np.random.default_rng(0).lognormal(0, 2, 20_000))
    cells = Cells.fit(values, 20)
    tokens = cells.tokens(values)
    counts = np.bincount(tokens)
    rank = np.arange(len(values)) - np.repeat(counts.cumsum() - counts, counts)
    chance = (rank + 0.5) / counts[tokens]
    drawn = cells.draw(tokens, chance)
    levels = [0.01, 0.1, 0.5, 0.9, 0.99, 0.999]
    np.testing.assert_allclose(np.quantile(drawn, levels), np.quantile(values, levels), rtol=0.05)
    assert abs(drawn.mean() / values.mean() - 1) < 0.02
    ends = Cells(tuple((cell[0], cell[-1]) for cell in cells.quantiles))
    assert ends.draw(tokens, chance).mean() > 5 * values.mean()


def test_integers_of_a_cell_are_drawn_alike():
    """The smallest and the largest one too, which are rounded to from both sides."""
    cells = Cells(((3.0,), (11.0, 20.0)), 0)
    drawn = cells.draw(np.ones(1000, int), (np.arange(1000) + 0.5) / 1000)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(11, 21)) and counts.tolist() == [100] * 10
    assert (cells.draw(np.zeros(9, int), np.linspace(0, 0.99, 9)) == 3).all()


def test_numbers_between_and_outside_of_cells():
    cells = Cells(((1.0,), (2.0,), (4.0, 5.0), (7.0,), (9.0, 10.0)))
    asked = np.array([0.9, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 7.0, 8.0, 10.0, 10.1])
    assert cells.tokens(asked).tolist() == [NOWHERE, 0, NOWHERE, 1, 2, 2, 2, 3, 4, 4, NOWHERE]
    assert cells.names == ("1.0", "2.0", "4.0 to 5.0", "7.0", "9.0 to 10.0")


def price():
    return field(
        symbols=("1", "2", "5 to 9", MISSING), cells=Cells(((1.0,), (2.0,), (5.0, 9.0)), 0)
    )


def field(**values):
    return Field(name="price", **values)


def city():
    return Field(name="city", symbols=("Rome", "Oslo"))


def test_values_of_a_field():
    chance = np.array([0.0, 0.5, 0.999, 0.3])
    assert price().values(np.array([0, 2, 2, 3]), chance) == ["1", "7", "9", None]
    assert [price().token(text) for text in ("1", "2.0", "6", MISSING)] == [0, 1, 2, 3]
    assert city().values(np.array([1, 0]), chance[:2]) == ["Oslo", "Rome"]
    assert city().token("Oslo") == 1


def test_a_field_returns_from_plain_values():
    for one in (price(), city()):
        assert Field.read(asdict(one)) == one


test_bad_values_are_refused = refuses("""
    price().token('cheap') | ValueError | price=cheap: must be a number
    price().token('nan') | ValueError | price=nan: must be a finite number, or .missing.
    price().token('1.5') | ValueError | price=1.5: no such value of the field, whose values are
        from 1 to 9, next 1 and 2
    price().token('10') | ValueError | price=10: no such value of the field, whose values are from
        1 to 9
    city().token('Osla') | ValueError | city=Osla: no such value of the field; did you mean
        'Oslo'
    city().token('Bern') | ValueError | must be one of 'Rome', 'Oslo'
    city().token('[missing]') | ValueError | no value of the training data is missing
    field(symbols=('1',), cells=Cells(((1.0,), (2.0,)))) | ValueError | field 'price': has 2 cells
    Cells(()) | ValueError | must have at least one in each cell
    Cells(((),)) | ValueError | must have at least one in each cell
    Cells(((1.0, 3.0), (2.0,))) | ValueError | increase within and between cells
    Cells(((3.0, 1.0),)) | ValueError | increase within and between cells
    Cells(((float('nan'),),)) | ValueError | must be finite
""")
