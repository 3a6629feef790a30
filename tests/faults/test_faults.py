"""The mutation score of ``dd.verify``: it rejects every planted fault and accepts every right
object.
"""

from importlib import import_module
from pathlib import Path

import pytest
from planting import FAULTS

import ddlib as dd

MODULES = [
    import_module(path.stem).__name__ for path in sorted(Path(__file__).parent.glob("faults_*.py"))
]

# errors by which planted code fails that no longer fits the library
STALE = ("TypeError", "AttributeError", "NameError", "unexpected field names")


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_refuted(fault, monkeypatch):
    report = dd.verify(fault.plant(monkeypatch))
    assert not report.ok, f"{fault.name} ({fault.breaks}) was accepted:\n{report}"
    assert all(check.counterexample is not None for check in report.failures)
    stale = [error for error in STALE if error != fault.raises]
    reasons = {
        check.note for check in report.failures if not any(error in check.note for error in stale)
    }
    assert reasons, (
        f"{fault.name} ({fault.breaks}) fails only by errors of the planted code:\n{report}"
    )


def test_at_least_forty_faults_are_planted_in_every_package():
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.module for fault in FAULTS} == set(MODULES)
