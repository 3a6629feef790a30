"""Exponentials of rate matrices against scipy and eigenvectors, at sizes and speeds that ordinal
noise has.
"""

import copy
import math
import pickle
from types import SimpleNamespace

import mpmath
import pytest
import scipy.linalg
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import MatrixExponential, RateMatrix, matrix_exponential
from ddlib.processes.chain_check import check_chain

TIMES = st.one_of(
    st.floats(1e-8, 1 - 1e-8),
    st.floats(-8, -0.1).map(lambda e: 10**e),
    st.floats(-8, -1).map(lambda e: 1 - 10**e),
)


def rates_of(off):
    off = off.to(F64).fill_diagonal_(0)
    return off - torch.diag(off.sum(1))


def walk(size, rate):
    apart = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    return rates_of(rate * (apart == 1))


def drawn(size, gap, spread, seed):
    """Two groups of states that mix at rates about 1 and exchange at rates about ``gap``."""
    generator = seeded(seed)
    off = torch.rand(size, size, generator=generator, dtype=F64)
    off = off * (torch.rand(size, size, generator=generator) < 0.3)
    off = off + 0.5 * torch.eye(size, dtype=F64).roll(1, 1)
    half = size // 2
    off[:half, half:] *= gap
    off[half:, :half] *= gap
    return rates_of(
        off * 10 ** (spread * (torch.rand(size, 1, generator=generator, dtype=F64) - 0.5))
    )


def off_by(exponential, rates, t):
    sigma = -math.log1p(-t)
    got = exponential(torch.tensor(sigma, dtype=F64))
    return float((got - torch.from_numpy(scipy.linalg.expm(rates.numpy() * sigma))).abs().max())


@given(
    st.integers(2, 40),
    st.floats(-6, 3),
    st.floats(0, 2),
    st.integers(0, 99),
    st.lists(TIMES, min_size=1, max_size=4),
)
@settings(max_examples=examples(200))
def test_a_drawn_generator_has_the_exponential_of_scipy(size, gap, spread, seed, times):
    rates = drawn(size, 10**gap, spread, seed)
    exponential = MatrixExponential(rates)
    assert max(off_by(exponential, rates, t) for t in times) < 1e-10


@pytest.mark.parametrize("size", [150, 400])
@pytest.mark.parametrize("gap", [1e-6, 1e-3, 1.0])
def test_a_generator_of_hundreds_of_states_has_the_exponential_of_scipy(size, gap):
    rates = drawn(size, gap, 2.0, 1)
    exponential = MatrixExponential(rates)
    assert max(off_by(exponential, rates, t) for t in (1e-8, 0.01, 0.5, 0.97, 1 - 1e-8)) < 1e-10


@pytest.mark.parametrize(("size", "rate"), [(2, 1e-6), (60, 30.0), (256, 2000.0)])
def test_a_walk_has_the_exponential_of_its_eigenvectors(size, rate):
    """Durations cut at 690 over the slowest exit rate are off by 0.0005 to 0.55 in total variation
    at 256 states.
    """
    process = RateMatrix(walk(size, rate), dd.schedules.Linear())
    values, vectors = torch.linalg.eigh(process.matrix)
    t = torch.tensor([1e-8, 1e-3, 0.3, 0.6, 0.9, 0.99, 1 - 1e-8], dtype=F64)
    x = torch.arange(size).expand(len(t), -1)
    exact = (vectors * (values * -torch.log1p(-t)[:, None, None]).exp()) @ vectors.T
    assert float((process.marginal(x, t) - exact).abs().sum(-1).max()) < 1e-10


def test_an_infinite_duration_is_the_limit_however_slow_the_exchange():
    for gap in (1.0, 1e-6, 1e-30, 1e-150):
        limit = MatrixExponential(drawn(12, gap, 2.0, 3))(torch.tensor(math.inf, dtype=F64))
        assert torch.allclose(limit, limit[:1].expand(12, -1), rtol=1e-9, atol=0) and bool(
            (limit > 0).all()
        )
    closed = torch.block_diag(walk(3, 1.0), walk(4, 5.0))
    limit = MatrixExponential(closed)(torch.tensor(math.inf, dtype=F64))
    expected = torch.block_diag(
        torch.full((3, 3), 1 / 3, dtype=F64), torch.full((4, 4), 1 / 4, dtype=F64)
    )
    assert torch.allclose(limit, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [12, 30])
def test_slow_exchange_between_groups_keeps_its_digits(size):
    """To first order the exchange grows with the duration, however small it is."""
    rates = drawn(size, 1e-40, 0.0, 5)
    exponential = MatrixExponential(rates)
    half = size // 2
    one, two = (
        exponential(torch.tensor(sigma, dtype=F64))[:half, half:].sum(1) for sigma in (200.0, 400.0)
    )
    limit = MatrixExponential(rates_of(rates[:half, :half].clone()))(
        torch.tensor(math.inf, dtype=F64)
    )
    flow = limit @ rates[:half, half:].sum(1)
    assert torch.allclose(two - one, 200 * flow, rtol=1e-8, atol=0)


def first_row(rates, sigma):
    """Row 0 of the exponential in 60 digits, by the uniformised series with as many terms as it
    needs.
    """
    fastest = float(-rates.diagonal().min())
    edges = [
        [(j, mpmath.mpf(rate)) for j, rate in enumerate(row) if rate] for row in rates.tolist()
    ]
    with mpmath.workdps(60):
        share = [mpmath.mpf(int(state == 0)) for state in range(len(rates))]
        scaled = mpmath.mpf(sigma) * fastest
        total = list(share)
        for k in range(1, int(scaled) + 700):
            after = list(share)
            for state, value in enumerate(share):
                for j, rate in edges[state] if value else ():
                    after[j] += value * rate / fastest
            share = [value * scaled / k for value in after]
            total = [one + other for one, other in zip(total, share, strict=True)]
        return [float(mpmath.exp(-scaled) * value) for value in total]


def one_way(size):
    return rates_of(torch.eye(size).roll(1, 1))


def steps_of_one(size):
    return walk(size, 1.0)


def path(size):
    return rates_of(torch.diag(torch.ones(size - 1), 1))


def with_mask(size):
    """A ring whose tokens also move to a mask, which is one jump from each of them."""
    return rates_of(
        torch.nn.functional.pad(2 * torch.eye(size).roll(1, 1), (0, 1, 0, 1))
        + torch.eye(size + 1)[size]
    )


def slow_shortcut(size):
    """A path whose end is also one slow jump from its start: the shortest walk is not the most
    probable one.
    """
    rates = torch.diag(torch.ones(size - 1, dtype=F64), 1)
    rates[0, -1] = 1e-60
    return rates_of(rates)


@pytest.mark.parametrize("sigma", [1e-6, 1e-4, 0.01, 0.25, 0.5, 1.0, 1.7, 5.0, 200.9])
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (kind, size)
        for kind in (one_way, path, steps_of_one, with_mask, slow_shortcut)
        for size in (36, 50, 200)
    ]
    + [(one_way, 1000)],
)
def test_distant_states_of_a_sparse_graph_keep_their_digits(kind, size, sigma):
    """More than 33 jumps away, probabilities were exactly 0."""
    rates = kind(size)
    got = MatrixExponential(rates)(torch.tensor(sigma, dtype=F64))[0]
    exact = torch.tensor(first_row(rates, sigma), dtype=F64)
    assert torch.allclose(got, exact, rtol=1e-13, atol=1e-290)


@pytest.mark.parametrize("size", [36, 50])
def test_the_loss_of_a_token_many_jumps_away_is_that_of_the_bound(size):
    process = RateMatrix(with_mask(size), dd.schedules.Linear(), vocab_size=size)
    x = torch.full((1, 1), 2)
    t = torch.tensor([0.01], dtype=F64)
    logits = torch.zeros(1, 1, size, dtype=F64)
    bound = dd.nelbo(process, logits, x, x, t)
    assert torch.allclose(dd.training_loss(process, logits, x, x, t), bound.mean(), rtol=1e-6)


def test_a_loss_computes_one_exponential_for_each_time(monkeypatch):
    computed = []
    kind = matrix_exponential._Derived
    compute = kind.compute
    monkeypatch.setattr(
        kind, "compute", lambda self, sigma: computed.append(sigma) or compute(self, sigma)
    )
    process = RateMatrix(walk(30, 5.0), dd.schedules.Linear())
    x = torch.randint(30, (6, 4))
    t = torch.linspace(0.1, 0.9, 6)
    check_chain(process)  # once, before the first loss
    computed.clear()
    z = process.sample(x, t)
    dd.training_loss(process, torch.zeros(6, 4, 30), x, z, t)
    assert len(computed) == 6


def test_recent_results_are_few_and_no_part_of_a_copy():
    exponential = MatrixExponential(walk(300, 1.0))
    sigma = torch.linspace(0.1, 1, 80, dtype=F64)
    exponential(sigma[:3])
    for part in sigma.split(20):
        exponential(part)
    (derived,) = exponential._derived.values()
    recent = derived.recent
    assert sum(m.numel() * 8 for m in recent.values()) <= 2**27 and len(recent) <= 64
    for twin in (copy.deepcopy(exponential), pickle.loads(pickle.dumps(exponential))):
        assert not twin._derived
        assert torch.equal(twin(sigma[:2]), exponential(sigma[:2]))
    assert len(pickle.dumps(exponential)) < 2 * 300 * 300 * 8
    assert not exponential.state_dict()


def test_each_stream_of_a_gpu_computes_its_own_results(monkeypatch):
    class OnDevice(torch.Tensor):
        is_cuda = True

    exponential = MatrixExponential(walk(5, 1.0))
    sigma = torch.tensor([0.5, 0.5, 7.0], dtype=F64)
    expected = exponential(sigma)
    exponential.matrix = exponential.matrix.as_subclass(OnDevice)
    current = SimpleNamespace(cuda_stream=1)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: current)
    for stream in (1, 2, 1):
        current.cuda_stream = stream
        assert torch.equal(exponential(sigma).as_subclass(torch.Tensor), expected)
    of_one, of_two = (exponential._derived[stream] for stream in (1, 2))
    assert of_one.recent.keys() == of_two.recent.keys() == {0.5, 7.0}
    assert of_one.recent[7.0] is not of_two.recent[7.0]


def test_results_made_in_inference_mode_serve_a_training_step():
    process = RateMatrix(walk(8, 3.0), dd.schedules.Linear())
    x = torch.randint(8, (2, 5))
    t = torch.tensor([0.3, 0.6])
    with torch.inference_mode():
        z = process.sample(x, t)
    logits = torch.zeros(2, 5, 8, requires_grad=True)
    dd.training_loss(process, logits, x.clone(), z.clone(), t).backward()
    assert bool(logits.grad.isfinite().all())


def test_a_process_built_in_inference_mode_is_trained_with():
    with torch.inference_mode():
        process = dd.presets.hdlm([0, 0, 1, 1], xi=0.8)
    x = torch.randint(4, (2, 5))
    t = torch.tensor([0.3, 0.6])
    logits = torch.zeros(2, 5, 4, requires_grad=True)
    dd.training_loss(process, logits, x, process.sample(x, t), t).backward()
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("sigma", [0.01, 0.7, 40.0])
def test_the_derivative_by_the_duration_is_the_product_with_the_rates(sigma):
    exponential = MatrixExponential(drawn(6, 0.1, 1.0, 2))
    assert torch.autograd.gradcheck(
        exponential, torch.tensor([sigma], dtype=F64, requires_grad=True)
    )


test_a_matrix_that_holds_no_rates_is_refused = refuses(r"""
    MatrixExponential(torch.zeros(2, 3)) | ValueError | matrix has shape \(2, 3\), must be square
    MatrixExponential(torch.tensor([[-1.0, 1.0], [-0.5, 0.5]])) | ValueError
        | matrix holds the rate -0.5, must be >= 0
    MatrixExponential(torch.tensor([[-1.0, 1.0], [1.0, -2.0]])) | ValueError
        | matrix row 1 sums to -1.0, must sum to 0
    MatrixExponential(torch.tensor([[math.nan, 1.0], [1.0, -1.0]])) | ValueError
        | matrix holds NaN or infinity
""")


def test_a_process_that_never_mixes_counts_the_residual_at_the_last_time():
    """Two groups that exchange at 1e-3: the bound of flat logits is the entropy only with its prior
    term.
    """
    process = RateMatrix(drawn(6, 1e-3, 0.0, 4), dd.schedules.Linear())
    last = torch.tensor([1 - 2**-24], dtype=F64)
    left = process.prior_kl(torch.arange(6)[None], last)
    assert bool((left > 0.3).all())
    report = dd.verify(process)
    assert report.ok, report


def test_ordinal_noise_at_hundreds_of_states_has_the_bound_of_its_entropy():
    """Birth and death at rate 2,000 on 0..255.

    The flat distribution has log 256 = 5.545 nats; durations that are cut off give 15.2.
    """
    from ddlib.verification.claims.objective.bound import integrate, removed_information

    process = RateMatrix(walk(256, 2000.0), dd.schedules.Linear())
    point = {"largest log-odds of t": 9.0, "most tokens": 2, "most nodes": 40}
    flat = torch.full((256,), 1 / 256, dtype=F64)
    value, a, b, change = integrate(
        process, point, lambda z, t: flat.log().expand(*z.shape, -1), "cavity"
    )
    lost = removed_information(process, a, flat) - removed_information(process, b, flat)
    kept = value > 0
    assert int(kept.sum()) == 2
    assert bool(((value - lost).abs() <= 1e-5 + change)[kept].all())
    assert (
        float(removed_information(process, b, flat).max())
        < 0.02
        < float(removed_information(process, 0.5, flat).max())
    )


@pytest.mark.parametrize("scale", [800.0, math.inf])
def test_a_model_that_excludes_the_state_seen_has_an_infinite_bound_and_not_nan(scale):
    process = RateMatrix(walk(60, 1.0), dd.schedules.Linear())
    logits = torch.full((1, 1, 60), -scale)
    logits[..., 50] = 0
    value = dd.nelbo(
        process, logits, torch.tensor([[3]]), torch.tensor([[4]]), torch.tensor([1e-6])
    )
    assert value.item() == math.inf


def test_a_duration_that_is_not_a_tensor_is_refused():
    exponential = MatrixExponential(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
    with pytest.raises(TypeError, match=r"sigma is 0.5, must be a tensor of durations"):
        exponential(0.5)
