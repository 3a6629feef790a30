"""Fifty digits of mpmath against float32 times: occupancies, weights and transitions to 1e-6, up to
six levels.
"""

from functools import cache

import mpmath
import pytest
import torch
from cases import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.processes.level_chain import PowerChain
from ddlib.testing import strategies

TINY = 1.2e-38  # below this float32 has no full digits to be right in
TIMES = [1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 1 - 1e-5, 1 - 2.0**-24]
SPEEDS = [
    (1.0,),
    (0.5,),
    (1.0, 1.0),
    (1.0 + 1e-9, 1.0),
    (3.0, 1.0),
    (0.5, 4.0),
    (4.0, 0.5),
    (1.0,) * 6,
    (0.5,) * 6,
    (4.0,) * 6,
    (0.5, 4.0, 4.0, 0.5, 1.0, 1.0 + 1e-9),
    (4.0, 3.0, 2.0, 1.0, 0.5, 0.7),
    (1.0, 2.0, 1.0, 2.0, 1.0, 2.0),
]


# six levels in a hundred digits take seconds
DEEP_LAST = [*SPEEDS[2:8], *(speeds for speeds in SPEEDS[8:11]), *SPEEDS[11:12], SPEEDS[12]]


@cache
def exact_transition(speeds, duration):
    """exp(duration G) by mpmath's Taylor series with 100 working digits."""
    n = len(speeds)
    with mpmath.workdps(100):
        matrix = mpmath.zeros(n + 1)
        for i, speed in enumerate(speeds):
            matrix[i, i], matrix[i, i + 1] = (
                -mpmath.mpf(speed) * duration,
                mpmath.mpf(speed) * duration,
            )
        return mpmath.expm(matrix, method="taylor")


def hazard(t):
    with mpmath.workdps(100):
        return -mpmath.log(1 - mpmath.mpf(t))


def relative_error(ours, exact):
    return abs(float((mpmath.mpf(float(ours)) - exact) / exact))


def process_with(speeds):
    tree = dd.hierarchies.Tree(
        [torch.arange(9 - i).clamp_max(7 - i) for i in range(len(speeds) - 1)], speed=speeds
    )
    return dd.processes.Hierarchical(tree, dd.schedules.Linear())


@pytest.mark.parametrize("speeds", DEEP_LAST, ids=str)
def test_occupancies_and_weights_from_float32_times(speeds):
    process = process_with(speeds)
    t = torch.tensor(TIMES, dtype=torch.float32)
    occupancies = process.occupancies(t)
    weights = process.weights(t)
    assert (occupancies >= 0).all() and weights.isfinite().all()
    for row, time in enumerate(t.double().tolist()):
        exact = exact_transition(speeds, hazard(time))
        with mpmath.workdps(50):
            rate = 1 / (1 - mpmath.mpf(time))
            for i in range(len(speeds) + 1):
                assert relative_error(occupancies[row, i], exact[0, i]) < 1e-10
                if exact[0, i] > TINY:
                    assert relative_error(occupancies[row, i].float(), exact[0, i]) < 1e-6
                if i > 0:
                    weight = speeds[i - 1] * rate * exact[0, i - 1] / exact[0, i]
                    assert relative_error(weights[row, i].float(), weight) < 1e-6


@settings(max_examples=examples(60))
@given(
    st.lists(strategies.speeds, min_size=1, max_size=6).map(tuple),
    strategies.times,
    st.floats(0.0, 1.0),
)
@example((1.0 + 1e-9, 1.0), 1e-8, 0.5)
def test_transitions_between_float32_times(speeds, t, fraction):
    late = torch.tensor([t], dtype=torch.float32)
    early = late * fraction
    duration = hazard(float(late)) - hazard(float(early))
    ours = PowerChain(dd.schedules.Linear(), speeds).transition(early.double(), late.double())[0]
    exact = exact_transition(speeds, duration)
    # the difference of two hazards has a relative rounding error of 2^-52 hazard / duration
    slack = (
        1e-9 + 1e-14 * float(hazard(float(late)) / duration) * len(speeds) if duration > 0 else 0
    )
    for i in range(len(speeds) + 1):
        for j in range(i, len(speeds) + 1):
            if exact[i, j] > 1e-290:
                assert relative_error(ours[i, j], exact[i, j]) <= min(slack, 1e-6)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.0 + 1e-9, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("t", TIMES)
def test_the_papers_family_in_closed_form(gamma, t):
    """Theory section 4's formulas, in fifty digits, with the g -> 1 limit taken by extra digits."""
    t = float(torch.tensor(t, dtype=torch.float32))
    process = dd.presets.hdlm([0, 0, 1], gamma=gamma)
    time = torch.tensor([t], dtype=torch.float32)
    with mpmath.workdps(60):
        g = mpmath.mpf(gamma)
        s = 1 - mpmath.mpf(t)
        if gamma == 1:
            cluster = -s * mpmath.log(s)
            w1 = 1 / cluster
            w2 = -mpmath.log(s) / (1 - s + s * mpmath.log(s))
        else:
            cluster = g / (g - 1) * (s - s**g)
            w1 = (g - 1) * s ** (g - 2) / (1 - s ** (g - 1))
            w2 = g * (1 - s ** (g - 1)) / (g * (1 - s) + s**g - 1)
        for ours, exact in zip(
            process.occupancies(time)[0], (s**g, cluster, 1 - s**g - cluster), strict=True
        ):
            assert relative_error(ours.float(), exact) < 1e-6
        for ours, exact in zip(process.weights(time)[0, 1:], (w1, w2), strict=True):
            assert relative_error(ours.float(), exact) < 1e-6


def test_the_mask_has_mass_at_small_times_in_float32():
    """At t = 1e-4 the authors' code has the wrong sign of the mask mass."""
    t = torch.tensor([1e-4], dtype=torch.float32)
    assert float(dd.presets.hdlm([0, 1, 1]).occupancies(t)[0, 2]) == pytest.approx(
        5.0001667e-9, rel=1e-6
    )


@pytest.mark.parametrize(
    "preset", ["mdlm", "gidd", "hdlm", "hdlm-xi", "levels", "uniform", "rates"]
)
@pytest.mark.parametrize("t", [0.0, 1e-30, 1e-8, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_bound_and_its_gradient_are_finite_at_the_ends_of_time(preset, t, dtype):
    process = {
        "mdlm": dd.presets.mdlm(6),
        "gidd": dd.presets.gidd(6, 0.2),
        "hdlm": dd.presets.hdlm([0, 0, 1, 1, 2, 2], gamma=0.5),
        "hdlm-xi": dd.presets.hdlm([0, 0, 1, 1, 2, 2], xi=0.9),
        "levels": dd.presets.hdlm_levels([[0, 0, 1, 1, 2, 2], [0, 0, 1]], xi=[0.9, 1.0]),
        "uniform": dd.processes.Uniform(6, dd.schedules.Cosine()),
        "rates": dd.processes.RateMatrix(
            torch.full((6, 6), 1.0) - 6 * torch.eye(6), dd.schedules.Linear()
        ),
    }[preset]
    x = torch.arange(6)[None].expand(4, -1).contiguous()
    times = torch.full((4,), t, dtype=dtype)
    z = process.sample(x, times, seeded())
    for scale in (0.0, 1.0, 40.0):  # as flat, as usual and as sure as networks get
        for parameterization in ("cavity", "posterior"):
            logits = scale * torch.randn(4, 6, 6, dtype=dtype, generator=seeded(1))
            logits.requires_grad_()
            value = dd.nelbo(process, logits, x, z, times, parameterization=parameterization)
            assert value.isfinite().all() and (value >= 0).all() and value.dtype == dtype
            value.sum().backward()
            assert logits.grad.isfinite().all()


@settings(max_examples=examples(60))
@given(strategies.processes(), st.floats(1e-3, 1 - 1e-3), st.data())
def test_float32_follows_float64(process, t, data):
    x = torch.arange(process.vocab_size)[None]
    time = torch.tensor([t], dtype=torch.float32)
    z = process.sample(x, time, seeded(data.draw(st.integers(0, 999))))
    logits = data.draw(strategies.token_logits(1, process.vocab_size, process.vocab_size))
    exact = dd.nelbo(process, logits.float().double(), x, z, time)
    single = dd.nelbo(process, logits.float(), x, z, time)
    if process.closed_form:
        slack = 1e-5
        rate = process.weighted_divergence(logits, x, z, time)[0]
    else:
        slack = 1e-5 * (1 + float(exact.max()))
        rate = process.rate_matrix(t).abs().max()
    assert ((single - exact).abs() <= slack * (1 + rate) + 1e-4 * exact).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    process = dd.presets.hdlm([0, 0, 1, 1, 2, 2], xi=0.9)
    x = torch.arange(6)[None]
    t = torch.tensor([0.5])
    z = process.sample(x, t, seeded())
    logits = torch.randn(1, 6, 6, generator=seeded()).to(dtype)
    kept = logits.clone()
    value = dd.nelbo(process, logits, x, z, t)
    assert value.dtype == torch.float32
    assert torch.equal(value, dd.nelbo(process, logits.float(), x, z, t))
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("gamma", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("p_uniform", [0.1, 0.5, 0.9])
def test_a_language_of_one_token_costs_nothing_however_large_the_weight(p_uniform, gamma):
    process = dd.processes.GIDD(1, p_uniform, gamma)
    t = torch.logspace(-12, -0.001, 9, dtype=F64)
    x = torch.zeros(9, 2, dtype=torch.int64)
    z = torch.tensor([[0, 1]]).expand(9, 2)
    assert (dd.nelbo(process, torch.zeros(9, 2, 1, dtype=F64), x, z, t) < 1e-200).all()
