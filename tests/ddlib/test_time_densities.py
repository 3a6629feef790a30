"""Densities of times: inverse to the last digits, draws in strata, and the same bound whatever is
drawn.
"""

import math
import sys

import pytest
import torch
from cases import examples
from fused_loss_inputs import NESTED, batch, close
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import EVERY_KIND, F64

import ddlib as dd
from ddlib.paces import Draw
from ddlib.testing import check, strategies
from ddlib.times import Bell, Beta, Tabulated, TimeDensity, Uniform
from ddlib.times.draws import round_times, times_of_uniforms
from ddlib.verification.claims.objective.times import bound_moment, integral, mean_bound

RECORDED = [0.24539663033344508, 0.5803002149010806, 0.49510751347988174, 0.822119772897642]
COST = 2.0
"""By how much the variance grows where a level pays half or twice what was guessed; uniform times
have 12.
"""
METHODS = ["iid", "stratified", "antithetic"]
ODDS = torch.linspace(-16, 16, 4001, dtype=F64)
GRID = ODDS.sigmoid()
STEP = (ODDS[1] - ODDS[0]) * GRID * (1 - GRID)
"""Times from 1e-7 to 1 - 1e-7, and what each stands for in an integral."""


def keyed(start, stop, seed=3):
    return dd.KeyedGenerator(seed, 5, torch.arange(start, stop))


class Late(TimeDensity):
    """A user's density without an inverse."""

    def density(self, t):
        return 0.5 + t

    def cumulative(self, t):
        return (t + t**2) / 2


@settings(max_examples=examples(80))
@given(
    st.one_of(strategies.time_densities(), st.just(Late())),
    st.lists(st.floats(1e-7, 1 - 1e-7), min_size=3),
)
def test_inverse_undoes_cumulative_to_twelve_digits_and_rounding(density, times):
    t = torch.tensor(times, dtype=F64)
    g = density.density(t)
    assert bool((g > 0).all())
    assert bool(((density.inverse(density.cumulative(t)) - t).abs() <= 1e-12 + 1e-15 / g).all())
    assert bool((density.weight(t) * g - 1).abs().max() < 1e-12)


@settings(max_examples=examples(12))
@given(strategies.time_densities())
def test_drawn_densities_are_verified(density):
    check(density)


@settings(max_examples=examples(16))
@given(
    strategies.processes(max_depth=4, max_words=4), strategies.time_densities(), st.integers(0, 99)
)
def test_the_weighted_bound_has_the_expectation_of_uniform_times(process, density, seed):
    """Over drawn hierarchies and schedules, in the middle of time, where every density has
    digits.
    """
    scores = torch.randn(process.vocab_size, dtype=F64, generator=seeded(seed)).log_softmax(0)
    ends = torch.tensor([0.05, 0.95], dtype=F64)
    u = density.cumulative(ends)

    def drawn(u):
        t = density.inverse(u)
        return density.weight(t, (0.05, 0.95)) * mean_bound(process, scores, t)

    expected = integral(lambda t: mean_bound(process, scores, t), ends[:1], ends[1:], 1e-8)
    got = integral(drawn, u[:1], u[1:], 1e-8) / (u[1] - u[0])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.2, 0.7)])
def test_uniform_times_are_the_recorded_ones_to_the_bit(method, interval):
    low, high = interval
    unit = dd.sample_times(9, method, keyed(4, 13), dtype=F64)
    for dtype in (torch.float32, F64):
        for density in (None, Uniform()):
            t = dd.sample_times(
                9, method, keyed(4, 13), density=density, interval=interval, dtype=dtype
            )
            assert torch.equal(t, (low + (high - low) * unit).to(dtype))
    assert torch.equal(Uniform().weight(unit, interval), torch.full_like(unit, high - low))


def test_keyed_times_are_the_numbers_that_were_recorded():
    t = dd.sample_times(4, generator=dd.KeyedGenerator(0, 0, torch.arange(4)), dtype=F64)
    assert t.tolist() == RECORDED


@pytest.mark.parametrize(
    "density",
    [Beta(0.5, 2.0), Bell(), Late(), dd.presets.hdlm([0, 0, 1]).time_density(16)],
    ids=repr,
)
def test_draws_are_one_in_each_slice_of_equal_probability_over_ranks_and_batches(density):
    whole = dd.sample_times(32, generator=keyed(64, 96), density=density, dtype=F64)
    parts = [
        dd.sample_times(4, generator=keyed(b, b + 4), density=density, dtype=F64)
        for b in range(64, 96, 4)
    ]
    # torch's expit rounds the last bit of a long vector otherwise
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-15, atol=0)
    shares = (density.cumulative(whole) * 32).long()
    assert shares.sort().values.tolist() == list(range(32))
    pair = dd.sample_times(8, "antithetic", keyed(0, 8), density=density, dtype=F64)
    torch.testing.assert_close(
        density.cumulative(pair[0::2]), 1 - density.cumulative(pair[1::2]), atol=1e-9, rtol=0
    )
    cut = dd.sample_times(200, generator=seeded(), density=density, interval=(0.3, 0.6))
    assert bool(((cut >= 0.3) & (cut <= 0.6)).all())


def moments_by_enumeration(process, t, nats):
    x = torch.arange(process.vocab_size).repeat_interleave(process.num_states)[None]
    z = torch.arange(process.num_states).repeat(process.vocab_size)[None]
    mass = process.likelihood(z, x, t) / process.vocab_size
    paid = process.loss_weight(x, z, t) * torch.tensor([0.0, *nats], dtype=F64)[process.level_of(z)]
    return [(mass * paid**power).sum(-1) for power in (1, 2)]


@settings(max_examples=examples(60))
@given(strategies.hierarchies(), strategies.all_schedules(), strategies.times, st.data())
def test_closed_moments_are_sums_over_tokens_and_states(tree, schedule, time, data):
    process = dd.processes.Hierarchical(tree, schedule)
    t = torch.tensor([time], dtype=F64)
    nats = [data.draw(st.floats(0.1, 5.0)) for _ in range(tree.depth)]
    for got, expected in zip(
        process.time_moments(t, nats), moments_by_enumeration(process, t, nats), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def variance(process, density, length, nats=None):
    """Variance of one sequence's bound, in squared nats per token, with times cut 1e-7 from either
    end.
    """
    mean, square = process.time_moments(GRID, nats)
    second = mean**2 + (square - mean**2) / length
    return float((second / density.density(GRID) * STEP).sum() - (mean * STEP).sum() ** 2)


@settings(max_examples=examples(24))
@given(
    strategies.processes(max_depth=4, max_words=5),
    st.sampled_from([1, 16, 512]),
    strategies.time_densities(),
)
def test_the_processes_own_density_has_the_least_variance(process, length, other):
    own = process.time_density(length)
    least = variance(process, own, length)
    others = variance(process, other, length)
    assert least <= others * 1.02 + 1e-9


def test_the_figures_of_the_theory():
    """Section 12: a linear schedule, 128 tokens.

    Two levels that pay 3 and 3.5 nats, masks that pay 6.5.
    """
    levels = dd.presets.hdlm([0, 0, 1, 1])
    masked = dd.presets.mdlm(4)
    for process, nats, uniform, best in (
        (levels, [3.0, 3.5], 3.69, 1.07),
        (masked, [6.5], 2.26, 1.44),
    ):
        assert math.sqrt(variance(process, Uniform(), 128, nats)) == pytest.approx(
            uniform, abs=0.05
        )
        assert math.sqrt(
            variance(process, process.time_density(128, nats), 128, nats)
        ) == pytest.approx(best, abs=0.02)


@pytest.mark.parametrize("wrong", [0.5, 2.0])
def test_a_wrong_estimate_of_the_loss_costs_little(wrong):
    process = dd.presets.hdlm([0, 0, 1, 1])
    true = [3.0, 3.5]
    guess = process.time_density(128, [wrong * true[0], true[1]])
    factor = variance(process, guess, 128, true) / variance(
        process, process.time_density(128, true), 128, true
    )
    assert 1 < factor < COST


@settings(max_examples=examples(60))
@given(strategies.hierarchies(), strategies.all_schedules(), strategies.times)
def test_by_default_the_mean_is_that_of_uniform_predictions(tree, schedule, time):
    process = dd.processes.Hierarchical(tree, schedule)
    t = torch.tensor([time], dtype=F64)
    expected = bound_moment(process, torch.zeros(process.vocab_size, dtype=F64), t, 1)
    torch.testing.assert_close(process.time_moments(t)[0], expected, rtol=1e-9, atol=1e-9)


def test_the_divergence_of_a_balanced_tree_is_the_logarithm_of_the_number_of_children():
    process = dd.presets.hdlm(torch.arange(12) // 3)
    t = torch.tensor([0.2, 0.7], dtype=F64)
    expected = process.time_moments(t, [math.log(3), math.log(4)])
    for got, one in zip(process.time_moments(t), expected, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-12, atol=0)
    masked = dd.presets.mdlm(7)  # of one level only ratios would matter, and there is none
    torch.testing.assert_close(
        masked.time_density(9)._heights, masked.time_density(9, [0.3])._heights
    )


@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_process_has_a_density_of_its_own(name):
    process = EVERY_KIND[name]
    own = process.time_density(8)
    mean, square = process.time_moments(GRID[::40])
    assert bool((square >= mean**2 * (1 - 1e-9)).all()) and isinstance(own, Tabulated)
    assert (
        own.weight(GRID).max() < 1.01e3
    )  # nothing is drawn a thousand times more rarely than it was


def test_a_large_process_is_read_off_a_small_one_or_off_cases_that_stand_for_all():
    for process in (
        dd.presets.gidd(30_000, 0.1),
        dd.processes.Uniform(30_000, dd.schedules.Linear()),
    ):
        assert process.time_density(128).weight(GRID).isfinite().all()


def test_a_process_without_closed_form_reads_its_density_off_all_of_its_states(monkeypatch):
    process = dd.processes.RateMatrix(
        torch.eye(162).roll(1, 0) - torch.eye(162), dd.schedules.Linear()
    )
    assert process.time_density(8).weight(GRID).isfinite().all()
    monkeypatch.setattr(sys.modules["ddlib.processes.optimal_times"], "_DENSE", 161)
    with pytest.raises(TypeError, match="RateMatrix has no reduction to fewer tokens"):
        process.time_density(8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, F64])
@pytest.mark.parametrize("method", METHODS)
def test_no_time_is_rounded_up_to_one(method, dtype):
    late = Tabulated([0.0, 1 - 2**-40, 1.0], [1e-3, 1.0])
    t = dd.sample_times(64, method, seeded(), density=late, dtype=dtype)
    assert (
        t.dtype == dtype
        and bool((t < 1).all())
        and float(t.max()) >= 1 - max(torch.finfo(dtype).eps, 2**-40)
    )
    assert bool(
        (
            round_times(times_of_uniforms(torch.linspace(0, 1 - 2**-53, 64, dtype=F64), late).t) < 1
        ).all()
    )


def test_the_bound_of_tokens_that_leave_late_is_their_entropy():
    """Its weight grows without end at t = 1, where a time in float32 must not be put: it was 3.3
    for log 4.
    """
    process = dd.presets.hdlm([0, 0, 1, 1], gamma=0.5)
    x = torch.arange(4).repeat(4096)[:, None]
    for density in (None, process.time_density(1)):
        generator = seeded()
        found = dd.bound(
            process, lambda z, t: torch.zeros(*z.shape, 4), x, generator, density=density
        ).per_token
        assert abs(found.value - math.log(4)) < 4 * found.standard_error < 0.2


SLOW = [
    dd.presets.hdlm([0, 0, 1], gamma=0.05),
    dd.processes.PerWord(dd.schedules.Linear(), [0.05, 1.0, 1.0]),
    dd.processes.Hierarchical(
        dd.hierarchies.Tree([[0, 0, 1]], speed=[0.001, 1000.0]), dd.schedules.Linear()
    ),
]


@pytest.mark.parametrize("process", SLOW, ids=lambda process: str(process)[:20])
def test_the_residual_at_the_last_time_is_counted(process):
    """A third to all of the entropy is lost beyond the last float before 1, and the bound was
    none.
    """
    probs = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    x = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2]).repeat(2000)[:, None]
    best = probs.log().float()
    generator = seeded()
    found = dd.bound(
        process,
        lambda z, t: best.expand(*z.shape, 3),
        x,
        generator,
        density=process.time_density(1),
    )
    value = found.per_token.value
    error = found.per_token.standard_error
    assert -float((probs * probs.log()).sum()) - 4 * error < value < 1.2 and error < 0.03
    assert found.prior.mean() > 0.1


@pytest.mark.parametrize("name", ["masked", "geometric", "gidd", "levels-xi", "ring"])
def test_a_bound_multiplies_each_draw_by_its_weight(name):
    process = EVERY_KIND[name]
    x = torch.arange(24).view(8, 3) % process.vocab_size
    table = torch.randn(process.num_states, process.vocab_size, generator=seeded())
    for density in (None, Uniform(), Beta(2.0, 1.0), process.time_density(3)):
        for interval in ((0.0, 1.0), (0.1, 0.8)):
            found = dd.bound(
                process, lambda z, t: table[z], x, keyed(0, 8), density=density, interval=interval
            )
            again = keyed(0, 8)
            t = dd.sample_times(8, generator=again, density=density, interval=interval)
            z = process.sample(x, t, again)
            weight = (density or Uniform()).weight(t, interval).float()[:, None]
            want = weight * dd.nelbo(
                process, table[z], x, z, t
            )  # the weight of a bound is that of the time in float64
            torch.testing.assert_close(found.diffusion, want, rtol=1e-5, atol=1e-6)
            assert torch.equal(found.times, t)


@pytest.mark.parametrize("name", ["masked", "gidd", "levels-xi", "ring"])
@pytest.mark.parametrize("density", [None, Beta(2.0, 1.5)], ids=str)
def test_losses_are_divided_by_the_density_on_logits_and_on_hidden_states(name, density):
    process = EVERY_KIND[name]
    (hidden, weight, bias), (x, _, t) = layer, noisy = batch(process, rows=6, length=4)
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[0, 2:] = False
    logits = torch.nn.functional.linear(hidden, weight, bias)
    options = dict(weighting=dd.weightings.Clip(5.0), mask=mask)
    plain = dd.training_loss(process, logits, *noisy, **options, reduction="none")
    drawn = torch.ones_like(t) if density is None else density.weight(t)
    noisy = *noisy[:2], Draw(t, drawn)
    losses = dd.training_loss(process, logits, *noisy, **options, reduction="none")
    torch.testing.assert_close(losses, plain * drawn[:, None], rtol=1e-12, atol=0)
    mean = dd.training_loss(process, logits, *noisy, **options)
    torch.testing.assert_close(mean, losses.sum() / mask.sum(), rtol=1e-12, atol=0)
    for reduction, expected in (("none", losses), ("sum", losses.sum()), ("mean", mean)):
        fused = dd.training_loss(
            process, dd.Hidden(hidden, weight, bias), *noisy, **options, reduction=reduction
        )
        close([fused], [expected])
        close(
            *(torch.autograd.grad(one.sum(), layer, retain_graph=True) for one in (fused, expected))
        )


def wrong(name, **functions):
    """A density with the functions of ``Late``, of which one is another."""
    right = {key: value for key, value in vars(Late).items() if not key.startswith("_")}
    others = {key: lambda self, t, f=f: f(t) for key, f in functions.items()}
    return type(name, (TimeDensity,), right | others)()


BAD = [
    (
        wrong("Double", density=lambda t: 1 + 2 * t),
        ValueError,
        r"Double: cumulative and the integral of density differ by up to 1, must be equal",
    ),
    (
        wrong("Narrow", density=lambda t: torch.where((t > 0.502) & (t < 0.53), 0.0, 1 / 0.972)),
        ValueError,
        r"Narrow: density\(0\.50[23]\d*\) is 0, must be positive",
    ),
    (
        wrong("Torn", cumulative=lambda t: torch.where((t > 0.3) & (t < 0.7), math.nan, t)),
        ValueError,
        r"Torn: cumulative is not finite near t = 0\.[23]\d*, must rise from 0 to 1",
    ),
    (
        wrong("Negative", density=lambda t: 1.5 - 2 * t),
        ValueError,
        r"Negative: density\(0\.[78]\d*\) is -.*must not be negative",
    ),
    (
        wrong("Gap", density=lambda t: torch.where(t < 0.5, 2.0, 0.0)),
        ValueError,
        r"Gap: density\(0\.5\) is 0, must be positive: the bound's weight is not 0 there",
    ),
    # it has no integral from 0
    (
        wrong("Endless", density=lambda t: 1 / t, cumulative=lambda t: 1 + t.log()),
        ValueError,
        r"Endless: cumulative\(0\) is -inf, must be 0: a density integrates to one",
    ),
    (
        wrong("Twice", cumulative=lambda t: t + t**2),
        ValueError,
        r"Twice: cumulative\(1\) is 2, must be 1: a density integrates to one",
    ),
    (0.5, TypeError, r"density is 0.5, must be a ddlib.times.TimeDensity or None"),
    (Uniform, TypeError, r"density is <class.*must be a ddlib.times.TimeDensity"),
]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("density", "error", "message"), BAD, ids=[str(i) for i in range(len(BAD))]
)
def test_a_density_that_is_none_is_refused_before_anything_is_drawn(density, error, message):
    process = dd.presets.mdlm(4)
    x = torch.arange(4)[None]
    generator = seeded()
    state = generator.get_state()
    for call in (
        lambda: dd.sample_times(3, generator=generator, density=density),
        lambda: dd.bound(process, lambda z, t: 1 / 0, x, generator, density=density),
    ):
        with pytest.raises(error, match=message):
            call()
    assert torch.equal(generator.get_state(), state)


test_bad_numbers_are_refused_by_name_value_and_rule = refuses(r"""
    Tabulated([0.0, 0.5, 1.0], [1.0, 0.0]) | ValueError
        | masses\[1\] is 0.0, must be positive and finite
    Tabulated([0.0, 1.0], [math.inf]) | ValueError | masses\[0\] is inf, must be positive and finite
    Tabulated([0.0, 0.5, 1.0], [1.0, 1e-300]) | ValueError
        | masses\[1\] is 1e-300, negligible compared with 1, must
    Tabulated([0.0, 1.0], [-1.0]) | ValueError | masses\[0\] is -1.0, must be positive
    Tabulated([0.0, 0.9], [1.0]) | ValueError | edges run from 0 to 0.9, must increase from 0 to 1
    Tabulated([0.0, 0.5, 0.5, 1.0], [1.0] * 3) | ValueError | edges run from 0 to 1, must increase
    Tabulated([0.0, 1.0], [1.0, 2.0]) | ValueError
        | edges has shape \(2,\) and masses \(2,\), must be
    Beta(0.0, 1.0) | ValueError | a is 0.0, must be in \[0.1, 40\]
    Beta(1.0, math.nan) | ValueError | b is nan, must be in \[0.1, 40\]
    Beta(41, 1.0) | ValueError | a is 41, must be in \[0.1, 40\]
    Bell(spread=0.1) | ValueError | spread is 0.1, must be in \[0.5, 10\]
    Bell(mean="0") | TypeError | mean is '0', must be a number in \[-3, 3\]
    Bell().weight(torch.tensor([0.5]), (0.5, 0.2)) | ValueError | interval is \(0.5, 0.2\)
    dd.presets.mdlm(4).time_density(0) | ValueError | length is 0, must be at least 1
    dd.presets.mdlm(4).time_density(8, [1.0, 2.0]) | ValueError
        | divergences has 2 entries, must have one
    dd.presets.hdlm([0, 0, 1]).time_density(8, [0.0, 1.0]) | ValueError
        | divergences\[0\] is 0.0.*positive
    dd.presets.gidd(4, 0.1).time_density(8, [1.0, 2.0]) | ValueError
        | divergences has 2.*one, for a token
""")


@pytest.mark.parametrize(
    ("a", "b"), [(40.0, 1.0), (1.0, 40.0), (40.0, 0.1), (0.1, 40.0), (40.0, 40.0)]
)
def test_the_largest_exponents_can_be_drawn_from(a, b):
    drawn = dd.sample_times(4, generator=seeded(), density=Beta(a, b))
    assert bool(((drawn >= 0) & (drawn < 1)).all())


def test_a_density_has_a_repr_and_is_built_from_values():
    assert [repr(d) for d in (Uniform(), Beta(2, 1), Bell())] == [
        "Uniform()",
        "Beta(a=2.0, b=1.0)",
        "Bell(mean=0.0, spread=1.0)",
    ]
    table = dd.build("times", {"kind": "tabulated", "edges": [0.0, 0.5, 1.0], "masses": [1.0, 3.0]})
    assert table.density(torch.tensor([0.7], dtype=F64)).item() == 1.5
    assert dd.presets.hdlm_levels(NESTED).time_density(8).masses.shape == (130,)


def test_a_process_of_one_token_has_nothing_to_estimate():
    assert dd.presets.gidd(1, 0.2).time_density(8).weight(GRID).tolist() == [1.0] * len(GRID)
