"""Estimated memory of a run beside what its tensors took, by the record that torch's profiler keeps
of the allocator.

That record has every tensor, also those inside operators, and nothing else: the resident memory of
a process has what the allocator keeps, the libraries and the data too.
"""

import gc
import json
from dataclasses import replace

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function
from training_runs import context
from zoo.runs import ALONE, recipe_in, smoke_text

from recipes import owt
from recipes.config import Hardware
from recipes.engine import estimate, memory
from recipes.engine.parallel import join
from recipes.engine.run import Run
from recipes.engine.utilisation import operations

TREE = dict(kind="hdlm_levels", clusters=[24, 4], xi=[1.0, 1.0])
RUNS = {
    "masks": dict(process=dict(kind="mdlm")),
    "masks, no average, four parts": dict(
        process=dict(kind="mdlm"), hardware=Hardware(threads=1, micro_batch=4)
    ),
    "two levels, bfloat16": dict(process=TREE, hardware=Hardware(threads=1, bf16=True)),
    "gidd, packed": dict(process=dict(kind="gidd", p_uniform=0.1)),
    "uniform, recomputed": dict(
        process=dict(kind="uniform", schedule="linear"),
        hardware=Hardware(threads=1, recompute=True),
    ),
    "children": dict(process=TREE, model=dict(head="children")),
}


def given(tmp_path, name):
    changes = dict(RUNS[name])
    run = recipe_in(tmp_path, batch=16)
    network = dict(dim=96, depth=4, heads=4, cond_dim=64, pad_to=128) | changes.pop("model", {})
    run = replace(
        run,
        model=run.model | network,
        data=replace(run.data, length=64, packed="packed" in name),
        **changes,
    )
    return replace(run, optimizer=replace(run.optimizer, ema=0.0)) if "no average" in name else run


def peaks(path, run, rank=0, size=1, port=0):
    """Write the largest bytes of the tensors in a training step and in a validation."""
    import os

    torch.set_num_threads(1)
    if size > 1:
        os.environ |= dict(
            RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
    held = {"training": [], "validation": []}

    def part(name):
        held[name].append(bytes_of_tensors())
        return record_function(name)

    with (
        join() as world,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        run = Run.prepare(run, world)
        stream = run.batches()
        for _ in range(3):
            with part("training"):
                run.step(next(stream), False)
        with part("validation"):
            run.validate()
    if rank:
        return
    profiler.export_chrome_trace(str(path))
    events = sorted(
        json.loads(path.read_text())["traceEvents"], key=lambda event: event.get("ts", 0)
    )
    allocated = [
        (event["ts"], event["args"]["Total Allocated"])
        for event in events
        if event["name"] == "[memory]"
    ]
    largest = dict.fromkeys(held, 0)
    for event in events:
        if event["name"] in held and event["cat"] == "user_annotation":
            before = [size for at, size in allocated if at < event["ts"]][-1]
            inside = [size for at, size in allocated if 0 <= at - event["ts"] <= event["dur"]]
            sizes = held[event["name"]].pop(0) + max(inside) - before
            largest[event["name"]] = max(largest[event["name"]], sizes)
    path.write_text(json.dumps(largest))


def bytes_of_tensors():
    """Return the bytes of all tensors that Python holds.

    The profiler misses what a thread of a process group releases, so its total may only be used for
    differences.
    """
    gc.collect()
    tensors = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor) and type(one) is not DTensor
    ]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def measured(path, run, size=1):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [
        context().Process(target=peaks, args=(path, run, rank, size, port)) for rank in range(size)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0] * size
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("tokens", [64, 1024])
def test_the_estimate_is_within_15_percent(tmp_path, monkeypatch, name, tokens):
    """From one row and two, and from as many as there are in a step."""
    run = given(tmp_path, name)
    found = measured(tmp_path / "peaks.json", run)
    monkeypatch.setattr(memory, "TOKENS", tokens)
    [layout] = memory.layouts(run, 1)
    check(layout, found)


def check(layout, found):
    ratios = layout.training / found["training"], layout.validation / found["validation"]
    assert all(0.85 < ratio < 1.15 for ratio in ratios), (ratios, layout, found)


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
def test_two_processes_are_within_15_percent(tmp_path, shard):
    run = given(tmp_path, "masks")
    run = replace(run, hardware=Hardware(threads=1, shard=shard))
    check(memory.layouts(run, 2)[2 if shard else 1], measured(tmp_path / "peaks.json", run, 2))


def test_the_table_of_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recipes.engine.train", None)
    smoke_text(tmp_path)
    owt.main(["mdlm", "--smoke", "--batch", "4", "--estimate", "2"])
    lines = capsys.readouterr().out.splitlines()
    heads = [" ".join(line.split()) for line in lines]
    first = heads.index("MB of each device one device copies on 2 (DDP) shards on 2 (FSDP2)")
    assert heads[first + 1] == "rows of a pass 4 2 2"
    (end,) = (place for place, line in enumerate(lines) if line.startswith("peak of validation"))
    assert float(lines[end - 1].split()[-3]) > float(lines[end - 1].split()[-2]) > 0
    assert lines[-1].startswith("operations: ")
    assert not (tmp_path / "runs" / "smoke" / "owt").exists(), "no folder of the run is made"


def test_rows_along_an_order_and_the_logits_of_a_teacher_count(tmp_path):
    run = replace(recipe_in(tmp_path, batch=16), process=dict(kind="mdlm"))
    losses = dict(), dict(kind="along_order", order="left_to_right"), dict(kind="consistency")
    plain, ordered, taught = (
        memory.layouts(replace(run, loss=loss), 1)[0].training for loss in losses
    )
    assert ordered == pytest.approx(plain, rel=0.1)
    assert taught > plain + 4 * 16 * 16 * 302


def test_unestimable_runs_are_refused(tmp_path):
    run = given(tmp_path, "masks")
    with pytest.raises(ValueError, match="estimate=0: must be at least 1"):
        estimate(run, 0)
    with pytest.raises(ValueError, match="batch=16: must be a multiple of 3 processes"):
        estimate(run, 3)
    loss = dict(kind="reward", reward="rewards_for_runs:share_of_low")
    with pytest.raises(ValueError, match=r"estimate: not with loss\.kind=reward"):
        estimate(replace(run, loss=loss), 1)


def test_the_estimate_has_the_operations_of_a_run_and_its_hours(tmp_path):
    run = replace(given(tmp_path, "masks"), steps=1000, hardware=Hardware(threads=1, peak=0.5))
    *_, last = estimate(run, 2).splitlines()
    whole = operations(Run.prepare(run, ALONE, writes=False)) * run.batch * run.steps
    assert (
        f"{whole:.3g} FLOP in 1,000 steps; {whole / (0.4 * 0.5e12 * 2 * 3600):.3g} hours on 2 x "
        "this device" in last
    )
    assert "H100 at 40 % of 67 TFLOP/s" in estimate(replace(run, hardware=Hardware(threads=1)))
