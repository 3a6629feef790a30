"""Study of output layers: its layers, trees and runs at tiny sizes, and the page."""

import json

import pytest
import torch

import ddlib as dd
from recipes.embeddings.starting import log_probs
from studies.corpus.build import FILE
from studies.heads import pages, run, training
from studies.heads.models import ADAPTIVE, AR, CLIP, FLAT, HDLM, MASKS, Adaptive, Arm, Model
from studies.heads.sizes import TINY, Sizes
from studies.heads.text import SEARCH, TEST, Text, prepare, trees_of


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    run.write_tiny_tokens(folder / FILE)
    prepare(folder, folder / FILE, TINY)
    return folder


def disturbed(arm, work):
    """Return a model whose output layer is random."""
    model = Model(arm, work, 0, TINY)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "head" in name or "softmax" in name:
                weight.add_(0.5 * torch.randn_like(weight))
    return model


def token_log_probs(model, hidden):
    if isinstance(model.output, Adaptive):
        return model.output.log_probs(hidden)
    logits = model.net.head(hidden)
    meaning = model.output.parameterization
    return logits.log_softmax(-1) if isinstance(meaning, str) else meaning.token_logits(logits)


@pytest.mark.parametrize("arm", run.ARMS, ids=lambda arm: arm.name)
def test_every_layer_is_a_distribution_whose_cross_entropy_is_its_loss(arm, work):
    model = disturbed(arm, work)
    x = Text(work, TINY).batch(0, 0)
    t = torch.ones(len(x)) if arm.process == AR else torch.tensor([0.2, 0.4, 0.7, 1.0])
    z = model.process.sample(x, t, torch.Generator().manual_seed(0))
    hidden = torch.randn(*x.shape, TINY.width)
    log_p = token_log_probs(model, hidden)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(x.shape))
    arguments = (model.process, hidden, x, z, t)
    nats = dd.nelbo(model.process, log_p, x, z, t)
    torch.testing.assert_close(model.output.nats(*arguments), nats)
    loss = dd.training_loss(model.process, log_p, x, z, t, CLIP)
    torch.testing.assert_close(model.output.loss(*arguments), loss)
    if arm.process == AR:
        chosen = log_p.gather(-1, x[..., None])[..., 0]
        torch.testing.assert_close(nats, -chosen)


def test_adaptive_softmax_starts_at_the_frequencies_and_even_in_its_tails():
    counts = torch.tensor([1, 50, 7, 3, 20, 2, 9, 4])
    layer = Adaptive(16, counts, (3, 5))
    probabilities = layer.log_probs(torch.randn(1, 1, 16)).exp()[0, 0]
    shares = log_probs(counts).exp()
    torch.testing.assert_close(probabilities[[1, 4, 6]], shares[[1, 4, 6]])
    torch.testing.assert_close(probabilities[[2, 7]], shares[[2, 7]].mean().expand(2))
    torch.testing.assert_close(probabilities[[0, 3, 5]], shares[[0, 3, 5]].mean().expand(3))


def test_trees_have_clusters_of_the_same_sizes():
    semantic = torch.tensor([0, 1, 1, 2, 2, 2, 0, 2, 3])
    counts = torch.tensor([5, 9, 1, 2, 7, 8, 3, 4, 6])
    trees = trees_of(semantic, counts)
    for parents in trees.values():
        assert sorted(parents.bincount().tolist()) == [1, 2, 2, 4]
    assert not torch.equal(trees["random"], semantic)
    assert trees["frequency"].tolist() == [1, 3, 2, 2, 0, 0, 2, 2, 1]


def test_tokens_of_the_training_search_and_test_text_are_different(work):
    text = Text(work, TINY)
    assert len(text.training) == 5 * 4500
    for source, (start, count) in TINY.sources.items():
        windows = torch.cat([text.held_out(source, part) for part in (TEST, SEARCH)])
        assert windows.shape == (2 * TINY.windows, TINY.length)
        first = start + (0 if source == "moby_dick" else 4500)
        allowed = torch.from_numpy(text.tokens[first : start + count].astype("int64"))
        places = allowed.unfold(0, TINY.length, 1)
        assert all(bool((places == window).all(1).any()) for window in windows)


def test_an_autoregressive_arm_reads_the_left_context_alone(work):
    model = disturbed(Arm(AR, "semantic"), work)
    x = Text(work, TINY).batch(0, 0)
    noise = dd.KeyedGenerator(0, 0, torch.arange(len(x)))
    before = model.nats(x, noise)
    other = x.clone()
    other[:, 9] = (other[:, 9] + 1) % TINY.words
    after = model.nats(other, noise)
    torch.testing.assert_close(after[:, :9], before[:, :9])
    assert bool((after[:, 9:] != before[:, 9:]).any())


@pytest.mark.parametrize("process", [MASKS, HDLM])
def test_times_of_least_variance_do_not_bias_the_bound(process, work):
    model = Model(Arm(process, FLAT), work, 0, TINY)
    x = Text(work, TINY).batch(0, 0)[:1].expand(4000, -1)
    with torch.no_grad():  # a fresh model predicts the frequencies, whatever the context
        nats = model.nats(x, dd.KeyedGenerator(0, 0, torch.arange(len(x)))).sum(1)
    counts = torch.load(work / "statistics.pt")["counts"]
    expected = -log_probs(counts)[x[0]].sum()
    assert float(nats.mean()) == pytest.approx(
        float(expected), abs=4 * float(nats.std()) / 4000**0.5
    )


@pytest.mark.parametrize("arm", [Arm(MASKS, ADAPTIVE), Arm(HDLM, "semantic")], ids=str)
def test_a_killed_run_continues_to_the_same_result(arm, work, tmp_path, monkeypatch):
    for file in ("tokens.npy", "statistics.pt", "trees.pt"):
        (tmp_path / file).symlink_to(work / file)
    text = Text(work, TINY)
    evaluation = training.Evaluation(text, torch.load(work / "statistics.pt")["counts"])
    one = training.Run(arm, 1.0, 0)
    marks = {"steps": 4, "flops": 3, "seconds": 6}
    whole = training.train(one, work, evaluation, marks)
    assert [whole["marks"][name]["steps"] for name in marks] == list(marks.values())
    assert [step for step, _ in whole["curve"]] == [2, 4, 6]
    assert (work / "weights").is_dir() and not list((work / "states").iterdir())

    step = training.Training.step

    def killed(self):
        if self.steps == 5:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(training.Training, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        training.train(one, tmp_path, evaluation, marks)
    steps = []

    def counted(self):
        steps.append(self.steps)
        step(self)

    monkeypatch.setattr(training.Training, "step", counted)
    assert training.train(one, tmp_path, evaluation, marks) == whole
    assert steps == [4, 5]


def test_the_study_runs_once_and_fills_the_page(tmp_path, monkeypatch):
    run.main(["--tiny", str(tmp_path)])
    result = json.loads((tmp_path / "results.json").read_text())
    assert len(result["costs"]) == len(run.ARMS) == 14
    assert all(cost["flops"] > 0 for cost in result["costs"].values())
    assert len(result["search"]) == 10 and len(result["runs"]) == 28
    page = tmp_path / "heads.md"
    assert "| AR | adaptive |" in page.read_text()
    study = run.Study(tmp_path, tmp_path / "results.json", TINY)
    study.read_sealed(tmp_path / FILE)
    sealed = json.loads((tmp_path / "results.json").read_text())
    assert sealed["sealed"].keys() == result["runs"].keys() and len(sealed["sealed_sha256"]) == 64
    assert pages.MISSING not in run.page_of(page, tmp_path / "results.json", TINY)
    monkeypatch.setattr(run, "train", lambda *arguments: 1 / 0)
    run.main(["--tiny", str(tmp_path)])
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["runs"] == result["runs"] and len(again["starts"]) == 1


def test_the_best_rate_is_that_of_the_search(tmp_path):
    study = run.Study(tmp_path, tmp_path / "results.json", TINY)
    for place, one in enumerate(study.searched()):
        evaluation = {"sources": {"a": float(place), "b": float(-2 * place)}}
        study.result["search"][one.name] = {"marks": {"steps": evaluation}}
    assert study.best(FLAT) == TINY.factors[-1]


def test_marks_are_as_many_operations_and_seconds(tmp_path):
    study = run.Study(tmp_path, tmp_path / "results.json", TINY)
    study.result["costs"][f"{MASKS} | {ADAPTIVE}"] = {"seconds": 0.5, "flops": 12e9}
    searched = 0.76 + 0.5 + 3 * 0.25  # a step of the layer over tokens, adaptive, and three trees
    assert study.estimate()["search"] == pytest.approx(TINY.search_steps * 2 * searched)
    for arm in run.ARMS:
        flat = {"seconds": 2.0, "flops": 30.0}
        study.result["costs"][arm.name] = flat if arm.head == FLAT else {"seconds": 1, "flops": 10}
    assert study.marks(Arm(MASKS, ADAPTIVE)) == {"steps": 4, "flops": 6, "seconds": 4}
    flat_steps, others_steps = 4, 6  # the largest of the marks
    runs = 2 * (3 * flat_steps * 2.0 + 11 * others_steps * 1.0)
    assert study.estimate()["runs"] == pytest.approx(runs)


def test_all_products_of_the_layer_are_counted(work):
    text = Text(work, TINY)
    rows = TINY.batch * TINY.length
    layer = 3 * 2 * rows * TINY.words * TINY.width  # forward, and two gradients
    keys = 2 * TINY.length  # of noisy and of clean tokens
    attention = 3 * 4 * 2 * 2 * TINY.batch * keys * keys * TINY.width  # two products in 4 blocks
    flat = training.cost(Arm(AR, FLAT), work, text)["flops"]
    clusters = training.cost(Arm(AR, "semantic"), work, text)["flops"]
    assert flat - clusters == pytest.approx(layer * (1 - 2 / 16), rel=0.1)
    assert flat > layer + attention


def test_the_page_has_the_tables_of_the_results():
    page = pages.PAGE.read_text(encoding="utf-8")
    text = run.page_of(pages.PAGE, run.RESULTS, Sizes())
    assert text == page, "run python -m studies.heads.run --pages"


def test_rows_that_are_not_measured_are_named():
    text = pages.tables({}, Sizes())
    assert f"| AR | adaptive | {pages.MISSING} | {pages.MISSING} |" in text
    assert f"| masks, semantic less masks, random | {pages.MISSING} |" in text
    assert "nan" not in text
