"""Remask by loop and by confidence, and Overshoot: the published formulas, and distributions that
they keep.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import at, seeded, trajectory
from zoo.networks import Halves
from zoo.processes import F64, LEVELS

import ddlib as dd
from ddlib.contrib import Overshoot
from ddlib.samplers import Remask
from ddlib.samplers.remask import ascent_probability
from ddlib.schedules import Linear
from ddlib.testing import strategies


def loop_of_remdm(grid, steps, eta, on, off, alpha_on):
    """Chances (token to mask, mask to token) of a step from ``grid``, by Wang et al.

    (2025), their linear schedule.
    """

    def squeezed(t):
        if t > on:
            return (1 - t) / (1 - on) * alpha_on
        return alpha_on if t >= off else 1 - (1 - alpha_on) * t / off

    alpha_t = squeezed(grid)
    alpha_s = squeezed(grid - 1 / steps)
    sigma = min(eta, (1 - alpha_s) / alpha_t) if alpha_s == alpha_t else 0.0
    return sigma, (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)


@pytest.mark.parametrize("eta", [0.02, 0.5])
@pytest.mark.parametrize(("on", "off", "plateau"), [(None, None, None), (0.8, 0.3, 0.4)])
def test_for_masks_the_loop_is_that_of_remdm(eta, on, off, plateau):
    process = dd.processes.Masked(5, Linear())
    steps = 20
    sampler = Remask(eta, "loop", t_on=on, t_off=off, plateau=plateau)
    token = torch.zeros(1, 1, dtype=torch.int64)
    mask = torch.ones(1, 1, dtype=torch.int64)
    kinds = set()
    for k in range(steps):
        grid = 1 - k / steps
        t = sampler.time(at(grid))
        s = sampler.time(at(max(grid - 1 / steps, 0.0)))
        lift = sampler.sigma(process.max_remask_prob(t, s)) if bool(t == s) else None
        want = loop_of_remdm(grid, steps, eta, on or 0.55, off or 0.05, 1 - (plateau or 0.1))
        up = process.level_posterior(token, t, s, lift)[0, 0, 1] if grid < 1 else torch.zeros(())
        down = process.level_posterior(mask, t, s, lift)[0, 0, 0]
        assert (float(up), float(down)) == pytest.approx(want, abs=1e-12)
        kinds.add((lift is not None, bool(t > s)))
    assert kinds == {(False, True), (True, False)}


@settings(max_examples=examples(40))
@given(strategies.processes(), st.floats(0.01, 0.99), st.floats(0.0, 1.0))
def test_levels_keep_their_distribution_at_a_fixed_time(process, t, eta):
    if not isinstance(process, dd.processes.LevelProcess):
        return
    most = process.max_remask_prob(at(t), at(t))
    levels = torch.arange(most.shape[1] + 1)[None]
    kernel = process.level_posterior(
        levels, at(t), at(t), (eta * torch.ones_like(most)).minimum(most)
    )[0]
    probs = process.occupancies(at(t))[0]
    assert bool((kernel >= 0).all()) and (probs @ kernel - probs).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["masked", "levels-xi"])
def test_the_loop_climbs_on_its_plateau_and_nowhere_else(name):
    process = LEVELS[name]
    steps = 20
    times = []
    sampler = Remask(1.0, "loop", plateau=0.5)
    states = trajectory(process, Halves(process), sampler, shape=(6, 4), steps=steps)
    dd.sample(
        process,
        Halves(process),
        (1, 2),
        sampler,
        steps,
        on_step=lambda k, t, z: times.append(float(t[0])),
    )
    level = process.level_of(states.flatten(0, 1)).view_as(states)
    climbs = (level.diff(dim=0) > 0).flatten(1).any(1)
    grid = torch.linspace(1, 0, steps + 1)
    inside = (grid[:-1] <= 0.55) & (grid[1:] >= 0.05 - 1e-6)
    assert bool(climbs[inside].any()) and not bool(climbs[~inside].any())
    assert times[0] == 1 and times[-1] == 0 and times.count(0.5) == int(inside.sum()) + 1
    assert sorted(times, reverse=True) == times


def published(psi, masked, eta, alpha_t, alpha_s):
    """sigma of ReMDM-conf: min(eta, (1 - alpha_s) / alpha_t) softmax(-psi), 0 at masks."""
    exponentials = [
        0.0 if m else float(torch.tensor(-p, dtype=F64).exp())
        for p, m in zip(psi, masked, strict=True)
    ]
    most = min(eta, 1.0, (1 - alpha_s) / alpha_t)
    return [most * e / max(sum(exponentials), 1e-300) for e in exponentials]


def test_confidence_is_that_of_remdm():
    process = dd.processes.Masked(5, dd.schedules.Cosine())
    psi = torch.tensor(
        [[0.9, 0.1, 0.5, 0.3, torch.inf], [0.2, torch.inf, 0.6, 0.7, torch.inf]], dtype=F64
    )
    level = torch.tensor(
        [[0, 0, 1, 0, 0], [1, 1, 1, 1, 1]]
    )  # the third was taken back, the fifth never came down
    for t, s, eta in ((0.9, 0.7, 1.0), (0.5, 0.45, 0.3), (0.2, 0.1, 0.05), (0.2, 0.0, 1.0)):
        sigma = Remask(eta, "confidence").sigma(process.max_remask_prob(at(t), at(s)))
        found = ascent_probability(psi, level, sigma.expand(2, -1))
        alphas = [process.schedule.alpha(at(time)).item() for time in (t, s)]
        want = published(psi[0].tolist(), [False, False, True, False, True], eta, *alphas)
        assert found[0].tolist() == pytest.approx(want, abs=1e-12) and not found[1].any()
        assert found[0].argmax() == 1 or s == 0  # what was believed least


def test_for_several_levels_each_edge_is_shared_among_those_below_it():
    psi = torch.tensor([[0.9, 0.1, 0.5, 0.3, 0.2]], dtype=F64)
    level = torch.tensor([[0, 0, 1, 1, 2]])
    found = ascent_probability(psi, level, torch.tensor([[0.5, 0.25]], dtype=F64))[0]
    want = [*(0.5 * (-psi[0, :2]).softmax(-1)), *(0.25 * (-psi[0, 2:4]).softmax(-1)), 0.0]
    assert found.tolist() == pytest.approx([float(w) for w in want], abs=1e-12)


class Sure:
    """At the even positions nine tokens of ten are the first one; the odd ones are uniform."""

    def __init__(self):
        self.calls = 0

    def __call__(self, z, t):
        self.calls += 1
        probs = torch.full((*z.shape, 4), 0.25, dtype=F64)
        probs[:, ::2] = torch.tensor([0.91, 0.03, 0.03, 0.03], dtype=F64)
        return probs.log()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}], ids=["as-is", "greedy"])
def test_uncertain_tokens_are_taken_back_more_often(options):
    process = dd.processes.Masked(4, Linear())
    states = trajectory(
        process, Sure(), Remask(0.5, "confidence"), shape=(600, 8), steps=12, **options
    )[6:]
    # once a row has tokens of both kinds
    climbs = states.diff(dim=0) > 0
    tokens = states[:-1] < 4
    sure, unsure = (climbs[..., i::2].sum() / tokens[..., i::2].sum() for i in (0, 1))
    assert unsure > 1.25 * sure > 0


@pytest.mark.parametrize("name", ["masked", "levels-xi"])
@pytest.mark.parametrize("rule", ["loop", "confidence"])
def test_the_prompt_is_never_taken_back_and_has_no_share(name, rule):
    process = LEVELS[name]
    mask = LEVELS[name].num_states - 1
    prompt = torch.tensor([[mask, 1, mask, 3, 3]])
    seen = []

    class Recorded(Remask):
        def step(self, run, state, k):
            after = super().step(run, state, k)
            seen.append(after)
            return after

    tokens = dd.sample(process, Halves(process), (4, 5), Recorded(1.0, rule), 25, prompt)
    assert all(
        torch.equal(state.z[:, [1, 3, 4]], prompt[:, [1, 3, 4]].expand(4, -1)) for state in seen
    )
    assert torch.equal(tokens[:, [1, 3, 4]], prompt[:, [1, 3, 4]].expand(4, -1))
    if rule == "confidence":
        assert all(bool(state.memo[:, [1, 3, 4]].isinf().all()) for state in seen)
        assert bool(seen[-1].memo[:, [0, 2]].isfinite().all())


@pytest.mark.parametrize("name", LEVELS)
def test_psi_is_the_probability_of_the_drawn_token(name):
    """By tokens and, where the tree is plain, by families; one edge or several at once."""
    process = LEVELS[name]
    probs = torch.tensor([0.3, 0.2, 0.1, 0.25, 0.1, 0.05], dtype=F64)
    tree = process.hierarchy
    states = []

    class Recorded(Remask):
        def step(self, run, state, k):
            after = super().step(run, state, k)
            states.append((state.z, after.z, after.memo))
            return after

    below = [torch.arange(6)] + [tree.between(0, i).parents for i in range(1, tree.depth)]
    families = torch.cat([torch.bincount(parents, probs).log() for parents in below])

    def cavity(z, t):
        return probs.log().expand(*z.shape, -1)

    drawn = {}
    for key, denoiser in (
        ("cavity", cavity),
        ("children", lambda z, t: families.expand(*z.shape, -1)),
    ):
        generator = seeded()
        dd.sample(
            process,
            denoiser,
            (20, 3),
            Recorded(0.5, "confidence"),
            8,
            parameterization=key,
            generator=generator,
        )
        drawn[key] = list(states)
        checked = 0
        states.clear()
        for before, after, psi in drawn[key]:
            for z, y, chance in zip(before.flatten(), after.flatten(), psi.flatten(), strict=True):
                j, i = (int(process.level_of(v[None, None])) for v in (z, y))
                if i < j:
                    joint = tree.level_probs(probs)[i] * tree.between(i, j).column(tree.local(z, j))
                    assert float(chance) == pytest.approx(
                        float(joint[tree.local(y, i)] / joint.sum()), abs=1e-12
                    )
                    checked += 1
        assert checked > 60


@settings(max_examples=examples(60))
@given(strategies.processes(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_levels_keep_their_distribution_for_every_overshoot(process, one, other, amount):
    s, t = sorted((one, other))
    u = (1 - amount) * s
    if s == t or not isinstance(process, dd.processes.LevelProcess):
        return
    levels = torch.arange(len(process.levels))[None]
    back = process.level_posterior(levels, at(t), at(u))[0]
    forwards = process.level_transition(at(u), at(s))[0]
    before = process.occupancies(at(t))[0]
    after = process.occupancies(at(s))[0]
    assert (before @ back @ forwards - after).abs().max() < 1e-12


def test_a_short_overshoot_lifts_tokens_to_their_own_clusters():
    process = LEVELS["levels"]
    s = at(0.5)
    shares = []
    for amount in (0.02, 1.0):
        up = process.level_transition((1 - amount) * s, s)[0, 0, 1:]
        shares.append(float(up[0] / up.sum()))
    assert shares[0] > 0.95 > 0.75 > shares[1]


test_bad_input_is_refused = refuses(r"""
    Remask(0.1, "loop", t_on=0.3, t_off=0.4) | ValueError
        | t_on is 0.3 and t_off is 0.4, must be 1 > t_on
    Remask(0.1, "loop", t_on=1.0) | ValueError | t_on is 1.0, must be in \(0, 1\)
    Remask(0.1, "loop", t_off=0.0) | ValueError | t_off is 0.0, must be in \(0, 1\)
    Remask(0.1, "loop", plateau="0.1") | TypeError | plateau is '0.1', must be a number in
    Remask(0.1, plateau=0.2) | ValueError | plateau is 0.2, must not be given for the rule 'cap'
    Remask(0.1, "confidence", t_on=0.2) | ValueError
        | t_on is 0.2, must not be given for the rule 'conf
    Remask(0.1, "conf") | ValueError | one of 'cap', 'rescale', 'loop', 'confidence'
    Overshoot(1.1) | ValueError | amount is 1.1, must be in \[0, 1\]
    Overshoot(None) | TypeError | amount is None, must be a number in \[0, 1\]
""")


def test_exactness_is_a_property_of_the_rule():
    rules = [Remask(0.1, rule) for rule in ("cap", "loop", "confidence")]
    assert [(one.guarantees.on_time_grid, one.guarantees.consistent_joint) for one in rules] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert (
        Overshoot(0.0).guarantees.consistent_joint
        and not Overshoot(0.1).guarantees.consistent_joint
    )
