"""Given tokens in recipes: in prepared data, in batches, at random by ``loss.infill``, resumed."""

from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from refusals import refuses
from training_runs import check_layout, check_resumption, losses, objective, trains
from zoo.networks import with_own_times
from zoo.runs import exact, recipe_in

import ddlib as dd
from recipes.config import Hardware
from recipes.data import Batch, Documents, examples, open_prepared
from recipes.data.sequences import Sequences
from recipes.data.symbols import InMemory, SymbolCorpus, _prepare
from recipes.data.wrapping import Wrapped
from recipes.engine import train
from recipes.engine.objectives.noising import add_noise, infill
from recipes.metrics.bound import measure
from recipes.metrics.estimate import Estimate, in_units
from recipes.metrics.likelihood import read
from recipes.metrics.references import unigram

LENGTH = 8


def documents(lengths, marked=True):
    """Document d is the ids 100 d + 1, ...; a token is given if its place is 1 or 2 modulo 4."""
    tokens = [np.arange(length) + 100 * number + 1 for number, length in enumerate(lengths)]
    marks = [(np.arange(length) % 4 // 1 % 3 > 0).astype(np.uint8) for length in lengths]
    columns = [
        pa.chunked_array([pa.array(rows, type=pa.list_(kind))])
        for rows, kind in ((tokens, pa.int32()), (marks, pa.uint8()))
    ]
    sizes = pa.chunked_array([pa.array(lengths)])
    return Documents(columns[0], sizes, 2**17, given=columns[1] if marked else None)


def is_given(token):
    return (token - 1) % 100 % 4 % 3 > 0


def test_bytes_of_given_tokens_are_unknown():
    made = documents([3, 20])
    with pytest.raises(ValueError, match="bits_per_byte: documents have given tokens, whose bytes"):
        made.bits_per_byte(1.0)
    for text in (made, documents([3, 20], marked=False)):
        data = SimpleNamespace(shape=(), is_text=True, validation=text)
        units = in_units(Estimate(1.0, 0.1, None, "nats/token"), data)
        assert ("bits_per_byte" in units) == (not text.has_given)


@pytest.mark.parametrize("packed", [False, True])
def test_marks_stay_beside_their_tokens(packed):
    """In padded rows, in windows of long documents and in packed rows."""
    made = documents([3, 20, 8, 5, 40, 1, 9, 2])
    stream = examples(made, length=LENGTH, pad_id=0, batch_size=2, seed=0, packed=packed)
    for batch in islice(stream, 40):
        given = torch.tensor([[is_given(token) for token in row] for row in batch.x.tolist()])
        assert torch.equal(~batch.free, given & batch.mask)
        assert batch.to(torch.device("cpu")).free.equal(batch.free)
    plain = documents([3, 20], marked=False)
    assert not plain.has_given and plain.given(1).tolist() == [False] * 20
    assert next(examples(plain, length=LENGTH, pad_id=0, batch_size=2, seed=0)).free.all()


def test_wrapped_rows_have_the_marks_of_their_tokens():
    rows = Wrapped(documents([3, 20, 8, 5, 40]), LENGTH, 7_000, 8_000, 0)
    assert rows.has_given
    for number in range(len(rows)):
        row = rows[number]
        assert row[0] == 7_000 and row[-1] == 8_000
        given = [False, *(is_given(token) for token in row[1:-1].tolist()), False]
        assert rows.given(number).tolist() == given


def test_documents_whose_later_blocks_are_given_are_found():
    def first(marks, block, length=100):
        columns = [
            pa.chunked_array([pa.array(marks, type=pa.list_(kind))])
            for kind in (pa.int32(), pa.uint8())
        ]
        return Documents(columns[0], None, 2, given=columns[1]).given_behind(block, length)

    prefix = [1, 1, 1, 0, 0]
    assert first([prefix], 2) is None and first([prefix], 1) is None
    assert first([prefix, [1, 1, 0, 1]], 2) is None
    assert first([prefix, [1, 1, 0, 1]], 1) == 1
    assert first([prefix, [1, 1, 0, 1]], 2, length=3) == 1  # a window begins anywhere
    assert first([[0, 0, 1, 0]], 2) == 0
    assert first([[1, 1], [0]], 1) is None


# in memory and in a folder


def sequences(seed=0, count=40, **changes):
    random = np.random.default_rng(seed)
    ids = [random.integers(0, 6, size) for size in random.integers(3, 10, count)]
    given = [np.arange(len(row)) < len(row) // 2 for row in ids]
    return Sequences(**{"ids": ids, "symbols": tuple("abcdef"), "given": given} | changes)


def written(folder, ends):
    made = {"train": InMemory(sequences()), "validation": InMemory(sequences(1, 8))}
    corpus = SymbolCorpus(
        source={"kind": "ids"},
        validation={"kind": "ids", "split": "validation"},
        held_out=None,
        shuffle=None,
        ends=ends,
    )
    return _prepare(corpus, folder, made)


@pytest.mark.parametrize("ends", [False, True])
def test_marks_are_written_beside_the_tokens_and_read_again(tmp_path, ends):
    written(tmp_path / "data", ends)
    prepared = open_prepared(tmp_path / "data")
    for split, source in ((prepared.train, sequences()), (prepared.validation, sequences(1, 8))):
        assert split.has_given and len(split) == len(source)
        for number, (ids, marks) in enumerate(zip(source.ids, source.given, strict=True)):
            assert split[number].tolist() == [*ids, *[6] * ends]
            assert split.given(number).tolist() == [*marks, *[False] * ends]
            assert split.given(number).dtype == bool


def test_some_of_the_sequences_keep_their_marks():
    made = sequences()
    some = made.select(np.array([3, 1]))
    assert some.given[0].tolist() == made.given[3].tolist()
    matched = sequences(1).match(made, "validation")
    assert matched.given[0].tolist() == sequences(1).given[0].tolist()


def marked(*marks):
    return sequences(ids=[[1, 2], [3, 4, 5]], given=[np.array(one) for one in marks])


def unlike():
    return sequences(1, given=None).match(sequences(), "validation")


def misfit():
    tokens, marks = (
        pa.chunked_array([pa.array(rows, type=pa.list_(pa.int32()))])
        for rows in ([[1, 2, 3]], [[1, 0]])
    )
    return Documents(tokens, None, 9, given=marks)


def damaged():
    tokens, marks = (
        pa.chunked_array([pa.array(rows, type=pa.list_(pa.int32()))])
        for rows in ([[1, 2]], [[1, 7]])
    )
    return Documents(tokens, None, 9, given=marks).given(0)


test_bad_marks_are_refused = refuses(r"""
    marked([True, False]) | ValueError | given: has 1 rows, must have one for each of 2
    marked([True, False], [1, 0, 0]) | TypeError | given: row 1 has dtype int64, must be bool
    marked([True, False], [True]) | ValueError | given: row 1 has shape \(1,\), must be \(3,\)
    marked([True, True], [True, False, False]) | ValueError
        | given: row 0 is True at all of its 2 tokens, must be False at one
    unlike() | ValueError | given: train has given tokens and validation none
    misfit() | ValueError | given: must have one mark for each token of each document
    damaged() | ValueError | holds id 7, must be below 2
    objective(infill=1.0) | ValueError | infill=1.0: must be below 1
    objective(infill=-0.1) | ValueError | infill=-0.1: must be at least 0
    objective(kind="along_order", order="confidence", infill=0.5) | ValueError
        | infill=0.5: not with loss.kind=along_order, must be 0
""")


# noise, at random positions


def batch_of(rows=6, length=LENGTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(5, (rows, length), generator=generator)
    real = torch.randint(1, length + 1, (rows,), generator=generator)
    mask = torch.arange(length) < real[:, None]
    return Batch(x, mask, torch.ones_like(mask), torch.arange(rows))


def some_rows(batch, rows):
    return Batch(*(part[rows] for part in (batch.x, batch.mask, batch.free, batch.index)))


def test_a_share_of_each_sequence_is_given_by_its_own_chance():
    batch = batch_of(rows=50)
    drawn = infill(batch, 1, 2, 0.5)
    given = ~drawn.free
    assert not (given & ~batch.mask).any()
    assert torch.equal(given.sum(1), batch.mask.sum(1) // 2)
    part = infill(some_rows(batch, slice(7, 20)), 1, 2, 0.5)
    assert torch.equal(part.free, drawn.free[7:20])
    assert not torch.equal(infill(batch, 1, 3, 0.5).free, drawn.free)
    full = given[batch.mask.all(1)]
    assert full.any(0).all() and not full.all(0).any()  # anywhere
    again = infill(drawn, 1, 2, 0.5)  # tokens that are given already stay so
    assert torch.equal((~again.free).sum(1), given.sum(1) + (batch.mask & drawn.free).sum(1) // 2)
    one = infill(batch_of(rows=4, length=1), 0, 0, 0.99)
    assert one.free.all()  # nothing else would have a loss


def test_each_document_of_a_packed_row_has_its_share():
    lengths = torch.tensor([3, 5, 8, 2, 6])
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    x = torch.arange(24).view(3, 8) % 5
    every = torch.ones_like(x, dtype=torch.bool)
    batch = Batch(x, every, every, ends[:-1], ends)
    drawn = infill(batch, 1, 2, 0.5)
    shares = [int((~part).sum()) for part in drawn.free.flatten().split(lengths.tolist())]
    assert shares == [1, 2, 4, 1, 3]
    process = dd.presets.mdlm(5)
    noisy = add_noise(process, drawn, 1, 2)
    plain = add_noise(process, batch, 1, 2)
    free = drawn.free.view(-1, 1)
    assert torch.equal(noisy.z, torch.where(free, plain.z, plain.x)) and noisy.mask.equal(free)


@pytest.mark.parametrize("pace", [None, dd.paces.Ramp(1.0), dd.paces.Blocks(4)], ids=repr)
@pytest.mark.parametrize("process", [dd.presets.mdlm(5), dd.presets.gidd(5, 0.3)], ids=repr)
def test_given_tokens_are_not_noised_and_the_others_have_their_noise(process, pace):
    batch = infill(batch_of(), 0, 0, 0.4)
    given = ~batch.free
    noisy = add_noise(process, batch, 0, 0, None, None, pace)
    plain = add_noise(process, replace(batch, free=torch.ones_like(given)), 0, 0, None, None, pace)
    assert torch.equal(noisy.z, torch.where(given, batch.x, plain.z))
    assert torch.equal(noisy.mask, batch.mask & ~given) and torch.equal(plain.mask, batch.mask)
    times = plain.t if plain.t.ndim == 1 else torch.where(given, 0.0, plain.t)
    assert torch.equal(noisy.t, times) and torch.equal(noisy.measure, plain.measure)
    if pace is not None and pace.block:
        with pytest.raises(ValueError, match=r"given\[\d, \d\] is True in block 1, must be False"):
            add_noise(process, batch, 0, 0, None, None, pace, at_once=True)


@pytest.mark.parametrize("counted", [False, True])
def test_padding_that_counts_is_not_given(counted):
    part = objective(infill=0.5, count_padding=counted)
    process = dd.presets.mdlm(5)
    recipe_ = SimpleNamespace(seed=0)
    part.setting = SimpleNamespace(process=process, recipe=recipe_, padded=True, pace=None)
    part.density = None
    part.at_once = False
    batch = batch_of()
    noisy = part.noise(part.mark(batch, 3), 3)
    given = ~infill(batch, 0, 3, 0.5).free
    want = ~given if counted else batch.mask & ~given
    assert torch.equal(noisy.mask, want) and torch.equal(noisy.z[given], batch.x[given])


@pytest.mark.parametrize("pace", [None, dd.paces.Ramp(1.0)], ids=repr)
def test_both_times_of_a_path_hold_given_tokens(pace):
    part = objective(kind="consistency", infill=0.5)
    process = dd.presets.gidd(5, 0.3)
    recipe_ = SimpleNamespace(seed=0)
    part.setting = SimpleNamespace(process=process, recipe=recipe_, padded=False, pace=pace)
    part.density = None
    part.at_once = False
    batch = batch_of()
    late = part.noise(part.mark(batch, 3), 3)
    given = ~infill(batch, 0, 3, 0.5).free
    for noisy in (late, late.early):
        assert torch.equal(noisy.z[given], batch.x[given])
        assert noisy.t.ndim == 1 or (noisy.t[given] == 0).all()
    assert (late.early.t <= late.t).all()


# measured


def test_bound_likelihood_and_unigram_are_of_the_tokens_that_are_not_given():
    process = dd.presets.mdlm(5)
    batch = replace(batch_of(), free=torch.arange(LENGTH).expand(6, -1) % 2 > 0)
    batch = replace(batch, mask=batch.mask | (torch.arange(LENGTH) < 2))
    seen = []

    def network(z, t):
        seen.append(z)
        return torch.zeros(*z.shape, 5)

    counted = (batch.mask & batch.free).sum(1)
    terms = measure(process, with_own_times(network), [batch], 0, 0)
    assert torch.equal(terms.tokens, counted)
    assert all(torch.equal(z[~batch.free], batch.x[~batch.free]) for z in seen)
    exact, _ = read(process, network, [batch], dd.samplers.LeftToRight(), None, 6)
    wanted = counted.double() * np.log(5)
    assert torch.equal(exact.tokens, counted)
    torch.testing.assert_close(exact.nats[:, 0], wanted)
    costs = torch.full((1, 5), np.log(5), dtype=torch.float64)
    flat = unigram(costs, torch.tensor(0), [batch])
    torch.testing.assert_close(flat.nats[:, 0], wanted)
    nothing = replace(batch, free=torch.zeros_like(batch.free))
    assert measure(process, network, [nothing], 0, 0).tokens.sum() == 0


# runs


def run_of(folder, name, **changes):
    loss = dict(infill=0.3, weighting="clip", times="uniform")
    return exact(recipe_in(folder, name, steps=8, loss=loss, **changes))


whole = trains(run_of)


def test_a_run_with_infill_resumes_with_the_same_numbers(folder, whole):
    check_resumption(whole, run_of(folder, "again"), 8, 4)
    plain = replace(run_of(folder, "plain"), loss=dict(weighting="clip", times="uniform"))
    assert train(plain)
    assert losses(plain.output.folder) != losses(whole.output.folder)
    assert "30 % of each sequence given" in objective(infill=0.3).about()


LAYOUTS = {
    "accumulated": (1, Hardware(micro_batch=2, threads=1)),
    "copies": (2, Hardware(threads=1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_changes_no_number(folder, whole, name):
    size, hardware = LAYOUTS[name]
    run = replace(run_of(folder, name), hardware=hardware)
    check_layout(run, size, whole)


@pytest.mark.parametrize("options", [dict(packed=True, length=48), dict(wrap=True)], ids=str)
def test_packed_and_wrapped_rows_train(folder, options):
    run = run_of(folder, "-".join(options))
    run = replace(run, data=replace(run.data, **options))
    assert train(run)
    made = losses(run.output.folder)
    assert len(made) == 8 and all(0 < loss < 60 for loss in made)


def test_infill_is_refused_where_a_later_block_would_be_given(folder):
    run = run_of(folder, "blocks", pace="blocks:4")
    with pytest.raises(
        ValueError, match=r"loss.infill=0.3: must be 0, not with pace=Blocks.*clean"
    ):
        train(run)
