"""Metrics of samples of a prepared table."""

import numpy as np
import pytest
from table_files import write_csv

from recipes.data import SymbolCorpus, open_prepared, prepare
from recipes.evaluation.samples import metrics_of
from recipes.metrics.tables.table import Table, columns_of

HEADER = ("age", "income", "member")
NAMES = ("marginals", "worst_marginal", "pairs", "associations", "accuracy", "classifier_bits")


def people(count, seed):
    """Ages, incomes that are missing for the young and rise with age, members at even ages."""
    age = np.random.default_rng(seed).integers(8, size=count)
    income = ["" if one < 2 else f"{one * 10.5:.1f}" for one in age]
    return [*zip(age, income, np.where(age % 2, "no", "yes"), strict=True)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    file = write_csv(folder / "people.csv", HEADER, people(2400, 0))
    source = {"kind": "table", "files": str(file)}
    prepare(SymbolCorpus(source=source, held_out=800), folder / "data")
    return open_prepared(folder / "data")


def test_columns_are_the_fields_of_the_table(data):
    columns = columns_of(data)
    assert columns.names == [*HEADER]
    assert columns.sizes == [8, 7, 2]
    assert columns.ordered == [True, True, False]
    assert columns.missing == [False, True, False]
    assert isinstance(metrics_of(None, data), Table)  # the default of the source


def test_training_rows_measure_as_data_and_shuffled_columns_do_not(data):
    training = np.stack(list(data.train))
    same = Table().measure([*training[:800]], data)
    generator = np.random.default_rng(0)
    shuffled = np.stack([generator.permutation(training[:800, i]) for i in range(3)], 1)
    other = Table().measure([*shuffled], data)
    for name in NAMES:
        assert {name, f"{name}_error", f"{name}_of_data"} <= {*same}
        assert same[f"{name}_of_data"] == other[f"{name}_of_data"]
    for name in ("marginals", "pairs", "associations"):
        assert abs(same[name] - same[f"{name}_of_data"]) < 4 * same[f"{name}_error"]
    assert min(same["accuracy"], same["accuracy_of_data"]) > 0.98
    assert other["marginals"] < 2 * same["marginals"]
    assert other["pairs"] > 3 * same["pairs"]
    assert other["associations"] > 0.5
    assert other["accuracy"] < 0.7
    assert same["copies"] == same["copies_of_data"] == 1
    assert same["closest"] == 0 < other["closest"]


def test_one_column_may_be_the_target(data):
    rows = [*np.stack(list(data.train))[:400]]
    result = Table(target="member", halvings=2).measure(rows, data)
    assert result["accuracy"] > 0.98


def test_bad_input_is_named(data):
    with pytest.raises(
        ValueError, match="target is 'city', must be one of the columns age, income"
    ):
        Table(target="city").check(data)
    with pytest.raises(ValueError, match="samples: 3, must be at least 4"):
        Table().measure([np.zeros(3, dtype=np.int64)] * 3, data)
