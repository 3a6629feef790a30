"""Agreement of the public interface, draws and losses with the snapshots.

``python tests/snapshots`` renews them.
"""

import difflib
import json

import pytest
import recorded_draws
import recorded_refusals
from public_interface import SUBJECTS, as_text, path_of

import ddlib as dd
from ddlib.samplers.requirements import TABLE

EXACT = SUBJECTS | {"draws": recorded_draws.samples} | recorded_refusals.SUBJECTS


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", EXACT)
def test_names_flags_and_draws_are_as_recorded(name):
    recorded = path_of(name).read_text(encoding="utf-8")
    found = as_text(EXACT[name]())
    changed = difflib.unified_diff(
        recorded.splitlines(), found.splitlines(), "recorded", "found", lineterm="", n=2
    )
    assert recorded == found, "\n".join(["renew by: python tests/snapshots " + name, *changed])


@pytest.mark.usefixtures("as_users_call")
def test_draws_of_levels_are_as_recorded():
    recorded = json.loads(path_of("draws").read_text(encoding="utf-8"))
    for name, draws in recorded_draws.samples(("xi",)).items():
        assert draws.items() <= recorded[name].items(), (
            f"{name}: renew by: python tests/snapshots draws"
        )


@pytest.mark.usefixtures("as_users_call")
def test_losses_are_as_recorded():
    recorded = json.loads(path_of("losses").read_text(encoding="utf-8"))
    found = recorded_draws.losses()
    assert recorded.keys() == found.keys()
    for kind, values in recorded.items():
        assert values.keys() == found[kind].keys()
        for name, value in values.items():  # processors differ in the last bits of a float64
            same = (
                found[kind][name]
                if isinstance(value, str)
                else pytest.approx(found[kind][name], 1e-12, 1e-12, True)
            )
            assert value == same, f"{kind}, {name}: renew by: python tests/snapshots losses"


def test_every_requirement_is_refused_by_a_recorded_call():
    """Each row of the table refuses some call, so none is beyond reach."""
    refused = set()
    for make in recorded_refusals.CALLS.values():
        try:
            make()
        except dd.samplers.UnsupportedError as error:
            refused.add(error.need)
        except (TypeError, ValueError):
            pass
    assert refused == {row.need for row in TABLE}
