"""The ladder of training steps, tiny on a CPU: what it measures, in which order, what it keeps."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ddlib as dd
from benchmarks import (
    card,
    compile_caches,
    constants,
    gpu_losses,
    hub_decoding,
    ladder,
    priorities,
    sampling_steps,
)
from benchmarks.device_trace import summary
from benchmarks.peer import Peer
from benchmarks.profile import TINY_PROFILE, run
from benchmarks.training import TINY_STEP

ROOT = Path(__file__).parent.parent
OTHERS = [name for name in ladder.LADDER if name != ladder.BASELINE]
TIMED = {"losses", "first_step_s", "seconds", "ms", "peak_bytes", "profile", "operations_per_token"}
ALL = {"name", "here", "session", "command", "machine", "wall_s", "before", "after", "ratios"}


def results(folder):
    return priorities.Results(folder / ladder.FILE, "cpu")


def item(name, work=None, expected=1.0):
    return priorities.Item(name, expected, work or (lambda _: {"ratios": {}}))


def climb(found, kept, deadline=60.0):
    priorities.climb(found, kept, deadline, lambda one: None)
    return [one["name"] for one in kept.runs]


@pytest.fixture(scope="module")
def with_baseline(tmp_path_factory):
    kept = results(tmp_path_factory.mktemp("ladder"))
    wanted = [one for one in ladder.items(ladder.TINY) if one.name == "small, baseline"]
    climb(wanted, kept, 600)
    return kept


def check_timed(one):
    assert set(one) - ALL == TIMED | (set() if "peer" in one["name"] else {"toggles"})
    assert one["ratios"]["tokens per second"] > 0
    assert len(one["seconds"]) == ladder.TINY.count.windows


def test_fields_of_a_timed_step(with_baseline):
    (one,) = json.loads(with_baseline.path.read_text())["runs"]
    check_timed(one)
    assert one["before"]["load"] and set(one["machine"]) >= {"device", "torch", "load", "time"}
    assert set(one["profile"]) >= {"ms", "busy_ms", "idle_ms", "launches", "top", "gaps"}


@pytest.mark.parametrize("name", OTHERS)
def test_every_rung_has_the_losses_of_the_baseline(name, with_baseline):
    first = with_baseline.latest_success("small, baseline")
    found = ladder.rung("small", ladder.LADDER[name], True, ladder.TINY, with_baseline)
    assert found["losses"] == pytest.approx(first["losses"], rel=1e-5)
    assert len(set(first["losses"])) > 1


def test_a_rung_with_another_loss_is_not_timed(with_baseline):
    with pytest.raises(AssertionError, match="not timed"):
        ladder.rung("small", {"model.head": "children"}, True, ladder.TINY, with_baseline)
    with pytest.raises(ValueError, match="base, baseline: not measured"):
        ladder.rung("base", {"hardware.threads": 1}, True, ladder.TINY, with_baseline)


@pytest.mark.parametrize("toggle", ["hardware.thread", "model.ropes", "optimiser"])
def test_rungs_are_options_that_exist(toggle):
    with pytest.raises((TypeError, ValueError), match=toggle.split(".")[-1]):
        run(TINY_PROFILE, {toggle: 1})


def test_nothing_is_patched():
    for module in ("ladder", "priorities", "constants", "peer", "device_trace", "utilisation"):
        tree = ast.parse((ROOT / "benchmarks" / f"{module}.py").read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imports = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & {"setattr", "patch"} and "unittest.mock" not in imports


def test_the_baseline_is_timed_again_after_every_third_rung():
    rungs = {ladder.BASELINE: {}, **{name: {} for name in "abcd"}}
    names = [one.name for one in ladder._rungs("s", rungs, ladder.TINY, 1)]
    wanted = "baseline", "a", "b", "c", "baseline after c", "d", "baseline after d"
    assert names == [f"s, {name}" for name in wanted]


def test_order_of_the_items():
    names = [one.name for one in ladder.items(ladder.GPU)]
    assert len(set(names)) == len(names)
    assert names[:3] == ["constants", "small, baseline", "base, baseline"]
    assert {"small, peer", "base, peer", "losses, masks", "laptop, step"} < set(names)
    assert {"sampling, 1", "sampling, 4", "sampling, 32", "hub decoding, 1"} < set(names)
    # one call has the most important items
    assert sum(one.expected for one in ladder.items(ladder.GPU)[:6]) < 570


def test_items_that_do_not_fit_into_the_time_left_are_left_out(tmp_path):
    found = [item("long", expected=50), item("short", expected=5)]
    assert climb(found, results(tmp_path), 20) == ["short"]
    assert climb(found, results(tmp_path), 0) == ["short"]


def test_an_item_over_its_limit_is_skipped_and_tried_again_after_all_others(tmp_path):
    begin = time.monotonic()
    wakes = iter([60, 0])

    def slow(_):
        try:
            time.sleep(next(wakes))
        except Exception:  # as a benchmark that goes on after the error of one method
            pytest.fail("the limit was taken for an error")
        return {"ratios": {}}

    kept = results(tmp_path)
    assert climb([item("slow", slow, 0.05), item("next")], kept) == ["slow", "next"]
    assert kept.runs[0]["skipped"] == "exceeded its limit of 0 s" and time.monotonic() - begin < 10
    again = [item("slow", slow), item("next"), item("new")]
    assert climb(again, results(tmp_path)) == ["slow", "next", "new", "slow"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_error_is_kept_and_takes_nothing_else_away(tmp_path):
    kept = results(tmp_path)
    assert climb([item("wrong", lambda _: 1 / 0), item("right")], kept) == ["wrong", "right"]
    assert kept.runs[0]["error"] == "ZeroDivisionError: division by zero"
    assert kept.latest_success("wrong") is None and kept.latest_success("right")


def test_it_continues_where_it_was_interrupted(tmp_path):
    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        climb([item("a"), item("b", interrupted), item("c")], results(tmp_path))
    assert climb([item("a"), item("b"), item("c")], results(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize("field", ["code", "device", "torch"])
def test_results_of_other_code_and_devices_stay_and_do_not_count(field, tmp_path):
    kept = results(tmp_path)
    climb([item("a")], kept)
    other = results(tmp_path)
    other.here[field] = "another"
    assert climb([item("a")], other) == ["a", "a"]
    assert climb([item("a")], results(tmp_path)) == ["a", "a"]


def test_speedups_are_those_over_the_baselines_before_and_after():
    rows = [
        ("s, baseline", 10.0),
        ("s, a", 5.0),
        ("b, baseline", 90.0),
        ("s, baseline after a", 20.0),
        ("s, c", 4.0),
    ]
    runs = [
        {"name": name, "ms": ms, "toggles": {} if "base" in name else {"x": 1}} for name, ms in rows
    ]
    one = [run | {"session": 1} for run in runs]
    assert ladder.speedups(one) == {"s, a": 3.0, "s, c": 5.0}
    assert ladder.speedups([*one[:1], *(run | {"session": 2} for run in runs[1:])])["s, a"] == 4.0


def test_busy_time_is_the_union_of_what_runs_on_the_device():
    """Kernels at 0 to 40, 10 to 20, 30 to 50 and a copy at 80 to 100 microseconds, in two steps."""
    kernels = [
        ("kernel", "b", 10, 10),
        ("kernel", "a", 0, 40),
        ("kernel", "a", 30, 20),
        ("gpu_memcpy", "copy", 80, 20),
    ]
    calls = [("cuda_runtime", "cudaLaunchKernel", 0, 90), ("cuda_driver", "cuLaunchKernelEx", 5, 1)]
    waits = [("cuda_runtime", "cudaStreamSynchronize", 60, 1), ("cpu_op", "aten::mm", 0, 500)]
    rows = [*kernels, *calls, *waits]
    events = [dict(ph="X", cat=cat, name=name, ts=ts, dur=dur) for cat, name, ts, dur in rows]
    found = summary([*events, {"ph": "M", "name": "process_name"}], 200e-6, 2)
    close = {
        "ms": 0.1,
        "busy_ms": 0.035,
        "idle_ms": 0.065,
        "kernels": 2,
        "launches": 1,
        "waits": 0.5,
    }
    assert {name: found[name] for name in close} == pytest.approx(close)
    assert [(one["name"], one["calls"]) for one in found["top"]] == [
        ("a", 1),
        ("copy", 0.5),
        ("b", 0.5),
    ]
    assert found["top"][0]["ms"] == pytest.approx(0.03)
    assert found["gaps"] == [{"ms": pytest.approx(0.03), "after": "a", "before": "copy"}]
    assert summary([], 1.0, 1)["idle_ms"] == 1000


def test_readings_of_nvidia_smi():
    answer = """
GPU 00000000:0F:00.0
    GPU Power Readings
        Average Power Draw                : 74.12 W
        Current Power Limit               : 700.00 W
    Clocks
        SM                                : 1980 MHz
    Default Applications Clocks
        Memory                            : 2619 MHz
"""
    power = {"Average Power Draw": "74.12 W", "Current Power Limit": "700.00 W"}
    assert card.readings(answer) == {"GPU Power Readings": power, "Clocks": {"SM": "1980 MHz"}}
    assert len(card.state()["load"]) == 3


def test_constants():
    measured = constants.products(TINY_PROFILE, 2)
    assert len(measured) == 12
    assert all(one["ms"] > 0 and one["tflops"] > 0 for one in measured.values())
    assert set(constants.attention(TINY_PROFILE, 2)) == {"forwards", "backwards"}
    assert constants.bandwidth("cpu", 2**10, 2) > 0


@pytest.mark.parametrize("name", [one for one in ladder.LAUNCH_BOUND if one != ladder.BASELINE])
def test_a_step_as_one_graph_has_the_losses_of_the_baseline(name, tmp_path):
    kept = results(tmp_path)
    climb([one for one in ladder.items(ladder.TINY) if one.name == "laptop, baseline"], kept, 600)
    first = kept.latest_success("laptop, baseline")
    found = ladder.rung("laptop", ladder.LAUNCH_BOUND[name], True, ladder.TINY, kept)
    assert found["losses"] == pytest.approx(first["losses"], rel=1e-6)


def test_sampling_in_three_ways_draws_the_same_tokens():
    found = ladder.sampling(3, ladder.TINY, None)
    ways = set(sampling_steps.WAYS)
    assert set(found["ratios"]) == {f"papers time, {way}" for way in ways}
    assert found["same_tokens"] == dict.fromkeys(ways, 1.0)
    assert 0 < found["calls"] <= ladder.TINY.text.steps
    assert all(value > 0 for value in found["tokens_per_second"].values())


def test_both_decodings_of_a_hub_network_decode_the_same_tokens():
    found = ladder.hub(3, ladder.TINY, None)
    assert found["same_tokens"] == 1.0
    assert found["ratios"]["fast_dllm time"] > 0
    text = ladder.TINY.hub
    model = hub_decoding.network(text)
    prompt = torch.zeros(text.sequences, text.prompt, dtype=torch.int64)
    tokens = hub_decoding.fast_dllm(model, prompt, text)
    assert torch.equal(tokens[:, : text.prompt], prompt)
    assert (tokens < model.vocab_size).all()
    blocks = (text.length - text.prompt) // text.block
    in_blocks = model.positions - blocks * tokens.numel()
    # several tokens in a call, or the threshold would not be tested
    assert 0 < in_blocks < blocks * text.block * text.sequences * text.block


@pytest.mark.parametrize("whole", [False, True])
def test_the_peer_trains_on_the_papers_loss(whole):
    trainer = Peer(TINY_STEP, whole)
    z, masked, t = trainer.draw_noise()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        found = trainer.from_states(z, masked, t)
        wanted = dd.training_loss(trainer.process, trainer.model(z, t), trainer.x, z, t)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    before = [average.clone() for average in trainer.averages]
    with torch.compiler.set_stance("force_eager"):
        assert float(trainer.step()) > 0
    assert any((old != new).any() for old, new in zip(before, trainer.averages, strict=True))


def test_cross_entropy_with_a_padded_matrix_is_the_same():
    batch = gpu_losses.Batch("hdlm", False, gpu_losses.TINY, "cpu")
    pair = gpu_losses.cross_entropy(batch), gpu_losses.padded_cross_entropy(batch)
    torch.testing.assert_close(*pair)
    first, second = (torch.autograd.grad(value, (batch.hidden, batch.matrix)) for value in pair)
    torch.testing.assert_close(first, second)


def test_the_command_measures_all_and_continues_after_it_was_killed(tmp_path):
    command = [sys.executable, "-m", "benchmarks.ladder", "--tiny", "--folder", str(tmp_path)]
    path = tmp_path / ladder.FILE
    names = [one.name for one in ladder.items(ladder.TINY)]
    quiet = dict(cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with subprocess.Popen(command, **quiet) as killed:
        while not path.exists():
            time.sleep(0.05)
        time.sleep(1)
        killed.kill()
    early = json.loads(path.read_text())["runs"]
    assert 0 < len(early) < len(names)
    subprocess.run(command, **quiet, check=True)
    runs = json.loads(path.read_text())["runs"]
    assert runs[: len(early)] == early and [one["name"] for one in runs] == names
    assert str(ROOT) not in path.read_text()
    for one in runs:
        assert set(one) >= ALL and not priorities.is_failure(one)
        if one["name"].startswith(("small", "base", "laptop")):
            check_timed(one)
        if one["name"].startswith("losses"):
            assert set(one["rows"]) == set(ladder.LOSSES)
            assert all("loss" in row for row in one["rows"].values())


COMPILED = """
import sys
from pathlib import Path
from benchmarks.compile_caches import Caches
caches = Caches(Path(sys.argv[1]), Path(sys.argv[2]))
import torch
from torch._dynamo.utils import counters
torch.compile(lambda x: (x.sin() + 1).sum(), dynamic=False)(torch.ones(64))
caches.save()
print(counters["inductor"]["fxgraph_cache_hit"])
"""


def test_compiled_code_is_found_again_on_another_machine(tmp_path):
    hits = []
    for number in range(2):
        place = tmp_path / f"machine{number}"
        command = [sys.executable, "-c", COMPILED, str(tmp_path / "kept"), str(place)]
        (tmp_path / "kept").mkdir(exist_ok=True)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        hits.append(int(done.stdout.splitlines()[-1]))
    assert hits == [0, 1]


def test_new_compiled_code_is_kept_in_parts_if_not_too_large(tmp_path, monkeypatch, capsys):
    for variable in compile_caches.FOLDERS:
        monkeypatch.setenv(variable, "")  # restored after the test
    kept = tmp_path / "kept"
    place = tmp_path / "one"
    kept.mkdir()
    caches = compile_caches.Caches(kept, place)
    assert Path(os.environ["TRITON_CACHE_DIR"]).is_relative_to(place)
    caches.save()
    assert not any(kept.iterdir())
    monkeypatch.setattr(compile_caches, "PART", 100)
    (place / "triton" / "kernel").write_bytes(os.urandom(500))
    caches.save()
    assert len(list(kept.iterdir())) > 5
    compile_caches.Caches(kept, tmp_path / "two")
    assert (tmp_path / "two/triton/kernel").read_bytes() == (place / "triton/kernel").read_bytes()
    (kept / "compiled.tar.gz.2").unlink()  # as after a kill
    compile_caches.Caches(kept, tmp_path / "three")
    assert "is damaged" in capsys.readouterr().out
    monkeypatch.setattr(compile_caches, "MOST", 100)
    (place / "triton" / "other").write_bytes(b"new")
    caches.save()
    assert "not saved" in capsys.readouterr().out
