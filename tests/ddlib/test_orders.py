"""Samplers that choose which position descends next: how many, which, and their network calls."""

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from refusals import refuses
from zoo.calls import generate, seeded, trajectory
from zoo.networks import Halves, plain
from zoo.processes import F64, LEVELS

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.hierarchies.base import descendant_logits
from ddlib.processes import Masked
from ddlib.samplers import Ancestral, Confidence, EntropyBounded
from ddlib.samplers.choices import entropy, two_largest
from ddlib.samplers.runtime.model import Model
from ddlib.schedules import Linear

ORDERS = {
    "margin": Confidence(),
    "gumbel": Confidence("entropy", temperature=1.0),
    "threshold": Confidence("probability", threshold=0.4),
    "bounded": EntropyBounded(0.5),
}
every_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


class Table:
    """A denoiser with a fixed row of logits per position, independent of the states.

    It counts its calls.
    """

    def __init__(self, *probs):
        self.logits = torch.tensor(probs, dtype=F64).log()
        self.calls = 0
        self.times = []

    def __call__(self, z, t):
        self.calls += 1
        self.times.append(t.tolist())
        return self.logits.expand(len(z), -1, -1)


def levels(process, denoiser, sampler, **options):
    """The levels after each step, (steps + 1, B, L)."""
    states = trajectory(process, denoiser, sampler, **options)
    return process.level_of(states.flatten(0, 1)).view_as(states)


def first(process, table, sampler, **options):
    """The positions that come down in each of the steps, of the first row."""
    length = table.logits.shape[0]
    level = levels(process, table, sampler, shape=(2, length), steps=length, **options)[:, 0]
    return [
        (before - after).nonzero().flatten().tolist() for before, after in itertools.pairwise(level)
    ]


# the largest, the largest minus the second, and the entropy: each score begins with another
# position
SHARES = (
    (0.50, 0.48, 0.02, 0.0),
    (0.49, 0.17, 0.17, 0.17),
    (0.45, 0.45, 0.05, 0.05),
    (0.45, 0.35, 0.2, 0.0),
)


@pytest.mark.parametrize(
    ("score", "order"),
    [("probability", [0, 1, 2, 3]), ("margin", [1, 3, 0, 2]), ("entropy", [0, 2, 3, 1])],
)
def test_the_surest_position_comes_down_first(score, order):
    process = Masked(4, Linear())
    table = Table(*SHARES)
    assert first(process, table, Confidence(score)) == [[i] for i in order]
    shuffled = Table(
        *(SHARES[i] for i in (2, 0, 3, 1))
    )  # by the probabilities, not by the position
    assert first(process, shuffled, Confidence(score)) == [[[1, 3, 0, 2][i]] for i in order]


@pytest.mark.parametrize("columns", [1, 2, 31, 63, 64, 97, 4099])
def test_the_two_largest_entries_are_those_of_topk(columns):
    values = torch.randn(50, columns, generator=seeded(columns)).mul(3).round()  # with equal ones
    values[0] = -torch.inf
    assert torch.equal(two_largest(values), values.topk(min(2, columns)).values)


def test_equals_go_by_position_and_gumbel_noise_makes_them_random():
    process = Masked(2, Linear())
    table = Table(*[(0.5, 0.5)] * 5)
    assert first(process, table, Confidence()) == [[0], [1], [2], [3], [4]]
    assert first(process, table, EntropyBounded(0.0)) == [[0], [1], [2], [3], [4]]
    came = [first(process, table, Confidence(temperature=heat)) for heat in (1e-3, 1.0)]
    assert came[0] == came[1] != [[0], [1], [2], [3], [4]]


def test_gumbel_noise_chooses_in_proportion_to_the_exponentials_of_the_scores():
    """Dream's rule: softmax(score / temperature) draws the position."""
    process = Masked(4, Linear())
    table = Table(*SHARES)
    n = 4000
    sampler = Confidence("probability", temperature=0.2)
    went = []

    def note(k, t, z):
        if k == 0:
            went.append((z < 4).double().sum(0) / n)

    generator = seeded()
    dd.sample(process, table, (n, 4), sampler, 4, on_step=note, generator=generator)
    probs = (torch.tensor([0.50, 0.49, 0.45, 0.45], dtype=F64) / 0.2).softmax(-1)
    assert (went[0] - probs).abs().max() < 4.5 * (0.25 / n) ** 0.5


@pytest.mark.parametrize("name", ["masked", "levels", "levels-xi"])
def test_gamma_sets_the_number_of_network_calls(name):
    process = LEVELS[name]
    edges = len(LEVELS[name].levels) - 1
    for gamma, calls in ((0.0, 5 * edges), (math.inf, edges)):
        halves = Halves(process)
        level = levels(process, halves, EntropyBounded(gamma), shape=(1, 5), steps=5 * edges)
        assert halves.calls == calls and not level[-1].any()
        falls = level[:-1] - level[1:]
        assert falls.max() == 1 and falls.sum(-1).max() == (1 if gamma == 0 else 5)


def test_gamma_bounds_the_entropies_but_the_largest():
    process = Masked(4, Linear())
    table = Table(*SHARES)
    own = entropy(table.logits)
    three = float(own.sort().values[:2].sum())
    for gamma, number in ((three - 1e-9, 2), (three + 1e-9, 3), (0.0, 1), (float(own.sum()), 4)):
        assert len(first(process, table, EntropyBounded(gamma))[0]) == number
    certain = Table((1.0, 0.0), (0.6, 0.4), (0.0, 1.0), (0.5, 0.5))
    assert first(Masked(2, Linear()), certain, EntropyBounded(0.0)) == [[0, 1, 2], [3], [], []]


def test_edges_are_split_evenly_over_the_steps_as_in_llada():
    process = LEVELS["masked"]
    for steps, split in ((4, [3, 3, 2, 2]), (10, [1] * 10), (1, [10]), (12, [1] * 10 + [0, 0])):
        level = levels(process, Halves(process), Confidence(), shape=(1, 10), steps=steps)
        assert (level[:-1] - level[1:]).sum(-1)[:, 0].tolist() == split
    level = levels(process, Halves(process), Confidence(per_step=4), shape=(1, 10), steps=5)
    assert (level[:-1] - level[1:]).sum(-1)[:, 0].tolist() == [4, 4, 2, 0, 0]
    process = LEVELS["levels"]
    # twelve edges, four at a time at most
    level = levels(process, Halves(process), Confidence(), shape=(2, 4), steps=6)
    assert (level[:-1] - level[1:]).sum(-1)[:-1].max() == 2 and not level[-1].any()


def test_edges_are_rounded_along_the_schedule_as_in_dllm():
    """Its loop: of the masks left, one part in the steps left, rounded, half to even."""
    numbers = random.Random(0)
    cases = [(10, 4, [2, 3, 2, 3]), (9, 6, None), (1, 3, None)]
    cases += [(numbers.randint(1, 20), numbers.randint(1, 12), None) for _ in range(12)]
    process = Masked(6, Linear())
    for masks, steps, split in cases:
        wanted = []
        left = masks
        for step in range(steps):
            wanted.append(round(Fraction(left, steps - step)))
            left -= wanted[-1]
        assert split in (None, wanted) and left == 0
        order = Confidence("probability", per_step="rounded")
        level = levels(process, Halves(process), order, shape=(1, masks), steps=steps)
        assert (level[:-1] - level[1:]).sum(-1)[:, 0].tolist() == wanted


@every_order
def test_on_the_last_step_all_that_is_left_lands_on_tokens(order):
    process = LEVELS["levels"]
    halves = Halves(LEVELS["levels"])
    for steps in (1, 2):
        tokens = generate(process, halves, order, shape=(3, 4), steps=steps)
        assert tokens.max() < process.vocab_size
    assert halves.calls == 3


@every_order
@pytest.mark.parametrize("name", ["masked", "levels-xi"])
def test_rows_are_counted_on_their_own(order, name):
    """A prompt of another length, and other rows around it, change no sequence.

    A finished row is not evaluated.
    """
    process = LEVELS[name]
    mask = process.num_states - 1
    prompt = torch.tensor([[0, 1, 2, mask, mask, mask], [mask] * 6, [3, mask, 4, mask, 5, 0]])

    def drawn(rows, halves):
        generator = dd.KeyedGenerator(3, 0, torch.arange(3)[rows])
        given = prompt[rows]
        return dd.sample(process, halves, given.shape, order, 9, given, generator=generator)

    halves = Halves(process)
    whole = drawn(slice(0, 3), halves)
    assert halves.sequences < 3 * halves.calls
    parts = torch.cat([drawn(slice(0, 1), Halves(process)), drawn(slice(1, 3), Halves(process))])
    assert torch.equal(whole, parts) and torch.equal(whole[prompt < mask], prompt[prompt < mask])
    assert torch.equal(whole, drawn(slice(0, 3), plain(Halves(process))))


def test_a_threshold_lets_all_go_that_meet_it_and_the_best_where_none_does():
    process = Masked(2, Linear())
    table = Table((0.95, 0.05), (0.7, 0.3), (0.1, 0.9), (0.6, 0.4), (0.55, 0.45), (0.5, 0.5))
    assert first(process, table, Confidence("probability", threshold=0.89)) == [
        [0, 2],
        [1],
        [3],
        [4],
        [5],
        [],
    ]
    assert first(process, table, Confidence("margin", threshold=0.19)) == [
        [0, 1, 2, 3],
        [4],
        [5],
        [],
        [],
        [],
    ]
    assert first(process, table, Confidence("entropy", threshold=-0.62)) == [
        [0, 1, 2],
        [3],
        [4],
        [5],
        [],
        [],
    ]
    assert first(process, table, Confidence("entropy", threshold=0.0))[0] == [0]
    level = levels(process, table, Confidence("probability", threshold=1.0), shape=(1, 6), steps=2)
    assert level.sum(-1)[:, 0].tolist() == [6, 3, 0]  # enough go to be done in time


def test_a_threshold_for_each_edge():
    process = LEVELS["levels"]
    down = levels(
        process, Halves(process), Confidence("probability", threshold=[1.0, 1e-9, 1.0]), steps=99
    )
    falls = [down[:-1][down.diff(dim=0) < 0], down.diff(dim=0)]
    at_once = [(falls[1] < 0)[(down[:-1] == j).any(-1)].view(-1, 5) for j in (1, 2, 3)]
    assert falls[0].unique().tolist() == [1, 2, 3] and all(len(steps) for steps in at_once)
    clusters = (down[:-1] == 2) & (falls[1] == 0)
    assert not clusters.any()  # a supercluster is left by the next call, always


@pytest.mark.parametrize("name", ["masked", "levels"])
def test_the_model_time_is_that_at_which_as_many_edges_are_left(name):
    process = {"masked": Masked(6, Linear()), "levels": LEVELS["levels"]}[name]
    edges = len(process.levels) - 1
    seen = []
    dd.sample(
        process,
        Halves(process),
        (2, 4),
        EntropyBounded(0.0),
        4 * edges,
        prompt=torch.tensor([[1]]),
        on_step=lambda k, t, z: seen.append((t, process.level_of(z))),
    )
    assert seen[0][0].tolist() == [1.0, 1.0] and seen[-1][0].tolist() == [0.0, 0.0]
    for t, level in seen:
        chances = process.level_transition(torch.zeros_like(t), t)[:, 0]
        left = chances @ torch.arange(edges + 1.0, dtype=F64)
        assert (left - level.sum(-1) / 3).abs().max() < 1e-3
    if name == "masked":  # of three free positions
        assert [float(t[0]) for t, _ in seen][:4] == pytest.approx([1, 2 / 3, 1 / 3, 0])


@every_order
def test_child_logits_and_those_of_tokens_draw_the_same_text(order):
    tree = Tree([[0, 0, 1, 1, 2, 3, 3, 4], [0, 1, 1, 0, 2], [0, 0, 1]])
    generator = seeded(1)
    table = torch.randn(30, tree.num_states - 1, generator=generator, dtype=F64)

    def children(z, t):
        return table[z] + table[z.roll(1, -1)]

    process = dd.presets.hdlm_levels([edge.parents.tolist() for edge in tree.maps[:-1]])
    options = {
        "shape": (6, 5),
        "steps": 20,
    }  # as many as edges, so that no position descends several at once
    ours = generate(process, children, order, parameterization=dd.Children(tree), **options)
    theirs = generate(process, lambda z, t: dd.token_logits(tree, children(z, t)), order, **options)
    assert torch.equal(ours, theirs)


def test_only_sibling_logits_are_computed(products):
    """By child logits a score needs the children of a state and no other."""
    from test_children import Halves as Children

    process = dd.presets.hdlm_levels([[0, 0, 1, 1, 2, 3, 3, 4], [0, 1, 1, 0, 2]])
    denoiser = Children(process, process.hierarchy)
    dd.sample(process, denoiser, (3, 4), Confidence(), steps=12, parameterization="children")
    assert max(columns for _, columns in products) <= 3 < process.num_states - 1


def test_scores_of_cluster_members_by_token_logits_need_no_other_tokens(products):
    process = LEVELS["levels"]  # six tokens in four clusters in two
    z = torch.tensor([[6, 8, 10, 9]])  # clusters of both levels, no mask
    network = Model(process, Halves(process))
    for predicted in network.at(z, torch.ones(1, dtype=F64), z > 0):
        logits, which = predicted.under()
    assert [columns for _, columns in products] == [2, 1, 1, 3] and which.shape == logits.shape == (
        4,
        3,
    )
    whole = Halves(process)(z, torch.ones(1))[0]
    for k, state in enumerate(z[0].tolist()):
        tokens = process.hierarchy.under(state)
        torch.testing.assert_close(logits[k, : len(tokens)].to(whole.dtype), whole[k, tokens])
        assert (
            which[k, : len(tokens)].tolist() == tokens.tolist()
            and (logits[k, len(tokens) :] == -torch.inf).all()
        )


def test_the_choice_is_a_function_of_scores_and_levels():
    score = torch.tensor([[0.1, 0.9, 0.5, 0.9], [0.3, 0.2, 0.1, 0.0]], dtype=F64)
    level = torch.tensor([[1, 2, 0, 1], [0, 0, 0, 3]])
    for least, wanted in ((1, [[1], [3]]), (2, [[1, 3], [3]]), (4, [[0, 1, 3], [3]])):
        chosen = Confidence().choose(score, level, torch.tensor([[least], [1]]))
        assert [row.nonzero().flatten().tolist() for row in chosen] == wanted
    done = torch.zeros_like(level)
    assert not Confidence().choose(score, done, torch.tensor([[3], [3]])).any()


@pytest.mark.parametrize("name", LEVELS)
def test_with_one_step_all_land_as_ancestral_lets_them(name):
    """With all positions landing on tokens at once there is no choice: the same tokens."""
    process = LEVELS[name]
    n = 2000
    drawn = [
        dd.sample(process, Halves(process), (n, 1), sampler, 1, generator=seeded(seed))
        for seed, sampler in enumerate((Confidence(), Ancestral()))
    ]
    ours, theirs = (torch.bincount(tokens[:, 0], minlength=6).double() for tokens in drawn)
    assert ((ours - theirs) ** 2 / (ours + theirs).clamp_min(1)).sum() < 25


def test_scores_are_those_before_temperature_and_top_p():
    """Greedy: each distribution that is drawn from is certain.

    That by which positions are chosen is not.
    """
    process = Masked(4, Linear())
    for options in ({"temperature": 0.0}, {"top_p": 0.4}):
        assert first(process, Table(*SHARES), Confidence("entropy"), **options) == [
            [0],
            [2],
            [3],
            [1],
        ]
        assert (
            generate(process, Table(*SHARES), Confidence(), shape=(9, 4), **options)[:, [0, 1, 3]]
            .eq(0)
            .all()
        )


@pytest.mark.parametrize("name", LEVELS)
def test_descent_is_the_posterior_at_any_two_times_given_the_level(name):
    """q(z_s | z_t, p) among the members of a level, whatever s and t: so orders need no time."""
    process = LEVELS[name]
    logits = torch.randn(1, 6, generator=seeded(), dtype=F64)
    state = torch.arange(process.num_states)
    edges = len(process.levels) - 1
    for t, s in ((0.9, 0.2), (0.5, 0.49), (0.3, 0.01)):
        times = (torch.tensor([v], dtype=F64) for v in (t, s))
        posterior = process.posterior(
            logits.softmax(-1).expand(1, len(state), -1), state[None], *times
        )[0]
        for j in range(1, edges + 1):
            for i in range(j):
                rows = process.level_of(state[None])[0] == j
                found = descendant_logits(
                    process.hierarchy, logits.expand(int(rows.sum()), -1), state[rows], j, i
                ).softmax(-1)
                first_of = sum(process.levels[:i])
                want = posterior[rows, first_of : first_of + process.levels[i]]
                assert (found - want / want.sum(-1, keepdim=True)).abs().max() < 1e-10


test_bad_input_is_refused_before_the_network_runs = refuses(r"""
    Confidence("max") | ValueError
        | score is 'max', must be one of 'probability', 'margin', 'entropy'
    Confidence(per_step=0) | ValueError | per_step is 0, must be at least 1
    Confidence(per_step=2.0) | TypeError | per_step is 2.0, must be an int
    Confidence(threshold=1.5) | ValueError
        | threshold is 1.5, must be in \[0, 1\].* nothing satisfies it
    Confidence("probability", threshold=0.0) | ValueError
        | threshold is 0.0, must be in \(0, 1\].* everything satisfies
    Confidence("entropy", threshold=[-1.0, 0.5])
        | ValueError
            | threshold\[1\] is 0.5, must be at most 0, the range of entropy: nothing satisfies it
    Confidence(threshold="0.5") | TypeError | threshold is '0.5', must be a number
    Confidence(threshold=float("nan")) | ValueError | threshold is nan
    Confidence(per_step=1, threshold=0.5) | ValueError
        | per_step is 1 and threshold is 0.5, only one may
    Confidence(temperature=-1.0) | ValueError | temperature is -1.0, must be in \[0, 1e6\]
    EntropyBounded(-0.1) | ValueError | gamma is -0.1, must be >= 0
    EntropyBounded("much") | TypeError | gamma is 'much', must be a number
    sampled(LEVELS["levels"], Confidence(threshold=[0.5]))
        | ValueError | threshold has 1 entries, must have 3: one per edge
    sampled(LEVELS["levels"], Confidence(per_step=1), 8)
        | ValueError | steps is 8, must be at least 9: a row must descend 9 edges, and per_step is 1
    sampled(dd.presets.gidd(6, 0.2), EntropyBounded())
        | TypeError | EntropyBounded needs a process with levels, GIDD.* has none: use Psi
""")


def test_one_position_at_a_time_is_a_consistent_joint():
    assert (
        Confidence(per_step=1).guarantees.consistent_joint
        and EntropyBounded(0.0).guarantees.consistent_joint
    )
    others = (
        Confidence(per_step=2),
        Confidence("entropy", threshold=[-0.1, -0.2]),
        EntropyBounded(),
    )
    assert not any(order.guarantees.consistent_joint for order in others)
