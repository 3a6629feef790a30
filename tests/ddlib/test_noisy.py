"""A hierarchy whose tokens can be wrong: its limits, its bound, what it draws."""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import generate, row_by_row, seeded
from zoo.joints import PAIR
from zoo.networks import Halves, plain
from zoo.processes import F64

import ddlib as dd
from ddlib.contrib import Overshoot, Psi, ThetaTrapezoidal
from ddlib.processes.resampling_chain import ratio_of
from ddlib.samplers import Ancestral, Corrected, Euler, Gibbs, SelfCorrection
from ddlib.testing import strategies as drawn
from ddlib.testing.oracle import exact_cavity

Noisy = dd.processes.Noisy
Hierarchical = dd.processes.Hierarchical
Tree = dd.hierarchies.Tree
Flat = dd.hierarchies.Flat
Linear = dd.schedules.Linear

shares = st.one_of(st.just(0.0), st.floats(0.001, 0.9))
interior_times = st.one_of(st.floats(1e-3, 1 - 1e-3), st.sampled_from([1e-6, 0.5, 1 - 1e-6]))


@st.composite
def noisy(draw, none=False):
    tree = draw(drawn.hierarchies(max_depth=4, max_words=6))
    frequency = draw(
        st.none()
        | st.lists(st.floats(0.1, 5.0), min_size=tree.vocab_size, max_size=tree.vocab_size)
    )
    share = 0.0 if none else [draw(shares) for _ in range(tree.depth)]
    return Noisy(tree, draw(drawn.exact_schedules()), share, frequency)


def everything(process, t):
    """Every token with every state: x and z (V S, 1), times (V S,)."""
    x = torch.arange(process.vocab_size).repeat_interleave(process.num_states)[:, None]
    z = torch.arange(process.num_states).repeat(process.vocab_size)[:, None]
    return x, z, torch.full((len(x),), t, dtype=F64)


def near(ours, theirs, tolerance=1e-12):
    scale = 1 + theirs.abs().max()
    assert float((ours - theirs).abs().max()) <= tolerance * scale


def generator_of(process):
    """Rates per unit of hazard, entry by entry, as in theory section 13."""
    tree = process.hierarchy
    size = process.num_states
    probs = process.typical[: process.vocab_size]
    matrix = torch.zeros(size, size, dtype=F64)
    for i, edge in enumerate(tree.maps):
        matrix[tree.states(i), tree.states(i + 1)] = tree.speeds[i] * edge.matrix()
        matrix[tree.states(i), tree.states(i)] = tree.speeds[i] * process.ratios[i] * probs
        probs = probs @ edge.matrix()
    matrix.fill_diagonal_(0)
    return matrix - torch.diag(matrix.sum(1))


@settings(max_examples=examples(40), deadline=None)
@given(noisy(none=True), interior_times, drawn.token_logits(1, 1, 6))
def test_without_redraws_it_is_the_hierarchy(process, t, logits):
    plain = Hierarchical(process.hierarchy, process.schedule)
    x, z, times = everything(process, t)
    logits = logits[..., : process.vocab_size].expand(len(x), -1, -1)
    p = logits.softmax(-1)
    s = times / 2
    near(process.rate_matrix(t), plain.rate_matrix(t))
    near(process.transition(t / 2, t), plain.transition(t / 2, t))
    near(process.marginal(x, times), plain.marginal(x, times))
    near(process.predictive(p, times), plain.predictive(p, times))
    near(process.likelihood(z, x, times), plain.likelihood(z, x, times))
    near(process.token_likelihood(z, times), plain.token_likelihood(z, times))
    near(process.posterior(p, z, times, s), plain.posterior(p, z, times, s))
    near(
        process.reverse_rate(p, z, times).nan_to_num(0),
        plain.reverse_rate(p, z, times).nan_to_num(0),
    )
    near(process.prior_kl(x, times), plain.prior_kl(x, times))
    near(process.prior(), plain.prior())
    assert torch.equal(process.reachable_from_all_tokens(z), plain.reachable_from_all_tokens(z))
    way = plain.likelihood(z, x, times) > 0
    x = x[way[:, 0]]
    z = z[way[:, 0]]
    times = times[way[:, 0]]
    logits = logits[way[:, 0]]
    near(process.loss_weight(x, z, times), plain.loss_weight(x, z, times))
    for parameterization in ("cavity", "posterior"):
        ours, theirs = (
            dd.nelbo(of, logits, x, z, times, parameterization=parameterization)
            for of in (process, plain)
        )
        near(ours, theirs)


@settings(max_examples=examples(40), deadline=None)
@given(noisy(), interior_times)
def test_it_is_the_dense_exponential(process, t):
    dense = dd.processes.RateMatrix(generator_of(process), process.schedule, process.vocab_size)
    x, z, times = everything(process, t)
    near(process.rate_matrix(t), dense.rate_matrix(t))
    near(process.transition(t / 3, t), dense.transition(t / 3, t), 1e-11)
    near(process.marginal(x, times), dense.marginal(x, times), 1e-11)
    near(process.likelihood(z, x, times), dense.likelihood(z, x, times), 1e-11)


@settings(max_examples=examples(60), deadline=None)
@given(noisy(), drawn.times, drawn.token_logits(1, 1, 6, scale=8.0))
def test_the_closed_bound_is_the_generic_one(process, t, logits):
    x, z, times = everything(process, t)
    way = process.likelihood(z, x, times)[:, 0] > 0
    x = x[way]
    z = z[way]
    times = times[way]
    logits = logits[..., : process.vocab_size].expand(len(x), -1, -1)
    for parameterization in ("cavity", "posterior"):
        closed, generic = (
            dd.nelbo(process, logits, x, z, times, method=method, parameterization=parameterization)
            for method in ("auto", "generic")
        )
        weight = process.loss_weight(x, z, times)
        error = (closed - generic).abs() / (1e-9 * generic + 1e-12 * (1 + weight))
        assert float(error.max()) < 1, (float(error.max()), closed, generic)


@settings(max_examples=examples(40), deadline=None)
@given(noisy(), interior_times, drawn.token_logits(1, 1, 6))
def test_the_exit_rate_is_the_sum_of_the_reverse_rates(process, t, logits):
    x, z, times = everything(process, t)
    way = process.likelihood(z, x, times)[:, 0] > 0
    z = z[way]
    times = times[way]
    logits = logits[..., : process.vocab_size].expand(len(z), -1, -1)
    for sharpen in (dd.processes.identity, lambda probs: 2 * probs):
        ours = process.exit_rate(z, times, logits, sharpen)
        dense = dd.processes.ForwardProcess.exit_rate(process, z, times, logits, sharpen)
        assert bool(((ours - dense).abs() <= 1e-9 * (1 + dense)).all())


@pytest.mark.parametrize("name", ["far from what is there", "high levels near the data"])
def test_half_the_digits_are_enough(name):
    """Values beyond float32 give neither NaN nor 0, nor do gradients."""
    deep = Tree([[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1]])
    if name == "high levels near the data":
        process = Noisy(deep, Linear(), [0.2, 0.1, 0.1])
        t = torch.tensor([1e-15], dtype=F64)
        logits = torch.randn(1, 15, 8, generator=seeded())
        z = torch.arange(15)[None]
    else:
        process = Noisy(deep, Linear(), 0.0)
        t = torch.tensor([0.5], dtype=F64)
        logits = torch.tensor([[[-200.0, -201.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]])
        z = torch.tensor([[8]])
    x = torch.zeros_like(z)
    possible = process.likelihood(z, x, t) > 0
    z = z[possible][None]
    x = x[possible][None]
    logits = logits[possible][None].requires_grad_()
    weight, divergence = process.weighted_divergence(logits, x, z, t)
    precise = process.weighted_divergence(logits.detach().double(), x, z, t)[1]
    error = (divergence.detach() - precise).abs() / (1e-4 * precise.abs() + 1e-30)
    assert float(error.max()) < 1
    assert bool(torch.autograd.grad(divergence.sum(), logits)[0].isfinite().all()) and bool(
        weight.isfinite().all()
    )


def test_no_clusters_are_masks_and_uniform_noise_at_a_fixed_ratio():
    process = Noisy(Flat(4), Linear(), 0.3)
    (ratio,) = process.ratios
    rates = torch.full((5, 5), ratio / 4, dtype=F64)
    rates[:, 4] = 1.0
    rates[4] = 0.0
    rates = rates.fill_diagonal_(0)
    dense = dd.processes.RateMatrix(rates - torch.diag(rates.sum(1)), Linear(), 4)
    for t in (1e-6, 0.3, 0.999):
        near(process.transition(0.0, t), dense.transition(0.0, t))


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("speed", [0.5, 3.0])
def test_p_uniform_is_the_largest_share_of_redrawn_tokens(share, speed):
    process = Noisy(
        Tree([[0, 0, 1, 1]], speed=[speed, 1.0]), dd.schedules.Geometric(1e-9, 200.0), share
    )
    # the hazard at which the share is largest: its derivative is 0
    ratio = process.ratios[0]
    top = torch.log1p(torch.tensor(ratio)).double() / ratio / speed
    hazard = top * torch.tensor([0.7, 0.9, 1.0, 1.1, 1.4], dtype=F64)
    redrawn = process.chain.occupancies(hazard).redrawn[:, 0]
    assert float(redrawn[2]) == pytest.approx(share, rel=1e-6)
    assert bool((redrawn[[0, 1, 3, 4]] < redrawn[2]).all())


def test_the_ratio_grows_from_none_to_infinity():
    assert ratio_of(0.0) == 0.0
    found = [ratio_of(share) for share in (1e-12, 0.1, 0.5, 0.9, 1 - 1e-6)]
    assert found == sorted(found) and found[0] == pytest.approx(2.718281828e-12, rel=1e-6)


def test_frequent_tokens_are_redrawn_often_and_absent_ones_never():
    process = Noisy(Tree([[0, 0, 1, 1]]), Linear(), 0.4, frequency=[6, 3, 1, 0])
    probs = process.marginal(torch.tensor([[0]]), torch.tensor([0.5], dtype=F64))[0, 0]
    assert float(probs[1] / probs[2]) == pytest.approx(3.0)
    assert float(probs[3]) == 0.0
    assert (
        process.reachable_from_all_tokens(torch.arange(7)[None])[0].tolist()
        == [True] * 3 + [False] + [True] * 3
    )
    t = torch.full((4,), 0.5, dtype=F64)
    x = torch.tensor([[0, 1, 2, 3]] * 4)
    logits = torch.zeros(4, 4, 4, dtype=F64)
    z = torch.tensor([[0, 1, 2, 3], [1, 0, 1, 1], [4, 5, 4, 5], [6, 6, 6, 6]])
    ours, generic = (
        dd.nelbo(process, logits, x, z, t, method=method) for method in ("auto", "generic")
    )
    near(ours, generic, 1e-10)


@pytest.mark.parametrize("at", [0.6, 1.0])
@pytest.mark.statistical
def test_states_given_the_level_follow_the_posterior(at):
    tree = Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]], xi=[0.8, 0.7], speed=[1.0, 0.8, 1.5])
    process = Noisy(tree, Linear(), [0.3, 0.2, 0.1], [3, 1, 1, 2, 4, 1])
    draws = 20_000
    noise = seeded(5)
    logits = torch.randn(1, 12, 6, generator=noise, dtype=F64)
    z = torch.arange(12)[None] if at < 1 else torch.full((1, 12), 11)
    t = torch.tensor([at], dtype=F64)
    s = torch.tensor([0.35], dtype=F64)
    probs = process.posterior(logits.softmax(-1), z, t, s)[0]
    many = [one.expand(draws, *one.shape[1:]) for one in (logits, z, t[:, None], s[:, None])]
    landed = process.sample_given_level(many[0], many[1], many[2][:, 0], many[3][:, 0], None, noise)
    seen = torch.stack([torch.bincount(landed[:, i], minlength=12) for i in range(12)]) / draws
    assert float((seen - probs).abs().max()) < 5 * (0.25 / draws) ** 0.5


def test_a_forced_landing_stays_inside_the_cluster():
    process = Noisy(Tree([[0, 0, 1, 1]], xi=0.6), Linear(), [0.0, 0.0])
    z = torch.full((500, 1), 4)
    logits = torch.zeros(500, 1, 4)
    t = torch.full((500,), 0.5, dtype=F64)
    landed = process.sample_given_level(logits, z, t, t * 0, None, seeded(), force=True)
    assert set(landed.flatten().tolist()) == {0, 1}


def test_the_network_decides_forced_descents_from_several_masks():
    process = Noisy(Tree([[0, 0, 1, 1]], xi=0.9, masks=3), Linear(), 0.1)
    logits = torch.tensor([0.0, 90.0, 0.0, 0.0]).expand(30, 4, 4)
    z = torch.randint(6, 9, (30, 4))
    t = torch.ones(30)
    landed = process.sample_given_level(logits, z, t, t * 0, None, seeded(), force=True)
    assert set(landed.flatten().tolist()) == {1}


@pytest.mark.parametrize(
    "hierarchy", [Flat(4, masks=3), Tree([[0, 0, 1, 1]], xi=0.9, masks=2)], ids=str
)
def test_several_masks_have_the_reverse_rates_and_the_bound_of_the_chain(hierarchy):
    process = Noisy(hierarchy, Linear(), 0.2)
    x, z, t = everything(process, 0.4)
    logits = torch.randn(len(x), 1, 4, generator=seeded(), dtype=F64)
    p = logits.softmax(-1)
    near(process.reverse_rate(p, z, t), dd.processes.ForwardProcess.reverse_rate(process, p, z, t))
    near(dd.nelbo(process, logits, x, z, t), dd.nelbo(process, logits, x, z, t, method="generic"))


@pytest.mark.statistical
def test_steps_from_several_masks_follow_the_posterior():
    process = Noisy(Flat(3, masks=3), Linear(), 0.5)
    draws = 20_000
    logits = torch.tensor([2.0, 0.0, -1.0], dtype=F64).expand(1, draws, 3)
    z = torch.full((1, draws), 4)
    t = torch.tensor([0.7], dtype=F64)
    s = torch.tensor([0.4], dtype=F64)
    landed = process.sample_given_level(logits, z, t, s, None, seeded())
    seen = torch.bincount(landed[0], minlength=6) / draws
    probs = process.posterior(logits[:, :1].softmax(-1), z[:, :1], t, s)[0, 0]
    assert float((seen - probs).abs().max()) < 5 * (0.25 / draws) ** 0.5


def test_states_that_a_token_never_has_cost_what_they_do_without_redraws():
    soft = dd.hierarchies.Soft([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]])
    noise = seeded()
    x = torch.zeros(1, 3, dtype=torch.int64)
    z = torch.tensor([[0, 3, 5]])
    t = torch.tensor([0.5])
    logits = torch.randn(1, 3, 3, generator=noise, dtype=F64, requires_grad=True)
    bounds = [
        dd.nelbo(each, logits, x, z, t)
        for each in (Noisy(soft, Linear(), 0.0), Hierarchical(soft, Linear()))
    ]
    near(*(each.detach() for each in bounds))
    near(*(torch.autograd.grad(each.sum(), logits)[0] for each in bounds))


@pytest.mark.parametrize("parameterization", ["cavity", "posterior"])
@pytest.mark.parametrize("mean", [True, False])
def test_the_fused_loss_is_the_loss(parameterization, mean):
    process = Noisy.examples()[3]
    noise = seeded(1)
    x = torch.randint(6, (3, 5), generator=noise)
    t = torch.tensor([0.2, 0.5, 0.9])
    z = process.sample(x, t, noise)
    hidden = torch.randn(3, 5, 4, generator=noise, requires_grad=True)
    weight = torch.randn(6, 4, generator=noise, requires_grad=True)
    reduction = "mean" if mean else "none"
    options = {"parameterization": parameterization, "reduction": reduction}
    fused = dd.training_loss(process, dd.Hidden(hidden, weight), x, z, t, **options)
    whole = dd.training_loss(process, hidden @ weight.t(), x, z, t, **options)
    torch.testing.assert_close(fused, whole)
    ours, theirs = (torch.autograd.grad(one.sum(), (hidden, weight)) for one in (fused, whole))
    torch.testing.assert_close(ours, theirs)


CORRECTED = [
    Corrected(Ancestral(), SelfCorrection(steps=4)),
    Corrected(Psi(0.9), Gibbs(), 2, (0.0, 0.6)),
]


@pytest.mark.parametrize("sampler", [CORRECTED[0], CORRECTED[1]], ids=repr)
@pytest.mark.parametrize("example", [0, *(i for i in (1, 2, 3))])
def test_correctors_serve_the_words_of_a_tree(sampler, example):
    process = Noisy.examples()[example]
    if example == 1:
        with pytest.raises(TypeError, match="never wrong"):
            sampler.corrector.check(Hierarchical(process.hierarchy, process.schedule))
    report = dd.verify(sampler, on=process)
    assert report.ok, report


@pytest.mark.statistical
def test_gibbs_steps_mend_tokens_of_a_tree_in_place():
    process = Noisy(Tree([[0, 1, 1]]), Linear(), 0.3)
    errors = []
    for sampler in (Ancestral(), Corrected(Ancestral(), Gibbs(), 4)):
        x = dd.sample(
            process, exact_cavity(process, PAIR), (10_000, 2), sampler, 4, generator=seeded()
        )
        share = torch.bincount(3 * x[:, 0] + x[:, 1], minlength=9) / len(x)
        errors.append(float((share - PAIR.flatten()).abs().sum()))
    assert errors[1] < 0.85 * errors[0]


SAMPLERS = [
    Ancestral(),
    Ancestral(True),
    Psi(0.5),
    Overshoot(0.5),
    Euler(),
    ThetaTrapezoidal(),
    *CORRECTED,
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_batch_and_the_output_layer_change_nothing(sampler):
    tree = Tree([[0, 0, 1, 1, 2, 3], [0, 1, 1, 0]], xi=[0.8, 1.0])
    process = Noisy(tree, Linear(), [0.3, 0.1, 0.0], [3, 1, 1, 2, 4, 1])
    halves = Halves(process)
    tokens = generate(process, halves, sampler)
    assert int(tokens.max()) < process.vocab_size
    assert torch.equal(generate(process, plain(halves), sampler), tokens)
    assert torch.equal(row_by_row(process, halves, sampler), tokens)


def test_the_preset_is_the_process_by_the_counts_of_a_run():
    process = dd.presets.hdlm_noisy([[0, 0, 1, 1]], 0.2, counts=[4, 3, 2, 1], speed=[2.0, 1.0])
    assert repr(process) == repr(
        Noisy(Tree([[0, 0, 1, 1]], speed=[2.0, 1.0]), Linear(), 0.2, [4, 3, 2, 1])
    )
    assert dd.presets.hdlm_noisy([[0, 0, 1, 1]], [0.2, 0.1]).frequency is None


def test_a_large_one_is_proved_on_a_small_one():
    tokens = torch.arange(3000)
    tree = Tree([tokens % 300, torch.arange(300) % 20], xi=[0.9, 1.0])
    assert dd.verify(Noisy(tree, Linear(), [0.2, 0.1, 0.0], frequency=tokens)).ok


def test_frequencies_in_a_list_are_those_in_a_tensor():
    """A list of floats is not rounded to float32."""
    shares = torch.rand(6, generator=seeded(), dtype=F64)
    tree = Tree([[0, 0, 1, 1, 2, 2]])
    listed, given = (
        Noisy(tree, Linear(), [0.3, 0.1], frequency=one) for one in (shares.tolist(), shares)
    )
    assert torch.equal(listed.frequency, given.frequency)


def test_it_reduces_to_a_small_one_of_its_kind():
    tokens = torch.arange(1000) % 40
    process = Noisy(Tree([tokens]), Linear(), [0.2, 0.1], frequency=torch.arange(1000))
    small = process.small_copy(24)
    assert small.vocab_size <= 24 and small.p_uniform == process.p_uniform
    assert small.frequency is not None and bool((small.typical > 0).sum() >= small.num_states - 1)
    assert process.time_density(128).density(torch.tensor([0.5]).double()).isfinite().all()


def noisy_tree(**change):
    good = {"hierarchy": Tree([[0, 0, 1, 1]]), "schedule": Linear(), "p_uniform": 0.1}
    return Noisy(**(good | change))


test_bad_arguments_are_named = refuses(r"""
    noisy_tree(p_uniform=1.0) | ValueError | p_uniform is 1.0, must be in \[0, 1\)
    noisy_tree(p_uniform=-0.1) | ValueError | p_uniform is -0.1
    noisy_tree(p_uniform=float("nan")) | ValueError | p_uniform is nan
    noisy_tree(p_uniform=True) | TypeError | p_uniform is True
    noisy_tree(p_uniform="much") | TypeError | p_uniform is 'much'
    noisy_tree(p_uniform=[0.1]) | ValueError
        | p_uniform has 1 entries, must be one number, for tokens, or have 2
    noisy_tree(p_uniform=[0.1, 1.5]) | ValueError | p_uniform\[1\] is 1.5
    noisy_tree(frequency=[1, 2]) | ValueError | frequency has shape
    noisy_tree(frequency=[1, 2, -3, 4]) | ValueError | frequency holds -3
    noisy_tree(frequency=[0, 0, 0, 0]) | ValueError | frequency is 0 everywhere
    noisy_tree(frequency=[1, 2, float("inf"), 4]) | ValueError | frequency holds NaN or infinity
    noisy_tree(frequency="often") | TypeError | frequency is 'often'
    noisy_tree(hierarchy=[0, 0, 1, 1]) | TypeError | hierarchy is
    noisy_tree(schedule="linear") | TypeError | schedule is
    Noisy(Flat(4), Linear(), 0.9999999) | ValueError
        | p_uniform is 0.9999999, must be in \[0, 1\), at most 1 - 1e-6
    GIDD(4, 0.9999999) | ValueError | p_uniform is 0.9999999, must be in \[0, 1\), at most 1 - 1e-6
""")


def test_shares_may_be_tensors():
    assert Noisy(Flat(4), Linear(), torch.tensor(0.25)).p_uniform == (0.25,)
    assert Noisy(Flat(4), Linear(), torch.tensor([0.25])).p_uniform == (0.25,)


@pytest.mark.parametrize(
    "pace", [dd.paces.Blocks(1), dd.paces.RandomOrder(), dd.paces.Ramp(1.0)], ids=str
)
@pytest.mark.parametrize("process", Noisy.examples(), ids=range(4))
def test_a_bound_in_steps_along_a_pace_is_their_sum(process, pace):
    """For a network that looks at a position alone: the sum over its own steps, by enumeration of
    its states.
    """
    steps = 3
    tokens = process.vocab_size
    states = process.num_states
    table = torch.randn(states, tokens, dtype=F64, generator=seeded())
    text = torch.tensor([0, tokens - 1])

    def looks(z, t):
        return table[z]

    looks.own_times = True
    parts = steps * pace.parts(2)
    u = torch.arange(parts + 1, dtype=F64) / parts
    path = pace.times(u, torch.tensor([[0.3, 0.8]], dtype=F64).expand(parts + 1, -1))
    want = 0.0
    z = torch.arange(states)[:, None]
    for position, x in enumerate(text):
        for s, t in zip(path[:-1, position], path[1:, position], strict=True):
            if s < t:
                x_of = x.expand(states, 1)
                s_of = s.expand(states)
                t_of = t.expand(states)
                cost = process.step_divergence(table[z], x_of, z, t_of, s_of)
                chance = process.marginal(x_of[:1], t_of[:1])[0, 0]
                want += float(torch.where(chance > 0, chance * cost[:, 0], 0.0).sum())
    noise = seeded(1)
    found = dd.bound(
        process, looks, text.expand(6000, 2), noise, pace=pace, steps=steps
    ).diffusion.sum(1)
    error = float(found.std()) / len(found) ** 0.5
    assert float(found.mean()) == pytest.approx(want, abs=4 * error) and error < 0.1 * want
