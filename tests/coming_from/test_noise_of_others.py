"""Noise of other code bases: schedules, weights, transitions."""

from functools import reduce

import torch
from other_code import COSINE, F64, TIMES, V

import ddlib as dd
from ddlib.hierarchies import Blur, blosum62


def test_weights_of_loglinear_noise():
    """dsigma / expm1(sigma) of MDLM's loglinear noise is 1 / t."""
    times = torch.tensor([0.1, 0.5, 0.9])
    weights = dd.presets.mdlm(V).weights(times)[:, 1]
    torch.testing.assert_close(weights, 1 / times.double())


def test_mixture_of_gidd():
    """Compare with get_alpha_betapi at p_uniform = 0.2, gamma = 1."""
    t = torch.tensor([0.3], dtype=F64)
    c = 2 * 0.2 / (1 - 0.2) * (t * (1 - t)) ** 0.5
    ours = torch.stack(dd.presets.gidd(V, 0.2).mixture(t))
    theirs = torch.stack([(1 - t) / (1 + c), c / V / (1 + c), t / (1 + c)])
    torch.testing.assert_close(ours, theirs)


def test_cosine_schedules():
    theirs = 1 - torch.cos(torch.pi / 2 * (1 - TIMES))
    torch.testing.assert_close(COSINE.alpha(TIMES), theirs)
    ours = dd.schedules.Cosine().alpha(TIMES)  # cos(pi t / 2), as in MDLM
    assert not torch.allclose(ours, theirs)
    slope = -torch.pi / 2 * torch.sin(torch.pi / 2 * (1 - TIMES))
    weights = dd.processes.Masked(V, COSINE).weights(TIMES)[:, 1]
    torch.testing.assert_close(weights, -slope / (1 - theirs))


def test_schedules_of_maskgit():
    r = 1 - TIMES
    arccos = dd.schedules.Symbolic("1 - 2 * acos(1 - t) / pi")
    for schedule, gamma in (
        (COSINE, torch.cos(torch.pi / 2 * r)),
        (dd.schedules.Polynomial(2.5), 1 - r**2.5),
        (arccos, torch.arccos(r) / (torch.pi / 2)),
    ):
        torch.testing.assert_close(1 - schedule.alpha(TIMES), gamma)


NEAR = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]], dtype=F64)


def test_noise_of_d3pm_is_that_of_many_steps():
    steps = 1000
    betas = 1 / torch.arange(steps, 0, -1, dtype=F64)
    k = torch.arange(1, steps + 1, dtype=F64) / steps
    torch.testing.assert_close((1 - betas).cumprod(0), dd.schedules.Linear().alpha(k))
    s = 0.008
    theirs = torch.cos((k + s) / (1 + s) * torch.pi / 2)
    assert (theirs - dd.schedules.Cosine().alpha(k)).abs().max() < 2 * s

    eye = torch.eye(4, dtype=F64)
    matrix = NEAR / NEAR.sum(1, keepdim=True)  # a band of width 3
    band = dd.processes.RateMatrix(matrix - eye, dd.schedules.Linear())
    product = reduce(torch.matmul, [(1 - b) * eye + b * matrix for b in betas[: steps // 2]])
    torch.testing.assert_close(product, band.transition(0.0, 0.5), atol=2e-3, rtol=0)


def test_rates_of_d3pm_to_neighbours_and_a_mask():
    rates = NEAR - torch.diag(NEAR.sum(1))
    into_mask = torch.nn.functional.pad(rates - 4 * torch.eye(4, dtype=F64), (0, 1, 0, 1))
    into_mask[:4, 4] = 4
    process = dd.processes.RateMatrix(into_mask, dd.schedules.Linear(), vocab_size=4)
    exact = torch.linalg.matrix_exp(torch.tensor(2.0).log() * into_mask)
    torch.testing.assert_close(process.transition(0.0, 0.5), exact)
    assert Blur(256, widths=[2.0, 16.0]).levels == (256, 256, 256, 1)


def doubly_stochastic():
    """Return BLOSUM62's similarities, scaled to rows and columns that sum to 1."""
    similar = blosum62().exp()
    scale = torch.ones(20, dtype=F64)
    for _ in range(100):
        scale = (scale / (similar @ scale)).sqrt()
    return scale[:, None] * similar * scale


def test_noise_of_evodiff_is_that_of_many_steps():
    q = doubly_stochastic()
    eye = torch.eye(20, dtype=F64)
    process = dd.processes.RateMatrix(q - eye, dd.schedules.Linear())
    even = torch.full((20, 20), 0.05, dtype=F64)
    torch.testing.assert_close(process.transition(0.0, 1.0), even, atol=1e-6, rtol=0)
    betas = 1 / torch.arange(1000, 0, -1, dtype=F64)
    product = reduce(torch.matmul, [(1 - b) * eye + b * q for b in betas[:500]])
    torch.testing.assert_close(product, process.transition(0.0, 0.5), atol=2e-3, rtol=0)
    assert Blur.from_similarity(blosum62(), [1.0, 3.0]).levels == (20, 20, 20, 1)


def test_the_posterior_of_evodiff_has_the_output_once():
    process = dd.processes.RateMatrix(
        doubly_stochastic() - torch.eye(20, dtype=F64), dd.schedules.Linear()
    )
    p = torch.randn(1, 1, 20, dtype=F64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    evidence = process.transition(0.3, 0.6)[:, 7]
    before = process.transition(0.0, 0.3)
    once, squared = (evidence * (each @ before)[0, 0] for each in (p, p**2))
    z = torch.tensor([[7]])
    ours = process.posterior(p, z, torch.tensor([0.6]), torch.tensor([0.3]))[0, 0]
    torch.testing.assert_close(ours, once / once.sum())
    assert not torch.allclose(ours, squared / squared.sum())


def test_uniform_and_marginal_noise_of_udlm():
    marginals = torch.arange(1, V + 1, dtype=F64).softmax(-1)
    rates = marginals.expand(V, V) - torch.eye(V)
    process = dd.processes.RateMatrix(rates, dd.schedules.Linear())
    torch.testing.assert_close(process.transition(0.0, 1.0), marginals.expand(V, V))
