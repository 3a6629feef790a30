"""Given tokens: p(x_R | x_G) of every process, in losses, bound, collator and sampling."""

import math

import pytest
import torch
from refusals import refused_with, refuses
from torch.nn.functional import one_hot
from zoo.calls import seeded
from zoo.networks import never, with_own_times
from zoo.processes import EVERY_KIND, F64, LEVELS, SIX_TOKENS, every_process

import ddlib as dd
import ddlib.objective.given as given_module
from ddlib.hierarchies import Tree
from ddlib.integrations import DiffusionCollator, DiffusionLoss, mean_bound, sequence_bounds
from ddlib.paces import Blocks, RandomOrder
from ddlib.processes import GIDD, Hierarchical, Masked, Uniform
from ddlib.schedules import Linear
from ddlib.verification.framework.reference import (
    composite,
    exact_cavity,
    sequences,
    tanh_sinh,
)

V = 3
THREE = {
    "masks": Masked(V, Linear()),
    "tree": Hierarchical(Tree([[0, 1, 1]], speed=[2.0, 1.0]), Linear()),
    "tree, xi .9": Hierarchical(Tree([[0, 1, 1]], xi=0.9, speed=[2.0, 1.0]), Linear()),
    "GIDD": GIDD(V, 0.3),
    "uniform": Uniform(V, Linear()),
}
every_three = pytest.mark.parametrize("process", THREE.values(), ids=THREE)


def joint_of(length, seed=0):
    """A joint distribution of tokens that depend on each other."""
    return (
        (1.5 * torch.randn([V] * length, generator=seeded(seed), dtype=F64))
        .flatten()
        .softmax(0)
        .view([V] * length)
    )


def conditional_entropy(joint, given):
    """H(x_R | x_G) in nats."""
    free = [place for place, held in enumerate(given) if not held]
    alone = joint.sum(free) if free else joint
    return float(torch.xlogy(alone, alone).sum() - torch.xlogy(joint, joint).sum())


def conditional(process, joint, given):
    """The exact network of p(x_R | x_G): a given token is evidence of itself at any time."""
    exact = exact_cavity(process, joint)

    def network(z, t):
        times = t if t.ndim == 2 else t[:, None].expand(z.shape)
        return exact(z, torch.where(given, 0.0, times))

    return network


def integrated_loss(process, joint, given, network, fused=False, own_times=False):
    """Mean of the training loss of all tokens over sequences, noise and times."""
    length = joint.ndim
    given = torch.tensor(given)
    drawn = sequences(process.num_states, int((~given).sum()))
    clean = sequences(V, length)
    x = clean.repeat_interleave(len(drawn), 0)
    noisy = torch.zeros(len(drawn), length, dtype=torch.int64)
    noisy[:, ~given] = drawn
    noisy = noisy.repeat(len(clean), 1)
    everywhere = given.expand_as(x)
    probs = joint.flatten().repeat_interleave(len(drawn))
    total = 0.0
    nodes, weights = composite([0.0, *process.breaks, 1.0], tanh_sinh(60))
    for time, weight in zip(nodes, weights, strict=True):
        t = time.expand(x.shape if own_times else len(x))
        likely = torch.where(everywhere, 1.0, process.likelihood(noisy, x, t)).prod(1)
        kept = likely > 0
        z, held = dd.hold_given(x[kept], noisy[kept], t[kept], everywhere[kept])
        logits = network(z, held)
        output = dd.Hidden(logits.clamp_min(-700), torch.eye(V, dtype=F64)) if fused else logits
        losses = dd.training_loss(
            process, output, x[kept], z, held, given=everywhere[kept], reduction="none"
        )
        assert (losses[:, given] == 0).all()
        total = total + float(weight * (probs[kept] * likely[kept] * losses.sum(1)).sum())
    return total


@every_three
@pytest.mark.parametrize("given", [[0, 1, 0], [1, 0, 1], [1, 0, 0]], ids=str)
def test_the_loss_of_the_exact_network_is_the_conditional_entropy(process, given):
    joint = joint_of(3)
    given = [bool(one) for one in given]
    entropy = conditional_entropy(joint, given)
    network = conditional(process, joint, torch.tensor(given))
    assert integrated_loss(process, joint, given, network) == pytest.approx(entropy, abs=2e-6)
    fused = integrated_loss(process, joint, given, network, fused=True, own_times=True)
    assert fused == pytest.approx(entropy, abs=2e-6)
    # a network that ignores the given tokens pays for it
    ignorant = conditional(process, joint, torch.tensor([False] * 3))

    def blind(z, t):
        noise = torch.full_like(z, process.num_states - 1)
        return ignorant(
            torch.where(torch.tensor(given), noise, z),
            torch.where(torch.tensor(given), 1.0, t[:, None].expand(z.shape)),
        )

    assert integrated_loss(process, joint, given, blind) > entropy + 0.01


def draws_of(joint, rows, seed=3):
    flat = torch.multinomial(joint.flatten(), rows, replacement=True, generator=seeded(seed))
    return torch.stack(torch.unravel_index(flat, joint.shape), 1)


def close_to(estimate, nats):
    """Whether the bound per given-free token times their number is ``nats``, within 4 errors."""
    number = int(estimate.mask[0].sum())
    mean = estimate.per_token
    assert mean.standard_error * number < 0.1
    return abs(mean.value * number - nats) < 4 * mean.standard_error * number


@pytest.mark.statistical
@every_three
@pytest.mark.parametrize(
    "options",
    [{}, {"levels": "balanced"}, {"pace": RandomOrder(2)}, {"pace": Blocks(2)}],
    ids=str,
)
def test_the_bound_given_tokens_is_the_conditional_entropy(process, options):
    """Four tokens, the second and the last given; with blocks on the network with times per
    position, the last is in a later block.
    """
    joint = joint_of(4)
    given = torch.tensor([False, True, False, True])
    x = draws_of(joint, 6000)
    network = with_own_times(conditional(process, joint, given))
    estimate = dd.bound(
        process,
        network,
        x,
        dd.KeyedGenerator(0, 0, torch.arange(len(x))),
        given=given.expand_as(x),
        density=process.time_density(2, chance=0.2),
        **options,
    )
    assert (estimate.total[:, given] == 0).all()
    assert close_to(estimate, conditional_entropy(joint, given.tolist()))


@pytest.mark.statistical
def test_the_bound_in_discrete_time_and_with_a_noisy_end_is_given_tokens_too():
    process = dd.processes.Masked(V, dd.schedules.Geometric(0.3, 4.0))
    joint = joint_of(2)
    given = torch.tensor([True, False])
    x = draws_of(joint, 6000)
    seen = []

    def network(z, t):
        seen.append(z[:, 0])
        return conditional(process, joint, given)(z, t)

    noise = dd.KeyedGenerator(0, 0, torch.arange(len(x)))
    estimate = dd.bound(process, network, x, noise, given=given.expand_as(x))
    assert len(seen) == 2 and all(torch.equal(one, x[:, 0]) for one in seen)
    assert (estimate.reconstruction[:, 1] > 0).any()
    # the prior term is a property of the process
    entropy = conditional_entropy(joint, given.tolist())
    total = float(estimate.total.sum(1).mean())
    assert entropy - 0.05 < total < entropy + float(estimate.prior.sum(1).mean()) + 0.05
    stepped = dd.bound(
        THREE["masks"],
        with_own_times(conditional(THREE["masks"], joint, given)),
        x,
        noise,
        given=given.expand_as(x),
        steps=8,
        pace=RandomOrder(),
    )
    assert close_to(stepped, entropy)


# given nowhere


@every_process
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("fused", [False, True])
def test_nothing_given_changes_no_bit_of_a_loss(process, dtype, fused):
    generator = seeded(1)
    x = torch.randint(process.vocab_size, (5, 4), generator=generator)
    t = dd.sample_times(5, generator=generator)
    z = process.sample(x, t, generator)
    hidden = torch.randn(5, 4, process.vocab_size, dtype=dtype, generator=generator)
    nothing = torch.zeros_like(x, dtype=torch.bool)

    def loss(reduction, **options):
        inputs = hidden.clone().requires_grad_()
        weight = torch.eye(process.vocab_size, dtype=dtype)
        output = dd.Hidden(inputs, weight) if fused else inputs
        value = dd.training_loss(process, output, x, z, t, reduction=reduction, **options)
        return value, torch.autograd.grad(value.sum(), inputs)[0]

    for reduction in ("mean", "sum", "none"):
        for plain, other in zip(loss(reduction), loss(reduction, given=nothing), strict=True):
            assert torch.equal(plain, other)
    held, times = dd.hold_given(x, z, t, nothing)
    assert torch.equal(held, z) and times is t
    assert dd.hold_given(x, z, t, None) == (z, t)


@every_process
def test_nothing_given_changes_no_bit_of_a_bound_or_a_sample(process):
    x = torch.randint(process.vocab_size, (6, 4), generator=seeded(1))
    nothing = torch.zeros_like(x, dtype=torch.bool)
    table = torch.randn(process.num_states, process.vocab_size, generator=seeded(2))

    def network(z, t):
        return table[z].roll(1, 1)

    with_own_times(network)
    for options in ({}, {"steps": 4}, {"pace": RandomOrder(2)}):
        bounds = [
            dd.bound(process, network, x, seeded(), given=given, **options)
            for given in (None, nothing)
        ]
        assert torch.equal(bounds[0].total, bounds[1].total)
        assert bounds[0].per_token == bounds[1].per_token
    free, unprompted = (
        dd.sample(process, network, (6, 4), steps=4, prompt=prompt, generator=seeded())
        for prompt in (None, dd.Given(x, nothing))
    )
    assert torch.equal(free, unprompted)


# hidden states


@pytest.mark.parametrize("name", SIX_TOKENS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("parameterization", ["cavity", "posterior"])
def test_the_fused_loss_given_tokens_is_the_plain_one(name, dtype, parameterization):
    """At one time and at a time per position, some of them 1, where no noise leads to a token."""
    process = SIX_TOKENS[name]
    generator = seeded(1)
    x = torch.randint(6, (8, 5), generator=generator)
    given = torch.rand(8, 5, generator=generator) < 0.4
    late = torch.linspace(0.1, 1, 8).to(dtype)
    mask = torch.arange(5) < torch.tensor([5, 5, 4, 5, 3, 5, 5, 1])[:, None]
    hidden, weight = (
        torch.randn(*shape, 4, dtype=dtype, generator=generator) for shape in ((8, 5), (6,))
    )
    for t in (late, late[:, None].expand(8, 5)):
        for mode in process.modes:
            z, times = dd.hold_given(x, process.sample(x, t, generator), t, given & mask)
            results = []
            for fused in (True, False):
                layer = [part.clone().requires_grad_() for part in (hidden, weight)]
                loss = dd.training_loss(
                    process,
                    dd.Hidden(*layer) if fused else layer[0] @ layer[1].T,
                    x,
                    z,
                    times,
                    mode=mode,
                    mask=mask,
                    given=given & mask,
                    parameterization=parameterization,
                )
                results.append([loss.detach(), *torch.autograd.grad(loss, layer)])
            torch.testing.assert_close(
                *results,
                rtol=2e-4 if dtype == torch.float32 else 1e-9,
                atol=1e-5 if dtype == torch.float32 else 1e-10,
            )
            assert (results[0][1][given | ~mask] == 0).all()
            total, losses = dd.summed_loss(
                process,
                dd.Hidden(hidden, weight),
                x,
                z,
                times,
                2.0,
                mode=mode,
                mask=mask,
                given=given & mask,
                parameterization=parameterization,
            )
            assert (losses[given | ~mask] == 0).all()
            number = int((mask & ~given).sum())
            assert float(total) == pytest.approx(2 * number * float(results[0][0]), rel=1e-4)


# blocks


def by_blocks(process, joint, size, leaks=False):
    """The exact network by blocks: a block reads its states and the clean tokens before it.

    One that ``leaks`` attends to a later given token in the clean sequence, whose features have
    read the tokens between.
    """
    exact = exact_cavity(process, joint)

    def network(z, t, clean):
        length = z.shape[1]
        parts = []
        for start in range(0, length, size):
            end = start + size
            behind = torch.arange(length) >= end
            before = torch.arange(length) < start
            states = torch.where(behind, process.num_states - 1, torch.where(before, clean, z))
            times = torch.where(behind, 1.0, torch.where(before, 0.0, t))
            logits = exact(states, times)
            if leaks and bool((t[:, end:] == 0).any()):
                logits = one_hot(clean, process.vocab_size) * 4.0
            parts.append(logits[:, start:end])
        return torch.cat(parts, 1)

    return with_own_times(network, size)


@pytest.mark.statistical
@every_three
@pytest.mark.parametrize("given", [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1], [1, 1, 1, 0]], ids=str)
def test_blocks_at_once_are_given_tokens_of_their_own_and_of_earlier_blocks(process, given):
    joint = joint_of(4)
    given = torch.tensor(given) > 0
    x = draws_of(joint, 6000)
    estimate = dd.bound(
        process,
        by_blocks(process, joint, 2),
        x,
        dd.KeyedGenerator(0, 0, torch.arange(len(x))),
        given=given.expand_as(x),
        density=process.time_density(2, chance=0.2),
        pace=Blocks(2),
        at_once=True,
    )
    assert close_to(estimate, conditional_entropy(joint, given.tolist()))


def test_a_network_by_blocks_could_read_its_answer_at_a_later_given_token(monkeypatch):
    process = THREE["masks"]
    joint = joint_of(4)
    given = torch.tensor([False, False, True, False])
    entropy = conditional_entropy(joint, given.tolist())
    x = draws_of(joint, 2000)

    def nats(leaks):
        estimate = dd.bound(
            process,
            by_blocks(process, joint, 2, leaks),
            x,
            seeded(),
            given=given.expand_as(x),
            pace=Blocks(2),
            at_once=True,
        )
        return float(estimate.total.sum(1).mean())

    refused_with(nats=nats)(r"""
        nats(True) | ValueError | given\[0, 2\] is True in block 1, must be False behind block 0,
            the first with a token to predict: blocks take the clean sequence
    """)
    monkeypatch.setattr(given_module, "check_given_blocks", lambda *arguments: None)
    assert nats(leaks=True) < entropy - 0.3
    assert nats(leaks=False) > entropy


# the collator


ITEMS = [
    {"input_ids": [3, 1, 2, 5, 4], "given": [1, 1, 0, 0, 0], "position": 0},
    {"input_ids": [2, 2, 5], "given": [True, False, False], "position": 1},
    {"input_ids": [1, 4, 5, 3], "given": [0, 0, 0, 1], "position": 2},
]


@pytest.mark.parametrize("name", SIX_TOKENS)
def test_items_with_given_tokens_are_collated_and_evaluated(name):
    process = SIX_TOKENS[name]
    table = torch.randn(process.num_states, 6, generator=seeded(2))
    seen = []

    def network(z, t):
        seen.append(z)
        return table[z].roll(1, 1)

    collate = DiffusionCollator(process, batch_size=3)
    plain = collate([{k: v for k, v in item.items() if k != "given"} for item in ITEMS])
    batch = collate(ITEMS)
    labels = batch["labels"]
    given = labels["given"]
    assert given.tolist()[0] == [True, True, False, False, False] and not given[1, 3:].any()
    assert sorted(batch) == ["labels", "t", "z"] and not plain["labels"]["given"].any()
    assert torch.equal(batch["z"], torch.where(given, labels["x"], plain["z"]))
    assert torch.equal(batch["t"], plain["t"])
    counted = labels["mask"] & ~given
    assert torch.equal(labels.ne(-100), counted)
    logits = network(batch["z"], batch["t"])
    loss = DiffusionLoss(process)(logits, labels)
    expected = dd.training_loss(
        process,
        logits,
        labels["x"],
        labels["z"],
        dd.paces.Draw(batch["t"], labels["measure"]),
        mask=counted,
    )
    assert float(loss) == pytest.approx(float(expected))
    seen.clear()
    rows = sequence_bounds(process, network, labels)
    assert rows[:, 2].tolist() == [3, 2, 3] and math.isfinite(mean_bound(rows).value)
    assert all(torch.equal(z[given], labels["x"][given]) for z in seen)
    ungiven = sequence_bounds(process, network, plain["labels"])
    assert not torch.equal(rows[:, 1], ungiven[:, 1])


# refusals

X = torch.tensor([[0, 1, 2], [2, 1, 0]])
Z = torch.tensor([[3, 1, 3], [2, 3, 0]])
T = torch.tensor([0.5, 0.5])
MARK = torch.tensor([[False, True, False], [True, False, False]])
REAL = torch.tensor([[True, False, True], [True, True, True]])


def loss(given=MARK, z=Z, mask=None, **options):
    return dd.training_loss(
        Masked(3, Linear()), torch.zeros(2, 3, 3), X, z, T, given=given, mask=mask, **options
    )


def bound(given=MARK, mask=None, **options):
    return dd.bound(Masked(3, Linear()), never, X, given=given, mask=mask, **options)


def draw(x=X, given=MARK):
    return dd.sample(Masked(3, Linear()), never, (2, 3), prompt=dd.Given(x, given))


def collated(**entries):
    items = [ITEMS[0] | entries, ITEMS[1]]
    return DiffusionCollator(LEVELS["masked"], batch_size=2)(items)


test_bad_given_tokens_are_refused = refuses(r"""
    loss([True]) | TypeError | given has dtype list, must be a torch.bool tensor, True at given
    loss(X) | TypeError | given has dtype torch.int64, must be a torch.bool tensor
    loss(MARK[:, :2]) | ValueError | given has shape \(2, 2\), must be that of x, \(2, 3\)
    loss(MARK.logical_not() > -1) | ValueError | given is True at all tokens, must be False at one
    loss(~REAL, mask=~REAL) | ValueError | given is True at all tokens, must be False at one
    loss(MARK, mask=REAL) | ValueError
        | given\[0, 1\] is True at padding, must be False where mask is False
    loss(MARK, Z.roll(1, 1)) | ValueError | z\[0, 2\] = 1 has
    loss(MARK, torch.full_like(Z, 3)) | ValueError
        | z\[0, 1\] = 3 at a given token, must be x\[0, 1\] = 1: use dd.hold_given
    dd.hold_given(X, Z, T, [True]) | TypeError | given has dtype list, must be a torch.bool tensor
    dd.hold_given(X, Z, T, X) | TypeError | given has dtype torch.int64, must be a torch.bool tensor
    dd.hold_given(X, Z, T, MARK[:, :2]) | ValueError | given has shape \(2, 2\), must be that of x
    bound([True]) | TypeError | given has dtype list, must be a torch.bool tensor
    bound(MARK[:1]) | ValueError | given has shape \(1, 3\), must be that of x, \(2, 3\)
    bound(MARK.logical_not() > -1) | ValueError | given is True at all tokens, must be False at one
    bound(MARK, REAL) | ValueError | given\[0, 1\] is True at padding
    draw([[0]]) | TypeError | prompt has tokens of type list, must be a tensor, dd.Given\(tokens,
    draw(None) | TypeError | prompt has tokens of type NoneType, must be a tensor
    draw(X, None) | ValueError | prompt.given is None, must be a torch.bool tensor
    draw(X, "110") | TypeError | given has dtype str, must be a torch.bool tensor
    dd.sample(LEVELS["masked"], never, (2, 3), prompt=(X, MARK)) | TypeError
        | prompt has tokens of type tuple, must be a tensor, dd.Given\(tokens, given\), or None
    draw(X, X) | TypeError | given has dtype torch.int64, must be a torch.bool tensor
    draw(X, MARK[:, 1:]) | ValueError | given has shape \(2, 2\), must be that of x, \(2, 3\)
    draw(X + 9) | ValueError | prompt holds 11, must be tokens in \[0, 3\)
    draw(X.float()) | TypeError | prompt has dtype torch.float32, must be a torch.int64
    collated(given=[1, 0]) | ValueError | given has shape \(2,\), must be \(5,\)
    collated(given=[2, 0, 0, 0, 0]) | ValueError | given is \[2, 0, 0, 0, 0\], must hold 0 and 1
    collated(given="11000") | TypeError | given is '11000', must be 0 and 1 \(L,\)
    collated(given=None) | TypeError | given is None, must be 0 and 1 \(L,\), one for each of
    collated(given=["1"] * 5) | TypeError | given is \['1', .*, must be 0 and 1 \(L,\)
    collated(input_ids=None) | TypeError | input_ids is None, must be integers \(L,\)
    collated(input_ids=3) | ValueError | input_ids has shape \(\), must be \(L,\)
    collated(position=None) | TypeError | position is \[None, 1\], must be integers, of Positions
    collated(attention_mask=[1, 1, 1]) | ValueError | items have
""")


def test_tokens_given_at_padding_are_no_batch():
    padded = [item | {"attention_mask": [0] * len(item["given"])} for item in ITEMS[:1]]
    with pytest.raises(ValueError, match=r"given\[0, 0\] is True at padding"):
        DiffusionCollator(LEVELS["masked"])(padded)


def test_given_tokens_may_be_all_of_a_sequence_and_anything_where_they_are_not():
    """A sequence without another token counts nowhere, and entries of ``Given.x`` where nothing is
    given are not read.
    """
    whole = MARK | torch.tensor([[True], [False]])
    value = loss(whole, torch.where(whole, X, Z))
    alone = dd.training_loss(
        Masked(3, Linear()), torch.zeros(1, 3, 3), X[1:], Z[1:], T[1:], given=MARK[1:]
    )
    assert float(value) == pytest.approx(float(alone))
    process = EVERY_KIND["levels"]
    x = torch.where(MARK, X, -100)

    def network(z, t):
        return torch.zeros(*z.shape, process.vocab_size)

    tokens = dd.sample(process, network, (2, 3), prompt=dd.Given(x, MARK), steps=3)
    assert torch.equal(tokens[MARK], X[MARK])
