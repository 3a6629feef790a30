"""Times: one per slice, over ranks and accumulation steps too.

Every one uniform; less variance than independent.
"""

import pytest
import scipy.stats
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import LevelProcess
from ddlib.samplers import equal_jump_times
from ddlib.testing import strategies

unchecked = pytest.mark.usefixtures(
    "as_users_call"
)  # thousands of calls, faster without shape checks
METHODS = ["iid", "stratified", "antithetic"]
every_method = pytest.mark.parametrize("method", METHODS)
every_source = pytest.mark.parametrize("source", ["torch", "keyed"])
# where each of thousands of seeds draws: with keys that takes a second
each_source = pytest.mark.parametrize("source", ["torch", "keyed"])


def times(n, method="stratified", source="torch", seed=0, start=0, **options):
    generator = (
        dd.KeyedGenerator(seed, 2, torch.arange(start, start + n))
        if source == "keyed"
        else seeded(seed)
    )
    return dd.sample_times(n, method, generator, **{"dtype": F64, **options})


def slices(t, count):
    """Number of times in each of ``count`` equal slices of [0, 1)."""
    return torch.bincount((t * count).to(torch.int64), minlength=count)


@every_method
@every_source
@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_times_have_the_requested_length_and_dtype_and_lie_in_the_unit_interval(method, source, n):
    for dtype in (None, torch.float32, F64):
        t = times(n, method, source, dtype=dtype)
        assert t.shape == (n,) and t.dtype == (dtype or torch.get_default_dtype())
        assert bool(((t >= 0) & (t <= 1)).all())
        assert len(t.unique()) == n


@every_method
@every_source
def test_an_interval_is_a_stretched_unit_interval(method, source):
    unit = times(40, method, source, seed=3)
    cut = times(40, method, source, seed=3, interval=(0.2, 0.7))
    torch.testing.assert_close(cut, 0.2 + 0.5 * unit)
    assert bool(((cut >= 0.2) & (cut <= 0.7)).all())


@every_method
@every_source
def test_the_same_seed_repeats_and_another_does_not(method, source):
    assert torch.equal(times(9, method, source, seed=1), times(9, method, source, seed=1))
    assert not torch.equal(times(9, method, source, seed=1), times(9, method, source, seed=2))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 100])
def test_stratified_times_of_a_batch_are_one_per_slice(n):
    for seed in range(20):
        assert slices(times(n, seed=seed), n).tolist() == [1] * n


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_each_aligned_window_of_keyed_indices_has_one_time_per_slice(k):
    size = 2**k
    for seed in range(5):
        for window in (0, 1, 7, 1000, 2**34 // size):
            t = times(size, source="keyed", seed=seed, start=window * size)
            assert slices(t, size).tolist() == [1] * size


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_keyed_times_stay_stratified_over_ranks_and_gradient_accumulation(rows):
    """A global batch of 32 in micro-batches of ``rows``, dealt to 4 ranks in turn."""
    whole = times(32, source="keyed", seed=9, start=32 * 5)
    parts = [times(rows, source="keyed", seed=9, start=32 * 5 + b) for b in range(0, 32, rows)]
    dealt = torch.cat([part for rank in range(4) for part in parts[rank::4]])
    assert slices(dealt, 32).tolist() == [1] * 32
    assert torch.equal(dealt.sort().values, whole.sort().values) and torch.equal(
        torch.cat(parts), whole
    )


def test_keyed_slots_change_from_step_to_step_and_seed_to_seed():
    index = torch.arange(16)
    order = {
        tuple(
            dd.sample_times(16, generator=dd.KeyedGenerator(seed, step, index)).argsort().tolist()
        )
        for seed in range(4)
        for step in range(8)
    }
    assert len(order) > 8  # a digital shift over 16 slots has 16 of them


@every_source
@pytest.mark.parametrize("n", [2, 6, 32])
def test_antithetic_neighbours_sum_to_one(source, n):
    for seed in range(10):
        t = times(n, "antithetic", source, seed)
        torch.testing.assert_close(
            t[0::2] + t[1::2], torch.ones(n // 2, dtype=F64), atol=1e-15, rtol=0
        )


@every_source
def test_antithetic_pairs_are_themselves_stratified(source):
    for seed in range(10):
        assert slices(times(32, "antithetic", source, seed)[0::2], 16).tolist() == [1] * 16


def test_antithetic_partners_on_two_ranks_agree_without_communication():
    whole = times(8, "antithetic", "keyed", start=40)
    alone = torch.cat([times(1, "antithetic", "keyed", start=40 + b) for b in range(8)])
    assert torch.equal(whole, alone)


@unchecked
@pytest.mark.statistical
@every_method
@each_source
@pytest.mark.parametrize("n", [1, 5])
def test_the_time_of_every_row_is_uniform_over_seeds(method, source, n):
    """A row that always met early times would have a biased bound, however often it is
    evaluated.
    """
    t = torch.stack([times(n, method, source, seed) for seed in range(400)])
    pvalues = [float(scipy.stats.kstest(row.tolist(), "uniform").pvalue) for row in t.T]
    assert min(pvalues) > 1e-6


def integral(t):
    """An estimate of the mean of a monotone weight, as a loss in t is."""
    return (torch.exp(2 * t) * t).mean()


@unchecked
@pytest.mark.statistical
@each_source
@pytest.mark.parametrize("method", ["stratified", "antithetic"])
@pytest.mark.parametrize("n", [15, 16])
def test_an_integral_is_estimated_without_bias_and_with_less_variance_than_iid(method, source, n):
    exact = (torch.exp(torch.tensor(2.0, dtype=F64)) + 1).item() / 4
    estimates = torch.stack(
        [integral(times(n, method, source, seed, start=64)) for seed in range(200)]
    )
    independent = torch.stack([integral(times(n, "iid", source, seed)) for seed in range(200)])
    error = estimates.std().item() / len(estimates) ** 0.5
    assert abs(estimates.mean().item() - exact) < 5 * error + 1e-12
    assert estimates.var() < independent.var() / 4


@unchecked
@pytest.mark.statistical
@each_source
def test_stratified_variance_falls_faster_than_the_number_of_rows_grows(source):
    few, many = (
        torch.stack([integral(times(n, source=source, seed=s)) for s in range(200)]).var()
        for n in (8, 32)
    )
    assert (
        few / many > 10
    )  # one shift for all slices gives 4^2, a shift for each 4^3, independent times 4


@every_source
def test_antithetic_times_integrate_odd_functions_about_one_half_exactly(source):
    assert ((times(64, "antithetic", source) - 0.5) ** 3).sum().abs() < 1e-12


# steps of sampling


def expected_level(process, t):
    return process.occupancies(t) @ torch.arange(len(process.levels), dtype=F64)


@settings(max_examples=examples(100))
@given(
    process=strategies.processes(strategies.all_schedules()).filter(
        lambda one: isinstance(one, LevelProcess)
    ),
    steps=st.integers(1, 40),
)
def test_every_step_has_the_same_expected_number_of_jumps(process, steps):
    times = equal_jump_times(process, steps)
    assert (
        times.shape == (steps + 1,)
        and times[0] == 1
        and times[-1] == 0
        and bool((times.diff() <= 0).all())
    )
    levels = expected_level(process, times)
    jumps = (levels[:-1] - levels[1:]) * steps / (levels[0] - levels[-1])
    # next to t = 1 a rounding error of the time moves the level of a deep hierarchy
    assert (jumps - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "process", [dd.presets.mdlm(5), dd.presets.staged([0, 0, 1, 1])], ids=["masks", "staged"]
)
def test_times_of_jumps_at_a_constant_rate_are_equally_spaced(process):
    found = equal_jump_times(process, 16)
    torch.testing.assert_close(found, torch.linspace(1, 0, 17, dtype=F64), atol=1e-15, rtol=0)


def test_a_deep_hierarchy_makes_half_of_its_jumps_in_the_first_equal_step():
    """The number of docs/samplers.md, and that no step of equal jumps has more than its share."""
    parents = [[i // 2 for i in range(2 * size)] for size in (128, 64, 32, 16, 8, 4, 2)]
    process = dd.presets.hdlm_levels(parents)
    shares = {}
    for name, times in (
        ("time", torch.linspace(1, 0, 65, dtype=F64)),
        ("jumps", equal_jump_times(process, 64)),
    ):
        shares[name] = -expected_level(process, times).diff() / 8
    assert shares["time"][0] == pytest.approx(0.485, abs=1e-3) and shares["jumps"].max() < 1.02 / 64


def test_samples_follow_times_of_equal_jumps():
    process = dd.presets.hdlm([0, 0, 1, 1])
    seen = []

    def network(z, t):
        seen.append(t[0].double())
        return torch.zeros(*z.shape, 4)

    times = equal_jump_times(process, 6)
    drawn = dd.sample(process, network, (64, 8), steps=times, controls=[dd.controls.WholeBatch()])
    assert tuple(drawn.shape) == (64, 8)
    torch.testing.assert_close(
        torch.stack(seen), times[:-1], atol=1e-7, rtol=0
    )  # networks take times in float32


test_times_of_equal_jumps_are_refused = refuses(r"""
    equal_jump_times(dd.processes.GIDD(5, 0.2), 4) | TypeError | must have levels
    equal_jump_times(dd.presets.mdlm(5), 0) | ValueError | steps is 0
""")


test_a_number_in_place_of_a_generator_is_refused = refuses(r"""
    dd.sample_times(3, generator=0) | TypeError | generator is 0, must be a torch.Generator
    dd.bound(dd.presets.mdlm(3), print, torch.zeros(1, 2).long(), 0) | TypeError | generator is 0
""")
