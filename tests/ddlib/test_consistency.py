"""Consistency along the bridge (theory 19): a martingale, its gradient at the exact network, draws,
bad input.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.processes import F64

import ddlib as dd
from ddlib.contrib.consistency import DIVERGENCES
from ddlib.paces import Draw
from ddlib.processes import Hierarchical
from ddlib.processes import examples as of_every_kind
from ddlib.testing import strategies
from ddlib.verification.claims.objective.consistency import CLAIMS
from ddlib.verification.framework.cases import PAIR, over
from ddlib.verification.framework.reference import exact_cavity, exact_posterior, sequences

BLUR = Hierarchical(dd.hierarchies.Blur(4, [1.0]), dd.schedules.Cosine())
KINDS = {
    **of_every_kind.three(),
    "xi": of_every_kind.four()["tree"],
    **of_every_kind.special(),
    "blur": BLUR,
}
TIMES = {
    "far": (0.2, 0.7),
    "anchor": (0.0, 0.6),
    "near noise": (0.5, 0.9999),
    "at the data": (1e-6, 1e-4),
}


def paths(process, joint, s, t):
    """All (x, z_t, z_s) of two positions with their probability.

    s and t are (2,), one time for each position.
    """
    tokens = sequences(process.vocab_size, 2)
    grid = sequences(process.num_states, 2)
    rows = len(tokens)
    columns = len(grid)
    x = tokens.repeat_interleave(columns**2, 0)
    z_s = grid.repeat_interleave(columns, 0).repeat(rows, 1)
    z_t = grid.repeat(rows * columns, 1)
    early = process.likelihood(z_s, x, s.expand(len(x), -1))
    late = torch.stack([process.transition(s[i], t[i])[z_s[:, i], z_t[:, i]] for i in (0, 1)], -1)
    probs = joint.flatten().repeat_interleave(columns**2) * (early * late).prod(-1)
    kept = probs > 0
    return x[kept], z_t[kept], z_s[kept], probs[kept]


def slope(process, s, t, divergence="forward_kl", parameterization="cavity"):
    """Expected gradient by the logits of every z_t, at the exact network of two dependent
    tokens.
    """
    joint = over(PAIR, process.vocab_size)
    own = isinstance(t, tuple)
    s, t = (torch.tensor(time if own else (time, time), dtype=F64) for time in (s, t))
    x, z_t, z_s, probs = paths(process, joint, s, t)
    late, early = (time.expand(len(x), -1) if own else time[0].expand(len(x)) for time in (t, s))
    exact = {"cavity": exact_cavity, "posterior": exact_posterior}[parameterization](process, joint)
    states, which = z_t.unique(dim=0, return_inverse=True)
    logits = exact(states, late[: len(states)]).clamp_min(-1e4).requires_grad_()
    target = exact(z_s, early).clamp_min(-1e4)
    options = dict(divergence=divergence, parameterization=parameterization, reduction="none")
    loss = dd.contrib.consistency_loss(
        process, logits[which], target, x, z_t, late, z_s, early, **options
    )
    assert loss.min() > -1e-12 and loss.isfinite().all()
    (gradient,) = torch.autograd.grad((loss.sum(1) * probs).sum(), logits)
    return gradient / torch.zeros(len(states), dtype=F64).index_add_(0, which, probs)[:, None, None]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_network_has_no_gradient(kind, times):
    assert slope(KINDS[kind], *TIMES[times]).abs().max() < 1e-9


@pytest.mark.parametrize("kind", ["masked", "tree", "gidd"])
def test_the_slope_vanishes_for_posteriors_and_times_per_position(kind):
    process = KINDS[kind]
    assert slope(process, 0.2, 0.7, parameterization="posterior").abs().max() < 1e-9
    assert slope(process, (0.2, 0.5), (0.7, 0.5)).abs().max() < 1e-9
    assert slope(process, (0.0, 0.3), (0.2, 0.9)).abs().max() < 1e-9


@pytest.mark.parametrize("divergence", ["reverse_kl", "jensen_shannon"])
@pytest.mark.parametrize("kind", ["masked", "tree", "gidd"])
def test_other_divergences_move_the_exact_network(kind, divergence):
    assert slope(KINDS[kind], 0.2, 0.7, divergence).abs().max() > 1e-3


@settings(max_examples=examples(60), deadline=None)
@given(
    strategies.processes(strategies.all_schedules()),
    strategies.times,
    st.one_of(st.just(0.0), st.floats(0.0, 0.999), st.just(0.999)),
    st.integers(0, 5),
)
def test_the_claim_holds_for_any_process_schedule_and_times(process, t, share, probs):
    (comparison,) = CLAIMS[0].ask(process, {"s": t * share, "t": t, "distribution": probs})
    assert (comparison.got - comparison.expected).abs().max() < 1e-6


def test_a_teacher_at_the_wrong_time_has_a_gradient():
    process = KINDS["gidd"]

    class Late(type(process)):
        def token_likelihood(self, z, t):
            return super().token_likelihood(z, (t + 0.1).clamp_max(1.0))

    check = CLAIMS[0].check(Late(3, 0.3), full=False)
    assert (
        check.ok is False
        and "at the exact network the loss has the slope" in check.counterexample.message
    )


@pytest.mark.parametrize("kind", KINDS)
def test_bridge_draws_follow_the_joint_distribution(kind):
    process = KINDS[kind]
    n = 40_000
    x = torch.zeros(n, 1, dtype=torch.int64)
    t = torch.full((n,), 0.7, dtype=F64)
    s = torch.full((n,), 0.3, dtype=F64)
    z_t, z_s = dd.contrib.bridge(process, x, t, s, torch.Generator().manual_seed(0))
    got = torch.zeros(process.num_states, process.num_states, dtype=F64)
    got.index_put_((z_t[:, 0], z_s[:, 0]), torch.full((n,), 1 / n, dtype=F64), accumulate=True)
    states = torch.arange(process.num_states)[:, None]
    one = torch.ones(process.num_states, dtype=F64)
    size = process.num_states
    known = torch.nn.functional.one_hot(x[:size], process.vocab_size).to(F64)
    late = process.marginal(x[:1], t[:1])[0, 0]
    rows = late > 0
    posterior = process.posterior(
        known[rows.nonzero()[:, 0]], states[rows], 0.7 * one[rows], 0.3 * one[rows]
    )
    want = torch.zeros_like(got)
    want[rows] = late[rows, None] * posterior[:, 0]
    assert (got - want).abs().max() < 5 * (want.max() / n) ** 0.5 + 1e-4


def test_keyed_draws_do_not_depend_on_the_batch():
    process = KINDS["tree"]
    x = torch.randint(3, (6, 5))
    t = torch.linspace(0.3, 0.9, 6)
    s = torch.linspace(0.0, 0.5, 6)

    def keyed(rows):
        return dd.contrib.bridge(
            process, x[rows], t[rows], s[rows], dd.KeyedGenerator(1, 2, torch.arange(6)[rows])
        )

    whole = keyed(slice(0, 6))
    parts = [keyed(slice(i, i + 2)) for i in (0, 2, 4)]
    for at in (0, 1):
        assert torch.equal(whole[at], torch.cat([part[at] for part in parts]))
    own = [time[:, None].expand(-1, 5) for time in (t, s)]
    each = dd.contrib.bridge(process, x, *own, dd.KeyedGenerator(1, 2, torch.arange(6)))
    assert all(map(torch.equal, each, whole))


def case(process, rows=3, length=8):
    """x, z_t, t, z_s, s and logits of two networks."""
    torch.manual_seed(0)
    x = torch.randint(process.vocab_size, (rows, length))
    t = torch.linspace(0.5, 0.9, rows)
    s = torch.linspace(0.0, 0.3, rows)
    z_t, z_s = dd.contrib.bridge(process, x, t, s, torch.Generator().manual_seed(1))
    logits, target = torch.randn(2, rows, length, process.vocab_size).unbind(0)
    return logits.requires_grad_(), target.requires_grad_(), x, z_t, t, z_s, s


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_masks_measures_and_anchors(divergence):
    process = KINDS["masked"]
    logits, target, x, z_t, *_ = given_ = case(process)
    options = dict(divergence=divergence)
    each = dd.contrib.consistency_loss(process, *given_, reduction="none", **options)
    mask = torch.rand(x.shape) < 0.6
    mean = dd.contrib.consistency_loss(process, *given_, mask=mask, **options)
    assert torch.allclose(mean, each[mask].mean()) and each.shape == x.shape
    weighed = dd.contrib.consistency_loss(
        process,
        *given_[:4],
        Draw(given_[4], torch.tensor([0.0, 1.0, 2.0])),
        *given_[5:],
        reduction="none",
        **options,
    )
    assert torch.allclose(weighed, each * torch.tensor([0.0, 1.0, 2.0])[:, None])
    mean.backward()
    assert target.grad is None and logits.grad.isfinite().all() and (logits.grad[~mask] == 0).all()
    other = dd.contrib.consistency_loss(
        process, logits, torch.randn_like(target), *given_[2:], reduction="none", **options
    )
    assert torch.equal(other[0], each[0]) and not torch.equal(
        other[1:], each[1:]
    )  # s = 0 in the first row
    if divergence == "forward_kl":
        hidden = z_t[0] == 3
        cross_entropy = -logits[0].log_softmax(-1).gather(-1, x[0, :, None])[:, 0]
        assert torch.allclose(each[0], torch.where(hidden, cross_entropy, 0.0), atol=1e-6)


def test_child_logits_and_half_precision():
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]])
    process = Hierarchical(tree, dd.schedules.Linear())
    logits, target, *rest = case(process)
    children = torch.randn(3, 8, 6)
    teacher = torch.randn(3, 8, 6)
    as_words = [dd.token_logits(tree, each) for each in (children, teacher)]
    got = dd.contrib.consistency_loss(
        process, children, teacher, *rest, parameterization="children"
    )
    assert torch.allclose(got, dd.contrib.consistency_loss(process, *as_words, *rest), atol=1e-6)
    assert (
        dd.contrib.consistency_loss(process, logits.bfloat16(), target.bfloat16(), *rest).dtype
        == torch.float32
    )


def test_states_outside_the_mask_are_not_checked():
    """Padding may hold a state that its token cannot become, as in ``training_loss``."""
    process = KINDS["masked"]
    x = torch.zeros(1, 3, dtype=torch.int64)
    mask = torch.tensor([[True, True, False]])
    z_t = torch.tensor([[3, 3, 1]])
    z_s = torch.tensor([[0, 3, 1]])
    logits = torch.zeros(1, 3, 3, requires_grad=True)
    given_ = logits, logits, x, z_t, torch.tensor([0.8]), z_s, torch.tensor([0.4])
    dd.contrib.consistency_loss(process, *given_, mask=mask).backward()
    assert logits.grad.isfinite().all() and (logits.grad[~mask] == 0).all()
    with pytest.raises(ValueError, match=r"^z\[0, 2\] = 1 has probability 0"):
        dd.contrib.consistency_loss(process, *given_)


M = KINDS["masked"]
T5 = torch.tensor([0.5, 0.6])
S3 = torch.tensor([0.1, 0.6])
X = torch.zeros(2, 2, dtype=torch.int64)
Z = torch.full((2, 2), 3)
L = torch.zeros(2, 2, 3)
L4 = torch.zeros(2, 2, 4)
EARLY = torch.tensor([0.1, 0.2])
OWN = torch.tensor([[0.5, 0.6], [0.2, 0.3]])
test_bad_options_are_refused = refuses(
    """
    dd.contrib.bridge(M, X, T5, S3) | ValueError | ^s.1. = 0.6000.* must be below t.1. = 0.6000
    dd.contrib.bridge(M, X, OWN, OWN.flip(1)) | ValueError
        | ^s.0, 0. = 0.6000.* must be at most t.0, 0. = 0.5$
    dd.contrib.bridge(M, X, OWN, OWN * torch.tensor([[0.5], [1.0]])) | ValueError
        | ^s.1. equals t.1. at every position
    dd.contrib.bridge(M, X, OWN, EARLY) | ValueError | s has shape .2,., must be that of t, .2, 2.
    dd.contrib.bridge(M, X, T5, -EARLY) | ValueError | s holds -0.1.*must lie in .0, 1.
    dd.contrib.bridge(M, X + 3, T5, EARLY) | ValueError | x holds 3, must be tokens in .0, 3.
    dd.contrib.bridge(X, M, T5, EARLY) | TypeError | process is tensor
    dd.contrib.consistency_loss(M, L, L, X, Z, T5, Z, S3) | ValueError
        | ^s.1. = 0.6.* must be below t.1.
    dd.contrib.consistency_loss(M, L, L4, X, Z, T5, Z, EARLY) | ValueError
        | ^target_logits, of the teacher: logits has 4
      columns, the process has vocab_size 3
    dd.contrib.consistency_loss(M, L4, L, X, Z, T5, Z, EARLY) | ValueError | ^logits has 4 columns
    dd.contrib.consistency_loss(M, L, L.long(), X, Z, T5, Z, EARLY) | TypeError
        | ^target_logits, of the teacher: logits has
      type torch.int64
    dd.contrib.consistency_loss(M, L, L, X, Z, T5, Z + 1, EARLY) | ValueError | z holds 4
    dd.contrib.consistency_loss(M, L, L, X, X + 1, T5, Z, EARLY) | ValueError
        | z.0, 0. = 1 has probability 0 given
    dd.contrib.consistency_loss(M, L, L, X, Z, T5, Z, EARLY, divergence="forward") | ValueError
        | divergence is 'forward', must
      be one of 'forward_kl', 'reverse_kl', 'jensen_shannon'; did you mean 'forward_kl'
    dd.contrib.consistency_loss(M, L, L, X, Z, T5, Z, EARLY, reduction="sum") | ValueError
        | reduction is 'sum'
    dd.contrib.consistency_loss(M, L, L, X, Z, T5, Z, EARLY, mask=X) | TypeError | mask has dtype
    dd.contrib.consistency_loss(M, L, L, X, Z, T5, Z, EARLY, parameterization="p") | ValueError
        | parameterization is 'p'
    """
)
