"""The whole bound: what is left at ends that are not exact is counted."""

import math

import pytest
import torch

import ddlib as dd
from ddlib.objective.bound import variance_caveat
from ddlib.testing.oracle import exact_cavity, integrate_bound

PROBS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
ODD = dd.schedules.Geometric(0.3, 1.5)
UNFINISHED = [
    dd.processes.Masked(3, ODD),
    dd.processes.Uniform(3, ODD),
    dd.processes.Hierarchical(dd.hierarchies.Tree([[0, 0, 1]], xi=0.8), ODD),
    dd.processes.RateMatrix(torch.tensor([[-1.0, 1, 0], [0, -1, 1], [2, 0, -2]]), ODD),
]
"""Processes that remember the token at t = 1."""


@pytest.mark.parametrize("process", UNFINISHED, ids=lambda p: type(p).__name__)
def test_three_terms_make_a_bound_where_the_integral_alone_does_not(process):
    """Exactly, by sums over tokens and states.

    Integral + prior + reconstruction >= entropy > integral.
    """
    cavity = exact_cavity(process, PROBS)
    x = torch.arange(3)[:, None]
    start = torch.zeros(3, dtype=torch.float64)
    end = torch.ones(3, dtype=torch.float64)
    diffusion = integrate_bound(process, PROBS, cavity)
    z = torch.arange(process.num_states)
    left = torch.zeros((), dtype=torch.float64)
    for token in range(3):
        here = torch.full((process.num_states, 1), token)
        t = torch.zeros(process.num_states, dtype=torch.float64)
        chance = process.likelihood(z[:, None], here, t)[:, 0]
        seen = chance > 0
        value = dd.reconstruction(
            process, cavity(z[seen, None], t[seen]), here[seen], z[seen, None], t[seen]
        )
        left = left + PROBS[token] * (chance[seen] * value[:, 0]).sum()
    prior = (PROBS * process.prior_kl(x, end)[:, 0]).sum()
    entropy = -(PROBS * PROBS.log()).sum()
    assert diffusion < entropy - 0.05
    assert diffusion + left + prior >= entropy - 1e-9
    # with the prior replaced by the true marginal at t = 1 the bound is tight
    marginal = process.predictive(PROBS[None, None], end[:1])[0, 0]
    rows = process.marginal(x, end)[:, 0]
    tight = (PROBS[:, None] * (torch.xlogy(rows, rows) - torch.xlogy(rows, marginal))).sum()
    assert float(diffusion + left + tight) == pytest.approx(float(entropy), abs=2e-6)
    assert (process.likelihood(x, x, start) < 1).all()


@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.05, 0.9)])
@pytest.mark.parametrize(
    "process",
    [dd.presets.mdlm(3), dd.presets.hdlm([0, 0, 1], xi=0.8), dd.presets.gidd(3, 0.2)],
    ids=str,
)
def test_cutting_time_short_is_paid_for(process, interval):
    """Monte Carlo of the public estimate: never below the entropy, whatever part of time is
    used.
    """
    n = 60_000
    generator = torch.Generator().manual_seed(0)
    x = torch.multinomial(PROBS, n, replacement=True, generator=generator)[:, None]
    cavity = PROBS.log().float()
    result = dd.bound(
        process, lambda z, t: cavity.expand(*z.shape, -1), x, generator, interval=interval
    )
    entropy = float(-(PROBS * PROBS.log()).sum())
    error = float(result.total.std()) / math.sqrt(n)
    assert float(result.total.mean()) > entropy - 4 * error
    if interval == (0.0, 1.0):
        assert float(result.total.mean()) < entropy + 4 * error
        # what is not noise yet at the last time of float32
        assert 0 < float(result.prior.max()) < 1e-6 and float(result.reconstruction.max()) == 0
    else:
        assert float(result.prior.mean()) > 0 and float(result.reconstruction.mean()) > 0
        assert float(result.diffusion.mean()) < entropy


def test_the_denoiser_is_called_twice_only_if_the_clean_end_is_not_exact():
    calls = []

    def denoiser(z, t):
        calls.append(float(t.max()))
        return torch.zeros(*z.shape, 3)

    x = torch.zeros(4, 2, dtype=torch.int64)
    dd.bound(dd.presets.mdlm(3), denoiser, x)
    assert len(calls) == 1
    dd.bound(dd.processes.Masked(3, dd.schedules.Geometric()), denoiser, x)
    assert len(calls) == 3 and calls[-1] == 0


def test_a_bound_is_printed_as_one_line_with_its_error_and_its_size():
    x = torch.arange(12).view(4, 3) % 5
    process = dd.presets.mdlm(5)
    noise = torch.Generator().manual_seed(0)
    own = process.time_density(3)
    estimate = dd.bound(process, lambda z, t: torch.zeros(*z.shape, 5), x, noise, density=own)
    tally = dd.Tally()
    tally.add(estimate.total, times=estimate.times)
    mean = estimate.per_token.value
    error = estimate.per_token.standard_error
    assert (mean, error) == pytest.approx((tally.per_token.value, tally.per_token.standard_error))
    assert error >= 0.1
    assert (
        f"{estimate}"
        == repr(estimate)
        == (
            f"Bound({mean:.2f} ± {error:.2f} nats per token = diffusion "
            f"{float(estimate.diffusion.mean()):.2f} "
            "+ prior 0.00 + reconstruction 0.00; 4 x 3)"
        )
    )


def test_a_printed_bound_shows_two_digits_of_its_error_and_none_of_one_text():
    nats = torch.tensor([[1.0], [1.0024]]).requires_grad_()
    none = torch.zeros(2, 1)
    assert "Bound(1.0012 ± 0.0012 nats per token = diffusion 1.0012 + " in str(
        dd.Bound(nats, none, none)
    )
    alone = str(dd.Bound(nats[:1], none[:1], none[:1]))
    assert (
        alone
        == "Bound(1.00 nats per token = diffusion 1.00 + prior 0.00 + reconstruction 0.00; 1 x 1)"
    )


def test_the_remedy_of_an_infinite_variance_is_a_density_or_an_interval():
    """The optimal density halves the exponent of the variance, which is not enough for GIDD with a
    small gamma.
    """
    assert "use density=process.time_density(8, chance=0.2)" in variance_caveat(
        dd.presets.mdlm(4), None, 8
    )
    process = dd.processes.GIDD(4, 0.5, gamma=0.1)
    assert variance_caveat(process, None, 8).endswith("use an interval inside (0, 1)")
    assert variance_caveat(process, None, 8, interval=(0.01, 0.99)) == ""
