"""Study of output layers: its layers, trees and runs at tiny sizes, and the page."""

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch

import ddlib as dd
from recipes.embeddings.starting import log_probs
from studies.corpus.build import FILE
from studies.heads import pages, run, training
from studies.heads.figure import draw
from studies.heads.models import ADAPTIVE, AR, CLIP, FLAT, HDLM, MASKS, Adaptive, Arm, Model
from studies.heads.sizes import TINY, Sizes
from studies.heads.text import SEARCH, TEST, Text, prepare, sealed_windows, trees_of
from studies.smoke import letters
from studies.weights.texts import path_of


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


@pytest.mark.parametrize("arm", run.ARMS, ids=lambda arm: arm.name)
def test_every_layer_starts_at_the_frequencies(arm, work):
    model = Model(arm, work, 0, TINY)
    counts = torch.load(work / "statistics.pt")["counts"]
    found = token_log_probs(model, torch.randn(1, 1, TINY.width))[0, 0]
    torch.testing.assert_close(found, log_probs(counts))


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
def test_times_and_levels_of_least_variance_do_not_bias_the_bound(process, work):
    model = Model(Arm(process, FLAT), work, 0, TINY)
    x = Text(work, TINY).batch(0, 0)[:1].expand(4000, -1)
    with torch.no_grad():  # a fresh model predicts the frequencies, whatever the context
        nats = model.nats(x, dd.KeyedGenerator(0, 0, torch.arange(len(x))))
    counts = torch.load(work / "statistics.pt")["counts"]
    expected = -log_probs(counts)[x[0]].double()
    errors = nats.mean(0) - expected
    assert bool((errors.abs() < 5 * nats.std(0) / 4000**0.5).all())
    total = nats.sum(1)
    assert float(total.mean()) == pytest.approx(
        float(expected.sum()), abs=4 * float(total.std()) / 4000**0.5
    )


def test_windows_of_all_sources_have_noise_of_their_own(work):
    text = Text(work, TINY)
    evaluation = training.Evaluation(text, torch.load(work / "statistics.pt")["counts"])
    model = training.Training(training.Run(Arm(MASKS, FLAT), 1.0, 0), work, text)
    same = text.batch(0, 0)[:1].expand(3, -1)
    nats = evaluation.measure(model, {"one": same, "other": same}, 1)["nats"]
    assert len({*nats["one"], *nats["other"]}) == 6


def write_documents(folder, texts):
    """Write the sealed documents and a tokenizer of bytes; return the hash of the documents."""
    path = path_of(folder, "sealed")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    letters().save(str(folder / "tokenizer.json"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_windows_of_the_sealed_text_lie_within_its_documents(tmp_path):
    texts = ["a" * 20, "too short", "b" * 40]
    sizes = replace(TINY, sealed_sha256=write_documents(tmp_path, texts), sealed=30)
    windows = sealed_windows(tmp_path, tmp_path / "tokenizer.json", sizes)
    assert windows.shape == (30, TINY.length)
    assert bool((windows == windows[:, :1]).all())
    letter = windows[0, 0]
    assert int((windows[:, 0] == letter).sum()) == 5  # of the 30 possible windows
    with pytest.raises(ValueError, match="sha256"):
        sealed_windows(tmp_path, tmp_path / "tokenizer.json", TINY)


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
    assert training.train(one, work, evaluation, marks) == whole  # kept until the result is

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
    assert len(result["search"]) == 15 and len(result["runs"]) == 28
    assert not [*(tmp_path / "states").iterdir()]
    page = tmp_path / "heads.md"
    assert "| AR | adaptive |" in page.read_text()
    sizes = replace(TINY, sealed_sha256=write_documents(tmp_path, ["a document " * 20]))
    study = run.Study(tmp_path, tmp_path / "results.json", sizes)
    with study._change() as unfinished:
        name, last = unfinished["runs"].popitem()
    study.read_sealed(tmp_path, tmp_path / "tokenizer.json")
    assert study.result()["sealed"].keys() == result["runs"].keys() - {name}
    study._keep("runs", name, last)
    study.read_sealed(tmp_path, tmp_path / "tokenizer.json")
    result = study.result()
    assert result["sealed"].keys() == result["runs"].keys()
    for name, measured in result["runs"].items():
        assert result["sealed"][name]["steps"] == measured["marks"]["steps"]["steps"]
    assert pages.MISSING not in run.page_of(page, tmp_path / "results.json", TINY)
    monkeypatch.setattr(run, "train", lambda *arguments: 1 / 0)
    run.main(["--tiny", str(tmp_path)])
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["runs"] == result["runs"] and len(again["starts"]) == 2


def keep_search(study, head, nats):
    """Write runs of the search of a head with these nats by factor."""
    for factor, value in nats.items():
        evaluation = {"sources": {"a": value, "b": 0.0}}
        name = run.searched_run(head, factor).name
        study._keep("search", name, {"marks": {"steps": evaluation}})


def test_the_search_goes_on_while_the_best_rate_is_the_first_or_last(tmp_path):
    study = run.Study(tmp_path, tmp_path / "results.json", Sizes())
    assert study.factors(FLAT) == [0.5, 1.0, 2.0]
    keep_search(study, FLAT, {0.5: 3.0, 1.0: 2.0, 2.0: 1.0})
    assert study.factors(FLAT) == [0.5, 1.0, 2.0, 4.0]
    assert not study.complete("search", study.searched())
    keep_search(study, FLAT, {4.0: 1.5})
    assert study.factors(FLAT) == [0.5, 1.0, 2.0, 4.0]
    assert study.best(FLAT) == 2.0
    keep_search(study, ADAPTIVE, {0.5: 1.0, 1.0: 2.0, 2.0: math.nan})
    assert study.factors(ADAPTIVE) == [0.25, 0.5, 1.0, 2.0]
    keep_search(study, ADAPTIVE, {0.25: 0.9, 0.125: 0.8, 0.0625: 0.7})
    assert study.factors(ADAPTIVE)[0] == 0.0625  # the last of the further ones
    assert "| 0.012 |" in pages.tables(study.result(), Sizes())


def test_a_run_is_made_by_one_process_at_a_time(tmp_path):
    path = tmp_path / "locks" / "run"
    with run.claim(path) as first, run.claim(path) as second:
        assert first and not second
    with run.claim(path) as third:
        assert third


def test_results_of_another_process_are_kept(tmp_path):
    one, other = (run.Study(tmp_path, tmp_path / "results.json", TINY) for _ in range(2))
    one._keep("runs", "a", {})
    other._keep("runs", "b", {})
    assert one.result()["runs"].keys() == {"a", "b"}


def test_the_sealed_text_is_not_read_before_the_rates_are_chosen(tmp_path):
    study = run.Study(tmp_path, tmp_path / "results.json", TINY)
    with pytest.raises(SystemExit, match="lacks runs of the search"):
        study.read_sealed(tmp_path, tmp_path / "tokenizer.json")


def test_marks_are_as_many_operations_and_seconds(tmp_path):
    study = run.Study(tmp_path, tmp_path / "results.json", TINY)
    study._keep("costs", f"{MASKS} | {ADAPTIVE}", {"seconds": 0.5, "flops": 12e9})
    searched = 0.76 + 0.5 + 3 * 0.25  # a step of the layer over tokens, adaptive, and three trees
    assert study.estimate()["search"] == pytest.approx(TINY.search_steps * 2 * searched)
    for arm in run.ARMS:
        flat = {"seconds": 2.0, "flops": 30.0}
        cost = flat if arm.head == FLAT else {"seconds": 1, "flops": 10}
        study._keep("costs", arm.name, cost)
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
    costs = training.costs([Arm(AR, FLAT), Arm(AR, "semantic")], work, text)
    flat, clusters = (cost["flops"] for cost in costs.values())
    assert flat - clusters == pytest.approx(layer * (1 - 2 / 16), rel=0.1)
    assert flat > layer + attention


def test_the_page_has_the_tables_of_the_results():
    page = pages.PAGE.read_text(encoding="utf-8")
    text = run.page_of(pages.PAGE, run.RESULTS, Sizes())
    assert text == page, "run python -m studies.heads.run --pages"


def test_figures_are_drawn_from_the_results(tmp_path):
    result = json.loads(run.RESULTS.read_text(encoding="utf-8"))
    draw(result, Sizes(), tmp_path)
    for name in ("heads.png", "equal.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_rows_that_are_not_measured_are_named():
    text = pages.tables({}, Sizes())
    assert f"| AR | adaptive | {pages.MISSING} | {pages.MISSING} |" in text
    assert f"| masks, semantic less masks, random | {pages.MISSING} |" in text
    assert "nan" not in text


def test_the_parts_of_the_classes_add_up_to_the_mean_over_all_tokens():
    runs = json.loads(run.RESULTS.read_text())["runs"]
    assert runs
    for measured in runs.values():
        classes = len(measured["marks"]["steps"]["bins"][0])
        parts = [pages.part_of(place)(measured) for place in range(classes)]
        assert sum(parts) == pytest.approx(pages.at("steps")(measured), abs=1e-9)
