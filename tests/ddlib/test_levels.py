"""Balanced levels: the mean of the bound, with less variance; refusals."""

import math

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import Hierarchical, Masked, PerWord, Product, RateMatrix, Uniform
from ddlib.schedules import Cosine, Linear
from ddlib.testing.oracle import integrate_bound
from ddlib.testing.strategies import processes

TREE = dd.hierarchies.Tree([[0, 0, 1, 1, 2, 3], [0, 0, 1, 1]], xi=[0.8, 1.0], speed=[2.0, 1.0, 0.7])
RING = torch.tensor([[-1.0, 0.7, 0.3], [0.3, -1, 0.7], [0.7, 0.3, -1]], dtype=F64)
PROCESSES = {
    "masks": dd.presets.mdlm(3),
    "tree": Hierarchical(TREE, Cosine()),
    "gidd": dd.presets.gidd(3, 0.3),
    "uniform": Uniform(3, Linear()),
    "per word": PerWord(Cosine(), [0.5, 2.0, 1.0]),
    "rates": RateMatrix(RING, Linear()),
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def by_count(length):
    """A network whose loss at a mask depends on the number of masks alone: 4 k / L nats where k are
    masked.
    """

    def logits(z, t):
        nats = 4 * (z == 2).sum(-1, keepdim=True).double() / length
        right = -nats.expand(z.shape)
        wrong = (-torch.expm1(right)).clamp_min(1e-300).log()
        return torch.stack([right, wrong], -1)

    return logits


@pytest.mark.parametrize("length", [2, 4, 8])
def test_balanced_levels_have_the_mean_of_the_bound_that_enumeration_gives(length):
    """For a loss that depends on the number of masks."""
    process = dd.presets.mdlm(2)
    rows = 20_000
    x = torch.zeros(20_000, length, dtype=torch.int64)
    loss = 4 * torch.arange(1, length + 1, dtype=F64) / length
    generator = seeded(1)
    t = dd.sample_times(rows, generator=generator, dtype=F64)
    z = process.sample(x, t, generator, levels="balanced")
    nats = dd.nelbo(process, by_count(length)(z, t), x, z, t).sum(-1) * process.importance_weight(
        x, z, t
    )
    error = float(nats.std()) / math.sqrt(rows)
    assert float(nats.mean()) == pytest.approx(float(loss.sum()), abs=4.5 * error)


@settings(max_examples=examples(40), deadline=None)
@given(process=processes(max_depth=4, max_words=5), t=st.floats(1e-4, 1 - 1e-4))
def test_balanced_sequences_follow_a_distribution_and_have_the_mean_of_the_bound(process, t):
    """Over all states of two tokens: chances q / balance sum to one, and nothing of the bound is
    left out.
    """
    z = torch.cartesian_prod(*[torch.arange(process.num_states)] * 2)
    x = torch.tensor([[0, process.vocab_size - 1]]).expand_as(z)
    at = torch.full((len(z),), t, dtype=F64)
    chance = process.likelihood(z, x, at).prod(-1)
    balance = process.importance_weight(x, z, at)
    drawn = torch.where(balance > 0, chance / balance.clamp_min(1e-300), 0.0)
    assert float(drawn.sum()) == pytest.approx(1, abs=1e-8)
    some = chance > 0
    logits = torch.randn(len(z), 2, process.vocab_size, generator=seeded(), dtype=F64)[some]
    nats = dd.nelbo(process, logits, x[some], z[some], at[some]).sum(-1)
    whole = (chance[some] * nats).sum()
    found = ((drawn * balance)[some] * nats).sum()
    assert float(found) == pytest.approx(float(whole), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "steps"),
    # dense processes answer time by time: of them a few times
    [(n, s) for n in PROCESSES for s in (None, 5) if (n, s) != ("rates", None)],
)
def test_a_balanced_bound_has_the_mean_of_the_bound(name, steps):
    process = PROCESSES[name]
    tokens = process.vocab_size
    size = process.num_states
    table = torch.randn(2, 2, size, tokens, generator=seeded(3), dtype=F64)
    places = torch.arange(2)
    rows = 20_000

    def denoiser(z, t):
        return table[places[:, None], places, z[:, None]].sum(2)

    x = torch.tensor([[0, tokens - 1]]).repeat(rows, 1)
    found = dd.bound(process, denoiser, x, seeded(4), levels="balanced", steps=steps).total.sum(-1)
    error = float(found.std()) / math.sqrt(rows)
    if steps is None:
        probs = torch.zeros(tokens, tokens, dtype=F64)
        probs[0, -1] = 1
        expected = float(integrate_bound(process, probs, denoiser, points=60))
    else:
        other = dd.bound(process, denoiser, x, seeded(5), steps=steps).total.sum(-1)
        expected = float(other.mean())
        error = math.hypot(error, float(other.std()) / math.sqrt(rows))
    assert float(found.mean()) == pytest.approx(expected, abs=4.5 * error)


@pytest.mark.parametrize("steps", [3, 4])
def test_a_balanced_bound_counts_a_window_that_ends_within_a_step(steps):
    process = dd.presets.staged([0, 0, 1, 1])
    x = torch.zeros(6000, 1, dtype=torch.int64)
    found = dd.bound(
        process, lambda z, t: torch.zeros(*z.shape, 4), x, seeded(), levels="balanced", steps=steps
    ).total
    assert float(found.mean()) == pytest.approx(
        math.log(4), abs=max(4.5 * float(found.std()) / 6000**0.5, 1e-6)
    )


@pytest.mark.parametrize(
    ("process", "share"),
    [
        (dd.presets.mdlm(64), 0.01),
        (dd.presets.hdlm(torch.arange(64) // 8), 0.75),
        (dd.presets.gidd(64, 0.1), 0.75),
    ],
    ids=["masks", "tree", "gidd"],
)
def test_balanced_levels_take_noise_out_of_the_bound(process, share):
    """Spread of one time's draws for a network of equal loss everywhere, as a share of the standard
    deviation.

    For masks the weight is then L / k where k are masked, whatever the time: nothing is left.
    """
    x = torch.randint(64, (4000, 32), generator=seeded())
    t = torch.full((4000,), 0.4, dtype=F64)
    spread = {}
    for levels in ("independent", "balanced"):
        z = process.sample(x, t, seeded(6), levels=levels)
        nats = dd.nelbo(process, torch.zeros(4000, 32, 64), x, z, t).sum(-1).double()
        spread[levels] = float(
            (nats * process.importance_weight(x, z, t) if levels == "balanced" else nats).std()
        )
    assert spread["balanced"] <= share * spread["independent"]


def test_a_balanced_mask_weighs_the_length_over_their_number():
    process = dd.presets.mdlm(5)
    x = torch.randint(5, (300, 12))
    t = dd.sample_times(300, generator=seeded(), dtype=F64)
    z = process.sample(x, t, seeded(), levels="balanced")
    masks = (z == 5).sum(-1)
    assert int(masks.min()) >= 1
    weight = process.importance_weight(x, z, t)[:, None] * process.loss_weight(x, z, t)
    assert torch.allclose(weight[z == 5], (12 / masks.double())[:, None].expand_as(z)[z == 5])


@every_process
@pytest.mark.parametrize("t", [0.0, 1e-7, 1.0])
def test_balanced_levels_serve_the_ends_of_time_and_texts_of_one_token(process, t):
    x = torch.randint(process.vocab_size, (50, 1))
    at = torch.full((50,), t, dtype=F64)
    z = process.sample(x, at, seeded(), levels="balanced")
    assert process.importance_weight(x, z, at).isfinite().all()


X = torch.zeros(2, 3, dtype=torch.int64)
test_unknown_levels_are_refused_before_the_network_runs = refuses(r"""
    dd.bound(dd.presets.mdlm(3), never, X, levels="even")
        | ValueError | levels is 'even', must be one of 'independent', 'balanced'$
    dd.presets.gidd(3, 0.1).sample(X, torch.rand(2), levels="even") | ValueError
        | levels is 'even', must be one of
""")


def test_a_process_that_draws_in_its_own_way_is_refused_by_name():
    class Own(Masked):
        def sample(self, x, t, generator=None):
            return super().sample(x, t, generator)

    own = Own(3, Linear())
    product = Product({"a": own, "b": Masked(3, Linear())}, ["a", "b", "b"])
    x = torch.zeros(2, 3, dtype=torch.int64)
    for process in (own, product, Product({"a": own})):
        assert process.couplings == ("independent",)
        assert dd.bound(process, lambda z, t: torch.zeros(*z.shape, 3), x).total.shape == (2, 3)
        with pytest.raises(TypeError, match=r"levels is 'balanced', which .*, has no argument"):
            dd.bound(process, lambda z, t: torch.zeros(*z.shape, 3), x, levels="balanced")


def test_the_balanced_bound_of_a_row_does_not_depend_on_the_batch_where_windows_end():
    process = dd.presets.staged([0, 0, 1, 1])
    x = torch.randint(4, (6, 3), generator=seeded())

    def bound(rows):
        noise = dd.KeyedGenerator(0, 0, rows)
        network = lambda z, t: torch.zeros(*z.shape, 4)  # noqa: E731
        return dd.bound(process, network, x[rows], noise, steps=3, levels="balanced").total

    together = bound(torch.arange(6))
    assert all(torch.equal(bound(torch.tensor([row]))[0], together[row]) for row in range(6))
