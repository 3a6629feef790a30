"""Study of likelihoods: its source, its run at tiny sizes, and the page with its tables."""

import json

import pytest
import torch

import ddlib as dd
from ddlib.testing.oracle import exact_cavity, sequences
from recipes.estimators import FIXED, find
from studies.likelihoods import pages, run, trained
from studies.likelihoods.source import Chain
from studies.likelihoods.statistics import covered
from studies.tables import END

FEW = (find(FIXED), find("weights clipped at 2"))


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
    page.write_text(f"before\n{pages.BEGIN}\nold\n{END}\n{pages.TRAINED}\n{END}\nafter\n")
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
    assert covered(nats, 0.0) == pytest.approx(0.945, abs=0.015)
    assert covered(nats, 1.0) < 0.01


def test_the_page_has_the_tables_of_the_results():
    result = json.loads(run.RESULTS.read_text(encoding="utf-8"))
    page = pages.PAGE.read_text(encoding="utf-8")
    assert pages.page_of(pages.PAGE, result) == page, (
        "run python -m studies.likelihoods.run --pages"
    )


def test_a_bias_is_measured_against_the_source():
    chain = Chain(12, run.LENGTH)
    process = dd.presets.mdlm(12)
    uniform = run.Model(process, lambda z, t: torch.zeros(*z.shape, 12, dtype=torch.float64))
    found = run.measure(find(FIXED), uniform, chain, 40, 10)
    assert found["mean"] == pytest.approx(float(torch.tensor(12.0).log()), abs=1e-6)
    assert found["bias"] == pytest.approx(
        found["mean"] - chain.entropy, abs=4 * found["bias_error"]
    )
    assert found["covers_entropy"] == 0


def test_trained_networks_are_audited_resumed_and_collected(tmp_path, monkeypatch):
    few = (
        find(FIXED),
        find("NELBO, times of least variance"),
        find("HDLM's released loss, xi < 1"),
    )
    monkeypatch.setattr(trained, "AUDITED", (*few, *trained.ORDERS[:1]))
    monkeypatch.setattr(trained, "BLOCKS", (8,))
    monkeypatch.setattr(
        trained, "WHOLE", {name: trained.WHOLE[name] for name in ("masks", "HDLM-64, xi = 0.9")}
    )
    work = tmp_path / "work"
    page = tmp_path / "page.md"
    out = tmp_path / "results.json"
    trained.audit_all(work, trained.TINY)  # nothing is trained yet
    assert not (work / "audit").exists()
    trained.main(["--tiny", str(work)])
    xi = "HDLM-64, xi = 0.9"
    path = trained.audit_path(work, "masks")
    masks = json.loads(path.read_text())["cells"]
    assert [len(row) for row in masks[FIXED]["nats"]] == [1] * trained.TINY.rows
    assert [len(row) for row in masks[few[1].name]["nats"]] == [
        trained.TINY.most_draws
    ] * trained.TINY.rows
    assert len(masks["chain, right to left"]["nats"]) == trained.TINY.rows_along

    interrupted = json.loads(path.read_text())
    del interrupted["cells"][FIXED]
    path.write_text(json.dumps(interrupted))
    trained.audit_all(work, trained.TINY)
    assert json.loads(path.read_text())["cells"][FIXED]["nats"] == masks[FIXED]["nats"]
    monkeypatch.setattr(trained, "measure", lambda *arguments: 1 / 0)
    trained.audit_all(work, trained.TINY)  # all is there

    page.write_text(f"{pages.BEGIN}\n{END}\n{pages.TRAINED}\n{END}\n")
    out.write_text(run.RESULTS.read_text(encoding="utf-8"))
    run.main(["--tiny", "--trained", str(work), "--out", str(out), "--page", str(page)])
    networks = json.loads(out.read_text())["trained"]
    assert list(networks) == ["masks", xi, "blocks of 8"]
    chain = networks["masks"]["cells"][FIXED]
    assert (
        chain["difference"] == 0
        and chain["verdict"] == "exact"
        and chain["calls_of_a_draw"] == trained.TINY.length
    )
    assert networks[xi]["reference"] == few[1].name and FIXED in networks[xi]["refused"]
    assert (
        "not yet run" not in page.read_text()
        and f"{chain['mean']:.4f}, {FIXED}" in page.read_text()
    )


def test_statistics_of_draws_of_rows():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 1, generator=generator, dtype=torch.float64) + 5
    nats = rows + 0.5 + 0.1 * torch.randn(400, 50, generator=generator, dtype=torch.float64)
    found = trained.statistics(nats, rows, 2)
    assert found["difference"] == pytest.approx(0.5, abs=4 * found["error"])
    assert found["error"] == pytest.approx(0.1 / (400 * 50) ** 0.5, rel=0.2)
    assert found["calls"] == pytest.approx(2 * (found["deviation"] / 0.05) ** 2, rel=0.05)
    assert (
        found["covers_mean"] == pytest.approx(0.945, abs=0.02) and found["covers_reference"] < 0.3
    )


def test_a_cell_that_is_not_measured_is_named():
    text = pages.trained_tables({})
    rows = [line for line in text.splitlines() if "chain, left to right" in line]
    assert [line.count("not yet run") for line in rows] == [7, 7]
