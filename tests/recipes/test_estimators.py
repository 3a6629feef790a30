"""Estimators of -log p(x): Kraft's sum tells likelihoods and bounds from other numbers."""

import math

import pytest
import torch

import ddlib as dd
from ddlib.testing.oracle import exact_cavity, integrate_bound, sequences
from recipes.estimators import (
    ESTIMATORS,
    FIXED,
    Model,
    find,
    kraft_sum,
    kraft_sums,
    random_networks,
    reason_against,
    verdict,
)
from recipes.estimators.orders import Permuted

PARENTS = [0, 0, 1, 1]
PROCESSES = {
    "masks": (dd.presets.mdlm(3), 3),
    "tree": (dd.presets.hdlm(PARENTS), 2),
    "wrong clusters": (dd.presets.hdlm(PARENTS, xi=0.8), 2),
    "gidd": (dd.presets.gidd(3, 0.2), 2),
    "uniform": (dd.processes.Uniform(3, dd.schedules.Linear()), 2),
    "no exact ends": (dd.processes.Masked(3, dd.schedules.Geometric(0.1, 3.0)), 2),
}
SERVED = [
    (kind, estimator.name)
    for kind, (process, length) in PROCESSES.items()
    for estimator in ESTIMATORS
    if not reason_against(estimator, Model(process, None), length)
]
BOUNDS = [each.name for each in ESTIMATORS if each.claim != "neither"]


def model_of(kind, network=None):
    """Model of a process with random logits, or those given."""
    process, length = PROCESSES[kind]
    if network is None:
        *_, network = random_networks(process, length, seeds=1)
    return Model(process, network)


def source_of(kind):
    """Joint distribution of a sequence, and the model with its exact network."""
    process, length = PROCESSES[kind]
    generator = torch.Generator().manual_seed(3)
    shape = (process.vocab_size,) * length
    joint = torch.randn(shape, generator=generator, dtype=torch.float64).mul(1.5).exp()
    joint = joint / joint.sum()
    return joint, Model(process, exact_cavity(process, joint))


def mean_over(joint, estimator, model):
    """Mean of the estimator over sequences of the source."""
    x = sequences(model.process.vocab_size, joint.ndim)
    return float(joint.flatten() @ estimator.expectation(model, x))


def entropy_of(joint):
    return float(-torch.xlogy(joint, joint).sum())


def expected(kind, estimator):
    """Verdict that theory section 24 expects: without end terms exact ends are a bound."""
    process = PROCESSES[kind][0]
    if estimator.name == "NELBO, times from 0, without ends" and process.exact_ends:
        return "bound"
    return estimator.claim


FAST = [(kind, name) for kind, name in SERVED if "256" not in name]


@pytest.mark.parametrize(("kind", "name"), SERVED)
def test_krafts_sum_separates_likelihoods_and_bounds_from_other_numbers(kind, name):
    process, length = PROCESSES[kind]
    estimator = find(name)
    sums = kraft_sums(estimator, Model(process, None), length, seeds=1)
    assert verdict(sums) == expected(kind, estimator), (min(sums), max(sums))


def test_every_estimator_is_judged():
    assert {name for _, name in SERVED} == {each.name for each in ESTIMATORS}
    assert {each.claim for each in ESTIMATORS} == {"exact", "bound", "neither"}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kind", ["masks", "tree", "wrong clusters"])
def test_with_the_exact_network_bounds_are_above_the_entropy_and_chains_equal_it(kind, name):
    estimator = find(name)
    (joint, model) = source_of(kind)
    if reason_against(estimator, model, joint.ndim):
        return
    found = mean_over(joint, estimator, model)
    entropy = entropy_of(joint)
    if name.startswith("chain"):
        assert found == pytest.approx(entropy, abs=1e-9)
    else:
        assert found > entropy - 1e-6
    if name in ("NELBO, times from 0, with ends", "NELBO, times of least variance"):
        assert found == pytest.approx(
            entropy, abs=1e-6
        )  # the bound of the exact network is the entropy


@pytest.mark.parametrize(
    "name",
    [
        "NELBO, times from 0.1, without ends",
        "16 steps, without reconstruction",
        "weights clipped at 2",
        "coupled pairs without normaliser",
    ],
)
def test_some_numbers_are_below_the_entropy(name):
    joint, model = source_of("masks")
    assert mean_over(joint, find(name), model) < entropy_of(joint) - 0.01


def test_the_best_order_has_the_entropy_of_the_exact_network_and_is_no_likelihood():
    joint, model = source_of("masks")
    best = find("best of 4 orders")
    assert mean_over(joint, best, model) == pytest.approx(entropy_of(joint), abs=1e-9)
    assert max(kraft_sums(best, model, 3, seeds=1)) > 2


@pytest.mark.parametrize("schedule", [dd.schedules.Linear(), dd.schedules.Cosine()])
def test_the_pseudo_likelihood_of_a_uniform_network_is_that_of_its_guess(schedule):
    process = dd.processes.Masked(3, schedule)
    shares = []

    def uniform(z, t):
        shares.append(process.likelihood(torch.full_like(z, 3), torch.zeros_like(z), t))
        return torch.zeros(*z.shape, 3, dtype=torch.float64)

    x = sequences(3, 2)
    estimate = find("pseudo-likelihood at half masks").expectation(Model(process, uniform), x)
    torch.testing.assert_close(estimate, torch.full_like(estimate, 2 * math.log(3)))
    assert shares[0].sub(0.5).abs().max() < 1e-6  # the network reads times in float32


@pytest.mark.parametrize("kind", PROCESSES)
def test_the_bound_is_that_of_the_library(kind):
    joint, model = source_of(kind)
    process = model.process
    *_, network = random_networks(process, joint.ndim, seeds=1)
    found = mean_over(joint, find("NELBO, times from 0, without ends"), Model(process, network))
    assert found == pytest.approx(float(integrate_bound(process, joint, network)), rel=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize(("kind", "name"), SERVED)
def test_draws_have_the_expectation_that_is_judged(kind, name):
    model = model_of(kind)
    estimator = find(name)
    rows = 4000
    x = sequences(model.process.vocab_size, PROCESSES[kind][1])[5:6]
    many = x.expand(rows, -1)
    free = torch.ones(rows, x.shape[1], dtype=torch.bool)
    nats = estimator.draw(model, many, free, dd.KeyedGenerator(0, 0, torch.arange(rows))).nats
    truth = float(estimator.expectation(model, x))
    error = float(nats.std()) / rows**0.5
    assert float(nats.mean()) == pytest.approx(truth, abs=4.5 * error + 1e-6)


@pytest.mark.parametrize(
    "name", [each.name for each in ESTIMATORS if each.name != "HDLM's released loss, xi < 1"]
)
def test_network_calls_are_counted(name):
    model = model_of("masks")
    length = 3
    calls = []

    def network(z, t):
        calls.append(len(z))
        return model.network(z, t)

    x = torch.tensor([[0, 1, 2], [2, 2, 0]])
    free = torch.ones_like(x, dtype=torch.bool)
    noise = dd.KeyedGenerator(0, 0, torch.arange(2))
    draw = find(name).draw(Model(model.process, network), x, free, noise)
    assert draw.calls == len(calls) and draw.nats.shape == (2,)
    if name in (FIXED, "order that reads the true token"):
        assert draw.calls == length
    if name == "NELBO, times from 0, with ends":
        assert draw.calls == 1  # nothing is lost at exact ends


@pytest.mark.parametrize(
    "name", [each.name for each in ESTIMATORS if each.name != "HDLM's released loss, xi < 1"]
)
def test_given_tokens_are_never_noised(name):
    model = model_of("masks")
    x = torch.tensor([[0, 1, 2]]).expand(64, -1)
    free = torch.tensor([[True, False, True]]).expand(64, -1)

    def network(z, t):
        assert bool((z[:, 1] == 1).all())
        return model.network(z, t)

    draw = find(name).draw(
        Model(model.process, network), x, free, dd.KeyedGenerator(0, 0, torch.arange(64))
    )
    assert bool(draw.nats.isfinite().all())


def test_a_chain_given_a_token_sums_to_one_over_the_others():
    model = model_of("masks")
    x = sequences(3, 3)
    x = x[x[:, 1] == 1]
    free = torch.tensor([[True, False, True]]).expand(9, -1)
    noise = dd.KeyedGenerator(0, 0, torch.arange(9))
    for name in (FIXED, "chain, by confidence", "mixture over 4 orders"):
        nats = find(name).draw(model, x, free, noise).nats
        assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-9)


BLOCKED = [
    ("NELBO, times from 0, with ends", "bound"),
    ("NELBO, times from 0.1, without ends", "neither"),
    ("NELBO, times from 0.1, with ends", "bound"),
    ("16 steps, with reconstruction", "bound"),
    ("16 steps, without reconstruction", "neither"),
    (FIXED, "exact"),
    ("mixture over 4 orders", "exact"),
]


@pytest.mark.parametrize(("name", "claim"), BLOCKED)
def test_sequences_drawn_block_by_block_are_judged_too(name, claim):
    model = Model(dd.presets.mdlm(2), None, pace=dd.paces.Blocks(2))
    assert not reason_against(find(name), model, 4)
    assert verdict(kraft_sums(find(name), model, 4, seeds=1)) == claim


@pytest.mark.statistical
def test_draws_along_blocks_have_the_expectation_that_is_judged():
    process = dd.presets.mdlm(2)
    *_, network = random_networks(process, 4, seeds=1)
    model = Model(process, network, pace=dd.paces.Blocks(2))
    rows = 4000
    x = torch.tensor([[0, 1, 1, 0]])
    for name in ("NELBO, times from 0, with ends", "16 steps, with reconstruction"):
        many = x.expand(rows, -1)
        free = torch.ones(rows, 4, dtype=torch.bool)
        nats = find(name).draw(model, many, free, dd.KeyedGenerator(0, 0, torch.arange(rows))).nats
        error = float(nats.std()) / rows**0.5
        assert float(nats.mean()) == pytest.approx(
            float(find(name).expectation(model, x)), abs=4.5 * error
        )


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("gidd", FIXED, "needs a process with levels"),
        ("wrong clusters", "chain, by confidence", "one path from the mask to each token"),
        ("tree", "pseudo-likelihood at half masks", "a process of tokens and one mask"),
        ("masks", "HDLM's released loss, xi < 1", "one level of clusters with xi < 1"),
        ("tree", "HDLM's released loss, xi < 1", "one level of clusters with xi < 1"),
        ("no exact ends", "best of 4 orders", "only masks at t = 1"),
    ],
)
def test_unsupported_processes_and_options_are_refused_with_the_reason(kind, name, reason):
    process, length = PROCESSES[kind]
    assert reason in reason_against(find(name), Model(process, None), length)


def test_paces_other_than_blocks_are_refused():
    for pace, reason in ((dd.paces.Ramp(0.5), "or blocks"), (dd.paces.Blocks(2), "must divide")):
        model = Model(dd.presets.mdlm(3), None, pace=pace)
        assert reason in reason_against(find(FIXED), model, 3)


def test_the_verdict_of_sums():
    assert verdict([1.0, 1 - 1e-9]) == "exact"
    assert verdict([0.3, 1.0]) == "bound"
    assert verdict([0.3, 1.001]) == "neither"


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="name is 'chains', must be one of 'NELBO"):
        find("chains")


def test_orders_by_number_are_permutations():
    assert dd.samplers.InOrder(Permuted(0)).ranks(4).tolist() == [0, 1, 2, 3]
    assert dd.samplers.InOrder(Permuted(1)).ranks(4).tolist() == [3, 2, 1, 0]
    assert sorted(dd.samplers.InOrder(Permuted(2)).ranks(6).tolist()) == list(range(6))
    assert kraft_sum(find(FIXED), model_of("masks"), 3) == pytest.approx(1, abs=1e-6)


def test_times_of_blocks_have_the_density_of_a_block():
    """Along blocks the positions of a block share a time, so their density is that of its size."""
    process = dd.presets.mdlm(3)
    estimator = find("NELBO, times of least variance")
    x = torch.zeros(20_000, 16, dtype=torch.int64)
    free = torch.ones_like(x, dtype=torch.bool)

    def flat(z, t):
        return torch.zeros(*z.shape, 3)

    nats = {}
    for size in (1, 16):
        model = Model(process, flat, pace=dd.paces.Blocks(size))
        nats[size] = estimator.draw(model, x, free, torch.Generator().manual_seed(0)).nats
    entropy = 16 * math.log(3)
    for size, values in nats.items():
        density = process.time_density(size)
        t = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
        # a block of n masks has mean square n t (1 - t) + (n t)^2, divided by t^2 and the density
        square = (density.weight(t) * (size * t * (1 - t) + (size * t) ** 2) / t**2).mean()
        spread = entropy * ((square / size**2 - 1).sqrt())
        assert abs(values.mean() - entropy) < 4 * spread / 20_000**0.5, size
        assert abs(values.std() / spread - 1) < 0.05, size
