"""Transformer of graphs: permutations of nodes, absent nodes, and what it learns."""

import itertools
import math
import re

import pytest
import torch
from torch.testing import assert_close
from zoo.calls import seeded
from zoo.graphs import EDGES, graphs, network, permuted, product, random_order

import ddlib as dd
from ddlib_models import GraphTransformer

F64 = torch.float64
SLOTS = 5
every_noise = pytest.mark.parametrize("edges", EDGES.values(), ids=EDGES)
every_dtype = pytest.mark.parametrize(
    "dtype, tolerance", [(F64, 1e-11), (torch.float32, 3e-5)], ids=["float64", "float32"]
)


def noised(process, x, dtype=F64, seed=0):
    """States of graphs whose number of nodes is given, and their times."""
    t = torch.rand(len(x), generator=seeded(seed), dtype=dtype)
    known = torch.zeros(x.shape, dtype=torch.bool)
    known[:, 0] = True
    return dd.hold_given(process.tokens_as_states(x), process.sample(x, t, seeded(seed)), t, known)


@every_noise
@every_dtype
@torch.no_grad()
def test_permuted_nodes_permute_the_logits_and_leave_the_bound(edges, dtype, tolerance):
    process = product(SLOTS, edges)
    model = network(process).to(dtype)
    x = graphs(SLOTS, 10)
    z, t = noised(process, x, dtype)
    orders = [random_order(int(size) + 1, SLOTS, seed) for seed, size in enumerate(x[:, 0])]
    assert any(not torch.equal(order, order.sort().values) for order in orders)
    x_moved, z_moved = (
        torch.stack([permuted(row, order, SLOTS) for row, order in zip(v, orders, strict=True)])
        for v in (x, z)
    )
    logits = model(z, t)
    moved = model(z_moved, t)
    expected = [permuted(row, order, SLOTS) for row, order in zip(logits, orders, strict=True)]
    assert_close(moved, torch.stack(expected), rtol=tolerance, atol=tolerance)
    terms = dd.nelbo(process, logits, x, z, t).sum(1)
    terms_moved = dd.nelbo(process, moved, x_moved, z_moved, t).sum(1)
    assert terms.max() > 1
    assert_close(terms_moved, terms, rtol=10 * tolerance, atol=tolerance)


@every_noise
@every_dtype
@torch.no_grad()
def test_the_number_of_slots_changes_nothing(edges, dtype, tolerance):
    """Graphs of at most 3 nodes in 3 slots and in 5, with networks of the same weights."""
    few = product(3, edges)
    many = product(SLOTS, edges)
    small = network(few).to(dtype)
    large = network(many).to(dtype)
    large.load_state_dict(small.state_dict())
    x = graphs(3, 6)
    z, t = noised(few, x, dtype)
    first, second = torch.triu_indices(SLOTS, SLOTS, 1)
    present = torch.cat([torch.arange(4), 1 + SLOTS + (second < 3).nonzero()[:, 0]])
    x_many = torch.zeros(6, 1 + SLOTS + len(first), dtype=torch.int64)
    x_many[:, present] = x
    z_many = many.tokens_as_states(x_many)
    shift = torch.tensor([2 * int(field > 0) for field in few.arguments()["fields"]])
    z_many[:, present] = z + shift
    for time in (t, t[:, None].expand(z.shape)):
        spread = time if time.ndim == 1 else t[:, None].expand(z_many.shape)
        got = large(z_many, spread)[:, present, :3]
        assert_close(got, small(z, time), rtol=tolerance, atol=tolerance)


@every_noise
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_absent_nodes_cost_nothing_and_gradients_are_finite(edges, dtype):
    process = product(SLOTS, edges)
    model = network(process).to(dtype)
    x = graphs(SLOTS, 10)
    t = torch.rand(10, generator=seeded(), dtype=dtype)
    z = process.sample(x, t, seeded())
    z[:, 0] = x[:, 0]  # the number of nodes alone is given
    terms = dd.nelbo(process, model(z, t), x, z, t)
    second = torch.triu_indices(SLOTS, SLOTS, 1)[1]
    place = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(SLOTS), second])
    absent = place > x[:, :1]
    # uniform noise has probabilities of at least the smallest float
    assert terms[absent].abs().max() < 1e-30 and terms[:, 1:][~absent[:, 1:]].max() > 1
    terms[:, 1:].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_noise
@torch.no_grad()
def test_samples_are_graphs_of_the_given_number_of_nodes(edges):
    process = product(SLOTS, edges)
    model = network(process)
    x = graphs(SLOTS, 20)
    known = torch.zeros(x.shape, dtype=torch.bool)
    known[:, 0] = True
    drawn = dd.sample(
        process, model, x.shape, steps=4, prompt=dd.Given(x, known), generator=seeded()
    )
    assert torch.equal(drawn[:, 0], x[:, 0])
    second = torch.triu_indices(SLOTS, SLOTS, 1)[1]
    absent = torch.cat([torch.arange(SLOTS), second]) > x[:, :1]
    assert drawn[:, 1:][absent].max() == 0 and drawn[:, 1:][~absent].max() == 2


@torch.no_grad()
def test_probabilities_of_all_graphs_of_three_nodes_sum_to_one():
    """Exact likelihoods along an order, given n = 3 in 4 slots: of 2^3 nodes and 3^3 pairs."""
    process = product(4)
    model = network(process).double()
    every = torch.tensor(list(itertools.product(*[range(2)] * 3, *[range(3)] * 3)))
    x = torch.zeros(len(every), 11, dtype=torch.int64)
    x[:, 0] = 2
    x[:, 1:4] = every[:, :3]
    second = torch.triu_indices(4, 4, 1)[1]
    x[:, 5 + (second < 3).nonzero()[:, 0]] = every[:, 3:]
    known = torch.zeros(x.shape, dtype=torch.bool)
    known[:, 0] = True
    result = dd.likelihood(process, model, x, given=known)
    assert_close(result.log_likelihood.exp().sum(), torch.tensor(1.0, dtype=F64))
    assert result.log_likelihood.exp().max() < 0.5


@pytest.mark.statistical
def test_it_learns_cycles_of_four_nodes():
    """Three labelled cycles, equally likely: the bound is at least log 3."""
    process = product(4, EDGES["masks"].widened(2), nodes=1)
    torch.manual_seed(0)
    model = GraphTransformer(process.sizes, 16, 12, 2, 2, cond_dim=16)
    cycles = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 1, 1]])
    x = torch.cat([torch.tensor([[3, 0, 0, 0, 0]]).expand(3, -1), cycles], 1)
    known = (torch.arange(11) == 0).expand(3, -1)
    density = process.time_density(11)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    decay = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=150)
    generator = seeded(1)
    for _ in range(150):
        rows = x[torch.randint(3, (32,), generator=generator)]
        given = known[:1].expand(32, -1)
        t = dd.sample_times(32, generator=generator, density=density)
        z = process.sample(rows, t, generator)
        z, t = dd.hold_given(process.tokens_as_states(rows), z, t, given)
        draw = dd.paces.Draw(t, density.weight(t))
        loss = dd.training_loss(process, model(z, t), rows, z, draw, given=given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    model.eval()
    with torch.no_grad():
        probs = dd.likelihood(process, model, x, given=known).log_likelihood.exp()
    assert (probs - 1 / 3).abs().max() < 0.05 and float(probs.sum()) > 0.95
    many = x.repeat(500, 1)
    with torch.no_grad():
        bound = dd.bound(
            process, model, many, generator, given=known.repeat(500, 1), density=density
        )
    nats = bound.total.double().sum(1)
    error = float(nats.std()) / math.sqrt(len(nats))
    assert math.log(3) - 4 * error < float(nats.mean()) < math.log(3) + 0.1 + 4 * error


def test_a_fresh_network_is_uniform():
    process = product(SLOTS)
    x = graphs(SLOTS, 6)
    z, t = noised(process, x, torch.float32)
    logits = GraphTransformer(process.sizes, 8, 8, 1, 2)(z, t)
    assert logits.shape == (6, 16, SLOTS)
    assert logits[logits.isfinite()].abs().max() == 0


def test_it_is_saved_and_loaded(tmp_path):
    process = product(SLOTS)
    model = network(process)
    model.save_pretrained(tmp_path)
    again = GraphTransformer.from_pretrained(tmp_path).eval()
    z, t = noised(process, graphs(SLOTS, 4), torch.float32)
    assert torch.equal(again(z, t), model(z, t))


SIZES = [(4, 3), (3, 2), (2, 2)]
BAD = {
    "two fields": (dict(fields=SIZES[:2]), "fields is [(4, 3), (3, 2)]: must be the numbers of"),
    "no token": (dict(fields=[(4, 3), (3, 0), (2, 2)]), "fields is [(4, 3), (3, 0), (2, 2)]: must"),
    "width": (dict(pair_dim=0), "pair_dim=0: must be at least 1"),
    "heads": (dict(heads=3), "dim=8, heads=3: dim must be a multiple of heads"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(arguments, message):
    values = dict(fields=SIZES, dim=8, pair_dim=4, depth=1, heads=2) | arguments
    with pytest.raises(ValueError, match=re.escape(message)):
        GraphTransformer(**values)


def test_another_length_is_refused():
    model = GraphTransformer(SIZES, 8, 4, 1, 2)
    with pytest.raises(ValueError, match="z has 6 positions: must have 7, the number of nodes, 3"):
        model(torch.zeros(1, 6, dtype=torch.int64), torch.zeros(1))
