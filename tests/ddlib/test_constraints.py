"""Constraints while drawing: automata over tokens, and the distribution of the sequences that
satisfy them.
"""

import copy
import inspect
import itertools
import math

import pytest
import torch
from cases import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.contrib import Automaton, Constraint, Lanes, Overshoot, Psi
from ddlib.contrib.constraints import joint
from ddlib.contrib.constraints.constraint import token_ancestors
from ddlib.contrib.constraints.joint import JointDraw
from ddlib.guidance import ClassifierFree
from ddlib.hierarchies import Tree
from ddlib.paces import Blocks
from ddlib.processes import Hierarchical, Masked
from ddlib.processes.examples import four
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Corrected,
    EdgeBalance,
    EntropyBounded,
    FirstHitting,
    ForwardBackward,
    Guarantees,
    InOrder,
    LeftToRight,
    Particles,
    Remask,
    Sampler,
    State,
    reverse_step,
)
from ddlib.samplers.controls import (
    EndOfText,
    Forbidden,
    RepetitionPenalty,
    Truncation,
)
from ddlib.schedules import Linear

F64 = torch.float64
V = 4
MASK = 4
PROCESS = Masked(V, Linear())
TREES = {"one level": Hierarchical(Tree([[0, 0, 1, 1]]), Linear()), "two levels": four()["levels"]}


class Table:
    """A network with random logits for every sequence of states."""

    own_times = True

    def __init__(self, seed=0, length=4, tokens=V, states=None):
        states = states or tokens + 1
        self.weights = states ** torch.arange(length)
        self.table = 1.5 * torch.randn(
            states**length, length, tokens, generator=seeded(seed), dtype=F64
        )
        self.calls = 0

    def __call__(self, z, t):
        self.calls += 1
        return self.table[(z * self.weights).sum(1)]


def accepts(transitions, start, accepting, x, end=None, fill=None):
    """A second, plain account of what an automaton accepts."""
    state = start
    for place, token in enumerate(x):
        if end is not None and token == end and state in accepting:
            return all(behind == (end if fill is None else fill) for behind in x[place + 1 :])
        if token not in transitions.get(state, {}):
            return False
        state = transitions[state][token]
    return state in accepting


@st.composite
def automata(draw, tokens=V):
    """Arguments of a small automaton."""
    states = draw(st.integers(1, 4))
    place = st.integers(0, states - 1)
    end = draw(st.sampled_from([None, tokens - 1]))
    symbols = range(tokens - (end is not None))
    following = draw(
        st.lists(place | st.none(), min_size=states * len(symbols), max_size=states * len(symbols))
    )
    transitions = {}
    for (state, token), after in zip(
        itertools.product(range(states), symbols), following, strict=True
    ):
        if after is not None:
            transitions.setdefault(state, {})[token] = after
    fill = None if end is None else draw(st.sampled_from([None, 0]))
    accepting = draw(st.sets(place, min_size=1))
    return {
        "transitions": transitions,
        "start": draw(place),
        "accepting": accepting,
        "end": end,
        "fill": fill,
    }


def everything(length, tokens=V):
    return torch.cartesian_prod(*[torch.arange(tokens)] * length).view(-1, length)


def accepted(arguments, x):
    return torch.tensor([accepts(x=row, **arguments) for row in x.tolist()], dtype=torch.bool)


def agree(z, x):
    """Whether each sequence of tokens (N, L) completes each one of states (B, L), (B, N)."""
    return ((z[:, None] == x) | (z[:, None] >= V)).all(-1)


@given(automata(), st.integers(1, 4), st.data())
@settings(max_examples=examples(240), deadline=None)
def test_allowed_tokens_are_those_of_all_completions(arguments, length, data):
    automaton = Automaton(**arguments, vocab_size=V)
    x = everything(length)
    fine = accepted(arguments, x)
    assert torch.equal(automaton.accepts(x), fine)
    number = data.draw(st.integers(1, 12))
    z = torch.tensor(
        data.draw(
            st.lists(
                st.lists(st.integers(0, V), min_size=length, max_size=length),
                min_size=number,
                max_size=number,
            )
        )
    )
    forbidden = data.draw(st.sets(st.integers(0, V - 1), max_size=2))
    free = (z >= V)[:, None]
    bad = torch.isin(x, torch.tensor(sorted(forbidden), dtype=torch.int64))
    completes = agree(z, x) & fine & ~(free & bad).any(-1)
    expected = torch.stack([(completes[..., None] & (x == token)).any(1) for token in range(V)], -1)
    reduced = automaton.without(forbidden)
    assert torch.equal(reduced.allowed_tokens(z), expected)
    assert torch.equal(reduced.has_completion(z), completes.any(1))
    skipped = reduced.behind(2)
    before = torch.tensor(data.draw(st.lists(st.integers(0, V), min_size=2, max_size=2)))
    found = skipped.allowed_tokens(torch.cat([before.expand(number, 2), z], 1))
    assert torch.equal(found[:, 2:], expected)
    anything = (before[:, None] == torch.arange(V)) | (before[:, None] >= V)
    assert torch.equal(found[:, :2], anything & completes.any(1)[:, None, None])
    for n in range(length + 1):
        assert bool(automaton.ending(n)[0].isfinite()) == any(
            accepts(x=row, **arguments) for row in itertools.product(range(V), repeat=n)
        )


def paths(process):
    """The state of each token in each level, (V, levels)."""
    mask = torch.full((V, 1), process.num_states - 1)
    return torch.cat([torch.arange(V)[:, None], token_ancestors(process), mask], 1)


class Forced:
    """Draws with the states of given sequences in place of random ones.

    It adds up their log-probabilities.
    """

    def __init__(self, x, monkeypatch, process=PROCESS):
        self.paths = paths(process)[:, :-1]
        self.x, self.log_prob = x, torch.zeros(len(x), dtype=F64)
        self.u = torch.arange(x.numel(), dtype=F64).view(x.shape) / x.numel()
        monkeypatch.setattr(joint, "draw_logits", self)
        monkeypatch.setattr(reverse_step, "rand", lambda shape, generator, device: self.u)

    def __call__(self, scores, u):
        place = (u * self.x.numel()).round().long()
        row = place // self.x.shape[1]
        column = place % self.x.shape[1]
        states = self.paths[self.x[row, column]]
        states = states if scores.shape[1] > V else states[:, :1]
        state = states.gather(
            1, scores.gather(1, states).argmax(1, keepdim=True)
        )  # the others have -inf
        self.log_prob[row] += scores.to(F64).log_softmax(-1).gather(1, state)[:, 0]
        return state[:, 0]


def margins(probs):
    best = probs.sort(-1, descending=True).values
    return best[..., 0] - best[..., 1]


SCORES = {
    "margin": margins,
    "probability": lambda probs: probs.amax(-1),
    "entropy": lambda probs: torch.xlogy(probs, probs).sum(-1),
}


def one_at_a_time(network, x, rule, process=PROCESS, plain=False):
    """Log-probabilities of sequences, and the positions that descend one level after the other.

    Each new state has the network's probability of the tokens below it, renormalised over those
    that complete, at the first position where the score of that distribution is largest, or with
    ``plain`` that of the network's.
    """
    path = paths(process)
    rows = torch.arange(len(x))
    order = []
    level = torch.full_like(x, path.shape[1] - 1)
    total = torch.zeros(len(x), dtype=F64)
    for _ in range(x.shape[1] * (path.shape[1] - 1)):
        z = path[x, level]
        below = (path == z[..., None, None]).any(-1)  # the tokens of each state
        completes = below.gather(2, x.T[None].expand(len(x), -1, -1)).all(
            1
        )  # x are all accepted sequences
        possible = torch.stack(
            [(completes[..., None] & (x == token)).any(1) for token in range(V)], -1
        )
        whole = network(z, None).softmax(-1) * below
        states = path.T[(level - 1).clamp_min(0)]
        both = []
        for probs in (whole * possible, whole):
            children = torch.zeros(*x.shape, process.num_states, dtype=F64).scatter_add_(
                -1, states, probs
            )
            both.append(children / children.sum(-1, keepdim=True))
        ranks = -torch.arange(x.shape[1], dtype=F64).expand(x.shape)
        score = ranks if rule is None else SCORES[rule](both[plain])
        place = score.round(decimals=5).masked_fill(level == 0, -math.inf).argmax(1)
        level[rows, place] -= 1
        total += both[0][rows, place, path[x, level][rows, place]].log()
        order.append(place)
    return total, torch.stack(order, 1)


IN_ANY_BATCH = [LeftToRight(), Confidence(), Ancestral(), EntropyBounded(1.0)]
ONE_A_STEP = [
    LeftToRight(),
    *map(Confidence, SCORES),
    InOrder(dd.paces.LeftToRight()),
    InOrder(Lanes(4), "entropy"),
]


@pytest.mark.parametrize("sampler", ONE_A_STEP, ids=repr)
@given(
    process=st.sampled_from([PROCESS, *TREES.values()]),
    arguments=automata(),
    seed=st.integers(0, 5),
)
@settings(max_examples=examples(120), deadline=None)
def test_one_position_a_step_is_the_network_renormalised(sampler, process, arguments, seed):
    automaton = Automaton(**arguments, vocab_size=V)
    network = Table(seed, states=process.num_states)
    x = everything(4)
    x = x[automaton.accepts(x)]
    assume(len(x))
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        forced = Forced(x, patch, process)
        drawn = dd.sample(
            process,
            network,
            tuple(x.shape),
            sampler,
            4 * (len(process.levels) - 1),
            controls=[Constraint(automaton)],
            on_step=lambda k, t, z: seen.append(z),
        )
    assert torch.equal(drawn, x)
    expected, order = one_at_a_time(network, x, getattr(sampler, "score", None), process)
    chosen = [(after != before).int().argmax(1) for before, after in itertools.pairwise(seen)]
    assert torch.equal(torch.stack(chosen, 1), order)
    assert torch.allclose(forced.log_prob, expected, atol=1e-10)
    assert float(forced.log_prob.exp().sum()) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("rule", SCORES)
def test_an_order_by_constrained_scores_draws_likelier_sequences(rule):
    """Mean log-probabilities given the constraint, with the exact network of random distributions
    of sequences.
    """
    x = everything(4)
    gains = []
    for seed in range(400):
        generator = seeded(seed)
        after = torch.randint(
            -2, 3, (3, V - 1), generator=generator
        )  # no transition to a negative state
        steps = {
            state: {v: int(to) for v, to in enumerate(row) if to >= 0}
            for state, row in enumerate(after)
        }
        fine = x[Automaton(steps, 0, [2], V, end=V - 1).accepts(x)]
        if len(fine) < 2:
            continue
        pairs = torch.randn(3, V, V, generator=generator, dtype=F64)
        score = torch.randn(len(x), generator=generator, dtype=F64) + sum(
            pairs[i, x[:, i], x[:, i + 1]] for i in range(3)
        )

        def network(z, t, score=score):
            given = torch.where(agree(z, x), score, -math.inf)[..., None, None]
            where = x[..., None] == torch.arange(V)
            return torch.where(where, given, -math.inf).logsumexp(1)

        exact = score[(fine @ 4 ** torch.arange(3, -1, -1))].log_softmax(0)
        ours, theirs = (
            one_at_a_time(network, fine, rule, plain=plain)[0].exp() @ exact
            for plain in (False, True)
        )
        gains.append(ours - theirs)
    gain = torch.stack(gains)
    assert len(gain) > 200 and gain.mean() > 2 * gain.std() / len(gain) ** 0.5


@given(automata(), st.integers(0, 5), st.data())
@settings(max_examples=examples(400), deadline=None)
def test_positions_of_a_step_are_distributed_as_the_step_given_a_completion(arguments, seed, data):
    skip = data.draw(st.sampled_from([0, 0, 1, 2]))
    automaton = Automaton(**arguments, vocab_size=V).behind(skip)
    x = everything(4)
    x = x[accepted(arguments, x[:, skip:])]
    assume(len(x))
    goal = data.draw(st.sampled_from(x.tolist()))
    kinds = data.draw(st.lists(st.sampled_from(["given", "drawn", "mask"]), min_size=4, max_size=4))
    assume("drawn" in kinds)
    z = torch.tensor(
        [token if kind == "given" else MASK for token, kind in zip(goal, kinds, strict=True)]
    )
    where = torch.tensor([kind == "drawn" for kind in kinds])
    completions = x[agree(z[None], x)[0]]
    targets = torch.where(where, completions, z).unique(
        dim=0
    )  # the parts of them that are drawn now
    log_probs = Table(seed).table[:1].log_softmax(-1)[0]
    with pytest.MonkeyPatch.context() as patch:
        forced = Forced(targets, patch)
        found = JointDraw(
            automaton,
            z.expand(len(targets), -1),
            where.expand(len(targets), -1),
            torch.zeros_like(targets),
            lambda rows, columns: log_probs[columns],
            lambda scores: scores,
            forced.u,
        ).tokens()
    assert torch.equal(found, targets)
    assert float(forced.log_prob.exp().sum()) == pytest.approx(
        1, abs=1e-10
    )  # nothing else has a chance
    last = max(place for place, kind in enumerate(kinds) if kind == "drawn")
    if "mask" not in kinds[skip:last]:
        product = torch.stack(
            [log_probs[place, targets[:, place]] for place in where.nonzero()[:, 0]]
        ).sum(0)
        assert torch.allclose(forced.log_prob, product - product.logsumexp(0), atol=1e-10)


TWICE = {
    "transitions": {0: {0: 1, 1: 0}, 1: {1: 2, 2: 1}, 2: {0: 2}},
    "start": 0,
    "accepting": [1, 2],
    "end": 3,
}
WORDS = Automaton(**TWICE, vocab_size=V)


@pytest.mark.statistical
@pytest.mark.parametrize("steps", [1, 4])
def test_frequencies_of_draws(steps):
    network = Table(3)
    x = everything(4)
    x = x[WORDS.accepts(x)]
    with pytest.MonkeyPatch.context() as patch:
        forced = Forced(x, patch)
        dd.sample(
            PROCESS,
            network,
            tuple(x.shape),
            LeftToRight(),
            steps,
            controls=[Constraint(WORDS)],
        )
    number = 20_000
    drawn = dd.sample(
        PROCESS,
        network,
        (number, 4),
        LeftToRight(),
        steps,
        controls=[Constraint(WORDS)],
        generator=seeded(),
    )
    counts = (drawn[:, None] == x).all(-1).sum(0)
    assert int(counts.sum()) == number
    probs = forced.log_prob.exp()
    deviation = (number * probs * (1 - probs)).sqrt()
    assert bool(((counts - number * probs).abs() < 5 * deviation + 1).all())


class Count:
    """A reward: the number of tokens 1."""

    def __call__(self, z, t):
        return (z == 1).sum(1).to(F64)

    def __repr__(self):  # the id of a case is the same in every process
        return "Count()"


SUPPORTED = [
    LeftToRight(),
    InOrder(Lanes(2), whole=True),
    InOrder(Lanes(2), "margin"),
    Confidence(),
    Confidence("probability", threshold=0.4),
    Confidence("entropy", per_step="expected", temperature=0.5),
    EntropyBounded(1.0),
    Ancestral(),
    FirstHitting(),
    Remask(1.0, "rescale"),
    Remask(0.9, "confidence"),
    Psi(0.5),
    Overshoot(0.5),
    Particles(Ancestral(), Count()),
    Corrected(Ancestral(), ForwardBackward(3.0)),
    Corrected(Psi(0.9), EdgeBalance(3.0)),
]


OPTIONS = [
    [],
    [Truncation(temperature=0.0)],
    [Truncation(top_p=0.3)],
    [Truncation(top_k=1)],
    [RepetitionPenalty(3.0)],
]


@pytest.mark.parametrize("sampler", SUPPORTED, ids=repr)
@given(
    arguments=automata(),
    seed=st.integers(0, 3),
    steps=st.sampled_from([1, 2, 3, 6]),
    data=st.data(),
)
@settings(max_examples=examples(80), deadline=None)
def test_every_sequence_is_accepted(sampler, arguments, seed, steps, data):
    process = data.draw(st.sampled_from([PROCESS, *TREES.values()]))
    automaton = Automaton(**arguments, vocab_size=V)
    x = everything(4)
    x = x[automaton.accepts(x)]
    assume(len(x))
    goal = torch.tensor(data.draw(st.sampled_from(x.tolist())))
    shown = torch.tensor(data.draw(st.lists(st.booleans(), min_size=4, max_size=4)))
    others = data.draw(st.sampled_from(OPTIONS))
    pace = (
        data.draw(st.sampled_from([None, Blocks(2)]))
        if sampler.guarantees.supports_stopping
        else None
    )
    if isinstance(sampler, InOrder) and pace is not None:
        sampler = InOrder(Lanes(1))  # a block of two positions
    prompt = torch.where(shown, goal, process.num_states - 1)
    network = Table(seed, states=process.num_states)
    drawn = dd.sample(
        process,
        network,
        (6, 4),
        sampler,
        steps,
        prompt,
        controls=[Constraint(automaton), *others],
        pace=pace,
    )
    assert bool(accepted(arguments, drawn).all()) and bool((drawn == goal)[:, shown].all())


def test_forbidden_tokens_are_excluded_before():
    choice = Automaton({0: {0: 1, 1: 2}, 1: {0: 3}, 2: {2: 3}}, 0, [3], V)  # 00 or 12
    prompted = {"prompt": torch.tensor([MASK, 2])}
    # a 1 would lead nowhere; the prompt may hold a 2
    for options, found in ({}, [0, 0]), (prompted, [1, 2]):
        options = options | {"controls": [Constraint(choice), Forbidden([2])]}
        drawn = dd.sample(PROCESS, Table(length=2), (50, 2), LeftToRight(), 2, **options)
        assert drawn.unique(dim=0).tolist() == [found]


def test_a_constraint_that_all_sequences_satisfy_changes_nothing():
    anything = Automaton({7: dict.fromkeys(range(V), 7)}, 7, [7], V)
    options = {"top_p": 0.9, "generator": list(range(8))}
    for sampler in SUPPORTED:
        free = dd.sample(PROCESS, Table(1), (8, 4), sampler, 3, **options)
        assert torch.equal(
            dd.sample(
                PROCESS,
                Table(1),
                (8, 4),
                sampler,
                3,
                controls=[Constraint(anything)],
                **options,
            ),
            free,
        ), sampler


@pytest.mark.parametrize("sampler", IN_ANY_BATCH, ids=repr)
def test_a_row_does_not_depend_on_its_batch(sampler, monkeypatch):
    prompt = torch.tensor([[MASK, MASK, 1], [0, MASK, MASK], [MASK] * 3, [1, 0, MASK]])
    options = {"sampler": sampler, "steps": 3, "controls": [Constraint(WORDS)]}
    whole = dd.sample(PROCESS, Table(2), (4, 4), prompt=prompt, generator=[5, 6, 7, 8], **options)
    for row in range(4):
        alone = dd.sample(
            PROCESS, Table(2), (1, 4), prompt=prompt[row : row + 1], generator=[5 + row], **options
        )
        assert torch.equal(alone[0], whole[row])
    many = {"controls": [Constraint(WORDS)], "generator": list(range(64))}
    large = dd.sample(PROCESS, Table(2), (64, 4), sampler, 2, **many)
    monkeypatch.setattr(joint, "_HELD", 1)  # row by row
    assert torch.equal(dd.sample(PROCESS, Table(2), (64, 4), sampler, 2, **many), large)


def test_several_masks_and_child_logits():
    drawn = dd.sample(
        Masked(V, Linear(), masks=3),
        lambda z, t: Table(1)(z.clamp_max(V), t),
        (9, 4),
        Ancestral(),
        3,
        controls=[Constraint(WORDS)],
    )
    assert bool(WORDS.accepts(drawn).all())
    options = {"controls": [Constraint(WORDS)], "generator": list(range(9))}
    cavity, children = (
        dd.sample(PROCESS, Table(1), (9, 4), Confidence(), 3, parameterization=meaning, **options)
        for meaning in ("cavity", "children")
    )
    assert torch.equal(cavity, children)


def test_guidance_acts_before_the_constraint():
    guided = ClassifierFree(PROCESS, Table(0), Table(1), 2.0, "states")
    drawn = dd.sample(PROCESS, guided, (20, 4), Confidence(), 3, controls=[Constraint(WORDS)])
    assert bool(WORDS.accepts(drawn).all())


def test_an_ending_at_the_end_of_the_constraint_saves_calls():
    networks = Table(1), Table(1)
    whole, ended = (
        dd.sample(
            PROCESS,
            network,
            (1, 4),
            LeftToRight(),
            4,
            controls=[*endings, Constraint(WORDS)],
            generator=[4],
        )
        for network, endings in zip(networks, ([], [EndOfText(3)]), strict=True)
    )
    shown = int((whole != 3).sum())
    assert (
        torch.equal(whole, ended)
        and shown < 3
        and [each.calls for each in networks] == [4, shown + 1]
    )


def test_many_states_and_very_unlikely_tokens():
    chain = {i: {0: i + 1} for i in range(400)} | {1000: {1: 1001, 2: 0}}
    line = Automaton(chain, 1000, [400], V)
    z = torch.full((1, 401), MASK)
    unlikely = torch.tensor([-30.0, 0.0, -700.0, 0.0], dtype=F64)
    found = JointDraw(
        line,
        z,
        z >= V,
        torch.zeros_like(z),
        lambda rows, columns: unlikely.expand(len(rows), -1),
        lambda scores: scores,
        torch.full(z.shape, 0.5, dtype=F64),
    ).tokens()
    assert found.tolist() == [[2, *[0] * 400]]  # its probability, exp(-12700), is no float


@pytest.mark.parametrize(
    "name", [name for name in dd.samplers.__all__ if isinstance(getattr(dd.samplers, name), type)]
)
def test_a_sampler_states_whether_it_draws_by_constraints(name):
    cls = getattr(dd.samplers, name)
    if not issubclass(cls, Sampler) or inspect.isabstract(cls):
        return
    for sampler in cls.examples():
        if sampler.guarantees.supports_joint_draws:
            dd.sample(PROCESS, Table(), (9, 4), sampler, 5, controls=[Constraint(WORDS)])
        else:
            with pytest.raises(TypeError, match=r"does not support|needs"):
                dd.sample(PROCESS, Table(), (9, 4), sampler, 5, controls=[Constraint(WORDS)])


class Claims(Sampler):
    """A sampler of another author that does not keep what it states."""

    guarantees = Guarantees(supports_joint_draws=True)

    def step(self, run, state, k):
        return State(torch.where(run.free, 2, state.z), state.t - 1 / run.steps)


def test_a_sampler_that_breaks_the_constraint_is_found():
    with pytest.raises(
        RuntimeError, match="has supports_joint_draws = True and drew a sequence that Automaton"
    ):
        dd.sample(PROCESS, Table(), (2, 4), Claims(), 2, controls=[Constraint(WORDS)])


def test_nothing_is_evaluated_before_an_error():
    network = Table()
    short = Automaton({0: {1: 1}}, 0, [1], V)
    with pytest.raises(
        ValueError, match="no sequence of length 4 satisfies: use another length or constraint"
    ):
        dd.sample(PROCESS, network, (2, 4), controls=[Constraint(short)])
    prompt = torch.tensor([[0], [3]])
    with pytest.raises(
        ValueError, match="length 4 satisfies with the tokens that row 1 of the prompt gives"
    ):
        dd.sample(PROCESS, network, (2, 4), prompt=prompt, controls=[Constraint(WORDS)])
    assert network.calls == 0


def impossible(z, t):
    return torch.tensor([-math.inf, -math.inf, 0.0, 0.0]).expand(*z.shape, V)


def draw(constraint=WORDS, process=PROCESS, sampler=None, network=None, controls=()):
    network = Table() if network is None else network
    controls = [Constraint(constraint), *controls]
    return dd.sample(process, network, (2, 4), sampler, 4, controls=controls)


test_refused = refuses(r"""
    Automaton({}, 0, [], 4) | ValueError | accepting is empty, must hold a state
    Automaton({0: {4: 0}}, 0, [0], 4) | ValueError | transitions hold token 4, must be in \[0, 4\)
    Automaton({0: {-1: 0}}, 0, [0], 4) | ValueError | transitions hold token -1, must be in \[0, 4\)
    Automaton({0: {1: 0}}, 0, [0], 4, end=1) | ValueError
        | end is 1, by which an accepting state has a transition
    Automaton({0: {1: 0}}, 0, [0], 4, end=4) | ValueError | end is 4, must be in \[0, 4\)
    Automaton({0: {1: 0}}, 0, [0], 4, end=2, fill=4) | ValueError | fill is 4, must be in \[0, 4\)
    Automaton({0: {1: 0}}, 0, [0], 4, fill=2) | ValueError | fill is 2 and end is None
    Automaton({0: {1: 0}}, 0, [0], 0) | ValueError | vocab_size is 0
    draw(process=Masked(V + 1, Linear()), network=Table(tokens=V + 1)) | ValueError
        | vocab_size=4, must be .* 5
    draw(controls=[Settled()]) | TypeError
        | which Settled.* does not support: it sets tokens without the constraint
    draw(controls=[EndOfText(3, least=2)]) | TypeError | least of EndOfText.* is 2, must be 0
    draw(controls=[EndOfText(0)]) | TypeError | EndOfText.* must accept any number of fill tokens
    draw(controls=[EndOfText(3, fill=1)]) | TypeError | must accept any number of fill tokens
    draw(Automaton({0: {1: 1}, 1: {1: 1, 2: 2}}, 0, [2], 4), controls=[EndOfText(1)]) | TypeError
        | any number of fill
    draw(WORDS.behind(1), controls=[EndOfText(3)]) | ValueError
        | whose first 1 positions must be given in prompt
    draw(controls=[Forbidden([0])]) | ValueError | no sequence of length 4 satisfies
    draw(network=impossible) | ValueError
        | the network gives probability 0 to all tokens at position 0
    WORDS.behind(-1) | ValueError | number is -1
""")


def test_the_halves_network_of_a_flat_tree():
    process = LEVELS["masked"]
    size = process.vocab_size
    alternating = Automaton({0: {0: 1}, 1: dict.fromkeys(range(1, size), 0)}, 0, [0, 1], size)
    drawn = dd.sample(
        process,
        Halves(process),
        (9, 4),
        Confidence(),
        4,
        controls=[Constraint(alternating)],
    )
    assert bool((drawn[:, ::2] == 0).all()) and bool((drawn[:, 1::2] > 0).all())


@pytest.mark.gpu
@pytest.mark.parametrize("sampler", SUPPORTED, ids=repr)
def test_on_a_gpu(sampler):
    weights = Table(1)
    process = copy.deepcopy(PROCESS).to("cuda")

    def network(z, t):
        return weights(z.cpu(), t).to(z.device)

    drawn = dd.sample(
        process,
        network,
        (9, 4),
        sampler,
        3,
        controls=[Forbidden([2]), Constraint(WORDS)],
    )
    assert (
        drawn.device.type == "cuda"
        and bool(WORDS.accepts(drawn.cpu()).all())
        and not bool((drawn == 2).any())
    )
