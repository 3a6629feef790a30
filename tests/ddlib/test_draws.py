"""Draws: their only source of randomness, where new tensors are made, and which distribution they
follow.
"""

import pytest
import torch
from zoo.processes import F64, all_tokens, every_process, random_probs

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Hierarchical, LevelProcess, Uniform
from ddlib.schedules import Geometric, Linear, Polynomial
from ddlib.testing.oracle import states


@every_process
def test_a_given_generator_is_the_only_source_of_randomness(process):
    x = all_tokens(process).expand(6, -1).contiguous()
    t = torch.linspace(0.3, 1, 6, dtype=F64)
    s = torch.linspace(0.1, 0.5, 6, dtype=F64)
    logits = torch.zeros(*x.shape, process.vocab_size)

    def draws(seed):
        generator = torch.Generator().manual_seed(seed)
        z = process.sample(x, t, generator)
        yield z
        yield process.sample_prior((6, 5), generator)
        target = None
        if isinstance(process, LevelProcess):
            target = process.sample_level(z, t, s, generator)
            yield target
        yield process.sample_given_level(logits, z, t, s, target, generator)
        yield process.sample_given_level(logits, z, t, s, None, generator)
        bound = dd.bound(
            process, lambda z, t: torch.zeros(*z.shape, process.vocab_size), x, generator
        )
        yield from (bound.diffusion, bound.reconstruction)
        if isinstance(process, Hierarchical):
            yield from process.sample_jump_times((6, 5), generator, torch.device("cpu"))

    torch.manual_seed(1)
    before = torch.get_rng_state()
    once = list(draws(0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(once, draws(0), strict=True))
    other = torch.cat([v.flatten().double() for v in draws(3)])
    assert not torch.equal(torch.cat([v.flatten().double() for v in once]), other)


@every_process
def test_new_tensors_are_made_where_the_arguments_live(process, monkeypatch):
    """A default device that no argument is on must not be met: a tensor made without a device would
    land there.
    """
    x = all_tokens(process)
    z = states(process)
    t = torch.tensor([0.6], dtype=F64)
    s = torch.tensor([0.25], dtype=F64)
    p = random_probs(process, process.num_states)
    logits = p.log()[:, : process.vocab_size]
    generator = torch.Generator().manual_seed(0)
    calls = [
        lambda: process.marginal(x, t),
        lambda: process.likelihood(x, x, t),
        lambda: process.token_likelihood(z, t),
        lambda: process.predictive(p, t),
        lambda: process.sample(x, t, generator),
        lambda: process.prior(),
        lambda: process.sample_prior((1, 3), generator),
        lambda: process.prior_kl(x),
        lambda: process.prior_kl(x, t),
        lambda: process.level_of(z),
        lambda: dd.nelbo(process, logits, x, x, t),
        lambda: dd.nelbo(process, logits, x, x, t, parameterization="posterior"),
        lambda: dd.posterior_logits(process, p.log(), z, t),
        lambda: dd.bound(process, lambda z, t: logits.expand(*z.shape, -1), x, generator).total,
        lambda: dd.training_loss(process, logits, x, x, t, weighting=dd.weightings.Clip(2.0)),
        lambda: dd.cavity_logits(process, p.log(), z, t, "posterior"),
        lambda: dd.reconstruction(process, logits, x, x, t),
        lambda: process.posterior(p, z, t, s),
        lambda: process.reverse_rate(p, z, t),
        lambda: process.sample_given_level(p.log(), z, t, s, None, generator),
        lambda: process.transition(0.25, 0.6),
        lambda: process.rate_matrix(0.6),
    ]
    if isinstance(process, Hierarchical):
        ones = [1.0] * process.hierarchy.depth
        calls.append(
            lambda: dd.training_loss(
                process, logits, x, x, t, weighting=dd.weightings.PerLevel(ones)
            )
        )
        calls.append(lambda: dd.training_loss(process, logits, x, x, t, mode="edges"))
        calls.append(lambda: dd.training_loss(process, logits, x, x, t, mode="hard"))
        calls.extend(
            lambda i=i: process.sample_jump_times((1, 3), generator, torch.device("cpu"))[i]
            for i in (0, 1)
        )
    eye = torch.eye
    monkeypatch.setattr(
        torch, "eye", lambda n, **options: eye(n, **{"device": "cpu", **options})
    )  # .to() moves it
    for call in calls:
        with torch.device("meta"):
            result = call()
        assert result is None or result.device.type == "cpu"


@every_process
@pytest.mark.statistical
def test_landing_draws_from_the_posterior_at_every_position(process):
    """Two positions with different logits; within five standard deviations of each count."""
    n = 20_000
    generator = torch.Generator().manual_seed(0)
    p = random_probs(process, 2, seed=5)
    t = torch.tensor([0.7], dtype=F64)
    s = torch.tensor([0.3], dtype=F64)
    for start in {process.num_states - 1, 0, min(process.vocab_size, process.num_states - 1)}:
        z = torch.full((1, 2), start)
        exact = process.posterior(p, z, t, s)[0]
        many = z.expand(n, 2).contiguous()
        logits = p.log().float().expand(n, -1, -1)
        drawn = process.sample_given_level(logits, many, t.expand(n), s.expand(n), None, generator)
        for i in range(2):
            counts = torch.bincount(drawn[:, i], minlength=process.num_states)
            error = (counts - n * exact[i]).abs()
            assert (error <= 5 * (n * exact[i] * (1 - exact[i])).clamp_min(0).sqrt() + 1e-6).all()


@every_process
def test_landing_reads_half_precision_logits_in_float32(process):
    n = 4096
    x = all_tokens(process)[:, :3].expand(n, -1).contiguous()
    t = torch.full((n,), 0.8, dtype=F64)
    s = torch.full((n,), 0.4, dtype=F64)
    z = process.sample(x, t, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(n, x.shape[1], process.vocab_size, generator=generator).bfloat16()
    half, single = (
        process.sample_given_level(v, z, t, s, None, torch.Generator().manual_seed(2))
        for v in (logits, logits.float())
    )
    assert torch.equal(half, single)


def test_a_users_process_may_have_no_constants():
    class Coin(ForwardProcess):
        def marginal(self, x, t):
            self.check_inputs(x=x, t=t)
            half = t[:, None, None] / 2
            return (1 - half) * torch.stack([x == 0, x == 1], -1) + half * torch.stack(
                [x == 1, x == 0], -1
            )

        def rate_matrix(self, t):
            raise NotImplementedError

        def transition(self, s, t):
            raise NotImplementedError

    coin = Coin(2, 2)
    x = torch.tensor([[0, 1]])
    assert coin.device.type == "cpu" and coin.sample(x, torch.zeros(1)).tolist() == x.tolist()


@pytest.mark.parametrize("process", [GIDD(5, 0.0), GIDD(5, 0.3), Uniform(5, Linear())], ids=str)
def test_the_rarest_noise_is_drawn_at_times_given_in_float32_too(process, monkeypatch):
    """At t = 1e-9 a token is redrawn once in 10^9: float32 cannot distinguish that from never."""
    for module in ("utils.random", "processes.base"):
        largest = lambda shape, *_: torch.full(tuple(shape), 1 - 1e-10, dtype=F64)  # noqa: E731
        monkeypatch.setattr(f"ddlib.{module}.rand", largest)
    x = torch.zeros(1, 2, dtype=torch.int64)
    for dtype in (torch.float32, F64):
        assert (process.sample(x, torch.tensor([1e-9], dtype=dtype)) != x).all()


@every_process
def test_the_prior_term_is_that_of_the_contract_row_by_row(process):
    x = torch.arange(process.vocab_size)[:, None].expand(-1, 2)
    t = torch.linspace(0.2, 1.0, process.vocab_size, dtype=F64)
    assert torch.allclose(
        process.prior_kl(x, t), ForwardProcess.prior_kl(process, x, t), atol=1e-11
    )


@pytest.mark.statistical
def test_paths_enter_each_level_with_the_occupancies():
    """By five standard deviations of each count."""
    n = 20_000
    tree = dd.hierarchies.Tree([[0, 0, 1, 1], [0, 0]], speed=[0.6, 2.0, 1.2])
    for schedule in (Polynomial(1.5), Geometric(0.1, 3.0)):
        process = Hierarchical(tree, schedule)
        entries, end = process.sample_jump_times(
            (n, 2), torch.Generator().manual_seed(0), torch.device("cpu")
        )
        assert (entries.diff() >= 0).all() and (entries >= 0).all()
        for t in (0.3, 0.7, 1.0):
            level = (entries <= t).sum(-1)
            counts = torch.stack([torch.bincount(level[:, i], minlength=4) for i in range(2)])
            exact = process.occupancies(torch.tensor([t], dtype=F64))[0]
            assert (
                (counts - n * exact).abs()
                <= 5 * (n * exact * (1 - exact)).clamp_min(0).sqrt() + 1e-6
            ).all()
        assert torch.equal(process.level_of(end), level)


@pytest.mark.parametrize("process", [GIDD(4, 0.2), Uniform(3, Linear())], ids=["gidd", "uniform"])
def test_a_step_draws_before_it_evaluates_the_network(process):
    generator = torch.Generator().manual_seed(0)
    drawn = []

    def network(z, t):
        drawn.append(generator.get_state())
        return torch.zeros(*z.shape, process.vocab_size)

    def compare(k, t, z):
        assert k < 0 or torch.equal(generator.get_state(), drawn[-1])

    dd.sample(process, network, (2, 5), steps=4, generator=generator, on_step=compare)
    assert len(drawn) >= 4
