"""Exact likelihood of a sequence under an order: the distribution of the sequences that the order
draws.
"""

import itertools
import math

import pytest
import torch
from cases import caches, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.block_networks import NETWORKS, ByBlocks, Forgetful
from zoo.calls import seeded
from zoo.joints import joint
from zoo.networks import Halves, never, plain
from zoo.processes import F64, LEVELS

import ddlib as dd
from ddlib.contrib import Lanes
from ddlib.hierarchies import Tree
from ddlib.paces import Blocks
from ddlib.processes import Hierarchical, Masked
from ddlib.samplers import Confidence, EntropyBounded, InOrder, LeftToRight, Ordered
from ddlib.samplers.choices import Score
from ddlib.schedules import Cosine, Geometric, Linear
from ddlib.testing import strategies
from ddlib.verification.framework.inputs import frequencies, tally
from ddlib.verification.framework.reference import exact_cavity, exact_posterior, integrate_bound

ORDERS = {
    "margin": Confidence(),
    "probability": Confidence("probability"),
    "entropy": Confidence("entropy"),
    "threshold": Confidence("probability", threshold=0.5),
    "bounded-0": EntropyBounded(0.0),
    "bounded": EntropyBounded(0.7),
    "bounded-inf": EntropyBounded(math.inf),
    "left-to-right": LeftToRight(),
}
FAST = (ORDERS["threshold"], ORDERS["bounded"], ORDERS["left-to-right"])
every_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
UNEVEN = [[0, 0, 0, 1, 2], [1, 0, 1]]
PROCESSES = {
    "masked": Masked(4, Cosine()),
    "two": dd.presets.hdlm([0, 1, 0, 2, 1], gamma=2.0),
    "three": dd.presets.hdlm_levels(UNEVEN, speed=[1.0, 0.5, 3.0]),
    "only-child": dd.presets.hdlm([0, 0, 0, 1]),
}


class RandomLogits:
    """A network of so many positions that depends on all states and the time, of no joint
    distribution.
    """

    def __init__(self, process, length, columns=None, seed=0):
        generator = seeded(seed)

        def randn(*shape):
            return 1.5 * torch.randn(*shape, generator=generator, dtype=F64)

        columns = process.vocab_size if columns is None else columns
        self.table, self.late, self.calls = (
            randn(length, length, process.num_states, columns),
            randn(columns),
            0,
        )

    def __call__(self, z, t):
        self.calls += 1
        places = torch.arange(z.shape[1])
        return (
            self.table[places[:, None], places, z[:, None]].sum(2)
            + t.to(F64)[:, None, None] * self.late
        )


def texts(process, length):
    return torch.cartesian_prod(*[torch.arange(process.vocab_size)] * length).view(-1, length)


def probs_of(process, denoiser, order, length=2, **options):
    """The probability of every text."""
    found = dd.likelihood(
        process, denoiser, texts(process, length), order, **options
    ).log_likelihood
    return found.exp().view((process.vocab_size,) * length)


@every_order
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("steps", [None, 1, 2, 3])
def test_likelihoods_of_all_texts_sum_to_one(order, name, steps):
    process = PROCESSES[name]
    length = 2 if name == "three" else 3
    total = probs_of(process, RandomLogits(process, length), order, length, steps=steps).sum()
    assert abs(float(total) - 1) < 1e-12


@st.composite
def plain_processes(draw):
    """Masks and trees that keep tokens in their clusters, of up to four levels."""
    tree = draw(strategies.hierarchies(max_depth=4, max_words=5))
    parents = [edge.parents.tolist() for edge in tree.maps[:-1]]
    schedule = draw(strategies.exact_schedules())
    return (
        Hierarchical(Tree(parents, speed=tree.speeds), schedule)
        if parents
        else Masked(tree.vocab_size, schedule)
    )


@given(
    plain_processes(), st.sampled_from(list(ORDERS.values())), st.integers(1, 9), st.integers(0, 99)
)
@settings(max_examples=examples(60))
def test_they_sum_to_one_for_every_tree_order_and_number_of_steps(process, order, steps, seed):
    for count in (None, steps):
        assert (
            abs(
                float(
                    probs_of(process, RandomLogits(process, 2, seed=seed), order, steps=count).sum()
                )
                - 1
            )
            < 1e-12
        )


@pytest.mark.parametrize("name", PROCESSES)
@every_order
def test_the_likelihood_of_the_exact_network_is_the_probability_of_the_sequence(name, order):
    process = PROCESSES[name]
    known = joint(process.vocab_size, 3, 1)
    found = probs_of(process, exact_cavity(process, known), order, 3)
    if order.guarantees.consistent_joint:
        torch.testing.assert_close(found, known, atol=0, rtol=1e-9)
    elif order is ORDERS["bounded-inf"]:  # what is drawn at once is drawn independently
        assert (found - known).abs().max() > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("order", ORDERS)
def test_sequences_are_drawn_as_often_as_their_likelihood(name, order, steps):
    process = PROCESSES[name]
    order = ORDERS[order]
    draws = 4000
    denoiser = RandomLogits(process, 2)
    size = process.vocab_size
    edges = len(process.levels) - 1
    generator = seeded(4)
    tokens = dd.sample(
        process, denoiser, (draws, 2), order, steps or 2 * edges, generator=generator
    )
    counts = tally(tokens @ torch.tensor([[size], [1]]), size * size).view(size, size)
    compared = frequencies(
        "draws", ("x_0", "x_1"), counts, probs_of(process, denoiser, order, steps=steps), draws
    )
    assert bool(((compared.got - compared.expected).abs() <= compared.allowed).all())


def test_left_to_right_is_the_chain_rule():
    """p(x) = prod p(x_l | x_<l, masks), each factor at the share of masks that is left."""
    process = Masked(4, Linear())
    length = 3
    denoiser = RandomLogits(process, 3)
    x = texts(Masked(4, Linear()), 3)
    total = torch.zeros(len(x), dtype=F64)
    for k in range(length):
        z = torch.where(torch.arange(length) < k, x, process.vocab_size)
        t = torch.full((len(x),), (length - k) / length)
        total += denoiser(z, t)[:, k].log_softmax(-1).gather(1, x[:, k : k + 1])[:, 0]
    found = dd.likelihood(process, denoiser, x, LeftToRight())
    torch.testing.assert_close(
        found.log_likelihood, total, atol=1e-6, rtol=1e-6
    )  # t is passed in float32
    torch.testing.assert_close(found.per_position.sum(1), found.log_likelihood)


def test_left_to_right_goes_down_to_the_token_before_it_goes_on():
    process = PROCESSES["three"]
    seen = []
    dd.sample(
        process,
        RandomLogits(process, 3),
        (2, 3),
        LeftToRight(),
        9,
        on_step=lambda k, t, z: seen.append(z),
    )
    levels = process.level_of(torch.stack(seen)[:, 0]).tolist()
    assert levels == [[max(3 - max(k - 3 * i, 0), 0) for i in range(3)] for k in range(10)]


def test_left_to_right_evaluates_the_next_position_only(monkeypatch):
    process = LEVELS["levels"]
    counts = []
    right = dd.samplers.runtime.model.Model.at

    def at(self, z, t, where):
        counts.append(where.sum(-1).tolist())
        return right(self, z, t, where)

    monkeypatch.setattr(dd.samplers.runtime.model.Model, "at", at)
    dd.likelihood(process, Halves(process), torch.zeros(2, 4, dtype=torch.int64), LeftToRight())
    assert counts == [[1, 1]] * 12
    counts.clear()
    dd.likelihood(
        process, Halves(process), torch.zeros(1, 4, dtype=torch.int64), LeftToRight(), steps=6
    )
    assert [number for (number,) in counts] == [2] * 6


def test_in_one_step_the_likelihood_is_the_product_of_the_probabilities_at_the_mask():
    process = PROCESSES["three"]
    x = texts(PROCESSES["three"], 2)
    denoiser = RandomLogits(process, 2)
    masks = torch.full_like(x, process.num_states - 1)
    tokens = denoiser(masks, torch.ones(len(x))).log_softmax(-1).gather(-1, x[..., None])[..., 0]
    found = dd.likelihood(process, denoiser, x, steps=1)
    torch.testing.assert_close(found.per_position, tokens)
    assert found.calls == 1


def test_one_edge_a_call_unless_several_go():
    for name, process in PROCESSES.items():
        x = texts(process, 2)
        edges = len(process.levels) - 1
        for order, calls in (
            (Confidence(), 2 * edges),
            (LeftToRight(), 2 * edges),
            (EntropyBounded(math.inf), edges),
        ):
            denoiser = RandomLogits(process, 2)
            found = dd.likelihood(process, denoiser, x, order)
            assert found.calls == denoiser.calls == calls, (name, order)


@every_order
def test_child_logits_and_those_of_words_give_the_same(order):
    process = PROCESSES["three"]
    tree = process.hierarchy
    x = texts(PROCESSES["three"], 2)
    children = RandomLogits(process, 2, process.num_states - 1)
    ours = dd.likelihood(process, children, x, order, parameterization="children")
    theirs = dd.likelihood(process, lambda z, t: dd.token_logits(tree, children(z, t)), x, order)
    torch.testing.assert_close(ours.per_position, theirs.per_position)
    assert ours.calls == theirs.calls


@pytest.mark.parametrize("name", ["masked", "levels"])
@every_order
def test_halves_of_a_network_agree_with_the_whole(name, order):
    process = LEVELS[name]
    x = torch.randint(6, (5, 4), generator=seeded())
    ours = dd.likelihood(process, Halves(process), x, order)
    theirs = dd.likelihood(process, plain(Halves(process)), x, order)
    torch.testing.assert_close(ours.per_position, theirs.per_position)


def test_posterior_logits_have_the_same_meaning_everywhere():
    process = PROCESSES["two"]
    known = joint(5, 2, 2)
    found = probs_of(
        process, exact_posterior(process, known), Confidence(), parameterization="posterior"
    )
    torch.testing.assert_close(found, known, atol=0, rtol=1e-9)


@every_order
@pytest.mark.parametrize("steps", [None, 5])
def test_a_batch_changes_no_text(order, steps):
    process = LEVELS["levels"]
    generator = seeded(3)
    x = torch.randint(6, (6, 5), generator=generator)
    stands = torch.rand(6, 5, generator=generator) < 0.4
    stands[0] = True
    stands[1] = False
    halves = Halves(process)
    whole = dd.likelihood(process, halves, x, order, steps=steps, given=stands)
    assert halves.sequences < 6 * halves.calls  # finished rows are not evaluated
    for row in range(6):
        one = dd.likelihood(
            process, Halves(process), x[[row]], order, steps=steps, given=stands[[row]]
        )
        torch.testing.assert_close(one.per_position[0], whole.per_position[row])
    assert whole.log_likelihood[0] == 0 and (whole.per_position[stands] == 0).all()


@every_order
def test_given_tokens_are_a_condition(order):
    process = PROCESSES["two"]
    known = joint(5, 3, 1)
    stands = torch.tensor([False, True, False]).expand(125, 3)
    found = probs_of(process, exact_cavity(process, known), order, 3, given=stands)
    torch.testing.assert_close(found.sum((0, 2)), torch.ones(5, dtype=F64))
    if order.guarantees.consistent_joint:
        torch.testing.assert_close(found, known / known.sum((0, 2), keepdim=True))


def test_the_bound_of_masks_is_the_mean_over_all_orders():
    """Network without the time: -E log p under a random order is the bound of each sequence, and
    not above it.
    """
    process = Masked(3, Linear())
    length = 3
    network = RandomLogits(process, length)
    x = torch.tensor([[2, 0, 1]])

    def denoiser(z, t):
        return network(z, torch.zeros_like(t))

    mean = 0.0
    for places in itertools.permutations(range(length)):
        there = torch.tensor(places)
        back = torch.tensor(places).argsort()
        turned = lambda z, t: denoiser(z[:, back], t)[:, there]  # noqa: B023, E731
        found = dd.likelihood(process, turned, x[:, there], LeftToRight())
        mean -= float(found.log_likelihood) / math.factorial(length)
    known = torch.zeros(3, 3, 3, dtype=F64)
    known[tuple(x[0].tolist())] = 1
    assert mean == pytest.approx(float(integrate_bound(process, known, denoiser)), rel=1e-6)


def test_a_text_that_cannot_be_has_minus_infinity():
    process = Masked(3, Linear())
    never = torch.tensor([0.0, 0.0, -torch.inf], dtype=F64)
    found = dd.likelihood(
        process, lambda z, t: never.expand(*z.shape, 3), torch.tensor([[0, 1], [0, 2]])
    )
    assert found.log_likelihood.tolist() == [pytest.approx(-2 * math.log(2)), -math.inf]


def test_the_callers_randomness_is_left_alone():
    process = PROCESSES["two"]
    before = torch.random.get_rng_state()
    dd.likelihood(process, RandomLogits(process, 2), texts(process, 2))
    assert torch.equal(before, torch.random.get_rng_state())


GROUPED = [
    (Confidence(), 2),
    (Confidence("entropy"), 3),
    (Confidence("probability", threshold=0.5), None),
    (Confidence(per_step="expected"), None),
    (EntropyBounded(0.7), None),
    (EntropyBounded(0.0), 2),
    (InOrder(Lanes(3), whole=True), None),
    (LeftToRight(), 2),
]


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize(("order", "group"), GROUPED, ids=str)
def test_sets_chain_and_left_to_right_are_distributions_over_sequences(order, group, name):
    process = PROCESSES[name]
    length = 2 if name == "three" else 3
    if isinstance(order, InOrder):
        order = InOrder(Lanes(length), whole=True)
    group = group and min(group, length)
    x = texts(process, length)
    denoiser = RandomLogits(process, length)
    costs = dd.contrib.order_costs(process, denoiser, x, order, group)
    for nats in costs[:3]:
        assert abs(float((-nats).exp().sum()) - 1) < 1e-12
    torch.testing.assert_close(
        costs.sets, -dd.likelihood(process, denoiser, x, order, group=group).log_likelihood
    )
    torch.testing.assert_close(
        costs.left_to_right, -dd.likelihood(process, denoiser, x, LeftToRight()).log_likelihood
    )
    torch.testing.assert_close(
        costs.drawing_in_parallel + costs.order, costs.sets - costs.left_to_right
    )
    assert bool(costs.drawing_in_parallel.abs().max() > 0.01) or costs.calls == length * (
        len(process.levels) - 1
    )


def test_the_chain_is_the_order_of_the_sets_one_position_at_a_time():
    """Confidence would choose again after every position; the chain keeps sets and their order."""
    process = Masked(3, Linear())
    length = 4
    denoiser = RandomLogits(process, length, seed=2)
    x = texts(process, 4)
    costs = dd.contrib.order_costs(process, denoiser, x, Confidence(), 2)
    again = dd.likelihood(process, denoiser, x)
    want = torch.zeros(len(x), dtype=F64)
    for row, tokens in enumerate(x):
        z = torch.full((1, length), process.vocab_size)
        for _ in range(2):
            t = (z == process.vocab_size).double().mean(1)
            probs = denoiser(z, t)[0].softmax(-1)
            best = probs.topk(2).values
            margin = (best[:, 0] - best[:, 1]).masked_fill(z[0] < process.vocab_size, -1)
            for position in margin.argsort(descending=True)[:2].tolist():
                t = (z == process.vocab_size).double().mean(1)
                want[row] -= denoiser(z, t)[0, position].log_softmax(-1)[tokens[position]]
                z[0, position] = tokens[position]
    torch.testing.assert_close(costs.chain, want, atol=1e-6, rtol=1e-6)  # t is passed in float32
    assert (costs.chain + again.log_likelihood).abs().max() > 0.1


@pytest.mark.parametrize("name", PROCESSES)
@every_order
def test_one_position_a_call_costs_nothing(name, order):
    process = PROCESSES[name]
    costs = dd.contrib.order_costs(process, RandomLogits(process, 2), texts(process, 2), order, 1)
    if (
        isinstance(order, Confidence | LeftToRight) and order.guarantees.consistent_joint
    ):  # one position a call
        assert costs.drawing_in_parallel.abs().max() == 0


@pytest.mark.parametrize("name", ["masked", "two"])
def test_given_the_best_network_the_cost_is_the_total_correlation_and_the_order_has_none(name):
    process = PROCESSES[name]
    length = 4
    size = PROCESSES[name].vocab_size
    noise = torch.randn((size,) * length, generator=seeded(1), dtype=F64)
    known = (2 * noise).flatten().softmax(0).view_as(noise)
    x = texts(process, length)
    best = exact_cavity(process, known)
    for order, group in ((Confidence(), 2), (InOrder(Lanes(2)), 2), (EntropyBounded(1.0), None)):
        costs = dd.contrib.order_costs(process, best, x, order, group)
        torch.testing.assert_close((-costs.chain).exp(), known.flatten(), atol=0, rtol=1e-9)
        assert costs.order.abs().max() < 1e-9
        assert float(known.flatten() @ costs.drawing_in_parallel) > 0, (
            "no single sequence, but the mean"
        )
    if name == "masked":
        parallel = float(
            known.flatten()
            @ dd.contrib.order_costs(process, best, x, InOrder(Lanes(2)), 2).drawing_in_parallel
        )
        pair = known.sum((1, 3))  # positions 0 and 2 first, then 1 and 3 given them
        rest = known.permute(0, 2, 1, 3) / pair[..., None, None]
        apart = pair.sum(1)[:, None] * pair.sum(0)
        halves = rest.sum(3)[..., None] * rest.sum(2)[..., None, :]
        want = (pair * (pair / apart).log()).sum() + (
            known.permute(0, 2, 1, 3) * (rest / halves).log()
        ).sum()
        assert parallel == pytest.approx(float(want), rel=1e-9)


def test_a_group_is_that_of_confidence_and_of_fewer_steps():
    process = LEVELS["levels"]
    x = torch.randint(6, (5, 6), generator=seeded())
    for other, order, options in (
        (Confidence(per_step=4), Confidence(), {"steps": 18}),
        (LeftToRight(), LeftToRight(), {"steps": 6}),
        (InOrder(Lanes(3), whole=True), InOrder(Lanes(3)), {}),
    ):
        group = 4 if isinstance(order, Confidence) else 3
        ours = dd.likelihood(process, Halves(process), x, order, group=group)
        theirs = dd.likelihood(process, Halves(process), x, other, **options)
        torch.testing.assert_close(ours.per_position, theirs.per_position)
        assert ours.calls <= -(-6 * (len(process.levels) - 1) // group) + len(process.levels) - 2


def test_padding_and_prompts_have_no_cost_and_rows_are_counted_apart():
    process = PROCESSES["two"]
    denoiser = RandomLogits(process, 5)
    x = torch.randint(5, (4, 5), generator=seeded(3))
    mask = torch.ones(4, 5, dtype=torch.bool)
    given = torch.zeros(4, 5, dtype=torch.bool)
    mask[1, 2:] = False
    mask[2] = False
    given[3, [0, 3]] = True
    costs = dd.contrib.order_costs(process, denoiser, x, group=2, mask=mask, given=given)
    assert costs.tokens.tolist() == [5, 2, 0, 3] and [float(nats[2]) for nats in costs[:3]] == [
        0,
        0,
        0,
    ]
    for row in (0, 1, 3):
        one = dd.contrib.order_costs(
            process,
            denoiser,
            x[[row]],
            group=2,
            mask=mask[[row]],
            given=given[[row]],
            controls=[dd.controls.WholeBatch()],
        )
        torch.testing.assert_close(torch.stack(costs[:3])[:, row], torch.stack(one[:3])[:, 0])


def test_the_command_for_a_mean_and_its_error():
    process = PROCESSES["masked"]
    x = texts(PROCESSES["masked"], 3)
    costs = dd.contrib.order_costs(process, RandomLogits(process, 3), x, group=3)
    mean = dd.Measure.ratio(costs.drawing_in_parallel, costs.tokens, "nats/token")
    assert (
        mean.value == pytest.approx(float(costs.drawing_in_parallel.mean()) / 3)
        and mean.standard_error > 0
    )


BLOCK_PROCESSES = {"masked": Masked(4, Cosine()), "two": dd.presets.hdlm([0, 1, 0, 2])}


@pytest.mark.parametrize("name", BLOCK_PROCESSES)
@pytest.mark.parametrize("network", NETWORKS)
def test_block_by_block_a_cache_changes_no_likelihood(name, network):
    process = BLOCK_PROCESSES[name]
    x = torch.randint(4, (5, 8), generator=seeded())
    given = torch.zeros(5, 8, dtype=torch.bool)
    given[:, :3] = True
    given[2, 6] = True
    for order, options in (
        (Confidence(), {}),
        (LeftToRight(), {"group": 2}),
        (EntropyBounded(1.0), {"steps": 3}),
    ):
        found = []
        for keep in (True, False):
            denoiser = NETWORKS[network](process.num_states, 4, 2)
            found.append(
                dd.likelihood(
                    process,
                    denoiser,
                    x,
                    order,
                    pace=Blocks(2),
                    controls=[*caches(keep)],
                    given=given,
                    **options,
                )
            )
            assert (denoiser.prefilled > 0) == keep
            assert max(shape[1] for shape in denoiser.seen) == (2 if keep else 8)
        torch.testing.assert_close(found[0].per_position, found[1].per_position, atol=1e-10, rtol=0)
        assert found[0].calls == found[1].calls and bool((found[0].per_position[given] == 0).all())


@pytest.mark.parametrize("name", BLOCK_PROCESSES)
@pytest.mark.parametrize("denoiser", [ByBlocks, Forgetful])
def test_block_by_block_likelihoods_sum_to_one(name, denoiser):
    process = BLOCK_PROCESSES[name]
    network = denoiser(process.num_states, 4, 2)
    for order, options in (
        (Confidence(), {}),
        (LeftToRight(), {"steps": 1}),
        (Confidence("entropy"), {"group": 2}),
    ):
        total = probs_of(process, network, order, 4, pace=Blocks(2), **options).sum()
        assert abs(float(total) - 1) < 1e-12
    costs = dd.contrib.order_costs(
        process, network, texts(process, 4), Confidence(), 2, pace=Blocks(2)
    )
    assert all(abs(float((-nats).exp().sum()) - 1) < 1e-12 for nats in costs[:3])


@pytest.mark.statistical
def test_block_by_block_sequences_are_drawn_as_often_as_their_likelihood():
    process = BLOCK_PROCESSES["two"]
    draws = 4000
    denoiser = ByBlocks(process.num_states, 4, 1)
    tokens = dd.sample(
        process, denoiser, (draws, 2), Confidence(), 2, pace=Blocks(1), generator=seeded(4)
    )
    counts = tally(tokens @ torch.tensor([[4], [1]]), 16).view(4, 4)
    expected = probs_of(process, denoiser, Confidence(), 2, pace=Blocks(1))
    compared = frequencies("draws", ("x_0", "x_1"), counts, expected, draws)
    assert bool(((compared.got - compared.expected).abs() <= compared.allowed).all())


X = torch.tensor([[0, 3, 1]])


BOUND = "ddlib.bound computes an upper bound"


def read(process=None, x=X, order=None, **options):
    process = dd.presets.hdlm([0, 0, 1, 1]) if process is None else process
    return dd.likelihood(process, never, x, order, **options)


def costs(order=None, group=4, **options):
    return dd.contrib.order_costs(dd.presets.hdlm([0, 0, 1, 1]), never, X, order, group, **options)


class Gambling(Ordered):
    """A third-party order with noise."""

    def __init__(self):
        super().__init__(None, temperature=1.0)

    def noise(self, run, z):
        return torch.rand(z.shape, dtype=F64)


class Looped(Masked):
    """A third-party process that keeps no token in its cluster."""

    def subtree_logits_suffice(self, level, target, force=False):
        return False


test_bad_input_is_refused_before_the_network_runs = refuses(r"""
    read(order="confidence") | TypeError | order is 'confidence', must be a sampler that chooses
    read(order=Confidence(temperature=0.5)) | ValueError
        | order is Confidence\(.*temperature=0.5.*\), must choose positions
            deterministically.*ddlib.bound computes
    read(order=Gambling()) | ValueError
        | order is Gambling\(.*\), must choose positions deterministically
    read(Uniform(4, Linear()))
        | TypeError
            | needs a process with levels, Uniform.* has none.*ddlib.bound computes an upper bound
    read(dd.presets.gidd(4, 0.2))
        | TypeError
            | needs a process with levels, GIDD.* has none.*ddlib.bound computes an upper bound
    read(dd.presets.hdlm([0, 0, 1, 1], xi=0.9)) | TypeError
        | one path from the mask to each token.* xi < 1: a state in level 0 may have several parents
            in level 1;
        ddlib.bound computes an upper bound
    read(Hierarchical(Tree([[0, 0, 1, 2], [0, 0, 1]], xi=[1.0, 0.8]), Linear()))
        | TypeError | a state in level 1 may have several parents in level 2
    read(Looped(4, Linear())) | TypeError | one path from the mask to each token
    read(Masked(4, Geometric(1e-3, 5.0))) | ValueError
        | with only masks at t = 1, Masked.* has a share of 0.00674 of its tokens below the mask;
            ddlib.bound computes
    read(x=torch.tensor([[0, 4, 1]])) | ValueError | x holds 4, must be tokens in \[0, 4\)
    read(x=torch.tensor([0, 1])) | ValueError | x has shape \(2,\), must be \(B, L\)
    read(x=X.double()) | TypeError
        | x has dtype torch.float64, must be a torch.int64 tensor of tokens
    read(steps=0) | ValueError | steps is 0, must be at least 1
    read(steps=2.0) | TypeError | steps is 2.0, must be an int
    read(given=[True]) | TypeError | given has dtype list, must be a torch.bool tensor
    read(given=X) | TypeError | given has dtype torch.int64, must be a torch.bool tensor
    read(given=X[:, :2] > 0) | ValueError | given has shape \(1, 2\), must be that of x, \(1, 3\)
    read(order=Confidence(per_step=1), steps=5)
        | ValueError | steps is 5, must be at least 6: a row must descend 6 edges
    read(order=Confidence(threshold=[0.5])) | ValueError | threshold has 1 entries, must have 2
    read(group=0) | ValueError | group is 0, must be at least 1
    read(group=4) | ValueError | group is 4, must be at most 3, the length of a sequence
    read(group=2.0) | TypeError | group is 2.0, must be an int
    read(group=2, steps=3) | ValueError | steps is 3 and group is 2, only one may be given
    read(pace=Blocks(2)) | ValueError | size is 2, must divide the length of the sequence, 3
    read(pace=Lanes(3)) | TypeError
        | pace is Lanes.*, must be block by block .*use the sampler InOrder\(pace\)
    read(pace="blocks") | TypeError | pace is 'blocks', must be a ddlib.paces.Pace
    costs() | ValueError | group is 4, must be at most 3, the length of a sequence
    costs(group=0) | ValueError | group is 0, must be at least 1
    costs(Gambling(), 2) | ValueError
        | order is Gambling\(.*\), must choose positions deterministically
    costs(Confidence(temperature=1.0), 2) | ValueError | must choose positions deterministically
    costs(Ancestral(), 2) | TypeError | order is Ancestral\(.*\), must be a sampler that
    costs(InOrder(Lanes(2)), 2) | ValueError | lanes is 2, must divide the length of the sequence, 3
    read(parameterization="odds") | ValueError | parameterization is 'odds', must be one of
""")


def test_a_given_sequence_makes_no_call():
    found = read(given=torch.ones_like(X, dtype=torch.bool))
    assert found.calls == 0 and found.log_likelihood.tolist() == [0.0]


def test_orders_have_a_property_for_deterministic_choice():
    assert all(
        one.deterministic == (getattr(one, "temperature", 0) == 0)
        for name in ("confidence", "entropy_bounded", "left_to_right")
        for one in dd.registry.get("samplers", name).examples()
    )
    assert issubclass(LeftToRight, Ordered)
    assert not LeftToRight().scoring.reads and Confidence().scoring.reads


def test_an_order_by_a_function_of_the_predictions_is_deterministic_without_noise():
    scored = Ordered(Score.of(lambda log_probs: log_probs.amax(-1)))
    assert scored.scoring.reads and scored.deterministic and not Gambling().deterministic


def test_a_schedule_that_ends_late_enough_for_float64_is_accepted():
    dd.likelihood(Masked(4, Geometric(1e-3, 60.0)), lambda z, t: torch.zeros(*z.shape, 4), X)


@pytest.mark.parametrize("per_step", ["expected", "rounded"])
def test_an_order_that_depends_on_the_times_needs_their_number_for_sequences_of_several_lengths(
    per_step,
):
    process = Masked(4, Cosine())
    order = Confidence(per_step=per_step)
    x = torch.tensor([[0, 3, 1, 2, 0, 1], [2, 1, 3, 0, 0, 0]])
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 3:] = False
    network = RandomLogits(process, 6)
    with pytest.raises(
        ValueError,
        match=r"steps is None, must be given: Confidence.* from 3 to 6 positions to draw",
    ):
        dd.likelihood(process, network, x, order, mask=mask)
    together = dd.likelihood(process, network, x, order, steps=6, mask=mask).log_likelihood
    alone = dd.likelihood(process, network, x[1:], order, steps=6, mask=mask[1:]).log_likelihood
    assert torch.allclose(together[1:], alone)
    assert dd.likelihood(process, network, x, order).log_likelihood.isfinite().all()
