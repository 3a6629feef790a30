"""Runs that maximise a reward: the reward rises, runs resume and are killed, refusals."""

import shutil
from dataclasses import replace

import pytest
import rewards_for_runs
import torch
from test_engine_reliability import ALONE, killed_and_finished
from training_runs import check_resumption, curve, losses
from zoo.runs import recipe, text

import ddlib as dd
from recipes.config import Hardware, Optimizer
from recipes.engine import checkpoint, train
from recipes.engine.run import Run
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
    check_resumption(whole, again, 8, 4)


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


def test_a_reward_of_texts_takes_the_decoded_samples(folder, monkeypatch):
    """With their prompts, without special tokens; tokens of a rewarded text become frequent."""
    seen = []
    right = rewards_for_runs.share_of_e

    def watched(texts):
        seen.append(texts)
        return right(texts)

    monkeypatch.setattr(rewards_for_runs, "share_of_e", watched)
    options = REWARD | dict(reward="rewards_for_runs:share_of_e", reads="text", prompt=3, group=8)
    changes = dict(optimizer=Optimizer(lr=1e-2, warmup=4, ema=0.0), batch=32, steps=16)
    run = rewarded(folder, "texts", loss=options, **changes)
    train(run)
    records = [record for _, record in read_metrics(run.output.folder / "metrics.jsonl")]
    values = [record["reward"] for record in records if "reward" in record]
    assert sum(values[-3:]) > sum(values[:3]) + 0.1
    made = Run.prepare(run, ALONE, writes=False)
    tokenizer = made.data.tokenizer
    tokens = torch.tensor([[5, 6, made.data.eos_id, made.data.pad_id], [7, 8, 9, 10]])
    rewards = made.state.objective.rewards(tokens)
    assert seen[-1] == [tokenizer.decode([5, 6]), tokenizer.decode([7, 8, 9, 10])]
    assert torch.equal(rewards, right(seen[-1]).double())


def test_a_reward_may_write_into_its_input(folder):
    run = rewarded(folder, "writing", loss=REWARD | {"reward": "rewards_for_runs:writes"})
    made = Run.prepare(run, ALONE, writes=False)
    tokens = torch.tensor([[5, 6, 7], [100, 8, 9]])
    assert made.state.objective.rewards(tokens).tolist() == pytest.approx([1, 2 / 3])
    assert tokens.tolist() == [[5, 6, 7], [100, 8, 9]]


def test_rewards_that_are_equal_for_long_are_named_once(folder):
    run = rewarded(
        folder, "constant", loss=REWARD | dict(reward="rewards_for_runs:constant"), steps=42
    )
    with pytest.warns(UserWarning) as warned:
        train(run)
    (one,) = [str(each.message) for each in warned]
    assert "step 20: the rewards of each group were equal in the last 20 steps, now 0.25" in one


# several updates for each rollout

SEVERAL = REWARD | dict(updates_per_rollout=3, clip=0.1, prompt=3)


def prepared(run, step=0):
    """Objects of a run after some steps, and its micro-batches at the next one."""
    made = Run.prepare(run, ALONE, writes=False)
    stream = made.batches()
    for _ in range(step):
        made.step(next(stream), stop=False)
    return made, next(stream)


def test_with_one_update_the_loss_is_that_of_new_samples_to_the_bit(folder):
    """Against the calls by which each step had samples of its own."""
    run = rewarded(folder, "one", loss=REWARD | dict(prompt=3))
    made, batches = prepared(run, 2)
    objective = made.state.objective
    (noisy,) = objective.prepare(batches, 2)
    network = made.network.eval()
    prompts = batches[0].x[::4, :3].repeat_interleave(4, 0)
    tokens, path = dd.sample(
        made.process,
        network.denoiser,
        (8, 16),
        dd.samplers.Ancestral(),
        6,
        prompts,
        parameterization="cavity",
        generator=dd.KeyedGenerator(0, 2, batches[0].index + 2**60),
        record=True,
    )
    assert torch.equal(noisy.x, tokens)
    assert torch.equal(noisy.path.log_probs, path.log_probs)
    terms = dd.log_prob(made.process, network.denoiser, path, per_draw=True)
    rewards = rewards_for_runs.share_of_low(tokens)
    want = dd.reward_loss(terms, path, rewards, group=4, clip=None)
    weights = [*network.parameters()]
    network.train()
    got, _ = objective.loss(noisy, network, torch.tensor(1 / tokens.numel(), dtype=torch.float64))
    for one, other in zip(
        *(torch.autograd.grad(loss, weights, allow_unused=True) for loss in (got, want)),
        strict=True,
    ):
        assert one is None or torch.equal(one, other)
    assert "clipped" not in objective.numbers_to_log()


def test_a_rollout_serves_several_updates(folder):
    """The second update has the ratios of the present probabilities to the recorded ones."""
    run = rewarded(folder, "several", loss=SEVERAL | dict(clip=None))
    made, batches = prepared(run, 3)
    objective = made.state.objective
    (first,) = objective.prepare(batches, 3)
    made.step(batches, stop=False)
    (second,) = objective.prepare(batches, 4)
    assert second is objective._samples[0]
    assert torch.equal(second.path.log_probs, first.path.log_probs)
    network = made.network
    got, _ = objective.loss(second, network, torch.tensor(1 / 128, dtype=torch.float64))
    network.eval()
    terms = dd.log_prob(made.process, network.denoiser, second.path, per_draw=True)
    ratio = (terms - second.path.log_probs).exp()
    groups = second.rewards.view(-1, 4)
    advantage = groups - (groups.sum(1, keepdim=True) - groups) / 3
    want = -(ratio * second.path.drawn * advantage.flatten()[:, None]).sum() / len(terms[0])
    assert (ratio - 1).abs().max() > 1e-4
    weights = [*network.parameters()]
    for one, other in zip(
        *(torch.autograd.grad(loss, weights, allow_unused=True) for loss in (got, want)),
        strict=True,
    ):
        assert one is None or torch.allclose(one, other, rtol=1e-4, atol=1e-7)


def test_prompts_of_rollouts_follow_each_other(folder, monkeypatch):
    from recipes.engine.objectives import reward

    seen = []
    sample = reward.dd.sample

    def watched(*arguments, **options):
        if "record" in options:
            seen.append(arguments[5])
        return sample(*arguments, **options)

    monkeypatch.setattr(reward.dd, "sample", watched)
    train(rewarded(folder, "each", loss=REWARD | dict(prompt=3), steps=3))
    train(rewarded(folder, "third", loss=SEVERAL, steps=9))
    assert len(seen) == 6
    assert all(map(torch.equal, seen[:3], seen[3:]))


@pytest.fixture(scope="module")
def repeated(folder):
    """A run of three updates for each rollout, saved in the middle of some."""
    begun = recipe(text_of(folder), folder / "begun-repeated", steps=2)
    train(begun)
    run = rewarded(
        folder,
        "repeated",
        loss=SEVERAL | dict(beta=0.1),
        start=str(begun.output.folder),
        optimizer=Optimizer(lr=1e-2, warmup=2, ema=0.9),
        steps=10,
    )
    run = replace(run, output=replace(run.output, save_every=4, keep=3))
    train(run)
    return run


def test_the_share_of_clipped_draws_is_logged(repeated):
    records = [one for one in curve(repeated.output.folder) if one["kind"] == "train"]
    shares = [record["clipped"] for record in records]
    assert shares[0] == shares[3] == shares[6] == shares[9] == 0
    # whether a single update clips depends on the rounding of the machine
    assert max(shares[4:6]) > 0
    assert max(shares[7:9]) > 0
    assert max(shares) < 1
    rewards = [record["reward"] for record in records]
    assert rewards[3] == rewards[4] == rewards[5] != rewards[6]


@pytest.mark.parametrize("step", [4, 8])
def test_it_goes_on_in_the_middle_of_a_rollout(folder, repeated, step):
    again = replace(repeated, output=replace(repeated.output, folder=folder / f"middle-{step}"))
    shutil.copytree(repeated.output.folder, again.output.folder)
    for path in checkpoint.list_checkpoints(again.output.folder / "checkpoints"):
        if path.name > f"step_{step:08d}":
            shutil.rmtree(path)
    train(again)
    assert curve(again.output.folder) == curve(repeated.output.folder)
    one, other = (open_saved(each.output.folder).model.state_dict() for each in (again, repeated))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_killed_in_a_rollout_it_makes_the_same_run(folder, repeated):
    killed = replace(repeated, output=replace(repeated.output, folder=folder / "killed-repeated"))
    assert killed_and_finished(killed, 1, 7, in_a_save=False) > 0
    assert curve(killed.output.folder) == curve(repeated.output.folder)


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
        "the reward of a sample is nan, must be in [-1e+09, 1e+09]; its tokens are",
    ),
    "too large": (
        dict(loss=REWARD | dict(reward="rewards_for_runs:too_large")),
        "the reward of a sample is 1.0000000150474662e+30, must be in [-1e+09, 1e+09]; its tokens",
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
    "greedy": (dict(loss=REWARD | dict(temperature=0.0)), "temperature=0.0: must be positive"),
    "letters": (
        dict(loss=REWARD | dict(reads="letters")),
        "loss.reads: Input should be 'tokens' or 'text'",
    ),
    "no update": (dict(loss=REWARD | dict(updates_per_rollout=0)), "updates_per_rollout=0"),
    "clip": (dict(loss=REWARD | dict(clip=1.5)), "clip=1.5: must lie in (0, 1), or be None"),
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
