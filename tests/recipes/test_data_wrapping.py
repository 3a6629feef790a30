"""Rows that are cut from the concatenation of all documents."""

import json
import shutil
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused_with
from training_runs import curve
from zoo.runs import ALONE, publish_tiny, quiet, recipe_in, text

from recipes.config import Data
from recipes.data import examples, open_prepared, prepare_ids, wrap
from recipes.engine import train
from recipes.engine.loop import CHECKPOINTS
from recipes.engine.run import Run
from recipes.evaluate import Options, evaluate
from recipes.generate import Options as GenerateOptions
from recipes.generate import generate
from recipes.model_io import WEIGHTS, open_saved


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_prepared(text(tmp_path_factory.mktemp("wrapped") / "data"))


def mdlm(documents, length, bos, eos):
    """Rows as ``_group_texts`` of MDLM makes them, of documents without special tokens."""
    stream = list(chain.from_iterable([*document, eos] for document in documents))
    size = length - 2
    return [[bos, *stream[i : i + size], eos] for i in range(0, len(stream) // size * size, size)]


@pytest.mark.parametrize(
    ("length", "split"),
    [
        (3, "validation"),
        (16, "validation"),
        (16, "train"),
        (301, "train"),
        (1024, "validation"),
    ],
)
def test_rows_are_those_of_mdlm(data, length, split):
    documents = getattr(data, split)
    bare = [documents[number][1:-1].tolist() for number in range(len(documents))]
    rows = getattr(wrap(data, length), split)
    expected = mdlm(bare, length, data.bos_id, data.eos_id)
    some = range(0, len(rows), 1 + len(rows) // 3000)
    assert len(rows) == len(expected) and [rows[n].tolist() for n in some] == [
        expected[n] for n in some
    ]
    assert (
        set(rows.lengths.tolist()) == {length}
        and len(rows.lengths) == len(rows)
        and not len(rows.labels)
    )
    with pytest.raises(IndexError, match=f"row {len(rows)}: there are {len(rows)}"):
        rows[len(rows)]


def test_bytes_are_shared_by_the_tokens_of_the_text(data):
    rows = wrap(data, 16).validation
    whole = data.validation
    stream = int(whole.lengths.sum()) - len(whole)
    expected = stream * 16 / 14 / int(whole.num_bytes.sum()) / np.log(2)
    assert rows.bits_per_byte(1.0) == pytest.approx(expected, rel=1e-4)


def test_every_epoch_has_each_row_once_and_any_ranks_read_the_same(data):
    rows = wrap(data, 200).validation
    kwargs = dict(length=200, pad_id=data.pad_id, seed=3, threads=0)
    whole = next(examples(rows, batch_size=len(rows), **kwargs))
    assert bool(whole.mask.all()) and whole.cu_seqlens is None
    assert sorted(whole.x.tolist()) == sorted(rows[n].tolist() for n in range(len(rows)))
    later = [
        list(islice(examples(rows, batch_size=2, start=8, rank=r, world=2, **kwargs), 2))
        for r in range(2)
    ]
    for r, batches in enumerate(later):
        for batch in batches:
            assert torch.equal(batch.x, whole.x[batch.index]) and bool((batch.index % 2 == r).all())


def symbols(folder: Path, **values):
    sequences = [np.arange(5 + n % 3) % 4 for n in range(40)]
    return prepare_ids(sequences[:30], sequences[30:], 4, folder, **values)


def test_data_that_cannot_be_wrapped_are_refused_by_name(data, tmp_path, tmp_path_factory):
    refused_with(Data=Data, data=data, tmp_path=tmp_path)(r"""
        Data(folder=tmp_path, packed=True, wrap=True) | ValueError
            | data\.wrap: not with data\.packed
        wrap(data, 2) | ValueError | data\.length=2: must be at least 3 with data\.wrap
        wrap(data, 100_000) | ValueError
            | data\.length=100000: .* holds 0 whole rows of it for validation
        wrap(symbols(tmp_path / "open"), 6)
            | ValueError | data\.wrap=True: .* have no end: prepare it again with --ends
    """)
    shaped = prepare_ids(np.zeros((8, 2, 3), int), np.zeros((8, 2, 3), int), 4, tmp_path / "shaped")
    with pytest.raises(ValueError, match=r"data\.wrap=True: .* have shape 2 x 3"):
        wrap(shaped, 6)
    labelled = replace(data, layout=replace(shaped.layout, shape=(), classes=("a", "b"), ends=True))
    with pytest.raises(ValueError, match=r"data\.wrap=True: .* have labels"):
        wrap(labelled, 6)


def test_symbols_with_an_end_are_cut_too(tmp_path):
    made = symbols(tmp_path / "ended", ends=True)
    bare = [made.train[n][:-1].tolist() for n in range(len(made.train))]
    rows = wrap(made, 6).train
    assert [rows[n].tolist() for n in range(len(rows))] == mdlm(bare, 6, made.eos_id, made.eos_id)


def test_an_evaluation_measures_rows(tmp_path):
    published = publish_tiny("wrapped", tmp_path)
    saved = open_saved(published.run)
    rows = wrap(published.data, 24).validation
    assert saved.rows == "wrapped" and saved.behind == saved.special.eos
    bos = saved.special.bos
    eos = saved.special.eos
    assert saved.document([bos, 5, 6, eos, 7, eos]) == [5, 6, 7]
    found = evaluate(
        Options(run=str(published.run), scorer="none", replicates=1, samples=2, batch=4), ALONE
    )
    setup = found["protocol"]
    assert (
        setup["wrapped"]
        and setup["padding"] == "none"
        and setup["long_documents"] == "cut into rows, all of them"
    )
    assert setup["sequences"] == len(rows) and setup["tokens"] == 24 * len(rows)
    bound = found["bound"]
    assert bound["bits_per_byte"]["value"] == pytest.approx(
        rows.bits_per_byte(bound["nats_per_token"]["value"])
    )


def test_texts_of_a_row_stand_with_their_ends_between_them(tmp_path, monkeypatch):
    saved = open_saved(publish_tiny("wrapped", tmp_path).run)
    bos = saved.special.bos
    eos = saved.special.eos
    end = "<|endoftext|>"
    first = saved.encode("We must act")
    second = saved.encode(" The union is strong")
    assert (
        saved.several([bos, *first, eos, *second, eos]) == f"We must act{end} The union is strong"
    )
    assert (
        saved.several([*first, eos, eos, *second]) == f"We must act{end}{end} The union is strong"
    )
    assert (
        saved.several([bos, *first, eos, eos]) == "We must act" and saved.several([bos, eos]) == ""
    )

    def drawn(saved, *_, **__):
        row = [bos, *first, eos, *second, eos]
        return torch.tensor([row + [eos] * (24 - len(row))])

    monkeypatch.setattr("recipes.generation.samples.draw", drawn)
    for prompt in ((), ("We must",)):
        out = tmp_path / "found.jsonl"
        options = GenerateOptions(run=str(tmp_path / "run"), prompt=prompt, samples=1, out=out)
        texts = generate(options, quiet())
        assert (
            texts
            == [f"We must act{end} The union is strong"]
            == [json.loads(out.read_text("utf-8"))["text"]]
        )


def test_a_run_trains_resumes_to_the_same_bits_and_is_evaluated(tmp_path):
    one = recipe_in(tmp_path, start="text")
    one = replace(one, data=replace(one.data, wrap=True))
    train(one)
    folder = one.output.folder
    again = tmp_path / "again"
    assert open_saved(folder).rows == "wrapped"
    shutil.copytree(folder, again)
    shutil.rmtree(again / CHECKPOINTS / "step_00000020")
    (again / WEIGHTS / "model.safetensors").unlink()
    train(replace(one, output=replace(one.output, folder=again)))
    assert curve(folder) == curve(again)
    files = [(path / WEIGHTS / "model.safetensors").read_bytes() for path in (folder, again)]
    assert files[0] == files[1]
    run = Run.prepare(replace(one, output=replace(one.output, folder=tmp_path / "other")), ALONE)
    assert (
        len(run.data.train) == len(wrap(open_prepared(one.data.folder), 16).train)
        and not run.padded
    )
    found = evaluate(Options(run=str(folder), scorer="none", replicates=1), ALONE)
    last = [record for record in curve(folder) if record["kind"] == "bound"][-1]
    assert (
        found["protocol"]["wrapped"] and found["validation"]["sequences"] == last["sequences"] == 24
    )
    assert found["validation"]["value"] == pytest.approx(last["nats_per_token"], rel=1e-5)
