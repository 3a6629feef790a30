"""Rows that descend along an order with true tokens: their states, their loss, and how they
resume.
"""

import itertools
import math

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from test_likelihood import ORDERS, RandomLogits, plain_processes
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import F64, LEVELS

import ddlib as dd
from ddlib.samplers import Confidence, InOrder, LeftToRight, Ordered
from ddlib.samplers.choices import Score
from ddlib.verification.framework.reference import integrate_bound

RANDOM = Confidence(temperature=1e6)


def timeless(process, length, seed=0):
    network = RandomLogits(process, length, seed=seed)
    network.late.zero_()
    return network


def losses(rows, logits, mode="standard"):
    """The loss of every token, (B, L)."""
    return dd.training_loss(
        rows.process,
        logits,
        rows.x,
        rows.z,
        rows.draw(mode),
        reduction="none",
        **rows.loss_options(mode),
    )


@pytest.mark.parametrize("mode", ["standard", "edges"])
def test_in_a_random_order_the_loss_of_masks_is_the_ordinary_bound(mode):
    process = dd.processes.Masked(3, dd.schedules.Cosine())
    length = 3
    network = timeless(process, length)
    x = torch.tensor([[0, 2, 1]])
    total = 0.0
    for number in range(length):
        kept = [torch.tensor(some) for some in itertools.combinations(range(length), number)]
        for some in kept:
            rows = dd.contrib.TrainingRows(process, LeftToRight(), x)
            z = torch.full_like(x, 3)
            z[0, some.long()] = x[0, some.long()]
            rows.load_state_dict(rows.state_dict() | {"z": z})
            total += losses(rows, network(rows.z, rows.t), mode).sum() / len(kept) / length
    joint = torch.zeros(3, 3, 3, dtype=F64)
    joint[0, 2, 1] = 1.0
    assert abs(total - integrate_bound(process, joint, network).sum()) < 1e-9


@pytest.mark.parametrize(("length", "per_step"), [(3, 1), (4, 2)])
def test_rows_in_a_random_order_visit_every_set_of_masks_as_often_as_random_noise(length, per_step):
    process = dd.presets.mdlm(4)
    rounds = 20
    x = torch.randint(4, (300, length), generator=seeded())
    rows = dd.contrib.TrainingRows(process, RANDOM, x, per_step=per_step, seed=3)
    visits = torch.zeros(2**length)
    for _ in range(length * rounds):
        visits += (
            (rows.z == 4)
            .long()
            .mul(2 ** torch.arange(length))
            .sum(-1)
            .bincount(minlength=2**length)
        )
        finished = rows.step(torch.zeros(300, length, 4))
        rows.replace(finished, x[finished])
    number = torch.tensor([bin(state).count("1") for state in range(2**length)])
    expected = torch.tensor(
        [0 if n == 0 else 1 / length / math.comb(length, n) for n in number.tolist()]
    )
    error = (
        expected * (1 - expected) / (300 * rounds)
    ).sqrt()  # each number of masks once in every sequence
    assert ((visits / visits.sum() - expected).abs() <= 4 * error).all()


@given(plain_processes(), st.sampled_from(list(ORDERS.values())), st.integers(0, 99))
@settings(max_examples=examples(40))
def test_the_losses_of_the_steps_of_a_sequence_are_its_likelihood(process, order, seed):
    x = torch.randint(process.vocab_size, (3, 2), generator=seeded(seed))
    network = RandomLogits(process, 2, seed=seed)
    rows = dd.contrib.TrainingRows(process, order, x, index=torch.zeros(3, dtype=torch.int64))
    total = torch.zeros(3, dtype=F64)
    for _ in range(2 * (len(process.levels) - 1)):
        logits = network(rows.z, rows.t.float())  # as samplers do
        loss = dd.training_loss(
            process, logits, x, rows.z, rows.t, dd.weightings.Constant(), reduction="none"
        )
        before = rows.levels
        finished = rows.step(logits)
        total += torch.where(rows.levels < before, loss, 0.0).sum(-1)
    assert finished.all() and torch.equal(rows.z, x)
    steps = None if order.guarantees.consistent_joint else 2 * (len(process.levels) - 1)
    exact = dd.likelihood(process, network, x, order, steps=steps).log_likelihood
    torch.testing.assert_close(-total, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["standard", "edges", "hard"])
def test_weights_of_a_row_are_its_edges_over_those_that_are_summed(mode):
    process = LEVELS["levels"]
    x = torch.randint(6, (4, 5), generator=seeded())
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[1, 3:] = False
    rows = dd.contrib.TrainingRows(process, LeftToRight(), x, mask)
    level = rows.levels
    assert level.sum(-1).tolist() == [15, 9 - 2, 15 - 7, 15 - 11]
    summed = (level > 0).sum(-1) if mode == "standard" else level.sum(-1)
    assert torch.equal(
        rows.draw(mode).measure, torch.tensor([15.0, 9.0, 15.0, 15.0], dtype=F64) / summed
    )
    assert (losses(rows, torch.zeros(4, 5, 6), mode)[level == 0] == 0).all()
    assert torch.equal(rows.z[~mask], x[~mask])


def test_padding_stands_at_times_at_which_no_token_is_left():
    process = dd.processes.Hierarchical(
        dd.hierarchies.Tree([[0, 0, 1, 1]], speed=[2.0, 1.0]), dd.schedules.Linear()
    )
    x = torch.tensor([[0, 3, 1, 2]])
    mask = torch.tensor([[True, True, True, False]])
    rows = dd.contrib.TrainingRows(process, LeftToRight(), x, mask)
    assert rows.t.tolist() == [1.0] and process.likelihood(rows.z, rows.x, rows.t)[0, 3] == 0
    hidden = torch.zeros(1, 4, 4)
    eye = torch.eye(4)
    states = rows.x, rows.z, rows.draw()
    found = dd.training_loss(process, hidden, *states, **rows.loss_options())
    assert torch.equal(
        found, dd.training_loss(process, dd.Hidden(hidden, eye), *states, **rows.loss_options())
    )
    assert float(found) == pytest.approx(2 * math.log(2))  # two edges, each of one of two children
    with pytest.raises(ValueError, match=r"z\[0, 3\] = 2 has probability 0"):
        dd.training_loss(process, hidden, *states)


@pytest.mark.parametrize("name", ["hdlm-xi", "levels-xi-below", "levels-xi"])
def test_states_are_drawn_given_the_true_tokens_where_tokens_leave_their_cluster(name):
    process = LEVELS[name]
    rounds = 3000
    x = torch.tensor([[2]]).expand(rounds, 1)
    rows = dd.contrib.TrainingRows(
        process, LeftToRight(), x, total=10 * rounds, seed=1
    )  # all are young
    depth = len(process.levels) - 1
    rows.step(torch.zeros(rounds, 1, 6))
    found = rows.z.flatten().bincount(minlength=process.num_states) / rounds
    one = torch.nn.functional.one_hot(x[:1], 6).to(F64)
    half = torch.tensor([0.5], dtype=F64)
    probs = process.posterior(one, torch.tensor([[process.num_states - 1]]), half, half / 2)[0, 0]
    probs = torch.where(
        process.level_of(torch.arange(process.num_states)[None])[0] == depth - 1, probs, 0.0
    )
    probs = probs / probs.sum()
    assert (probs > 0).sum() > 1
    assert ((found - probs).abs() <= 4.5 * (probs * (1 - probs) / rounds).sqrt()).all()


def test_an_order_that_keeps_tokens_in_their_cluster_reaches_the_true_ones_from_others_too():
    process = LEVELS["levels-xi"]
    x = torch.arange(6)[:, None].expand(6, 4)
    rows = dd.contrib.TrainingRows(process, Confidence(force_transition=True), x, seed=1)
    for _ in range(12):
        assert (process.likelihood(rows.z, rows.x, rows.t) > 0).all()
        finished = rows.step(torch.zeros(6, 4, 6))
    assert finished.all() and torch.equal(rows.z, x)


def test_a_row_depends_neither_on_the_rest_of_the_batch_nor_on_its_processes_and_resumes():
    process = LEVELS["levels-xi"]
    total = 6
    order = Confidence("entropy", temperature=0.3)
    x = torch.randint(6, (40, total, 3), generator=seeded())
    network = RandomLogits(process, 3)

    def run(some, steps, begin=None):
        rows = dd.contrib.TrainingRows(
            process, order, x[0, some], per_step=2, seed=4, index=some, total=total
        )
        if begin is not None:
            rows.load_state_dict(begin)
        for step in range(rows.steps, steps):
            finished = rows.step(network(rows.z, rows.t))
            rows.replace(finished, x[1 + step, some[finished]])
        return rows

    whole = run(torch.arange(total), 17)
    for some in (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])):
        part = run(some, 17)
        assert torch.equal(part.z, whole.z[some]) and torch.equal(part.t, whole.t[some])
    resumed = run(torch.arange(total), 17, run(torch.arange(total), 8).state_dict())
    assert (
        torch.equal(resumed.z, whole.z)
        and torch.equal(resumed.x, whole.x)
        and torch.equal(resumed.t, whole.t)
    )


@pytest.mark.parametrize(
    "order", [Confidence(), InOrder(dd.paces.LeftToRight(), "margin")], ids=repr
)
def test_features_of_a_split_network_give_the_choices_of_its_logits(order):
    process = LEVELS["levels"]
    network = Halves(LEVELS["levels"])
    x = torch.randint(6, (5, 4), generator=seeded())
    one, other = (dd.contrib.TrainingRows(process, order, x) for _ in range(2))
    for _ in range(6):
        one.step(network(one.z, one.t.float()))
        other.step(network.features(other.z, other.t.float()), network)
        assert torch.equal(one.z, other.z)


def collisions(log_probs):
    """A score of a plug-in: the logarithm of the chance that two draws agree."""
    return (2 * log_probs).logsumexp(-1)


@given(
    st.one_of(st.sampled_from(list(LEVELS.values())[:-1]), plain_processes()),
    st.sampled_from(
        [
            *ORDERS.values(),
            Ordered(Score.of(collisions)),
            Ordered(Score.of(collisions), temperature=0.3),
            Confidence("entropy", temperature=0.3, force_transition=True),
        ]
    ),
    st.sampled_from(["standard", "edges", "hard"]),
    st.sampled_from(["cavity", "posterior"]),
    st.integers(0, 99),
)
@settings(max_examples=examples(60))
def test_scores_read_from_the_loss_give_the_same_choices_and_the_same_loss(
    process, order, mode, meaning, seed
):
    generator = seeded(seed)
    x = torch.randint(process.vocab_size, (5, 4), generator=generator)
    alone, watched = (
        dd.contrib.TrainingRows(process, order, x, parameterization=meaning, seed=seed)
        for _ in range(2)
    )
    eye = torch.eye(process.vocab_size, dtype=F64)
    weighed = []
    for _ in range(3):
        logits = 4 * torch.randn(5, 4, process.vocab_size, generator=generator, dtype=F64)
        for rows, observe in ((alone, None), (watched, watched.observe)):
            hidden = logits.clone().requires_grad_()
            options = rows.loss_options(mode)
            output = dd.Hidden(hidden, eye, chunk=40, observe=observe)
            noisy = rows.x, rows.z, rows.draw(mode)
            loss = dd.training_loss(process, output, *noisy, **options)
            weighed.append((loss.detach(), *torch.autograd.grad(loss, hidden)))
        if watched.observe is not None:
            read = ~watched._score.isnan()
            score = watched._unknown()
            for part in watched._predictions(logits, None, watched.levels > 0):
                scores = watched.order.scores(watched._current, [part], watched.z, watched.levels)
                score[part.b, part.i] = scores[part.b, part.i]
            torch.testing.assert_close(watched._score[read], score[read], rtol=1e-9, atol=1e-9)
        alone.step(logits)
        watched.step(logits)
        assert torch.equal(alone.z, watched.z)
    for one, other in zip(weighed[::2], weighed[1::2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_all_scores_of_masks_are_read_from_the_loss():
    x = torch.arange(8).view(2, 4)
    for order, read in ((Confidence("entropy"), True), (LeftToRight(), False)):
        rows = dd.contrib.TrainingRows(dd.presets.mdlm(8), order, x)
        weight = torch.eye(8).requires_grad_()
        output = dd.Hidden(torch.randn(2, 4, 8), weight, observe=rows.observe)
        noisy = rows.x, rows.z, rows.draw()
        dd.training_loss(rows.process, output, *noisy, **rows.loss_options())
        assert torch.equal(~rows._score.isnan(), (rows.levels > 0) & read)


X = torch.zeros(2, 3, dtype=torch.int64)
LATE = dd.processes.Hierarchical(
    dd.hierarchies.Tree([[0, 0, 1, 1]]), dd.schedules.Geometric(0.1, 2.0)
)


def rows(process=None, order=None, **options):
    return dd.contrib.TrainingRows(
        process or dd.presets.mdlm(4), order or Confidence(), X, **options
    )


test_data_without_an_order_are_refused = refuses(r"""
    rows(order=Ancestral()) | TypeError
        | order is Ancestral\(.*must be a sampler that chooses the next position
    rows(dd.presets.gidd(4, 0.3)) | TypeError | needs a process with levels, .*train on random noise
    rows(LATE) | ValueError | needs a process with only masks at t = 1
    rows(dd.presets.staged([0, 0, 1, 1])) | ValueError
        | needs edges that act at all times, .* has windows
    rows(order=Confidence(per_step="expected")) | ValueError | must choose without a time grid
    rows(per_step=0) | ValueError | per_step is 0
    rows(index=torch.arange(3)) | ValueError | index has shape
    rows().replace(torch.tensor([0]), X) | ValueError | x has shape
    rows().load_state_dict(dict(rows().state_dict(), z=X[:1])) | ValueError | state\['z'\] has shape
    rows().step(torch.zeros(2, 3, 5)) | ValueError | logits
""")


def test_times_have_the_default_dtype_as_in_sampling():
    rows = dd.contrib.TrainingRows(
        dd.presets.mdlm(4), dd.samplers.Confidence(), torch.zeros(2, 3, dtype=torch.int64)
    )
    assert rows.t.dtype == torch.get_default_dtype() and torch.nn.Linear(1, 3)(
        rows.t[:, None]
    ).shape == (2, 3)


def test_small_scores_decide_the_order():
    """With five decimals all scores of a network over 50,257 tokens that is hardly trained would be
    equal.
    """
    generator = seeded()
    probs = (0.02 * torch.randn(1, 8, 50_257, generator=generator)).softmax(-1)
    score = probs.amax(-1).double()
    level = torch.ones(1, 8, dtype=torch.int64)
    least = torch.ones(1, 1, dtype=torch.int64)
    chosen = dd.samplers.Confidence("probability").choose(score, level, least)
    assert int(chosen.int().argmax()) == int(score.argmax()) != 0
    both = (
        dd.samplers.Confidence("probability").choose(one, level, 3 * least)
        for one in (score * (1 + 1e-7), score)
    )
    assert torch.equal(*both)
