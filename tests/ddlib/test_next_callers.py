"""Contracts of a step of a sampler with its next callers, each an expected failure until it is met.

A step is a function of states, levels, uniforms and the network's output, so each of these callers
adds a record or a leaf, and none a branch to the loop.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import F64, LEVELS

import ddlib as dd
from ddlib.samplers import Ancestral, Confidence, Remask

ROWS = 3
LENGTH = 8
STEPS = 4
PROCESS = LEVELS["levels-xi"]


def generate(network=None, sampler=None, **options):
    """Tokens of a call of ``sample`` on a tree with crossings."""
    network = network or Halves(PROCESS)
    options = {"steps": STEPS, "generator": seeded()} | options
    return dd.sample(PROCESS, network, (ROWS, LENGTH), sampler or Ancestral(), **options)


class NoHost(TorchDispatchMode):
    """Refuses operations by which the host waits for a value or a size of the device."""

    WAITS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "bincount")

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        boolean = name in ("index", "index_put_") and any(
            part is not None and part.dtype == torch.bool for part in arguments[1]
        )
        assert name not in self.WAITS and not boolean, f"a step waits for {name}"
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("sampler", [Ancestral(), Remask(0.5), Confidence()], ids=repr)
def test_a_step_of_fixed_capacity_never_waits_for_the_device(sampler):
    """All steps are one graph: calls have one shape, and no size depends on what is drawn."""
    shapes = set()
    inner = Halves(PROCESS)

    def network(z, t):
        shapes.add((z.shape, t.shape))
        return inner(z, t)

    plain = generate(sampler=sampler)
    mode = NoHost()

    def watch(k, t, z):
        if k == -1:
            mode.__enter__()
        if k == STEPS - 1:
            mode.__exit__(None, None, None)

    controls = [dd.contrib.FixedCapacity()]
    fixed = generate(network, sampler, controls=controls, on_step=watch)
    assert torch.equal(fixed, plain)
    assert len(shapes) == 1


@pytest.mark.parametrize("sampler", [Ancestral(), Remask(0.5), Confidence()], ids=repr)
def test_given_tokens_are_those_of_a_prompt_with_gaps(sampler):
    x = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % PROCESS.vocab_size
    given = torch.rand(x.shape, generator=seeded(1)) < 0.4
    prompt = torch.where(given, x, PROCESS.num_states - 1)
    want = generate(sampler=sampler, prompt=prompt)
    tokens = generate(sampler=sampler, prompt=dd.Given(x, given))
    assert torch.equal(tokens, want)
    assert (tokens == x)[given].all()


def test_two_processes_share_a_sequence():
    """A field alone is its process to the bit; each of two fields draws its own tokens."""
    uniform = dd.processes.Uniform(3, dd.schedules.Linear())
    masks = dd.processes.Masked(5, dd.schedules.Linear())
    alone = dd.processes.Product({"a": masks}, torch.zeros(LENGTH, dtype=torch.int64))
    network = lambda z, t: torch.zeros(*z.shape, 5, dtype=F64)  # noqa: E731
    draws = [
        dd.sample(process, network, (ROWS, LENGTH), steps=STEPS, generator=seeded())
        for process in (masks, alone)
    ]
    assert torch.equal(*draws)
    fields = torch.arange(LENGTH) % 2
    both = dd.processes.Product({"a": masks, "b": uniform}, fields)
    tokens = dd.sample(both, network, (64, LENGTH), steps=STEPS, generator=seeded())
    assert tokens[:, fields == 0].unique().tolist() == [0, 1, 2, 3, 4]
    assert tokens[:, fields == 1].unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("sampler", [Ancestral(), Confidence()], ids=repr)
def test_a_recorded_path_has_the_log_probability_that_the_network_gives_it(sampler):
    """One term per draw, of the distribution that it was drawn from, read again without draws."""
    tokens, path = generate(sampler=sampler, record=True)
    assert torch.equal(tokens, generate(sampler=sampler))
    terms = dd.log_prob(PROCESS, Halves(PROCESS), path, per_draw=True)
    assert torch.allclose(terms, path.log_probs)
    assert torch.allclose(terms.sum((0, 2)), dd.log_prob(PROCESS, Halves(PROCESS), path))
    moved = (path.states[1:] != path.states[:-1]).sum()
    assert int((path.log_probs != 0).sum()) == int(moved)


@pytest.mark.parametrize("sampler", [Ancestral(), Confidence()], ids=repr)
def test_a_row_with_its_length_seed_and_temperature_is_the_one_drawn_alone(sampler):
    network = Halves(PROCESS)
    plans = [
        dd.plan(
            PROCESS,
            network,
            (1, length),
            sampler,
            STEPS,
            generator=[seed],
            temperature=temperature,
        )
        for length, seed, temperature in ((8, 4, 1.0), (5, 0, 0.5), (3, 9, 0.0), (8, 1, 0.5))
    ]
    rows = dd.contrib.sample_together(plans)
    joint = network.calls
    alone = [plan.run() for plan in plans]
    assert all(map(torch.equal, rows, alone))
    assert joint < network.calls - joint
