"""Recipes on sequences with several alphabets: data with fields, and a process for each."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from fielded_source import FIELDS, POSITIONS, Rows
from refusals import refused_with, refuses
from training_runs import check_resumption, trains
from zoo.runs import ALONE, quiet, recipe

import ddlib as dd
from recipes.config import Data, ModelContext, RunContext, read_recipe
from recipes.console import render_states
from recipes.console.screen import displayed
from recipes.data import Layout, SymbolCorpus, open_prepared, prepare
from recipes.data.fielded import Fielded
from recipes.data.fields import Field
from recipes.engine.setup import FromText, make_process
from recipes.engine.validation import references
from recipes.evaluate import Options as Evaluation
from recipes.evaluate import evaluate
from recipes.generate import Options, generate
from recipes.generation.rows import read_given
from recipes.model_io import open_saved

CORPUS = SymbolCorpus(source={"kind": "fielded_source:Rows"}, held_out=60)
IDS = np.array([[5, 2, 1, 0], [0, 0, 0, 2]])


def run_in(folder, name, **changes):
    prepare(CORPUS, folder / "data")
    plain = recipe(folder / "data", folder / name)
    network = dict(kind="field_dit", dim=16, depth=2, heads=2, cond_dim=8, shape="run")
    data = Data(corpus=CORPUS, folder=folder / "data", length=4)
    values = dict(data=data, process="product", model=network | {"positions": "learned"})
    return replace(plain, **values | changes)


whole = trains(run_in)


def test_each_field_has_the_process_that_the_data_propose(whole):
    saved = open_saved(whole.output.folder)
    assert [one.process.vocab_size for one in saved.process.components] == [6, 3, 2]
    kinds = [type(one.process).__name__ for one in saved.process.components]
    assert kinds == ["Hierarchical", "Masked", "Uniform"]
    assert saved.layout.fields == FIELDS and saved.layout.positions == POSITIONS
    written = read_recipe(whole.output.folder / "recipe.yaml")
    assert written == replace(whole, loss=written.loss)


def test_a_run_resumes_to_the_bit(whole, folder):
    check_resumption(whole, run_in(folder, "again"), last=20, before=16)


def test_samples_are_tokens_of_their_fields(whole):
    texts = generate(Options(run=str(whole.output.folder), samples=8), quiet())
    ids = np.array([[int(token) for token in text.split()] for text in texts])
    assert ids.shape == (8, 4)
    assert (ids < np.array([6, 3, 2, 3])).all()


def test_positions_of_a_field_are_numbered(whole):
    layout = open_saved(whole.output.folder).layout
    assert layout.headings == ("age", "city[0]", "member", "city[1]")
    with pytest.raises(ValueError, match=r"no value is named 'city'; did you mean 'city"):
        read_given(layout, "city=Oslo", 1)
    one = Options(run=str(whole.output.folder), given=("city[1]=Oslo",), samples=1)
    assert generate(one, quiet())[0].split(", ")[3] == "Oslo"
    some = Options(run=str(whole.output.folder), given=("age=3", "member=no"), samples=2)
    for text in generate(some, quiet()):
        values = text.split(", ")
        assert values[0] == "3" and values[2] == "no"
        assert values[1] in FIELDS[1].symbols and values[3] in FIELDS[1].symbols


def test_evaluation_measures_every_position(whole):
    run = str(whole.output.folder)
    result = evaluate(Evaluation(run=run, scorer="none", replicates=2, metrics="none"), ALONE)
    assert result["protocol"]["tokens"] == 60 * 4
    assert result["references"]["uniform"] == pytest.approx(math.log(6 * 3 * 2 * 3) / 4)
    assert result["bound"]["nats_per_token"]["value"] < 2


def test_frequencies_are_those_of_the_field(whole):
    data = open_prepared(whole.data.folder)
    train, held_out = (
        np.stack([split[row] for row in range(len(split))])
        for split in (data.train, data.validation)
    )
    wanted = 0.0
    for name, size in (("age", 6), ("city", 3), ("member", 2)):
        columns = [place for place, field in enumerate(POSITIONS) if field == name]
        counts = np.bincount(train[:, columns].ravel(), minlength=size) + 0.5
        wanted -= np.log(counts / counts.sum())[held_out[:, columns].ravel()].sum()
    count = len(held_out)
    measured = references(data, 4, ALONE, sequences=count, batch=7)
    assert measured.unigram == pytest.approx(wanted / held_out.size, rel=1e-5)


def test_a_noisy_sequence_is_shown_by_tokens_of_its_fields(whole):
    saved = open_saved(whole.output.folder)
    z = saved.process.tokens_as_states(torch.tensor([[5, 2, 1, 0]]))
    hidden = z.clone()
    hidden[0, 1] += 1  # the mask of the second column
    shown = [render_states(saved.process, saved.tokenizer, one[0], []).plain for one in (z, hidden)]
    assert shown == ["5 2 1 0", "5 _ 1 0"]
    plain = dd.presets.mdlm(3)
    assert torch.equal(displayed(plain, torch.tensor([3, 0])), torch.tensor([3, 0]))


# processes of a recipe


def process_of(folder, **values):
    run = run_in(folder, "other", process={"kind": "product"} | values)
    data = open_prepared(run.data.folder)
    return make_process(run, FromText(run, data, ALONE), data, ALONE)


def test_a_recipe_names_the_process_of_all_fields_or_of_some(folder):
    every = process_of(folder, every="mdlm")
    assert {type(one.process).__name__ for one in every.components} == {"Masked"}
    some = process_of(folder, by_field={"age": "mdlm", "city": "uniform:schedule=linear"})
    names = [type(one.process).__name__ for one in some.components]
    assert names == ["Masked", "Uniform", "Uniform"]
    both = process_of(folder, every="mdlm", by_field={"member": "uniform:schedule=linear"})
    names = [type(one.process).__name__ for one in both.components]
    assert names == ["Masked", "Masked", "Uniform"]


def test_an_explicit_product_is_taken_as_it_is_written(folder):
    product = process_of(folder)
    again = process_of(folder, **{n: v for n, v in dd.values(product).items() if n != "kind"})
    assert dd.values(again) == dd.values(product)


def test_the_network_gets_the_sizes_of_the_fields(folder):
    context = ModelContext(None, process_of(folder))
    assert context.fields() == [(13, 6), (4, 3), (2, 2)]
    plain = dd.presets.mdlm(5)
    assert ModelContext(None, plain).fields() == [(6, 5)]


def test_processes_that_do_not_fit_the_fields_are_refused(folder):
    refused_with(process_of=process_of, folder=folder)("""
        process_of(folder, by_field={'sex': 'mdlm'}) | ValueError | by_field has 'sex', must be a
            field of the data: 'age', 'city', 'member'
        process_of(folder, every={'kind': 'mdlm', 'vocab_size': 6}) | ValueError | process: has 6
            tokens at position 1, field 'city', must have 3, the alphabet of the data
        process_of(folder, every={'kind': 'hdlm', 'clusters': 2}) | ValueError | clusters=2: are not
            made for one field, here 'age'
        process_of(folder, kind='mdlm') | ValueError | process: has 6 tokens at position 1, field
            'city', must have 3
    """)


def test_data_of_one_alphabet_have_no_fields():
    class Text(RunContext):
        vocab_size = vocabulary = fingerprint = counts = parents = None

    Text.__abstractmethods__ = frozenset()
    known = Text()
    assert known.fields() is None
    with pytest.raises(ValueError, match="the data have one alphabet, must have fields"):
        known.processes()


# sequences with fields


def fielded(ids=IDS, fields=FIELDS, positions=POSITIONS):
    return Fielded.of(ids, fields, positions)


def named(*names):
    return [Field(name=name, symbols=("a", "b")) for name in names]


test_bad_fields_are_refused = refuses("""
    fielded(np.array([[5, 3, 1, 0]])) | ValueError | row 0 holds id 3 in field 'city', must be below
        3, the size of its alphabet
    fielded(-IDS) | ValueError | row 0 holds id -5 at position 0, must not be negative
    fielded(IDS[:, :3]) | ValueError | row 0 has 3 symbols, every row must have 4
    fielded(fields=FIELDS[:2]) | ValueError | positions.2. is 'member', must be a
        field: 'age', 'city'
    fielded(positions=POSITIONS[:2]) | ValueError | field 'member' has no position
    fielded(IDS[:, :2] % 2, named('a', 'a'), ('a', 'a')) | ValueError | two have the name 'a'
    Field(name='a', symbols=()) | ValueError | field 'a': symbols is empty
    Field(name='a', symbols=('x', 'x')) | ValueError | field 'a': the symbol 'x' occurs twice
""")


def test_the_layout_keeps_the_fields():
    layout = fielded().make_layout("rows", False, {4: 2})
    assert layout.fields == FIELDS and layout.positions == POSITIONS
    assert Layout.read(asdict(layout)) == layout
    assert not Layout(kind="lines").fields


def test_held_out_sequences_must_have_the_same_fields():
    rows = Rows(10).load()
    assert fielded().match(rows, "validation").fields == FIELDS
    other = Fielded.of(IDS % 2, named("age", "city", "member"), POSITIONS)
    with pytest.raises(ValueError, match="validation: has other fields than train"):
        other.match(rows, "validation")
