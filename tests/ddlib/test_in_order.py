"""Sampling in the order of a pace: which position comes next, within which group, and how likely
that is.
"""

import itertools

import pytest
import torch
from refusals import refused_with
from zoo.calls import seeded, trajectory
from zoo.networks import Halves
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.contrib import Checkerboard, Halton, Lanes
from ddlib.paces import Blocks, LeftToRight, Patches
from ddlib.paces.sequential import InTurn
from ddlib.samplers import InOrder

F64 = torch.float64


class Backwards(InTurn):
    """The last position first: an order of another author, in one method."""

    def turns(self, chance):
        return torch.arange(
            chance.shape[1] - 1, -1, -1, dtype=chance.dtype, device=chance.device
        ).expand_as(chance)


def steps_of(process, denoiser, sampler, length, steps=None, **options):
    """Positions that descend in each step, and the last states, of one row."""
    edges = len(process.levels) - 1
    states = trajectory(
        process, denoiser, sampler, shape=(1, length), steps=steps or edges * length, **options
    )
    level = process.level_of(states.flatten(0, 1)).view_as(states)[:, 0]
    descents = [
        (before - after).nonzero().flatten().tolist() for before, after in itertools.pairwise(level)
    ]
    return descents, states[-1, 0]


def order_of(*arguments, **options):
    return steps_of(*arguments, **options)[0]


def test_a_picture_is_drawn_rectangle_by_rectangle_each_in_raster_order():
    process = LEVELS["masked"]
    found = order_of(process, Halves(process), InOrder(Patches((4, 4), (2, 2))), 16)
    want = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert found == [[position] for patch in want for position in patch]
    quick = order_of(process, Halves(process), InOrder(Patches((4, 4), (2, 2))), 16, steps=4)
    assert quick == [sorted(patch) for patch in want]  # an even split draws a rectangle a step


@pytest.mark.parametrize("name", ["masked", "levels"])
def test_an_order_of_another_author_and_left_to_right_are_orders_of_a_tree_too(name):
    process = LEVELS[name]
    edges = len(LEVELS[name].levels) - 1
    backwards = order_of(process, Halves(process), InOrder(Backwards()), 4)
    assert backwards == [[position] for position in (3, 2, 1, 0) for _ in range(edges)]
    drawn = [
        dd.sample(process, Halves(process), (5, 4), sampler, 4 * edges, generator=seeded(3))
        for sampler in (InOrder(LeftToRight()), dd.samplers.LeftToRight())
    ]
    assert torch.equal(*drawn)


def test_within_a_group_the_surest_position_comes_first():
    process = LEVELS["masked"]
    sure = torch.tensor(
        [0.5, 0.9, 0.6, 0.8, 0.95, 0.7, 0.97, 0.99], dtype=F64
    )  # later groups are surer
    size = process.vocab_size
    probs = ((1 - sure) / (size - 1))[:, None].repeat(1, size)
    probs[:, 0] = sure

    def denoiser(z, t):
        return probs.log().expand(len(z), -1, -1)

    pace = Patches((2, 4), (2, 2))  # groups 0 1 4 5 and 2 3 6 7
    for score in ("probability", "margin", "entropy"):
        found = order_of(process, denoiser, InOrder(pace, score), 8)
        assert found == [[4], [1], [5], [0], [7], [6], [3], [2]], score
    assert InOrder(pace, "margin").scoring.reads and not InOrder(pace).scoring.reads


APART = (
    InOrder(Lanes(2), whole=True),
    InOrder(Checkerboard((2, 2)), "margin", whole=True),
    InOrder(Halton((2, 2), 2)),
)


@pytest.mark.parametrize(
    "sampler", [InOrder(Backwards()), InOrder(Blocks(2), "entropy"), *APART], ids=repr
)
def test_the_likelihood_in_an_order_sums_to_one(sampler):
    process = LEVELS["masked"]
    x = torch.cartesian_prod(*[torch.arange(process.vocab_size)] * 4)
    found = dd.likelihood(process, Halves(process), x, sampler)
    assert float(found.log_likelihood.exp().sum()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["masked", "levels"])
@pytest.mark.parametrize("whole", [False, True])
def test_as_many_steps_as_groups_and_edges_draw_a_group_of_lanes_in_each(name, whole):
    process = LEVELS[name]
    edges = len(process.levels) - 1
    want = [[k, k + 3, k + 6, k + 9] for k in range(3) for _ in range(edges)]
    assert order_of(process, Halves(process), InOrder(Lanes(4), whole=whole), 12, 3 * edges) == want


@pytest.mark.parametrize("score", [None, "margin"])
def test_whole_groups_are_drawn_whatever_the_number_of_steps_and_the_prompt(score):
    process = LEVELS["masked"]
    sampler = InOrder(Lanes(4), score, whole=True)
    want = [[k, k + 3, k + 6, k + 9] for k in range(3)]
    for steps in (4, 5, 12, 40):
        assert order_of(process, Halves(process), sampler, 12, steps) == want + [[]] * (steps - 3)
    two = order_of(process, Halves(process), sampler, 12, 2)
    assert (
        two == [[0, 1, 3, 4, 6, 9], [2, 5, 7, 8, 10, 11]] or score
    )  # fewer steps than groups: an even split
    prompt = torch.full((1, 12), process.num_states - 1)
    prompt[0, [1, 4, 7, 10, 3]] = 0
    found = order_of(process, Halves(process), sampler, 12, 9, prompt=prompt)
    assert found[:3] == [[0, 6, 9], [2, 5, 8, 11], []]


def test_the_network_is_called_once_a_group_and_edge():
    process = LEVELS["levels"]
    x = torch.zeros(3, 12, dtype=torch.int64)
    found = dd.likelihood(process, Halves(process), x, InOrder(Lanes(4), whole=True))
    assert found.calls == 3 * (len(process.levels) - 1)


@pytest.mark.parametrize(
    "sampler", [InOrder(Lanes(2), whole=True), InOrder(Checkerboard((1, 2)), "margin")], ids=repr
)
def test_orders_that_keep_positions_apart_are_verified(sampler):
    assert dd.verify(sampler).ok


def test_an_order_of_longer_sequences_alone_is_not_called_verified():
    with pytest.raises(
        ValueError,
        match=r"InOrder.* is verified on sequences of 1 and 2 tokens: .*shape is \(4, 4\)",
    ):
        dd.verify(InOrder(Halton((4, 4))))


def test_the_prompt_is_left_and_the_rest_comes_in_order():
    process = LEVELS["masked"]
    prompt = torch.full((1, 8), process.num_states - 1)
    prompt[0, [0, 3]] = torch.tensor([1, 0])
    found, last = steps_of(process, Halves(process), InOrder(Backwards()), 8, 6, prompt=prompt)
    assert found == [[7], [6], [5], [4], [2], [1]] and last[[0, 3]].tolist() == [1, 0]


def test_objects_other_than_orders_are_refused():
    def draw(pace, length=6, process=LEVELS["masked"]):
        return dd.sample(process, Halves(LEVELS["masked"]), (1, length), InOrder(pace), length)

    refused_with(draw=draw, uniform=dd.processes.Uniform(3, dd.schedules.Linear()))(r"""
        InOrder(dd.paces.Together()) | TypeError
            | pace is Together.*must be one whose positions move in turn
        InOrder(dd.paces.RandomOrder()) | ValueError
            | pace is RandomOrder.*must have a deterministic order
        InOrder("patches") | TypeError | pace is 'patches'
        InOrder(LeftToRight(), "luck") | ValueError | score is 'luck', must be one of
        draw(Patches((2, 2), (1, 1)))
            | ValueError
                | shape is \(2, 2\), must have as many pixels as a sequence has positions, 6
        draw(Lanes(4)) | ValueError | lanes is 4, must divide the length of the sequence, 6
        draw(Blocks(2), 4, uniform) | TypeError | InOrder needs a process with levels
    """)
