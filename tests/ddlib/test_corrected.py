"""The sampler that takes corrections between its steps: when, at which cost, for whom, and by which
values.
"""

from dataclasses import fields, replace

import pytest
import torch
from refusals import refuses
from zoo.calls import at, context, generate, row_by_row, seeded
from zoo.joints import PAIR
from zoo.networks import Halves, never, plain
from zoo.processes import IN_PLACE, LEVELS
from zoo.samplers import CORRECTORS, serves

import ddlib as dd
from ddlib.contrib import Psi
from ddlib.processes import GIDD, Masked, Product
from ddlib.samplers import (
    Ancestral,
    Corrected,
    Corrector,
    EdgeBalance,
    ForwardBackward,
    Gibbs,
    Remask,
    SelfCorrection,
)
from ddlib.samplers.base import Guarantees
from ddlib.schedules import Linear
from ddlib.testing.oracle import exact_cavity

FIELDS = Product({"a": Masked(3, Linear()), "b": Masked(3, Linear())}, ["a", "b"])


class Recorder(Corrector):
    def __init__(self):
        self.seen = []

    def correct(self, run, z, t, h):
        self.seen.append((round(float(t[0]), 9), round(float(h[0]), 9), z[0, 0].item()))
        return torch.zeros_like(z)  # over the prompt as well


def test_corrections_are_made_in_the_interval_after_the_step_and_the_prompt_stands():
    recorder = Recorder()
    sampler = Corrected(Psi(0.5), recorder, 2, [0.2, 0.6])
    tokens = generate(
        GIDD(6, 0.2),
        lambda z, t: torch.zeros(*z.shape, 6),
        sampler,
        steps=5,
        prompt=torch.tensor([4]),
    )
    assert recorder.seen == [(t, 0.2, 4) for t in (0.6, 0.6, 0.4, 0.4, 0.2, 0.2)]
    assert (tokens[:, 0] == 4).all()
    recorder.seen.clear()
    generate(
        GIDD(6, 0.2),
        lambda z, t: torch.zeros(*z.shape, 6),
        Corrected(Ancestral(), recorder),
        steps=4,
    )
    assert [t for t, _, _ in recorder.seen] == [0.75, 0.5, 0.25]  # never at t = 0


def test_properties_follow_from_sampler_and_corrector():
    assert Corrected(Ancestral(), Gibbs(), 3).guarantees.max_model_calls == 4
    assert Corrected(Ancestral(), Gibbs()).guarantees.max_finalize_calls == 1
    assert Corrected(Ancestral(), SelfCorrection(steps=9)).guarantees.max_model_calls == 1
    assert Corrected(Ancestral(), SelfCorrection(steps=9)).guarantees.max_finalize_calls == 10
    exact = {
        repr(c): Corrected(Ancestral(), c).guarantees.consistent_joint
        for c in (*CORRECTORS, Gibbs())
    }
    assert [text for text, right in exact.items() if right] == [
        repr(c) for c in (*CORRECTORS[:2], Gibbs())
    ]
    assert [Corrected(Ancestral(), c).guarantees.exact_marginals for c in CORRECTORS] == [
        True
    ] * 4 + [False]
    assert (
        Corrected(
            Corrected(Ancestral(), Gibbs()), SelfCorrection(steps=9)
        ).guarantees.max_finalize_calls
        == 10
    )
    end = "EdgeBalance(strength=1.0, force_transition=False), steps=1, interval=(0.0, 1.0))"
    assert repr(Corrected(Remask(0.1), EdgeBalance())).endswith(end)


MENDED = [
    ("uniform", Gibbs()),
    ("masked", EdgeBalance()),
    ("masked", ForwardBackward()),
    ("clusters", EdgeBalance()),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "corrector"), MENDED, ids=repr)
def test_corrections_repair_the_error_of_long_steps(name, corrector):
    process = {**IN_PLACE, "masked": Masked(3, Linear())}[name]
    errors = []
    for sampler in (Ancestral(), Corrected(Ancestral(), corrector, 4)):
        x = dd.sample(
            process, exact_cavity(process, PAIR), (10_000, 2), sampler, 4, generator=seeded()
        )
        share = torch.bincount(3 * x[:, 0] + x[:, 1], minlength=9) / len(x)
        errors.append(float((share - PAIR.flatten()).abs().sum()))
    assert errors[1] < 0.85 * errors[0]


SERVED = [
    (name, corrector)
    for name in ("masked", "levels", "levels-xi", "gidd")
    for corrector in CORRECTORS
]


FEW = ("levels", CORRECTORS[4]), ("gidd", CORRECTORS[3])


@pytest.mark.parametrize(("name", "corrector"), SERVED, ids=repr)
def test_a_batch_and_the_output_layer_change_nothing(name, corrector):
    process = GIDD(6, 0.3) if name == "gidd" else LEVELS[name]
    if not serves(corrector, process):
        with pytest.raises(TypeError, match=f"{type(corrector).__name__} needs"):
            generate(process, Halves(process), Corrected(Ancestral(), corrector))
        return
    sampler = Corrected(Ancestral(), corrector, 2)
    halves = Halves(process)
    tokens = generate(process, halves, sampler)
    assert (
        0
        < halves.calls
        <= 7 * sampler.guarantees.max_model_calls + sampler.guarantees.max_finalize_calls
    )
    assert torch.equal(generate(process, plain(halves), sampler), tokens)
    assert torch.equal(
        generate(process, halves, sampler, controls=[dd.controls.WholeBatch()]), tokens
    )
    assert torch.equal(row_by_row(process, halves, sampler), tokens)
    assert not torch.equal(tokens, generate(process, halves))


@pytest.mark.parametrize("name", ["masked", "levels-xi"])
def test_edge_balance_calls_the_network_only_for_positions_that_descend(name):
    process = LEVELS[name]
    halves = Halves(process)
    z = torch.zeros(3, 4, dtype=torch.int64)
    run = context(process, halves, z.shape)
    assert torch.equal(EdgeBalance(0.0).correct(run, z, at(0.5, 3), at(0.1, 3)), z)
    climbed = EdgeBalance(10.0).correct(run, z, at(0.5, 3), at(0.1, 3))
    assert halves.calls == 0 and (climbed >= process.vocab_size).any()
    EdgeBalance(10.0).correct(
        run, torch.full_like(z, process.num_states - 1), at(0.5, 3), at(0.1, 3)
    )
    assert halves.calls == 1


test_bad_input_is_refused_before_the_network_runs = refuses(r"""
    ForwardBackward(0) | ValueError | amount is 0, must be in \[0.001, 1000\]
    EdgeBalance(11) | ValueError | strength is 11, must be in \[0, 10\]
    Gibbs(0) | ValueError | positions is 0, must be at least 1
    Gibbs(1.5) | TypeError | positions is 1.5, must be an int
    Gibbs(1, "best") | ValueError | select is 'best', must be one of 'random', 'margin'
    SelfCorrection(steps=0) | ValueError | steps is 0, must be at least 1
    SelfCorrection(time=0) | ValueError | time is 0, must be in \(0, 1\)
    SelfCorrection(temperature=0) | ValueError | temperature is 0, must be above 0
    SelfCorrection(patience=0) | ValueError | patience is 0, must be at least 1
    Corrected(Gibbs(), Ancestral()) | TypeError
        | predictor is Gibbs\(.*\), must be a ddlib.samplers.Samp
    Corrected(Ancestral(), Psi()) | TypeError
        | corrector is Psi\(.*\), must be a ddlib.samplers.Corrector
    Corrected(FirstHitting(), Gibbs()) | TypeError
        | predictor is FirstHitting.*no time for a corrector.*Ancestral
    Corrected(Ancestral(), Gibbs(), 0) | ValueError | steps is 0, must be at least 1
    Corrected(Ancestral(), Gibbs(), 1, [0.5]) | ValueError | interval is \[0.5\], must be two times
    Corrected(Ancestral(), Gibbs(), 1, [0.5, 2]) | ValueError
        | interval\[1\] is 2, must be in \[0, 1\]
    Corrected(Ancestral(), Gibbs(), 1, [0.5, 0.5]) | ValueError | interval is .*, the earlier first
    refused("masked", Gibbs()) | TypeError | Gibbs needs at least two states.*has 1: .*use Remask
    refused("levels", Gibbs()) | TypeError | Gibbs needs at least two states.*never wrong.*Remask
    refused("levels-xi", SelfCorrection()) | TypeError
        | SelfCorrection needs a process whose tokens.*Remask
    refused("gidd", EdgeBalance()) | TypeError
        | EdgeBalance needs a process with levels.*use ForwardBackward
""")


def refused(name, corrector):
    process = GIDD(6, 0.2) if name == "gidd" else LEVELS[name]
    generate(process, never, Corrected(Ancestral(), corrector))


# names and values


def test_parts_of_short_strings_are_read_again():
    given = 'corrected:predictor=ancestral,corrector={"kind": "gibbs", "positions": 4},steps=2'
    read = dd.parts.read("samplers", given)
    assert read["corrector"] == {"kind": "gibbs", "positions": 4, "select": "random"}
    assert dd.parts.read("samplers", read) == read


def build_corrected(**values):
    return dd.build("samplers", {"kind": "corrected", "predictor": "ancestral"} | values)


test_values_that_cannot_be_are_refused_by_their_place = refuses(r"""
    build_corrected(corrector="gibs") | ValueError
        | samplers.corrector.kind: nothing in correctors is called 'gibs', did you mean 'gibbs'
    build_corrected(corrector="gibbs:0")
        | ValueError | samplers.corrector: positions is 0, must be at least 1
    build_corrected(corrector={"kind": "gibbs", "position": 2})
        | ValueError | samplers.corrector.position: no such key; did you mean positi
    build_corrected() | ValueError | samplers.corrector: is missing
    build_corrected(corrector="ddlib.contrib:Psi")
        | TypeError | samplers.corrector: .*Psi returns Psi.*must be a ddlib.samplers.Corrector
""")


def test_a_class_of_another_kind_is_refused_with_the_expected_package():
    packages = {kind: f"ddlib.{kind}" for kind in ("samplers", "presets", "schedules")} | {
        "correctors": "ddlib.samplers"
    }
    assert {kind: dd.registry.package_of(kind) for kind in packages} == packages


@pytest.mark.parametrize("corrector", [EdgeBalance(1.0), ForwardBackward(1.0)])
def test_corrections_are_at_the_time_of_the_states_where_a_predictor_maps_the_grid(corrector):
    """The share of masks under the linear schedule is the time of the states, which differs from
    that of the grid.
    """
    process = Masked(4, Linear())
    shares = []
    sampler = Corrected(Remask(1.0, "loop", t_on=0.55, t_off=0.05, plateau=0.2), corrector)
    generate(
        process,
        lambda z, t: torch.zeros(*z.shape, 4),
        sampler,
        (1, 4000),
        steps=20,
        on_step=lambda k, t, z: shares.append((float(t[0]), float((z == 4).float().mean()))),
    )
    assert len(shares) >= 20 and all(abs(share - t) < 0.04 for t, share in shares)


SUPPORTED = [one.name for one in fields(Guarantees) if one.name.startswith("supports")]


@pytest.mark.parametrize("flag", SUPPORTED)
def test_what_a_part_does_not_support_the_corrected_sampler_does_not(flag):
    class Without(Ancestral):
        @property
        def guarantees(self):
            return replace(super().guarantees, **{flag: False})

    class Idle(Recorder):
        @property
        def guarantees(self):
            return replace(super().guarantees, **{flag: False})

    assert not getattr(Corrected(Without(), EdgeBalance()).guarantees, flag)
    assert not getattr(Corrected(Ancestral(), Idle()).guarantees, flag)


test_a_corrector_lifts_no_refusal_of_its_predictor = refuses(r"""
    dd.sample(FIELDS, never, (1, 2), Corrected(dd.contrib.ThetaTrapezoidal(), EdgeBalance()))
        | TypeError | needs the same tokens at all positions, .* fields
""")
