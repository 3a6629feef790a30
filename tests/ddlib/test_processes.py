"""Processes: generator, transitions, marginals, posteriors and draws belong to one chain."""

import copy
import math

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.processes import ForwardProcess
from ddlib.testing import strategies
from ddlib.testing.oracle import integrate_forward, states

every_process = strategies.processes(strategies.all_schedules())
inner = st.floats(0.01, 0.99)
F64 = torch.float64


@given(every_process, strategies.times)
def test_rows_of_rates_sum_to_zero(process, t):
    q = process.rate_matrix(t)
    assert q.shape == (process.num_states,) * 2 and q.dtype == F64 and q.isfinite().all()
    off_diagonal = q - torch.diag(q.diagonal())
    assert (off_diagonal >= 0).all()
    assert (q.sum(1).abs() <= 1e-12 * (1 + off_diagonal.sum(1))).all()


@settings(max_examples=examples(40))
@given(every_process, inner, inner)
def test_transitions_solve_kolmogorovs_forward_equation(process, s, t):
    s, t = sorted((s, t))
    assert torch.allclose(process.transition(s, t), integrate_forward(process, s, t), atol=2e-7)


@given(every_process, st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_chapman_kolmogorov(process, times):
    s, u, t = sorted(times)
    direct = process.transition(s, t)
    assert torch.allclose(process.transition(s, u) @ process.transition(u, t), direct, atol=1e-10)
    assert torch.allclose(direct.sum(1), torch.ones(process.num_states, dtype=F64), atol=1e-10)
    assert (direct >= 0).all()


@given(every_process, st.floats(0, 1), st.floats(0, 1))
def test_marginals_are_carried_by_transitions(process, s, t):
    s, t = sorted((s, t))
    words = torch.arange(process.vocab_size)[None]
    early, late = (process.marginal(words, torch.tensor([v], dtype=F64))[0] for v in (s, t))
    assert torch.allclose(early @ process.transition(s, t), late, atol=1e-10)
    assert torch.allclose(late.sum(-1), torch.ones(process.vocab_size, dtype=F64), atol=1e-11)


@given(strategies.processes(), st.data())
def test_ends_of_time_are_data_and_noise(process, data):
    words = torch.arange(process.vocab_size)[None]
    start, end = (process.marginal(words, torch.tensor([v], dtype=F64))[0] for v in (0.0, 1.0))
    assert torch.allclose(start[:, : process.vocab_size], torch.eye(process.vocab_size, dtype=F64), atol=1e-12)
    assert torch.allclose(process.prior(), end.mean(0), atol=1e-14)
    if not isinstance(process, dd.processes.RateMatrix):  # a general chain may need longer to forget
        assert torch.allclose(end, process.prior().expand_as(end), atol=1e-12)


@given(every_process, st.floats(1e-6, 1 - 1e-6), st.data())
def test_structured_answers_are_those_of_the_contract(process, t, data):
    """Fast paths against the base class, which only knows marginal, rate_matrix and transition."""
    t = torch.tensor([t], dtype=F64)
    s = t * data.draw(st.floats(0.0, 0.999))
    z = states(process)
    p = data.draw(strategies.token_logits(process.num_states, process.vocab_size)).softmax(-1)[None]
    assert torch.allclose(process.predictive(p, t), ForwardProcess.predictive(process, p, t), atol=1e-12)
    assert torch.allclose(process.token_likelihood(z, t), ForwardProcess.token_likelihood(process, z, t), atol=1e-13)
    law, dense = process.posterior(p, z, t, s), ForwardProcess.posterior(process, p, z, t, s)
    assert torch.allclose(law, dense, atol=1e-7)
    assert torch.allclose(law.sum(-1), torch.ones_like(law[..., 0]), atol=1e-9)
    rate, dense = process.reverse_rate(p, z, t), ForwardProcess.reverse_rate(process, p, z, t)
    assert torch.allclose(rate, dense, rtol=1e-7, atol=1e-9 * float(1 + dense.max()))
    x = torch.arange(process.vocab_size)[None]
    assert torch.allclose(process.prior_kl(x, t), ForwardProcess.prior_kl(process, x, t), atol=1e-11)


@settings(max_examples=examples(40))
@given(every_process, st.floats(0.05, 0.95), st.data())
def test_posterior_is_bayes(process, t, data):
    """Against the joint law of (x, z_s, z_t), summed by hand."""
    s = t * data.draw(st.floats(0.1, 0.9))
    p = data.draw(strategies.token_logits(process.vocab_size)).softmax(-1)
    words = torch.arange(process.vocab_size)[None]
    early = p @ process.marginal(words, torch.tensor([s], dtype=F64))[0]
    joint = early[:, None] * process.transition(s, t)
    expected = (joint / joint.sum(0, keepdim=True)).T
    ours = process.posterior(
        p.expand(1, process.num_states, -1), states(process), torch.tensor([t], dtype=F64), torch.tensor([s], dtype=F64)
    )
    assert torch.allclose(ours[0], expected, atol=1e-8)


@settings(max_examples=examples(40))
@given(every_process, st.floats(0.05, 0.95), st.data())
def test_reverse_rate_is_the_limit_of_the_posterior(process, t, data):
    p = data.draw(strategies.token_logits(process.num_states, process.vocab_size)).softmax(-1)[None]
    z, now = states(process), torch.tensor([t], dtype=F64)
    rate = process.reverse_rate(p, z, now)
    step = 1e-7 / (1 + float(rate.max()))
    law = process.posterior(p, z, now, now - step).scatter(-1, z[..., None], 0.0)
    assert torch.allclose(law / step, rate, rtol=1e-4, atol=1e-4 * float(1 + rate.max()))


@settings(max_examples=examples(30))
@given(every_process, st.floats(0.02, 0.98), st.integers(0, 2**31))
def test_draws_follow_the_marginal(process, t, seed):
    """Chi-square against q_t(.|x) for every word; a false alarm once in 10^7 examples."""
    n = 2000
    x = torch.arange(process.vocab_size).expand(n, -1).contiguous()
    generator = torch.Generator().manual_seed(seed)
    z = process.sample(x, torch.full((n,), t, dtype=F64), generator)
    law = process.marginal(x[:1], torch.tensor([t], dtype=F64))[0]
    for word in range(process.vocab_size):
        counts = torch.bincount(z[:, word], minlength=process.num_states).double()
        assert counts[law[word] == 0].sum() == 0
        large = law[word] * n > 5
        expected = torch.cat([law[word][large], law[word][~large].sum(0, keepdim=True)]) * n
        seen = torch.cat([counts[large], counts[~large].sum(0, keepdim=True)])
        keep = expected > 1e-9
        statistic = float(((seen - expected)[keep] ** 2 / expected[keep].clamp_min(1)).sum())
        freedom = int(keep.sum()) - 1
        assert statistic < freedom + 12 * math.sqrt(2 * max(freedom, 1)) + 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
def test_a_process_can_be_moved_and_keeps_its_precision(dtype):
    tree = dd.hierarchies.Tree([[0, 0, 1, 1, 2], [0, 1, 1]], xi=[0.7, 0.9], speed=[0.7, 1.3, 2.1])
    process = dd.processes.Hierarchical(tree, dd.schedules.Cosine())
    for original in (
        process,
        dd.processes.GIDD(5, 0.2),
        dd.processes.RateMatrix(process.rate_matrix(0.5), dd.schedules.Linear(), 5),
    ):
        moved = copy.deepcopy(original).to("cpu", dtype)
        assert torch.equal(moved.transition(0.2, 0.6), original.transition(0.2, 0.6))
        moved.to("meta")
        assert all(buffer.device.type == "meta" for buffer in moved.buffers())


@given(every_process, st.data())
def test_precision_follows_the_arguments(process, data):
    x = torch.zeros(1, 2, dtype=torch.int64)
    for dtype in (torch.float32, F64):
        t = torch.tensor([0.5], dtype=dtype)
        p = torch.full((1, 2, process.vocab_size), 1 / process.vocab_size, dtype=dtype)
        assert process.marginal(x, t).dtype == dtype
        assert process.posterior(p, x, t, t / 2).dtype == dtype
        assert process.reverse_rate(p, x, t).dtype == dtype


def test_gidd_has_the_stated_share_of_uniform_noise_at_one_half():
    for share in (0.1, 0.5, 0.9):
        process = dd.processes.GIDD(7, share, gamma=1.5)
        _, word, mask = process.mixture(torch.tensor([0.5], dtype=F64))
        kept = process.mixture(torch.tensor([0.5], dtype=F64)).keep
        assert float(7 * word / (7 * word + mask + kept)) == pytest.approx(share)
    assert torch.allclose(dd.processes.GIDD(4, 0.0).transition(0.2, 0.7), dd.presets.mdlm(4).transition(0.2, 0.7))


def test_structured_noise_covers_the_others():
    """RateMatrix with the generator of a hierarchy or of uniform noise is that process."""
    tree = dd.presets.hdlm([0, 0, 1, 1, 2], gamma=2.0, xi=0.8)
    general = dd.processes.RateMatrix(tree.rate_matrix(0.0), dd.schedules.Linear(), 5)
    assert torch.allclose(general.transition(0.3, 0.8), tree.transition(0.3, 0.8), atol=1e-12)
    uniform = dd.processes.Uniform(4, dd.schedules.Cosine())
    general = dd.processes.RateMatrix(torch.full((4, 4), 0.25) - torch.eye(4), dd.schedules.Cosine())
    assert torch.allclose(general.transition(0.3, 0.8), uniform.transition(0.3, 0.8), atol=1e-12)
