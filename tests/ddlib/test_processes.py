"""Processes: generator, transitions, marginals, posteriors and draws belong to one chain."""

import copy
import math

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with, refuses
from torch.nn.functional import one_hot
from zoo.calls import seeded
from zoo.processes import EVERY_KIND, F64, Plain, all_tokens, every_process, random_probs

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Hierarchical, Masked, PerWord, RateMatrix, Uniform
from ddlib.processes.level_transitions import LevelExponential
from ddlib.processes.matrix_exponential import MatrixExponential
from ddlib.schedules import Geometric, Linear, Polynomial, Symbolic
from ddlib.schedules.window import in_turn
from ddlib.testing import strategies
from ddlib.testing.oracle import integrate_forward, states

any_process = strategies.processes(strategies.all_schedules())
inner = st.floats(0.01, 0.99)


@given(any_process, strategies.times)
def test_rows_of_rates_sum_to_zero(process, t):
    q = process.rate_matrix(t)
    assert q.shape == (process.num_states,) * 2 and q.dtype == F64 and q.isfinite().all()
    off_diagonal = q - torch.diag(q.diagonal())
    assert (off_diagonal >= 0).all()
    assert (q.sum(1).abs() <= 1e-12 * (1 + off_diagonal.sum(1))).all()


@settings(max_examples=examples(40))
@given(any_process, inner, inner)
def test_transitions_solve_kolmogorovs_forward_equation(process, s, t):
    s, t = sorted((s, t))
    assert torch.allclose(process.transition(s, t), integrate_forward(process, s, t), atol=2e-7)


@pytest.mark.parametrize("overlap", [0.0, 0.3])
@pytest.mark.parametrize(("s", "t"), [(0.1, 0.9), (0.5, 0.9), (0.0, 0.5)])
def test_the_forward_equation_holds_where_the_window_of_an_edge_ends(overlap, s, t):
    windows = in_turn(
        [Polynomial(0.5), Symbolic("1 - sqrt(t)")], overlap
    )  # the rate of the first diverges there
    process = Hierarchical(dd.hierarchies.Tree([[0, 0, 1]], xi=0.9, speed=[0.5, 1.0]), windows)
    assert torch.allclose(process.transition(s, t), integrate_forward(process, s, t), atol=2e-8)


@given(any_process, st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_chapman_kolmogorov(process, times):
    s, u, t = sorted(times)
    direct = process.transition(s, t)
    assert torch.allclose(process.transition(s, u) @ process.transition(u, t), direct, atol=1e-10)
    assert torch.allclose(direct.sum(1), torch.ones(process.num_states, dtype=F64), atol=1e-10)
    assert (direct >= 0).all()


@given(any_process, st.floats(0, 1), st.floats(0, 1))
def test_marginals_are_carried_by_transitions(process, s, t):
    s, t = sorted((s, t))
    tokens = torch.arange(process.vocab_size)[None]
    early, late = (process.marginal(tokens, torch.tensor([v], dtype=F64))[0] for v in (s, t))
    assert torch.allclose(early @ process.transition(s, t), late, atol=1e-10)
    assert torch.allclose(late.sum(-1), torch.ones(process.vocab_size, dtype=F64), atol=1e-11)


@given(strategies.processes(), st.data())
def test_ends_of_time_are_data_and_noise(process, data):
    tokens = torch.arange(process.vocab_size)[None]
    start, end = (process.marginal(tokens, torch.tensor([v], dtype=F64))[0] for v in (0.0, 1.0))
    assert torch.allclose(
        start[:, : process.vocab_size], torch.eye(process.vocab_size, dtype=F64), atol=1e-12
    )
    assert torch.allclose(process.prior(), end.mean(0), atol=1e-14)
    if not isinstance(
        process, dd.processes.RateMatrix
    ):  # a general chain may need longer to forget
        assert torch.allclose(end, process.prior().expand_as(end), atol=1e-12)


@given(any_process, st.floats(1e-6, 1 - 1e-6), st.data())
def test_structured_answers_are_those_of_the_contract(process, t, data):
    """Fast paths against the base class, which has only marginal, rate_matrix and transition."""
    t = torch.tensor([t], dtype=F64)
    s = t * data.draw(st.floats(0.0, 0.999))
    z = states(process)
    p = data.draw(strategies.token_logits(process.num_states, process.vocab_size)).softmax(-1)[None]
    assert torch.allclose(
        process.predictive(p, t), ForwardProcess.predictive(process, p, t), atol=1e-12
    )
    assert torch.allclose(
        process.token_likelihood(z, t), ForwardProcess.token_likelihood(process, z, t), atol=1e-13
    )
    probs = process.posterior(p, z, t, s)
    dense = ForwardProcess.posterior(process, p, z, t, s)
    met = (
        process.predictive(p, t).gather(-1, z[..., None])[..., 0] > 0
    )  # under windows some states are of other times
    assert torch.allclose(probs[met], dense[met], atol=1e-7)
    assert torch.allclose(probs.sum(-1), torch.ones_like(probs[..., 0]), atol=1e-9)
    rate = process.reverse_rate(p, z, t)[met]
    dense = ForwardProcess.reverse_rate(process, p, z, t)[met]
    assert torch.allclose(rate, dense, rtol=1e-7, atol=1e-9 * float(1 + dense.max()))
    x = torch.arange(process.vocab_size)[None]
    assert torch.allclose(
        process.prior_kl(x, t), ForwardProcess.prior_kl(process, x, t), atol=1e-11
    )


@settings(max_examples=examples(40))
@given(any_process, st.floats(0.05, 0.95), st.data())
def test_posterior_is_bayes(process, t, data):
    """Against the joint distribution of (x, z_s, z_t), summed by hand."""
    s = t * data.draw(st.floats(0.1, 0.9))
    p = data.draw(strategies.token_logits(process.vocab_size)).softmax(-1)
    tokens = torch.arange(process.vocab_size)[None]
    early = p @ process.marginal(tokens, torch.tensor([s], dtype=F64))[0]
    joint = early[:, None] * process.transition(s, t)
    expected = (joint / joint.sum(0, keepdim=True)).T
    ours = process.posterior(
        p.expand(1, process.num_states, -1),
        states(process),
        torch.tensor([t], dtype=F64),
        torch.tensor([s], dtype=F64),
    )
    met = joint.sum(0) > 0  # under windows some states are of other times
    assert torch.allclose(ours[0][met], expected[met], atol=1e-8)


@every_process
def test_a_step_of_no_length_moves_nothing(process):
    """Positions that do not move yet, or no longer, have such steps at a pace."""
    x = torch.randint(process.vocab_size, (4, 3), generator=seeded())
    p = torch.full((*x.shape, process.vocab_size), 1 / process.vocab_size, dtype=F64)
    for time in (0.0, 0.3, 1.0):
        t = torch.full((4,), time, dtype=F64)
        z = process.sample(x, t, seeded(1))
        stays = one_hot(z, process.num_states).to(F64)
        torch.testing.assert_close(process.posterior(p, z, t, t), stays)
        logits = p.log().requires_grad_()
        nats = process.step_divergence(logits, x, z, t, t)
        (gradient,) = torch.autograd.grad(nats.sum(), logits)
        for value in (nats.detach(), gradient):
            torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-12)


@settings(max_examples=examples(40))
@given(any_process, st.floats(0.05, 0.95), st.data())
def test_reverse_rate_is_the_limit_of_the_posterior(process, t, data):
    p = data.draw(strategies.token_logits(process.num_states, process.vocab_size)).softmax(-1)[None]
    z = states(process)
    now = torch.tensor([t], dtype=F64)
    rate = process.reverse_rate(p, z, now)
    step = 1e-7 / (1 + float(rate.max()))
    probs = process.posterior(p, z, now, now - step).scatter(-1, z[..., None], 0.0)
    assert torch.allclose(probs / step, rate, rtol=1e-4, atol=1e-4 * float(1 + rate.max()))


@settings(max_examples=examples(30))
@given(any_process, st.floats(0.02, 0.98), st.integers(0, 2**31))
def test_draws_follow_the_marginal(process, t, seed):
    """Chi-square against q_t(.|x) for every token; a false alarm once in 10^7 examples."""
    n = 2000
    x = torch.arange(process.vocab_size).expand(n, -1).contiguous()
    generator = seeded(seed)
    z = process.sample(x, torch.full((n,), t, dtype=F64), generator)
    probs = process.marginal(x[:1], torch.tensor([t], dtype=F64))[0]
    for token in range(process.vocab_size):
        counts = torch.bincount(z[:, token], minlength=process.num_states).double()
        assert counts[probs[token] == 0].sum() == 0
        large = probs[token] * n > 5
        expected = torch.cat([probs[token][large], probs[token][~large].sum(0, keepdim=True)]) * n
        seen = torch.cat([counts[large], counts[~large].sum(0, keepdim=True)])
        keep = expected > 1e-9
        statistic = float(((seen - expected)[keep] ** 2 / expected[keep].clamp_min(1)).sum())
        freedom = int(keep.sum()) - 1
        assert statistic < freedom + 12 * math.sqrt(2 * max(freedom, 1)) + 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
def test_a_process_can_be_moved_and_keeps_its_precision(dtype):
    tree = dd.hierarchies.Tree([[0, 0, 1, 1, 2], [0, 1, 1]], xi=[0.7, 0.9], speed=[0.7, 1.3, 2.1])
    process = dd.processes.Hierarchical(tree, dd.schedules.Cosine())
    rates = dd.processes.RateMatrix(process.rate_matrix(0.5), dd.schedules.Linear(), 5)
    for original in (process, dd.processes.GIDD(5, 0.2), rates):
        moved = copy.deepcopy(original).to("cpu", dtype)
        assert torch.equal(moved.transition(0.2, 0.6), original.transition(0.2, 0.6))
        moved.to("meta")
        assert all(buffer.device.type == "meta" for buffer in moved.buffers())


@given(any_process, st.data())
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
        _, token, mask = process.mixture(torch.tensor([0.5], dtype=F64))
        kept = process.mixture(torch.tensor([0.5], dtype=F64)).keep
        assert float(7 * token / (7 * token + mask + kept)) == pytest.approx(share)
    assert torch.allclose(
        dd.processes.GIDD(4, 0.0).transition(0.2, 0.7), dd.presets.mdlm(4).transition(0.2, 0.7)
    )


def test_structured_noise_covers_the_others():
    """RateMatrix with the generator of a hierarchy or of uniform noise is that process."""
    tree = dd.presets.hdlm([0, 0, 1, 1, 2], gamma=2.0, xi=0.8)
    general = dd.processes.RateMatrix(tree.rate_matrix(0.0), dd.schedules.Linear(), 5)
    assert torch.allclose(general.transition(0.3, 0.8), tree.transition(0.3, 0.8), atol=1e-12)
    uniform = dd.processes.Uniform(4, dd.schedules.Cosine())
    general = dd.processes.RateMatrix(
        torch.full((4, 4), 0.25) - torch.eye(4), dd.schedules.Cosine()
    )
    assert torch.allclose(general.transition(0.3, 0.8), uniform.transition(0.3, 0.8), atol=1e-12)


@every_process
@pytest.mark.usefixtures("as_users_call")
def test_every_reverse_method_refuses_bad_input(process):
    z = states(process)
    p = random_probs(process, process.num_states)
    t = torch.tensor([0.5])
    s = torch.tensor([0.25])
    good = {"p": p, "z": z, "t": t}
    process.posterior(**good, s=s)
    process.reverse_rate(**good)
    bad = {
        "z": (z + 1, z - 1, z.int(), z[0]),
        "t": (t + 1, -t, t * float("nan"), t.long(), torch.tensor([0.5, 0.5])),
        "s": (s - 1, s * float("nan"), s.long(), t + 0.1, torch.tensor([0.25, 0.25])),
        "p": (p[..., 1:], p * 1.5, -p, p * float("nan"), p[:, 1:]),
    }

    def refused(name, call, *arguments, **options):
        with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
            call(*arguments, **options)

    for name, values in bad.items():
        for value in values:
            refused(name, process.posterior, **{**good, "s": s, name: value})
            if name != "s":
                refused(name, process.reverse_rate, **{**good, name: value})
    with pytest.raises(ValueError, match=r"one device.*s on meta"):
        process.posterior(**good, s=s.to("meta"))
    x = all_tokens(process)
    for call in (process.sample, process.marginal):
        for value in (x + 1, x - 1, x.int(), x[0]):
            refused("x", call, value, t)
        for value in bad["t"]:
            refused("t", call, x, value)


@every_process
@pytest.mark.parametrize("t", [1e-5, 0.3, 0.9])
def test_a_time_in_float32_is_worth_no_less_than_in_float64(process, t):
    """Functions of time alone are computed in float64, for any dtype of the time."""
    t = torch.tensor([t], dtype=torch.float32)
    s = t * torch.tensor(0.37, dtype=torch.float32)
    z = states(process)
    x = all_tokens(process)
    p = random_probs(process, process.num_states)
    logits = p.log()[:, : process.vocab_size]

    def answers(s, t):
        if (
            type(process).likelihood is not ForwardProcess.likelihood
        ):  # which is an entry of the marginal
            yield process.likelihood(x, x, t)
        yield process.token_likelihood(z, t)
        yield process.predictive(p, t)
        yield process.prior_kl(x, t)
        yield process.posterior(p, z, t, s)
        yield process.reverse_rate(p, z, t)
        yield dd.nelbo(process, logits, x, x, t, "auto")
        yield dd.nelbo(process, logits, x, x, t, "generic")
        yield from process.integrand_parts(logits, x, x, t)

    for ours, exact in zip(answers(s, t), answers(s.double(), t.double()), strict=True):
        assert ours.dtype == exact.dtype == F64
        assert torch.allclose(ours, exact, rtol=1e-13, atol=0)
    ours = process.marginal(x, t)
    exact = process.marginal(x, t.double())
    assert ours.dtype == torch.float32 and torch.equal(ours, exact.float())


@every_process
def test_float32_probabilities_give_float32_results_of_full_precision(process):
    t = torch.tensor([0.6], dtype=F64)
    s = torch.tensor([0.25], dtype=F64)
    z = states(process)
    x = all_tokens(process)
    exact = random_probs(process, process.num_states).float()
    for ours, double in (
        (process.posterior(exact, z, t, s), process.posterior(exact.double(), z, t, s)),
        (process.reverse_rate(exact, z, t), process.reverse_rate(exact.double(), z, t)),
        (process.predictive(exact, t), process.predictive(exact.double(), t)),
    ):
        assert ours.dtype == torch.float32 and double.dtype == F64
        assert torch.allclose(ours.double(), double, rtol=1e-4, atol=1e-6)
    logits = exact[:, : process.vocab_size].log()
    for method in ("auto", "generic"):
        value = dd.nelbo(process, logits, x, x, t, method)
        assert value.dtype == torch.float32
        assert torch.allclose(
            value.double(),
            dd.nelbo(process, logits.double(), x, x, t, method),
            rtol=1e-3,
            atol=1e-5,
        )


@every_process
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_in_no_time_nothing_moves(process, t):
    assert torch.allclose(
        process.transition(t, t), torch.eye(process.num_states, dtype=F64), atol=1e-14
    )


@every_process
@pytest.mark.usefixtures("as_users_call")
def test_a_scalar_time_is_refused_by_its_own_name(process):
    if isinstance(process, Plain):
        process = process.inner
    refused_with(process=process)(r"""
        process.rate_matrix(1.5) | ValueError | ^t holds 1\.5
        process.transition(-0.5, 0.5) | ValueError | ^s holds -0\.5
        process.transition(0.5, 1.5) | ValueError | ^t holds 1\.5
        process.transition(0.5, 0.25) | ValueError | ^s = 0\.5 must be at most t = 0\.25
    """)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("size", [2, 64])
def test_a_generator_may_have_rounding_errors_of_its_own_precision_and_no_more(scale, dtype, size):
    rates = scale * torch.rand(size, size, generator=seeded(), dtype=F64).fill_diagonal_(0)
    exact = rates - torch.diag(rates.sum(1))
    process = RateMatrix(exact.to(dtype), Linear())
    assert process.matrix.dtype == F64
    q = process.rate_matrix(0.5)
    assert (q.sum(1).abs() <= 1e-12 * q.abs().sum(1)).all()
    off = exact.to(dtype).double() - torch.diag(exact.to(dtype).double().diagonal())
    assert torch.allclose(q - torch.diag(q.diagonal()), 2 * off, rtol=1e-12)
    worse = exact.clone()
    worse[0, 0] -= 1e-4 * scale * size if dtype == torch.float32 else 1e-7 * scale * size
    with pytest.raises(ValueError, match=r"^matrix row 0 sums to -.*must sum to 0"):
        RateMatrix(worse.to(dtype), Linear())


def test_a_generator_of_integers_is_exact():
    cycle = torch.tensor([[-2, 2, 0], [0, -1, 1], [3, 0, -3]])
    assert torch.equal(RateMatrix(cycle, Linear()).matrix, cycle.double())


@every_process
def test_a_batch_need_not_hold_the_last_token(process):
    """No axis takes its size from the largest token or state that happens to be there."""
    x = all_tokens(process)
    t = torch.tensor([0.6], dtype=F64)
    p = random_probs(process, process.num_states)
    z = states(process)
    for few in (x[:, :1], x[:, :2]):
        n = few.shape[1]
        assert torch.equal(process.marginal(few, t), process.marginal(x, t)[:, :n])
        assert torch.equal(process.token_likelihood(few, t), process.token_likelihood(x, t)[:, :n])
        assert torch.allclose(
            process.posterior(p[:, :n], few, t, t / 2), process.posterior(p, z, t, t / 2)[:, :n]
        )
        for method in ("auto", "generic"):
            logits = p.log()[:, :n]
            whole = dd.nelbo(process, p.log()[:, : process.vocab_size], x, x, t, method)
            assert torch.allclose(dd.nelbo(process, logits, few, few, t, method), whole[:, :n])


test_bad_arguments_are_refused = refuses(r"""
    RateMatrix(torch.tensor([[-2, 1], [1, -1]]), Linear()) | ValueError | must sum to 0
    RateMatrix(torch.tensor([[-2, 2], [3, -2]]), Linear()) | ValueError | must sum to 0
    RateMatrix(torch.zeros(2, 2), Linear()) | ValueError | ^matrix is zero everywhere
    GIDD(0, 0.1) | ValueError | ^vocab_size is 0
    Uniform(0, Linear()) | ValueError | ^vocab_size is 0
    Masked(0, Linear()) | ValueError | ^vocab_size is 0
""")


@pytest.mark.parametrize("speeds", [[1e-3, 1.0], [1.0, 1e-3], [1e3, 1e-3], [1e3, 1e3]])
def test_the_slowest_level_is_left_by_the_end_of_time(speeds):
    tree = dd.hierarchies.Tree([[0, 0, 1]], xi=0.8, speed=speeds)
    end = torch.tensor([1.0], dtype=F64)
    assert torch.allclose(
        Hierarchical(tree, Linear()).occupancies(end), torch.tensor([[0.0, 0.0, 1.0]], dtype=F64)
    )
    # a schedule that stops early leaves exactly exp(-hazard)
    left = Hierarchical(tree, Geometric(1e-4, 500.0)).occupancies(end)[0, 0]
    assert float(left) == pytest.approx(
        float(torch.tensor(-500.0 * speeds[0], dtype=F64).exp()), rel=1e-9, abs=1e-298
    )


@pytest.mark.parametrize("sigma", [1e-6, 1e-2, 1.0, 7.0])
@pytest.mark.parametrize("rate", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("kind", [LevelExponential, MatrixExponential])
def test_a_chain_of_equal_steps_counts_like_poisson(sigma, rate, dtype, kind):
    """Every entry to full relative accuracy, the far and tiny ones too."""
    n = 12
    rate = float(torch.tensor(rate, dtype=dtype))
    step = torch.diag(torch.full((n - 1,), rate, dtype=dtype), 1)
    transition = kind(step - torch.diag(step.sum(1)))(torch.tensor(sigma, dtype=F64))
    assert transition.dtype == F64
    k = torch.arange(n - 1, dtype=F64)
    mean = torch.tensor(sigma * rate, dtype=F64)
    exact = (k * mean.log() - mean - torch.lgamma(k + 1)).exp()
    seen = exact > 1e-290
    assert torch.allclose(transition[0, :-1][seen], exact[seen], rtol=1e-11, atol=0)
    assert float(transition[0].sum()) == pytest.approx(1, rel=1e-12)
    assert (transition.tril(-1) == 0).all()


def test_gidd_follows_the_square_root_by_default():
    t = torch.tensor([0.1, 0.25, 0.5, 0.9], dtype=F64)
    now = GIDD(7, 0.3).mixture(t)
    assert torch.allclose(
        7 * now.token / (now.keep + now.mask), 0.3 / 0.7 * 2 * (t * (1 - t)).sqrt(), rtol=1e-12
    )


def test_processes_that_mix_add_nothing_to_a_checkpoint():
    assert [*GIDD(4, 0.2).state_dict(), *Uniform(4, Linear()).state_dict()] == 2 * ["_extra_state"]


def test_a_reduced_process_differs_in_its_tokens_alone():
    for process in (
        GIDD(9, 0.3, gamma=1.7),
        Uniform(9, Geometric(0.1, 3.0)),
        EVERY_KIND["levels-xi"],
    ):
        small = process.small_copy(3)
        assert type(small) is type(process) and small.vocab_size == 3
        for name in ("p_uniform", "gamma", "schedule"):
            assert getattr(small, name, None) == getattr(process, name, None)


@every_process
def test_tokens_are_on_level_zero_and_nothing_else_is(process):
    level = process.level_of(states(process))[0]
    assert (level[: process.vocab_size] == 0).all() and (level[process.vocab_size :] > 0).all()


def test_a_generator_in_float32_is_exponentiated_in_float64():
    rates = torch.rand(5, 5, generator=seeded()).fill_diagonal_(0)
    rates = rates - torch.diag(rates.sum(1))
    sigma = torch.tensor([0.1, 3.0], dtype=F64)
    assert torch.equal(
        MatrixExponential(rates)(sigma), MatrixExponential(MatrixExponential(rates).matrix)(sigma)
    )


@pytest.mark.parametrize("sigma", [[2.0, 0.1, 2.0, 0.7, 0.1, 2.0], [2.0] * 6])
def test_times_that_are_shared_have_the_answers_and_derivatives_of_each_alone(sigma):
    generator = seeded()
    rates = torch.rand(4, 4, generator=generator).fill_diagonal_(0)
    chain = MatrixExponential(rates - torch.diag(rates.sum(1)))
    weights = torch.rand(2, 3, 4, 4, generator=generator, dtype=F64)
    given = torch.tensor(sigma, dtype=F64).view(2, 3).requires_grad_()
    shared = chain(given)
    alone = torch.stack([chain(one) for one in given.flatten()]).view_as(weights)
    for answer in (shared, chain(given.detach())):
        torch.testing.assert_close(answer, alone, rtol=1e-13, atol=0)
    slopes = [torch.autograd.grad((weights * answer).sum(), given)[0] for answer in (shared, alone)]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=0)


IMPOSSIBLE = {
    "hdlm": (dd.presets.hdlm([0, 0, 1, 1]), 5),
    "gidd": (GIDD(4, 0.0), 2),
    "masked": (Masked(4, Linear()), 2),
    "noisy": (dd.processes.Noisy(dd.hierarchies.Flat(4), Linear(), 0.0), 2),
    "per word": (PerWord(Linear(), [1.0, 2.0, 3.0, 4.0]), 2),
    "default": (Plain(Masked(4, Linear())), 2),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_state_that_no_token_can_become_stays(name):
    """A token, or a cluster, without the token of the network.

    And a mask at time 0, as a prompt may be.
    """
    process, state = IMPOSSIBLE[name]
    p = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, 2, 4)
    z = torch.tensor([[state, process.num_states - 1]])
    t = torch.tensor([[0.5, 0.0]])
    s = torch.tensor([[0.2, 0.0]])
    assert torch.equal(
        process.posterior(p, z, t, s), torch.nn.functional.one_hot(z, process.num_states).float()
    )
    assert bool((process.reverse_rate(p, z, t)[0, 0] == 0).all())
