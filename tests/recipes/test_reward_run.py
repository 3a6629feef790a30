"""Runs that maximise a reward: the reward rises, runs resume and are killed, refusals."""

import shutil
from dataclasses import replace

import pytest
import torch
from test_engine_reliability import killed_and_finished
from training_runs import curve, losses, recipe, text

from recipes.config import Hardware, Optimizer
from recipes.engine import train
from recipes.logging import read_metrics
from recipes.model_io import open_saved

REWARD = dict(kind="reward", reward="rewards_for_runs:share_of_low", group=4, sampling_steps=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reward")


def rewarded(folder, name, **changes):
    options = dict(loss=REWARD, steps=8) | changes
    return recipe(text_of(folder), folder / name, **options)


def text_of(folder):
    data = folder / "data"
    return data if data.exists() else text(data)


@pytest.fixture(scope="module")
def whole(folder):
    """The run that nothing happened to."""
    begun = recipe(text_of(folder), folder / "begun", steps=2)
    train(begun)
    run = rewarded(
        folder,
        "whole",
        loss=REWARD | dict(beta=0.1, prompt=3),
        start=str(begun.output.folder),
    )
    train(run)
    return run


@pytest.mark.parametrize("kind", ["hdlm", "gidd", "mdlm"])
def test_the_reward_rises(folder, kind):
    options = {"hdlm": dict(clusters=6, xi=0.9), "gidd": dict(p_uniform=0.2), "mdlm": {}}[kind]
    run = rewarded(
        folder,
        kind,
        process=dict(kind=kind) | options,
        loss=REWARD | dict(group=8),
        optimizer=Optimizer(lr=1e-2, warmup=4, ema=0.0),
        batch=32,
        steps=24,
    )
    train(run)
    records = [record for _, record in read_metrics(run.output.folder / "metrics.jsonl")]
    values = [record["reward"] for record in records if "reward" in record]
    assert values[0] < 0.4
    assert sum(values[-3:]) / 3 > 0.8
    assert losses(run.output.folder)[0] == pytest.approx(-values[0], abs=1e-5)


def test_it_goes_on_from_a_checkpoint_with_its_reference(folder, whole):
    again = replace(whole, output=replace(whole.output, folder=folder / "again"))
    shutil.copytree(whole.output.folder, folder / "again")
    shutil.rmtree(folder / "again" / "checkpoints" / "step_00000008")
    train(again)
    assert curve(folder / "again") == curve(whole.output.folder)


def test_killed_and_started_again_it_makes_the_same_run(folder, whole):
    killed = replace(whole, output=replace(whole.output, folder=folder / "killed"))
    assert killed_and_finished(killed, 1, 5, in_a_save=False) > 0
    assert curve(folder / "killed") == curve(whole.output.folder)


def test_a_prompt_is_that_of_its_group(folder, monkeypatch):
    from recipes.engine.objectives import reward

    seen = []
    sample = reward.dd.sample

    def watched(*arguments, **options):
        result = sample(*arguments, **options)
        if "record" in options:
            seen.append((arguments[5], result[0]))
        return result

    monkeypatch.setattr(reward.dd, "sample", watched)
    train(rewarded(folder, "prompted", loss=REWARD | dict(prompt=3), steps=2))
    assert len(seen) == 2
    for prompt, tokens in seen:
        assert prompt.shape == (8, 3)
        assert torch.equal(tokens[:, :3], prompt)
        assert (prompt.view(2, 4, 3) == prompt.view(2, 4, 3)[:, :1]).all()


def test_a_rewarded_run_is_read_without_its_reward(folder, monkeypatch):
    run = rewarded(folder, "read", steps=2)
    train(run)
    values = (run.output.folder / "recipe.yaml").read_text()
    assert "rewards_for_runs" in values
    (run.output.folder / "recipe.yaml").write_text(values.replace("rewards_for_runs", "gone"))
    assert open_saved(run.output.folder).model is not None


REFUSED = {
    "group of one": (dict(loss=REWARD | dict(group=1)), "group"),
    "group": (dict(loss=REWARD | dict(group=3)), "loss.group=3: must divide the 8 rows"),
    "prompt": (dict(loss=REWARD | dict(prompt=16)), "loss.prompt=16: must be below data.length=16"),
    "shards": (dict(hardware=Hardware(shard=True)), "hardware.shard"),
    "module": (dict(loss=REWARD | dict(reward="nowhere:f")), "No module named 'nowhere'"),
    "no function": (dict(loss=REWARD | dict(reward="rewards_for_runs:f")), "has no 'f'"),
    "not finite": (
        dict(loss=REWARD | dict(reward="rewards_for_runs:not_a_number")),
        "the reward of a sample is nan, must be finite; its tokens are",
    ),
    "too few": (
        dict(loss=REWARD | dict(reward="rewards_for_runs:too_few")),
        "returned (1,), must be a tensor of 8 rewards",
    ),
    "words": (dict(loss=REWARD | dict(reward="rewards_for_runs:words")), "returned list"),
    "raises": (
        dict(loss=REWARD | dict(reward="rewards_for_runs:fails")),
        "raised KeyError: 'no answer', for tokens of shape (8, 16)",
    ),
    "sampler": (
        dict(
            loss=REWARD | dict(sampler=dict(kind="remask")),
            process=dict(kind="gidd", p_uniform=0.2),
        ),
        "loss.sampler: Remask needs a process with levels",
    ),
    "no reference": (
        dict(loss=REWARD | dict(beta=0.1)),
        "loss.beta=0.1: not with start='random': the reference is the weights at the start",
    ),
    "no path": (
        dict(loss=REWARD | dict(sampler=dict(kind="euler"))),
        "must be one of which a path has a probability",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(folder, name):
    changes, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError)) as refusal:
        train(rewarded(folder, name.replace(" ", "-"), **changes))
    assert message in str(refusal.value)
