"""Plug-in package ``plugin_example``: the bound, sampling and verification work without changes in
ddlib.
"""

import copy
import doctest
from importlib.metadata import distribution
from pathlib import Path

import ddlib_ragged
import pytest
import torch
from cases import examples
from ddlib_ragged import Bands, LogOdds, Ragged, Restart
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from scipy.stats import chisquare

import ddlib as dd
from ddlib.__main__ import table
from ddlib.processes import ForwardProcess
from ddlib.testing import strategies
from ddlib.testing.oracle import (
    exact_cavity,
    exact_posterior,
    integrate_bound,
    integrate_forward,
    states,
)

F64 = torch.float64
NAMES = {
    "schedules": "log_odds",
    "hierarchies": "bands",
    "processes": "ragged",
    "samplers": "restart",
}
NAMES |= {
    "backbones": "neighbours",
    "presets": "punctuated",
    "sources": "walks",
    "lengths": "margin",
}
CLASSES = {
    "schedules": "LogOdds",
    "hierarchies": "Bands",
    "processes": "Ragged",
    "samplers": "Restart",
}
CLASSES |= {
    "backbones": "Neighbours",
    "presets": "punctuated",
    "sources": "Walks",
    "lengths": "Margin",
}
TREE = dd.hierarchies.Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]], xi=[0.8, 0.7], speed=[1.0, 2.0, 0.7])
FIXED = {
    "two levels": Ragged(TREE, [2, 7], LogOdds(1.5), speed=0.5),
    "bands": Ragged(Bands([5, 1, 4, 2, 3], 2, xi=0.8), [1, 5, 6], dd.schedules.Cosine(), speed=3.0),
    "plain": Ragged(Bands([5, 1, 4], 2), [0], dd.schedules.Linear()),
    "no levels": Ragged(dd.hierarchies.Flat(3), [3], LogOdds(), speed=2.0),
}
SMALL = FIXED["plain"]
PAIR = torch.tensor(
    [
        [0.30, 0.01, 0.02, 0.01],
        [0.01, 0.02, 0.15, 0.01],
        [0.02, 0.20, 0.01, 0.02],
        [0.01, 0.01, 0.02, 0.18],
    ],
    dtype=F64,
)
OURS = {
    "ragged": Ragged(Bands([5, 1, 4], 2, xi=0.8), [0], LogOdds(), speed=0.5),
    "gidd": dd.presets.gidd(4, 0.4),
    "uniform": dd.processes.Uniform(4, dd.schedules.Linear()),
    "hdlm-xi": dd.presets.hdlm([0, 1, 1, 2], xi=0.7),
}
N = 4000


@st.composite
def ragged(draw):
    hierarchy = draw(strategies.hierarchies(max_depth=4, max_words=6))
    marks = draw(st.integers(1, 3))
    punctuation = draw(st.permutations(range(hierarchy.vocab_size + marks)))[:marks]
    schedule = draw(st.one_of(strategies.all_schedules(), st.builds(LogOdds, st.floats(0.5, 3.0))))
    return Ragged(hierarchy, punctuation, schedule, draw(strategies.speeds))


def token_probs(process):
    probs = torch.arange(1.0, process.vocab_size + 1, dtype=F64)
    return probs / probs.sum()


def every_pair(process, t):
    x = torch.arange(process.vocab_size).repeat_interleave(process.num_states)[:, None]
    z = torch.arange(process.num_states).repeat(process.vocab_size)[:, None]
    t = torch.full((len(x),), t, dtype=F64)
    possible = (process.likelihood(z, x, t) > 0)[:, 0]
    return x[possible], z[possible], t[possible]


def agree(outcomes, probs):
    """Compare draws with probabilities by a chi-square test with false alarm rate 10^-5."""
    counts = torch.bincount(outcomes.flatten(), minlength=probs.numel()).double()
    possible = probs.flatten() > 0
    if possible.sum() == 1 or counts[~possible].sum() > 0:
        return counts[~possible].sum() == 0
    return (
        chisquare(
            counts[possible], probs.flatten()[possible] * len(outcomes), sum_check=False
        ).pvalue
        > 1e-5
    )


def test_the_package_is_installed_and_its_classes_are_found_by_name():
    declared = {(point.group, point.name) for point in distribution("ddlib-ragged").entry_points}
    assert declared == {(f"ddlib.{kind}", name) for kind, name in NAMES.items()}
    for kind, name in NAMES.items():
        assert dd.registry.get(kind, name) is getattr(ddlib_ragged, CLASSES[kind])


def test_it_is_listed_and_the_off_switch_hides_it(monkeypatch):
    listed = table()
    monkeypatch.setenv("DDLIB_PLUGINS", "0")
    hidden = table()
    for name in NAMES.values():
        assert f"  {name} " in listed and f"  {name} " not in hidden
    summary = distribution("ddlib-ragged").metadata["Summary"]
    assert f"\n\n[ddlib-ragged]: {summary}" in listed and "[ddlib-ragged]" not in hidden
    assert (
        "broken" not in listed
        and "Ragged(hierarchy, punctuation, schedule, speed)  [ddlib-ragged]" in listed
    )


def test_ddlib_does_not_import_it():
    for path in Path(dd.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert "ddlib_ragged" not in text and "plugin_example" not in text, path


def test_its_docstring_example_runs():
    assert doctest.testmod(ddlib_ragged.process, extraglobs={"torch": torch, "dd": dd}) == (0, 3)


@settings(max_examples=examples(60))
@given(ragged(), strategies.times, st.data())
def test_closed_form_is_the_generic_bound_for_every_word_and_state(process, t, data):
    x, z, t = every_pair(process, t)
    logits = data.draw(strategies.token_logits(process.vocab_size)).expand(len(x), 1, -1)
    words = torch.nn.functional.one_hot(x, process.vocab_size).double()
    for parameterization in ("cavity", "posterior"):
        closed = dd.nelbo(process, logits, x, z, t, "auto", parameterization)
        generic = dd.nelbo(process, logits, x, z, t, "generic", parameterization)
        assert (closed >= 0).all()
        # terms of the generic sum are as large as the reverse rates and cancel, which costs
        # precision
        p = dd.cavity_logits(process, logits, z, t, parameterization).softmax(-1)
        scale = (
            1 + process.reverse_rate(p, z, t).sum(-1) + process.reverse_rate(words, z, t).sum(-1)
        )
        assert ((closed - generic).abs() <= 1e-10 * scale + 1e-8 * closed).all()


@pytest.mark.parametrize("parameterization", ["cavity", "posterior"])
@pytest.mark.parametrize("name", FIXED)
def test_bound_of_the_exact_network_is_the_entropy_of_a_token(name, parameterization):
    process = FIXED[name]
    probs = token_probs(FIXED[name])
    oracle = {"cavity": exact_cavity, "posterior": exact_posterior}[parameterization](
        process, probs
    )
    value = integrate_bound(process, probs, oracle, parameterization=parameterization)
    assert value == pytest.approx(float(-(probs * probs.log()).sum()), abs=1e-5)


def test_bound_of_the_exact_network_is_the_entropy_of_a_sequence():
    entropy = float(-(PAIR * PAIR.log()).sum() / PAIR.sum() + PAIR.sum().log())
    probs = PAIR / PAIR.sum()
    for parameterization, oracle in (("cavity", exact_cavity), ("posterior", exact_posterior)):
        value = integrate_bound(
            OURS["ragged"], probs, oracle(OURS["ragged"], probs), parameterization=parameterization
        )
        assert value == pytest.approx(entropy, abs=1e-5)


@settings(max_examples=examples(15))
@given(ragged(), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_transitions_solve_kolmogorovs_forward_equation(process, s, t):
    s, t = sorted((s, t))
    assert torch.allclose(process.transition(s, t), integrate_forward(process, s, t), atol=2e-7)
    words = torch.arange(process.vocab_size)[None]
    early, late = (process.marginal(words, torch.tensor([v], dtype=F64))[0] for v in (s, t))
    assert torch.allclose(early @ process.transition(s, t), late, atol=1e-10)


@settings(max_examples=examples(40))
@given(ragged(), st.floats(1e-6, 1 - 1e-6), st.data())
def test_structured_answers_are_those_of_the_contract(process, t, data):
    z = states(process)
    t = torch.tensor([t], dtype=F64)
    p = data.draw(strategies.token_logits(process.num_states, process.vocab_size)).softmax(-1)[None]
    assert torch.allclose(
        process.predictive(p, t), ForwardProcess.predictive(process, p, t), atol=1e-12
    )
    assert torch.allclose(
        process.token_likelihood(z, t), ForwardProcess.token_likelihood(process, z, t), atol=1e-13
    )
    x = data.draw(st.integers(0, process.vocab_size - 1)) * torch.ones_like(z)
    assert torch.allclose(
        process.likelihood(z, x, t), ForwardProcess.likelihood(process, z, x, t), atol=1e-13
    )


@pytest.mark.parametrize("name", FIXED)
def test_draws_follow_the_marginal_and_the_posterior(name):
    process = FIXED[name]
    generator = torch.Generator().manual_seed(0)
    t = torch.full((N,), 0.7, dtype=F64)
    s = torch.full((N,), 0.3, dtype=F64)
    logits = token_probs(process).log()
    for word in range(process.vocab_size):
        x = torch.full((N, 1), word)
        assert agree(process.sample(x, t, generator), process.marginal(x[:1], t[:1])[0, 0])
    for state in range(process.num_states):
        z = torch.full((N, 1), state)
        landed = process.sample_given_level(logits.expand(N, 1, -1), z, t, s, None, generator)
        assert agree(
            landed, process.posterior(logits.exp().expand(1, 1, -1), z[:1], t[:1], s[:1])[0, 0]
        )


@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("sampler", [dd.samplers.Ancestral(), Restart(2.5)], ids=repr)
@pytest.mark.parametrize("name", OURS)
def test_sampling_one_word_is_exact_for_any_number_of_steps(name, sampler, steps):
    process = OURS[name]
    probs = torch.tensor([0.45, 0.10, 0.25, 0.20], dtype=F64)
    for oracle, parameterization in ((exact_cavity, "cavity"), (exact_posterior, "posterior")):
        tokens = dd.sample(
            process,
            oracle(process, probs),
            (N, 1),
            sampler,
            steps,
            parameterization=parameterization,
            generator=torch.Generator().manual_seed(steps),
        )
        assert agree(tokens, probs)


SAMPLERS = [dd.samplers.Ancestral(), Restart()]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("name", OURS)
def test_sampling_recovers_a_joint_distribution(name, sampler):
    process = OURS[name]
    probs = PAIR / PAIR.sum()
    grid = (
        torch.linspace(1, 0, 121, dtype=F64) ** 3
    )  # fine near the data, where GIDD's rates diverge
    generator = torch.Generator().manual_seed(1)
    tokens = dd.sample(
        process, exact_cavity(process, probs), (N, 2), sampler, steps=grid, generator=generator
    )
    assert agree(tokens @ torch.tensor([4, 1]), probs)


@pytest.mark.parametrize("name", OURS)
def test_restart_keeps_prompts_and_they_condition_the_rest(name):
    process = OURS[name]
    probs = PAIR / PAIR.sum()
    tokens = dd.sample(
        process,
        exact_cavity(process, probs),
        (N, 2),
        Restart(),
        24,
        prompt=torch.tensor([1]),
        generator=torch.Generator().manual_seed(2),
    )
    assert (tokens[:, 0] == 1).all() and (tokens < 4).all()
    if name in (
        "ragged",
        "hdlm-xi",
    ):  # otherwise a prompt token may be noise: the oracle gives it less weight
        assert agree(tokens[:, 1], probs[1] / probs[1].sum())


def test_first_hitting_refuses_the_process():
    with pytest.raises(TypeError, match="FirstHitting needs a process with levels"):
        dd.sample(SMALL, lambda z, t: torch.zeros(*z.shape, 4), (1, 2), dd.samplers.FirstHitting())


def test_training_lowers_the_bound():
    process = FIXED["two levels"]
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(process.num_states, 16), torch.nn.Linear(16, process.vocab_size)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    x = torch.multinomial(token_probs(process).float() ** 4, 64 * 8, replacement=True).view(64, 8)

    @torch.no_grad()
    def evaluate():
        return float(
            dd.bound(
                process, lambda z, t: model(z), x, torch.Generator().manual_seed(7)
            ).total.mean()
        )

    before = evaluate()
    for _ in range(40):
        t = dd.sample_times(len(x))
        z = process.sample(x, t)
        loss = dd.training_loss(process, model(z), x, z, t, weighting=dd.weightings.Clip(10.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert evaluate() < 0.9 * before


def test_a_family_that_the_network_rules_out_gives_no_nan():
    x, z, t = every_pair(SMALL, 0.5)
    for ruled_out in ([0], [1, 2, 3]):
        kept = ~(x == torch.tensor(ruled_out)).any(1)
        logits = (
            torch.zeros(int(kept.sum()), 1, 4)
            .index_fill(-1, torch.tensor(ruled_out), -torch.inf)
            .requires_grad_()
        )
        value = dd.nelbo(SMALL, logits, x[kept], z[kept], t[kept])
        value.sum().backward()
        assert value.isfinite().all() and logits.grad.isfinite().all()


def test_a_process_keeps_its_precision_when_it_is_moved():
    original = FIXED["two levels"]
    moved = copy.deepcopy(original).to(torch.bfloat16)
    assert torch.equal(moved.transition(0.2, 0.6), original.transition(0.2, 0.6))
    x, z, t = every_pair(original, 0.4)
    logits = torch.randn(len(x), 1, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dd.nelbo(moved, logits, x, z, t), dd.nelbo(original, logits, x, z, t))
    assert all(buffer.device.type == "meta" for buffer in moved.to("meta").buffers())


def test_a_large_process_shrinks_to_a_small_one_of_its_kind():
    counts = torch.arange(20_000, 0, -1)
    large = Ragged(
        Bands(counts, 300, xi=0.9, speed=[2.0, 1.0]), range(100, 130), LogOdds(), speed=0.5
    )
    small = large.small_copy(12)
    words, marks = (family.process for family in small.families)
    assert small.vocab_size <= 12 and marks.vocab_size == 1 and words.vocab_size >= 4
    assert (
        words.hierarchy.depth == 2
        and words.hierarchy.speeds == (2.0, 1.0)
        and marks.hierarchy.speeds == (0.5,)
    )
    report = dd.verify(large)
    assert report.ok and "Ragged" in report.note, report
    x = torch.randint(large.vocab_size, (4, 16))
    t = torch.rand(4)
    z = large.sample(x, t)
    assert dd.nelbo(large, torch.zeros(4, 16, large.vocab_size), x, z, t).isfinite().all()


test_bad_arguments_are_named = refuses(r"""
    Ragged(TREE, [], dd.schedules.Linear()) | ValueError
        | punctuation is \[\], must be distinct tokens in \[0, 6\)
    Ragged(TREE, [3, 3], dd.schedules.Linear()) | ValueError | must be distinct
    Ragged(TREE, [7], dd.schedules.Linear()) | ValueError | must be distinct tokens in \[0, 7\)
    SMALL.small_copy(1) | ValueError | vocab_size is 1, must be at least 2
    Bands([1, 2], 2) | ValueError | bands is 2, must be below the number of words, 2
    LogOdds(9) | ValueError | steepness is 9, must be in
    Restart(-1) | ValueError | overshoot is -1, must be in
""")
