"""The uniform and the unigram model beside a bound."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from training_runs import curve, steps_made
from zoo.runs import ALONE, recipe_in, text

from recipes.console import make_console
from recipes.data import open_prepared, wrap
from recipes.embeddings.neighbours import stream
from recipes.engine import DivergedError, train
from recipes.engine.divergence import DivergenceGuard
from recipes.engine.validation import references
from recipes.evaluate import Options, evaluate
from recipes.evaluation.report import show
from recipes.metrics import References


@pytest.fixture(scope="module")
def trained(folder):
    run = recipe_in(folder, process="mdlm", steps=4)
    assert train(replace(run, output=replace(run.output, validate_every=4, sample_every=4)))
    return run


def by_hand(data):
    """Mean over all tokens of all validation sequences, none of which is cut."""
    counts = stream(data).bincount(minlength=data.vocab_size).double() + 0.5
    tokens = torch.cat([torch.tensor(document) for document in data.validation])
    return float(-(counts / counts.sum()).log()[tokens.long()].mean())


@pytest.mark.parametrize("cut", [False, True])
def test_both_models_are_measured_on_the_tokens_of_the_bound(tmp_path, cut):
    data = open_prepared(text(tmp_path / "data"))
    data = wrap(data, 16) if cut else data
    length = max(len(document) for document in data.validation)
    count = len(data.validation)
    found = references(data, length, ALONE, sequences=count, batch=7)
    assert found.uniform == pytest.approx(math.log(data.vocab_size), rel=1e-12)
    assert found.unigram == pytest.approx(by_hand(data), rel=1e-5)


def test_a_bound_above_a_model_names_the_model():
    found = References(2.3, 2.1)
    assert found.beside(2.0) == "uniform model 2.3000, unigram model 2.1000"
    assert found.beside(2.2).endswith(": the bound is above the unigram model")
    assert found.beside(2.4).endswith(": the bound is above the uniform model")


def test_training_and_evaluation_print_both_beside_the_bound(trained, capsys):
    record = next(one for one in curve(trained.output.folder) if one["kind"] == "bound")
    vocab_size = open_prepared(trained.data.folder).vocab_size
    assert record["uniform"] == pytest.approx(math.log(vocab_size), rel=1e-12)
    assert record["uniform"] > record["unigram"] > 0
    result = evaluate(
        Options(run=str(trained.output.folder), scorer="none", replicates=1, sequences=24), ALONE
    )
    assert result["references"] == {name: record[name] for name in ("uniform", "unigram")}
    show(result, make_console())
    shown = capsys.readouterr().out
    assert re.search(rf"uniform model +│? *{record['uniform']:.4f}", shown)
    assert re.search(rf"unigram model +│? *{record['unigram']:.4f}", shown)
    assert "the bound is above the" in " ".join(shown.split())  # four steps teach nothing


def test_a_run_that_diverges_for_a_while_stops_and_keeps_what_it_saved(tmp_path, monkeypatch):
    made = recipe_in(tmp_path, process="mdlm", steps=40)
    made = replace(made, optimizer=replace(made.optimizer, lr=1.0, warmup=0))
    made = replace(made, output=replace(made.output, validate_every=2, save_every=2))
    monkeypatch.setattr("recipes.engine.loop.DivergenceGuard", partial(DivergenceGuard, patience=3))
    with pytest.raises(
        DivergedError, match=r"step \d+: .* in all of the last 3 steps: training div"
    ):
        train(made)
    steps = steps_made(tmp_path / "run")
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert 3 < steps < 40 and saved
    assert not any(f"{steps:08d}" in name for name in saved)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(0, 40), min_size=1, max_size=60), st.integers(1, 8))
def test_a_run_stops_after_so_many_averages_above_the_limit(losses, patience):
    """In float64 by hand; what was never below the limit stops nothing."""
    guard = DivergenceGuard(8, 1e-3, patience)
    average = losses[0]
    above = []
    for number, loss in enumerate(losses, start=1):
        average = 0.95 * average + 0.05 * loss
        above.append(average > 3 * math.log(8))
        if not all(above) and len(above) >= patience and all(above[-patience:]):
            with pytest.raises(DivergedError, match=f"all of the last {patience} steps"):
                guard.add(number, loss)
            return
        message = guard.add(number, loss)
        assert (message is not None) == (above[-1] and not any(above[:-1]))


def test_a_run_that_diverges_reports_it_once(tmp_path, capsys):
    given = recipe_in(tmp_path, process="mdlm", steps=20)
    train(replace(given, optimizer=replace(given.optimizer, lr=1.0, warmup=0)))
    shown = capsys.readouterr().out
    assert (
        len(re.findall(r"more than 3 times that of the uniform model: training diverges", shown))
        == 1
    )
    assert re.search(
        r"validation bound .*; uniform model [\d.]+, unigram model [\d.]+: the bound is above",
        shown,
    )
