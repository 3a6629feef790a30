"""The mutation score of ``dd.verify``: it rejects every planted fault and accepts every right object."""

import faults_arguments
import faults_correctors
import faults_hierarchy
import faults_lessons
import faults_levels
import faults_likelihood
import faults_noisy
import faults_objective
import faults_orders
import faults_own_times
import faults_paces
import faults_particles
import faults_process
import faults_sampler
import faults_schedule
import faults_size
import faults_solvers
import faults_speeds
import faults_steering
import faults_times
import pytest
from planting import FAULTS

import ddlib as dd

MODULES = (
    faults_schedule,
    faults_hierarchy,
    faults_process,
    faults_objective,
    faults_levels,
    faults_sampler,
    faults_correctors,
    faults_solvers,
    faults_orders,
    faults_likelihood,
    faults_particles,
    faults_steering,
    faults_lessons,
    faults_speeds,
    faults_noisy,
    faults_times,
    faults_own_times,
    faults_paces,
    faults_arguments,
    faults_size,
)


# particles run several texts in place of one: each takes seconds
LONG = [fault for fault in FAULTS if fault.plant.__module__ == faults_particles.__name__]
SHORT = [fault for fault in FAULTS if fault not in LONG]


def asked(i):
    """Each time one in sixty-four, before each commit one in eight, each night every one."""
    return () if i % 64 == 20 else pytest.mark.slow if i % 8 == 0 else pytest.mark.nightly


EVERY = [
    *(pytest.param(fault, marks=asked(i)) for i, fault in enumerate(SHORT)),
    *(pytest.param(fault, marks=pytest.mark.nightly if i % 8 else pytest.mark.slow) for i, fault in enumerate(LONG)),
]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: fault.name)
def test_a_planted_fault_is_refuted(fault, monkeypatch):
    report = dd.verify(fault.plant(monkeypatch))
    assert not report.ok, f"{fault.name} ({fault.breaks}) was accepted:\n{report}"
    assert all(check.counterexample is not None for check in report.failures)


def test_at_least_forty_faults_are_planted_in_every_room():
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.plant.__module__ for fault in FAULTS} == {module.__name__ for module in MODULES}
