"""The bound: closed form = generic, the papers' theorems, bound = entropy."""

import math

import pytest
import torch
from cases import examples, slow_but
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity, exact_posterior, integrate_bound, tanh_sinh

PARENTS = [0, 0, 1, 1, 2, 3]
ABOVE = [0, 1, 1, 0]
LAW = torch.tensor([0.30, 0.10, 0.25, 0.05, 0.20, 0.10], dtype=torch.float64)
ENTROPY = -(LAW * LAW.log()).sum()

pytestmark = pytest.mark.usefixtures("checked_in_full")

FIXED = {
    "masked": dd.presets.mdlm(6),
    "gidd": dd.presets.gidd(6, 0.2),
    "gidd-2": dd.processes.GIDD(6, 0.5, gamma=2.0),
    "uniform": dd.processes.Uniform(6, dd.schedules.Cosine()),
    "hdlm": dd.presets.hdlm(PARENTS),
    "hdlm-3": dd.presets.hdlm(PARENTS, gamma=3.0),
    "hdlm-xi": dd.presets.hdlm(PARENTS, gamma=2.0, xi=0.8),
    "levels": dd.presets.hdlm_levels([PARENTS, ABOVE], speed=[1.0, 2.0, 0.7]),
    "levels-xi": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.8, 0.6]),
    "levels-xi-1": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.8, 1.0]),
    "levels-1-xi": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[1.0, 0.8]),
}


def unreached(process):
    """Mass still on its way at the last time that float64 and the quadrature can tell from 1.

    With speed and power 1/2 the last flux decays like (1 - t)^(1/4): 3e-4 of it lies within 1e-15 of the end.
    """
    last = tanh_sinh()[0][-1:]
    return float(1 - process.occupancies(last)[0, -1]) if isinstance(process, dd.processes.Hierarchical) else 0.0


def every_pair(process, t):
    """All (x, z) that can occur at ``t``, as (N, 1) tensors, and the time of each."""
    x = torch.arange(process.vocab_size).repeat_interleave(process.num_states)[:, None]
    z = torch.arange(process.num_states).repeat(process.vocab_size)[:, None]
    t = torch.full((len(x),), t, dtype=torch.float64)
    possible = (process.likelihood(z, x, t) > 0)[:, 0]
    return x[possible], z[possible], t[possible]


@settings(max_examples=examples(150))
@given(strategies.processes(strategies.all_schedules()), strategies.times, st.data())
def test_closed_form_is_the_generic_bound_for_every_word_and_state(process, t, data):
    x, z, t = every_pair(process, t)
    logits = data.draw(strategies.token_logits(process.vocab_size)).expand(len(x), 1, -1)
    for parameterization in ("cavity", "posterior"):
        closed = dd.nelbo(process, logits, x, z, t, "auto", parameterization)
        generic = dd.nelbo(process, logits, x, z, t, "generic", parameterization)
        assert (closed >= 0).all() and (generic >= 0).all()
        # the generic sum cancels terms as large as the reverse rates
        p = dd.cavity_logits(process, logits, z, t, parameterization).softmax(-1)
        scale = 1 + process.reverse_rate(p, z, t).sum(-1)
        words = torch.nn.functional.one_hot(x, process.vocab_size).double()
        scale = scale + process.reverse_rate(words, z, t).sum(-1)
        assert ((closed - generic).abs() <= 1e-10 * scale + 1e-8 * closed).all()


@settings(max_examples=examples(50))
@given(strategies.processes(), strategies.times, st.data())
def test_posterior_parameterization_is_theory_section_2(process, t, data):
    """b_y = sum_x p(x) q(y|x) / q(z|x), summed directly, where every word can lead to z."""
    x, z, t = every_pair(process, t)
    p = data.draw(strategies.token_logits(process.vocab_size)).softmax(-1)
    words = torch.arange(process.vocab_size)[None].expand(len(x), -1)
    law = process.marginal(words, t)
    evidence = law.gather(-1, z[:, :, None].expand(-1, process.vocab_size, 1))
    full = (evidence > 1e-6).all(1)[:, 0]
    assume(full.any())
    b = (p[None, :, None] * law[full] / evidence[full]).sum(1)
    a = law[full].gather(1, x[full][..., None].expand(-1, 1, process.num_states))[:, 0]
    a = a / a.gather(1, z[full])
    q = torch.stack([process.rate_matrix(float(u))[:, int(s)] for u, s in zip(t[full], z[full][:, 0], strict=True)])
    terms = torch.xlogy(a, torch.where(a > 0, a / b, 1.0)) - a + b
    direct = torch.where(q > 0, q, 0.0).scatter(1, z[full], 0.0) * terms
    ours = dd.nelbo(process, p.log().expand(int(full.sum()), 1, -1), x[full], z[full], t[full], "auto", "posterior")
    assert torch.allclose(ours[:, 0], direct.sum(1), rtol=1e-6, atol=1e-7 * float(1 + (q * a).abs().max()))


@pytest.mark.parametrize("parameterization", slow_but(["cavity", "posterior"], "cavity"))
@pytest.mark.parametrize("name", slow_but(FIXED, "masked", "gidd", "hdlm-xi", "levels-xi"))
def test_bound_with_the_optimal_law_is_the_entropy_of_a_word(name, parameterization):
    process = FIXED[name]
    oracle = {"cavity": exact_cavity, "posterior": exact_posterior}[parameterization](process, LAW)
    value = integrate_bound(process, LAW, oracle, parameterization=parameterization)
    assert value == pytest.approx(float(ENTROPY), abs=2e-6)


@pytest.mark.parametrize("name", slow_but(["masked", "gidd", "uniform", "hdlm-xi", "levels-xi"], "gidd"))
def test_bound_with_the_optimal_law_is_the_entropy_of_a_text(name):
    """Two dependent tokens: the exact cavity makes the continuous-time bound tight for the joint law."""
    process = {
        "masked": dd.presets.mdlm(3),
        "gidd": dd.presets.gidd(3, 0.3),
        "uniform": dd.processes.Uniform(3, dd.schedules.Linear()),
        "hdlm-xi": dd.presets.hdlm([0, 0, 1], gamma=2.0, xi=0.7),
        "levels-xi": dd.presets.hdlm_levels([[0, 1, 1, 2], [0, 0, 1]], xi=[0.8, 0.9]),
    }[name]
    size = process.vocab_size
    law = torch.rand(size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 3
    law = law / law.sum()
    entropy = -(law * law.log()).sum()
    for parameterization, oracle in (("cavity", exact_cavity), ("posterior", exact_posterior)):
        value = integrate_bound(process, law, oracle(process, law), parameterization=parameterization)
        assert value == pytest.approx(float(entropy), abs=5e-6)


@pytest.mark.slow
def test_plugging_the_posterior_in_as_a_cavity_is_looser():
    """Theory section 2's numbers: 6 words, 4 clusters, 2 super-clusters, xi = .8."""
    process = dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.8, 0.8])
    wrong = integrate_bound(process, LAW, exact_posterior(process, LAW), parameterization="cavity")
    right = integrate_bound(process, LAW, exact_posterior(process, LAW), parameterization="posterior")
    assert right == pytest.approx(float(ENTROPY), abs=2e-6)
    assert wrong > right + 0.05


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(strategies.processes(max_depth=4, max_words=5), st.data())
def test_a_denoiser_that_ignores_the_text_gets_its_own_cross_entropy(process, data):
    """With p independent of z and t the bound of x is exactly -log p(x), whatever the process and schedule."""
    # GIDD's integrand grows like t^(gamma/2 - 1) at the data; the quadrature begins at 1e-15, which is not close
    # enough for small gamma: at 0.5 the missing piece is 1e-3
    assume(not isinstance(process, dd.processes.GIDD) or process.gamma >= 0.8)
    assume(unreached(process) < 1e-6)
    logits = data.draw(strategies.token_logits(process.vocab_size))
    word = data.draw(st.integers(0, process.vocab_size - 1))
    law = torch.nn.functional.one_hot(torch.tensor(word), process.vocab_size).double()

    def denoiser(z, t):
        return logits.expand(*z.shape, -1)

    value = integrate_bound(process, law, denoiser, points=200)
    end = process.prior_kl(torch.tensor([[word]]))  # a chain that has not quite forgotten the word by t = 1
    assume(float(end) < 1e-9)
    assert value == pytest.approx(float(-logits.log_softmax(-1)[word]), rel=1e-4, abs=1e-4)


@settings(max_examples=examples(30))
@given(strategies.hierarchies(), strategies.exact_schedules())
def test_weights_integrate_to_one_on_every_level(hierarchy, schedule):
    process = dd.processes.Hierarchical(hierarchy, schedule)
    assume(unreached(process) < 1e-6)
    nodes, weights = tanh_sinh(240)
    mass = (weights[:, None] * process.occupancies(nodes) * process.weights(nodes)).sum(0)
    assert torch.allclose(mass[1:], torch.ones_like(mass[1:]), atol=2e-5)
    assert mass[0] == 0


@settings(max_examples=examples(40))
@given(strategies.times, st.data())
def test_mdlm_theorem(t, data):
    """-alpha'/(1-alpha) CE at masks, 0 elsewhere."""
    schedule = data.draw(strategies.exact_schedules())
    process = dd.processes.Masked(6, schedule)
    x, z, times = every_pair(process, t)
    logits = data.draw(strategies.token_logits(6))
    cross_entropy = -logits.log_softmax(-1)[x]
    weight = schedule.rate(times) / torch.expm1(schedule.hazard(times))
    expected = torch.where(z == 6, weight[:, None] * cross_entropy, 0.0)
    assert torch.allclose(dd.nelbo(process, logits.expand(len(x), 1, -1), x, z, times), expected, rtol=1e-9)


@settings(max_examples=examples(40))
@given(st.floats(0.5, 4.0), st.floats(1e-3, 0.999), st.floats(0.1, 1.0), st.data())
def test_hdlm_theorems(gamma, t, xi, data):
    """Theorems elbo and elbo_perturbation with the paper's weights, w_m corrected (theory section 6)."""
    assume(abs(gamma - 1) > 1e-3)
    process = dd.presets.hdlm(PARENTS, gamma=gamma, xi=xi)
    x, z, times = every_pair(process, t)
    logits = data.draw(strategies.token_logits(6))
    p, c = logits.softmax(-1), torch.tensor(PARENTS)
    stray = (1 - xi) / 3
    kernel = torch.full((6, 4), stray, dtype=torch.float64).scatter(1, c[:, None], xi)
    w_c = (gamma - 1) * (1 - t) ** (gamma - 2) / (1 - (1 - t) ** (gamma - 1))
    w_m = gamma * (1 - (1 - t) ** (gamma - 1)) / (gamma * t + (1 - t) ** gamma - 1)
    believed = p @ kernel
    expected = []
    for word, state in zip(x[:, 0].tolist(), z[:, 0].tolist(), strict=True):
        if state < 6:
            expected.append(torch.zeros(()))
        elif state < 10:
            expected.append(-w_c * (kernel[word, state - 6] * p[word] / believed[state - 6]).log())
        else:
            u = kernel[word]
            expected.append(w_m * torch.xlogy(u, u / believed).sum())
    ours = dd.nelbo(process, logits.expand(len(x), 1, -1), x, z, times)[:, 0]
    assert torch.allclose(ours, torch.stack(expected).double(), rtol=1e-7, atol=1e-9)


@settings(max_examples=examples(40))
@given(strategies.times, st.data())
def test_any_hierarchy_theorem(t, data):
    """xi = 1: at level i, -w_i log P_p(c_{i-1}(x)) / P_p(c_i(x)), with w_i from fluxes by the occupancies alone."""
    hierarchy = dd.hierarchies.Tree([PARENTS, ABOVE], speed=[data.draw(strategies.speeds) for _ in range(3)])
    schedule = data.draw(strategies.exact_schedules())
    process = dd.processes.Hierarchical(hierarchy, schedule)
    x, z, times = every_pair(process, t)
    logits = data.draw(strategies.token_logits(6))
    p = logits.softmax(-1)
    c1, c2 = torch.tensor(PARENTS), torch.tensor(ABOVE)[torch.tensor(PARENTS)]
    masses = torch.stack(
        [p] + [torch.stack([p[c == c[w]].sum() for w in range(6)]) for c in (c1, c2)] + [torch.ones(6)]
    )
    a, speeds = process.occupancies(times), torch.tensor(hierarchy.speeds, dtype=torch.float64)
    rate = schedule.rate(times)
    level = process.level_of(z)[:, 0]
    for i in (1, 2, 3):
        rows = level == i
        flux = speeds[i - 1] * rate[rows] * a[rows, i - 1]
        expected = -flux / a[rows, i] * (masses[i - 1] / masses[i]).log()[x[rows, 0]]
        ours = dd.nelbo(process, logits.expand(int(rows.sum()), 1, -1), x[rows], z[rows], times[rows])
        assert torch.allclose(ours[:, 0], expected, rtol=1e-8, atol=1e-9)


@settings(max_examples=examples(20))
@given(strategies.times, st.floats(0.5, 4.0), st.data())
def test_one_cluster_is_mdlm(t, gamma, data):
    """With a single cluster the cluster and the mask together are MDLM's mask, on average over which of the two."""
    one, flat = dd.presets.hdlm([0] * 5, gamma=gamma), dd.processes.Masked(5, dd.schedules.Polynomial(gamma))
    x = torch.arange(5)[:, None]
    logits = data.draw(strategies.token_logits(5)).expand(5, 1, -1)
    times = torch.full((5,), t, dtype=torch.float64)
    a = one.occupancies(times)
    average = sum(a[:, i : i + 1] * dd.nelbo(one, logits, x, torch.full_like(x, 4 + i), times) for i in (1, 2))
    masked = dd.nelbo(flat, logits, x, torch.full_like(x, 5), times) * flat.occupancies(times)[:, 1:]
    assert torch.allclose(average, masked, rtol=1e-8)


@pytest.mark.parametrize("name", FIXED)
def test_bound_estimates_the_cross_entropy_of_a_constant_denoiser(name):
    """-log p(x) is the bound of a constant denoiser: here by Monte Carlo through the public surface, with bound()."""
    process = FIXED[name]
    logits = torch.tensor([0.3, -1.0, 0.5, 0.1, 0.0, -0.2])
    x = torch.arange(6).repeat(3000)[:, None]
    generator = torch.Generator().manual_seed(0)
    result = dd.bound(process, lambda z, t: logits.expand(*z.shape, -1), x, generator)
    error = result.total.mean() - (-logits.log_softmax(-1)).mean()
    # gidd's and uniform's integrands have heavy tails near the ends; their standard error says so
    assert abs(float(error)) < 5 * float(result.total.std()) / math.sqrt(len(x)) + 1e-3
