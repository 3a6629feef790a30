"""Rows of a tiny table from the exact network: conditionals, imputation and likelihood are those of
the joint distribution.
"""

import csv
import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused_with
from table_files import write_csv
from torch.nn.functional import pad
from zoo.calls import seeded
from zoo.joints import F64, follows
from zoo.runs import ALONE, PUBLISHED, batch_of, publish_tiny, quiet

import ddlib as dd
from ddlib.testing.oracle import exact_cavity
from recipes.config import Data, ModelContext, Optimizer, Output, Recipe
from recipes.data import SymbolCorpus, prepare
from recipes.engine.setup import FromText, make_model, make_process
from recipes.evaluate import Options as Evaluation
from recipes.evaluate import evaluate
from recipes.generate import Options, generate
from recipes.generation.rows import (
    draw,
    frame_of,
    read_given,
    read_incomplete,
    texts_of,
    write_rows,
)
from recipes.generation.sampling import Sampling
from recipes.metrics import by_field
from recipes.metrics.bound import measure
from recipes.metrics.likelihood import read
from recipes.metrics.references import Alphabets
from recipes.model_io import WEIGHTS, open_saved
from recipes.model_io.writing import Record, write_model

SCHEMA = """
columns:
  n: {kind: number, process: tree}
  city: {kind: category, values: [Rome, Oslo]}
  member: {kind: category}
"""
PROCESSES = {"masks": {"every": "mdlm"}, "columns": {}}
ROWS = [
    [str(n), city, member]
    for n, city, member in itertools.product(
        [1, 2, 5], ["Rome", "Oslo", ""], ["no", "yes, by card"]
    )
]
"""Every row of the table; the last token of the city is a missing value."""
JOINT = torch.softmax(1.5 * torch.randn(18, dtype=F64, generator=seeded()), 0).view(3, 3, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the prepared table, and of a network with random weights."""
    folder = tmp_path_factory.mktemp("rows")
    write(folder / "rows.csv", ROWS * 4)
    (folder / "schema.yaml").write_text(SCHEMA)
    source = {
        "kind": "table",
        "files": str(folder / "rows.csv"),
        "schema": str(folder / "schema.yaml"),
    }
    corpus = SymbolCorpus(source=source, held_out=18)
    data = prepare(corpus, folder / "data")
    for name, values in PROCESSES.items():
        run = Recipe(
            data=Data(corpus=corpus, folder=folder / "data", length=3),
            process={"kind": "product"} | values,
            model={"kind": "field_dit", "dim": 8, "depth": 1, "heads": 2, "cond_dim": 8},
            optimizer=Optimizer(lr=1e-3),
            output=Output(folder=folder / name),
            batch=4,
            steps=1,
        )
        known = FromText(run, data, ALONE)
        model = make_model(run, ModelContext(known, make_process(run, known, data, ALONE)))
        record = Record(recipe=run, tokenizer=data.tokenizer, layout=data.layout)
        write_model(model, folder / name / WEIGHTS, record, "tiny", "Of random weights.")
    return folder


@pytest.fixture(scope="module", params=PROCESSES)
def saved(folder, request):
    """The run with the exact network of the joint distribution."""
    opened = open_saved(folder / request.param)
    return replace(opened, denoiser=exact_cavity(opened.process, pad(JOINT, (0, 1))))


def lines_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def write(path, rows, header=("n", "city", "member")):
    return write_csv(path, header, rows)


IN_ORDER = Sampling(sampler="left_to_right", steps=64)
FINE = Sampling(sampler="first_hitting", steps=64)


def sampling_of(saved):
    """A sampler whose sequences have the joint distribution of the network."""
    return IN_ORDER if "masks" in saved.name else FINE


# the distribution of drawn rows


@pytest.mark.statistical
def test_rows_follow_the_joint_distribution(saved):
    rows = read_given(saved.layout, "", 6000)
    drawn = draw(saved, rows, sampling_of(saved), seed=1, batch=1500)
    assert follows(flat(drawn), JOINT.flatten())


def flat(drawn):
    """Number of each row among all rows, as one token."""
    return (drawn @ torch.tensor([6, 2, 1]))[:, None]


CONDITIONS = {
    "n=5": lambda joint: joint[2],
    "city=Oslo": lambda joint: joint[:, 1],
    "city=": lambda joint: joint[:, 2],
    'n=2,"member=yes, by card"': lambda joint: joint[1, :, 1],
}


@pytest.mark.statistical
@pytest.mark.parametrize("given", CONDITIONS)
def test_given_values_condition_the_others(saved, given):
    conditional = CONDITIONS[given](JOINT)
    rows = read_given(saved.layout, given, 5000)
    drawn = draw(saved, rows, sampling_of(saved), seed=2, batch=2500)
    assert torch.equal(drawn[rows.given], rows.x[rows.given])
    free = drawn[:, ~rows.given[0]]
    sizes = conditional.shape
    index = free[:, 0] if len(sizes) == 1 else free[:, 0] * sizes[1] + free[:, 1]
    assert follows(index[:, None], (conditional / conditional.sum()).flatten())


@pytest.mark.statistical
def test_missing_values_are_imputed_by_their_conditionals(saved, tmp_path):
    """A city is never imputed as missing; whole rows are drawn from the conditional."""
    pattern = [["1", "", "no"], ["", "Oslo", "yes, by card"], ["5", "Rome", ""]]
    rows = read_incomplete(saved.layout, write(tmp_path / "x.csv", pattern * 3000))
    drawn = draw(saved, rows, sampling_of(saved), seed=3, batch=4500, complete=True)
    cities, numbers, members = (drawn[k::3] for k in range(3))
    for column, conditional in (
        (cities[:, 1], JOINT[0, :2, 0]),
        (numbers[:, 0], JOINT[:, 1, 1]),
        (members[:, 2], JOINT[2, 0]),
    ):
        assert follows(column[:, None], conditional / conditional.sum())


def test_a_row_depends_on_its_number_alone(saved):
    rows = read_given(saved.layout, "n=5", 12)
    drawn = draw(saved, rows, sampling_of(saved), seed=4, batch=5)
    few = read_given(saved.layout, "n=5", 3)
    again = draw(saved, few, sampling_of(saved), seed=4, numbers=[7, 2, 11])
    assert torch.equal(again, drawn[[7, 2, 11]])
    texts = texts_of(saved.layout, drawn, rows, 4)
    assert texts_of(saved.layout, again, few, 4, [7, 2, 11]) == [texts[k] for k in (7, 2, 11)]


# likelihoods


def every_row():
    return torch.cartesian_prod(torch.arange(3), torch.arange(3), torch.arange(2))


def test_the_exact_likelihood_of_a_row_is_its_probability(saved):
    x = every_row()
    order = dd.samplers.LeftToRight()
    terms, _ = read(saved.process, saved.denoiser, [batch_of(x)], order, None, len(x))
    torch.testing.assert_close(terms.nats[:, 0], -JOINT.flatten().log(), atol=1e-9, rtol=0)


def test_the_bound_is_the_entropy_and_that_of_each_field_its_share(saved):
    """With independent columns the share of a column is its entropy."""
    columns = [JOINT.sum((1, 2)), JOINT.sum((0, 2)), JOINT.sum((0, 1))]
    independent = torch.einsum("i,j,k->ijk", *columns)
    network = exact_cavity(saved.process, pad(independent, (0, 1)))
    x = every_row()
    index = torch.multinomial(independent.flatten(), 3000, True, generator=seeded())
    replicates = [
        measure(saved.process, network, [batch_of(x[index])], 0, number) for number in range(4)
    ]
    data = SimpleNamespace(layout=saved.layout, vocab_size=3)
    alphabets = Alphabets.of(data)
    shares = by_field(replicates, alphabets)
    assert list(shares) == ["n", "city", "member"]
    for column, p in zip(shares.values(), columns, strict=True):
        entropy = float(-(p * p.log2()).sum())
        assert abs(column.value - entropy) < 5 * column.error < 0.5
    total = sum(one.value for one in shares.values()) * math.log(2)
    per_row = np.mean([float(one.nats.sum(1).mean()) for one in replicates])
    assert total == pytest.approx(per_row, rel=1e-9)


def test_evaluation_has_bits_for_each_column(folder):
    options = Evaluation(run=str(folder / "columns"), replicates=2, metrics="none")
    result = evaluate(replace(options, likelihood="left_to_right"), ALONE)
    per_token = result["bound"]["nats_per_token"]["value"]
    assert result["bound"]["bits_per_row"]["value"] == pytest.approx(3 * per_token / math.log(2))
    assert result["likelihood"]["bits_per_row"]["unit"] == "bits/row"
    fields = result["by_field"]
    assert list(fields) == ["n", "city", "member"]
    total = sum(one["value"] for one in fields.values())
    assert total == pytest.approx(result["bound"]["bits_per_row"]["value"], rel=1e-6)
    # the table holds every row alike
    assert fields["n"]["unigram"] == pytest.approx(math.log2(3), abs=0.01)
    assert all(one["error"] > 0 for one in fields.values())


# commands and files


def test_generate_writes_rows_with_the_given_values(folder, tmp_path):
    run = str(folder / "masks")
    out = tmp_path / "rows.csv"
    shown = generate(
        Options(run=run, given=("n=2.0", "city=Oslo"), samples=5, out=out, sampling=IN_ORDER),
        quiet(),
    )
    header, *rows = lines_of(out)
    assert header == ["n", "city", "member"] and len(rows) == len(shown) == 5
    assert all(row[:2] == ["2.0", "Oslo"] and row[2] in ("no", "yes, by card") for row in rows)
    frame = tmp_path / "rows.parquet"
    generate(Options(run=run, samples=30, out=frame, sampling=IN_ORDER), quiet())
    table = pd.read_parquet(frame)
    assert str(table["n"].dtype) == "Int64" and set(table["n"]) <= {1, 2, 5}
    assert table["city"].isna().any() and set(table["city"].dropna()) <= {"Rome", "Oslo"}


def test_imputation_changes_nothing_but_missing_values(folder, tmp_path):
    some = [["1", "", "no"], ["", "", ""], ["5", "Rome", "no"], ["", "Oslo", "no"]]
    path = write(tmp_path / "x.csv", some)
    out = tmp_path / "y.csv"
    run = str(folder / "columns")
    generate(Options(run=run, impute=path, out=out, sampling=Sampling(steps=16)), quiet())
    _, *rows = lines_of(out)
    for row, before in zip(rows, some, strict=True):
        assert all(value for value in row)
        assert [value for value, old in zip(row, before, strict=True) if old] == [
            old for old in before if old
        ]
    without = write(tmp_path / "z.csv", [["1"], ["5"]], ["n"])  # columns that the file lacks
    generate(Options(run=run, impute=without, out=out, sampling=Sampling(steps=16)), quiet())
    _, *rows = lines_of(out)
    assert [row[0] for row in rows] == ["1", "5"] and all(value for row in rows for value in row)


def test_numbers_of_a_cell_are_drawn_again_for_each_row(saved, tmp_path):
    layout = saved.layout
    x = torch.tensor([[0, 2, 1], [2, 0, 0]])
    texts = texts_of(layout, x)
    assert texts == [["1", None, "yes, by card"], ["5", "Rome", "no"]]
    write_rows(tmp_path / "a.csv", layout, texts)
    assert (tmp_path / "a.csv").read_text().splitlines()[1] == '1,,"yes, by card"'
    assert frame_of(layout, texts)["n"].tolist() == [1, 5]


GIVEN = """
    given('age=3') | ValueError | given: no value is named 'age'; there are 'n', 'city', 'member'
    given('citi=Rome') | ValueError | no value is named 'citi'; did you mean 'city'
    given('n=1,n=2') | ValueError | given: 'n' is given twice
    given('n') | ValueError | given: 'n' must be NAME=VALUE
    given('n=3') | ValueError | given: n=3: no such value of the field, whose values are from 1 to
        5, next 2 and 5
    given('n=nan') | ValueError | given: n=nan: must be a finite number
    given('n=') | ValueError | given: n=.missing.: no value of the training data is missing
    given('city=Bern') | ValueError | given: city=Bern: no such value of the field; must be
    given('member=yes, by card') | ValueError | given: member=yes: no such value.*; with a comma it
        is quoted with its name, '"member=A, B"'
    given('member="yes, by card"') | ValueError | with a comma it is quoted with its name
    given('n=1,city=Rome,member=no') | ValueError | gives every value, nothing would be drawn
    impute([['1', 'Bern', '']]) | ValueError | column 'city', row 1: city=Bern: no such value
    impute([['1', 'Rome', ''], ['x', '', '']]) | ValueError | column 'n': 1 of 2 values are not
        finite numbers, the first is 'x' in row 2
    impute([['7', 'Rome', '']]) | ValueError | column 'n', row 1: n=7: no such value
    impute([['1', 'Rome', 'no']]) | ValueError | no value is missing
    impute([['1', '']], ['n', 'town']) | ValueError | has the column 'town', which the model lacks
    generate(options(given=('n=1',), impute='x.csv')) | ValueError | choose one
    generate(options(given=(' ',))) | ValueError | given='': states no value
    generate(options(impute='x.csv', samples=7)) | ValueError | samples=7: not with impute=x.csv
    generate(options(impute='x.csv', numbers=(3,))) | ValueError | numbers=.3,.: not with impute=x
    generate(options(prompt='hello')) | ValueError | prompt=.'hello',.: not for .*several alphabets
    generate(options(length=5)) | ValueError | length=5: not for
    generate(options(out='x.jsonl')) | ValueError | out=x.jsonl: must end in .csv or .parquet
    generate(options(out='x.doc')) | ValueError | out=x.doc: must end in
    generate(of_text(given=('n=1',))) | ValueError | given=n=1: .* has one alphabet, must
    generate(of_text(out='x.csv')) | ValueError | out=x.csv: .* has no rows
"""


def test_values_that_do_not_fit_are_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout = open_saved(folder / "masks").layout
    text = publish_tiny(next(iter(PUBLISHED)), tmp_path / "text").run

    def options(run=folder / "masks", **values):
        paths = {name: Path(values[name]) for name in ("impute", "out") if name in values}
        return Options(run=str(run), **values | paths)

    refused_with(
        given=lambda asked: read_given(layout, asked, 2),
        impute=lambda rows, header=("n", "city", "member"): read_incomplete(
            layout, write(tmp_path / "x.csv", rows, header)
        ),
        generate=lambda chosen: generate(chosen, quiet()),
        options=options,
        of_text=lambda **values: options(text, **values),
    )(GIVEN)
