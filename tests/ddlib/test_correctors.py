"""Correctors: their formulas, laws that stay what they are, who is served, and how often the network is asked."""

import itertools

import pytest
import torch
import yaml
from cases import examples, slow_but
from halves import LEVELS, Halves, generate, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import every_process

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Masked, Uniform
from ddlib.processes.sampled import unchanged
from ddlib.samplers import (
    Ancestral,
    Corrected,
    Corrector,
    EdgeBalance,
    FirstHitting,
    ForwardBackward,
    Gibbs,
    Psi,
    Remask,
    Run,
    SelfCorrection,
)
from ddlib.samplers.network import Network
from ddlib.schedules import Cosine, Linear
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity, exact_posterior

F64 = torch.float64
PAIR = torch.tensor([[0.30, 0.02, 0.05], [0.03, 0.05, 0.20], [0.25, 0.04, 0.06]], dtype=F64)
IN_PLACE = {
    "gidd": GIDD(3, 0.3),
    "uniform": Uniform(3, Cosine()),
    "clusters": dd.presets.hdlm_levels([[0, 1, 1]], xi=0.7, speed=[1.0, 2.0]),
}
"""Processes in which there are states to correct in place."""
EVERY = (ForwardBackward(2.0), EdgeBalance(2.0), Gibbs(2), Gibbs(2, "margin"), SelfCorrection(steps=6))


def at(t, rows=1):
    return torch.full((rows,), t, dtype=F64)


def a_run(process, denoiser, shape, seed=0, free=None, compact=True):
    free = torch.ones(shape, dtype=torch.bool) if free is None else free
    generator = dd.KeyedGenerator(seed, 0, torch.arange(shape[0]))
    return Run(process, Network(process, denoiser, compact=compact), unchanged, at(1.0), free, generator)


def serves(corrector, process):
    try:
        corrector.check(process)
    except TypeError:
        return False
    return True


# formulas


@pytest.mark.parametrize("schedule", [Linear(), Cosine()])
def test_forward_backward_masks_as_campbell_et_al_do(schedule):
    process = Masked(4, schedule)
    for t, h, amount in ((0.5, 0.1, 1.0), (0.2, 0.05, 3.0), (0.9, 0.1, 5.0)):
        asked = []

        def network(z, t, asked=asked):
            asked.append(float(t[0]))
            return torch.zeros(*z.shape, 4)

        words = torch.zeros(1, 200, dtype=torch.int64)
        ForwardBackward(amount).correct(a_run(process, network, (1, 200)), words, at(t), at(h))
        u = min(1.0, t + amount * h)
        assert asked == pytest.approx([u], abs=1e-7)
        alpha_t, alpha_u = (float(schedule.alpha(at(time))) for time in (t, u))
        masked = process.level_transition(at(t), at(u))[0, 0, 1]
        assert masked.item() == pytest.approx(1 - alpha_u / alpha_t, abs=1e-12)


@settings(max_examples=examples(60))
@given(strategies.processes(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 10.0))
def test_edge_balance_keeps_the_law_of_every_level(process, t, h, strength):
    if not serves(EdgeBalance(), process):
        return
    sigma, levels = EdgeBalance(strength).sigma(process, at(t), at(h)), torch.arange(len(process.levels))[None]
    kernel = process.level_posterior(levels, at(t), at(t), sigma)[0]
    law = process.occupancies(at(t))[0]
    assert bool((kernel >= 0).all()) and (law @ kernel - law).abs().max() < 1e-12
    climbs = 1 - process.level_transition(at(t), at(min(1.0, t + h)))[0].diagonal()[:-1]
    want = torch.minimum(strength * climbs, process.most_lift(at(t), at(t))[0])
    assert (sigma[0] - want).abs().max() < 1e-12
    held = law[:-1] > 1e-12
    assert (kernel.diagonal(1) - sigma[0])[held].abs().max() < 1e-9 if held.any() else True  # nobody goes elsewhere
    assert kernel.triu(2).abs().max() == 0 and kernel.tril(-2).abs().max() == 0


@pytest.mark.parametrize("strength", [0.5, 1.0, 4.0])
def test_for_masks_and_small_steps_edge_balance_is_the_corrector_of_discrete_flow_matching(strength):
    """Gat et al. (2024) at a fixed t: word to mask B (alpha_t / alpha_u - 1), mask to word B (alpha_t - alpha_u) / (1 -
    alpha_t)."""
    schedule, word = Cosine(), torch.tensor([[0, 1]])
    process, errors = Masked(3, schedule), []
    for h in (1e-2, 1e-3):
        alpha_t, alpha_u = (float(schedule.alpha(at(time))) for time in (0.4, 0.4 + h))
        sigma = EdgeBalance(strength).sigma(process, at(0.4), at(h))
        kernel = process.level_posterior(word, at(0.4), at(0.4), sigma)[0]
        up, down = strength * (alpha_t / alpha_u - 1), strength * (alpha_t - alpha_u) / (1 - alpha_t)
        assert kernel[1, 0].item() == pytest.approx(down, rel=1e-12)
        errors.append(abs(float(kernel[0, 1]) / up - 1))
    assert errors[0] < 0.05 and errors[1] == pytest.approx(errors[0] / 10, rel=0.2)


def gibbs_kernels(process, t):
    """The states of two tokens, their joint law at t, and the kernel that redraws each of them, all dense."""
    size = process.num_states
    pairs = torch.tensor(list(itertools.product(range(size), repeat=2)))
    cavity = exact_cavity(process, PAIR)(pairs, at(t, len(pairs))).softmax(-1)
    proposals = process.predictive(cavity, at(t, len(pairs)))
    known = process.from_anywhere(torch.arange(size)[None])[0]
    kernels = torch.zeros(2, len(pairs), len(pairs), dtype=F64)
    for row, (pair, position) in enumerate(itertools.product(pairs, range(2))):
        row //= 2
        if known[pair[position]]:
            for state in known.nonzero().flatten():
                other = pair.clone()
                other[position] = state
                kernels[position, row, other[0] * size + other[1]] = proposals[row, position, state]
        kernels[position, row, row] += 1 - kernels[position, row].sum()
    rows = process.predictive(torch.eye(3, dtype=F64)[None], at(t))[0]
    return pairs, (rows.T @ PAIR @ rows).flatten(), kernels


@pytest.mark.parametrize("name", IN_PLACE)
def test_one_position_at_a_time_keeps_the_joint_law_and_two_at_once_do_not(name):
    pairs, law, kernels = gibbs_kernels(IN_PLACE[name], 0.4)
    assert law.sum().item() == pytest.approx(1, abs=1e-12)
    for kernel in kernels:
        assert (law @ kernel - law).abs().max() < 1e-15
        assert (law[:, None] * kernel - (law[:, None] * kernel).T).abs().max() < 1e-15  # detailed balance
    size = IN_PLACE[name].num_states
    moved = kernels.view(2, len(pairs), size, size)
    both = moved[0].sum(-1)[:, :, None] * moved[1].sum(-2)[:, None, :]  # neither knows of the other
    assert (law @ both.flatten(1) - law).abs().max() > 1e-5


@pytest.mark.statistical
@pytest.mark.parametrize("name", IN_PLACE)
def test_draws_of_gibbs_are_those_of_its_kernel(name):
    process, draws = IN_PLACE[name], 1500
    pairs, _, kernels = gibbs_kernels(process, 0.4)
    rows = pairs.repeat_interleave(draws, 0)
    run = a_run(process, exact_cavity(process, PAIR), rows.shape)
    drawn = Gibbs().correct(run, rows, at(0.4, len(rows)), at(0.1, len(rows)))
    target = (drawn[:, 0] * process.num_states + drawn[:, 1]).view(len(pairs), draws)
    counts = torch.stack([torch.bincount(row, minlength=len(pairs)) for row in target])
    chance = kernels.mean(0)
    assert counts[chance == 0].sum() == 0
    assert ((counts - draws * chance).abs() <= 5.5 * (draws * chance * (1 - chance)).sqrt() + 1).all()


@pytest.mark.parametrize("select", ["random", "margin"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_network_that_learnt_the_posterior_is_read_as_the_cavity(name, select):
    process, sampler = IN_PLACE[name], Corrected(Ancestral(), Gibbs(1, select), 2)
    tokens = generate(process, exact_cavity(process, PAIR), sampler, shape=(50, 2))
    own = exact_posterior(process, PAIR)
    assert torch.equal(generate(process, own, sampler, shape=(50, 2), parameterization="posterior"), tokens)


@settings(max_examples=examples(40))
@given(strategies.processes(), st.floats(0.05, 0.9))
def test_from_anywhere_is_what_the_likelihoods_say(process, t):
    states = torch.arange(process.num_states)[None]
    reached = (process.word_likelihood(states, at(t)) > 0).all(-1)
    assert torch.equal(process.from_anywhere(states), reached)


@every_process
def test_from_anywhere_is_that_of_the_contract(process):
    states = torch.arange(process.num_states)[None].expand(2, -1)
    assert torch.equal(process.from_anywhere(states), ForwardProcess.from_anywhere(process, states))


@pytest.mark.statistical
def test_margins_find_the_word_that_does_not_fit():
    process = GIDD(6, 0.3)
    z = torch.zeros(400, 8, dtype=torch.int64)
    z[:, 3] = 5

    def network(z, t):  # float32, as networks are
        return torch.tensor([6.0, 0, 0, 0, 0, 0]).expand(*z.shape, 6)

    shares = {}
    for select in ("random", "margin"):
        run = a_run(process, network, z.shape)
        shares[select] = float(
            (Gibbs(1, select).correct(run, z, at(0.1, 400), at(0.1, 400))[:, 3] != 5).double().mean()
        )
    assert shares["random"] < 0.2 and shares["margin"] > 0.8


# self-correction


PATTERN = torch.tensor([2, 0, 1, 1])


def sure(z, t):
    """A network that knows the text."""
    return 3 * torch.nn.functional.one_hot(PATTERN, 4).double().expand(*z.shape, 4)


def test_self_correction_mends_a_word_at_a_time_until_nothing_is_left():
    process, z = Uniform(4, Linear()), PATTERN.repeat(3, 1)
    z[1, 0], z[2] = 3, torch.tensor([1, 1, 3, 3])
    halves = Halves(process)
    halves.features, halves.words = (
        lambda z, t: (count(halves, z), sure(z, t))[1],
        lambda: (torch.eye(4).double(), None),
    )
    run = a_run(process, halves, z.shape)
    once = SelfCorrection(steps=1).end(run, z)
    assert (once != z).sum(1).tolist() == [0, 1, 1]
    halves.calls = halves.sequences = 0
    assert torch.equal(SelfCorrection().end(run, z), PATTERN.expand(3, -1))
    assert (halves.calls, halves.sequences) == (5, 1 + 2 + 5)  # one look more than there are words to mend


def count(halves, z):
    halves.calls, halves.sequences = halves.calls + 1, halves.sequences + len(z)


def test_self_correction_loses_patience_and_leaves_the_prompt():
    calls, process = [], Uniform(4, Linear())

    def contrary(z, t):
        calls.append(len(z))
        return 9 * torch.nn.functional.one_hot((z + 1) % 4, 4).double()

    z, free = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)
    free[:, 0] = False
    words = SelfCorrection(patience=3).end(a_run(process, contrary, z.shape, free=free), z)
    assert calls == [2, 2, 2, 2]  # the first share is a gain, the next three are none
    assert (words[:, 0] == 0).all() and (words[:, 1:] != 0).any(1).all()


def test_self_correction_acts_on_finished_words():
    process = Uniform(4, Linear())
    drawn = [
        dd.sample(process, sure, (50, 4), sampler, 3, generator=torch.Generator().manual_seed(0))
        for sampler in (Ancestral(), Corrected(Ancestral(), SelfCorrection()))
    ]
    assert (drawn[0] != PATTERN).any() and (drawn[1] == PATTERN).all()


# Corrected


class Recorder(Corrector):
    def __init__(self):
        self.seen = []

    def correct(self, run, z, t, h):
        self.seen.append((round(float(t[0]), 9), round(float(h[0]), 9), z[0, 0].item()))
        return torch.zeros_like(z)  # over the prompt as well


def test_corrections_are_made_in_the_interval_after_the_step_and_the_prompt_stands():
    recorder = Recorder()
    sampler = Corrected(Psi(0.5), recorder, 2, [0.2, 0.6])
    tokens = generate(GIDD(6, 0.2), lambda z, t: torch.zeros(*z.shape, 6), sampler, steps=5, prompt=torch.tensor([4]))
    assert recorder.seen == [(t, 0.2, 4) for t in (0.6, 0.6, 0.4, 0.4, 0.2, 0.2)]
    assert (tokens[:, 0] == 4).all()
    recorder.seen.clear()
    generate(GIDD(6, 0.2), lambda z, t: torch.zeros(*z.shape, 6), Corrected(Ancestral(), recorder), steps=4)
    assert [t for t, _, _ in recorder.seen] == [0.75, 0.5, 0.25]  # never at t = 0


def test_what_it_says_follows_from_both():
    assert Corrected(Ancestral(), Gibbs(), 3).calls == 4 and Corrected(Ancestral(), Gibbs()).end_calls == 1
    assert Corrected(Ancestral(), SelfCorrection(steps=9)).calls == 1
    assert Corrected(Ancestral(), SelfCorrection(steps=9)).end_calls == 10
    exact = {repr(c): Corrected(Ancestral(), c).exact_text for c in (*EVERY, Gibbs())}
    assert [text for text, right in exact.items() if right] == [repr(c) for c in (*EVERY[:2], Gibbs())]
    assert [Corrected(Ancestral(), c).exact_word for c in EVERY] == [True] * 4 + [False]
    assert Corrected(Corrected(Ancestral(), Gibbs()), SelfCorrection(steps=9)).end_calls == 10
    assert repr(Corrected(Remask(0.1), EdgeBalance())).endswith(
        "EdgeBalance(strength=1.0), steps=1, interval=(0.0, 1.0))"
    )


MENDED = [("uniform", Gibbs()), ("masked", EdgeBalance()), ("masked", ForwardBackward()), ("clusters", EdgeBalance())]


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "corrector"), slow_but(MENDED, MENDED[0]), ids=repr)
def test_corrections_mend_what_long_steps_did(name, corrector):
    process = {**IN_PLACE, "masked": Masked(3, Linear())}[name]
    errors = []
    for sampler in (Ancestral(), Corrected(Ancestral(), corrector, 4)):
        generator = torch.Generator().manual_seed(0)
        x = dd.sample(process, exact_cavity(process, PAIR), (10_000, 2), sampler, 4, generator=generator)
        share = torch.bincount(3 * x[:, 0] + x[:, 1], minlength=9) / len(x)
        errors.append(float((share - PAIR.flatten()).abs().sum()))
    assert errors[1] < 0.85 * errors[0]


SERVED = [(name, corrector) for name in ("masked", "levels", "levels-xi", "gidd") for corrector in EVERY]


@pytest.mark.parametrize(
    ("name", "corrector"), slow_but(SERVED, ("levels", EVERY[4]), ("gidd", EVERY[3]), ("gidd", EVERY[4])), ids=repr
)
def test_a_batch_and_the_output_layer_change_nothing(name, corrector):
    process = GIDD(6, 0.3) if name == "gidd" else LEVELS[name]
    if not serves(corrector, process):
        with pytest.raises(TypeError, match=f"{type(corrector).__name__} needs"):
            generate(process, Halves(process), Corrected(Ancestral(), corrector))
        return
    sampler, halves = Corrected(Ancestral(), corrector, 2), Halves(process)
    tokens = generate(process, halves, sampler)
    assert 0 < halves.calls <= 7 * sampler.calls + sampler.end_calls
    assert torch.equal(generate(process, plain(halves), sampler), tokens)
    assert torch.equal(generate(process, halves, sampler, compact=False), tokens)
    alone = [
        dd.sample(process, halves, (1, 5), sampler, 7, generator=dd.KeyedGenerator(0, 0, torch.tensor([row])))
        for row in range(4)
    ]
    assert torch.equal(torch.cat(alone), tokens)
    assert not torch.equal(tokens, generate(process, halves))


@pytest.mark.parametrize("name", ["masked", "levels-xi"])
def test_edge_balance_asks_the_network_only_where_somebody_comes_down(name):
    process = LEVELS[name]
    halves, z = Halves(process), torch.zeros(3, 4, dtype=torch.int64)
    run = a_run(process, halves, z.shape)
    assert torch.equal(EdgeBalance(0.0).correct(run, z, at(0.5, 3), at(0.1, 3)), z)
    climbed = EdgeBalance(10.0).correct(run, z, at(0.5, 3), at(0.1, 3))
    assert halves.calls == 0 and (climbed >= process.vocab_size).any()
    EdgeBalance(10.0).correct(run, torch.full_like(z, process.num_states - 1), at(0.5, 3), at(0.1, 3))
    assert halves.calls == 1


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ForwardBackward(0), ValueError, r"amount is 0, must be in \[0.001, 1000\]"),
        (lambda: EdgeBalance(11), ValueError, r"strength is 11, must be in \[0, 10\]"),
        (lambda: Gibbs(0), ValueError, "positions is 0, must be at least 1"),
        (lambda: Gibbs(1.5), TypeError, "positions is 1.5, must be an int"),
        (lambda: Gibbs(1, "best"), ValueError, "select is 'best', must be one of 'random', 'margin'"),
        (lambda: SelfCorrection(steps=0), ValueError, "steps is 0, must be at least 1"),
        (lambda: SelfCorrection(time=0), ValueError, r"time is 0, must be in \(0, 1\)"),
        (lambda: SelfCorrection(temperature=0), ValueError, "temperature is 0, must be above 0"),
        (lambda: SelfCorrection(patience=0), ValueError, "patience is 0, must be at least 1"),
        (
            lambda: Corrected(Gibbs(), Ancestral()),
            TypeError,
            r"predictor is Gibbs\(.*\), must be a ddlib.samplers.Samp",
        ),
        (
            lambda: Corrected(Ancestral(), Psi()),
            TypeError,
            r"corrector is Psi\(.*\), must be a ddlib.samplers.Corrector",
        ),
        (lambda: Corrected(FirstHitting(), Gibbs()), TypeError, r"predictor is FirstHitting.*at no time.*Ancestral"),
        (lambda: Corrected(Ancestral(), Gibbs(), 0), ValueError, "steps is 0, must be at least 1"),
        (lambda: Corrected(Ancestral(), Gibbs(), 1, [0.5]), ValueError, r"interval is \[0.5\], must be two times"),
        (lambda: Corrected(Ancestral(), Gibbs(), 1, [0.5, 2]), ValueError, r"interval\[1\] is 2, must be in \[0, 1\]"),
        (lambda: Corrected(Ancestral(), Gibbs(), 1, [0.5, 0.5]), ValueError, "interval is .*, the earlier first"),
        (lambda: refused("masked", Gibbs()), TypeError, "Gibbs needs at least two states.*has 1: .*Remask takes them"),
        (lambda: refused("levels", Gibbs()), TypeError, "Gibbs needs at least two states.*never wrong.*Remask"),
        (
            lambda: refused("levels-xi", SelfCorrection()),
            TypeError,
            "SelfCorrection needs words that every other.*Remask",
        ),
        (
            lambda: refused("gidd", EdgeBalance()),
            TypeError,
            "EdgeBalance needs a process with levels.*ForwardBackward ser",
        ),
    ],
)
def test_bad_input_is_refused_before_the_network_runs(make, error, message):
    with pytest.raises(error, match=message):
        make()


def refused(name, corrector):
    def never(z, t):
        raise AssertionError("the network was asked")

    process = GIDD(6, 0.2) if name == "gidd" else LEVELS[name]
    generate(process, never, Corrected(Ancestral(), corrector))


# names and values


def test_registered():
    assert "corrected" in dd.registry.available("samplers")
    assert {"forward_backward", "edge_balance", "gibbs", "self_correction"} <= set(dd.registry.available("correctors"))


@pytest.mark.parametrize(
    "values",
    [
        yaml.safe_load("{kind: corrected, predictor: ancestral, corrector: {kind: gibbs, positions: 4}, steps: 2}"),
        "corrected:predictor=ancestral,corrector=gibbs:4,steps=2",
        'corrected:predictor=ancestral,corrector={"kind": "gibbs", "positions": 4},steps=2,interval=[0.0, 1.0]',
    ],
)
def test_values_of_yaml_and_of_the_command_line_build_it(values):
    built = dd.build("samplers", values)
    assert repr(built) == repr(Corrected(Ancestral(), Gibbs(4), 2))
    read = dd.parts.read("samplers", values)
    assert read["corrector"] == {"kind": "gibbs", "positions": 4, "select": "random"}
    assert dd.parts.read("samplers", read) == read


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"corrector": "gibs"},
            "samplers.corrector.kind: nothing in correctors is called 'gibs', did you mean 'gibbs'",
        ),
        ({"corrector": "gibbs:0"}, "samplers.corrector: positions is 0, must be at least 1"),
        (
            {"corrector": {"kind": "gibbs", "position": 2}},
            "samplers.corrector.position: no such key; did you mean positi",
        ),
        ({}, "samplers.corrector: is missing"),
        (
            {"corrector": "ddlib.samplers:Psi"},
            "samplers.corrector: .*Psi gives Psi.*must be a ddlib.samplers.Corrector",
        ),
    ],
)
def test_values_that_cannot_be_are_refused_by_their_place(values, said):
    with pytest.raises((TypeError, ValueError), match=said):
        dd.build("samplers", {"kind": "corrected", "predictor": "ancestral"} | values)


def test_a_class_of_another_kind_is_refused_by_the_room_that_it_should_be_from():
    assert dd.registry.room("correctors") == dd.registry.room("samplers") == "ddlib.samplers"
    assert dd.registry.room("presets") == "ddlib.presets" and dd.registry.room("schedules") == "ddlib.schedules"
