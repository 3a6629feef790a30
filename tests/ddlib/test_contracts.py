"""Every registered class is tested by being registered: its examples go through every check of its
kind.
"""

import pytest

import ddlib as dd
from ddlib.config.registry import PROVED, available
from ddlib.testing import check, check_registered

pytestmark = pytest.mark.usefixtures("as_users_call")
REGISTERED = [(kind, name) for kind in PROVED for name in available(kind)]


@pytest.mark.parametrize(("kind", "name"), REGISTERED, ids=str)
def test_a_registered_class_is_right(kind, name):
    reports = check_registered(kind, name)
    assert reports and all(report.ok for report in reports)


@pytest.mark.parametrize(("kind", "name"), REGISTERED, ids=str)
def test_a_registered_class_is_right_at_full_level(kind, name):
    check_registered(kind, name, "full")


NAMES = {
    "samplers": "psi remask overshoot corrected particles confidence "
    "entropy_bounded euler tau_leaping "
    "theta_trapezoidal",
    "correctors": "forward_backward edge_balance gibbs self_correction",
    "lengths": "rho_eos daedal",
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_are_registered(kind):
    assert set(NAMES[kind].split()) <= set(available(kind))


def test_one_check_serves_every_kind():
    objects = [
        dd.schedules.Cosine(),
        dd.hierarchies.Flat(3),
        dd.presets.mdlm(3),
        dd.times.Beta(2.0, 1.0),
        dd.paces.Blocks(2),
        dd.samplers.FirstHitting(),
        dd.samplers.Gibbs(),
        dd.guidance.ClassifierFree.examples()[0],
        dd.weightings.Clip(2.0),
    ]
    assert all(check(subject).ok for subject in objects)


def test_a_kit_raises_with_the_counterexample():
    class Rising(dd.schedules.Schedule):
        def alpha(self, t, xp=None):
            return t

    with pytest.raises(AssertionError, match=r"alpha\(t\) at t = 0: expected 1, got 0"):
        check(Rising())


class Known:
    """Run context of some tokens."""

    def vocab_size(self) -> int:
        return 7

    def vocabulary(self) -> dict[str, int]:
        return {
            token: index for index, token in enumerate(["the", ".", "a", ",", "cat", "sat", "on"])
        }

    def counts(self) -> list[int]:
        return [50, 40, 30, 20, 3, 2, 1]

    def parents(self) -> list[list[int]]:
        return [[0, 1, 0, 1, 2, 2, 1]]


PRESETS = {"punctuated": {"schedule": "cosine", "bands": 2}, "hdlm_noisy": {"p_uniform": 0.2}}
"""Values for those that need some."""


ALIKE = {"staged", "staged_levels", "hdlm_noisy", "punctuated"} & {*available("presets")}
"""Presets whose processes are of classes that other presets give too, in more time than those.

The last is a plug-in's,
which DDLIB_PLUGINS=0 hides."""


@pytest.mark.parametrize("name", available("presets"))
def test_a_registered_preset_gives_a_right_process(name):
    check(dd.build("processes", {"kind": name} | PRESETS.get(name, {}), Known()))


def test_sources_without_examples_are_refused_by_their_kind():
    with pytest.raises(
        ValueError, match=r"kind is 'backbones', must be one of schedules, .*samplers"
    ):
        check_registered("backbones", "dit")
