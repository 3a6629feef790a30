"""Products of processes: every position is that of its own process, and all fields share a call."""

import copy
import io
import json
import pickle
from itertools import pairwise

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.calls import seeded
from zoo.products import FOUR, LEVELS, MASKS, ODD, PRODUCTS, XI, parts, scores, tokens

import ddlib as dd
from ddlib.parameterization.logits import cavity_logits
from ddlib.processes import GIDD, Masked, Product, Uniform
from ddlib.schedules import Geometric, Linear
from ddlib.testing import strategies
from ddlib.testing.oracle import every_sequence, exact_cavity, integrate_bound

F64 = torch.float64
every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


def states_of(product, values, k):
    """Columns of the states of field k."""
    first = product.components[k].first_state
    return values[..., first : first + product.components[k].process.num_states]


def batch(product, rows=16, seed=0):
    x = tokens(product, rows, seed)
    t = torch.rand(rows, dtype=F64, generator=seeded(seed)).clamp(0.01, 0.99)
    return x, product.sample(x, t, seeded(seed)), t


def own_logits(process, logits, columns):
    return logits[:, columns, : process.vocab_size]


@every_product
@pytest.mark.parametrize("timing", ["per sequence", "per position"])
def test_every_value_is_that_of_the_positions_own_process(product, timing):
    x, z, t = batch(product)
    if timing == "per position":
        t = torch.rand(x.shape, dtype=F64, generator=seeded(5)).clamp(0.01, 0.99)
        z = product.sample(x, t, seeded(6))
    s = t / 3
    logits = cavity_logits(product, scores(product, len(x)), z, t)
    p = logits.softmax(-1)
    whole = {
        "marginal": product.marginal(x, t),
        "predictive": product.predictive(p, t),
        "posterior": product.posterior(p, z, t, s),
        "reverse_rate": product.reverse_rate(p, z, t),
    }
    of_tokens = {
        "token_likelihood": product.token_likelihood(z, t),
        "posterior logits": cavity_logits(product, logits, z, t, "posterior").softmax(-1),
    }
    single = {
        "likelihood": product.likelihood(z, x, t),
        "prior_kl": product.prior_kl(x, t),
        "loss_weight": product.loss_weight(x, z, t),
        "integrand": product.integrand(logits, x, z, t),
        "step_divergence": product.step_divergence(logits, x, z, t, s),
        "exit_rate": product.exit_rate(z, t, logits),
        "generic": dd.nelbo(product, logits, x, z, t, "generic"),
        "hidden": dd.nelbo(
            product,
            dd.Hidden(logits.clamp_min(-9.0), torch.eye(product.vocab_size).double()),
            x,
            z,
            t,
        ),
    }
    for k, columns, process, first in parts(product):
        own = x[:, columns], z[:, columns] - first
        times = [each if each.ndim == 1 else each[:, columns] for each in (s, t)]
        own_s, own_t = times
        mine = own_logits(process, logits, columns)
        q = mine.softmax(-1)
        expected = {
            "marginal": process.marginal(own[0], own_t),
            "predictive": process.predictive(q, own_t),
            "posterior": process.posterior(q, own[1], own_t, own_s),
            "reverse_rate": process.reverse_rate(q, own[1], own_t),
            "token_likelihood": process.token_likelihood(own[1], own_t),
            "posterior logits": cavity_logits(process, mine, own[1], own_t, "posterior").softmax(
                -1
            ),
            "likelihood": process.likelihood(own[1], own[0], own_t),
            "prior_kl": process.prior_kl(own[0], own_t),
            "loss_weight": process.loss_weight(*own, own_t),
            "integrand": process.integrand(mine, *own, own_t),
            "step_divergence": process.step_divergence(mine, *own, own_t, own_s),
            "exit_rate": process.exit_rate(own[1], own_t, mine),
            "generic": dd.nelbo(process, mine, *own, own_t, "generic"),
            "hidden": dd.nelbo(process, mine, *own, own_t),
        }
        for name, values in whole.items():
            here = values[:, columns]
            assert torch.allclose(states_of(product, here, k), expected[name], atol=1e-12), name
            assert torch.allclose(here.sum(-1), expected[name].sum(-1), atol=1e-12), name
        for name, values in of_tokens.items():
            here = own_logits(process, values, columns)
            assert torch.allclose(here, expected[name], atol=1e-12), name
            assert not values[:, columns, process.vocab_size :].any(), name
        for name, values in single.items():
            assert torch.allclose(values[:, columns], expected[name], rtol=1e-9, atol=1e-12), name


@every_product
def test_rates_and_transitions_are_those_of_all_fields_without_flow_between_them(product):
    q = product.rate_matrix(0.4)
    step = product.transition(0.2, 0.7)
    assert q.shape == step.shape == (product.num_states,) * 2
    for k, (process, first, _) in enumerate(product.components):
        here = slice(first, first + process.num_states)
        assert torch.equal(states_of(product, q[here], k), process.rate_matrix(0.4))
        assert torch.equal(states_of(product, step[here], k), process.transition(0.2, 0.7))
    assert torch.allclose(q.sum(1), torch.zeros(len(q), dtype=F64), atol=1e-12)
    assert torch.allclose(step.sum(1), torch.ones(len(q), dtype=F64), atol=1e-12)


@every_product
def test_states_are_those_of_fields_and_tokens_have_one_each(product):
    x = tokens(product, 20)
    z = product.tokens_as_states(x)
    assert torch.equal(product.states_as_tokens(z), x)
    assert not product.level_of(z).any()
    fields = product.arguments()["fields"]
    assert torch.equal(product.component_of(z), fields.expand_as(z))
    every = torch.arange(product.num_states)
    sizes = [each.process.vocab_size for each in product.components]
    assert int((product.level_of(every) == 0).sum()) == sum(sizes)
    assert torch.bincount(product.level_of(every)).tolist() == list(product.levels)
    at_zero = product.marginal(x, torch.zeros(len(x), dtype=F64))
    if product.exact_ends:
        assert torch.equal(at_zero.argmax(-1), z)
        assert torch.allclose(at_zero.amax(-1), torch.ones_like(at_zero[..., 0]))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_entries_beyond_an_alphabet_never_enter_a_softmax(dtype):
    """Large numbers there change no bit of loss, gradient or sample."""
    x, z, t = batch(FOUR)
    beyond = scores(FOUR, len(x), fill=torch.nan).isnan()
    results = []
    for value in (1e30, 0.0, -1e30, -torch.inf):
        logits = scores(FOUR, len(x), fill=value).to(dtype).requires_grad_()
        loss = dd.training_loss(FOUR, logits, x, z, t)
        (slope,) = torch.autograd.grad(loss, logits)
        assert not slope[beyond].any() and slope.isfinite().all()
        row = logits.detach()[0]
        network = lambda z, t, row=row: row.expand(*z.shape, -1)  # noqa: E731
        drawn = dd.sample(FOUR, network, (8, 7), steps=5, generator=seeded())
        results.append((loss.detach(), slope, drawn))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
    with pytest.raises(ValueError, match="hold NaN"):
        dd.training_loss(FOUR, scores(FOUR, len(x), fill=torch.nan), x, z, t)


SINGLE = {
    "masks": Masked(5, Linear()),
    "uniform": Uniform(3, Geometric()),
    "xi": XI,
    "gidd": GIDD(4, 0.3),
}


@pytest.mark.parametrize("process", SINGLE.values(), ids=SINGLE)
@pytest.mark.parametrize("length", [None, 4])
def test_one_field_alone_is_its_process_to_the_bit(process, length):
    fields = None if length is None else torch.zeros(length, dtype=torch.int64)
    alone = Product({"only": process}, fields)
    x = torch.randint(process.vocab_size, (6, 4), generator=seeded())
    t = torch.rand(6, generator=seeded(1)).double()
    levels = alone.couplings
    assert levels == process.couplings and alone.modes == process.modes
    for coupling in levels:
        draws = [each.sample(x, t, seeded(), coupling) for each in (process, alone)]
        assert torch.equal(*draws)
    z = draws[0]
    logits = torch.randn(6, 4, process.vocab_size, dtype=F64, generator=seeded(2))
    for mode in process.modes:
        for meaning in ("cavity", "posterior"):
            losses = [
                dd.training_loss(
                    each, logits, x, z, t, mode=mode, parameterization=meaning, reduction="none"
                )
                for each in (process, alone)
            ]
            assert torch.equal(*losses)
    network = lambda z, t: logits.mean((0, 1)).expand(*z.shape, -1)  # noqa: E731
    for steps in (None, 3):
        bounds = [
            dd.bound(each, network, x, seeded(), steps=steps, density=dd.times.Beta(2.0, 1.0))
            for each in (process, alone)
        ]
        assert torch.equal(*(each.total for each in bounds))
    densities = [each.time_density(4) for each in (process, alone)]
    assert torch.allclose(densities[0].masses, densities[1].masses, rtol=1e-12)
    assert torch.equal(process.prior(), alone.prior())
    draws = [each.sample_prior((6, 4), seeded()) for each in (process, alone)]
    assert torch.equal(*draws)
    prompt = dd.Given(x[:, :2], torch.tensor([True, False]).expand(6, 2))
    draws = [
        dd.sample(each, network, (6, 4), steps=4, prompt=prompt, generator=[3, 1, 4, 1, 5, 9])
        for each in (process, alone)
    ]
    assert torch.equal(*draws)


@settings(max_examples=examples(200))
@given(strategies.products(), st.integers(0, 2**31), st.sampled_from([F64, torch.float32]))
def test_the_bound_with_the_exact_network_is_the_joint_entropy(product, seed, dtype):
    length = len(product.arguments()["fields"])
    x, _ = every_sequence(product, length)
    joint = torch.zeros([product.vocab_size] * length, dtype=F64)
    joint[x.unbind(1)] = torch.randn(len(x), dtype=F64, generator=seeded(seed)).softmax(0)
    exact = exact_cavity(product, joint)
    diffusion = integrate_bound(product, joint, lambda z, t: exact(z, t).to(dtype), points=80)
    ends = (joint[x.unbind(1)] * product.prior_kl(x).sum(1)).sum()
    entropy = float(-torch.xlogy(joint, joint).sum())
    tolerance = 2e-6 if dtype == F64 else 1e-4
    assert float(diffusion + ends) == pytest.approx(entropy, rel=tolerance, abs=tolerance)


@settings(max_examples=examples(50))
@given(strategies.products(), st.integers(0, 2**31), st.data())
def test_the_bound_along_fields_in_turn_is_the_joint_entropy(product, seed, data):
    """In any order of the fields, of which some may share a turn."""
    fields = [str(int(number)) for number in product.arguments()["fields"]]
    names = data.draw(st.permutations(sorted(set(fields))))
    ends = sorted(data.draw(st.sets(st.integers(1, len(names)))) | {len(names)})
    order = [names[low:high] for low, high in pairwise([0, *ends])]
    pace = dd.paces.FieldsInTurn(fields, order)
    x, _ = every_sequence(product, len(fields))
    joint = torch.zeros([product.vocab_size] * len(fields), dtype=F64)
    joint[x.unbind(1)] = torch.randn(len(x), dtype=F64, generator=seeded(seed)).softmax(0)
    exact = exact_cavity(product, joint)
    diffusion = integrate_bound(product, joint, exact, points=80, pace=pace)
    prior = (joint[x.unbind(1)] * product.prior_kl(x).sum(1)).sum()
    entropy = float(-torch.xlogy(joint, joint).sum())
    assert float(diffusion + prior) == pytest.approx(entropy, rel=2e-6, abs=2e-6)


def test_a_field_that_is_generated_first_conditions_the_others():
    """Along the pace each field is complete before the next begins."""
    product = Product({"a": Masked(3, Linear()), "b": Masked(4, Linear())}, [0, 1, 1, 0])
    pace = dd.paces.FieldsInTurn(["a", "b", "b", "a"], ["b", "a"])

    def network(z, t):
        assert ((t[:, 1:3] == 0).all(1) | (t[:, [0, 3]] == 1).all(1)).all()
        return torch.zeros(*z.shape, 4, dtype=F64)

    network.own_times = True
    drawn = dd.sample(product, network, (64, 4), steps=8, pace=pace, generator=seeded())
    assert drawn[:, [0, 3]].unique().tolist() == [0, 1, 2]
    assert drawn[:, 1:3].unique().tolist() == [0, 1, 2, 3]


def test_the_estimate_of_the_bound_has_the_mean_of_its_fields_and_all_terms_at_inexact_ends():
    noise = Geometric(0.05, 3.0)
    product = Product({"a": Masked(3, noise), "b": Uniform(4, noise)}, [0, 1, 1])
    generator = seeded(4)
    row = torch.randn(4, dtype=F64, generator=generator)
    network = lambda z, t: row.expand(*z.shape, -1)  # noqa: E731
    x = tokens(product, 4000)
    whole = dd.bound(product, network, x, seeded())
    for _, columns, process, _ in parts(product):
        alone = dd.bound(
            process,
            lambda z, t, size=process.vocab_size: row[:size].expand(*z.shape, -1),
            x[:, columns],
            seeded(9),
        )
        for term in ("diffusion", "prior", "reconstruction"):
            here = getattr(whole, term)[:, columns]
            other = getattr(alone, term)
            error = (here.mean(1).std() + other.mean(1).std()) / len(x) ** 0.5
            assert abs(float(here.mean() - other.mean())) <= 5 * float(error) + 1e-12
    assert whole.reconstruction.any() and whole.prior.any()


@pytest.mark.parametrize("name", ["four", "odd", "levels"])
def test_balanced_draws_have_the_stated_weight(name):
    """q(z|x) = E[weight; z] where the bound is not 0, by enumeration of two positions."""
    product = PRODUCTS[name].at_fields([0, 1])
    x = torch.tensor([[1, 2]])
    t = torch.tensor([0.4], dtype=F64)
    rows = 60_000
    z = product.sample(x.expand(rows, -1), t.expand(rows), seeded(), "balanced")
    weight = product.importance_weight(x.expand(rows, -1), z, t.expand(rows))
    _, every = every_sequence(product, 2)
    every_x = x.expand(len(every), -1)
    probs = product.likelihood(every, every_x, t.expand(len(every))).prod(1)
    balance = product.importance_weight(every_x, every, t.expand(len(every)))
    reached = balance > 0
    drawn = torch.where(reached, probs / torch.where(reached, balance, 1.0), 0.0)
    assert float(drawn.sum()) == pytest.approx(1, abs=1e-9)
    key = z[:, 0] * product.num_states + z[:, 1]
    counts = (key[:, None] == every[:, 0] * product.num_states + every[:, 1]).sum(0)
    error = (counts - rows * drawn).abs()
    assert (error <= 5 * (rows * drawn).sqrt() + 5).all()
    assert float(weight.mean()) == pytest.approx(float(probs[reached].sum()), abs=0.02)


@every_product
def test_draws_follow_the_processes_of_their_positions(product):
    rows = 4000
    x = tokens(product, 1).expand(rows, -1)
    t = torch.full((rows,), 0.4, dtype=F64)
    later = torch.full((rows,), 0.7, dtype=F64)
    z = product.sample(x, t, seeded())
    logits = cavity_logits(product, scores(product, 1), z[:1], t[:1])
    start = product.sample(x[:1], t[:1], seeded(1)).expand(rows, -1)
    noise = product.draw_uniforms(start, seeded(2))
    many = logits.expand(rows, -1, -1)
    checks = {
        "sample": (z, product.marginal(x[:1], t[:1])),
        "prior": (product.sample_prior(x.shape, seeded(3)), None),
        "forward": (product.sample_forward(start, t, later, seeded(4)), None),
        "posterior": (
            product.sample_posterior(many, start, t, t / 2, noise),
            product.posterior(logits.softmax(-1), start[:1], t[:1], t[:1] / 2),
        ),
    }
    step = product.transition(0.4, 0.7)
    fields = product.arguments()["fields"]
    for name, (drawn, probs) in checks.items():
        assert torch.equal(product.component_of(drawn), fields.expand_as(drawn)), name
        for i in range(x.shape[1]):
            k = int(fields[i])
            if name == "prior":
                process, first, _ = product.components[k]
                row = torch.zeros(product.num_states, dtype=F64)
                row[first : first + process.num_states] = process.prior()
            else:
                row = step[start[0, i]] if probs is None else probs[0, i]
            counts = torch.bincount(drawn[:, i], minlength=product.num_states)
            assert ((counts - rows * row).abs() <= 5 * (rows * row).sqrt() + 5).all(), name
            assert not counts[row == 0].any(), name


@every_product
def test_the_noise_of_a_row_does_not_depend_on_the_batch(product):
    x = tokens(product, 6)
    t = torch.full((6,), 0.5, dtype=F64)
    index = torch.arange(6)
    whole = product.sample(x, t, dd.KeyedGenerator(0, 0, index))
    some = index[[4, 1]]
    assert torch.equal(product.sample(x[some], t[some], dd.KeyedGenerator(0, 0, some)), whole[some])


def test_a_batch_may_have_fields_for_each_of_its_sequences():
    wide = torch.stack([FOUR.arguments()["fields"], FOUR.arguments()["fields"].flip(0)])
    product = FOUR.at_fields(wide)
    rows = [FOUR.at_fields(row) for row in wide]
    x = torch.cat([tokens(each, 1) for each in rows])
    t = torch.tensor([0.3, 0.8], dtype=F64)
    z = product.sample(x, t, seeded())
    assert torch.equal(product.component_of(z), wide)
    logits = torch.randn(2, 7, 6, dtype=F64, generator=seeded())
    losses = dd.nelbo(product, logits, x, z, t)
    keyed = product.sample(x, t, dd.KeyedGenerator(0, 0, torch.arange(2)))
    assert torch.equal(product.component_of(keyed), wide)
    for b, row in enumerate(rows):
        here = slice(b, b + 1)
        alone = dd.nelbo(row, logits[here], x[here], z[here], t[here])
        assert torch.allclose(losses[here], alone, rtol=1e-12)
        assert torch.equal(product.marginal(x, t)[here], row.marginal(x[here], t[here]))
        assert torch.equal(product.prior_kl(x, t)[here], row.prior_kl(x[here], t[here]))
    with pytest.raises(ValueError, match=r"batch has shape \(1, 7\), must have that of the fields"):
        product.sample(x[:1], t[:1])


def test_fields_that_differ_in_v_alone_are_one_call(monkeypatch):
    calls = []
    inner = Masked.integrand
    monkeypatch.setattr(
        Masked, "integrand", lambda self, *given: calls.append(self) or inner(self, *given)
    )
    x, z, t = batch(MASKS)
    dd.nelbo(MASKS, scores(MASKS, len(x)), x, z, t)
    assert [each.vocab_size for each in calls] == [8]
    equal = Product({"a": Uniform(3, Linear()), "b": Uniform(3, Linear())}, [0, 1])
    other = Product({"a": Masked(3, Linear()), "b": Masked(4, Linear(), masks=2)}, [0, 1])
    assert len(equal._leaders) == 1 and len(other._leaders) == 2


def test_nested_products_are_flat():
    inner = Product({"b": Uniform(3, Linear()), "c": Masked(2, Linear())}, ["c", "b"])
    fields = [1, 0, 1]
    nested = Product({"a": Masked(4, Linear()), "in": inner}, fields)
    assert nested.names == ("a", "in.b", "in.c")
    assert nested.arguments()["fields"].tolist() == [2, 0, 1]
    twice = Product({"only": nested})
    assert twice.names == ("only.a", "only.in.b", "only.in.c")
    assert twice.arguments()["fields"].tolist() == [2, 0, 1]
    rows = Product({"a": Masked(4, Linear()), "in": inner}, torch.tensor([[1, 0, 1], [0, 1, 1]]))
    assert rows.arguments()["fields"].tolist() == [[2, 0, 1], [0, 2, 1]]
    with pytest.raises(ValueError, match=r"'in' is a product of 2 positions, and has 1 in fields"):
        Product({"a": Masked(4, Linear()), "in": inner}, [0, 0, 1])


@every_product
def test_a_product_is_copied_stored_and_built_again(product):
    again = dd.build("processes", json.loads(json.dumps(dd.values(product))))
    x, z, t = batch(product)
    logits = scores(product, len(x))
    want = dd.nelbo(product, logits, x, z, t)
    for other in (again, copy.deepcopy(product), pickle.loads(pickle.dumps(product))):
        assert type(other) is type(product) and repr(other) == repr(product)
        assert torch.equal(dd.nelbo(other, logits, x, z, t), want)
    buffer = io.BytesIO()
    torch.save(product.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer))
    with pytest.raises(ValueError, match="the state dict is of another"):
        Product({"a": Masked(4, Linear())}).load_state_dict(again.state_dict(), strict=False)
    assert all(not tensor.is_floating_point() for tensor in product.state_dict().values())
    product_on_meta = copy.deepcopy(product).to("meta")
    assert product_on_meta.device.type == "meta"
    assert product_on_meta._by_group.fields.is_meta and product_on_meta._starts.is_meta


A = Masked(3, Linear())
B = Uniform(2, Linear())
BAD = {
    "no field": (
        lambda: Product({}, [0]),
        ValueError,
        "processes is empty, must have at least one",
    ),
    "a list": (lambda: Product([A], [0]), TypeError, "must be a mapping of names to processes"),
    "a number as a name": (
        lambda: Product({3: A}, [0]),
        TypeError,
        "has the name 3, must be a str",
    ),
    "no process": (
        lambda: Product({"a": "masked"}, [0]),
        TypeError,
        "process is 'masked', must be",
    ),
    "no fields": (
        lambda: Product({"a": A, "b": B}),
        ValueError,
        "fields is None, must be the field",
    ),
    "a field without positions": (
        lambda: Product({"a": A, "b": B}, [0, 0]),
        ValueError,
        "field 'b' has no position in fields",
    ),
    "a position without a field": (
        lambda: Product({"a": A, "b": B}, [0, 2, 1]),
        ValueError,
        r"fields\[1\] is 2, a position without a field: must be in \[0, 2\), for 'a', 'b'",
    ),
    "a negative field": (lambda: Product({"a": A}, [-1]), ValueError, r"fields\[0\] is -1"),
    "an unknown name": (
        lambda: Product({"a": A, "b": B}, ["a", "c", "b"]),
        ValueError,
        r"fields\[1\] is 'c', must be one of 'a', 'b'",
    ),
    "float fields": (
        lambda: Product({"a": A}, torch.zeros(2)),
        TypeError,
        "fields has dtype torch.float32",
    ),
    "text as fields": (
        lambda: Product({"a": A}, "aa"),
        TypeError,
        "fields is 'aa', must be the fie",
    ),
    "no positions": (
        lambda: Product({"a": A}, torch.zeros(0, dtype=torch.int64)),
        ValueError,
        r"fields has shape \(0,\), must be",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
@pytest.mark.usefixtures("as_users_call")
def test_bad_fields_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("as_users_call")
def test_ids_outside_the_alphabet_of_a_field_are_named_by_field():
    product = Product({"age": Masked(5, Linear()), "sex": B}, ["age", "sex", "age"])
    t = torch.tensor([0.5])
    x = torch.tensor([[4, 1, 0]])
    z = product.sample(x, t, seeded())
    wrong = torch.tensor([[4, 2, 0]])
    message = r"x\[0, 1\] = 2 in field 'sex', must be one of its tokens, in \[0, 2\)"
    logits = torch.zeros(1, 3, 5)
    network = lambda z, t: torch.zeros(*z.shape, 5)  # noqa: E731
    for call in (
        lambda: product.sample(wrong, t),
        lambda: product.marginal(wrong, t),
        lambda: dd.nelbo(product, logits, wrong, z, t),
        lambda: dd.bound(product, network, wrong),
        lambda: dd.sample(product, network, (1, 3), prompt=wrong, steps=2),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    swapped = torch.tensor([[0, 0, 1]])
    with pytest.raises(
        ValueError, match=r"z\[0, 1\] = 0 in field 'sex', must be one of its states, in \[6, 8\)"
    ):
        dd.nelbo(product, logits, x, swapped, t)
    with pytest.raises(ValueError, match="logits has 6 columns, the process has vocab_size 5"):
        dd.nelbo(product, torch.zeros(1, 3, 6), x, z, t)
    with pytest.raises(ValueError, match=r"batch has shape \(1, 2\), must have that of the fields"):
        product.sample(x[:, :2], t)
    p = torch.full((1, 3, 5), 0.2)
    with pytest.raises(ValueError, match=r"last token of p.* in field 'sex'"):
        product.posterior(p, z, t, t / 2)
    with pytest.raises(TypeError, match=r"mode is 'edges', which .*Product does not have"):
        dd.training_loss(product, logits, x, z, t, mode="edges")


def test_given_tokens_are_states():
    x, z, t = batch(FOUR)
    known = torch.rand(x.shape, generator=seeded(3)) < 0.4
    states, times = dd.hold_given(FOUR.tokens_as_states(x), z, t, known)
    logits = scores(FOUR, len(x))
    loss = dd.training_loss(FOUR, logits, x, states, times, given=known, reduction="none")
    assert not loss[known].any()
    free = dd.training_loss(FOUR, logits, x, z, t, reduction="none")
    assert torch.equal(loss[~known], free[~known])
    with pytest.raises(ValueError, match="at a given token, must be"):
        dd.training_loss(FOUR, logits, x, z, t, given=known)
    seen = []

    def network(z, t):
        seen.append(z)
        return logits[0].expand(*z.shape, -1)

    dd.bound(FOUR, network, x, seeded(), given=known)
    assert all(torch.equal(z[known], FOUR.tokens_as_states(x)[known]) for z in seen)
    drawn = dd.sample(
        FOUR, network, x.shape, prompt=dd.Given(x, known), steps=4, generator=seeded()
    )
    assert torch.equal(drawn[known], x[known])


@every_product
def test_the_density_of_times_has_the_summed_moments(product):
    t = torch.tensor([0.1, 0.5, 0.9], dtype=F64)
    mean, square = product.time_moments(t)
    fields = product.arguments()["fields"]
    total = variance = 0
    for _, columns, process, _ in parts(product):
        own_mean, own_square = process.time_moments(t)
        total = total + len(columns) * own_mean
        variance = variance + len(columns) * (own_square - own_mean**2)
    assert torch.allclose(mean * len(fields), total)
    assert torch.allclose((square - mean**2) * len(fields), variance)
    density = product.time_density(len(fields))
    x, _, _ = batch(product, 8)
    dd.bound(product, lambda z, t: torch.zeros(*z.shape, product.vocab_size), x, density=density)
    assert set(product.tail_exponents()) >= {0.0, 1.0}


def test_a_product_without_a_closed_form_has_weights_and_losses():
    assert not ODD.closed_form and FOUR.closed_form
    x, z, t = batch(ODD)
    logits = scores(ODD, len(x))
    clipped = dd.training_loss(ODD, logits, x, z, t, dd.weightings.Clip(2.0), reduction="none")
    for _, columns, process, first in parts(ODD):
        alone = dd.training_loss(
            process,
            own_logits(process, logits, columns),
            x[:, columns],
            z[:, columns] - first,
            t,
            dd.weightings.Clip(2.0),
            reduction="none",
        )
        assert torch.allclose(clipped[:, columns], alone, rtol=1e-9)


def test_modes_and_factors_of_edges_are_those_of_all_fields():
    assert LEVELS.modes == ("standard", "hard", "edges")
    x, z, t = batch(LEVELS)
    logits = scores(LEVELS, len(x))
    for mode in LEVELS.modes:
        loss = dd.training_loss(LEVELS, logits, x, z, t, mode=mode, reduction="none")
        for _, columns, process, first in parts(LEVELS):
            alone = dd.training_loss(
                process,
                own_logits(process, logits, columns),
                x[:, columns],
                z[:, columns] - first,
                t,
                mode=mode,
                reduction="none",
            )
            assert torch.allclose(loss[:, columns], alone, rtol=1e-12)
    with pytest.raises(ValueError, match=r"mode has 3 factors, must have 1: field 'masks', one"):
        dd.training_loss(LEVELS, logits, x, z, t, mode=[1.0, 1.0, 1.0])


def test_losses_have_the_derivatives_of_functional_transforms():
    x = tokens(FOUR, 3)
    t = torch.tensor([0.2, 0.5, 0.9], dtype=F64)
    z = FOUR.sample(x, t, seeded())
    logits = scores(FOUR, 3, fill=7.0).requires_grad_()
    way = torch.randn(logits.shape, generator=seeded(1), dtype=F64)

    def loss(values):
        return dd.training_loss(FOUR, values, x, z, t)

    (slope,) = torch.autograd.grad(loss(logits), logits)
    start = logits.detach()
    assert torch.allclose(torch.func.grad(loss)(start), slope)
    assert torch.allclose(torch.func.jvp(loss, (start,), (way,))[1], (slope * way).sum())
    _, bend = torch.func.jvp(torch.func.grad(loss), (start,), (way,))
    ahead, behind = (torch.func.grad(loss)(start + step * way) for step in (1e-5, -1e-5))
    assert torch.allclose(bend, (ahead - behind) / 2e-5, atol=1e-7)


def test_a_product_of_masks_a_tree_a_blur_and_uniform_noise_is_verified():
    report = dd.verify(FOUR)
    assert report.ok, report.text()
    topics = {check.topic for check in report.checks if check.ok}
    assert {"product", "field 'masks', draws", "field 'uniform', process"} <= topics
    names = {check.name for check in report.checks if check.topic == "product" and check.ok}
    assert {"positions", "alphabets", "draws", "bound = joint entropy", "generation"} <= names


@pytest.mark.parametrize("name", ["odd", "masks", "levels", "trees"])
def test_products_are_verified(name):
    report = dd.verify(PRODUCTS[name])
    assert report.ok, report.text()


def test_levels_of_every_position_have_the_posterior_of_their_process():
    rows = 5  # as many as positions: a mean over positions would have fitting shapes
    x = tokens(LEVELS, rows)
    times = torch.rand(rows, dtype=F64, generator=seeded(3)).clamp(0.05, 0.95)
    for t in (times, times[:, None].expand(x.shape)):
        z = LEVELS.sample(x, t, seeded(1))
        found = LEVELS.level_posterior(LEVELS.level_of(z), t, t / 2)
        for _, at, process, first in parts(LEVELS):
            there = t if t.ndim == 1 else t[:, at]
            level = process.level_of(z[:, at] - first)
            wanted = process.level_posterior(level, there, there / 2)
            width = wanted.shape[-1]
            torch.testing.assert_close(found[:, at, :width], wanted)
            assert not found[:, at, width:].any()
