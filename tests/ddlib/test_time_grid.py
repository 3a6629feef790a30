"""Times of steps with equally many expected jumps."""

import pytest
import torch
from cases import examples
from fixtures import F64
from hypothesis import given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.processes import LevelProcess
from ddlib.samplers import equal_jump_times
from ddlib.testing import strategies


def expected(process, t):
    return process.occupancies(t) @ torch.arange(len(process.levels), dtype=F64)


@settings(max_examples=examples(100))
@given(
    process=strategies.processes(strategies.all_schedules()).filter(lambda one: isinstance(one, LevelProcess)),
    steps=st.integers(1, 40),
)
def test_every_step_has_the_same_expected_number_of_jumps(process, steps):
    times = equal_jump_times(process, steps)
    assert times.shape == (steps + 1,) and times[0] == 1 and times[-1] == 0 and bool((times.diff() <= 0).all())
    levels = expected(process, times)
    jumps = (levels[:-1] - levels[1:]) * steps / (levels[0] - levels[-1])
    # next to t = 1 a rounding error of the time moves the level of a deep hierarchy
    assert (jumps - 1).abs().max() < 1e-6


@pytest.mark.parametrize("process", [dd.presets.mdlm(5), dd.presets.staged([0, 0, 1, 1])], ids=["masks", "staged"])
def test_times_of_jumps_at_a_constant_rate_are_equally_spaced(process):
    found = equal_jump_times(process, 16)
    torch.testing.assert_close(found, torch.linspace(1, 0, 17, dtype=F64), atol=1e-15, rtol=0)


def test_a_deep_hierarchy_makes_half_of_its_jumps_in_the_first_equal_step():
    """The number of docs/samplers.md, and that no step of equal jumps has more than its share."""
    parents = [[i // 2 for i in range(2 * size)] for size in (128, 64, 32, 16, 8, 4, 2)]
    process = dd.presets.hdlm_levels(parents)
    shares = {}
    for name, times in (("time", torch.linspace(1, 0, 65, dtype=F64)), ("jumps", equal_jump_times(process, 64))):
        shares[name] = -expected(process, times).diff() / 8
    assert shares["time"][0] == pytest.approx(0.485, abs=1e-3) and shares["jumps"].max() < 1.02 / 64


def test_samples_follow_the_times():
    process, seen = dd.presets.hdlm([0, 0, 1, 1]), []

    def network(z, t):
        seen.append(t[0].double())
        return torch.zeros(*z.shape, 4)

    times = equal_jump_times(process, 6)
    drawn = dd.sample(process, network, (64, 8), times=times, compact=False)
    assert tuple(drawn.shape) == (64, 8)
    torch.testing.assert_close(torch.stack(seen), times[:-1], atol=1e-7, rtol=0)  # networks take times in float32


@pytest.mark.parametrize(
    ("process", "steps", "error", "message"),
    [(dd.processes.GIDD(5, 0.2), 4, TypeError, "must have levels"), (dd.presets.mdlm(5), 0, ValueError, "steps is 0")],
)
def test_refusals(process, steps, error, message):
    with pytest.raises(error, match=message):
        equal_jump_times(process, steps)
