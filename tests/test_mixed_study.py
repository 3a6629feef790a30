"""Study of a picture beside its label: exact conditionals, a run at tiny sizes, and the page."""

import json

import torch

import ddlib as dd
from studies.mixed import models, pages, run
from studies.mixed.models import LABEL, MODELS, PIXELS, PROCESS, TINY


def test_the_likelihood_of_the_label_is_the_networks_distribution_at_all_pixels():
    network = models.train("joint", 0, TINY)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    x = models.digits(TINY.tested)[1]
    exact = dd.likelihood(PROCESS, network, x, given=models.pixels_given(x))
    assert exact.calls == 1
    with torch.no_grad():
        logs = models.label_logits(network, x).double().log_softmax(-1)
    expected = logs.gather(1, x[:, LABEL, None])[:, 0]
    torch.testing.assert_close(exact.log_likelihood, expected, rtol=1e-5, atol=1e-6)
    assert exact.per_position[:, :PIXELS].abs().max() == 0


def test_digits_have_their_parts_and_values():
    train, test = models.digits(500)
    assert train.shape == (1297, PIXELS + 1) and test.shape == (500, PIXELS + 1)
    assert train[:, :PIXELS].max() == 3 and set(train[:, LABEL].tolist()) == set(range(10))


def test_pictures_of_a_label_keep_it():
    network = models.train("joint", 0, TINY)
    drawn, labels = models.pictures(network, 0, TINY)
    assert drawn.shape == (10 * TINY.drawn, PIXELS) and drawn.max() < models.LEVELS
    assert labels.bincount().tolist() == [TINY.drawn] * 10


def test_a_run_continues_and_fills_the_page(tmp_path):
    run.main(["--tiny", str(tmp_path)])
    path = tmp_path / "results.json"
    result = json.loads(path.read_text())
    assert len(result["runs"]) == 2 * len(MODELS)
    assert "| classifier |" in (tmp_path / "mixed.md").read_text()
    kept = result["runs"].pop("classifier | 1")
    path.write_text(json.dumps(result))
    run.main(["--tiny", str(tmp_path)])
    again = json.loads(path.read_text())["runs"]["classifier | 1"]
    assert {**again, "seconds": 0} == {**kept, "seconds": 0}


def test_the_page_is_that_of_the_results():
    text = pages.PAGE.read_text(encoding="utf-8")
    assert run.page_of(pages.PAGE, run.RESULTS) == text
