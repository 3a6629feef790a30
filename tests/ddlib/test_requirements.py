"""The table of requirements: a call is refused if and only if one of its parts needs what the
others do not offer, and each other call runs.

What the parts offer is listed here by their names, beside what they say of themselves.
"""

import itertools
import re

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.networks import KINDS

import ddlib as dd
from ddlib import paces, registry
from ddlib.contrib import (
    Automaton,
    Cache,
    Constraint,
    Daedal,
    FixedCapacity,
    Length,
    Psi,
    RhoEOS,
)
from ddlib.processes import Masked, Product, RateMatrix
from ddlib.processes.examples import four, special
from ddlib.samplers import Ancestral, Confidence, FirstHitting, Particles, Remask, UnsupportedError
from ddlib.samplers.controls import (
    Ending,
    EndOfText,
    Forbidden,
    Memory,
    Needs,
    RepetitionPenalty,
    Settled,
    Truncation,
    WholeBatch,
)
from ddlib.samplers.requirements import TABLE
from ddlib.schedules import Geometric, Linear

pytestmark = [
    pytest.mark.usefixtures("as_users_call"),
    # networks of blocks run at every pace
    pytest.mark.filterwarnings("ignore:pace is .* was trained with clean tokens"),
]
V = 4
NONE = Needs.NOTHING
TREE = Needs.MASK | Needs.FINAL_TOKENS | Needs.MASKED_TREE
FINAL = Needs.MASK | Needs.FINAL_TOKENS
RATES = torch.zeros(V + 1, V + 1, dtype=torch.float64)
RATES[:V, V] = 1.0
RATES[0, 1] = 1.0
RATES[1, 0] = 1.0
PROCESSES = (
    four()
    | special()
    | {
        "geometric": Masked(V, Geometric(0.2, 30.0)),
        "exchanged": RateMatrix(RATES - RATES.sum(1).diag(), Linear(), V),
        "fields": Product({"a": Masked(V, Linear()), "b": Masked(3, Linear())}, ["a", "b"]),
    }
)
"""Processes of every kind; then masks and two tokens that are exchanged, and two alphabets."""
OFFERED_BY_PROCESS = {
    "masked": TREE,
    "tree": TREE,
    "levels": TREE,
    "xi": FINAL,
    "uniform": NONE,
    "gidd": Needs.MASK,
    "masks only": FINAL,
    "rates": FINAL,
    "per token": FINAL,
    "noisy": Needs.MASK,
    "geometric": FINAL,
    "exchanged": Needs.MASK,
    "fields": TREE,
}

NOISY_ENDS = {"geometric"}
WITH_LEVELS = {"masked", "tree", "levels", "xi", "geometric", "fields"}
RECORD = (
    Needs.INDEPENDENT_DRAWS
    | Needs.UNCHANGED_DRAWS
    | Needs.NOISE_FREE_END
    | Needs.TOKEN_DISTRIBUTIONS
)
"""Needs of a recorded call."""

TOKENS = Needs.TOKEN_DRAWS | Needs.TOKEN_DISTRIBUTIONS
ALIGNED = TOKENS | Needs.ALIGNED_ROWS
OFFERED_BY_NETWORK = {
    "whole": ALIGNED,
    "timed": ALIGNED | Needs.NETWORK_TIMES,
    "shifted": TOKENS,
    "split": ALIGNED,
    "sparse": ALIGNED,
    "recalling": ALIGNED | Needs.MEMORY,
    "blocks": ALIGNED | Needs.NETWORK_TIMES | Needs.WINDOWS,
    "sparse blocks": ALIGNED | Needs.NETWORK_TIMES | Needs.WINDOWS,
    "guided": Needs.ALIGNED_ROWS,
    "guided, timed": Needs.ALIGNED_ROWS | Needs.NETWORK_TIMES,
    "dit": ALIGNED | Needs.NETWORK_TIMES | Needs.WINDOWS | Needs.MEMORY,
}
CHILDREN = {"masked", "tree", "levels", "geometric", "fields"}
"""Processes in which a guidance of the next state is one of children, so of tokens."""
NETWORKS = {
    (kind, name): make(process)
    for kind, make in KINDS.items()
    for name, process in PROCESSES.items()
}


def reward(z, t):
    return z.double().sum(-1)


SAMPLERS = [
    *(
        one
        for kind in registry.built_in("samplers")
        for one in registry.get("samplers", kind).examples()
    ),
    Ancestral(True),
    Confidence(per_step="expected"),
    Confidence(edit=0.5),
    Particles(FirstHitting(), reward, 2),
    Particles(Remask(), reward, 2),
]
BY_COUNT = {"FirstHitting", "Confidence", "EntropyBounded", "InOrder", "LeftToRight"}
CONSTRAINED = BY_COUNT | {"Ancestral", "Psi", "Overshoot", "Remask"}


def offered_by_sampler(sampler):
    name = type(sampler).__name__
    if name == "Particles":
        lacking = Needs.ONE_SEQUENCE | Needs.STEP_TIMES | Needs.INDEPENDENT_DRAWS
        lacking |= Needs.MOVABLE_POSITIONS | Needs.FIXED_SIZES
        return offered_by_sampler(sampler.sampler) & ~lacking
    by_times = name not in BY_COUNT or getattr(sampler, "per_step", None) is not None
    offered = Needs.ONE_SEQUENCE | (Needs.TIMES if by_times else Needs.NO_TIMES)
    if name == "Corrected":
        corrector = type(sampler.corrector).__name__
        keeps = corrector in ("ForwardBackward", "EdgeBalance")
    else:
        keeps = name in CONSTRAINED and getattr(sampler, "edit", None) is None
    rule = getattr(sampler, "rule", "cap")
    if name in ("Ancestral", "Psi", "Remask") and rule in ("cap", "rescale"):
        offered |= Needs.STEP_TIMES
    if name in BY_COUNT | {"Ancestral", "Remask"} and rule != "confidence":
        noisy = getattr(sampler, "temperature", 0) or getattr(sampler, "edit", None) is not None
        offered |= NONE if noisy else Needs.INDEPENDENT_DRAWS
    if name != "FirstHitting" and rule != "confidence":
        offered |= Needs.MOVABLE_POSITIONS
    offered |= Needs.JOINT_DRAWS if keeps else NONE
    by_sizes = Needs.JOINT_DRAWS | Needs.INDEPENDENT_DRAWS
    return offered | Needs.FIXED_SIZES if by_sizes in offered else offered


def steers(sampler):
    """Whether the sampler draws from a distribution of z_s that a guidance defines."""
    inner = getattr(sampler, "sampler", sampler)
    return type(inner) is Ancestral and not inner.force_transition


def needs_of_sampler(sampler):
    needs = NONE if steers(sampler) else Needs.TOKEN_DRAWS
    return needs | (Needs.ONE_ALPHABET if type(sampler).__name__ == "ThetaTrapezoidal" else NONE)


ORDER = Needs.NETWORK_TIMES | Needs.TOKEN_DISTRIBUTIONS
PACES = [
    (paces.Together(), Needs.NO_BLOCKS | Needs.ONE_TIME, NONE),
    (paces.Blocks(1), Needs.BLOCKS, ORDER | Needs.ONE_SEQUENCE),
    (paces.Blocks(2), Needs.BLOCKS, ORDER | Needs.ONE_SEQUENCE),
    (paces.LeftToRight(), Needs.BLOCKS, ORDER | Needs.ONE_SEQUENCE),
    (paces.RandomOrder(), Needs.NO_BLOCKS, ORDER | Needs.STEP_TIMES),
    (paces.Ramp(1.0), Needs.NO_BLOCKS, ORDER | Needs.STEP_TIMES),
]
"""Paces with what they offer and need."""

HEATED = Truncation(lambda t: 1.0 + t)
ANY = Automaton({0: dict.fromkeys(range(V), 0)}, 0, [0], V)
ALIKE = Needs.TOKEN_DISTRIBUTIONS | Needs.ONE_ALPHABET
LENGTHS = (
    FINAL
    | Needs.ONE_ALPHABET
    | Needs.ONE_SEQUENCE
    | Needs.ONE_TIME
    | Needs.TOKEN_DISTRIBUTIONS
    | Needs.MOVABLE_POSITIONS
)
SIZES = ALIKE | Needs.FIXED_SIZES | Needs.FIXED_LENGTH
CONTROLS = [
    (Truncation(0.7, 0.9), Needs.TOKEN_DISTRIBUTIONS),
    (HEATED, Needs.TOKEN_DISTRIBUTIONS),
    (Forbidden([1]), ALIKE),
    (Forbidden([]), NONE),
    (RepetitionPenalty(2.0), ALIKE),
    (EndOfText(1), Needs.ONE_SEQUENCE | Needs.ONE_ALPHABET),
    (EndOfText(2, least=1, fill=0), Needs.ONE_SEQUENCE | ALIKE),
    (Settled(), Needs.ONE_SEQUENCE | Needs.TOKEN_DISTRIBUTIONS),
    (
        Constraint(ANY),
        Needs.MASKED_TREE | Needs.JOINT_DRAWS | ALIKE | Needs.FIXED_LENGTH,
    ),
    (
        Memory(),
        Needs.MEMORY
        | Needs.ONE_SEQUENCE
        | Needs.NO_BLOCKS
        | Needs.FIXED_LENGTH
        | Needs.PART_BATCHES,
    ),
    (WholeBatch(), NONE),
    (FixedCapacity(), SIZES),
    (FixedCapacity(graph=True), SIZES | Needs.NO_BLOCKS),
    (Cache("none"), NONE),
    (Cache("dual"), Needs.BLOCKS | Needs.WINDOWS),
    (Cache("prefix:refresh=1"), Needs.BLOCKS | Needs.WINDOWS),
    (RhoEOS(1, 1), LENGTHS),
    (RhoEOS(1, 1, block=1), LENGTHS | Needs.NO_TIMES),
    (Daedal(1, 1), LENGTHS),
]
"""Controls with what they need."""
BROKEN = {
    RhoEOS: Needs.FIXED_LENGTH | Needs.INDEPENDENT_DRAWS,
    Daedal: Needs.FIXED_LENGTH | Needs.INDEPENDENT_DRAWS,
    WholeBatch: Needs.PART_BATCHES,
    FixedCapacity: Needs.INDEPENDENT_DRAWS | Needs.JOINT_DRAWS | Needs.PART_BATCHES,
    Constraint: Needs.INDEPENDENT_DRAWS,
    Settled: Needs.INDEPENDENT_DRAWS,
    Memory: Needs.INDEPENDENT_DRAWS,
}


def broken_by(control):
    """Return what a call lacks because of the control."""
    if isinstance(control, Cache) and control.rule != "none":
        return Needs.INDEPENDENT_DRAWS
    return BROKEN.get(type(control), NONE)


SEEDS = [5, 6]
GRID = torch.tensor([1.0, 0.6, 0.3, 0.0])


class Call:
    """Arguments of a call for sequences of two tokens, with the needs of its parts."""

    def __init__(
        self,
        process,
        network,
        sampler,
        pace=PACES[0],
        controls=(),
        seeds=None,
        steps=8,
        record=False,
    ):
        self.text = (
            f"{process}, {network}, {sampler}, {pace[0]}, {controls}, {seeds}, {steps}, {record}"
        )
        self.record = record
        self.process = PROCESSES[process]
        self.network = NETWORKS[network, process]
        self.sampler = sampler
        self.pace, of_pace, needs_of_pace = pace
        self.controls = [control for control, _ in controls]
        self.seeds = seeds
        self.steps = steps
        self.offered = (
            OFFERED_BY_PROCESS[process]
            | OFFERED_BY_NETWORK[network]
            | (TOKENS if process in CHILDREN else NONE)
            | offered_by_sampler(sampler)
            | of_pace
            | (NONE if process == "fields" else Needs.ONE_ALPHABET)
            | Needs.FIXED_LENGTH
            | Needs.PART_BATCHES
        )
        if HEATED in self.controls:  # it uses the times, whatever the sampler does
            self.offered |= Needs.TIMES
        if process not in NOISY_ENDS:
            self.offered |= Needs.NOISE_FREE_END
        forced = getattr(sampler, "force_transition", False)
        if process in WITH_LEVELS or not forced:
            self.offered |= Needs.UNCHANGED_DRAWS
        if process not in WITH_LEVELS - {"fields"}:
            self.offered &= ~Needs.FIXED_SIZES
        for control in self.controls:
            self.offered &= ~broken_by(control)
        self.needs = [
            ("", sampler, needs_of_sampler(sampler)),
            ("steps is ", GRID.tolist(), NONE if steps is not GRID else Needs.TIMES),
            ("generator is ", SEEDS, NONE if seeds is None else Needs.ALIGNED_ROWS),
            ("pace is ", self.pace, needs_of_pace),
            ("record is ", True, RECORD if record else NONE),
            *(("controls holds ", control, needs) for control, needs in controls),
        ]

    def unmet(self):
        """Return the needs that are not met, with the option and the part that has them."""
        return [
            (need, option, part)
            for option, part, needs in self.needs
            for need in needs
            if need not in self.offered
        ]

    def lacks(self, need):
        return any(need is missing for missing, _, _ in self.unmet())

    @property
    def is_served(self):
        """Whether the sampler is for the process, which no row of the table is about."""
        try:
            self.sampler.check(self.process)
        except TypeError:
            return False
        return True

    def draw(self):
        plan = self.plan()
        if not self.record:
            return plan.run()
        tokens, path = plan.record()
        terms = dd.log_prob(self.process, self.network, path, per_draw=True)
        assert torch.allclose(terms, path.log_probs, atol=1e-4)
        return tokens

    def plan(self):
        return dd.plan(
            self.process,
            self.network,
            (2, 2),
            self.sampler,
            self.steps,
            pace=self.pace,
            controls=self.controls,
            generator=self.seeds,
        )

    def __repr__(self):
        return self.text

    def offender(self, need):
        """Return the text by which a message names what does not meet a need."""
        of_process = Needs.MASK | Needs.FINAL_TOKENS | Needs.MASKED_TREE | Needs.ONE_ALPHABET
        if need in of_process | Needs.UNCHANGED_DRAWS | Needs.NOISE_FREE_END:
            return repr(self.process)
        if need in TOKENS:
            return repr(self.network)
        if need in Needs.MEMORY | Needs.WINDOWS | Needs.NETWORK_TIMES | Needs.ALIGNED_ROWS:
            return type(self.network).__name__
        if need in Needs.BLOCKS | Needs.NO_BLOCKS | Needs.ONE_TIME:
            return f"pace is {self.pace!r}, must "
        if need in Needs.INDEPENDENT_DRAWS | Needs.JOINT_DRAWS:
            broken = [one for one in self.controls if need in broken_by(one)]
            return repr(broken[0] if broken else self.sampler)
        if need in Needs.FIXED_LENGTH | Needs.PART_BATCHES:
            broken = [one for one in self.controls if need in broken_by(one)]
            return f"{broken[0]!r}, must not "
        return repr(self.sampler)


WITH_NEEDS = [
    *(("sampler", one, needs_of_sampler(one)) for one in SAMPLERS),
    ("steps", GRID, Needs.TIMES),
    ("seeds", SEEDS, Needs.ALIGNED_ROWS),
    *(("pace", one, one[2]) for one in PACES),
    *(("controls", (one,), one[1]) for one in CONTROLS),
    ("record", True, RECORD),
]
"""Parts that need something: argument, value, needs."""
AXES = {
    "process": [*PROCESSES],
    "network": [*KINDS],
    "sampler": SAMPLERS,
    "pace": PACES,
    "controls": [(one,) for one in CONTROLS],
}
OTHERWISE = {
    "process": ["masked", "noisy"],
    "network": ["dit"],
    "sampler": [Ancestral(), Confidence(), Psi(0.5)],
    "pace": PACES[:2],
    "controls": [()],
    "seeds": [None],
    "steps": [8],
    "record": [False],
}
"""Values of the arguments that a pair of parts does not fix; the first that fit are taken."""
OFFERED_BY = {
    "process": Needs.MASK
    | Needs.FINAL_TOKENS
    | Needs.MASKED_TREE
    | Needs.NOISE_FREE_END
    | Needs.ONE_ALPHABET,
    "network": TOKENS | Needs.MEMORY | Needs.NETWORK_TIMES | Needs.WINDOWS | Needs.ALIGNED_ROWS,
    "sampler": Needs.ONE_SEQUENCE
    | Needs.JOINT_DRAWS
    | Needs.TIMES
    | Needs.NO_TIMES
    | Needs.STEP_TIMES
    | Needs.INDEPENDENT_DRAWS
    | Needs.MOVABLE_POSITIONS
    | Needs.FIXED_SIZES
    | Needs.UNCHANGED_DRAWS,
    "pace": Needs.BLOCKS | Needs.NO_BLOCKS | Needs.ONE_TIME,
    "controls": Needs.FIXED_LENGTH | Needs.PART_BATCHES,
}
"""The argument that offers what is needed."""


def calls_that_lack(need):
    """Yield a call for every pair of a part with a need and a part that does not offer it, with as
    few other needs that are not met as there can be.
    """
    lacking = next(axis for axis, offered in OFFERED_BY.items() if need in offered)
    parts = [(axis, value) for axis, value, needs in WITH_NEEDS if need in needs]
    for (axis, part), other in itertools.product(parts, AXES[lacking]):
        if axis == lacking:
            fixed = {axis: part + other} if axis == "controls" else {}
        else:
            fixed = {axis: part, lacking: other}
        choices = itertools.product(
            *([fixed[name]] if name in fixed else values for name, values in OTHERWISE.items())
        )
        calls = [Call(**dict(zip(OTHERWISE, choice, strict=True))) for choice in choices]
        calls = [one for one in calls if one.is_served and one.lacks(need)]
        if fixed and calls:
            yield min(calls, key=lambda call: len(call.unmet()))


def check_refusal(call):
    """Raise AssertionError unless the call is refused for a need that is not met, by a message
    that names option, part and offender.
    """
    with pytest.raises(UnsupportedError) as refusal:
        call.draw()
    error = refusal.value
    options = [
        option
        for need, option, part in call.unmet()
        if need is error.need and (part is error.part or part == error.part)
    ]
    assert options
    message = str(error)
    of_pace = error.need is Needs.NETWORK_TIMES
    assert message.startswith(f"{'' if of_pace else options[0]}{error.part!r}")
    assert call.offender(error.need) in message
    assert re.search(r"\b(must|needs|use|pass)\b|does not support", message.lower())
    return error.need


def runs(call):
    """Draw two sequences of a call and check what its controls promise."""
    tokens = call.draw()
    assert tokens.shape == (2, 2) and tokens.dtype == torch.int64
    assert ((tokens >= 0) & (tokens < V)).all()
    ends = {control.fill for control in call.controls if hasattr(control, "fill")}
    for control in call.controls:
        if isinstance(control, Forbidden):
            assert not {*control.tokens} - ends & {*tokens.flatten().tolist()}
        if isinstance(control, Constraint):
            assert control.automaton.accepts(tokens).all()
    if call.seeds is not None:
        assert torch.equal(tokens, call.draw())


def clash(call):
    """Return a pattern of the message for values of two parts that exclude each other, which no
    row of the table is about; "" if there are none.
    """
    controls = call.controls
    constrained = any(isinstance(one, Constraint) for one in controls)
    endings = [one for one in controls if isinstance(one, Ending)]
    patterns = [
        r"must hold at most one \w+"
        for kind in (Cache, Constraint, FixedCapacity, Length)
        if sum(isinstance(one, kind) for one in controls) > 1
    ]
    if constrained and any(isinstance(one, Settled) or one.least for one in endings):
        patterns.append(r"least of .* must be 0|it sets tokens without the constraint")
    return "|".join(patterns)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.need.name)
def test_every_pair_of_a_need_and_a_part_without_it_is_refused(row):
    refused = [check_refusal(call) for call in calls_that_lack(row.need)]
    assert row.need in refused


CALLS = st.builds(
    Call,
    st.sampled_from([*PROCESSES]),
    st.sampled_from([*KINDS]),
    st.sampled_from(SAMPLERS),
    st.just(PACES[0]) | st.sampled_from(PACES),
    st.lists(st.sampled_from(CONTROLS), max_size=3),
    st.sampled_from([None, SEEDS]),
    st.sampled_from([8, GRID]),
    st.booleans(),
)


@given(call=CALLS.filter(lambda call: call.is_served))
@settings(max_examples=examples(2000))
def test_a_call_runs_exactly_if_every_need_is_met(call):
    of_plan = [option for _, option, _ in call.unmet() if option != "record is "]
    if clash(call) and not of_plan:
        with pytest.raises(TypeError, match=clash(call)):
            call.plan()
    elif call.unmet():
        check_refusal(call)
    else:
        runs(call)
