"""The bound in discrete time: closed = posterior, equal to the sum over all paths, down to the
continuous bound.
"""

import math
from itertools import pairwise

import pytest
import torch
from cases import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refuses
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.calls import seeded
from zoo.networks import never

import ddlib as dd
from ddlib.processes import ForwardProcess, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.schedules import Geometric, Linear
from ddlib.testing.oracle import exact_cavity, integrate_bound
from ddlib.testing.strategies import all_schedules, processes, times, token_logits

RING = torch.tensor([[-1.0, 0.7, 0.3], [0.3, -1, 0.7], [0.7, 0.3, -1]], dtype=torch.float64)
PROCESSES = {
    "masks": dd.presets.mdlm(2),
    "tree": Hierarchical(dd.hierarchies.Tree([[0, 0, 1]], xi=0.8, speed=[2.0, 1.0]), Linear()),
    "gidd": dd.presets.gidd(2, 0.3),
    "uniform": Uniform(3, dd.schedules.Cosine()),
    "rates": RateMatrix(RING, Linear()),
    "geometric": Masked(2, Geometric(0.3, 1.5)),
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def network(process, length=2, seed=0):
    """A network whose logits at a position depend on all states and on the time."""
    generator = torch.Generator().manual_seed(seed)
    size = process.num_states
    tokens = process.vocab_size
    table = torch.randn(length, length, size, tokens, generator=generator, dtype=torch.float64)
    late = torch.randn(length, tokens, generator=generator, dtype=torch.float64)
    places = torch.arange(length)

    def logits(z, t):
        return table[places[:, None], places, z[:, None]].sum(2) + t.double()[:, None, None] * late

    return logits


def texts(size, length=2):
    return torch.cartesian_prod(*[torch.arange(size)] * length).view(-1, length)


def on_a_grid(process, denoiser, x, steps):
    """E over states of every step's divergence, and the two ends, for one text: sums over all
    states.
    """
    z = texts(process.num_states, x.shape[1])
    x = x.expand_as(z)
    at = lambda k: torch.full((len(z),), k / steps, dtype=torch.float64)  # noqa: E731
    total = process.prior_kl(x[:1], at(steps)[:1]).sum()
    for k in range(1, steps + 1):
        chance = process.likelihood(z, x, at(k)).prod(-1)
        some = chance > 0
        given = x[some], z[some], at(k)[some], at(k - 1)[some]
        cost = process.step_divergence(denoiser(z[some], at(k)[some]).double(), *given).sum(-1)
        total = total + (chance[some] * cost).sum()
    chance = process.likelihood(z, x, at(0)).prod(-1)
    some = (chance > 0) & (process.likelihood(x, x, at(0)) < 1).any(-1)
    if bool(some.any()):
        left = dd.reconstruction(
            process, denoiser(z[some], at(0)[some]), x[some], z[some], at(0)[some]
        ).sum(-1)
        total = total + (chance[some] * left).sum()
    return float(total)


def paths(process, denoiser, x, steps):
    """E of log q(path | x) / p(path, x) over all paths of two states, from transitions and reverse
    steps; -log p(x).
    """
    z = texts(process.num_states)
    one = torch.ones((), dtype=torch.float64)
    at = lambda k: (one * k / steps).expand(len(z))  # noqa: E731
    q = torch.kron(*process.marginal(x, at(0)[:1])[0])
    for k in range(steps):
        step = process.transition(k / steps, (k + 1) / steps)
        q = q[..., None] * torch.kron(step, step)
    p = torch.kron(process.prior(), process.prior())
    for k in range(steps, 0, -1):
        probs = process.posterior(denoiser(z, at(k)).softmax(-1), z, at(k), at(k - 1)).nan_to_num()
        back = (probs[:, 0, :, None] * probs[:, 1, None, :]).flatten(1).T  # row z_{k-1}, column z_k
        p = back.view(*back.shape, *[1] * (p.ndim - 1)) * p
    read = (z == x).all(-1).double()
    if not process.exact_ends:
        scores = dd.posterior_logits(process, denoiser(z, at(0)), z, at(0)).log_softmax(-1)
        read = scores.gather(-1, x.expand_as(z)[..., None]).exp().squeeze(-1).prod(-1).nan_to_num()
    p = read.view(-1, *[1] * (p.ndim - 1)) * p
    kept = q > 0
    return float((q[kept] * (q[kept] / p[kept]).log()).sum()), -math.log(float(p.sum()))


@settings(max_examples=examples(80), deadline=None)
@given(process=processes(all_schedules()), pair=st.tuples(times, times), data=st.data())
def test_closed_steps_are_those_of_the_posterior(process, pair, data):
    s, t = sorted(pair)
    s = data.draw(st.sampled_from([s, 0.0]))
    assume(s < t)
    x = torch.arange(process.vocab_size)[None].expand(3, -1).contiguous()
    at = torch.full((3,), t, dtype=torch.float64)
    z = process.sample(x, at, torch.Generator().manual_seed(0))
    logits = data.draw(token_logits(*x.shape, process.vocab_size))
    early = torch.full_like(at, s)
    closed = process.step_divergence(logits, x, z, at, early)
    dense = ForwardProcess.step_divergence(process, logits, x, z, at, early)
    assert torch.allclose(closed, dense, rtol=1e-10, atol=1e-10)
    assert (closed >= 0).all()


@every_process
@pytest.mark.parametrize("steps", [1, 2])
def test_the_bound_on_a_grid_is_the_sum_over_all_paths(process, steps):
    """By transitions and the model's reverse steps: E log q(path | x) / p(path, x), and it is above
    -log p(x).
    """
    denoiser = network(process)
    x = torch.tensor([[0, process.vocab_size - 1]])
    expected, surprise = paths(process, denoiser, x, steps)
    found = on_a_grid(process, denoiser, x, steps)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found > surprise - 1e-9


@every_process
def test_one_drawn_step_per_text_has_the_mean_of_the_grid(process):
    rows = 20_000
    steps = 3
    denoiser = network(process)
    x = torch.tensor([[0, process.vocab_size - 1]])
    bound = dd.bound(process, denoiser, x.expand(rows, -1).contiguous(), seeded(1), steps=steps)
    found = bound.total.sum(-1).double()
    error = float(found.std()) / math.sqrt(rows)
    assert float(found.mean()) == pytest.approx(
        on_a_grid(process, denoiser, x, steps), abs=4.5 * error
    )
    assert error < 0.1


@pytest.mark.parametrize("name", ["masks", "tree", "gidd", "uniform", "rates"])
def test_with_the_best_network_it_falls_to_the_continuous_bound(name):
    falls(PROCESSES[name], 3)


@settings(max_examples=examples(12), deadline=None)
@given(process=processes(max_depth=3, max_words=3), seed=st.integers(0, 99))
def test_it_falls_for_every_process(process, seed):
    falls(process, seed)


def falls(process, seed):
    """Doubled grids hold the times of the one before, and a finer step forgets less of how tokens
    depend.
    """
    tokens = process.vocab_size
    probs = (
        torch.rand(
            tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        ** 3
    )
    probs = probs / probs.sum()
    best = exact_cavity(process, probs)

    def mean(cost):
        return sum(float(probs[tuple(x)] * cost(x[None])) for x in texts(tokens))

    found = [
        mean(lambda x, steps=steps: on_a_grid(process, best, x, steps)) for steps in (1, 2, 4, 8)
    ]
    assert all(late <= early + 1e-9 for early, late in pairwise(found))
    ends = mean(lambda x: process.prior_kl(x).sum())
    limit = float(integrate_bound(process, probs, best, points=40)) + ends
    assert limit - 1e-4 <= found[-1] <= limit + (found[0] - limit) / 2 + 1e-4


def test_a_cut_interval_and_both_ends_are_counted():
    process = dd.presets.hdlm([0, 0, 1], xi=0.8)
    x = torch.tensor([[0, 1, 2, 2]]).repeat(64, 1)
    denoiser = lambda z, t: torch.zeros(*z.shape, 3)  # noqa: E731
    generator = seeded()
    found = dd.bound(process, denoiser, x, generator, interval=(0.1, 0.8), steps=7)
    whole = dd.bound(process, denoiser, x, generator, interval=(0.1, 0.8))
    assert torch.allclose(found.prior, whole.prior) and float(found.prior.min()) > 0
    assert float(found.reconstruction.mean()) > 0
    full = dd.bound(process, denoiser, x, generator, steps=7)
    assert float(full.prior.abs().max()) < 1e-12 and float(full.reconstruction.abs().max()) == 0
    # uniform probabilities lose log V, in any number of steps
    many = dd.bound(process, denoiser, x.repeat(40, 1), generator, steps=1000).per_token
    assert many.value == pytest.approx(math.log(3), abs=4.5 * many.standard_error)


def test_mdlms_d3pm_loss_is_one_step_times_the_number_of_steps():
    """``_d3pm_loss`` of MDLM where the network gives the mask no mass: T dt/t [-log p(x)]
    at masks.
    """
    process = dd.presets.mdlm(5)
    steps = 1000
    x = torch.randint(5, (1, 40))
    logits = torch.randn(1, 40, 5, dtype=torch.float64)
    t = torch.tensor([0.25], dtype=torch.float64)
    z = process.sample(x, t)
    theirs = (
        steps
        * (1 / steps / t)
        * -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
        * (z == 5)
    )
    assert torch.allclose(steps * process.step_divergence(logits, x, z, t, t - 1 / steps), theirs)


@pytest.mark.parametrize(
    "process",
    [
        dd.presets.hdlm_levels([[0, 0, 1, 1, 2, 3] * 2, [0, 1, 1, 0]], xi=[0.8, 0.9]),
        dd.presets.gidd(12, 0.2),
        dd.presets.mdlm(12),
    ],
    ids=str,
)
def test_closed_steps_build_nothing_of_the_size_of_all_states(process):
    class Widths(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = set()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.ndim == 3:
                self.seen.add(result.shape[-1])
            return result

    x = torch.randint(12, (4, 7))
    t = torch.rand(4, dtype=torch.float64)
    z = process.sample(x, t)
    logits = torch.randn(4, 7, 12)
    with Widths() as widths:
        process.step_divergence(logits, x, z, t, t / 2)
    assert 12 in widths.seen and process.num_states not in widths.seen


@every_process
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_both_ends_and_float32_follows(process, dtype):
    """From as sure as networks get to as flat."""
    tokens = process.vocab_size
    x = torch.arange(tokens).repeat(6, 1)
    for scale in (0.0, 1.0, 40.0):
        logits = (
            scale * torch.randn(6, tokens, tokens, generator=torch.Generator().manual_seed(2))
        ).to(dtype)
        logits.requires_grad_()
        for s, t in ((0.0, 1e-3), (0.0, 1.0), (0.999, 1.0), (0.5, 0.5 + 1e-9)):
            at, early = (torch.full((6,), v, dtype=torch.float64) for v in (t, s))
            z = process.sample(x, at, torch.Generator().manual_seed(3))
            value = process.step_divergence(logits, x, z, at, early)
            assert value.dtype == dtype
            (slope,) = torch.autograd.grad(value.sum(), logits)
            assert value.isfinite().all() and slope.isfinite().all()
            exact = ForwardProcess.step_divergence(
                process, logits.detach().double(), x, z, at, early
            )
            assert torch.allclose(value.detach().double(), exact, rtol=1e-4, atol=1e-5)


def bound_in(steps):
    return dd.bound(dd.presets.mdlm(3), never, torch.zeros(2, 3, dtype=torch.int64), steps=steps)


test_a_bad_number_of_steps_is_refused_before_the_network_runs = refuses(r"""
    bound_in(0) | ValueError | steps is 0, must be at least 1
    bound_in(2.5) | TypeError | steps is 2.5, must be an int
    bound_in(True) | TypeError | steps is True
    bound_in(10**10) | ValueError | steps is 10000000000, must be at most
""")
