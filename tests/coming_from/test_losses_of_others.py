"""Losses and bounds of other code bases, by their own formulas."""

from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from other_code import COSINE, F64, TIMES, S, V, masks, network, shown

import ddlib as dd

X = torch.tensor([[3, 0, 2]])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_times_of_bd3lm_in_an_interval():
    drawn = dd.paces.Blocks(2).draw(64, 8, interval=(0.3, 0.8), at_once=True, weigh=False)
    # every block has its own time
    assert drawn.t.shape == (64, 8) and drawn.t.min() >= 0.3 and drawn.t.max() <= 0.8
    assert (drawn.measure == 1).all()


def masked_sets(least):
    """Return the mean over the numbers of masks, from ``least`` to all three, in nats a sequence.

    A set of k masked tokens has the weight 3 / k.
    """
    means = []
    for number in range(least, 4):
        nats = []
        for chosen in combinations(range(3), number):
            z = X.index_fill(1, torch.tensor(chosen), V)
            logs = network(z, None).log_softmax(-1).gather(-1, X[..., None])[z == V]
            nats.append(-logs.sum())
        means.append(3 / number * sum(nats) / len(nats))
    return sum(means) / len(means)


@pytest.mark.parametrize("pace", [dd.paces.Together(), dd.paces.RandomOrder()], ids=repr)
def test_the_likelihood_of_llada_and_oadm_is_the_bound(pace):
    """Draw the number of masks uniformly, as LLaDA and OADM of EvoDiff, where ddlib draws a
    time.
    """
    ours = dd.bound(masks(), network, X.repeat(20_000, 1), pace=pace).total.sum(1)
    assert (ours.mean() - masked_sets(1)).abs() < 5 * ours.std() / len(ours) ** 0.5
    assert not torch.isclose(masked_sets(2), masked_sets(1))  # without one mask alone


@pytest.mark.parametrize("weighting", [None, dd.weightings.Constant()], ids=repr)
def test_labels_of_dllm(weighting):
    x = torch.randint(V, (9, 4))
    labels = torch.where(torch.arange(4) < 2, -100, x)  # a prompt of two tokens
    answer = labels != -100
    z = torch.where(answer, masks().sample(x, TIMES), x)
    logits = network(z, TIMES)
    loss = dd.training_loss(masks(), logits, x, z, TIMES, weighting, mask=answer)
    each = dd.training_loss(masks(), logits, x, z, TIMES, weighting, reduction="none")
    # per token of the answer, the prompt counts nothing
    torch.testing.assert_close(loss, each[answer].mean())


def test_the_loss_of_maskgit_is_cross_entropy_at_masks():
    picture = dd.processes.Masked(V, COSINE)
    x = torch.randint(V, (9, 16))
    z = picture.sample(x, TIMES)
    z[:, 0] = V  # at least one mask
    logits = network(z, TIMES)
    loss = dd.training_loss(
        picture, logits, x, z, TIMES, dd.weightings.Constant(), reduction="none"
    )
    cross_entropy = F.cross_entropy(logits.mT, x, reduction="none")
    for row in range(9):
        hidden = z[row] == V
        mean = loss[row].sum() / hidden.sum()
        torch.testing.assert_close(mean, cross_entropy[row, hidden].mean())


def test_losses_of_dplm():
    x = torch.randint(V, (9, 16))
    count = torch.arange(20, 500, 50)[:9]
    t = count.double() / 500
    z = masks().sample(x, t)
    logits = network(z, t)
    cross_entropy = F.cross_entropy(logits.mT, x, reduction="none")
    for weighting, weight in (
        (shown()["Descending"](), 1 - (count - 1) / 500),
        (dd.weightings.Constant(), torch.ones(9)),
    ):
        loss = dd.training_loss(masks(), logits, x, z, t, weighting, reduction="none")
        theirs = (weight[:, None] * cross_entropy)[z == V].mean()
        torch.testing.assert_close(loss.sum() / (z == V).sum(), theirs)


NEAR = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]], dtype=F64)
STEPS = 4


@pytest.fixture(scope="module")
def band():
    """Noise of D3PM: a band of width 3."""
    rates = NEAR / NEAR.sum(1, keepdim=True) - torch.eye(4, dtype=F64)
    return dd.processes.RateMatrix(rates, dd.schedules.Linear())


def test_terms_of_d3pm(band):
    """Compare one term of T, all T terms, and the posterior of every step with matrix products."""
    scores = torch.randn(4, 4, dtype=F64)
    x = torch.randint(4, (20_000, 1))
    draw = dd.paces.Together().draw(20_000, 1, steps=STEPS)
    z = band.sample(x, draw.t)
    assert (draw.measure == STEPS).all()  # the weight of one term in the bound
    terms = band.step_divergence(scores[z], x, z, draw.t, draw.s)
    # beside the bound, 0.01 * T
    hybrid = terms.mean() + 0.01 * F.cross_entropy(scores[z].mT, x)
    assert hybrid > terms.mean()

    sums = []
    for t0, t1 in pairwise(torch.arange(STEPS + 1, dtype=F64) / STEPS):
        q1 = band.transition(0.0, t1)
        q0 = band.transition(0.0, t0)
        step = band.transition(t0, t1)
        true = step.T[:, None] * q0  # [z, x, y]: y of the step before, of every z and x
        true = true / true.sum(-1, keepdim=True)
        model = step.T * (scores.softmax(-1) @ q0)
        model = model / model.sum(-1, keepdim=True)
        states = torch.arange(4)[:, None]
        p = scores.softmax(-1)[:, None]
        ours = band.posterior(p, states, t1.expand(4), t0.expand(4))[:, 0]
        torch.testing.assert_close(model, ours)
        # of a uniform x
        sums.append((q1.T[..., None] * torch.xlogy(true, true / model[:, None])).sum() / 4)
    bound = dd.bound(band, lambda z, t: scores[z], x, steps=STEPS)
    for ours in (bound.diffusion, STEPS * terms):
        assert (ours.mean() - sum(sums)).abs() < 5 * ours.std() / len(ours) ** 0.5


def test_the_integrand_of_udlm():
    process = dd.processes.Uniform(V, dd.schedules.Linear())
    x = torch.randint(V, (9, 4))
    z = process.sample(x, TIMES)
    alpha = 1 - TIMES[:, None, None]
    p = network(z, TIMES).softmax(-1)
    # "x_bar", "x_bar_theta"
    a, b = (V * alpha * each + 1 - alpha for each in (F.one_hot(x, V), p))
    a_z, b_z = (each.gather(-1, z[..., None]) for each in (a, b))
    ratios = (a / a_z * (a / a_z * b_z / b).log()).sum(-1)
    theirs = (ratios - (V / a_z - V / b_z)[..., 0]) / (V * alpha[..., 0])
    torch.testing.assert_close(dd.nelbo(process, network(z, TIMES), x, z, TIMES), theirs)
    assert (dd.bound(process, network, x).reconstruction == 0).all()


def test_the_posterior_of_udlm():
    process = dd.processes.Uniform(V, dd.schedules.Linear())
    z = process.sample(torch.randint(V, (9, 4)), TIMES)
    p = network(z, TIMES).softmax(-1)
    s = TIMES / 2
    alpha = 1 - TIMES[:, None, None]
    alpha_s = (1 - s)[:, None, None]
    ratio = alpha / alpha_s
    own = F.one_hot(z, V)
    joint = (alpha * V * p + ratio - alpha) * own
    joint = joint + (alpha_s - alpha) * p + (1 - ratio) * (1 - alpha_s) / V
    evidence = alpha * V * p.gather(-1, z[..., None]) + 1 - alpha
    torch.testing.assert_close(process.posterior(p, z, TIMES, s), joint / evidence)


def test_leave_one_out_logits_and_routes_of_the_uniform_scheduler_of_diffusers():
    """Draw from alpha 0.25 to 0.5 by three routes: to a drawn token, nowhere, anywhere."""
    process = dd.processes.Uniform(V, dd.schedules.Linear())
    alpha = 0.25
    later = 0.5
    z = torch.tensor([[0, 3, 4]])
    logits = network(z, None)
    own = F.one_hot(z, V) * torch.log1p(torch.tensor(V * alpha / (1 - alpha)))
    t = torch.tensor([1 - alpha])
    cavity = dd.cavity_logits(process, logits, z, t, "posterior")
    torch.testing.assert_close(cavity.log_softmax(-1), (logits - own).log_softmax(-1))

    a = alpha / later
    token = torch.eye(V, dtype=F64)
    here = torch.eye(V, dtype=F64)[z][:, :, None]
    routes = (later * (1 - a) / V + a * later * here) * token
    routes = routes + a * (1 - later) / V * here + (1 - a) * (1 - later) / V / V
    theirs = (logits.softmax(-1)[..., None] * routes / routes.sum(-1, keepdim=True)).sum(-2)
    ours = process.posterior(cavity.softmax(-1), z, t, torch.tensor([1 - later]))
    torch.testing.assert_close(ours.to(theirs), theirs)


def test_the_exact_likelihood_of_a_continuation():
    tokens = torch.tensor([[1, 2, 0, 3, 3, 1], [1, 2, 0, 0, 2, 1]])
    prompt = (torch.arange(6) < 3).expand(2, 6)
    order = S.Confidence("probability")
    exact = dd.likelihood(masks(), network, tokens, order, given=prompt)
    assert exact.log_likelihood.shape == (2,) and (exact.log_likelihood < 0).all()
