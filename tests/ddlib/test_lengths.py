"""Lengths that are not given: rules that lengthen and shorten a row while it is drawn."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from refusals import refuses
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.contrib import Daedal, Length, Psi, RhoEOS
from ddlib.contrib.lengths.ragged import RaggedContext
from ddlib.paces import Together
from ddlib.processes import Masked
from ddlib.samplers import Ancestral, Confidence, EntropyBounded, Euler, Remask
from ddlib.samplers.controls import Ending, EndOfText, Settled
from ddlib.schedules import Linear
from ddlib.verification.framework.cases import context

V = 5
END = 4
MASK = V
PROCESS = Masked(V, Linear())
PROMPT = torch.tensor([1, 0, END])
GREEDY = Confidence("probability", threshold=0.6)
RULES = {
    "daedal": Daedal(END, start=4, low=0.34, enough=0.3, expand_below=0.7, step=3, positions=5),
    "rho_eos": RhoEOS(END, start=8, step=1, positions=6),
    "masks": RhoEOS(END, start=8, step=1, density="masks", least=3),
    "daedal-block": Daedal(
        END, start=4, low=0.34, enough=0.3, expand_below=0.7, step=3, positions=5, block=4
    ),
    "rho_eos-block": RhoEOS(END, start=8, step=1, positions=6, block=5),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


class Endings:
    """A network whose logits are a sum over all states, with more end tokens towards the end.

    It records its inputs.
    """

    own_times = False

    def __init__(self, seed=0, slope=0.3, after=8.0, scale=0.7):
        noise = seeded(seed)
        self.table = scale * torch.randn(64, 64, V + 1, V, generator=noise, dtype=torch.float64)
        self.rise = slope * (torch.arange(64) - after)
        self.inputs = []

    def __call__(self, z, t):
        self.inputs.append(z.clone())
        place = torch.arange(z.shape[1])
        logits = self.table[place[:, None], place[None], z[:, None]].sum(2) / z.shape[1] ** 0.5
        logits[..., END] += self.rise[: z.shape[1]]
        return logits


def probabilities(network, z):
    """Probabilities of a row; at tokens they are 0 or 1."""
    probs = network(z[None], None)[0].softmax(-1)
    return torch.where((z < V)[:, None], torch.eye(V)[z.clamp_max(V - 1)].double(), probs)


def masks(number):
    return torch.full((number,), MASK)


def filled(z, probs, window, high):
    """The row after a step: masks of the window with high probability, or the best one.

    And which they were.
    """
    best, tokens = probs.max(-1)
    there = [i for i in window if z[i] == MASK]
    which = [i for i in there if best[i] > high] or [max(there, key=lambda i: best[i])]
    z = z.clone()
    z[which] = tokens[which]
    return z, [i for i in there if i not in which]


def moved(z, place, block):
    """The first position of the window."""
    while place < len(z) and not (z[place : place + block] == MASK).any():
        place = min(place + block, len(z))
    return place


def confidence(probs, prompt, positions):
    """In the end token, as both programs compute it."""
    ends = [float(p[END]) for p in reversed(probs[len(prompt) :]) if p.argmax() == END]
    return sum(ends[:positions]) / positions


def published_daedal(
    network, prompt, most, *, start, step, block, high, low, enough, expand_below, positions
):
    """One row of the published program, at temperature 0."""
    size = start
    z = torch.cat([prompt, masks(start)])
    while size < most and confidence(probabilities(network, z), prompt, positions) < enough:
        size = min(size + step, most)
        z = torch.cat([prompt, masks(size)])
    tail = min(size + positions // 2, most) - size
    z = torch.cat([z, torch.full((tail,), END)])
    place = len(prompt)
    while place < len(z):
        probs = probabilities(network, z)
        room = len(z) - len(prompt) < most
        best = probs.amax(-1)
        z, others = filled(z, probs, range(place, min(place + block, len(z))), high)
        weak = [i for i in others if best[i] < low]
        if weak and room and confidence(probs, prompt, positions) < expand_below:
            at = min(weak, key=lambda i: best[i])
            z = torch.cat([z[:at], masks(step), z[at + 1 :]])[: len(prompt) + most]
        place = moved(z, place, block)
    return z


def published_rho_eos(
    network, prompt, most, *, start, step, block, high, density, positions, least=1, changes=64
):
    """One row of the published program, at temperature 0, for an interval of densities from 0.4 to
    0.6.
    """
    z = torch.cat([prompt, masks(start)])
    place = len(prompt)
    count = 0
    while (z == MASK).any():
        count += 1
        frozen = len(z) - len(prompt) >= most or count > changes
        probs = probabilities(network, z)
        there = z == MASK
        share = Fraction(confidence(probs, prompt, positions))
        if density == "masks":
            share = Fraction(int((there & (probs.argmax(-1) == END)).sum()), int(there.sum()))
        z, _ = filled(z, probs, range(place, min(place + block, len(z))), high)
        place = moved(z, place, block)
        gap = max(Fraction(2, 5) - share, share - Fraction(3, 5), 0)
        number = 0 if frozen or not gap else step * min(2 ** (math.ceil(10 * gap) - 1), 8)
        if share < 0.5:
            z = torch.cat([z, masks(min(number, most + len(prompt) - len(z)))])
        else:
            z = z[: max(len(z) - number, len(prompt) + least)]
        place = min(place, len(z))
    return z


def shown(network):
    """States that a network has seen, each time once."""
    seen = []
    for z in network.inputs:
        if not seen or not torch.equal(seen[-1], z):
            seen.append(z)
    return seen


def compare(rule, published, seed, slope, most=24, **options):
    """The row is the published one, and so is every input of the network.

    Its lengths, call by call.
    """
    theirs = Endings(seed, slope)
    ours = Endings(seed, slope)
    prompt = PROMPT[: seed % 4]
    want = published(theirs, prompt, most, high=0.6, **options)
    row = rule(END, **options)
    size = most + len(prompt)
    found = dd.sample(
        PROCESS, ours, (1, size), GREEDY, 100, prompt[None], temperature=0.0, controls=[row]
    )
    assert torch.equal(found[0, : len(want)], want) and (found[0, len(want) :] == END).all()
    assert len(shown(ours)) == len(shown(theirs)) and all(
        map(torch.equal, shown(ours), shown(theirs))
    )
    assert len(ours.inputs) <= len(theirs.inputs)
    return [z.shape[1] - len(prompt) for z in ours.inputs]


SLOPES = pytest.mark.parametrize("slope", [-0.3, 0.1, 0.3, 0.5])
every_block = pytest.mark.parametrize("block", [4, 64])


@every_block
@SLOPES
def test_daedal_is_the_published_loop_call_by_call(block, slope):
    options = {
        "start": 4,
        "step": 3,
        "low": 0.34,
        "enough": 0.3,
        "expand_below": 0.7,
        "positions": 5,
    }
    lengths = [
        compare(Daedal, published_daedal, seed, slope, block=block, **options) for seed in range(5)
    ]
    first, last = {-0.3: (6, 24), 0.1: (18, 24), 0.3: (15, 24), 0.5: (15, 24)}[slope]
    assert all(first <= one[-1] <= last and one == sorted(one) for one in lengths)
    if slope == 0.1:  # both stages
        assert any(one[-1] > 18 for one in lengths)


@every_block
@SLOPES
@pytest.mark.parametrize("density", ["last", "masks"])
def test_rho_eos_is_the_published_loop_call_by_call(density, block, slope):
    options = {"start": 12, "step": 2, "positions": 8, "density": density, "block": block}
    lengths = [compare(RhoEOS, published_rho_eos, seed, slope, **options) for seed in range(5)]
    changes = {(b > a) - (b < a) for one in lengths for a, b in itertools.pairwise(one)}
    assert {0, 1} <= changes and (-1 in changes or (density, block) == ("masks", 64))


def test_changes_end_after_some_steps():
    options = {"start": 12, "step": 1, "positions": 8, "density": "last", "block": 64}
    free = compare(RhoEOS, published_rho_eos, 1, 0.3, **options)
    for changes in range(1, 6):
        ended = compare(RhoEOS, published_rho_eos, 1, 0.3, **options, changes=changes)
        assert free[: changes + 1] == ended[: changes + 1] and len({*ended[changes:]}) == 1
    assert len({*free[:6]}) == 3


def draw(rule, sampler=None, rows=4, size=22, generator=None, slope=0.3, controls=(), **options):
    """Rows, and the widths of the network's inputs."""
    network = Endings(2, slope)
    found = dd.sample(
        PROCESS,
        network,
        (rows, size),
        sampler or Confidence("margin", temperature=0.3, threshold=0.7),
        40,
        generator=[*range(rows)] if generator is None else generator,
        controls=[*controls, rule],
        **options,
    )
    return found, [z.shape[1] for z in network.inputs]


def lengths(rows, rule):
    """The rows end with the token that fills them."""
    return [int((row != rule.fill).nonzero().max()) + 1 for row in rows]


SAMPLERS = {
    "confidence": Confidence("margin", temperature=0.3, threshold=0.7),
    "edit": Confidence("probability", threshold=0.5, edit=0.5),
    "bounded": EntropyBounded(0.3),
    "ancestral": Ancestral(),
    "euler": Euler(),
    "remask": Remask(0.1, "cap"),
    "psi": Psi(0.7),
}
PAIRS = [
    pytest.param(
        rule,
        sampler,
        id=f"{kind}-{name}",
    )
    for kind, rule in RULES.items()
    for name, sampler in SAMPLERS.items()
    if rule.block is None or not sampler.guarantees.by_times
]


@pytest.mark.parametrize(("rule", "sampler"), PAIRS)
def test_a_row_is_the_same_alone_and_in_every_batch(rule, sampler):
    prompt = torch.full((4, 22), MASK)
    for row, given in enumerate(([], [1], [0, 2, 3], [2])):
        prompt[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    options = {"temperature": 0.8, "controls": [dd.controls.RepetitionPenalty(1.3)]}
    found, widths = draw(rule, sampler, prompt=prompt, **options)
    assert (found < V).all() and len(set(widths)) > 1
    for order in ([0], [2], [3, 1]):
        part, _ = draw(rule, sampler, len(order), generator=order, prompt=prompt[order], **options)
        assert torch.equal(part, found[order]), order
    assert torch.equal(found[2, :3], torch.tensor([0, 2, 3]))


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"masks"}))
def test_a_larger_limit_changes_only_rows_that_meet_it(name):
    rule = RULES[name]
    found, widths = draw(rule, slope=1.0)
    more, _ = draw(rule, slope=1.0, size=30)
    assert 8 < max(widths) < 22 and torch.equal(found, more[:, :22]) and (more[:, 22:] == END).all()
    _, narrow = draw(rule, slope=1.0, size=max(widths) - 1)
    assert max(narrow) == max(widths) - 1


@every_rule
def test_limits_of_the_length(rule):
    for slope in (-3.0, 3.0):  # never the end, always the end
        found, widths = draw(rule, slope=slope, size=12)
        assert max(widths) <= 12 and min(widths) >= min(
            rule.start, getattr(rule, "least", rule.start)
        )
        assert (found < V).all()
    wide = dd.sample(PROCESS, Endings(), (2, 3), GREEDY, 9, controls=[rule])  # less than the start
    assert wide.shape == (2, 3) and (wide < V).all()


def test_the_largest_change_is_eight_times_the_step():
    _, widths = draw(RhoEOS(END, start=2, step=1, low=0.95, high=1.0), slope=-3.0, size=40)
    assert widths[:4] == [2, 10, 18, 26]


@every_rule
def test_few_steps_complete_every_row(rule):
    for steps in (1, 2, 3):
        network = Endings(1)
        found = dd.sample(
            PROCESS,
            network,
            (3, 20),
            GREEDY,
            steps,
            torch.tensor([1]),
            controls=[rule],
            generator=[1, 2, 3],
        )
        assert (found < V).all() and (found[:, 0] == 1).all()
        if isinstance(rule, RhoEOS):
            assert len({z.shape[1] for z in network.inputs}) <= steps


def test_a_finished_row_is_not_evaluated_any_more():
    """A row is evaluated once per step in which it has masks."""
    network = Endings(3, 0.5)
    unfinished = []
    prompt = torch.tensor([[1, 0, 2, 3, 1, 1, 2, 0, MASK, MASK], [1] + [MASK] * 9])
    dd.sample(
        PROCESS,
        network,
        (2, 10),
        Confidence(per_step=1),
        20,
        prompt,
        controls=[RhoEOS(END, start=2)],
        on_step=lambda k, t, z: unfinished.append(int((z == MASK).any(1).sum())),
    )
    assert sum(len(z) for z in network.inputs) == sum(unfinished) and {0, 1, 2} == {*unfinished}
    whole = torch.tensor([[1, 2, 3]])
    calls = len(network.inputs)
    assert torch.equal(
        dd.sample(PROCESS, network, (1, 3), GREEDY, 9, whole, controls=[RhoEOS(END)]), whole
    )
    assert len(network.inputs) == calls


def test_rows_hold_another_token_behind_their_end():
    rule = RhoEOS(END, start=8, step=1, positions=6, fill=0)
    found, widths = draw(rule, slope=1.0, controls=[dd.controls.Forbidden([0])])
    same, _ = draw(RULES["rho_eos"], slope=1.0, controls=[dd.controls.Forbidden([0])])
    ends = lengths(found, rule)
    for row, other, end in zip(found, same, ends, strict=True):
        assert (
            torch.equal(row[:end], other[:end])
            and (row[end:] == 0).all()
            and (other[end:] == END).all()
        )
    assert set(ends) <= set(widths) and max(ends) < 22


@every_rule
def test_endings_stop_rows_too(rule):
    """Nothing follows the first end token of a row; greedy rows that settle are completed."""
    found, _ = draw(rule, slope=0.3, controls=[EndOfText(END, least=2, fill=1)])
    plain, _ = draw(rule, slope=0.3)
    for row in found:
        end = int((row == END).nonzero().min())
        assert end >= 2 and (row[end + 1 :] == 1).all()
    settled, _ = draw(rule, slope=0.3, controls=[Settled(10.0)])
    assert (settled < V).all() and not torch.equal(settled, plain)


@pytest.mark.parametrize("rule", RULES)
def test_levels_of_a_tree_and_split_networks(rule):
    rule = RULES[rule]
    """States between the mask and the tokens count as masks; a split network computes logits at
    some positions.
    """
    process = LEVELS["levels-xi"]
    for sampler in (Confidence(), Ancestral()):
        if rule.block is not None and sampler.guarantees.by_times:
            continue
        for network in (Halves(process), lambda z, t: Halves(process)(z, t)):
            found = [
                dd.sample(
                    process,
                    network,
                    (3, 16),
                    sampler,
                    20,
                    generator=[4, 5, 6],
                    controls=[rule, *([] if compact else [dd.controls.WholeBatch()])],
                )
                for compact in (True, False)
            ]
            assert torch.equal(*found) and (found[0] < 6).all()


def test_features_at_some_positions_are_those_of_the_row():
    def call(z, t, positions=None):
        features = z[..., None].double().cumsum(1)
        return features if positions is None else features.gather(1, positions[..., None])

    z = torch.arange(12).view(3, 4)
    t = torch.ones(3)
    context = RaggedContext(torch.tensor([2, 0, 4]), 99, True)
    whole = context.output(call, z, t)
    assert torch.equal(
        whole[:, :, 0], torch.tensor([[0, 1, 0, 0], [0] * 4, [8, 17, 27, 38]]).double()
    )
    positions = torch.tensor([[1, 3], [0, 0], [3, 0]])  # padding beyond the row
    assert torch.equal(
        context.output(call, z, t, None, positions)[:, :, 0],
        torch.tensor([[1, 1], [0, 0], [38, 8]]).double(),
    )
    assert context.states(z).tolist() == [[0, 1, 99, 99], [99] * 4, [8, 9, 10, 11]]
    rows = torch.tensor([True, False, True])
    assert torch.equal(context.output(call, z[rows], t[rows], rows), whole[rows])


def test_the_time_is_that_of_all_positions_of_the_row():
    """The expected share of masks is the time here.

    The window and the largest length change nothing.
    """
    times = []

    def network(z, t):
        times.extend(zip(t.tolist(), (z == MASK).double().mean(1).tolist(), strict=True))
        return Endings(0, 0.5)(z, t)

    dd.sample(
        PROCESS,
        network,
        (3, 40),
        Confidence(),
        60,
        controls=[RhoEOS(END, start=8, step=2, positions=6, block=3)],
    )
    assert len({share for _, share in times}) > 5
    assert all(abs(t - share) < 1e-3 for t, share in times)


class Doubling(Length):
    """A custom rule: a row doubles once, after the first step, by masks before its last
    position.
    """

    def observe(self, canvas):
        return canvas.outlook(self.token).best

    def resize(self, canvas, observed, window, k):
        return canvas.length - 1, torch.where(
            torch.full_like(canvas.length, k) == 0, canvas.length, 0
        )


def test_a_rule_is_one_class():
    states = []
    dd.sample(
        PROCESS,
        Endings(0, -1.0),
        (1, 9),
        Confidence(per_step=1),
        20,
        controls=[Doubling(END, start=3, fill=0)],
        on_step=lambda k, t, z: states.append(z[0].tolist()),
    )
    assert states[0] == [MASK] * 3 + [0] * 6
    drawn = next(i for i in range(9) if states[1][i] != MASK)
    assert states[1][6:] == [0] * 3 and states[1].count(MASK) == 5 and drawn in (0, 1, 5)
    assert MASK not in states[-1] and states[-1][6:] == [0] * 3
    assert repr(Doubling(END, start=3)) == "Doubling(token=4, start=3, block=None, fill=4)"


class Last(Ending):
    """Fixes the last of three positions before the first step."""

    def select_finished(self, run, state, drawn, memo):
        return (
            torch.ones_like(state.z),
            torch.arange(9).expand(1, 9) == (2 if memo is None else 9),
            True,
        )


def test_positions_that_an_ending_fixed_move_with_their_tokens():
    rule = Doubling(END, start=3, fill=0)
    states = []
    network = Endings(0, -1.0)
    tokens = dd.sample(
        PROCESS,
        network,
        (1, 9),
        Confidence(per_step=1, edit=0.0),
        20,
        controls=[Last(), dd.controls.Forbidden([1]), rule],
        temperature=0.0,
        on_step=lambda k, t, z: states.append(z[0].tolist()),
    )
    assert states[0] == [MASK, MASK, 1] + [0] * 6 and states[1][2:] == [
        MASK,
        MASK,
        MASK,
        1,
        0,
        0,
        0,
    ]
    assert (
        (tokens[0, :5] < V).all()
        and not (tokens[0, :5] == 1).any()
        and tokens[0, 5:].tolist() == [1, 0, 0, 0]
    )


def refused(rule, process=PROCESS, sampler=GREEDY, controls=(), **options):
    controls = [*controls, rule]
    return dd.sample(process, Endings(), (2, 12), sampler, 5, controls=controls, **options)


RULE = RULES["rho_eos"]
GAP = torch.tensor([[1, MASK, 2]])
test_refused = refuses(r"""
    refused(RhoEOS(5)) | ValueError | token of RhoEOS\(.*\) is 5, must be a token in \[0, 5\)
    refused(RhoEOS(4, fill=7)) | ValueError | fill of RhoEOS\(.*\) is 7, must be a token
    refused(RULE, sampler=FirstHitting()) | TypeError
        | which FirstHitting.* does not support: .* it may store values per
    refused(RULE, sampler=Remask(rule="confidence")) | TypeError
        | which Remask.* does not support: .* it may store values
    refused(RULE, sampler=dd.contrib.Filmed(GREEDY, 1)) | TypeError | not filmed
    refused(RULE, prompt=GAP)
        | ValueError
            | controls holds RhoEOS\(.*\) and prompt holds tokens after a gap, must hold tokens only
            at
    RhoEOS(4, start=0) | ValueError | start is 0, must be at least 1
    RhoEOS(4, block=0) | ValueError | block is 0, must be at least 1
    RhoEOS(4, low=0.7) | ValueError | low is 0.7 and high is 0.6, must be at most high
    RhoEOS(4, high=1.5) | ValueError | high is 1.5, must be in \[0, 1\]
    RhoEOS(4, least=9, start=8) | ValueError | least is 9 and start is 8, must be at most start
    RhoEOS(4, density="all") | ValueError | density is 'all', must be 'last' or 'masks'
    Daedal(4, enough=-1) | ValueError | enough is -1, must be in \[0, 1\]
    Daedal(4, low=2) | ValueError | low is 2, must be in
    Daedal(4, expand_below=2) | ValueError | expand_below is 2, must be in
    Daedal(4, step=0) | ValueError | step is 0, must be at least 1
    Daedal(4, positions=0) | ValueError | positions is 0, must be at least 1
""")


def test_together_is_no_other_pace():
    found, _ = draw(RULE)
    again, _ = draw(RULE, pace=Together())
    assert torch.equal(found, again)


@pytest.mark.parametrize("length", [256, 257, 258])
def test_every_length_is_served(length):
    """257 is also the number of times at which an order tabulates the expected level."""
    dd.plan(PROCESS, Endings(), (2, length), Confidence(), steps=300, controls=[RULE])


SAMPLER_EXAMPLES = [
    sampler
    for kind in dd.registry.built_in("samplers")
    for sampler in dd.registry.get("samplers", kind).examples()
]


def widths(memo):
    """Second sides of the tensors of a memo."""
    if isinstance(memo, torch.Tensor):
        return [memo.shape[1:2]]
    return [width for one in memo for width in widths(one)] if isinstance(memo, tuple) else []


@pytest.mark.parametrize("sampler", SAMPLER_EXAMPLES, ids=repr)
def test_a_sampler_declares_whether_its_memo_holds_values_of_positions(sampler):
    memos = []
    for length in (5, 6):
        times = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
        run = context(PROCESS, Endings(), (2, length), times, seeded())
        memos.append(widths(sampler.init(run).memo))
    assert (memos[0] == memos[1]) == sampler.guarantees.movable_positions
