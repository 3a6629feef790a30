"""The study and what is measured of its signal, from text to pages, at sizes that teach nothing."""

import json
import math
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import ddlib as dd
from benchmarks import blocks, blocks_page, made, signal, signal_page, study, study_page
from recipes.data import Batch
from recipes.engine import train
from recipes.engine.signals import Signals
from recipes.model_io import open_saved

ROOT = Path(__file__).parents[1]
EDGES, WORDS = "HDLM-64, all edges", 300


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Six sources of eight documents, prepared."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "text").mkdir()
    lines = [json.dumps({"text": f"{n}. In {source} {n * n} of {n} words are said " * 9}) for n in range(8)
             for source in study.SOURCES]  # fmt: skip
    for source in study.SOURCES:
        own = [line for line in lines if f"In {source}" in line]
        (folder / "text" / f"held_out_{source}.jsonl").write_text("\n".join(own) + "\n")
    (folder / "text" / "train.jsonl").write_text("\n".join(lines * 8) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in dict(TEST=slice(0, 2), SEARCH=slice(2, 4), WORDS=WORDS).items():
            patch.setattr(study, name, value)
        study.prepare_all(folder)
    return folder


@pytest.fixture
def small(monkeypatch):
    """Two models with four clusters, one budget and ten steps."""
    two = dict(kind="hdlm", clusters=4)
    models = {"MDLM": study.MODELS["MDLM"], EDGES: study.Model(two, study.EDGES)}
    rules = {name: study.RULES[name] for name in (study.ASEVER, "best times, balanced")}
    speeds = {"learned": study.Model(two | dict(learn_speeds=True), study.EDGES)}
    changes = dict(
        MODELS=models, RULES=rules, SPEEDS=speeds, BUDGETS={0.001: (0,)}, SEARCHED=0.001, DRAWS=2, WORDS=WORDS
    )
    for name, value in changes.items():
        monkeypatch.setattr(study, name, value)


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_the_study_from_its_search_to_its_result(work, tmp_path):
    assert not set(texts(work / "text" / "search.jsonl")) & set(texts(work / "text" / "test_austen.jsonl"))
    for _, _, given in study.searched(work):
        train(given)
    found = study.chosen(work)
    made.written(work / "chosen.json", found)
    assert set(found["best"]) == {"MDLM", EDGES, "speed"}
    assert set(found["bounds"]["speed"]) == {"learned", "1"} and set(found["bounds"]["MDLM"]) == set(study.RULES)
    for name, bounds in found["bounds"].items():
        assert bounds[found["best"][name]]["value"] == min(bound["value"] for bound in bounds.values())
    *all_but_one, (_, _, _, last) = study.runs(work)
    for _, _, _, given in all_but_one:
        train(given)
    told = study.evaluate_all(work, {})
    assert [one["process"] for one in told["runs"]] == ["MDLM", EDGES]  # the last has not run
    masks, edges = told["runs"]
    assert masks["less_mdlm"]["value"] == 0 and masks["all_sources"]["method"] == "stratified"
    gap = edges["all_sources"]["value"] - masks["all_sources"]["value"]
    assert edges["less_mdlm"]["value"] == pytest.approx(gap) and len(edges["by_source"]) == 6
    page = study_page.tables(told)
    assert f"| {EDGES} | {gap:+.3f} ± " in page and f"| {EDGES} | {edges['all_sources']['value']:.3f} ± " in page
    study_page.draw(told["runs"], tmp_path / "results.png")
    assert (tmp_path / "results.png").stat().st_size > 5000
    assert last.output.folder.name == "HDLM-64-all_edges-best_speeds-0.001M-0"


def texts(path):
    return path.read_text().splitlines()


@pytest.mark.usefixtures("small")
def test_a_search_that_is_not_finished_chooses_nothing(work, tmp_path):
    shutil.copytree(work, tmp_path, ignore=shutil.ignore_patterns("runs", "chosen.json"), dirs_exist_ok=True)
    with pytest.raises(SystemExit, match=r"search-MDLM-as_ever.* its 10 steps are made"):
        study.chosen(tmp_path)


@pytest.mark.usefixtures("small")
def test_what_a_search_has_found_is_not_trained_again(work, tmp_path, monkeypatch):
    shutil.copytree(work / "text", tmp_path / "text")
    found = {"MDLM": {rule: {} for rule in study.RULES}, EDGES: {study.ASEVER: {}}}
    made.written(tmp_path / "chosen.json", {"bounds": found})
    trained = []
    monkeypatch.setattr(study, "shared", lambda recipes, options: trained.extend(recipes))
    monkeypatch.setattr("sys.argv", ["study", "search", str(tmp_path)])
    study.main()
    names = [given.output.folder.name for given in trained]
    assert names == ["search-HDLM-64-all_edges-best_times-balanced-0.001M-2", "search-speed-learned-0.001M-2"]


@pytest.mark.parametrize("way", signal.WAYS)
def test_every_way_has_the_mean_of_the_bound(way):
    """Of a network that loses two nats at a mask: two nats per token."""
    process, x = dd.presets.mdlm(5), torch.zeros(4096, signal.LENGTH, dtype=torch.int64)
    batch = Batch(x=x, mask=torch.ones_like(x, dtype=torch.bool), index=torch.arange(len(x)))
    z, t, weight = signal.noised(process, batch, signal.WAYS[way], 0.2)
    nats = 2 * weight * process.loss_weight(x, z, t).sum(1) / signal.LENGTH
    assert abs(float(nats.mean()) - 2) < 5 * float(nats.std()) / math.sqrt(len(x)) + 1e-9


def test_the_pages_show_what_is_stored():
    results = ROOT / "benchmarks" / "results"
    pages = dict(
        signal=("signal", signal_page.tables),
        blocks=("blocks", lambda told: blocks_page.tables(told["runs"])),
        results=("study", study_page.tables),
    )
    for page, (name, tables) in pages.items():
        stored = json.loads((results / f"{name}.json").read_text())
        assert tables(stored) in (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_what_is_measured_of_the_signal_stands_on_its_page(work, monkeypatch, tmp_path):
    changes = dict(POINTS=(0.001,), TEXTS=8, SETS=3, ROWS=4, GRADIENTS=3)
    changes["PROCESSES"] = {"MDLM": "MDLM", "HDLM-64": EDGES}
    for name, value in (changes | dict(MODELS=study.MODELS)).items():
        monkeypatch.setattr(signal, name, value)
    for name, millions, given in signal.points(work):
        train(given)
        made.written(signal.kept(work, name, millions), signal.measured(open_saved(given.output.folder), given))
    told = signal.report(work)
    for point in told["points"]:
        assert set(point["ways"]) == set(signal.WAYS)
        assert all(value > 0 for way in point["ways"].values() for value in way.values())
    page = signal_page.tables(told)
    ratio = signal_page.deviation(told["points"][1], signal_page.BEST) / signal_page.blind(told["points"][1])
    assert f"| {ratio:.2f} | 0.4 |" in page


def test_runs_of_another_machine_stay_and_compare(small, work, tmp_path, monkeypatch):
    """Of four runs none is here but the last in part; the file knows the first three."""
    for name, value in dict(SIZES=(study.LENGTH, 4), KINDS=("MDLM", EDGES), SEEDS=(0,), MODELS=study.MODELS).items():
        monkeypatch.setattr(blocks, name, value)
    keys = [("MDLM", study.LENGTH, 0), (EDGES, study.LENGTH, 0), ("MDLM", 4, 0)]
    known_runs = [
        dict(kind=kind, size=size, seed=seed, bound={}, nats=[float(number), 3.0], tokens=[2, 4], less_mdlm=0)
        for number, (kind, size, seed) in enumerate(keys)
    ]
    path = tmp_path / "result.json"
    made.written(path, {"runs": known_runs})
    assert '"nats": [ 1.0, 3.0 ]' in path.read_text()
    known = made.earlier(path, "kind", "size", "seed")
    assert list(known) == keys and made.earlier(tmp_path / "none.json", "kind") == made.earlier(None) == {}
    trained = []
    with monkeypatch.context() as patch:
        patch.setattr(made, "train", lambda given: trained.append(given.output.folder.name) or True)
        patch.setattr("sys.argv", ["blocks", "train", str(work), "--out", str(path)])
        blocks.main()
    assert trained == [f"blocks-4-{EDGES}-2M-0".replace(", ", "-").replace(" ", "_")]
    *_, last = blocks.runs(work)
    (last[3].output.folder / "weights").mkdir(parents=True)  # as of a run on its way
    whole, edges, four = blocks.evaluate(work, known)["runs"]
    assert [run["less_whole_text"]["value"] for run in (whole, edges, four)] == [0, 0, pytest.approx(2 / 6)]
    assert edges["less_mdlm"]["value"] == pytest.approx(1 / 6) and four["less_mdlm"]["value"] == 0


def test_a_share_of_the_runs_ends_where_one_is_asked_to_stop(monkeypatch):
    begun = []
    monkeypatch.setattr(made, "train", lambda given: begun.append(given) or len(begun) < 2)
    made.shared(list(range(9)), Namespace(part=1, of=2))
    assert begun == [1, 3]


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_blocks_from_training_to_their_page(work, monkeypatch, tmp_path):
    changes = dict(SIZES=(study.LENGTH, 1), KINDS=("MDLM", EDGES), MILLIONS=0.001, SEEDS=(0,), MODELS=study.MODELS)
    for name, value in changes.items():
        monkeypatch.setattr(blocks, name, value)
    *most, (_, _, _, last) = blocks.runs(work)
    with monkeypatch.context() as patch:
        patch.setattr(Signals, "asked", True)
        assert not train(most[0][3])  # stopped after its first step
    assert all([train(given) for _, _, _, given in most])
    told = blocks.evaluate(work, {})
    assert [(one["kind"], one["size"]) for one in told["runs"]] == [("MDLM", 128), (EDGES, 128), ("MDLM", 1)]
    whole, hierarchy, one = told["runs"]
    assert one["less_whole_text"]["value"] == pytest.approx(one["bound"]["value"] - whole["bound"]["value"])
    assert hierarchy["less_mdlm"]["value"] == pytest.approx(hierarchy["bound"]["value"] - whole["bound"]["value"])
    assert last.order().block == 1 and most[0][3].order().block is None
    for name in ("SIZES", "KINDS"):
        monkeypatch.setattr(blocks_page, name, changes[name])
    page = blocks_page.tables(told["runs"])
    assert f"| MDLM | 1 | {one['bound']['value'] / math.log(2):.3f}" in page and page.count("\n") == 4
    blocks_page.draw(told["runs"], tmp_path / "blocks.png")
    assert (tmp_path / "blocks.png").stat().st_size > 5000
