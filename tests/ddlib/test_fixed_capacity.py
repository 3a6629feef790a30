"""Steps of fixed sizes: the tokens of the call without them, no wait, few calls, named refusals."""

from collections import Counter

import pytest
import torch
from zoo.calls import seeded
from zoo.networks import F64, Halves
from zoo.pretended_device import Pretended
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.contrib import FixedCapacity, captured
from ddlib.samplers import (
    Ancestral,
    Confidence,
    EntropyBounded,
    FirstHitting,
    InOrder,
    LeftToRight,
    Remask,
)

ROWS = 3
LENGTH = 10
STEPS = 6
SAMPLERS = [
    Ancestral(),
    Ancestral(force_transition=True),
    Remask(0.5),
    Remask(1.0, "rescale"),
    Remask(1.0, "loop", plateau=0.4),
    FirstHitting(),
    Confidence(),
    Confidence("probability", threshold=0.4),
    Confidence("entropy", per_step="expected"),
    EntropyBounded(1.0),
    LeftToRight(),
    InOrder(dd.paces.LeftToRight(), "margin", whole=True),
]
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
graph = pytest.mark.parametrize("graph", [False, True], ids=["called", "recorded"])


def generate(process, sampler, control=None, network=None, controls=(), **options):
    """Tokens of a call, with the control or without."""
    controls = [*controls, *([] if control is None else [control])]
    options = {"steps": STEPS, "generator": seeded()} | options
    network = Halves(process) if network is None else network
    return dd.sample(process, network, (ROWS, LENGTH), sampler, controls=controls, **options)


@graph
@every_sampler
@pytest.mark.parametrize("name", LEVELS)
def test_tokens_are_those_of_the_plain_call(name, sampler, graph):
    process = LEVELS[name]
    plain = generate(process, sampler)
    assert torch.equal(generate(process, sampler, FixedCapacity(graph=graph)), plain)


@graph
@pytest.mark.parametrize(
    "sampler", [Ancestral(), Remask(0.5), FirstHitting(), LeftToRight()], ids=repr
)
@pytest.mark.parametrize("name", ["masked", "levels-xi"])
def test_positions_that_do_not_fit_into_the_capacity_stay(name, sampler, graph):
    """Of 600 positions a part is computed in each step."""
    process = LEVELS[name]
    draws = [
        dd.sample(
            process,
            Halves(process),
            (60, LENGTH),
            sampler,
            40,
            controls=controls,
            generator=seeded(),
        )
        for controls in ([], [FixedCapacity(graph=graph)])
    ]
    assert torch.equal(*draws)


OPTIONS = {
    "prompt": {"prompt": torch.tensor([1, 4, 0])},
    "seeds": {"generator": [3, 1, 4]},
    "no generator": {"generator": None},
    "temperature": {"temperature": 0.5, "top_p": 0.9},
    "greedy": {"temperature": 0.0},
    "annealed": {"temperature": lambda t: 0.5 + t},
    "ending": {"controls": [dd.controls.EndOfText(2, least=2)]},
    "settled": {"controls": [dd.controls.Settled(1.5)], "steps": 12},
    "forbidden": {"controls": [dd.controls.Forbidden([1, 3])]},
    "repetition": {"controls": [dd.controls.RepetitionPenalty(2.0)]},
}


@graph
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("sampler", [Ancestral(), Remask(0.5), Confidence()], ids=repr)
def test_every_option_of_a_call_has_its_meaning(sampler, option, graph):
    process = LEVELS["levels-xi"]
    torch.manual_seed(5)
    plain = generate(process, sampler, **OPTIONS[option])
    torch.manual_seed(5)
    fixed = generate(process, sampler, FixedCapacity(graph=graph), **OPTIONS[option])
    assert torch.equal(fixed, plain)


def timed(process):
    """A network that takes a time per position."""
    halves = Halves(process)

    def network(z, t):
        shared = t if t.ndim == 2 else t[:, None]
        table = halves.table[0][z] + halves.table[1][z.roll(1, -1)]
        return (table * (1 + shared[..., None].double())) @ halves.weight.T

    network.own_times = True
    return network


@graph
def test_a_grid_of_times(graph):
    process = LEVELS["levels-xi"]
    grid = torch.tensor([1.0, 0.7, 0.1, 0.05, 0.0], dtype=F64)
    plain = generate(process, Remask(0.5), steps=grid)
    fixed = generate(process, Remask(0.5), FixedCapacity(graph=graph), steps=grid)
    assert torch.equal(fixed, plain)


@graph
def test_a_pace_along_positions(graph):
    process = LEVELS["levels"]
    options = dict(network=timed(process), pace=dd.paces.Ramp(1.0))
    plain = generate(process, Ancestral(), **options)
    assert torch.equal(generate(process, Ancestral(), FixedCapacity(graph=graph), **options), plain)


def test_blocks_are_each_a_call_of_fixed_sizes():
    process = LEVELS["levels"]
    options = dict(network=timed(process), pace=dd.paces.Blocks(5), generator=[0, 1, 2])
    plain = generate(process, Ancestral(), **options)
    assert torch.equal(generate(process, Ancestral(), FixedCapacity(), **options), plain)
    with pytest.raises(TypeError, match=r"and pace is Blocks.* must have no blocks"):
        generate(process, Ancestral(), FixedCapacity(graph=True), **options)


def test_child_logits_are_drawn_from_the_same_distribution():
    """On a CPU the plain call descends from child to child with other uniforms."""
    process = dd.presets.hdlm([0, 0, 1, 1, 1, 2])
    table = torch.randn(process.num_states, process.num_states - 1, generator=seeded(3), dtype=F64)
    options = dict(parameterization="children", steps=3)
    draws = [
        dd.sample(
            process,
            lambda z, t: table[z],
            (20_000, 1),
            controls=controls,
            generator=seeded(),
            **options,
        )
        for controls in ([], [FixedCapacity()])
    ]
    plain, fixed = (tokens.flatten().bincount(minlength=6) / 20_000 for tokens in draws)
    # five standard deviations of the difference of two frequencies
    assert (plain - fixed).abs().max() < 5 * (2 * 0.25 / 20_000) ** 0.5
    assert (plain - plain.new_full((6,), 1 / 6)).abs().max() > 0.05


class Shapes:
    """A network that notes the shapes of its calls."""

    def __init__(self, process):
        self.inner = Halves(process)
        self.calls = []

    def __call__(self, z, t):
        self.calls.append((*z.shape, *t.shape))
        return self.inner(z, t)


@graph
def test_a_step_in_which_no_position_descends_calls_no_network(graph):
    process = LEVELS["masked"]
    network = Shapes(process)
    options = dict(network=network, steps=200)
    plain = generate(process, Ancestral(), **options)
    with_jumps = len(network.calls)
    network.calls.clear()
    assert torch.equal(generate(process, Ancestral(), FixedCapacity(graph=graph), **options), plain)
    assert len(network.calls) == with_jumps < 40
    assert {*network.calls} == {(ROWS, LENGTH, ROWS)}


@pytest.mark.parametrize(
    ("sampler", "number"), [(Ancestral(), 3), (Remask(0.5), 3), (Confidence(), 1)], ids=repr
)
def test_a_call_has_few_recordings(sampler, number, monkeypatch):
    """One of steps with descents, one of others, and one of the draws before the first step."""
    made = []

    class Counted(captured.Rerun):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(captured, "Rerun", Counted)
    generate(LEVELS["masked"], sampler, FixedCapacity(graph=True), steps=60)
    assert len(made) == number


@graph
@every_sampler
def test_the_host_waits_for_no_step(sampler, graph, monkeypatch):
    """On a pretended device; the rule "loop" compares the two times of a step."""
    monkeypatch.setenv("DDLIB_TRITON", "0")
    monkeypatch.setattr(captured, "CudaRecording", captured.Rerun)
    process = LEVELS["levels-xi"]
    waits = []
    with Pretended() as pretended:
        generate(
            process,
            sampler,
            FixedCapacity(graph=graph),
            lambda z, t: torch.zeros(*z.shape, process.vocab_size),
            generator=None,
            on_step=lambda k, t, z: waits.append(Counter(pretended.waits)),
        )
    in_steps = waits[-1] - waits[0]
    loop = getattr(sampler, "rule", None) == "loop"
    assert in_steps == (Counter({"ddlib/samplers/remask.py: Remask.step": STEPS}) if loop else {})


def test_the_capacity_is_the_largest_number_of_descents_or_the_given_one():
    process = LEVELS["masked"]
    sizes = []

    class Processor(dd.controls.Control):
        def logits(self, process, length):
            return [lambda logits, states, i: sizes.append(len(logits)) or logits]

    def draw(capacity):
        dd.sample(
            process,
            Halves(process),
            (40, LENGTH),
            steps=20,
            generator=seeded(),
            controls=[Processor(), FixedCapacity(capacity)],
        )

    draw(None)
    assert {*sizes} == {64}  # of 400 positions
    sizes.clear()
    draw(200)
    assert {*sizes} == {256}
    with pytest.raises(ValueError, match=r"capacity is 3, must be at least \d+: so many positions"):
        draw(3)


def test_logits_that_are_not_finite_are_refused_after_the_last_step():
    process = LEVELS["masked"]

    def broken(z, t):
        logits = torch.zeros(*z.shape, process.vocab_size, dtype=F64)
        return torch.where(t[:, None, None] < 0.5, torch.nan, logits)

    with pytest.raises(ValueError, match="logits hold NaN"):
        generate(process, Ancestral(), FixedCapacity(), broken)


def test_a_control_that_raises_levels_is_refused():
    """The descents that it causes were not drawn before the first step."""

    class Masks(dd.controls.Control):
        def after_step(self, run, state, memo, k):
            lost = torch.full_like(state.z, run.process.num_states - 1)
            return run, state._replace(z=lost if k == STEPS - 2 else state.z), memo

    process = LEVELS["masked"]
    sizes = dict(steps=STEPS, generator=seeded(), controls=[Masks(), FixedCapacity()])
    with pytest.raises(ValueError, match="another control changes the levels"):
        dd.sample(process, Halves(process), (20, LENGTH), **sizes)


@pytest.mark.parametrize(
    ("process", "sampler", "options", "message"),
    [
        (dd.processes.GIDD(6, 0.3), Ancestral(), {}, "use a process with levels"),
        (LEVELS["masked"], Remask(0.5, "confidence"), {}, "Remask of another rule"),
        (LEVELS["masked"], Confidence(temperature=1.0), {}, "an order without noise"),
        (LEVELS["masked"], Ancestral(), {"record": True}, r"with FixedCapacity\(.*by which"),
        (
            LEVELS["masked"],
            Ancestral(),
            {"controls": [FixedCapacity()]},
            "at most one FixedCapacity",
        ),
    ],
    ids=["process", "sampler", "noise", "record", "twice"],
)
def test_what_the_control_does_not_support_is_refused_by_name(process, sampler, options, message):
    with pytest.raises(TypeError, match=message):
        generate(process, sampler, FixedCapacity(), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity is 0, must be at least 1"),
        ({"capacity": 1.5}, "capacity is 1.5, must be an int"),
        ({"graph": "yes"}, "graph is 'yes', must be"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        FixedCapacity(**arguments)


def test_samplers_that_draw_by_states_are_refused():
    """A sampler that states independent draws, and draws fewer uniforms where fewer positions
    descend.
    """

    class ByState(Ancestral):
        def step(self, run, state, k):
            if k and bool((state.z == 5).any()):
                dd.utils.random.rand((1,), run.generator, state.z.device)
            return super().step(run, state, k)

    with pytest.raises(ValueError, match="must not depend on the states"):
        generate(LEVELS["masked"], ByState(), FixedCapacity(), generator=seeded(2))


class Counting(Ancestral):
    """Sampler whose memo counts its steps."""

    def __init__(self, begins):
        super().__init__()
        self.begins = begins
        self.seen = []

    def init(self, run):
        state = super().init(run)
        return state._replace(memo=torch.zeros(len(run.free))) if self.begins else state

    def step(self, run, state, k):
        count = torch.zeros(len(run.free)) if state.memo is None else state.memo
        self.seen.append(int(count[0]))
        return super().step(run, state, k)._replace(memo=count + 1)


@graph
@pytest.mark.parametrize("begins", [True, False])
def test_the_memo_is_carried_from_step_to_step(graph, begins):
    process = LEVELS["masked"]
    sampler = Counting(begins)
    fixed = generate(process, sampler, FixedCapacity(graph=graph), steps=3)
    assert sampler.seen == [0, 1, 2, 0, 1, 2]
    assert torch.equal(fixed, generate(process, Ancestral(), steps=3))
