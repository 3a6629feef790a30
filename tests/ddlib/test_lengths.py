"""Lengths that are not given: rules that lengthen and shorten a row while it is drawn."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from fixtures import LEVELS, Halves
from refusals import refuses

import ddlib as dd
from ddlib.paces import Blocks, LeftToRight, Together
from ddlib.processes import GIDD, Masked, Uniform
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Daedal,
    EndOfText,
    FirstHitting,
    Particles,
    Remask,
    RhoEOS,
    Settled,
    State,
)
from ddlib.samplers.lengths import Canvas, Length
from ddlib.samplers.runtime.context import RaggedContext
from ddlib.schedules import Linear

V, END = 5, 4
MASK = V
PROCESS = Masked(V, Linear())
PROMPT = torch.tensor([1, 0, END])
GREEDY = Confidence("probability", threshold=0.6)
SMALL = {"start": 4, "step": 3}


class Endings:
    """A network whose logits are a sum over all states, with more end tokens towards the end; it records its inputs."""

    own_times = False

    def __init__(self, seed=0, slope=0.3, after=8.0, scale=0.7):
        noise = torch.Generator().manual_seed(seed)
        self.table = scale * torch.randn(64, 64, V + 1, V, generator=noise, dtype=torch.float64)
        self.rise = slope * (torch.arange(64) - after)
        self.inputs = []

    def __call__(self, z, t):
        self.inputs.append(z.clone())
        place = torch.arange(z.shape[1])
        logits = self.table[place[:, None], place[None], z[:, None]].sum(2) / z.shape[1] ** 0.5
        logits[..., END] += self.rise[: z.shape[1]]
        return logits


def probabilities(network, z):
    """Of a row; at tokens these are certain."""
    probs = network(z[None], None)[0].softmax(-1)
    return torch.where((z < V)[:, None], torch.eye(V)[z.clamp_max(V - 1)].double(), probs)


def masks(number):
    return torch.full((number,), MASK)


def filled(z, probs, window, high):
    """The row after a step: masks of the window with high probability, or the best one; and which they were."""
    best, tokens = probs.max(-1)
    there = [i for i in window if z[i] == MASK]
    which = [i for i in there if best[i] > high] or [max(there, key=lambda i: best[i])]
    z = z.clone()
    z[which] = tokens[which]
    return z, [i for i in there if i not in which]


def moved(z, place, block):
    """The first position of the window."""
    while place < len(z) and not (z[place : place + block] == MASK).any():
        place = min(place + block, len(z))
    return place


def confidence(probs, prompt, positions):
    """In the end token, as both programs compute it."""
    ends = [float(p[END]) for p in reversed(probs[len(prompt) :]) if p.argmax() == END]
    return sum(ends[:positions]) / positions


def published_daedal(network, prompt, most, *, start, step, block, high, low, enough, expand_below, positions):
    """One row of the published program, at temperature 0."""
    size, z = start, torch.cat([prompt, masks(start)])
    while size < most and confidence(probabilities(network, z), prompt, positions) < enough:
        size = min(size + step, most)
        z = torch.cat([prompt, masks(size)])
    tail = min(size + positions // 2, most) - size
    z, place = torch.cat([z, torch.full((tail,), END)]), len(prompt)
    while place < len(z):
        probs, room = probabilities(network, z), len(z) - len(prompt) < most
        best = probs.amax(-1)
        z, others = filled(z, probs, range(place, min(place + block, len(z))), high)
        weak = [i for i in others if best[i] < low]
        if weak and room and confidence(probs, prompt, positions) < expand_below:
            at = min(weak, key=lambda i: best[i])
            z = torch.cat([z[:at], masks(step), z[at + 1 :]])[: len(prompt) + most]
        place = moved(z, place, block)
    return z


def published_rho_eos(network, prompt, most, *, start, step, block, high, density, positions, least=1, changes=64):
    """One row of the published program, at temperature 0, for an interval of densities from 0.4 to 0.6."""
    z, place, count = torch.cat([prompt, masks(start)]), len(prompt), 0
    while (z == MASK).any():
        count += 1
        frozen = len(z) - len(prompt) >= most or count > changes
        probs, there = probabilities(network, z), z == MASK
        share = Fraction(confidence(probs, prompt, positions))
        if density == "masks":
            share = Fraction(int((there & (probs.argmax(-1) == END)).sum()), int(there.sum()))
        z, _ = filled(z, probs, range(place, min(place + block, len(z))), high)
        place = moved(z, place, block)
        gap = max(Fraction(2, 5) - share, share - Fraction(3, 5), 0)
        number = 0 if frozen or not gap else step * min(2 ** (math.ceil(10 * gap) - 1), 8)
        if share < 0.5:
            z = torch.cat([z, masks(min(number, most + len(prompt) - len(z)))])
        else:
            z = z[: max(len(z) - number, len(prompt) + least)]
        place = min(place, len(z))
    return z


def shown(network):
    """What a network has seen, each time once."""
    seen = []
    for z in network.inputs:
        if not seen or not torch.equal(seen[-1], z):
            seen.append(z)
    return seen


def compare(rule, published, seed, slope, most=24, **options):
    """The row is the published one, and so is every input of the network; its lengths, call by call."""
    theirs, ours, prompt = Endings(seed, slope), Endings(seed, slope), PROMPT[: seed % 4]
    want = published(theirs, prompt, most, high=0.6, **options)
    row, size = rule(END, **options), most + len(prompt)
    found = dd.sample(PROCESS, ours, (1, size), GREEDY, 100, prompt[None], temperature=0.0, length=row)
    assert torch.equal(found[0, : len(want)], want) and (found[0, len(want) :] == END).all()
    assert len(shown(ours)) == len(shown(theirs)) and all(map(torch.equal, shown(ours), shown(theirs)))
    assert len(ours.inputs) <= len(theirs.inputs)
    return [z.shape[1] - len(prompt) for z in ours.inputs]


SLOPES = pytest.mark.parametrize("slope", [-0.3, 0.1, 0.3, 0.5])
every_block = pytest.mark.parametrize("block", [4, 64])


@every_block
@SLOPES
def test_daedal_is_the_published_loop_call_by_call(block, slope):
    options = {"start": 4, "step": 3, "low": 0.34, "enough": 0.3, "expand_below": 0.7, "positions": 5}
    lengths = [compare(Daedal, published_daedal, seed, slope, block=block, **options) for seed in range(5)]
    first, last = {-0.3: (6, 24), 0.1: (18, 24), 0.3: (15, 24), 0.5: (15, 24)}[slope]
    assert all(first <= one[-1] <= last and one == sorted(one) for one in lengths)
    if slope == 0.1:  # both stages
        assert any(one[-1] > 18 for one in lengths)


@every_block
@SLOPES
@pytest.mark.parametrize("density", ["last", "masks"])
def test_rho_eos_is_the_published_loop_call_by_call(density, block, slope):
    options = {"start": 12, "step": 2, "positions": 8, "density": density, "block": block}
    lengths = [compare(RhoEOS, published_rho_eos, seed, slope, **options) for seed in range(5)]
    changes = {(b > a) - (b < a) for one in lengths for a, b in itertools.pairwise(one)}
    assert changes == ({0, 1} if slope == -0.3 and density == "last" else {-1, 0, 1})


def test_changes_end_after_some_steps():
    options = {"start": 12, "step": 2, "positions": 8, "density": "last", "block": 64}
    free, ended = (compare(RhoEOS, published_rho_eos, 1, 0.3, **options, changes=changes) for changes in (64, 2))
    assert free[:3] == ended[:3] and free[3:] != ended[3:] and len({*ended[2:]}) == 1
