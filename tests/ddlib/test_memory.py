"""Noising a batch of GPT-2 size costs tens of megabytes, not the 13 GB of a distribution over
states.
"""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd

BATCH = 64
LENGTH = 512
V = 50_257
CLUSTERS = 128
SUPER = 8
MEGABYTE = 2**20


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that are alive and were not there before.

    Remembers the peak and the largest tensor.
    """

    def __init__(self):
        super().__init__()
        self.alive = {}
        self.peak = 0
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        before = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if torch.is_tensor(leaf)
        }
        for leaf in tree_leaves(out):
            if torch.is_tensor(leaf):
                storage = leaf.untyped_storage()
                self.largest = max(self.largest, leaf.numel())
                key = storage._cdata
                if storage.data_ptr() not in before and key not in self.alive:
                    self.alive[key] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, key, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return out


def parents(children, count):
    """A random map onto ``count`` clusters."""
    generator = seeded(count)
    rest = torch.randint(0, count, (children - count,), generator=generator)
    return torch.cat([torch.arange(count), rest])[torch.randperm(children, generator=generator)]


WORDS = parents(V, CLUSTERS)
ABOVE = parents(CLUSTERS, SUPER)
PROCESSES = {
    "masked": lambda: dd.presets.mdlm(V),
    "gidd": lambda: dd.presets.gidd(V, 0.2),
    "uniform": lambda: dd.processes.Uniform(V, dd.schedules.Linear()),
    "hdlm": lambda: dd.presets.hdlm(WORDS),
    "hdlm-xi": lambda: dd.presets.hdlm(WORDS, xi=0.9),
    "levels-xi": lambda: dd.presets.hdlm_levels([WORDS, ABOVE], xi=[0.9, 0.8]),
}


def test_the_recorder_distinguishes_live_and_freed_tensors():
    """Two buffers at once, then one: a recorder that misses frees or allocations would differ."""
    outside = torch.ones(MEGABYTE)
    with LiveBytes() as recorder:
        first = outside + 1
        second = first * 2
        del first
        third = second.view(2, -1)  # no new storage
        second.add_(1)
        del second, third
        fourth = outside * 3
    assert fourth.sum() == 3 * MEGABYTE
    assert recorder.peak == 2 * 4 * MEGABYTE and sum(recorder.alive.values()) == 4 * MEGABYTE
    assert recorder.largest == MEGABYTE


@pytest.mark.parametrize("source", ["torch", "keyed"])
@pytest.mark.parametrize("name", PROCESSES)
def test_sampling_noise_builds_nothing_over_states(name, source):
    process = PROCESSES[name]()
    generator = seeded()
    x = torch.randint(0, V, (BATCH, LENGTH), generator=generator)
    t = torch.rand(BATCH, generator=generator)
    noise = dd.KeyedGenerator(0, 0, torch.arange(BATCH)) if source == "keyed" else generator
    with LiveBytes() as recorder:
        z = process.sample(x, t, noise)
    assert z.shape == x.shape and bool((z != x).any()) and bool((z < process.num_states).all())
    assert x.nelement() * 8 <= recorder.peak < 50 * MEGABYTE
    assert recorder.largest <= 8 * BATCH * LENGTH  # B L levels or bits of noise, never B L S


@pytest.mark.parametrize("name", PROCESSES)
def test_the_prior_and_the_levels_of_a_step_are_as_cheap(name):
    process = PROCESSES[name]()
    with LiveBytes() as recorder:
        z = process.sample_prior((BATCH, LENGTH), seeded())
        t = torch.full((BATCH,), 0.5, dtype=F64)
        if isinstance(process, dd.processes.LevelProcess):
            process.sample_level(z, t, t / 2)
    assert z.nelement() * 8 <= recorder.peak < 50 * MEGABYTE
    assert recorder.largest <= 16 * BATCH * LENGTH


@pytest.mark.parametrize("name", ["gidd", "uniform"])
def test_a_jump_by_rates_looks_at_the_logits_of_those_that_jump(name):
    process = PROCESSES[name]()
    z = process.sample_prior((4, 64), seeded())
    logits = torch.zeros(4, 64, V)
    t = torch.full((4,), 0.5, dtype=F64)
    moves = torch.arange(64).expand(4, -1) % 16 == 0
    with LiveBytes() as recorder:
        rate = process.exit_rate(z, t, logits)
        after = process.sample_exit(logits, z, t, moves, seeded())
    assert bool((rate > 0).all()) and torch.equal(after != z, moves)
    assert V <= recorder.largest < 1.1 * moves.sum() * V  # of 256 positions 16 jump


@pytest.mark.parametrize("name", ["masked", "hdlm-xi", "levels-xi"])
def test_the_rates_of_levels_need_no_logits(name):
    process = PROCESSES[name]()
    z = process.sample_prior((BATCH, LENGTH))
    t = torch.full((BATCH,), 0.5, dtype=F64)
    with LiveBytes() as recorder:
        assert process.exit_rate(z, t).shape == z.shape
    assert recorder.largest <= BATCH * LENGTH


@pytest.mark.parametrize("name", ["masked", "hdlm"])
def test_a_loss_on_child_logits_holds_no_logit_of_every_token(name):
    """Beside the gradients of the layer and of the features it takes less than a tenth of the
    logits of all tokens.
    """
    process = PROCESSES[name]()
    tree = dd.hierarchies.Tree([WORDS])
    width = 16
    tokens = 2048
    rows = torch.cat([WORDS.argsort(stable=True), torch.arange(V, V + CLUSTERS)]).argsort()
    meaning = dd.Children(tree, rows=rows)
    x = torch.randint(0, V, (16, tokens // 16))
    t = dd.sample_times(16)
    z = process.sample(x, t)
    states = tree.num_states - 1
    hidden = torch.randn(16, tokens // 16, width).requires_grad_()
    weight = torch.zeros(states, width).requires_grad_()
    meaning.families(0), meaning.families(1)
    with LiveBytes() as recorder:
        dd.training_loss(
            process, dd.Hidden(hidden, weight), x, z, t, parameterization=meaning
        ).backward()
    gradients = 4 * (weight.numel() + hidden.numel())
    assert recorder.peak - gradients < 0.1 * 4 * tokens * V
    assert recorder.largest <= max(weight.numel(), V, tokens * CLUSTERS)


def test_a_loss_of_fields_holds_a_chunk_of_logits():
    """Text beside a label, each with its own output layer: 64 MB of logits, of which a chunk of 2
    MB is in memory.
    """
    width = 16
    masks = dd.processes.Masked(8192, dd.schedules.Linear())
    label = dd.processes.Uniform(10, dd.schedules.Linear())
    product = dd.processes.Product({"text": masks, "label": label}, [0] * 127 + [1])
    x = torch.randint(10, (16, 128), generator=seeded())
    t = torch.rand(16, generator=seeded(1))
    z = product.sample(x, t, seeded(2))
    hidden = torch.randn(16, 128, width).requires_grad_()
    weight = torch.zeros(8192 + 10, width).requires_grad_()
    bias = torch.zeros(8192 + 10).requires_grad_()
    chunk = 2**19
    with LiveBytes() as recorder:
        output = dd.Hidden(hidden, weight, bias, chunk=chunk)
        dd.training_loss(product, output, x, z, t).backward()
    gradients = 4 * (weight.numel() + bias.numel() + 2 * hidden.numel())
    assert recorder.peak - gradients < 3 * 4 * chunk
    assert recorder.largest <= chunk
    assert weight.grad[:8192].any() and weight.grad[8192:].any()
