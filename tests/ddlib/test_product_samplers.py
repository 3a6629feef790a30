"""Samplers of products: every sampler that supports each field, and what one lacks by its name."""

import pytest
import torch
from zoo.calls import seeded
from zoo.products import FOUR, LEVELS, MASKS, ODD, PRODUCTS, TREES, XI, parts, scores, tokens

import ddlib as dd
from ddlib.parameterization.logits import cavity_logits
from ddlib.processes import LevelProcess, Masked, Product, RateMatrix, Uniform
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Euler,
    Gibbs,
    LeftToRight,
    Remask,
    TauLeaping,
)
from ddlib.schedules import Cosine, Geometric, Linear
from ddlib.testing.oracle import every_sequence, exact_cavity

F64 = torch.float64
SAMPLERS = {
    f"{name}-{i}": sampler
    for name in dd.registry.built_in("samplers")
    for i, sampler in enumerate(dd.registry.get("samplers", name).examples())
}
CORRECTORS = {
    f"{name}-{i}": corrector
    for name in dd.registry.built_in("correctors")
    for i, corrector in enumerate(dd.registry.get("correctors", name).examples())
}
PAIRS = {
    "masks": Product({"a": Masked(2, Linear()), "b": Masked(3, Linear())}, ["b", "a"]),
    "levels": Product({"a": XI, "b": Masked(2, Cosine())}, ["a", "b"]),
    "uniform": Product({"a": Uniform(2, Linear()), "b": Uniform(3, Cosine())}, ["a", "b"]),
    "mixed": Product({"a": Masked(2, Linear()), "b": Uniform(3, Linear())}, ["a", "b"]),
    "geometric": Product(
        {"a": Masked(2, Geometric(0.1, 4.0)), "b": Masked(3, Geometric(0.1, 3.0))}, ["a", "b"]
    ),
    "trees": Product(
        {
            "a": dd.presets.hdlm([0, 0, 1]),
            "b": dd.presets.hdlm_levels([[0, 0, 1, 1], [0, 0]]),
        },
        ["a", "b"],
    ),
}
"""Products of two positions."""


def dependent(product, seed=3):
    """A joint distribution of two positions."""
    x, _ = every_sequence(product, 2)
    joint = torch.zeros(product.vocab_size, product.vocab_size, dtype=F64)
    joint[x.unbind(1)] = torch.randn(len(x), dtype=F64, generator=seeded(seed)).mul(1.5).softmax(0)
    return joint


def supports(part, process):
    try:
        part.check(process)
    except TypeError:
        return False
    return True


def close(counts, probs, rows):
    """Binomial bounds that a right sampler exceeds once in a million."""
    return bool(((counts - rows * probs).abs() <= 5 * (rows * probs).sqrt() + 6).all())


def frequencies(drawn, joint):
    size = joint.shape[1]
    return torch.bincount(drawn[:, 0] * size + drawn[:, 1], minlength=joint.numel()).view_as(joint)


def test_a_product_has_levels_where_every_field_has():
    assert isinstance(LEVELS, LevelProcess) and isinstance(MASKS, LevelProcess)
    assert not isinstance(FOUR, LevelProcess) and not isinstance(ODD, LevelProcess)
    assert dd.values(LEVELS)["kind"].rpartition(":")[2].lower() == "product"


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_supports_the_products_of_the_processes_it_supports(product, name):
    sampler = SAMPLERS[name]
    fields = product.components
    wanted = all(supports(sampler, each.process) for each in fields)
    assert supports(sampler, product) == wanted
    if not wanted:
        with pytest.raises(TypeError, match="field '"):
            sampler.check(product)
        return
    x = tokens(product, 3)
    known = torch.rand(x.shape, generator=seeded(1)) < 0.3
    row = cavity_logits(product, scores(product, 1), product.tokens_as_states(x[:1]), torch.ones(1))
    network = lambda z, t: row.expand(len(z), -1, -1)  # noqa: E731
    options = {"steps": 14, "prompt": dd.Given(x, known), "generator": [5, 6, 7]}
    if not sampler.guarantees.supports_fields:
        with pytest.raises(TypeError, match=r"needs the same tokens at all positions, .* fields"):
            dd.sample(product, network, x.shape, sampler, **options)
        return
    drawn = dd.sample(product, network, x.shape, sampler, **options)
    product.check_inputs(x=drawn)
    assert torch.equal(drawn[known], x[known])
    some = [2, 0]
    options |= {"prompt": dd.Given(x[some], known[some]), "generator": [7, 5]}
    assert torch.equal(
        dd.sample(product, network, (2, x.shape[1]), sampler, **options), drawn[some]
    )


@pytest.mark.statistical
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_tokens_have_their_distribution_with_the_exact_network(kind, name):
    """Each position, of a joint distribution of independent tokens."""
    product = PAIRS[kind]
    sampler = SAMPLERS[name]
    exact = sampler.guarantees.exact_marginals and sampler.guarantees.supports_fields
    if not (exact and supports(sampler, product)):
        return
    joint = dependent(product)
    joint = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    rows = 2500
    drawn = dd.sample(
        product, exact_cavity(product, joint), (rows, 2), sampler, steps=4, generator=seeded()
    )
    for i in range(2):
        probs = joint.sum(1 - i)
        assert close(torch.bincount(drawn[:, i], minlength=len(probs)), probs, rows)
    if sampler.guarantees.exact_joint:
        assert close(frequencies(drawn, joint), joint, rows)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["masks", "levels", "trees"])
@pytest.mark.parametrize("sampler", [LeftToRight(), Confidence(), Confidence("entropy")], ids=repr)
def test_one_edge_at_a_time_draws_the_joint_distribution(kind, sampler):
    product = PAIRS[kind]
    joint = dependent(product)
    steps = sum(len(each.process.levels) - 1 for each in product.components)
    network = exact_cavity(product, joint)
    rows = 12_000
    drawn = dd.sample(product, network, (rows, 2), sampler, steps=steps, generator=seeded())
    assert close(frequencies(drawn, joint), joint, rows)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", PAIRS)
def test_many_steps_draw_the_joint_distribution(kind):
    product = PAIRS[kind]
    joint = dependent(product)
    rows = 8000
    network = exact_cavity(product, joint)
    drawn = dd.sample(product, network, (rows, 2), steps=200, generator=seeded())
    assert ((frequencies(drawn, joint) / rows - joint).abs() < 0.02).all()


@pytest.mark.statistical
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", CORRECTORS)
def test_a_corrector_keeps_the_distribution_of_every_position(kind, name):
    product = PAIRS[kind]
    corrector = CORRECTORS[name]
    wanted = all(supports(corrector, each.process) for each in product.components)
    assert supports(corrector, product) == wanted
    if not wanted:
        with pytest.raises(TypeError, match="field '"):
            corrector.check(product)
        return
    if not corrector.guarantees.exact_marginals:
        return
    joint = dependent(product)
    joint = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    sampler = dd.samplers.Corrected(Ancestral(), corrector)
    rows = 2500
    drawn = dd.sample(
        product, exact_cavity(product, joint), (rows, 2), sampler, steps=4, generator=seeded()
    )
    for i in range(2):
        probs = joint.sum(1 - i)
        assert close(torch.bincount(drawn[:, i], minlength=len(probs)), probs, rows)


ORDERS = {
    "left to right": LeftToRight(),
    "margin": Confidence(),
    "entropy": Confidence("entropy"),
    "pace": dd.samplers.InOrder(dd.paces.LeftToRight(), "entropy"),
    "threshold": Confidence("probability", threshold=0.6),
}
"""Orders, the last one of several positions at once."""


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("kind", ["masks", "trees"])
def test_likelihoods_along_an_order_across_fields_sum_to_one(order, kind):
    product = PAIRS[kind]
    x, _ = every_sequence(product, 2)
    table = torch.randn(2, product.num_states, product.vocab_size, dtype=F64, generator=seeded(8))
    network = lambda z, t: table[0][z] + table[1][z.roll(1, 1)]  # noqa: E731
    for steps in (None, 2):
        result = dd.likelihood(product, network, x, order, steps=steps)
        assert float(result.log_likelihood.exp().sum()) == pytest.approx(1, abs=1e-12)
    joint = dependent(product)
    exact = dd.likelihood(product, exact_cavity(product, joint), x, order)
    if order is not ORDERS["threshold"]:
        assert torch.allclose(exact.log_likelihood, joint[x.unbind(1)].log(), atol=1e-9)
    known = torch.tensor([[False, True]]).expand(x.shape)
    conditional = dd.likelihood(product, network, x, order, given=known).log_likelihood.exp()
    for token in x[:, 1].unique():
        assert float(conditional[x[:, 1] == token].sum()) == pytest.approx(1, abs=1e-12)


def test_a_likelihood_names_the_field_that_has_none():
    mixed = PAIRS["mixed"]
    with pytest.raises(TypeError, match="needs a process with levels, field 'b', Uniform"):
        dd.likelihood(mixed, exact_cavity(mixed, dependent(mixed)), torch.zeros(2, 2).long())
    x = tokens(LEVELS, 2)
    network = lambda z, t: torch.zeros(*z.shape, 5)  # noqa: E731
    with pytest.raises(TypeError, match="needs one path from the mask to each token, in field 'tr"):
        dd.likelihood(LEVELS, network, x)


def test_needs_are_refused_by_field():
    network = lambda z, t: torch.zeros(*z.shape, 6)  # noqa: E731
    mixed = PAIRS["mixed"]
    refused = {
        dd.controls.Forbidden([1]): "needs the same tokens at all positions",
        dd.controls.EndOfText(1): "needs the same tokens at all positions",
        dd.controls.RepetitionPenalty(2.0): "needs the same tokens at all positions",
    }
    for control, message in refused.items():
        with pytest.raises(TypeError, match=message):
            dd.plan(FOUR, network, (2, 7), controls=[control])
    for sampler in (Confidence(), Remask(0.5)):
        with pytest.raises(TypeError, match=r"needs a process with levels, field 'b', Uniform\("):
            dd.plan(mixed, network, (2, 2), sampler)
    with pytest.raises(TypeError, match="have become, field 'a', Masked"):
        Gibbs().check(mixed)


@pytest.mark.parametrize("name", ["levels", "four", "trees"])
def test_a_recorded_path_has_its_log_probability(name):
    product = PRODUCTS[name]
    row = cavity_logits(
        product, scores(product, 1), product.tokens_as_states(tokens(product, 1)), torch.ones(1)
    )
    network = lambda z, t: row.expand(len(z), -1, -1)  # noqa: E731
    shape = (4, len(product.arguments()["fields"]))
    drawn, path = dd.sample(product, network, shape, steps=6, generator=seeded(), record=True)
    assert torch.equal(drawn, dd.sample(product, network, shape, steps=6, generator=seeded()))
    terms = dd.log_prob(product, network, path, per_draw=True)
    assert torch.allclose(terms, path.log_probs) and terms.isfinite().all()
    assert torch.equal(product.states_as_tokens(path.states[-1]), drawn)


@pytest.mark.parametrize("name", ["levels", "four", "masks"])
@pytest.mark.parametrize("pace", [dd.paces.LeftToRight(), dd.paces.RandomOrder()], ids=repr)
def test_paces_and_blocks_draw_the_tokens_of_each_field(name, pace):
    product = PRODUCTS[name]
    length = len(product.arguments()["fields"])
    x = tokens(product, 3)
    row = cavity_logits(product, scores(product, 1), product.tokens_as_states(x[:1]), torch.ones(1))

    def network(z, t):
        return row.expand(len(z), -1, -1)

    network.own_times = True
    drawn = dd.sample(product, network, (3, length), pace=pace, steps=3, generator=seeded())
    product.check_inputs(x=drawn)
    dd.bound(product, network, x, seeded(), pace=pace)
    blocks = dd.paces.Blocks(length if length in (5, 7) else 2)
    product.check_inputs(
        x=dd.sample(product, network, (3, length), pace=blocks, steps=3, generator=seeded())
    )


def test_blocks_of_a_sequence_have_the_fields_of_their_positions():
    product = Product({"a": Masked(4, Linear()), "b": Masked(2, Cosine())}, [0, 0, 1, 1, 1, 0])
    row = cavity_logits(
        product, scores(product, 1), product.tokens_as_states(tokens(product, 1)), torch.ones(1)
    )

    def network(z, t):
        assert torch.equal(product.component_of(z), product.fields_of(z.shape))
        return row.expand(len(z), -1, -1)

    network.own_times = True
    blocks = dd.paces.Blocks(2)
    for sampler in (Ancestral(), Confidence()):
        drawn = dd.sample(product, network, (5, 6), sampler, steps=4, pace=blocks)
        product.check_inputs(x=drawn)
    x = tokens(product, 5)
    result = dd.likelihood(product, network, x, LeftToRight(), pace=blocks)
    expected = row.log_softmax(-1).expand(5, -1, -1).gather(-1, x[..., None])[..., 0]
    assert torch.allclose(result.per_position, expected)


@pytest.mark.parametrize("rows", [8, 3 + 8 + 5])
def test_a_split_network_has_one_output_layer_for_all_alphabets_or_one_for_each(rows):
    class Split:
        weight = torch.randn(rows, 4, dtype=F64, generator=seeded(1))
        table = torch.randn(MASKS.num_states, 4, dtype=F64, generator=seeded(2))

        def features(self, z, t):
            return self.table[z] + self.table[z.roll(1, 1)]

        def output_weights(self):
            return self.weight, None

        def __call__(self, z, t):
            return self.features(z, t) @ self.weight.T

    network = Split()
    whole = lambda z, t: network(z, t)  # noqa: E731
    for sampler in (Ancestral(), Confidence(), LeftToRight()):
        draws = [
            dd.sample(MASKS, each, (6, 5), sampler, steps=5, generator=seeded())
            for each in (network, whole)
        ]
        assert torch.equal(*draws)
    x = tokens(MASKS, 6)
    results = [dd.likelihood(MASKS, each, x).log_likelihood for each in (network, whole)]
    assert torch.allclose(*results)


@pytest.mark.statistical
@pytest.mark.parametrize("on", ["states", "tokens"])
@pytest.mark.parametrize("kind", ["masks", "mixed", "levels", "trees"])
def test_guidance_at_strength_one_is_the_guided_network(kind, on):
    product = PAIRS[kind]
    joint = dependent(product)
    joint = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    network = exact_cavity(product, joint)
    other = exact_cavity(product, dependent(product, 9))
    guided = dd.guidance.ClassifierFree(product, network, other, 1.0000001, on)
    rows = 5000
    drawn = dd.sample(product, guided, (rows, 2), steps=6, generator=seeded())
    product.check_inputs(x=drawn)
    for i in range(2):
        probs = joint.sum(1 - i)
        assert close(torch.bincount(drawn[:, i], minlength=len(probs)), probs, rows)


def test_conditions_on_other_columns_are_those_of_the_joint_distribution():
    product = PAIRS["trees"]
    joint = dependent(product)
    rows = 8000
    known = torch.tensor([[True, False]]).expand(rows, 2)
    x = torch.tensor([[1, 0]]).expand(rows, 2)
    network = exact_cavity(product, joint)
    drawn = dd.sample(
        product, network, (rows, 2), prompt=dd.Given(x, known), steps=20, generator=seeded()
    )
    probs = joint[1] / joint[1].sum()
    assert close(torch.bincount(drawn[:, 1], minlength=len(probs)), probs, rows)
    assert set(parts(TREES))


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", [Euler(), TauLeaping()], ids=str)
def test_fields_of_every_row_are_drawn_as_fields_of_the_positions(sampler):
    parts = {"a": dd.presets.genmd4([5, 1, 2]), "b": RateMatrix(1 - 3 * torch.eye(3), Linear())}
    p = torch.tensor([0.6, 0.3, 0.1])
    network = lambda z, t: p.log().expand(*z.shape, 3)  # noqa: E731
    rows = 4000
    shares = []
    for fields in (torch.tensor([0, 1]), torch.tensor([0, 1]).expand(rows, 2).clone()):
        product = Product(parts, fields)
        drawn = dd.sample(product, network, (rows, 2), sampler, steps=16, generator=seeded())
        shares.append(torch.stack([torch.bincount(drawn[:, i], minlength=3) for i in range(2)]))
    torch.testing.assert_close(*(each / rows for each in shares), rtol=0, atol=0.04)


def test_the_noise_of_a_row_with_its_own_fields_does_not_depend_on_the_batch():
    """Also where the batch has a field that the row lacks."""
    parts = {"a": Masked(3, Linear()), "b": Uniform(4, Linear())}
    both = Product(parts, torch.tensor([[0, 0, 1], [1, 1, 1]]))
    alone = both.at_fields(torch.tensor([[1, 1, 1]]))
    x = torch.tensor([[0, 1, 2], [3, 2, 1]])
    t = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for step in range(20):
        z = both.sample(x, t, dd.KeyedGenerator(0, step, torch.arange(2)))
        own = alone.sample(x[1:], t[1:], dd.KeyedGenerator(0, step, torch.tensor([1])))
        assert torch.equal(z[1:], own)


HALVES = 16
SLOW = dd.presets.hdlm([0, 0, 1, 1], gamma=4.0)


@pytest.mark.parametrize("per_step", ["expected", "rounded"])
@pytest.mark.parametrize("own", [MASKS.components[0].process, SLOW], ids=["masks", "tree"])
def test_positions_of_given_fields_do_not_count(per_step, own):
    """The edges that descend in a step are those of the drawn positions' field alone."""
    other = SLOW if own is not SLOW else Masked(3, Linear())
    product = Product({"a": own, "b": other}, [0] * HALVES + [1] * HALVES)
    order = Confidence("margin", per_step=per_step)

    def remaining(process, length, known):
        counts = []
        size = process.vocab_size
        dd.sample(
            process,
            lambda z, t: torch.zeros(*z.shape, size),
            (1, length),
            order,
            steps=8,
            prompt=dd.Given(torch.zeros(length, dtype=torch.int64), known),
            on_step=lambda k, t, z: counts.append(int(process.level_of(z)[:, :HALVES].sum())),
        )
        return counts

    known = torch.arange(2 * HALVES) >= HALVES
    alone = remaining(own, HALVES, known[:HALVES])
    assert remaining(product, 2 * HALVES, known) == alone
