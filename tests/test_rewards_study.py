"""Study of rewards: its puzzles, ratios and runs at tiny sizes, and the page."""

import copy
import json

import pytest
import torch

import ddlib as dd
from studies.rewards import pages, ratios, run, training
from studies.rewards.puzzles import CLUES, GROUPS, PARTS, all_grids, part, puzzles, solved


def test_grids_are_all_valid_ones_and_parts_share_none():
    grids = all_grids()
    assert grids.shape == (288, 16)
    assert len(grids.unique(dim=0)) == 288
    assert solved(grids).all()
    assert len(torch.cat([part(name) for name in PARTS]).unique(dim=0)) == 288
    wrong = grids.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % 4
    assert not solved(wrong).any()
    assert (GROUPS.flatten().bincount() == 3).all()


def test_puzzles_have_as_many_clues_and_samples_keep_them():
    _, clues = puzzles("test", 6, torch.Generator().manual_seed(0))
    assert (clues.sum(1) == CLUES).all()
    process = training.PROCESSES["masks"]
    network = training.pretrain(process, 0, training.TINY)
    samples = training.roll_out(process, network, torch.Generator().manual_seed(0), training.TINY)
    again, given = puzzles("rewards", training.TINY.puzzles, torch.Generator().manual_seed(0))
    rows = again.repeat_interleave(training.TINY.group, 0)
    held = given.repeat_interleave(training.TINY.group, 0)
    assert torch.equal(samples.clues, held)
    assert torch.equal(samples.tokens[held], rows[held])


@pytest.mark.parametrize("name", training.PROCESSES)
def test_all_losses_have_the_gradient_of_the_reward_at_the_network_that_sampled(name):
    """At ratio 1 a loss is minus the mean advantage times the gradient of its log-probability."""
    process = training.PROCESSES[name]
    network = training.pretrain(process, 0, training.TINY).train()  # the graph of a bound is kept
    generator = torch.Generator().manual_seed(0)
    samples = training.roll_out(process, network, generator, training.TINY)
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    samples = training.Rollouts(samples.tokens, samples.clues, samples.path, rewards)
    groups = rewards.view(-1, 2)
    advantage = (groups - groups.flip(1)).flatten()
    weights = [*network.parameters()]
    for method, loss in training.METHODS.items():
        value = loss(process, network, copy.deepcopy(network), samples, 5, training.TINY)
        got = torch.autograd.grad(value, weights, allow_unused=True)
        if method == "path":
            log_prob = dd.log_prob(process, network, samples.path)
        else:
            draws = training.METHODS[method].draws
            free = ~samples.clues
            log_prob = torch.zeros(4, dtype=torch.float64)
            for draw in range(draws):
                noise = dd.KeyedGenerator(5, draw, torch.arange(4))
                estimate = dd.bound(process, network, samples.tokens, noise, given=samples.clues)
                log_prob = log_prob - estimate.total.sum(-1) / free.sum(-1) / draws
        want = torch.autograd.grad(-(advantage * log_prob).mean(), weights, allow_unused=True)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_path_ratios_agree_with_frequencies():
    known = ratios.known(ratios.KNOWN["tree, xi = 0.9"], training.TINY)
    assert known["sequences"] > 10
    assert max(abs(value) for value in known["path_errors"]) < 4


def test_a_run_continues_and_fills_the_page(tmp_path):
    run.main(["--tiny", str(tmp_path)])
    text = (tmp_path / "rewards.md").read_text()
    path = tmp_path / "results.json"
    result = json.loads(path.read_text())
    assert len(result["runs"]) == 2 * len(training.METHODS) * len(training.TINY.seeds)
    assert "masks | path | 0" in result["runs"]
    assert text.count("\n| masks | path |") == 2
    kept = result["runs"].pop("masks | path | 1")
    path.write_text(json.dumps(result))
    run.main(["--tiny", str(tmp_path)])
    again = json.loads(path.read_text())["runs"]["masks | path | 1"]
    assert {**again, "seconds": 0} == {**kept, "seconds": 0}


def test_the_page_is_that_of_the_results():
    text = pages.PAGE.read_text(encoding="utf-8")
    assert run.page_of(pages.PAGE, run.RESULTS) == text
