"""Recorded paths: their probabilities, the gradient of a reward, divergences, and refusals."""

import copy
import itertools
import math
import warnings
from dataclasses import replace

import pytest
import torch
from refusals import refuses
from zoo.block_networks import ByBlocks
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import F64

import ddlib as dd
from ddlib.paces import Blocks, RandomOrder
from ddlib.paces.sequential import InTurn
from ddlib.processes import LevelProcess, Noisy, Uniform
from ddlib.samplers import (
    Ancestral,
    Confidence,
    FirstHitting,
    InOrder,
    LeftToRight,
    Remask,
    State,
)
from ddlib.samplers.base import at
from ddlib.samplers.runtime.model import FullContext
from ddlib.samplers.trajectory import Step, Trajectory
from ddlib.utils.validation import UsageWarning

V = 3
LENGTH = 2
STEPS = 3
PROCESSES = {
    "masks": dd.presets.mdlm(V),
    "tree": dd.presets.hdlm([0, 0, 1], gamma=1.5),
    "tree-xi": dd.presets.hdlm([0, 0, 1], gamma=1.5, xi=0.9),
    "levels-xi": dd.presets.hdlm_levels([[0, 0, 1], [0, 0]], xi=[0.9, 1.0]),
    "gidd": dd.presets.gidd(V, 0.3),
    "uniform": Uniform(V, dd.schedules.Cosine()),
    "noisy": Noisy(dd.hierarchies.Tree([[0, 0, 1]]), dd.schedules.Linear(), 0.2),
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


class Table:
    """Network of a sequence of a few states, whose logits depend on all of them and on the time."""

    own_times = True

    def __init__(self, process, length=LENGTH, seed=0, dtype=F64, slope=1.0):
        self.slope = slope
        shape = (length, process.num_states, length, process.vocab_size)
        self.weight = torch.randn(shape, generator=seeded(seed), dtype=F64).to(dtype)
        self.weight.requires_grad_()

    def __call__(self, z, t):
        length = z.shape[1]
        # samplers pass times in this dtype
        t = t.to(torch.get_default_dtype())
        times = t if t.ndim == 2 else t[:, None].expand(z.shape)
        rows = self.weight[torch.arange(length), z]
        return (rows * (1 + self.slope * times[..., None, None])).sum(1)


class Backwards(InTurn):
    """The order of positions from the last to the first."""

    def turns(self, chance):
        return torch.arange(chance.shape[1]).flip(0).to(chance).expand_as(chance)


def rewards_of(tokens):
    """A reward whose value at a position depends on the others."""
    return torch.sin(2.0 * tokens[:, 0] + 3.0 * tokens[:, 1] ** 2 + 1).to(F64)


def record(process, network, rows, sampler=None, steps=STEPS, length=LENGTH, **options):
    """Tokens and path of a call of ``sample``."""
    options = {"generator": seeded(1)} | options
    return dd.sample(process, network, (rows, length), sampler, steps, record=True, **options)


def all_sequences(size, length):
    return torch.tensor(list(itertools.product(range(size), repeat=length)))


def step_matrices(process, network):
    """Prior (N,) and matrices (N, N) of the steps of ``Ancestral``, from sequence to sequence."""
    z = all_sequences(process.num_states, LENGTH)
    times = torch.linspace(1, 0, STEPS + 1, dtype=F64)
    start = torch.ones(len(z), dtype=F64)
    for i in range(LENGTH):
        start = start * process.prior()[z[:, i]]
    matrices = [
        Ancestral().kernel(process, network, z, t.expand(len(z)), s.expand(len(z)))
        for t, s in itertools.pairwise(times)
    ]
    return z, start, matrices


def expected_reward(process, network):
    """Mean reward of ``Ancestral``, summed over all sequences of all times."""
    z, chances, matrices = step_matrices(process, network)
    for matrix in matrices:
        chances = chances @ matrix
    return (chances * rewards_of(z)).sum()


def whole_trajectory(process, network):
    """One trajectory with a row for each path of positive probability, and their probabilities."""
    z, start, matrices = step_matrices(process, network)
    paths = torch.arange(len(z))[start > 0][:, None]
    chances = start[paths[:, 0]]
    for matrix in matrices:
        chances = (chances[:, None] * matrix[paths[:, -1]]).detach()
        rows, after = (chances > 0).nonzero().unbind(1)
        paths = torch.cat([paths[rows], after[:, None]], 1)
        chances = chances[rows, after]
    states = z[paths]
    times = torch.linspace(1, 0, STEPS + 1, dtype=F64)
    call = dd.plan(process, network, (len(paths), LENGTH), steps=STEPS)
    steps = []
    for k in range(STEPS):
        drawn = torch.ones_like(states[:, k], dtype=torch.bool)
        if isinstance(process, LevelProcess):
            drawn = process.level_of(states[:, k + 1]) < process.level_of(states[:, k])
        context = FullContext()
        t, s = (times[i].expand(len(paths)) for i in (k, k + 1))
        steps.append(
            Step(context, states[:, k], t, s, states[:, k + 1], drawn, False, float(times[k]))
        )
    log_probs = torch.zeros(STEPS, len(paths), LENGTH, dtype=F64)
    return Trajectory(call, tuple(steps), log_probs), chances, states[:, -1]


@every_process
def test_a_path_has_its_probability_times_that_of_its_levels(process):
    """Summed over the states with one level, the posterior of a step does not read the network."""
    network = Table(process)
    trajectory, chances, _ = whole_trajectory(process, network)
    total = dd.log_prob(process, network, trajectory)
    for step in trajectory.steps if isinstance(process, LevelProcess) else ():
        probs = process.posterior(network(step.z, step.t).softmax(-1), step.z, step.t, step.s)
        levels = process.level_of(torch.arange(process.num_states)[None])[0]
        same = levels == process.level_of(step.after)[..., None]
        total = total + (probs * same).sum(-1).log().sum(-1)
    start = process.prior()[trajectory.steps[0].z].log().sum(-1)
    assert torch.allclose((total + start).exp(), chances, rtol=1e-9, atol=1e-12)
    assert float(chances.sum()) == pytest.approx(1, abs=1e-9)


@every_process
def test_the_mean_gradient_is_that_of_the_enumerated_reward(process):
    network = Table(process)
    (want,) = torch.autograd.grad(expected_reward(process, network), network.weight)
    trajectory, chances, tokens = whole_trajectory(process, network)
    weights = chances * (rewards_of(tokens) - 0.3)  # a constant baseline
    score = (weights * dd.log_prob(process, network, trajectory)).sum()
    (got,) = torch.autograd.grad(score, network.weight)
    assert torch.allclose(got, want, atol=1e-10)
    assert want.abs().max() > 1e-3


@every_process
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_recorded_terms_are_those_of_the_network_again(process, dtype):
    network = Table(process, dtype=dtype)
    samplers = [Ancestral()]
    if isinstance(process, LevelProcess):
        samplers += [
            Ancestral(force_transition=True),
            FirstHitting(),
            Confidence(),
            Confidence(threshold=0.4),
            LeftToRight(),
            Remask(0.5),
            Remask(0.5, "loop"),
        ]
    for sampler in samplers:
        tokens, path = record(process, network, 64, sampler)
        same = dd.sample(process, network, (64, LENGTH), sampler, STEPS, generator=seeded(1))
        terms = dd.log_prob(process, network, path, per_draw=True)
        assert torch.equal(tokens, same)
        assert torch.equal(tokens, path.states[-1])
        assert torch.allclose(terms, path.log_probs, atol=1e-5 if dtype == torch.float32 else 1e-12)
        assert terms.isfinite().all()
        assert not terms[~path.drawn].any()
        assert terms.requires_grad
        assert torch.allclose(dd.log_prob(process, network, path), terms.sum((0, 2)))


def test_recording_calls_a_network_without_levels_once_a_step():
    calls = []
    network = Table(PROCESSES["gidd"])

    def counted(z, t):
        calls.append(len(z))
        return network(z, t)

    record(PROCESSES["gidd"], counted, 8)
    assert len(calls) == STEPS


def test_recording_adds_no_network_call():
    process = dd.presets.hdlm([0, 0, 1, 1, 2, 3], xi=0.5)
    for sampler in (Ancestral(), Confidence(), FirstHitting()):
        plain = Halves(process)
        dd.sample(process, plain, (8, 6), sampler, 4, generator=seeded())
        recorded = Halves(process)
        _, path = record(process, recorded, 8, sampler, 4, 6, generator=seeded())
        assert recorded.calls == plain.calls
        again = Halves(process)
        dd.log_prob(process, again, path)
        assert (again.calls, again.sequences) == (plain.calls, plain.sequences)


@pytest.mark.parametrize("kind", ["tree-xi", "gidd"])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_and_truncation_are_part_of_the_distribution(kind, temperature):
    """Summed over the first draws from masks, frequencies are the recorded probabilities."""
    process = PROCESSES[kind]
    network = Table(process)
    options = {"temperature": temperature, "controls": [dd.controls.Truncation(top_k=2)]}
    sampler = LeftToRight() if kind == "tree-xi" else Ancestral()
    tokens, path = record(process, network, 20_000, sampler, 1, **options)
    chances = path.log_probs.sum((0, 2)).exp().detach()
    for value in tokens.unique(dim=0):
        rows = (tokens == value).all(1)
        chance = float(chances[rows][0])
        error = math.sqrt(chance * (1 - chance) / len(tokens))
        assert torch.allclose(chances[rows], chances[rows][0])
        assert abs(float(rows.to(F64).mean()) - chance) < 4 * error + 1e-9


@pytest.mark.parametrize("pace", [Blocks(2), RandomOrder()], ids=repr)
@pytest.mark.parametrize("kind", ["masks", "tree-xi", "gidd"])
def test_paths_by_blocks_and_with_times_per_position(kind, pace):
    process = PROCESSES[kind]
    network = Table(process, 4)
    tokens, path = record(process, network, 16, steps=4, length=4, pace=pace)
    terms = dd.log_prob(process, network, path, per_draw=True)
    assert torch.allclose(terms, path.log_probs, atol=1e-12)
    assert torch.equal(path.states[-1], tokens)
    if isinstance(process, LevelProcess):
        moved = process.level_of(path.steps[-1].z) > 0
        assert torch.equal(path.steps[-1].drawn, moved)
        assert (path.drawn.sum(0) >= 1).all()


def test_cached_blocks_are_read_again_without_the_cache():
    process = PROCESSES["masks"]
    network = ByBlocks(process.num_states, V, 2)
    _, path = record(process, network, 4, steps=3, length=6, pace=Blocks(2))
    assert network.prefilled
    terms = dd.log_prob(process, network, path, per_draw=True)
    assert torch.allclose(terms, path.log_probs, atol=1e-10)


def test_a_prompt_and_an_ended_sequence_have_no_terms():
    process = PROCESSES["masks"]
    network = Table(process, 4)
    prompt = torch.tensor([1, 2])
    ends = [dd.controls.EndOfText(1)]
    tokens, path = record(process, network, 64, LeftToRight(), 4, 4, prompt=prompt, controls=ends)
    assert not path.drawn[:, :, :2].any()
    ended = tokens[:, 2] == 1
    assert ended.any()
    assert not path.log_probs[:, ended, 3].any()
    assert torch.allclose(dd.log_prob(process, network, path, per_draw=True), path.log_probs)


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("masks", FirstHitting()),
        ("masks", Confidence()),
        ("tree", Confidence()),
        ("levels-xi", LeftToRight()),
    ],
)
def test_gradients_of_samplers_from_jump_to_jump(kind, sampler):
    """The derivative along a direction against differences of the exact likelihood; FirstHitting
    with a step per jump is the mean over both orders.
    """
    process = PROCESSES["tree" if kind == "levels-xi" else kind]
    steps = LENGTH * (len(process.levels) - 1)
    x = all_sequences(V, LENGTH)
    orders = [sampler]
    if isinstance(sampler, FirstHitting):
        orders = [LeftToRight(), InOrder(Backwards())]

    def mean_reward(network):
        chances = [dd.likelihood(process, network, x, order).log_likelihood for order in orders]
        return float((torch.stack(chances).exp().mean(0) * rewards_of(x)).sum())

    network = Table(process, slope=0.0)
    direction = torch.randn(network.weight.shape, generator=seeded(3), dtype=F64)
    values = []
    for sign in (1, -1):
        moved = Table(process, slope=0.0)
        moved.weight = network.weight.detach() + sign * 1e-5 * direction
        values.append(mean_reward(moved))
    want = (values[0] - values[1]) / 2e-5
    estimates = []
    for seed in range(20):
        tokens, path = record(process, network, 2000, sampler, steps, generator=seeded(seed))
        log_probs = dd.log_prob(process, network, path, per_draw=True)
        loss = dd.reward_loss(log_probs, path, rewards_of(tokens), group=4)
        (gradient,) = torch.autograd.grad(loss, network.weight)
        estimates.append(-float((gradient * direction).sum()))
    estimates = torch.tensor(estimates, dtype=F64)
    error = float(estimates.std()) / math.sqrt(len(estimates))
    assert abs(float(estimates.mean()) - want) < 4 * error
    assert abs(want) > 6 * error  # else a gradient of 0 would pass


@pytest.mark.parametrize("kind", ["masks", "tree-xi", "gidd"])
def test_a_second_update_has_the_weights_of_the_behaviour(kind):
    """Paths of other weights: the mean gradient without clipping is the enumerated one in which
    each draw has the ratio of its probabilities; without ratios it is another.
    """
    process = PROCESSES[kind]
    behaviour, network = Table(process), Table(process)
    noise = torch.randn(network.weight.shape, generator=seeded(6), dtype=F64)
    network.weight = (network.weight.detach() + noise).requires_grad_()
    whole, chances, tokens = whole_trajectory(process, behaviour)
    terms = dd.log_prob(process, network, whole, per_draw=True)
    ratios = (terms - dd.log_prob(process, behaviour, whole, per_draw=True)).exp()
    means = (chances * rewards_of(tokens) * (ratios * whole.drawn).sum((0, 2))).sum()
    (want,) = torch.autograd.grad(means, network.weight)
    direction = want / want.norm()
    right, wrong = [], []
    for seed in range(20):
        with torch.no_grad():
            tokens, path = record(process, behaviour, 2000, generator=seeded(seed))
        terms = dd.log_prob(process, network, path, per_draw=True)
        here = replace(path, log_probs=terms.detach())
        for estimates, one in ((right, path), (wrong, here)):
            loss = dd.reward_loss(terms, one, rewards_of(tokens), group=4, clip=None)
            (gradient,) = torch.autograd.grad(loss, network.weight, retain_graph=True)
            estimates.append(-float((gradient * direction).sum()))
    right, wrong = (torch.tensor(estimates, dtype=F64) for estimates in (right, wrong))
    error = float(right.std()) / math.sqrt(len(right))
    assert abs(float(right.mean() - want.norm())) < 4 * error
    assert abs(float(wrong.mean() - want.norm())) > 6 * error


TWO_EDGES = dd.presets.hdlm([0, 0, 1, 1])


class Logits:
    """Network of one token, whose logits depend on its state."""

    def __init__(self, seed):
        shape = (TWO_EDGES.num_states, 4)
        self.weight = torch.randn(shape, generator=seeded(seed), dtype=F64).requires_grad_()

    def __call__(self, z, t):
        return self.weight[z]


def chances_of_draws(network):
    """Probabilities of clusters (2,), and of tokens given their cluster (2, 2)."""
    top = network.weight[-1].softmax(-1).view(2, 2).sum(1)
    below = torch.stack([network.weight[4 + c].softmax(-1)[2 * c : 2 * c + 2] for c in (0, 1)])
    return top, below / below.sum(1, keepdim=True)


def kl_of(p, q):
    return (p * (p / q).log()).sum(-1)


def test_later_divergences_belong_to_the_return_of_a_draw():
    """The gradient of E[r] - beta KL of paths, enumerated; without the later part it is another."""
    beta = 0.7
    reward = torch.tensor([0.1, -0.4, 1.0, 0.3], dtype=F64)
    network, reference = Logits(1), Logits(2)
    top, below = chances_of_draws(network)
    top_base, below_base = (part.detach() for part in chances_of_draws(reference))
    divergence = kl_of(top, top_base) + (top * kl_of(below, below_base)).sum()
    value = ((top[:, None] * below).flatten() * reward).sum() - beta * divergence
    (want,) = torch.autograd.grad(value, network.weight)
    right, wrong = [], []
    for seed in range(20):
        tokens, path = record(TWO_EDGES, network, 4000, LeftToRight(), 2, 1, generator=seeded(seed))
        terms = dd.log_prob(TWO_EDGES, network, path, per_draw=True)
        kl = dd.path_kl(TWO_EDGES, network, reference, path)
        values = reward[tokens[:, 0]]
        loss = dd.reward_loss(terms, path, values, group=4, beta=beta, kl=kl)
        right.append(-torch.autograd.grad(loss, network.weight, retain_graph=True)[0])
        loss = dd.reward_loss(terms, path, values, group=4) + beta * kl.sum(0).mean()
        wrong.append(-torch.autograd.grad(loss, network.weight)[0])
    assert float(kl.detach().sum(0).mean()) == pytest.approx(float(divergence.detach()), abs=0.05)
    right, wrong = torch.stack(right), torch.stack(wrong)
    error = right.std(0) / math.sqrt(len(right))
    assert ((right.mean(0) - want).abs() <= 4.5 * error + 1e-9).all()
    assert ((wrong.mean(0) - want).abs() > 6 * error).any()


def test_the_optimum_with_one_draw_a_step():
    """Ascent along the enumerated gradient ends where no path objective is larger."""
    beta = 0.5
    reward = torch.tensor([0.0, -1.0, -0.5, 0.8], dtype=F64)
    network, reference = Logits(3), Logits(4)
    optimizer = torch.optim.Adam([network.weight], 0.05)
    for step in range(150):
        tokens, path = record(TWO_EDGES, network, 2000, LeftToRight(), 2, 1, generator=seeded(step))
        terms = dd.log_prob(TWO_EDGES, network, path, per_draw=True)
        kl = dd.path_kl(TWO_EDGES, network, reference, path)
        loss = dd.reward_loss(terms, path, reward[tokens[:, 0]], group=4, beta=beta, kl=kl)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    top, below = chances_of_draws(network)
    top_base, below_base = chances_of_draws(reference)
    tilted = (top_base[:, None] * below_base).flatten() * (reward / beta).exp()
    want = tilted / tilted.sum()
    assert torch.allclose((top[:, None] * below).flatten(), want, atol=0.02)


@pytest.mark.parametrize("force", [False, True])
def test_divergences_of_networks_whose_heads_order_the_states_differently(force):
    """A head of children lists those of one parent, token logits all tokens."""
    process = dd.presets.hdlm([1, 0, 1, 0])
    children = torch.tensor([1.0, -1.0, 0.3, -0.7, 0.5, -0.5], dtype=F64)
    tokens = dd.token_logits(process.hierarchy, children)
    head = Rows(children, torch.tensor([3, 2, 1, 0, 5, 4]), process.hierarchy)

    def whole(z, t):
        return tokens.expand(*z.shape, 4)

    whole.parameterization = "cavity"
    sampler = Ancestral(force)
    for one, other in itertools.permutations([head, whole]):
        _, path = record(process, one, 16, sampler, 4, 3)
        assert dd.path_kl(process, one, other, path).abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["tree-xi", "gidd"])
def test_divergences_are_means_of_log_ratios(kind):
    process = PROCESSES[kind]
    network, reference = Table(process), Table(process, seed=5)
    trajectory, chances, _ = whole_trajectory(process, network)
    kl = dd.path_kl(process, network, reference, trajectory)
    ratio = dd.log_prob(process, network, trajectory) - dd.log_prob(process, reference, trajectory)
    assert (kl >= -1e-12).all()
    assert torch.allclose((chances * kl.sum(0)).sum(), (chances * ratio).sum(), atol=1e-9)
    with pytest.warns(UsageWarning, match="reference has the parameters of the denoiser"):
        assert not dd.path_kl(process, network, network, trajectory).abs().gt(1e-12).any()
    kl.sum().backward()
    assert network.weight.grad.abs().sum() > 0
    assert reference.weight.grad is None


def test_chosen_steps_estimate_the_sum_and_its_gradient():
    process = PROCESSES["tree-xi"]
    network = Table(process)
    _, path = record(process, network, 4)
    whole = dd.log_prob(process, network, path)
    number = len(path.steps)
    parts = [dd.log_prob(process, network, path, 1, generator=seeded(seed)) for seed in range(60)]
    terms = dd.log_prob(process, network, path, per_draw=True)[:, 0].sum(-1).detach()
    assert {float(part.detach()[0]) for part in parts} == {number * float(term) for term in terms}
    assert torch.allclose(dd.log_prob(process, network, path, number), whole)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_its_formula(normalize):
    generator = seeded(4)
    new, old = (torch.randn(3, 4, 2, generator=generator, dtype=F64) / 4 for _ in range(2))
    gidd = PROCESSES["gidd"]  # all positions are drawn
    path = replace(record(gidd, Table(gidd), 4)[1], log_probs=old)
    new.requires_grad_()
    rewards = torch.tensor([1.0, 0.0, 0.25, 2.0], dtype=F64)
    kl = torch.rand(3, 4, generator=generator, dtype=F64).requires_grad_()
    want = 0.0
    divergence = kl
    kl = kl.detach()
    returns = [float(rewards[i] - 0.3 * kl[:, i].sum()) for i in range(4)]
    for i in range(4):
        others = [returns[j] for j in range(4) if j // 2 == i // 2 and (normalize or j != i)]
        center = sum(others) / len(others)
        scale = float(torch.tensor(others).std()) if normalize else 1.0
        for k in range(3):
            advantage = float(rewards[i] - 0.3 * kl[k + 1 :, i].sum() - center) / scale
            for place in range(2):
                ratio = math.exp(float((new - old)[k, i, place].detach()))
                limited = min(max(ratio, 0.8), 1.2)
                want -= min(ratio * advantage, limited * advantage) - advantage
        want += 0.3 * float(kl[:, i].sum())
    got = dd.reward_loss(new, path, rewards, group=2, beta=0.3, kl=divergence, normalize=normalize)
    assert float(got.detach()) == pytest.approx(want / 4, rel=1e-6)


def test_bounds_at_equal_noise():
    process = PROCESSES["tree-xi"]
    network, reference = Table(process), Table(process, seed=5)
    x = all_sequences(V, LENGTH)
    ratio = dd.bound_log_ratio(process, network, reference, x, draws=3, seed=2)
    assert ratio.requires_grad
    with pytest.warns(UsageWarning, match="reference has the parameters of the denoiser"):
        assert not dd.bound_log_ratio(process, network, network, x, seed=0).any()
    swapped = dd.bound_log_ratio(process, reference, network, x, draws=3, seed=2)
    assert torch.allclose(ratio, -swapped)
    loss = dd.preference_loss(ratio[:4], ratio[4:8], 0.5)
    want = -torch.sigmoid(0.5 * (ratio[:4] - ratio[4:8])).log().mean()
    assert torch.allclose(loss, want)


def enumerated_bound(network, x, given):
    """Bound of -log p(x | given tokens) of masks for a network without time, over all sets of
    masked positions.
    """
    free = (~given).nonzero()[:, 0].tolist()
    total = torch.zeros((), dtype=F64)
    for size in range(1, len(free) + 1):
        weight = math.factorial(size - 1) * math.factorial(len(free) - size)
        for masked in itertools.combinations(free, size):
            places = torch.tensor(masked)
            z = x.clone()
            z[places] = V
            nats = -network(z[None], torch.zeros(1))[0].log_softmax(-1)
            total = total + weight * nats[places, x[places]].sum() / math.factorial(len(free))
    return total


def test_the_mean_ratio_of_bounds_is_the_enumerated_one():
    """With a prompt, which is not in the ratio."""
    process = PROCESSES["masks"]
    network, reference = Table(process, 4, slope=0.0), Table(process, 4, seed=5, slope=0.0)
    x = torch.tensor([2, 0, 1, 1])
    given = torch.tensor([True, False, False, False])
    want, whole = (
        float((enumerated_bound(reference, x, part) - enumerated_bound(network, x, part)).detach())
        for part in (given, given & False)
    )
    rows = x.expand(32768, 4)
    options = {"given": given.expand(32768, 4), "density": process.time_density(4)}
    draws = dd.bound_log_ratio(process, network, reference, rows, seed=3, **options).detach()
    error = float(draws.std()) / math.sqrt(len(draws))
    assert abs(float(draws.mean()) - want) < 4 * error
    assert abs(whole - want) > 10 * error


def test_answers_at_one_position_share_their_noise():
    process = PROCESSES["tree-xi"]
    networks = Table(process), Table(process, seed=5)
    x = all_sequences(V, LENGTH)
    index = torch.arange(100, 100 + len(x))
    whole = dd.bound_log_ratio(process, *networks, x, index=index, seed=2, draws=2)
    part = dd.bound_log_ratio(process, *networks, x[3:5], index=index[3:5], seed=2, draws=2)
    assert torch.equal(whole[3:5], part)
    assert not torch.equal(whole, dd.bound_log_ratio(process, *networks, x, seed=2, draws=2))
    density = process.time_density(LENGTH)
    other = dd.bound_log_ratio(process, *networks, x, index=index, seed=2, density=density)
    assert other.isfinite().all()
    assert not torch.allclose(other, whole)


MASKS = PROCESSES["masks"]
GIDD = PROCESSES["gidd"]
SHAPE = (2, 2)


def uniform(z, t):
    return torch.zeros(*z.shape, V)


def recorded(process=MASKS, *rest, **options):
    return dd.sample(process, uniform, SHAPE, *rest, record=True, **options)


FIELDS = dd.processes.Product({"a": PROCESSES["tree"], "b": PROCESSES["gidd"]}, ["a", "b"])


class Rows(torch.nn.Module):
    """A network of child logits that are the rows of an output layer in another order."""

    def __init__(self, children, rows, hierarchy):
        super().__init__()
        self.weight = torch.zeros(len(children), 1, dtype=F64)
        self.weight[rows, 0] = children
        self.rows = rows
        self.tree = (torch.tensor([1, 0, 1, 0]),)
        self.parameterization = dd.Children(hierarchy)

    def features(self, z, t):
        return torch.ones(*z.shape, 1, dtype=F64)

    def output_weights(self):
        return self.weight, None

    def siblings(self):
        return self.weight, None, self.rows

    def forward(self, z, t):
        return self.weight[self.rows, 0].expand(*z.shape, -1)


def path_of(process=MASKS):
    return recorded(process, None, 2)[1]


ZERO = torch.zeros(2, 4, 2, dtype=F64).requires_grad_()
PATH = dd.sample(GIDD, uniform, (4, 2), steps=2, record=True)[1]
MASKED_PATH = dd.sample(MASKS, uniform, (4, 2), LeftToRight(), 2, record=True)[1]
R = torch.ones(4)
NAN = torch.tensor([0.0, 0.0, math.nan, 0.0])
KL = torch.zeros(2, 4, dtype=F64).requires_grad_()
ONE = torch.zeros(1, 2, dtype=torch.int64)


class Replacing(Ancestral):
    """A sampler that replaces a token after it is drawn, and inherits the guarantee."""

    def step(self, run, state, k):
        after = super().step(run, state, k)
        return after._replace(z=torch.where(after.z == 1, 2, after.z))


class Twice(Ancestral):
    """A sampler of two moves in a step, that inherits the guarantee."""

    def step(self, run, state, k):
        middle = self.back(run, state.z, at(run, k), (at(run, k) + at(run, k + 1)) / 2)
        again = torch.where(torch.rand(middle.shape) < 0.5, run.process.num_states - 1, middle)
        return State(self.back(run, again, at(run, k), at(run, k + 1)), at(run, k + 1))


@pytest.mark.parametrize("process", [MASKS, GIDD], ids=["masks", "gidd"])
def test_a_sampler_that_draws_twice_in_a_step_is_refused(process):
    with pytest.raises(TypeError, match=r"twice in one step|other states than it draws"):
        dd.sample(process, uniform, (64, 4), Twice(), 2, record=True)


class Changing(Ancestral):
    """A sampler that draws given other states than those before the step."""

    def step(self, run, state, k):
        return super().step(run, state._replace(z=torch.full_like(state.z, 2)), k)


@pytest.mark.parametrize("process", [GIDD, PROCESSES["noisy"]], ids=repr)
def test_a_sampler_that_draws_given_other_states_is_refused(process):
    with pytest.raises(TypeError, match="draws given states that it has changed"):
        dd.sample(process, uniform, (64, 2), Changing(), 2, record=True)


@pytest.mark.parametrize("process", [MASKS, GIDD], ids=["masks", "gidd"])
def test_a_sampler_that_changes_what_it_draws_is_refused(process):
    with pytest.raises(TypeError, match="returns other states than it draws"):
        dd.sample(process, uniform, (64, 2), Replacing(), 4, record=True)


@pytest.mark.parametrize("process", [MASKS, GIDD, PROCESSES["noisy"]], ids=repr)
def test_draws_that_are_impossible_now_have_finite_gradients(process):
    """A ratio of 0 after a step that makes a recorded draw impossible, in float32."""
    weight = torch.zeros(V, requires_grad=True)

    def network(z, t):
        return weight.expand(*z.shape, V)

    tokens, path = record(process, network, 64)
    weight.data[0] = -200.0
    terms = dd.log_prob(process, network, path, per_draw=True)
    loss = dd.reward_loss(terms, path, (tokens == 0).double().sum(1), group=4)
    loss.backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["masks", "gidd", "uniform"])
def test_the_last_states_are_the_tokens_after_a_prompt(kind):
    process = PROCESSES[kind]
    tokens, path = record(process, Table(process), 64, prompt=torch.tensor([1]))
    assert torch.equal(path.states[-1], tokens)


def test_the_meaning_of_the_logits_is_that_of_the_call():
    network = Table(GIDD)
    _, path = record(GIDD, network, 4, parameterization="posterior")
    assert torch.allclose(dd.log_prob(GIDD, network, path, per_draw=True), path.log_probs)


def test_a_sequence_that_is_all_prompt_has_an_empty_path():
    tokens, path = record(MASKS, Table(MASKS), 3, prompt=torch.tensor([1, 2]))
    assert path.log_probs.shape == (0, 3, 2)
    assert torch.equal(path.states, tokens[None])
    assert not dd.log_prob(MASKS, Table(MASKS), path).any()
    assert dd.path_kl(MASKS, Table(MASKS), Table(MASKS), path).shape == (0, 3)


def test_a_path_of_inference_mode_has_gradients():
    network = Table(MASKS)
    with torch.inference_mode():
        _, path = record(MASKS, network, 4)
    dd.log_prob(MASKS, network, path).sum().backward()
    assert network.weight.grad.isfinite().all()


def test_the_rows_of_a_group_have_one_prompt():
    """Prompts that are repeated as a whole stand in other groups than ``repeat_interleave``'s."""
    prompts = torch.tensor([[1], [2]])
    network = Table(MASKS)
    for rows, right in ((prompts.repeat_interleave(2, 0), True), (prompts.repeat(2, 1), False)):
        _, path = record(MASKS, network, 4, prompt=rows)
        log_probs = dd.log_prob(MASKS, network, path, per_draw=True)
        rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])
        if right:
            assert dd.reward_loss(log_probs, path, rewards, group=2).isfinite()
            continue
        with pytest.raises(ValueError, match="rows 0 to 1 have several prompts; must be one"):
            dd.reward_loss(log_probs, path, rewards, group=2)


class Jitter(dd.controls.Control):
    """Noise on log-probabilities that forgets what it was."""

    def sharpen(self, t):
        return lambda log_probs: log_probs + torch.rand_like(log_probs) * (t < 0.5)


test_refusals = refuses(
    """
    dd.sample(MASKS, uniform, SHAPE, record=1) | TypeError | record is 1, must be True or False
    recorded(GIDD, dd.samplers.Euler()) | TypeError | record is True with Euler.* no probability
    recorded(MASKS, Remask(0.5, 'confidence')) | TypeError | record is True with Remask
    recorded(MASKS, Confidence(temperature=1.0)) | TypeError | an order without noise
    recorded(MASKS, Confidence(edit=0.9)) | TypeError | record is True with Confidence
    recorded(MASKS, controls=[dd.contrib.Cache('prefix')], pace=Blocks(1)) | TypeError | .
    recorded(MASKS, LeftToRight(), controls=[dd.controls.Settled(0.1)]) | TypeError |
        record is True with Settled
    recorded(MASKS, controls=[Jitter()]) | TypeError | record is True with Jitter.*no probability
    recorded(GIDD, Ancestral(True)) | TypeError | has no levels
    recorded(FIELDS, temperature=0.5) | TypeError | temperature or truncation where a field has lev
    dd.log_prob(MASKS, uniform, None) | TypeError | trajectory is a NoneType, must be the second
    dd.log_prob(GIDD, uniform, path_of()) | ValueError | trajectory is of Masked.*process is GIDD
    dd.log_prob(uniform, MASKS, path_of()) | TypeError | process
    dd.log_prob(MASKS, uniform, path_of(), 3) | ValueError | steps is 3, must be at most the
    dd.log_prob(MASKS, uniform, path_of(), 0) | ValueError | steps is 0, must be at least 1
    dd.log_prob(MASKS, uniform, path_of(), 1, per_draw=True) | ValueError | steps is 1 with per_dr
    dd.reward_loss(ZERO, PATH, [1.0], group=2) | TypeError | rewards has type list, must be
    dd.reward_loss(ZERO, PATH, R.long(), group=2) | TypeError | rewards has type torch.int64
    dd.reward_loss(ZERO, PATH, R[:3], group=2) | ValueError | rewards has shape
    dd.reward_loss(ZERO, PATH, NAN, group=2) | ValueError | rewards\\[2\\] is nan, must be in
    dd.reward_loss(ZERO, PATH, R, group=1) | ValueError | group is 1, must be at least 2
    dd.reward_loss(ZERO, PATH, R, group=3) | ValueError | group is 3, must divide the 4 rows
    dd.reward_loss(ZERO[1:], PATH, R, group=2) | ValueError | log_probs has shape
    dd.reward_loss(ZERO, ZERO, R, group=2) | TypeError | trajectory is a Tensor, must be the second
    dd.reward_loss(PATH, ZERO, R, group=2) | TypeError | trajectory is a Tensor
    dd.reward_loss(ZERO + NAN[2], PATH, R, group=2) | ValueError | log_probs holds NaN
    dd.reward_loss(ZERO.detach(), PATH, R, group=2) | ValueError | log_probs does not require grad
    dd.reward_loss(ZERO + 1, MASKED_PATH, R, group=2) | ValueError | log_probs has terms where
    dd.reward_loss(ZERO, PATH, R, group=2, beta=1.0) | ValueError | beta is 1.0 and kl is None
    dd.reward_loss(ZERO, PATH, R, group=2, beta=1.0, kl=KL.T) | ValueError | kl has shape
    dd.reward_loss(ZERO, PATH, R, group=2, kl=KL) | ValueError | beta is 0.0 and kl is passed
    dd.reward_loss(ZERO[:1], PATH.choose(1), R, group=2, beta=1.0, kl=KL[:1]) | ValueError | whole
    dd.reward_loss(ZERO, PATH, R, group=2, beta=1.0, kl=KL + math.inf) | ValueError | is infinite
    dd.reward_loss(ZERO, PATH, R, group=2, beta=1.0, kl=KL.detach()) | ValueError | kl does not req
    dd.reward_loss(ZERO, PATH, R, group=2, clip=1.5) | ValueError | clip is 1.5, must be in
    dd.reward_loss(ZERO, PATH, R, group=2, normalize=1) | TypeError | normalize is 1, must be True
    dd.preference_loss([1.0], R) | TypeError | chosen has type list
    dd.preference_loss(R[:0], R[:0]) | ValueError | chosen has no pair
    dd.preference_loss(R, R[:2]) | ValueError | rejected has shape
    dd.preference_loss(R, R, 0.0) | ValueError | beta is 0.0, must be in
    dd.bound_log_ratio(MASKS, uniform, uniform, ONE, seed=0, draws=0) | ValueError
        | draws is 0, must be
    """
)


def test_a_ratio_of_bounds_keeps_the_graph_without_a_warning():
    process = dd.presets.mdlm(3)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(4, 3)

        def forward(self, z, t):
            return self.table(z)

    x = torch.zeros(2, 3, dtype=torch.int64)
    model = Network().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dd.bound_log_ratio(process, model, copy.deepcopy(model), x, seed=0).sum().backward()
    with pytest.warns(UsageWarning, match="keeps the autograd graph"):
        dd.bound(process, model, x)


def test_a_process_with_other_arguments_is_another_though_it_looks_alike():
    class Silent(dd.processes.Masked):
        def __init__(self, power):
            super().__init__(V, dd.schedules.Polynomial(power))
            self.power = power

        def __repr__(self):
            return "Silent()"

    path = path_of(Silent(1.0))
    assert torch.equal(
        dd.log_prob(Silent(1.0), uniform, path), dd.log_prob(path.call.process, uniform, path)
    )
    with pytest.raises(ValueError, match=r"must be the same: .*power"):
        dd.log_prob(Silent(2.0), uniform, path)
