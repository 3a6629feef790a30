"""Studies: pages agree with their result files, and the parts that studies share."""

import importlib
import json
import math
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import ddlib as dd
from studies import pooled, study
from studies.blocks.page import PAGE as BLOCKS
from studies.deviations import run as deviations

ROOT = Path(__file__).parents[1]
PAGES = {
    file.parent.name: importlib.import_module(f"studies.{file.parent.name}.page").PAGE
    for file in sorted((ROOT / "studies").glob("*/page.py"))
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_stored_results(name):
    stored = json.loads((ROOT / "studies" / name / "results.json").read_text())
    page = (ROOT / "docs" / f"{PAGES[name].name}.md").read_text()
    assert PAGES[name].tables(stored) in page.partition(PAGES[name].marks[0])[2]


class Small(study.Study):
    """A study that makes nothing."""

    results = BLOCKS
    commands = ("train", "evaluate", "page")

    @classmethod
    def tiny(cls):
        return cls()

    def train(self, options):
        options.work.joinpath("made").write_text(str(options.work))


def test_a_command_without_its_arguments_is_refused(capsys, tmp_path):
    for words, result in (
        (["train"], "pass a command and WORK"),
        (["evaluate", str(tmp_path)], "evaluate: pass --out FILE"),
        (["page", str(tmp_path)], "page: pass --out FILE"),
    ):
        with pytest.raises(SystemExit):
            Small().main("small", words)
        assert result in capsys.readouterr().err


def test_a_page_is_printed_unless_a_folder_is_given(capsys, tmp_path):
    stored = str(ROOT / "studies" / "blocks" / "results.json")
    Small().main("small", ["page", str(tmp_path), "--out", stored])
    assert "| MDLM | 128 |" in capsys.readouterr().out
    copy = tmp_path / f"{BLOCKS.name}.md"
    copy.parent.mkdir()
    page = (ROOT / "docs" / f"{BLOCKS.name}.md").read_text()
    begin, end = BLOCKS.marks
    before, _, rest = page.partition(begin)
    copy.write_text(f"{before}{begin}\nold\n{end}{rest.partition(end)[2]}")
    Small().main("small", ["page", str(tmp_path), "--out", stored, "--docs", str(tmp_path)])
    assert copy.read_text() == page and (tmp_path / "images" / "blocks.png").exists()


def test_relative_and_absolute_folders_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for work in ("work", str(tmp_path / "work")):
        Small().main("small", ["train", work])
        assert (tmp_path / "work" / "made").read_text() == str(tmp_path / "work")


def test_runs_of_an_earlier_file_are_read_and_compared(tmp_path):
    out = tmp_path / "result.json"
    runs = [
        {"kind": kind, "seed": 0, "nats": [nats, 3.0], "tokens": [2, 4]}
        for kind, nats in (("masks", 0.0), ("tree", 1.0))
    ]
    study.written(out, {"runs": runs})
    assert '"nats": [ 1.0, 3.0 ]' in out.read_text()
    known = study.earlier(out, "kind", "seed")
    assert list(known) == [("masks", 0), ("tree", 0)]
    assert study.earlier(tmp_path / "none.json", "kind") == study.earlier(None) == {}
    less = study.less(known["tree", 0], known["masks", 0])
    assert less["value"] == pytest.approx(1 / 6)


def test_a_share_of_the_runs_ends_after_a_stop_signal(monkeypatch):
    begun = []
    monkeypatch.setattr(study, "train", lambda given: begun.append(given) or len(begun) < 2)
    study.shared(list(range(9)), Namespace(part=1, of=2))
    assert begun == [1, 3]


def test_deviations_of_the_bound_are_measured_and_the_page_holds_their_table():
    measured = deviations.row("masks", deviations.processes(8)["masks"], True, runs=4, sequences=8)
    assert measured["truth"] == pytest.approx(math.log(8), abs=1e-6) and measured["tails"][0] < 1
    assert "| masks | 9 | own density | 0." in deviations.rows({"runs": [measured]})
    stored = json.loads(deviations.RESULTS.read_text())
    assert deviations.rows(stored) in deviations.PAGE.read_text()
    own = [one for one in stored["runs"] if one["times"] == "own density"]
    assert all(0.92 <= one["covered"] <= 0.98 for one in own) and len(own) == len(
        deviations.processes()
    )


def test_shares_that_a_clip_keeps_have_their_closed_form():
    """Clip(c) of 1/t keeps min(1, c t).

    For two levels at gamma = 1 it keeps c over their flux, 1 - log(1 - t).
    """
    masks = dd.presets.mdlm(8)
    tree = dd.processes.Hierarchical(
        dd.hierarchies.Tree([torch.arange(64) // 8]), dd.schedules.Linear()
    )
    times = pooled.TIMES
    *at_times, total = pooled.kept_by_clip(masks, 2.0, "standard")
    assert at_times == pytest.approx([min(1, 2 * t) for t in times])
    assert total == pytest.approx(0.75, abs=1e-5)
    *at_times, total = pooled.kept_by_clip(tree, 2.0, "standard")
    noisy = [2 * t / (1 - math.log(1 - t)) for t in times]
    assert at_times == pytest.approx(noisy)
    assert total == pytest.approx(0.5, abs=1e-3)


def test_gaps_are_pooled_over_distinct_pairs_of_runs():
    gaps = pooled.gap_of_trees(8)
    assert len(gaps) == 5, "the runs of scales with seed 1 are those of orders"
    assert pooled.mean_with_error(gaps).startswith(
        "+0.0540 ± 0.0029 (5 runs, 95 % interval ± 0.008)"
    )
