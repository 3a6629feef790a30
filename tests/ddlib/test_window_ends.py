"""Windows that end, or start, inside (0, 1) with a flux that would diverge: bounds, losses, times
and draws.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.objective.bound import variance_caveat
from ddlib.paces import Blocks, Draw, LeftToRight, Ramp, Together
from ddlib.processes import Hierarchical
from ddlib.processes.chord import WIDTH, Chord, finite_flux
from ddlib.schedules import Cosine, Linear, Polynomial, Symbolic, Window

F64 = torch.float64
PARENTS = [0, 0, 0, 0, 1, 1, 1, 1]
ROOT = Symbolic("1 - sqrt(t)")


def windowed(speed, end=0.5, start=0.5, lower=None, upper=None):
    """Process over 8 tokens whose tokens become clusters until ``end``, and clusters masks from
    ``start``.
    """
    tree = dd.hierarchies.Tree([PARENTS], speed=[speed, 1.0])
    windows = [Window(lower or Linear(), 0.0, end), Window(upper or Linear(), start, 1.0)]
    return Hierarchical(tree, windows)


def uniform(z, t):
    return torch.zeros(*z.shape, 8)


uniform.own_times = True
CASES = {
    "speed 1/2": windowed(0.5),
    "speed 1/4": windowed(0.25),
    "overlap, speed 1/10": windowed(0.1, 0.55, 0.45),
    "staged": dd.presets.staged(PARENTS, schedule=Polynomial(0.5)),
    "late root": windowed(1.0, 0.6, 0.4375 - 2.0**-50, upper=ROOT),
}


def check_bound(process, rows=512, length=32, seed=0, error=0.2, **options):
    """Require that the bound of uniform predictions is log 8 within its stated error, which is at
    most ``error``.
    """
    x = torch.randint(8, (rows, length), generator=torch.Generator().manual_seed(seed))
    found = dd.bound(
        process, uniform, x, torch.Generator().manual_seed(seed + 1), **options
    ).per_token
    assert abs(found.value - math.log(8)) < 5 * found.standard_error, (
        found.value,
        found.standard_error,
    )
    assert found.standard_error < error, found.standard_error


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@settings(max_examples=examples(15), deadline=None)
@given(
    st.floats(0.02, 2.0),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0),
    st.data(),
    st.sampled_from([0.2, 1.0]),
    st.integers(0, 2**20),
)
def test_the_bound_of_uniform_predictions_is_the_entropy_of_uniform_tokens(
    dtype, speed, end, share, data, chance, seed
):
    inner = st.one_of(
        st.just(Linear()),
        st.builds(Polynomial, st.floats(0.05, 3.0)),
        st.just(Cosine()),
        st.just(ROOT),
    )
    process = windowed(speed, end, end * share, data.draw(inner), data.draw(inner))
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        check_bound(process, seed=seed, density=process.time_density(32, chance=chance))
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("name", CASES)
def test_real_sizes_have_small_errors_under_the_own_density(name):
    process = CASES[name]
    density = process.time_density(128, chance=0.2)
    x = torch.randint(8, (4096, 128), generator=torch.Generator().manual_seed(0))
    found = dd.bound(
        process, uniform, x, torch.Generator().manual_seed(1), density=density
    ).per_token
    assert (
        abs(found.value - math.log(8)) < 4 * found.standard_error and found.standard_error < 0.008
    )
    assert found.caveat == ""


def neighbours(end, dtype):
    """Time of a dtype nearest to ``end``, and the ones before and after it."""
    at = torch.tensor(end, dtype=dtype)
    return torch.stack([at.nextafter(torch.zeros_like(at)), at, at.nextafter(torch.ones_like(at))])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("end", [0.5, 0.55, 0.3 - 1e-15])
@pytest.mark.parametrize("speed", [0.5, 0.1])
def test_losses_at_an_end_are_the_closed_form(dtype, end, speed):
    """The survival (1 - t / end)^speed, and its chord to 0 from ``end - WIDTH`` on."""
    process = windowed(speed, end, end)
    t = neighbours(end, dtype)
    x = torch.zeros(3, 1, dtype=torch.long)
    z = torch.full((3, 1), 8)
    found = [
        dd.nelbo(process, uniform(z, t), x, z, t),
        dd.training_loss(process, uniform(z, t), x, z, t, reduction="none"),
        dd.training_loss(process, uniform(z, t).double(), x, z, t[:, None], reduction="none"),
    ]
    with mpmath.workdps(40):
        low = mpmath.mpf(end - WIDTH)
        high = mpmath.mpf(end)
        height = (1 - low / high) ** mpmath.mpf(speed)
        expected = []
        for time in t.double().tolist():
            left = (
                height
                * max(high - min(mpmath.mpf(time), mpmath.mpf(math.nextafter(end, 0))), 0)
                / (high - low)
            )
            weight = height / (high - low) / (1 - left) if time <= end else mpmath.mpf(0)
            expected.append(float(weight * mpmath.log(4)))
    for values in found:
        assert values[:, 0].tolist() == pytest.approx(expected, rel=1e-5)
    assert max(expected) < 4 / WIDTH


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pace", [Blocks(8), LeftToRight(), Ramp(0.5)])
def test_bounds_at_a_time_per_position(name, pace):
    # a density of the place on a path does not follow the times of all positions of a ramp
    check_bound(CASES[name], 1024, 16, error=0.5, pace=pace, density=CASES[name].time_density(8))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "options", [{"levels": "balanced"}, {"steps": 64}, {"interval": (0.1, 0.9)}]
)
def test_other_forms_of_the_bound(name, options):
    options = {"density": CASES[name].time_density(32)} | options
    check_bound(CASES[name], 1024, **options)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("drawn", [True, False])
def test_training_losses_have_the_mean_of_the_bound(name, drawn):
    process = CASES[name]
    rows = 2**14
    length = 16
    density = process.time_density(length)
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(8, (rows, length), generator=generator)
    if drawn:
        t = Together().draw(rows, length, generator, density=density)
        z = process.sample(x, t.t, generator)
    else:
        times = dd.sample_times(rows, generator=generator, density=density)
        z = process.sample(x, times, generator)
        t = Draw(times, density.weight(times))
    loss = dd.training_loss(process, uniform(z, t), x, z, t, reduction="none").mean(1)
    assert bool(loss.isfinite().all())
    assert abs(float(loss.mean()) - math.log(8)) < 4 * float(loss.std()) / math.sqrt(rows)


@pytest.mark.parametrize("speed", [0.5, 0.1, 0.02])
@pytest.mark.parametrize(("end", "start"), [(0.5, 0.5), (0.5, 0.25), (0.5, 0.4999), (0.55, 0.45)])
def test_weights_of_rounded_times_are_those_of_times_before_an_end(speed, end, start):
    """Times that are rounded to an end have the flux before it, so a density there is that of the
    cell before it.
    """
    process = windowed(speed, end, start)
    spacing = float(np.spacing(np.float32(end)))
    t = (
        torch.tensor([end + step * spacing for step in range(-6, 7)], dtype=torch.float32)
        .double()
        .unique()
    )
    cells = (t[1:] + t[:-1]) / 2
    t = t[1:-1]
    flux = process.time_moments(t)[0]
    for density in (
        dd.times.Uniform(),
        process.time_density(16),
        process.time_density(16, chance=0.2),
    ):
        drawn = density.weight(t) * flux
        found = float(drawn @ density.cumulative(cells).diff())
        expected = float(flux @ cells.diff())
        assert found == pytest.approx(expected, rel=0.2, abs=6e-4)
        assert isinstance(density, dd.times.Uniform) or float(drawn.max()) < 50


@pytest.mark.parametrize("speed", [0.5, 0.1])
def test_jump_times_near_an_end_have_the_occupancies(speed):
    process = windowed(speed, 0.55, 0.45)
    entries, _ = process.sample_jump_times(
        (400, 500), torch.Generator().manual_seed(0), torch.device("cpu")
    )
    t = torch.tensor([0.549, 0.55 - WIDTH / 2, 0.55 - WIDTH / 16, 0.551], dtype=F64)
    found = torch.stack([(entries[..., 0] > time).double().mean() for time in t])
    expected = process.occupancies(t)[:, 0]
    assert found.tolist() == pytest.approx(expected.tolist(), abs=4 * math.sqrt(0.25 / 200_000))
    assert float(entries[..., 0].max()) <= 0.55


def test_schedules_with_a_finite_flux_are_unchanged():
    for schedule in (
        Linear(),
        Cosine(),
        Window(Linear(), 0.25, 0.5),
        Window(Polynomial(2.0), 0.0, 0.5),
    ):
        assert finite_flux(schedule, 1.0) is schedule
    root = Window(Polynomial(0.5), 0.0, 0.5)
    assert finite_flux(root, 2.0) is root and isinstance(finite_flux(root, 1.9), Chord)


@settings(max_examples=examples(30), deadline=None)
@given(st.floats(0.05, 0.9), st.floats(2e-6, 1.0), st.floats(0.02, 0.95), st.floats(0.0, 1.0))
def test_a_chord_is_linear_and_consistent(start, length, speed, share):
    """alpha^speed is linear on the chord.

    Rate and time_of agree with hazard; all is unchanged elsewhere.
    """
    end = min(start + length, 0.99)
    length = end - start
    window = Window(Linear(), start, end)
    chord = finite_flux(window, speed)
    assert isinstance(chord, Chord) and chord.support == (start, end)
    t = torch.tensor([chord.low + share * (chord.high - chord.low)], dtype=F64)
    exact = chord.schedule.hazard(torch.tensor([chord.low], dtype=F64)).neg().mul(speed).exp() * (
        1 - share
    )
    rounding = 1e-15 / (chord.high - chord.low)
    assert chord.hazard(t).mul(-speed).exp().tolist() == pytest.approx(
        exact.tolist(), abs=1e-12 + 4 * rounding
    )
    again = chord.time_of(chord.hazard(t))
    assert again.tolist() == pytest.approx(t.tolist(), abs=1e-12)
    before = torch.tensor([start + share * (chord.low - start)], dtype=F64)
    assert torch.equal(chord.hazard(before), window.hazard(before))
    assert torch.equal(chord.rate(before), window.rate(before))


def test_the_caveat_names_ends_of_windows():
    for name, times in {
        "speed 1/4": "t = 0 and t = 0.5 the variance is infinite",
        "overlap, speed 1/10": "t = 0 and t = 0.45 and t = 0.55 the variance is infinite",
    }.items():
        assert f"near {times}: use density=process.time_density(8" in variance_caveat(
            CASES[name], None, 8
        )
        assert variance_caveat(CASES[name], CASES[name].time_density(8, chance=0.2), 8) == ""
    outer = dd.times.Beta(0.5, 0.5)
    assert "near t = 0.5 the variance is infinite or due to rare draws" in variance_caveat(
        CASES["staged"], outer, 8
    )
    assert variance_caveat(CASES["speed 1/4"], None, 8, interval=(0.6, 0.9)) == ""
    assert "near t = 0.5 the" in variance_caveat(CASES["speed 1/4"], None, 8, interval=(0.1, 0.9))
    assert set(CASES["staged"].tail_exponents()) == {0.0, 0.5, 1.0}


def test_the_hazard_of_a_root_is_0_at_0_in_float32():
    assert ROOT.hazard(torch.zeros(1)).tolist() == [0.0]
