"""Studies: complete runs at tiny sizes, parts of studies, and agreement of pages with stored
results.
"""

import importlib
import json
import math
import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import ddlib as dd
from benchmarks import blocks, loops, made, mending, results_page, signal, signal_page, study
from benchmarks.corpus_study import LENGTH, TINY
from recipes.data import Batch

ROOT = Path(__file__).parents[1]
FOLDERS = ROOT / "docs", ROOT / "benchmarks" / "results"
NAMES = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\nSTUDY = " in path.read_text()
)
STUDIES = {name: importlib.import_module(f"benchmarks.{name}").STUDY for name in NAMES}
EDGES = study.EDGES_64


def times():
    """Modification times of the files that a study may write only if its arguments name them."""
    return {
        path: path.stat().st_mtime_ns
        for folder in FOLDERS
        for path in folder.rglob("*")
        if path.is_file()
    }


def budgets(result):
    masks, edges, speeds = result["runs"]
    assert masks["less_mdlm"]["value"] == 0 and masks["all_sources"]["method"] == "stratified"
    gap = edges["all_sources"]["value"] - masks["all_sources"]["value"]
    assert edges["less_mdlm"]["value"] == pytest.approx(gap) and len(edges["by_source"]) == 6
    assert speeds["process"] == f"{EDGES}, best speeds"
    bounds = result["search"]["bounds"]
    best = result["search"]["best"]
    assert set(best) == {"MDLM", EDGES, "speed"} and set(bounds["speed"]) == {"learned", "1"}
    for name, found in bounds.items():
        assert found[best[name]]["value"] == min(bound["value"] for bound in found.values())


def sizes(result):
    whole, hierarchy, one, _ = result["runs"]
    assert one["less_whole_text"]["value"] == pytest.approx(
        one["bound"]["value"] - whole["bound"]["value"]
    )
    assert hierarchy["less_mdlm"]["value"] == pytest.approx(
        hierarchy["bound"]["value"] - whole["bound"]["value"]
    )


def ways(result):
    for point in result["points"]:
        assert set(point["ways"]) == set(signal.WAYS)
        values = (torch.tensor(value) for way in point["ways"].values() for value in way.values())
        assert all(bool((value > 0).all()) for value in values)
    texts = signal_page.points_of(result)[0]
    for way in signal.WAYS:
        low, middle, high = texts.bound(way).repeats.quantile(
            torch.tensor([0, 0.5, 1], dtype=torch.float64)
        )
        assert 0 <= low <= middle <= high and low < texts.bound(way).value < high
        assert (
            texts.gradient(way).value > 0
            and texts.spread(way).over(texts.spread(way)) == "1.00 (1.00 to 1.00)"
        )


def sampled(result):
    assert [run["model"] for run in result["runs"]] == ["masks", "HDLM-64"]
    for run in result["runs"]:
        assert run["held_out"]["nats"]["value"] > 0 and run["scorer"]["name"]
        assert all(0 < cell["calls"] <= cell["budget"] for cell in run["cells"])
        assert {cell["temperature"] for cell in run["cells"]} == {1.0, 0.85, 0.7}
    assert {cell["spacing"] for cell in result["runs"][1]["cells"]} == {"time", "jumps"}


def mended(result):
    calls = {cell["cell"]["way"]: cell["calls"] for cell in result["cells"]}
    assert set(calls) == set(mending.WAYS) and calls["as drawn"] < calls["Gibbs"]
    assert result["bounds"]["0"]["noisy"]["value"] > 0 and len(result["held-out"]) == 1


CHECKS = {"study": budgets, "blocks": sizes, "signal": ways, "frontier": sampled, "mending": mended}
"""Relations that hold at every size."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of all studies; the studies of the corpus share the prepared corpus."""
    return tmp_path_factory.mktemp("smoke")


NIGHTLY = [name for name in NAMES if name != "structure"]  # on four data sets


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("as_users_call")
def test_a_study_goes_from_its_text_to_its_page_and_writes_nowhere_else(
    name, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = times()
    one = STUDIES[name]
    place = folder if one.place != "work" else folder / name
    one.main("study", ["--smoke", str(place)])
    result = json.loads((place / f"{one.results.name}.json").read_text())
    page = (place / f"{one.results.name}.md").read_text()
    assert one.results.tables(result) in page
    assert page != (ROOT / "docs" / f"{one.results.name}.md").read_text()
    assert one.results.draw is None or any((place / "images").glob("*.png"))
    assert times() == before and not list(tmp_path.iterdir())
    CHECKS.get(name, lambda result: None)(result)


PAGES = {name: one.results for name, one in STUDIES.items()}
PAGES |= {"first_results": results_page.PAGE, "loops": loops.PAGE}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_stored_results(name):
    stored = ROOT / "benchmarks" / "results" / f"{name}.json"
    page = (ROOT / "docs" / f"{PAGES[name].name}.md").read_text()
    if not stored.exists():  # the runs of the study are not finished
        begin, end = PAGES[name].marks
        assert "|" not in re.search(f"{begin}\n(.*?){end}", page, re.S)[1]
        return
    assert PAGES[name].tables(json.loads(stored.read_text())) in page


def test_a_command_without_its_arguments_is_refused(capsys, tmp_path):
    for words, result in (
        (["train"], "pass a command and WORK"),
        (["evaluate", str(tmp_path)], "evaluate: pass --out FILE"),
        (["page", str(tmp_path)], "page: pass --out FILE"),
    ):
        with pytest.raises(SystemExit):
            blocks.STUDY.main("blocks", words)
        assert result in capsys.readouterr().err


def test_a_page_is_printed_unless_a_folder_is_given(capsys, tmp_path):
    before = times()
    stored = str(ROOT / "benchmarks" / "results" / "blocks.json")
    blocks.STUDY.main("blocks", ["page", str(tmp_path), "--out", stored])
    assert "| MDLM | 128 |" in capsys.readouterr().out and times() == before


def test_relative_and_absolute_folders_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    monkeypatch.setattr(blocks.Blocks, "train", lambda self, options: found.append(options.work))
    for work in ("work", str(tmp_path / "work")):
        blocks.STUDY.main("blocks", ["train", work])
    assert found == [tmp_path / "work"] * 2


def test_a_search_that_is_not_finished_chooses_nothing(tmp_path):
    with pytest.raises(SystemExit, match=r"search-MDLM-usual_rule.* its 10 steps are made"):
        study.Budgets.tiny().best(tmp_path)


def test_results_of_a_search_are_not_trained_again(tmp_path, monkeypatch):
    tiny = study.Budgets.tiny()
    found = {"MDLM": {rule: {} for rule in tiny.rules}, EDGES: {study.USUAL: {}}}
    made.written(tmp_path / "chosen.json", {"bounds": found})
    trained = []
    monkeypatch.setattr(study, "shared", lambda recipes, options: trained.extend(recipes))
    tiny.search(Namespace(work=tmp_path))
    names = [given.output.folder.name for given in trained]
    assert names == [
        "search-HDLM-64-all_edges-best_times-balanced-0.005M-2",
        "search-speed-learned-0.005M-2",
    ]


@pytest.mark.parametrize("way", signal.WAYS)
def test_every_way_has_the_mean_of_the_bound(way):
    """Average the weighted loss of a network with 2 nats at every mask.

    The mean must be 2 nats per token.
    """
    process = dd.presets.mdlm(5)
    x = torch.zeros(4096, LENGTH, dtype=torch.int64)
    batch = Batch(x=x, mask=torch.ones_like(x, dtype=torch.bool), index=torch.arange(len(x)))
    z, t, weight = signal.noised(process, batch, signal.WAYS[way], 0.2)
    nats = 2 * weight * process.loss_weight(x, z, t).sum(1) / LENGTH
    assert abs(float(nats.mean()) - 2) < 5 * float(nats.std()) / math.sqrt(len(x)) + 1e-9


def test_runs_of_another_machine_stay_and_compare(tmp_path, monkeypatch):
    """Evaluate four runs: three have results in the file, the last has only begun here."""
    work = tmp_path / "work"
    out = tmp_path / "result.json"
    tiny = blocks.Blocks(TINY, sizes=(LENGTH, 4), seeds=(0,))
    keys = [("MDLM", LENGTH, 0), (EDGES, LENGTH, 0), ("MDLM", 4, 0)]
    known_runs = [
        dict(
            kind=kind,
            size=size,
            seed=seed,
            bound={},
            nats=[float(number), 3.0],
            tokens=[2, 4],
            less_mdlm=0,
        )
        for number, (kind, size, seed) in enumerate(keys)
    ]
    made.written(out, {"runs": known_runs})
    assert '"nats": [ 1.0, 3.0 ]' in out.read_text()
    known = made.earlier(out, "kind", "size", "seed")
    assert (
        list(known) == keys
        and made.earlier(tmp_path / "none.json", "kind") == made.earlier(None) == {}
    )
    trained = []
    monkeypatch.setattr(
        made, "train", lambda given: trained.append(given.output.folder.name) or True
    )
    tiny.main("blocks", ["train", str(work), "--out", str(out)])
    assert trained == [f"blocks-4-{EDGES}-2M-0".replace(", ", "-").replace(" ", "_")]
    *_, last = tiny.runs(work)
    assert last[3].order().block == 4 and next(tiny.runs(work))[3].order().block is None
    (last[3].output.folder / "weights").mkdir(parents=True)  # as in the folder of an unfinished run
    tiny.evaluate(Namespace(work=work, out=out))
    whole, edges, four = json.loads(out.read_text())["runs"]
    assert [run["less_whole_text"]["value"] for run in (whole, edges, four)] == [
        0,
        0,
        pytest.approx(2 / 6),
    ]
    assert edges["less_mdlm"]["value"] == pytest.approx(1 / 6) and four["less_mdlm"]["value"] == 0


def test_a_share_of_the_runs_ends_after_a_stop_signal(monkeypatch):
    begun = []
    monkeypatch.setattr(made, "train", lambda given: begun.append(given) or len(begun) < 2)
    made.shared(list(range(9)), Namespace(part=1, of=2))
    assert begun == [1, 3]
