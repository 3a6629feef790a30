"""Published decoding loops of families of ``ddlib_models.hub``, written by hand, and ddlib's
samplers: same states.
"""

from itertools import pairwise

import pytest
import torch
from torch import nn

import ddlib as dd
from ddlib_models import hub

V = 7
SIZE = 8
LENGTH = 24
PROMPT = 10
MASK = V


class Table(nn.Module):
    """Output at position i from its own row and the states up to the end of its block.

    Logits at i - shift.
    """

    own_times = True

    def __init__(self, block_size: int, shift: int = 0, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.block_size = block_size
        self.shift = shift
        self.place = 3 * torch.randn(LENGTH, V, generator=generator)
        self.pair = 0.5 * torch.randn(LENGTH, V + 1, V, generator=generator)

    def forward(self, z, t):
        length = z.shape[1]
        size = self.block_size or z.shape[1]
        index = torch.arange(length)
        end = ((index // size + 1) * size).clamp_max(length) - 1
        output = self.place[:length] + self.pair[index, z].cumsum(1)[:, end]
        return torch.cat([output[:, : self.shift], output[:, : length - self.shift]], 1)


def drawn(network, decoding, steps, prompt=PROMPT, size=0, sampler=None):
    """Distinct states of a run of ddlib's sampler, one sequence, greedy."""
    states = []
    dd.sample(
        dd.presets.mdlm(V),
        network,
        (1, LENGTH),
        sampler or dd.build("samplers", decoding),
        steps=steps,
        prompt=words()[:, :prompt],
        temperature=0.0,
        pace=dd.paces.Blocks(size) if size else None,
        on_step=lambda k, t, z: states.append(z[0].tolist()),
    )
    return distinct(states, size)


def distinct(states, size):
    """States without repetitions; behind the present block they are as good as masks."""
    kept = []
    for z in states:
        first = z.index(MASK) if MASK in z else LENGTH
        end = (first // size + 1) * size if size else LENGTH
        masked = z[:end] + [MASK] * (LENGTH - len(z[:end]))
        kept += [masked] if not kept or kept[-1] != masked else []
    return kept


def words():
    return torch.randint(V, (1, LENGTH), generator=torch.Generator().manual_seed(5))


def start(prompt=PROMPT):
    z = torch.full((1, LENGTH), MASK)
    z[:, :prompt] = words()[:, :prompt]
    return z


def best(network, z):
    """The likeliest words and their probabilities, of one sequence."""
    chance = network(z, torch.zeros(1))[0].softmax(-1)
    return chance.max(-1).indices, chance.max(-1).values


def sdar(network, size, threshold):
    """``block_diffusion_generate``, low_confidence_dynamic: in each step all above the threshold,
    or the best one.
    """
    z = start()
    states = [start()[0].tolist()]
    for block in range(PROMPT // size, LENGTH // size):
        here = slice(block * size, (block + 1) * size)
        for _ in range(size + 1):
            masked = z[0, here] == MASK
            if not masked.any():
                break
            token, chance = (one[here] for one in best(network, z))
            chance = torch.where(masked, chance, -torch.inf)
            chosen = chance > threshold
            if chosen.sum() < 1:
                chosen = torch.arange(size) == chance.argmax()
            z[0, here] = torch.where(chosen, token, z[0, here])
            states.append(z[0].tolist())
    return states


PUBLISHED = {
    "sdar": (151669, 0, 0.85),
    "fast_dllm": (151665, 1, 0.9),
    "llada2": (156895, 0, 0.95),
    "nemotron_diffusion": (100, 0, 0.9),
    "rnd1": (151669, 1, None),
}
"""Id of the mask, shift and threshold of each family."""


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_numbers_they_publish(kind):
    record = hub.families()[kind]()
    (mask, shift, threshold) = PUBLISHED[kind]
    sampler = dd.build("samplers", record.decoding)
    assert (mask in record.mask, record.shift, sampler.threshold) == (True, shift, threshold)
    assert sampler.score == ("probability" if threshold else "entropy")


@pytest.mark.parametrize("kind", ["sdar", "llada2"])
@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_per_block(kind, seed):
    network = Table(SIZE, seed=seed)
    decoding = hub.families()[kind]().decoding
    threshold = dd.build("samplers", decoding).threshold
    theirs = distinct(sdar(network, SIZE, threshold), SIZE)
    ours = drawn(network, decoding, SIZE, size=SIZE)
    assert ours == theirs and MASK not in ours[-1]
    steps = [sum(a != b for a, b in zip(z, y, strict=True)) for z, y in pairwise(ours)]
    assert max(steps) > 1 and min(steps) == 1  # both of their branches
    for wrong in (
        sdar(Table(0, seed=seed), SIZE, threshold),
        sdar(network, SIZE, 1.0),
        sdar(network, SIZE // 2, 0.9),
    ):
        assert distinct(wrong, SIZE) != theirs


class SmallBlocks(dd.samplers.Confidence):
    """The first position of a block, if it is masked.

    Then the others, one small block after the other.
    """

    def __init__(self, score="probability", threshold=0.9, size=8):
        super().__init__(score, threshold=threshold)
        self.size = size

    def choose(self, score, level, least, noise=0.0):
        index = torch.arange(level.shape[1], device=level.device)
        group = torch.where(index == 0, -1, index // self.size)
        first = torch.where(level > 0, group, len(index)).amin(-1, keepdim=True)
        return super().choose(score, torch.where(group == first, level, 0), least, noise)


def fast_dllm(network, size, small, threshold):
    """``generate`` of Fast-dLLM v2: a word by the finished block, then small blocks by the
    threshold.

    The network has no shift: the loop moves its output within the block.
    """
    z = start()
    states = [start()[0].tolist()]
    for begin in range(PROMPT // size * size, LENGTH, size):
        if begin >= PROMPT:
            z[0, begin] = network(z[:, :begin], torch.zeros(1))[0, -1].argmax()
            states.append(z[0].tolist())
        for first in range(0, size, small):
            here = slice(begin + first, begin + first + small)
            while (masked := z[0, here] == MASK).any():
                logits = network(z, torch.zeros(1))[:, begin : begin + size]
                logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)[0, first : first + small]
                chance, token = logits.softmax(-1).max(-1)
                chance = torch.where(masked, chance, -torch.inf)
                chosen = chance > threshold
                chosen[chance.argmax()] = True
                z[0, here] = torch.where(chosen & masked, token, z[0, here])
                states.append(z[0].tolist())
    return states


@pytest.mark.parametrize("seed", range(3))
def test_a_token_by_the_block_before_and_small_blocks(seed):
    network = Table(SIZE, 1, seed)
    decoding = hub.families()["fast_dllm"]().decoding
    threshold = dd.build("samplers", decoding).threshold
    theirs = distinct(fast_dllm(Table(SIZE, 0, seed), SIZE, SIZE // 2, threshold), SIZE)
    sampler = SmallBlocks(threshold=threshold, size=SIZE // 2)
    ours = drawn(network, decoding, SIZE, size=SIZE, sampler=sampler)
    assert ours == theirs and MASK not in ours[-1]
    for wrong in (Table(SIZE, 0, seed), Table(0, 1, seed)):
        assert drawn(wrong, decoding, SIZE, size=SIZE, sampler=sampler) != theirs
    assert (
        drawn(network, decoding, SIZE, size=SIZE) != theirs
    )  # the threshold alone has another order


class AnotherHead(Table):
    """A table whose first position of a later block has logits of a causal table, given the
    finished blocks.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(SIZE, 0, seed)
        self.causal = Table(1, 0, seed + 9)

    def forward(self, z, t):
        own = super().forward(z, t)
        before = self.causal(z, t)
        begins = (torch.arange(z.shape[1]) % SIZE == 0) & (torch.arange(z.shape[1]) > 0)
        return torch.where(begins[:, None], torch.cat([own[:, :1], before[:, :-1]], 1), own)


def nemotron(block, causal, threshold, prompt):
    """``generate`` of Nemotron-Labs-Diffusion: a word by the causal model, then the best one and
    all up to a bound.
    """
    z = start(prompt)
    states = [start(prompt)[0].tolist()]
    for begin in range(prompt, LENGTH, SIZE):
        here = slice(begin, begin + SIZE)
        z[0, begin] = causal(z[:, :begin], torch.zeros(1))[0, -1].argmax()
        states.append(z[0].tolist())
        while (masked := z[0, here] == MASK).any():
            token, chance = (one[here] for one in best(block, z))
            chance = torch.where(masked, chance, -torch.inf)
            chosen = (chance >= threshold) | (torch.arange(SIZE) == chance.argmax())
            z[0, here] = torch.where(chosen, token, z[0, here])
            states.append(z[0].tolist())
    return states


@pytest.mark.parametrize("seed", range(3))
def test_a_token_by_the_causal_model_and_a_threshold(seed):
    network = AnotherHead(seed)
    decoding = hub.families()["nemotron_diffusion"]().decoding
    threshold = dd.build("samplers", decoding).threshold
    theirs = distinct(nemotron(Table(SIZE, 0, seed), network.causal, threshold, SIZE), SIZE)
    sampler = SmallBlocks(threshold=threshold, size=SIZE)
    assert drawn(network, decoding, SIZE, SIZE, SIZE, sampler) == theirs and MASK not in theirs[-1]
    assert drawn(Table(SIZE, 0, seed), decoding, SIZE, SIZE, SIZE, sampler) != theirs
    assert drawn(network, decoding, SIZE, SIZE, SIZE) != theirs


def rnd1(network, steps):
    """``diffusion_sample``, greedy: after each step the positions of the highest entropy stay
    masked.
    """
    z = start()
    states = [start()[0].tolist()]
    total = int((z == MASK).sum())
    for left in range(steps - 1, -1, -1):
        log_p = network(z, torch.zeros(1))[0].log_softmax(-1)
        entropy = torch.where(z[0] == MASK, -(log_p.exp() * log_p).sum(-1), -torch.inf)
        stay = torch.zeros(LENGTH, dtype=torch.bool)
        stay[entropy.topk(total * left // steps).indices] = True
        z[0] = torch.where((z[0] == MASK) & ~stay, log_p.argmax(-1), z[0])
        states.append(z[0].tolist())
    return states


@pytest.mark.parametrize("steps", [7, 14, 20])
def test_the_lowest_entropies_of_a_sequence(steps):
    network = Table(0)
    decoding = hub.families()["rnd1"]().decoding
    theirs = distinct(rnd1(network, steps), 0)
    assert drawn(network, decoding, steps) == theirs and MASK not in theirs[-1]
    assert drawn(network, "confidence:score=margin", steps) != theirs
