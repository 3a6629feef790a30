"""Benchmarks at tiny sizes: they run, raise an error for results that are not comparable, and
report all results.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import (
    attention,
    fields,
    gpu_head,
    gpu_losses,
    head,
    kernels,
    loops,
    noising,
    products,
    profile,
    rows,
    run,
    sampler_costs,
    sampling,
    table,
    together,
    training,
    utilisation,
)
from benchmarks.measuring import RESULTS, over_ours, report, require_equal, seconds

ROOT = Path(__file__).parent.parent


def written(text, results=RESULTS):
    """Return a page with the table of these results."""
    return table.page(text, table.render(results), table.BEGIN, table.END)


@pytest.mark.parametrize("kind", head.KINDS)
def test_losses_agree_and_every_method_is_timed(kind):
    measured = head.times(kind, 64, 5, sizes=head.TINY)
    names = set(head.methods(kind))
    assert set(measured["ratios"]) == {f"{name} time" for name in names - {"ours"}}
    assert all(len(values) == 5 for values in measured["cpu_seconds"].values())
    assert math.isclose(
        measured["losses"]["ours"], measured["losses"][[*head.KINDS[kind].same][1]], rel_tol=1e-4
    )


def test_another_loss_is_not_timed(monkeypatch):
    kind = head.KINDS["mdlm"]
    wrong = kind._replace(
        same={**kind.same, "papers": lambda batch: 1.001 * head.papers_mdlm(batch)}
    )
    monkeypatch.setitem(head.KINDS, "mdlm", wrong)
    with pytest.raises(AssertionError, match="papers gives"):
        head.times("mdlm", 32, 1, sizes=head.TINY)


@pytest.mark.parametrize("value", [1.0 + 2e-4, math.nan])
def test_values_that_differ_are_refused(value):
    require_equal({"ours": 1.0, "same": 1.0 + 5e-5})
    with pytest.raises(AssertionError, match="same gives"):
        require_equal({"ours": 1.0, "same": value})


def test_another_training_loss_is_not_timed():
    other = dict(
        ours=training.WORDS,
        papers=training.PAPERS._replace(loss=lambda batch: training.papers_loss(batch) + 0.01),
    )
    with pytest.raises(AssertionError, match="papers gives"):
        training.measure(training.TINY_STEP, 1, other)


def test_training_step():
    measured = training.measure(training.TINY_STEP, 5)
    assert set(measured["ratios"]) == {"papers time", "words time", "papers over words"}
    assert measured["tokens_per_second"]["ours"] > 0
    assert set(training.laptop("mdlm", training.TINY_STEP)["ratios"]) == {"words time"}


def test_noising():
    measured = noising.measure(5, 8, 16, head.TINY)
    assert measured["ratios"]["dense time"] > 0


def test_noising_with_another_distribution_is_refused(monkeypatch):
    monkeypatch.setattr(noising, "dense", lambda process, x, t: x)
    with pytest.raises(AssertionError, match="distributions differ"):
        noising.measure(1, 8, 64, head.TINY)


def test_products_agree_before_they_are_timed(monkeypatch):
    measured = products.measure(head.TINY)
    assert set(measured["ratios"]) == {"stripes: one_product time"}
    monkeypatch.setattr(products, "multiply", lambda hidden, matrix, offset, into: into.zero_())
    with pytest.raises(AssertionError, match="not close"):
        products.measure(head.TINY)


def test_products_are_compared_with_their_processes():
    measured = fields.measure(2, tiny=True)
    names = {"three kinds, 32 tokens", "apart, 32 tokens", "12 columns, 32 tokens"}
    assert set(measured["ratios"]) == names | {"logits memory"}
    assert {"masks, a third, 32 tokens", "three kinds, 32 tokens"} <= set(measured["cpu_seconds"])


def test_kernels_are_compared_with_masks():
    found = kernels.measure(1, **kernels.TINY)
    assert len(found["ratios"]) == 8 and all(value > 0 for value in found["ratios"].values())
    assert all(
        "masks" in name or f"{name} time" in found["ratios"] for name in found["cpu_seconds"]
    )


@pytest.mark.parametrize("name", sampling.PROCESSES)
def test_sampling_counts_the_network(name):
    measured = sampling.measure(name, sampling.TINY_TEXT)
    times = measured["seconds"]
    assert (
        len(measured["measured"]["blocks"])
        == -(-measured["calls"] // sampling.TINY_TEXT.every)
        >= 5
    )
    assert 0 < measured["calls"] <= sampling.TINY_TEXT.steps
    assert measured["ratios"]["outside"] == times["outside"] / times["blocks"]
    assert measured["ratios"]["papers time"] == times["papers"] / (
        times["blocks"] + times["outside"]
    )


@pytest.mark.parametrize("children", [False, True])
def test_the_cost_of_a_sampler_outside_the_network(children):
    measured = sampler_costs.of("confidence", children, sampler_costs.TINY_COSTS)
    times = measured["seconds"]
    assert (
        measured["ratios"]["outside"] == times["outside"] / times["blocks"] > 0
        and times["products"] > 0
    )
    assert (
        0
        < sampler_costs.of("psi", children, sampler_costs.TINY_COSTS)["calls"]
        <= sampler_costs.TINY_COSTS.steps
    )


def test_first_hitting_beside_ancestral():
    measured = sampling.first_hitting(sampling.TINY_TEXT)
    assert measured["first_hitting"]["calls"] == sampling.TINY_TEXT.steps
    speeds = (measured[name]["tokens_per_second"]["ours"] for name in sampling.SAMPLERS)
    ancestral, first = speeds
    assert measured["ratios"] == {"ancestral time": first / ancestral}


def test_attention_back_ends_agree_before_they_are_timed():
    measured = attention.measure(attention.TINY, 5)
    assert set(measured["rows"]) == {"even", "padded", "packed"}
    assert all("loss" in rows["sdpa"] for rows in measured["rows"].values())


def test_losses_for_a_gpu_agree_before_they_are_timed(monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")  # the modes set this variable; monkeypatch restores it
    options = gpu_head.parser().parse_args(["--tiny", "--device", "cpu", "--repeats", "5"])
    measured = dict(gpu_head.cases(options))
    assert len(measured) == len(gpu_losses.PROCESSES) * 2 * len(
        gpu_losses.MODES
    ) and not gpu_head.ratios(measured)
    assert all("loss" in row for rows in measured.values() for row in rows.values())


def test_utilisation():
    measured = utilisation.measure(profile.TINY_PROFILE, 2, 1, at_best=1e9)
    counted = measured["operations_per_token"]
    speed = measured["ratios"]["tokens per second"]
    assert 0 < counted["executed"] < counted["nominal"] and speed > 0
    assert measured["ratios"]["nominal"] == counted["nominal"] * speed / 1e9


def test_operations_of_the_papers_sizes(monkeypatch):
    """Compare with millions of operations per token computed by hand: blocks, attention, and logits
    of 50,257 tokens.

    A quarter of the positions needs all logits, a quarter the logits of one of 64 clusters.
    """
    small, base = utilisation.SIZES.values()
    assert round(utilisation.operations(small, 0.254).nominal / 1e6) == 798
    assert round(utilisation.operations(small, 0.254).executed / 1e6) == 625
    assert round(utilisation.operations(base, 1.0).nominal / 1e6) == 1812 + 151 + 309
    process = head.KINDS["hdlm"].make(head.Sizes(640, 8, 64))
    x = torch.randint(640, (500, 20))
    t = (torch.arange(500) + 0.5) / 500
    assert abs(utilisation.share(process, x, t.double()) - 0.25 * (1 + 1 / 64)) < 0.02
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Imagined 9000")
    with pytest.raises(ValueError, match=r"device 'Imagined 9000' is none of .*--peak"):
        utilisation.measure(profile.TINY_PROFILE)


@pytest.mark.parametrize("name", sampling.PROCESSES)
def test_the_papers_step_draws_from_the_posterior(name):
    process = sampling.PROCESSES[name](head.TINY)
    model = sampling.network(process, sampling.TINY_TEXT)
    x = torch.randint(40, (3, 8))
    t = torch.full((3,), 0.8)
    s = torch.full((3,), 0.6)
    z = process.sample(x, t)
    with torch.no_grad():
        probs = sampling.Papers(process, model).posterior(z, t.double(), s.double())
        exact = process.posterior(model(z, t).double().softmax(-1), z, t.double(), s.double())
    noisy = z >= process.vocab_size
    assert noisy.any()
    torch.testing.assert_close(probs[noisy], exact[noisy], atol=1e-7, rtol=1e-6)


def test_profile_accounts_for_all_time():
    for spent in (
        profile.training(profile.TINY_PROFILE, 2),
        profile.sampling(profile.TINY_PROFILE, 2),
    ):
        assert all(value >= 0 for value in spent.values())
        measured = profile.table("step", spent)
        assert measured.startswith(f"step: {1000 * sum(spent.values()):.1f} ms")
        assert len(measured.splitlines()) == len(spent) + 1 > 4


def test_methods_take_turns():
    turns = []
    taken = seconds({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 3)
    assert "".join(turns) == "ababab"
    assert [len(values) for values in taken.values()] == [3, 3]
    assert over_ours({"ours": 2.0, "b": 6.0}, "time") == {"b time": 3.0}


def test_runs_are_stored_one_after_another(tmp_path):
    numbers = iter([6.0, 5.0, 4.0])
    run.run({"toy": lambda: {"ratios": {"papers time": next(numbers)}}}, 3, "cpu", tmp_path)
    measured = json.loads((tmp_path / "toy.json").read_text())
    assert [one["ratios"]["papers time"] for one in measured["runs"]] == [6.0, 5.0, 4.0]
    assert str(ROOT) not in (tmp_path / "toy.json").read_text()


def test_memory_is_measured_by_the_command_in_a_process_of_its_own(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.head",
        "mdlm",
        "--tiny",
        "--tokens",
        "32",
        "--memory",
        "ours",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 200


def test_every_row_has_a_benchmark():
    work = run.cpu(tiny=True, full=True)
    assert {row.file for row in (*rows.CPU, *rows.SAMPLERS)} == set(work)
    assert {row.file for row in rows.GPU} == {*run.gpu(), "gpu_head", "packing_gpu"}


ROW = rows.Row("A", "B", "toy", "papers time", 5)
SEEN = ROW._replace(target=None)
LIMIT = rows.Row("A", "-", "toy", "GiB", 1, " GiB", True)
SHARE = rows.Row("A", "B", "toy", "outside", 0.05, " of their time", True, True)


@pytest.mark.parametrize(
    ("row", "values", "verdict", "shown"),
    [
        (ROW, [5.0, 6.0, 5.5], "met", "5.5x faster (5 to 6, 3 runs)"),
        (ROW, [6.0, 4.999, 7.0], "missed", "6x faster (4.99 to 7, 3 runs)"),
        (ROW, [6.0], "met in 1 of 1 runs", "6x faster"),
        (ROW, [math.nan], "missed", None),
        (ROW, [], "unmeasured", "-"),
        (SEEN, [6.0], "measured", "6x faster"),
        (SEEN, [], "unmeasured", "-"),
        (LIMIT, [1.001], "missed", "1.01 GiB"),
        (SHARE, [0.05, 0.01, 0.02], "met", "2 % of their time (1 % to 5 %, 3 runs)"),
        (SHARE, [0.0501, 0.01, 0.02], "missed", "2 % of their time (1 % to 5.1 %, 3 runs)"),
    ],
)
def test_verdicts(row, values, verdict, shown, tmp_path):
    if values:
        report("toy", [{"ratios": {row.ratio: value}} for value in values], folder=tmp_path)
    measured = rows.read(row, tmp_path)
    assert measured.verdict == verdict
    if shown is not None:
        assert table.line(measured).endswith(f"| {shown} | {verdict} |")


def test_another_setting_of_the_allocator_stands_beside_and_gives_no_verdict(tmp_path):
    row = rows.CPU[0]
    for folder, value in ((tmp_path, 55.0), (tmp_path / "fresh", 2.5)):
        report(row.file, [{"ratios": {row.ratio: value}}], folder=folder)
    assert "| ≥ 25x faster | 55x faster | met in 1 of 1 runs | 2.5x faster |" in table.render(
        tmp_path
    )


def test_the_table_takes_the_place_between_its_markers(tmp_path):
    page = f"before\n\n{table.BEGIN}\nold\n{table.END}\n\nafter\n"
    new = written(page, tmp_path)
    assert new.startswith("before") and new.endswith("after\n") and "old" not in new
    assert new.count("| unmeasured |") == len(rows.CPU) + len(rows.SAMPLERS) + len(rows.GPU)
    assert written(new, tmp_path) == new
    another = f"another\n{table.END}\nlast\n"
    assert written(new + another, tmp_path) == new + another
    with pytest.raises(ValueError, match="must hold the lines"):
        written("no markers", tmp_path)


def test_the_page_agrees_with_the_results():
    page = table.PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run python -m benchmarks.table"


def test_the_page_has_the_table_of_loops():
    stored = json.loads((RESULTS / "loops.json").read_text())
    assert loops.PAGE.tables(stored) in table.PAGE.read_text(encoding="utf-8")


def test_loops_are_measured_beside_each_other(monkeypatch, tmp_path, capsys):
    """Run the command, which asserts equal losses of the engine and the bare loop, and of the
    formula and ddlib.
    """
    out = tmp_path / "loops.json"
    with pytest.raises(SystemExit):
        loops.main(["--tiny"])
    threads = torch.get_num_threads()
    loops.main(["--tiny", "--repeats", "1", "--threads", "1", "--out", str(out)])
    torch.set_num_threads(threads)
    (measured,) = json.loads(out.read_text())["runs"]
    assert (
        set(measured["tokens_per_second"]) == set(loops.LOOPS)
        and measured["ratios"][f"{loops.BARE} time"] == 1
    )
    assert "| engine of the recipes | " in capsys.readouterr().out


def test_joint_calls_change_no_tokens_of_a_tiny_network():
    model = together.network(None, tiny=True)
    plans = together.drawings(model, 4, 48)
    assert together.measure_overhead(model, plans, 48)["ratios"]["beyond, at once"] > 0
    changes = together.count_changes(model, plans[:2], 48)
    assert all(0 == one["changed"] < one["tokens"] for one in changes.values())
    assert set(together.check_products(torch.float32, 32)) >= {"1", "64"}
    blocks = together.network(None, tiny=True, block_size=together.BLOCK)
    first = together.measure_first_blocks(blocks, 2 * together.BLOCK)
    assert len(first["at once"]) == together.ROWS
