"""Positions outside a mask count nowhere: in the training loss, in the bound, in the likelihood, in
printed numbers.
"""

import math
import re
from itertools import product

import pytest
import torch
from refusals import refused_with
from zoo.calls import seeded
from zoo.networks import never
from zoo.processes import F64, presets

import ddlib as dd
from ddlib.processes import Masked
from ddlib.schedules import Geometric

PROCESSES = presets([0, 0, 1, 1]) | {"geometric": Masked(4, Geometric(0.3, 1.5))}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


class Ignoring:
    """A denoiser that looks at the states of the real tokens and at nothing else.

    Logits are noise keyed by them.
    """

    def __init__(self, process, real):
        generator = seeded()
        self.real = real
        self.vocab_size = process.vocab_size
        self.table = torch.randn(process.num_states, 16, generator=generator)
        self.out = torch.randn(16, process.vocab_size, generator=generator)

    def __call__(self, z, t):
        real = self.real[: len(z), : z.shape[1]]
        seen = torch.where(real[..., None], self.table[z], 0.0)
        return (seen + torch.tanh(seen.sum(1, keepdim=True))) @ self.out


def batch(process, rows, length, seed=0):
    generator = seeded(seed)
    x = torch.randint(process.vocab_size, (rows, length), generator=generator)
    t = dd.sample_times(rows, generator=generator)
    return x, process.sample(x, t, generator), t, generator


# the training loss


@every_process
@pytest.mark.parametrize("fused", [False, True])
def test_padding_counts_neither_in_the_mean_nor_in_the_gradient(process, fused):
    x, z, t, generator = batch(process, 16, 6)
    mask = torch.rand(16, 6, generator=generator) < 0.5
    hidden = torch.randn(16, 6, 8, dtype=F64, generator=generator).requires_grad_()
    weight = torch.randn(process.vocab_size, 8, dtype=F64, generator=generator)

    def loss(**options):
        if fused:
            return dd.training_loss(process, dd.Hidden(hidden, weight), x, z, t, **options)
        return dd.training_loss(process, hidden @ weight.T, x, z, t, **options)

    each = dd.nelbo(process, hidden @ weight.T, x, z, t).detach()
    masked = loss(mask=mask)
    counted = loss()
    assert float(masked.detach()) == pytest.approx(float(each[mask].mean()), rel=1e-6)
    assert float(counted.detach()) == pytest.approx(float(each.mean()), rel=1e-6)
    slope = torch.autograd.grad(masked, hidden)[0]
    assert (slope[~mask] == 0).all() and slope[mask].abs().sum() > 0
    assert (torch.autograd.grad(counted, hidden)[0][~mask] != 0).any()
    assert (loss(mask=mask, reduction="none")[~mask] == 0).all()


# the bound


@pytest.mark.parametrize("parameterization", ["cavity", "posterior"])
@pytest.mark.parametrize("mode", ["standard", "hard", "edges"])
def test_padding_may_hold_states_that_its_token_never_has(mode, parameterization):
    process = dd.processes.Hierarchical(
        dd.hierarchies.Tree([[0, 0, 0, 1, 2], [0, 1, 0]]), dd.schedules.Linear()
    )
    x = torch.tensor([[0, 2, 2, 1]])
    z = torch.tensor([[10, 6, 9, 7]])
    t = torch.tensor([0.5])
    mask = torch.tensor([[True, False, False, False]])
    options = {"mode": mode, "parameterization": parameterization}
    generator = seeded()
    layer = [
        torch.randn(*shape, generator=generator, dtype=F64, requires_grad=True)
        for shape in ((1, 4, 3), (5, 3))
    ]
    fused = dd.training_loss(process, dd.Hidden(*layer), x, z, t, mask=mask, **options)
    dense = dd.training_loss(process, layer[0] @ layer[1].T, x, z, t, mask=mask, **options)
    torch.testing.assert_close(
        [fused, *torch.autograd.grad(fused, layer)], [dense, *torch.autograd.grad(dense, layer)]
    )


@every_process
@pytest.mark.parametrize("levels", ["independent", "balanced"])
def test_the_masked_bound_has_the_mean_of_the_bound_without_padding(process, levels, monkeypatch):
    """Over all states of two real tokens and two of padding, at one time, by ``dd.bound``
    itself.
    """
    near = (0.4, 0.4 + 1e-6)
    real = torch.tensor([[True, False, True, False]])
    x = torch.tensor([[1, 3, 2, 0]])

    def mean(x, mask, levels):
        rows = torch.tensor(list(product(range(process.num_states), repeat=x.shape[1])))
        x = x.expand(len(rows), -1)
        t = torch.full((len(rows),), near[0], dtype=F64)
        chance = process.likelihood(rows, x, t).prod(1)
        rows, x, t, chance = (of[chance > 0] for of in (rows, x, t, chance))
        monkeypatch.setattr(
            process,
            "sample",
            lambda x, t, generator=None, levels="independent": rows,
            raising=False,
        )
        denoiser = Ignoring(
            process, (torch.ones_like(x) > 0) if mask is None else mask.expand_as(x)
        )
        found = dd.bound(
            process,
            denoiser,
            x,
            seeded(),
            interval=near,
            levels=levels,
            mask=None if mask is None else mask.expand_as(x),
        )
        drawn = chance
        if levels == "balanced":
            balance = process.importance_weight(x, rows, t)
            drawn = torch.where(balance > 0, chance / torch.where(balance > 0, balance, 1.0), 0.0)
            assert float(drawn.sum()) == pytest.approx(1.0, abs=1e-9)
        terms = [(drawn, found.diffusion), (chance, found.prior), (chance, found.reconstruction)]
        return [float((weight * term.double().sum(1)).sum()) for weight, term in terms]

    expected = mean(x[:, real[0]], None, "independent")
    assert mean(x, real, levels) == pytest.approx(expected, rel=2e-5, abs=1e-12)
    assert expected[0] > 1e-7 and expected[2] > 0.01


@pytest.mark.statistical
@pytest.mark.parametrize("levels", ["independent", "balanced"])
def test_padding_changes_nothing_in_the_mean_at_real_sizes(levels):
    """300 tokens in 12 clusters, 2000 rows of 32 of which 5 to 32 are real."""
    process = dd.presets.hdlm([k % 12 for k in range(300)], gamma=2.0)
    generator = seeded(1)
    x = torch.randint(300, (2000, 32), generator=generator)
    lengths = torch.randint(5, 33, (2000,), generator=generator)
    mask = torch.arange(32) < lengths[:, None]
    found = dd.bound(process, Ignoring(process, mask), x, generator, mask=mask, levels=levels)
    assert (found.total[~mask] == 0).all()
    total = tokens = variance = 0.0
    for length in lengths.unique().tolist():
        rows = lengths == length
        some = x[rows, :length]
        alone = (
            dd.bound(process, Ignoring(process, torch.ones_like(some) > 0), some, generator)
            .total.double()
            .sum(1)
        )
        total = total + float(alone.sum())
        tokens = tokens + some.numel()
        variance += float(alone.var() * len(alone))
    error = math.hypot(math.sqrt(variance) / tokens, found.per_token.standard_error)
    assert abs(found.per_token.value - total / tokens) < 3 * error < 0.3 * total / tokens
    assert tokens == int(mask.sum())


@pytest.mark.parametrize("pace", [dd.paces.Blocks(2), dd.paces.LeftToRight()], ids=str)
def test_a_pace_counts_padding_as_little(pace):
    process = dd.presets.mdlm(4)
    x = torch.zeros(64, 6, dtype=torch.int64)
    mask = torch.arange(6) < torch.randint(1, 7, (64, 1))

    def uniform(z, t):
        return torch.zeros(*z.shape, 4)

    uniform.own_times = True
    found = dd.bound(process, uniform, x, seeded(), pace=pace, mask=mask)
    whole = dd.bound(process, uniform, x, seeded(), pace=pace)
    assert torch.equal(found.total, torch.where(mask, whole.total, 0.0)) and found.mask is mask


def test_a_printed_bound_and_its_mean_are_of_the_tokens_that_count():
    process = dd.presets.mdlm(8)
    x = torch.zeros(4, 5, dtype=torch.int64)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 2])[:, None]

    def uniform(z, t):
        return torch.zeros(*z.shape, 8)

    def drawn(**options):
        return dd.bound(process, uniform, x, dd.KeyedGenerator(0, 0, torch.arange(4)), **options)

    masked = drawn(mask=mask)
    whole = drawn()
    assert masked.per_token.value == pytest.approx(float(whole.total[mask].double().mean()))
    assert "; 11 tokens of 4 x 5; " in repr(masked) and "; 4 x 5; " in repr(whole)
    shown = float(re.search(r"diffusion ([\d.]+)", repr(masked))[1])
    assert shown == pytest.approx(float(whole.diffusion[mask].mean()), abs=0.01)
    tally = dd.Tally()
    tally.add(whole.total, mask, times=whole.times)
    assert tally.per_token.value == pytest.approx(masked.per_token.value)
    assert tally.per_token.standard_error == pytest.approx(masked.per_token.standard_error)


def test_a_sequence_of_padding_alone_is_no_sequence_of_the_error():
    """Its deviation would be 0, and one real sequence beside it would have an error of 0 in place
    of none.
    """
    size = torch.tensor([4.0, 0.0, 4.0])
    one = dd.Measure.ratio(torch.tensor([6.0, 0.0]), size[:2], "nats", torch.tensor([0.1, 0.6]))
    assert one.value == 1.5 and math.isnan(one.standard_error)
    two = dd.Measure.ratio(torch.tensor([6.0, 0.0, 10.0]), size, "nats")
    assert two == dd.Measure.ratio(torch.tensor([6.0, 10.0]), size[[0, 2]], "nats")
    draws = torch.tensor([[6.0, 5.0], [0.0, 0.0], [10.0, 9.0]])
    assert dd.Measure.ratio(draws, size, "nats") == dd.Measure.ratio(
        draws[[0, 2]], size[[0, 2]], "nats"
    )
    owed = dd.Measure.ratio(
        torch.tensor([6.0, 2.0, 10.0]), size, "nats"
    )  # not of size and amount 0: it counts
    assert owed.value == pytest.approx(18 / 8)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("function", [dd.bound, dd.likelihood])
def test_a_bad_mask_is_refused_before_the_network_runs(function):
    x = torch.zeros(2, 3, dtype=torch.int64)
    refused_with(masked_by=lambda mask: function(dd.presets.mdlm(4), never, x, mask=mask))(r"""
        masked_by(torch.ones(2, 3)) | TypeError | mask has dtype torch.float32
        masked_by(torch.ones(2, 2) > 0) | ValueError | mask has shape \(2, 2\)
        masked_by(torch.zeros(2, 3) > 0) | ValueError | mask is False everywhere
    """)


# the likelihood


@pytest.mark.parametrize(
    "process", [PROCESSES["masked"], PROCESSES["hdlm"]], ids=["masks", "hierarchy"]
)
@pytest.mark.parametrize("order", [None, dd.samplers.LeftToRight()], ids=str)
@pytest.mark.parametrize("steps", [None, 3])
def test_a_padded_text_has_the_likelihood_of_the_text(process, order, steps):
    x = torch.randint(4, (5, 7), generator=seeded())
    lengths = torch.tensor([7, 3, 0, 1, 5])
    mask = torch.arange(7) < lengths[:, None]
    found = dd.likelihood(
        process,
        Ignoring(process, mask),
        x,
        order,
        mask=mask,
        steps=steps,
        controls=[dd.controls.WholeBatch()],
    )
    assert (found.per_position[~mask] == 0).all() and float(found.log_likelihood[2]) == 0
    for row, length in enumerate(lengths.tolist()):
        if length:
            some = x[row : row + 1, :length]
            alone = dd.likelihood(
                process, Ignoring(process, torch.ones_like(some) > 0), some, order, steps=steps
            )
            assert float(found.log_likelihood[row]) == pytest.approx(
                float(alone.log_likelihood), rel=1e-5
            )
    given = (torch.arange(7) < 2) & mask
    both = dd.likelihood(
        process,
        Ignoring(process, mask),
        x,
        order,
        mask=mask,
        given=given,
        steps=steps,
        controls=[dd.controls.WholeBatch()],
    )
    assert (both.per_position[given | ~mask] == 0).all() and (
        both.per_position[mask & ~given] < 0
    ).all()
