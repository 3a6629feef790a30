"""Study of likelihoods: its source, its run at tiny sizes, and the page with its tables."""

import json

import pytest
import torch

import ddlib as dd
from ddlib.testing.oracle import exact_cavity, sequences
from recipes.estimators import FIXED, named
from studies.likelihoods import run
from studies.likelihoods.source import Chain

FEW = (named(FIXED), named("weights clipped at 2"))


def test_the_source_has_the_entropy_that_it_states():
    chain = Chain(3, 4)
    nats = chain.nats(sequences(3, 4))
    assert float((-nats).exp().sum()) == pytest.approx(1)
    assert float((nats * (-nats).exp()).sum()) / 4 == pytest.approx(chain.entropy)
    x = chain.sample(4000, seed=0)
    assert float(chain.nats(x).mean()) / 4 == pytest.approx(chain.entropy, abs=0.03)


@pytest.mark.parametrize("kind", run.PROCESSES)
def test_its_network_is_exact(kind):
    chain = Chain(4, 3)
    process = run.process_of(kind, 4, 2)
    joint = (-chain.nats(sequences(4, 3))).exp().view(4, 4, 4)
    x = chain.sample(20, seed=0)
    t = torch.linspace(0.1, 0.9, 20, dtype=torch.float64)
    z = process.sample(x, t, torch.Generator().manual_seed(0))
    own = chain.network(process)(z, t)
    oracle = exact_cavity(process, joint)(z, t)
    torch.testing.assert_close(own.softmax(-1), oracle.softmax(-1))


def test_a_run_is_resumed_and_fills_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ESTIMATORS", FEW)
    monkeypatch.setattr(run, "PROCESSES", ("masks", "GIDD"))
    page = tmp_path / "page.md"
    out = tmp_path / "results.json"
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    run.main(["--tiny", "--out", str(out), "--page", str(page)])
    result = json.loads(out.read_text())
    assert list(result["cells"]) == [
        "12 | masks | chain, left to right",
        "12 | masks | weights clipped at 2",
        "12 | GIDD | weights clipped at 2",
    ]
    chain = result["cells"]["12 | masks | chain, left to right"]
    assert abs(chain["bias"]) < 1e-9 and chain["calls_of_a_draw"] == run.LENGTH
    assert result["verdicts"]["masks | weights clipped at 2"]["verdict"] == "neither"
    assert result["starts"][0]["command"] and result["starts"][0]["versions"]["torch"]
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| chain, left to right | exact, 1.000 | - |" in text
    monkeypatch.setattr(run, "measure", lambda *arguments: 1 / 0)
    run.main(["--tiny", "--out", str(out), "--page", str(page)])
    again = json.loads(out.read_text())
    assert again["cells"] == result["cells"] and page.read_text() == text


def test_intervals_cover_as_often_as_they_state():
    nats = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert run.covered(nats, 0.0) == pytest.approx(0.945, abs=0.015)
    assert run.covered(nats, 1.0) < 0.01


def test_the_page_has_the_tables_of_the_results():
    result = json.loads(run.RESULTS.read_text(encoding="utf-8"))
    page = run.PAGE.read_text(encoding="utf-8")
    assert run.filled(page, run.tables(result)) == page, (
        "run python -m studies.likelihoods.run --pages"
    )


def test_a_bias_is_measured_against_the_source():
    chain = Chain(12, run.LENGTH)
    process = dd.presets.mdlm(12)
    uniform = run.Model(process, lambda z, t: torch.zeros(*z.shape, 12, dtype=torch.float64))
    found = run.measure(named(FIXED), uniform, chain, 40, 10)
    assert found["mean"] == pytest.approx(float(torch.tensor(12.0).log()), abs=1e-6)
    assert found["bias"] == pytest.approx(
        found["mean"] - chain.entropy, abs=4 * found["bias_error"]
    )
    assert found["covers_entropy"] == 0
