"""A time per position: every answer at times (B, L) is that of each position by itself."""

import pytest
import torch
from cases import examples, slow_but
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ddlib as dd
from ddlib import registry
from ddlib.processes import GIDD, Hierarchical, Masked, Mixing
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity, tanh_sinh

F64 = torch.float64
REGISTERED = [registry.get("processes", name).examples() for name in registry.available("processes")]
EVERY = slow_but([each for some in REGISTERED for each in some], *(some[-1] for some in REGISTERED))


def split(value):
    """What belongs to tokens (B, L), as that of sequences of one token each."""
    return value.flatten(0, 1)[:, None] if isinstance(value, Tensor) else value


def drawn(process, t, seed=0):
    """Words, states that they can become, logits of words."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(process.vocab_size, t.shape, generator=generator)
    law = process.marginal(split(x), t.flatten())
    z = torch.distributions.Categorical(law).sample()[:, 0].view(t.shape)
    logits = torch.randn(*t.shape, process.vocab_size, dtype=F64, generator=generator)
    return x, z, logits


def answers(process, x, z, logits, s, t):
    """Every answer that depends on times, by name: called alike with times per sequence and per position."""
    p = logits.softmax(-1)
    found = {
        "marginal": process.marginal(x, t), "likelihood": process.likelihood(z, x, t),
        "word_likelihood": process.word_likelihood(z, t), "predictive": process.predictive(p, t),
        "posterior": process.posterior(p, z, t, s), "reverse_rate": process.reverse_rate(p, z, t),
        "prior_kl": process.prior_kl(x, t), "loss_weight": process.loss_weight(x, z, t),
        "step_divergence": process.step_divergence(logits, x, z, t, s), "leaving": process.leaving(z, t, logits),
        "posterior_logits": dd.denoiser.posterior_logits(process, logits, z, t),
        "cavity_logits": dd.denoiser.cavity_logits(process, logits, z, t, "posterior"),
        "generic": dd.nelbo(process, logits, x, z, t, method="generic"),
        "pull": process._pull(x, z, t)[1], "mean pull": process._pull(x, z, t)[0],
    }  # fmt: skip
    closed = process.weighted_divergence(logits, x, z, t)
    for name, part in zip(("weight", "divergence"), closed or (), strict=False):
        found[name] = part
    for meaning in ("cavity", "posterior"):
        found[f"nelbo {meaning}"] = dd.nelbo(process, logits, x, z, t, parameterization=meaning)
        for mode in process.modes:
            found[f"{mode} {meaning}"] = dd.training_loss(
                process, logits, x, z, t, dd.weightings.Clip(3.0), mode, parameterization=meaning,
                density=dd.times.Beta(2.0, 1.0), reduction="none",
            )  # fmt: skip
            found[f"linear {mode} {meaning}"] = dd.linear_training_loss(
                process, p, torch.eye(process.vocab_size, dtype=F64), x, z, t, None, dd.weightings.Clip(3.0), mode,
                parameterization=meaning, density=dd.times.Beta(2.0, 1.0), reduction="none",
            )  # fmt: skip
    return found


def draws(process, x, z, logits, s, t):
    """Everything that is drawn. One seed gives a batch of (B, L) and one of (B L, 1) the same numbers in one order."""
    noise = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    found = {
        "sample": process.sample(x, t, noise()), 
        "advance": process.advance(process.sample(x, s, noise()), s, t, noise()),
        "jump": process.jump(z, t, s, noise()), "land": process.land(logits, z, t, s, None, noise()),
        "leave": process.leave(logits, z, t, torch.ones_like(z, dtype=torch.bool), noise()),
    }  # fmt: skip
    lift = process.most_lift(t, s)
    if lift is not None:
        found["lifted"] = process.jump(z, t, s, noise(), lift / 2)
    return {name: states for name, states in found.items() if states is not None}


def agrees(process, s, t, seed):
    """Compares every answer at times (B, L) with those of B L texts of one position at times (B L,)."""
    x, z, logits = drawn(process, t, seed)
    alike = *map(split, (x, z, logits)), s.flatten(), t.flatten()
    for name, states in draws(process, x, z, logits, s, t).items():
        assert torch.equal(states, draws(process, *alike)[name].view(t.shape)), f"{name} of {process!r}"
    whole, alone = answers(process, x, z, logits, s, t), answers(process, *alike)
    for name, value in whole.items():
        expected = alone[name].view(value.shape)
        assert torch.allclose(value, expected, rtol=1e-11, atol=1e-13, equal_nan=True), f"{name} of {process!r}"


TIMES = torch.tensor([[0.3, 1e-6, 0.8], [1 - 1e-6, 0.5, 0.3]], dtype=F64)


@pytest.mark.parametrize("process", EVERY, ids=lambda process: type(process).__name__)
def test_every_answer_at_a_time_per_position_is_that_of_the_position_by_itself(process):
    agrees(process, TIMES / 3, TIMES, 1)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    strategies.processes(strategies.all_schedules()),
    st.lists(st.floats(1e-4, 1 - 1e-4), min_size=6, max_size=6),
    st.integers(0, 99),
)
def test_so_it_is_for_drawn_hierarchies_and_schedules(process, times, seed):
    t = torch.tensor(times, dtype=F64).view(2, 3)
    agrees(process, t / 2, t, seed)


class Own(Masked):
    """A leaf with methods of its own, which know one time per sequence."""

    def likelihood(self, z, x, t):
        return super().likelihood(z, x, t) * torch.ones_like(t)[:, None]

    def occupancies(self, t):
        assert t.ndim == 1
        return super().occupancies(t)

    def sample(self, x, t, generator=None, levels="independent"):
        self.check_inputs(x=x, t=t)
        assert t.ndim == 1
        return super().sample(x, t, generator, levels)

    def balance(self, x, z, t):
        return super().balance(x, z, t)


class Kept(Mixing):
    """A leaf by the three answers of ``Mixing``, of which it knows one time per sequence."""

    def __init__(self):
        super().__init__(4, masked=True, uniform=True)
        self.inner = GIDD(4, 0.2)

    def mixture(self, t):
        assert t.ndim == 1 or t.shape[1:] == (1,) or not t.ndim
        return self.inner.mixture(t)

    def mixture_between(self, s, t):
        return self.inner.mixture_between(s, t)

    def mixing_rates(self, t):
        return self.inner.mixing_rates(t)


@pytest.mark.parametrize("process", [Own(3, dd.schedules.Linear()), Kept()], ids=lambda process: type(process).__name__)
def test_a_leaf_that_knows_one_time_per_sequence_is_served_position_by_position(process):
    agrees(process, TIMES / 3, TIMES, 1)


def test_a_leaf_draws_each_position_by_its_own_keyed_noise():
    """Whatever the rest of the batch is."""
    process, x, t = Own(9, dd.schedules.Linear()), torch.arange(80).view(4, 20) % 9, torch.rand(4, 20, dtype=F64)
    whole = process.sample(x, t, dd.KeyedGenerator(0, 0, torch.arange(4)))
    some = process.sample(x[2:], t[2:], dd.KeyedGenerator(0, 0, torch.arange(2, 4)))
    assert torch.equal(whole[2:], some) and 0 < int((whole == 9).sum()) < 80


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, x, t: p.balance(x, x, t),
            r"t has shape \(2, 3\), must be \(B,\) = \(2,\).*Own.balance.*does not answer",
        ),
        (lambda p, x, t: p.sample(x, t, levels="balanced"), r"Own.sample.*which levels = 'balanced' is not"),
        (lambda p, x, t: p.sample(x, t, dd.mirrored()), r"Own.sample.*which generator = .* is not"),
    ],
)
def test_a_leaf_is_not_asked_for_what_positions_cannot_say_by_themselves(call, message):
    with pytest.raises(TypeError, match=message):
        call(Own(3, dd.schedules.Linear()), torch.zeros(2, 3, dtype=torch.int64), TIMES)


@pytest.mark.parametrize(
    "process", [Hierarchical.examples()[-1], GIDD(4, 0.3), *dd.processes.PerWord.examples()[1:2]], ids=str
)
def test_balanced_draws_choose_positions_by_their_own_times(process):
    """Of two positions: q(z|x) = E[balance; z], enumerated against the law of the draws."""
    x, t, n = torch.tensor([[0, 1]]), torch.tensor([[0.15, 0.9]], dtype=F64), 40_000
    rows, times = x.expand(n, -1), t.expand(n, -1)
    z = process.sample(rows, times, torch.Generator().manual_seed(0), "balanced")
    weight = process.balance(rows, z, times)
    states = process.num_states
    mass = torch.zeros(states**2, dtype=F64).index_add_(0, z[:, 0] * states + z[:, 1], weight) / n
    law = process.marginal(x, t)[0]
    every = torch.cartesian_prod(torch.arange(states), torch.arange(states))
    reached = process._pull(x.expand(len(every), -1), every, t.expand(len(every), -1))[1].sum(-1) > 0
    exact = torch.where(reached, law[0][every[:, 0]] * law[1][every[:, 1]], 0.0)
    error = (weight.square().mean() * exact.clamp_min(1 / n)).sqrt() / n**0.5
    assert ((mass - exact).abs() < 6 * error + 3e-3 * exact).all()


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (
            torch.full((2, 2), 0.5),
            r"t has shape \(2, 2\), must be \(B,\) = \(2,\).*\(B, L\) = \(2, 3\), one per position",
        ),
        (torch.full((3,), 0.5), r"t has shape \(3,\).*\(B, L\) = \(2, 3\), one per position"),
        (torch.full((2, 3, 1), 0.5), r"t has shape \(2, 3, 1\)"),
        (torch.full((2, 3), 1.5), r"t holds 1.5"),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_other_times_are_refused(t, message):
    x = torch.zeros(2, 3, dtype=torch.int64)
    for process in (Masked(3, dd.schedules.Linear()), Own(3, dd.schedules.Linear())):
        with pytest.raises(ValueError, match=message):
            process.marginal(x, t)
        with pytest.raises(ValueError, match=message):
            process.sample(x, t)


@pytest.mark.usefixtures("as_users_call")
def test_two_times_have_one_shape_and_an_order_at_every_position():
    process, x = Masked(3, dd.schedules.Linear()), torch.zeros(2, 3, dtype=torch.int64)
    p = torch.full((2, 3, 3), 1 / 3, dtype=F64)
    with pytest.raises(ValueError, match=r"s has shape \(2,\), must be that of t, \(2, 3\)"):
        process.posterior(p, x, TIMES, TIMES[:, 0] / 2)
    with pytest.raises(ValueError, match=r"s has shape \(2,\), must be that of t, \(2, 3\)"):
        process.advance(x, TIMES[:, 0] / 2, TIMES)
    s = TIMES / 2
    s[1, 2] = 0.31
    with pytest.raises(ValueError, match=r"s = .*0.31.* must"):
        process.advance(x, s, TIMES)
    with pytest.raises(ValueError, match=r"s = .*0.31.* must"):
        process.posterior(p, x, TIMES, s)


@pytest.mark.parametrize(
    ("weighting", "process"),
    [
        (dd.weightings.Dynamic(), GIDD(4, 0.3)),
        (dd.weightings.Dynamic(released=True), GIDD(4, 0.3)),
        (dd.weightings.Optimal(4), Masked(3, dd.schedules.Linear())),
        (dd.weightings.PerLevel([2.0, 0.5], dd.weightings.Optimal()), dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, xi=0.9)),
    ],
    ids=repr,
)
def test_weights_of_training_are_those_of_the_positions(weighting, process):
    x, z, logits = drawn(process, TIMES)
    here = dd.training_loss(process, logits, x, z, TIMES, weighting, reduction="none")
    alone = dd.training_loss(process, *map(split, (logits, x, z)), TIMES.flatten(), weighting, reduction="none")
    assert torch.allclose(here, alone.view(2, 3), rtol=1e-12, atol=0) and here.max() > 0


@pytest.mark.parametrize("mode", ["standard", "edges"])
def test_child_logits_at_a_time_per_position(mode):
    process, asked = dd.presets.hdlm([0, 0, 1, 1], gamma=2.0), {"mode": mode, "parameterization": "children"}
    x, z, _ = drawn(process, TIMES)
    logits = torch.randn(2, 3, 6, dtype=F64, generator=torch.Generator().manual_seed(5))
    for loss, more in ((dd.training_loss, ()), (dd.linear_training_loss, (torch.eye(6, dtype=F64),))):
        call = lambda *of: loss(process, of[0], *more, *of[1:], reduction="none", **asked)  # noqa: E731, B023
        alone = call(*map(split, (logits, x, z)), TIMES.flatten())
        assert torch.allclose(call(logits, x, z, TIMES), alone.view(2, 3), rtol=1e-12, atol=0)


def test_gradients_of_the_fused_loss_at_a_time_per_position():
    process = dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, xi=0.9)
    x, z, hidden = drawn(process, TIMES)
    weight = torch.randn(4, 4, dtype=F64, generator=torch.Generator().manual_seed(6))
    found = []
    for fused in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if fused:
            dd.linear_training_loss(process, h, w, x, z, TIMES).backward()
        else:
            dd.training_loss(process, h @ w.T, x, z, TIMES).backward()
        found.append((h.grad, w.grad))
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-12)


def together(u):
    return torch.stack([u, u]), torch.ones(2, dtype=F64)


def ramp(u):
    """The second position is ahead in the middle: 3 u^2 - 2 u^3 against u."""
    return torch.stack([u, u**2 * (3 - 2 * u)]), torch.stack([torch.ones_like(u), 6 * u * (1 - u)])


def second_alone(u):
    return torch.stack([torch.zeros_like(u), u]), torch.tensor([0.0, 1.0], dtype=F64)


def then_the_first(u):
    return torch.stack([u, torch.ones_like(u)]), torch.tensor([1.0, 0.0], dtype=F64)


PATHS = {"together": [together], "ramp": [ramp], "one by one": [second_alone, then_the_first]}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "process",
    [
        Masked(3, dd.schedules.Linear()),
        pytest.param(GIDD(3, 0.3), marks=pytest.mark.slow),
        pytest.param(dd.presets.hdlm([0, 0, 1], gamma=2.0, xi=0.8), marks=pytest.mark.slow),
        pytest.param(dd.processes.PerWord(dd.schedules.Linear(), [0.6, 2.0, 1.0]), marks=pytest.mark.slow),
    ],
    ids=lambda process: type(process).__name__,
)
def test_along_every_path_of_times_the_bound_of_the_best_network_is_the_entropy(process, path):
    """Theory section 14, by enumeration: two words that depend on each other, from data to noise."""
    law = torch.tensor([[0.3, 0.05, 0.1], [0.02, 0.2, 0.03], [0.1, 0.05, 0.15]], dtype=F64)
    best, states = exact_cavity(process, law), torch.arange(process.num_states)
    words, grid = torch.cartesian_prod(*[torch.arange(3)] * 2), torch.cartesian_prod(states, states)
    x, z = words.repeat_interleave(len(grid), 0), grid.repeat(len(words), 1)
    chance, total = law.flatten().repeat_interleave(len(grid)), 0.0
    for phase in PATHS[path]:
        for node, weight in zip(*tanh_sinh(), strict=True):
            times, slope = phase(node)
            t = times.expand(len(x), 2)
            mass = chance * process.likelihood(z, x, t).prod(-1)
            kept = mass > 0
            nats = dd.nelbo(process, best(z[kept], t[kept]), x[kept], z[kept], t[kept])
            total += float(weight * (mass[kept, None] * nats * slope).sum())
    assert total == pytest.approx(float(-(law * law.log()).sum()), abs=1e-6)
