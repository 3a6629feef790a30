"""Killed at any moment, stopped, damaged, changed: a run continues exactly, or the error names the
reason.
"""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
import torch.distributed.checkpoint as dcp
from training_runs import curve, finish, losses, output_of, start, steps_made, trained
from zoo.runs import ALONE, recipe_in

from ddlib_models.io.manifest import check_manifest
from recipes.config import Hardware, Optimizer, Output
from recipes.engine import NonFiniteError, checkpoint, train
from recipes.engine.loop import resume
from recipes.engine.objectives.bound import Bound
from recipes.engine.parallel import World
from recipes.engine.provenance import record
from recipes.engine.run import Run
from recipes.model_io import open_saved

LOSSES = {
    "whole": dict(),
    "ordered": dict(kind="along_order", order="confidence:temperature=0.1", per_step=3, share=0.75),
}
OTHERS = [dict(kind="mdlm"), dict(kind="gidd", p_uniform=0.2)]


@pytest.fixture(scope="module")
def whole(folder):
    """The run that nothing happened to."""
    run = recipe_in(folder, "whole")
    train(run)
    return run.output.folder


@pytest.fixture(scope="module")
def ordered(folder):
    """The same along an order, whose rows are half-way down at every checkpoint."""
    run = recipe_in(folder, "ordered", loss=LOSSES["ordered"])
    train(run)
    return run.output.folder


def copied(whole, folder, name):
    """A run's folder as if it had been trained here."""
    shutil.copytree(whole, folder / name)
    return folder / name


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)


def kill_at_random(run, size, chance, in_a_save):
    """Starts a run and kills it, one rank of it if there are several.

    True if it was still running.
    """
    processes = start(run, size)
    target = chance.randrange(1, run.steps)
    if in_a_save:
        saving = run.output.folder / "checkpoints"
        until(lambda: any(saving.glob("*.tmp")) or not all(p.is_alive() for p in processes))
    else:
        until(
            lambda: (
                steps_made(run.output.folder) >= target or not all(p.is_alive() for p in processes)
            )
        )
    time.sleep(chance.random() * 0.03)
    victim = chance.choice(processes)
    alive = victim.is_alive()
    if alive:
        os.kill(victim.pid, signal.SIGKILL)
    finish(processes, seconds=1 if size > 1 else 30)
    return alive


def killed_and_finished(run, size, seed, in_a_save):
    chance = random.Random(seed)
    kills = 0
    for _ in range(2):
        kills += kill_at_random(run, size, chance, in_a_save)
    trained(run, size)
    return kills


@pytest.mark.parametrize(
    ("untouched", "in_a_save"),
    [
        pytest.param("whole", False),
        pytest.param("whole", True),
        pytest.param("ordered", False),
        pytest.param("ordered", True),
    ],
)
def test_killed_and_started_again_it_makes_the_same_run(folder, request, untouched, in_a_save):
    wanted = curve(request.getfixturevalue(untouched))
    run = recipe_in(folder, f"{untouched}-killed-{in_a_save}", loss=LOSSES[untouched])
    assert killed_and_finished(run, 1, 3, in_a_save) > 0
    assert curve(run.output.folder) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_twenty_kills(folder, whole, seed):
    run = recipe_in(folder, f"trial-{seed}")
    assert killed_and_finished(run, 1, seed, in_a_save=seed % 3 == 0) > 0
    assert curve(run.output.folder) == curve(whole)


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
@pytest.mark.parametrize("seed", range(3))
def test_one_of_two_ranks_is_killed(folder, shard, seed):
    hardware = Hardware(shard=shard, threads=1)
    untouched = recipe_in(folder, f"pair-{shard}", hardware=hardware)
    if not untouched.output.folder.exists():
        trained(untouched, 2)
    run = recipe_in(folder, f"pair-{shard}-{seed}", hardware=hardware)
    assert killed_and_finished(run, 2, seed, in_a_save=seed == 0) > 0
    assert curve(run.output.folder) == curve(untouched.output.folder)


def test_a_process_that_fails_before_its_log_hides_nothing(folder, monkeypatch):
    monkeypatch.setattr("training_runs.finish", lambda processes: [1])
    monkeypatch.setattr("training_runs.start", lambda *arguments: [])
    with pytest.raises(AssertionError, match=r"exit codes \[1\]:\nno log"):
        trained(recipe_in(folder, "never"))


def test_on_a_stop_signal_a_run_saves_and_can_be_resumed(folder, whole):
    run = recipe_in(folder, "stopped")
    processes = start(run)
    until(lambda: steps_made(run.output.folder) >= 6)
    os.kill(processes[0].pid, signal.SIGTERM)
    assert finish(processes) == [0]
    made = steps_made(run.output.folder)
    assert (
        6 <= made < 20
        and checkpoint.list_checkpoints(run.output.folder / "checkpoints")[0].name
        == f"step_{made:08d}"
    )
    assert f"stopping at a signal: saved after step {made}" in output_of(run)
    trained(run)
    assert curve(run.output.folder) == curve(whole)


def test_the_newest_and_the_best_checkpoints_are_kept(whole):
    found = checkpoint.list_checkpoints(whole / "checkpoints")
    assert [path.name for path in found[:2]] == ["step_00000020", "step_00000016"]
    bounds = {r["step"]: r["nats_per_token"] for r in curve(whole) if r["kind"] == "bound"}
    best = min(bounds, key=bounds.__getitem__)
    assert any(check_manifest(path)["bound"] == bounds[best] for path in found)
    assert len(found) == (2 if best == 20 else 3)


def test_published_are_the_averaged_weights(folder, whole):
    saved = open_saved(whole)
    average = {
        f"average.model.{name}": torch.zeros_like(value)
        for name, value in saved.model.state_dict().items()
    }
    with checkpoint.quietly():
        dcp.load(average, checkpoint_id=whole / "checkpoints" / "step_00000020", no_dist=True)
    for name, value in saved.model.state_dict().items():
        assert torch.equal(value, average[f"average.model.{name}"]), name
    assert saved.process.hierarchy.levels == (302, 6, 1)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, cut, os.remove], ids=["flipped", "truncated", "missing"])
@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata"])
def test_a_damaged_checkpoint_is_passed_over(folder, whole, damage, file):
    run = recipe_in(folder, f"damaged-{damage.__name__}{file}")
    copied(whole, folder, run.output.folder.name)
    damage(run.output.folder / "checkpoints" / "step_00000020" / file)
    train(run)
    assert curve(run.output.folder) == curve(whole)


def test_skipped_checkpoints_are_printed(folder, whole, capsys):
    run = recipe_in(folder, "skipped")
    copied(whole, folder, "skipped")
    flip(run.output.folder / "checkpoints" / "step_00000020" / "__0_0.distcp")
    train(run)
    printed = capsys.readouterr().out
    assert "skipping a damaged checkpoint" in printed and "__0_0.distcp is altered" in printed
    assert "resuming from step 16" in printed


@pytest.mark.parametrize(
    ("before", "messages"), [({"commit": "other"}, ["the code is not the same"]), ({}, [])]
)
def test_a_resume_warns_of_changed_code(tmp_path, before, messages):
    assert record(tmp_path, 0) == []
    path = tmp_path / "starts.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | before) + "\n")
    assert [message[:24] for message in record(tmp_path, 5)] == messages
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 5]


def test_a_resume_names_the_packages_that_changed(tmp_path):
    record(tmp_path, 0)
    path = tmp_path / "starts.jsonl"
    now = json.loads(path.read_text())
    path.write_text(json.dumps(now | {"versions": now["versions"] | {"torch": "2.10.0"}}) + "\n")
    assert record(tmp_path, 5) == [f"torch is {version('torch')}, was 2.10.0"]
    path.write_text('{"step": 0, "com')
    assert record(tmp_path, 5) == []


def test_a_finished_run_prints_that_it_is_finished(folder, whole, capsys):
    copied(whole, folder, "finished")
    train(recipe_in(folder, "finished"))
    assert "20 steps are done already: nothing to do" in capsys.readouterr().out
    assert curve(folder / "finished") == curve(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(seed=1), "seed is 1, was 0"),
        (dict(steps=30), "steps is 30, was 20"),
        (dict(loss=dict(weighting="clip:5")), r"loss.weighting.high is 5.0, was 2.0"),
    ],
)
def test_another_recipe_is_refused_by_name(tmp_path, whole, folder, change, message):
    run = recipe_in(folder, tmp_path / "changed", **change)
    before = (copied(whole, tmp_path, "changed") / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=message):
        train(run)
    assert (tmp_path / "changed" / "metrics.jsonl").read_bytes() == before


def test_another_recipe_is_accepted_on_request(folder, whole):
    copied(whole, folder, "longer")
    train(recipe_in(folder, "longer", steps=22), accept_changes=True)
    assert len(losses(folder / "longer")) == 22 and losses(folder / "longer")[:20] == losses(whole)


def test_another_number_of_processes_is_refused(folder, whole):
    copied(whole, folder, "two")
    run = recipe_in(folder, "two", steps=20)
    assert finish(start(run, 2)) != [0, 0]
    assert "processes are 2, were 1" in output_of(run)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_its_batch(folder, whole, monkeypatch):
    run = recipe_in(folder, "infinite")
    from recipes.engine import run as engine

    make = engine.make_model
    calls = []

    def poisoned(*arguments):
        model = make(*arguments)

        def poison(module, inputs, output):
            if module.training:
                calls.append(1)
            return output * torch.nan if len(calls) == 6 else output

        model.norm.register_forward_hook(poison)
        return model

    monkeypatch.setattr(engine, "make_model", poisoned)
    where = (
        r"first at row 0, position 0 \(x = \d+, z = \d+, t = 0\.\d+, loss nan\): the output of "
        r"the network; the weight"
    )
    with pytest.raises(
        NonFiniteError, match=rf"step 5: .*non_finite_step5_rank0.safetensors: {where}"
    ):
        train(run)
    from safetensors.torch import load_file

    kept = load_file(run.output.folder / "non_finite_step5_rank0.safetensors")
    assert kept["x"].shape == kept["z"].shape == kept["mask"].shape == (8, 16) and kept[
        "t"
    ].shape == (8,)
    assert losses(run.output.folder) == losses(whole)[:5]


def test_a_folder_that_cannot_be_written_to(folder):
    run = recipe_in(folder, "x")
    blocked = folder / "file"
    blocked.write_text("in the way")
    with pytest.raises(OSError, match="cannot be written"):
        train(replace(run, output=replace(run.output, folder=blocked / "run")))


def test_a_disk_that_is_too_small(folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(
        OSError, match=r"0\.0 MB are free there, the checkpoints need \d\.\d MB more"
    ):
        train(recipe_in(folder, "small"))


def test_the_disk_of_a_resumed_run_holds_its_checkpoints_already(folder, whole, monkeypatch):
    run = recipe_in(folder, "resumed")
    one = 1_000_000
    model = torch.nn.Linear(
        500, 500, bias=False
    )  # with two moments and the average four million bytes
    saved = run.output.folder / "checkpoints" / "step_00000004"
    saved.mkdir(parents=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 5 * one))
    with pytest.raises(
        OSError, match=r"5\.0 MB are free there, the checkpoints need 16\.0 MB more"
    ):
        checkpoint.check_folder(run.output, model, averaged=True)
    (saved / "__0_0.distcp").write_bytes(bytes(12 * one))
    checkpoint.check_folder(run.output, model, averaged=True)
    (saved / "__0_0.distcp").unlink()
    with pytest.raises(
        OSError, match=r"need 8\.0 MB more"
    ):  # weights and average: what is frozen has no moments
        checkpoint.check_folder(run.output, model.requires_grad_(False), averaged=True)


def saved(folder, step, bound):
    """A checkpoint of a small model, of which only the newest and the best are kept."""
    model = torch.nn.Linear(3, 3)
    state = checkpoint.TrainingState(model, [torch.optim.AdamW(model.parameters())], None, Bound())
    return checkpoint.save(
        folder, state, checkpoint.Facts(step, *("hash",) * 4, world=1, bound=bound), ALONE, keep=1
    )


def test_the_best_checkpoint_is_the_one_whose_bound_was_measured(tmp_path):
    # the bounds are measured at steps 4 and 8; checkpoints between repeat the last one
    for step, bound in ((4, 1.0), (6, 1.0), (8, 2.0), (10, 2.0)):
        saved(tmp_path, step, bound)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == [
        "step_00000010",
        "step_00000004",
    ]


def test_a_run_that_ends_while_it_publishes_publishes_when_it_is_started_again(folder, monkeypatch):
    run = recipe_in(folder, "unpublished", steps=1)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("recipes.engine.loop.publish", killed)
        train(run)
    assert train(run)
    assert open_saved(run.output.folder).length == 16


def test_damaged_checkpoints_keep_no_place_from_new_ones(tmp_path):
    best = saved(tmp_path, 200, 1.0)
    damaged = saved(tmp_path, 350, 2.0)
    (tmp_path / "step_copy").mkdir()
    flip(damaged / "__0_0.distcp")
    assert saved(tmp_path, 300, 3.0).exists() and not damaged.exists() and best.exists()
    (tmp_path / "step_00000300" / "ddlib_manifest.json").unlink()
    assert saved(tmp_path, 310, 3.0).exists() and (tmp_path / "step_copy").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(optimizer=Optimizer(lr=3e-3, warmup=4, ema=0.9, muon=True)),
            r"state of optimizer \(optimizer\.muon",
        ),
        (
            dict(loss=dict(kind="along_order", order="left_to_right")),
            r"state of objective \(loss\.kind",
        ),
        (
            dict(model=dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, num_clusters=3)),
            "state of model",
        ),
    ],
    ids=["muon", "order", "network"],
)
def test_changes_without_saved_state_are_refused_by_name(tmp_path, folder, whole, change, message):
    run = recipe_in(folder, tmp_path / "changed", steps=22, **change)
    before = (copied(whole, tmp_path, "changed") / "recipe.yaml").read_bytes()
    with pytest.raises(
        ValueError, match=rf"step_00000020 cannot continue with the changed recipe.* {message}"
    ):
        train(run, accept_changes=True)
    assert (tmp_path / "changed" / "recipe.yaml").read_bytes() == before


def test_an_average_that_a_checkpoint_lacks_starts_at_its_weights(folder, capsys):
    run = recipe_in(folder, "unaveraged", steps=2)
    without = replace(run, optimizer=replace(run.optimizer, ema=0.0))
    train(without)
    train(replace(run, steps=3), accept_changes=True)
    assert "step_00000002 has no average of the weights: it starts at" in capsys.readouterr().out
    assert open_saved(folder / "unaveraged").recipe.optimizer.ema == 0.9
    again = Run.prepare(replace(run, steps=3), ALONE)
    resume(again, accept_changes=True)
    weights = again.network.named_parameters()
    average = again.state.average.weights
    apart = [float((average[name] - weight.detach()).abs().max()) for name, weight in weights]
    assert 0 < max(apart) < 0.02  # a step of 3e-3, not the distance to the initial weights
    train(replace(without, steps=4), accept_changes=True)  # and a saved average may be dropped


@pytest.mark.parametrize("muon", [False, True])
def test_accepted_options_of_the_optimizer_replace_those_of_the_checkpoint(folder, muon):
    run = recipe_in(folder, f"options-{muon}", steps=1)
    run = replace(run, optimizer=replace(run.optimizer, muon=muon))
    train(run)
    options = dict(weight_decay=5.0, betas=(0.5, 0.6), eps=1e-3)
    changed = replace(run, steps=2, optimizer=replace(run.optimizer, **options))
    again = Run.prepare(changed, ALONE)
    assert any("weight_decay is 5.0" in line for line in resume(again, accept_changes=True))
    assert len(again.state.optimizers) == 1 + muon
    for optimizer in again.state.optimizers:
        assert optimizer.state
        (group,) = optimizer.param_groups
        assert group["weight_decay"] == 5.0
    assert (group["betas"], group["eps"]) == ((0.5, 0.6), 1e-3)


def test_more_processes_than_documents_for_validation_are_refused_before_training(folder):
    run = recipe_in(folder, "crowd", batch=64)
    with pytest.raises(
        ValueError, match="holds 60 documents for validation, must hold at least 64, one for each"
    ):
        Run.prepare(run, World(0, 64, torch.device("cpu")))


@pytest.mark.parametrize("start", ["another run", "text"])
def test_a_run_resumes_without_the_weights_that_it_started_from(folder, whole, start, monkeypatch):
    first = copied(whole, folder, "first")
    run = recipe_in(
        folder, f"from-{start[:4]}", steps=4, start=str(first) if start == "another run" else start
    )
    train(run)
    shutil.rmtree(first)
    monkeypatch.setattr(
        "recipes.engine.run.start", lambda *arguments: pytest.fail("the checkpoint has the weights")
    )
    train(run)
    shutil.rmtree(run.output.folder)
    if start == "another run":
        with pytest.raises(
            ValueError, match="must be 'random', 'text' or the folder of a run with saved weights"
        ):
            train(run)


@pytest.mark.parametrize(("warmup", "named"), [(2, True), (1, False)])
def test_a_learning_rate_that_only_rises_is_named(folder, warmup, named, capsys):
    run = recipe_in(folder, f"warmup-{warmup}", steps=2)
    run = replace(run, optimizer=replace(run.optimizer, warmup=warmup))
    train(replace(run, output=replace(run.output, sample_every=100, validate_every=100)))
    assert ("optimizer.warmup=2: not below steps=2" in capsys.readouterr().out) is named


def test_a_batch_that_does_not_divide(folder):
    run = recipe_in(folder, "odd", hardware=Hardware(micro_batch=3, threads=1))
    with pytest.raises(
        ValueError,
        match=r"batch=8: must be a multiple of 1 processes times hardware\.micro_batch=3",
    ):
        train(run)


@pytest.mark.parametrize("process", OTHERS, ids=["mdlm", "gidd"])
def test_other_processes(folder, process):
    run = recipe_in(folder, process["kind"], process=process, steps=6)
    train(replace(run, output=replace(run.output, save_every=3)))
    assert (
        all(loss > 0 for loss in losses(run.output.folder)) and len(losses(run.output.folder)) == 6
    )
    assert open_saved(run.output.folder).process.vocab_size == 302


def test_packed_rows(folder):
    run = recipe_in(folder, "packed", steps=6)
    run = replace(
        run,
        data=replace(run.data, packed=True, length=48),
        output=replace(run.output, save_every=3),
    )
    train(run)
    made = losses(run.output.folder)
    assert len(made) == 6 and all(1 < loss < 9 for loss in made)
    run = replace(run, output=replace(run.output, folder=folder / "packed-again"))
    train(replace(run, hardware=Hardware(micro_batch=2, threads=1)))
    assert torch.allclose(
        torch.tensor(losses(folder / "packed-again")), torch.tensor(made), atol=1e-5
    )


def test_muon_goes_on_from_a_checkpoint(folder):
    run = recipe_in(folder, "muon", steps=8)
    run = replace(run, optimizer=replace(run.optimizer, muon=True))
    train(run)
    copied(folder / "muon", folder, "muon-again")
    shutil.rmtree(folder / "muon-again" / "checkpoints" / "step_00000008")
    train(replace(run, output=replace(run.output, folder=folder / "muon-again")))
    assert (
        curve(folder / "muon-again") == curve(folder / "muon") and len(losses(folder / "muon")) == 8
    )


@pytest.mark.parametrize("process", ["mdlm", "gidd:p_uniform=0.1", "hdlm:clusters=6"])
def test_a_start_from_the_text_is_lower(folder, tmp_path, process):
    for name in ("random", "text"):
        train(recipe_in(folder, tmp_path / name, process=process, steps=1, start=name))
    assert losses(tmp_path / "text")[0] < 0.9 * losses(tmp_path / "random")[0]


@pytest.mark.parametrize("mode", ["standard", "hard"])
def test_the_auxiliary_head(folder, mode):
    run = recipe_in(folder, f"auxiliary-{mode}", steps=4, loss=dict(kind="auxiliary", mode=mode))
    train(run)
    assert len(losses(run.output.folder)) == 4
    assert open_saved(run.output.folder).model.cluster_head.linear.out_features == 6


def test_outputs_are_checked():
    with pytest.raises(ValueError, match="save_every=0: must be at least 1"):
        Output(folder="x", save_every=0)
