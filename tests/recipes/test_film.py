"""Texts step by step: what happened to each position, with what chance, and that nothing is drawn
differently.
"""

from dataclasses import replace

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from zoo.trees import ABOVE, PARENTS, XI_TREE

import ddlib as dd
from ddlib.contrib import Filmed, Mark, Overshoot, Psi, ThetaTrapezoidal
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Corrected,
    EntropyBounded,
    FirstHitting,
    Gibbs,
    Remask,
    Sampler,
    SelfCorrection,
    State,
)
from ddlib.testing import strategies

F64 = torch.float64
WORDS = 6
LENGTH = 5
STEPS = 8
PLAIN = dd.hierarchies.Tree([PARENTS, ABOVE])
PROCESSES = {
    "masks": dd.processes.Masked(WORDS, dd.schedules.Linear()),
    "three levels": dd.processes.Hierarchical(PLAIN, dd.schedules.Cosine()),
    "three levels, xi < 1": dd.processes.Hierarchical(XI_TREE, dd.schedules.Linear()),
    "GIDD": dd.processes.GIDD(WORDS, 0.4),
    "noisy": dd.presets.hdlm_noisy([PARENTS, ABOVE], [0.3, 0.2, 0.0], xi=[1.0, 0.8]),
    "uniform": dd.processes.Uniform(WORDS, dd.schedules.Linear()),
}
SAMPLERS = [
    Ancestral(),
    Ancestral(force_transition=True),
    FirstHitting(),
    Confidence(),
    EntropyBounded(1.0),
    Remask(0.5),
    Remask(1.0, "confidence"),
    Overshoot(0.5),
    Psi(0.5),
    ThetaTrapezoidal(),
    Corrected(Psi(0.9), Gibbs(), 2, (0.0, 0.6)),
    Corrected(Ancestral(), SelfCorrection(steps=4)),
]


class Table:
    """A network whose answer about a position depends on its neighbours' states and on the time.

    Counts its calls.
    """

    def __init__(self, process):
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(
            process.num_states, process.vocab_size, generator=generator, dtype=F64
        )
        self.own = torch.randn(LENGTH, process.vocab_size, generator=generator, dtype=F64)
        self.calls = 0

    def __call__(self, z, t):
        self.calls += 1
        time = t.to(F64)[:, None, None]
        return (
            self.own[: z.shape[1]]
            + self.table[z.roll(1, 1)] * (1 + time)
            + self.table[z.roll(-1, 1)]
        )


def sample(process, sampler, rows=3, denoiser=None, **more):
    more = {"steps": STEPS} | more
    return dd.sample(
        process,
        denoiser or Table(process),
        (rows, LENGTH),
        sampler,
        generator=torch.Generator().manual_seed(5),
        **more,
    )


def filmed(process, sampler, most=3, on_step=None, **more):
    """Words, and texts on their way to them."""
    film = Filmed(sampler, most, on_step)
    assert repr(film) == repr(sampler)
    words = sample(process, film, on_step=film.on_step, **more)
    return words, film.end(words)


def serves(process, sampler):
    try:
        sample(process, sampler, rows=1)
    except TypeError:
        return False
    return True


PAIRS = [(name, repr(sampler)) for name in PROCESSES for sampler in SAMPLERS]
FAST = [
    ("three levels, xi < 1", repr(Remask(0.5))),
    ("three levels", repr(ThetaTrapezoidal())),
    ("GIDD", repr(SAMPLERS[-1])),
    ("uniform", repr(SAMPLERS[-2])),
    ("noisy", repr(SAMPLERS[-1])),
]


@pytest.mark.parametrize(("process", "sampler"), PAIRS)
def test_every_step_and_call_is_kept_and_nothing_is_drawn_differently(process, sampler):
    process = PROCESSES[process]
    sampler = next(one for one in SAMPLERS if repr(one) == sampler)
    if not serves(process, sampler):
        return
    seen = []
    prompt = torch.full((3, LENGTH), process.num_states - 1)
    prompt[:, 1] = 2
    more = dict(prompt=prompt) if process.num_states > process.vocab_size else {}
    network = Table(process)
    _, (text,) = filmed(process, sampler, rows=1, denoiser=network)
    assert text.frames[-1].calls == network.calls > 0
    words, texts = filmed(process, sampler, 2, lambda k, t, z: seen.append(z[:2].tolist()), **more)
    assert torch.equal(words, sample(process, sampler, **more))
    assert len(texts) == 2
    for row, text in enumerate(texts):
        assert text.given == ([1] if more else [])
        assert [text.states(step) for step in range(len(seen))] == [states[row] for states in seen]
        assert text.states(len(text.frames)) == words[row].tolist()
        calls = [frame.calls for frame in text.frames]
        assert calls == sorted(calls)
        before = list(text.start)
        for frame in text.frames:
            for event in frame.events:
                levels = [
                    int(process.level_of(torch.tensor([[s]])))
                    for s in (event.state, before[event.position])
                ]
                rises = levels[0] - levels[1]
                assert event.state != before[event.position]
                assert event.mark == (
                    Mark.UP if rises > 0 else Mark.DOWN if rises < 0 else Mark.CHANGED
                )
                if event.mark == Mark.UP:
                    assert event.chance is None and not event.others
                if event.chance is not None:
                    chances = [chance for _, chance in event.others]
                    assert -1e-9 <= event.chance <= 1 + 1e-9 and chances == sorted(
                        chances, reverse=True
                    )
                    assert dict(event.others).get(event.state, event.chance) == pytest.approx(
                        event.chance
                    )
                    assert chances[0] >= event.chance - 1e-9
                before[event.position] = event.state


def test_a_sequence_that_is_not_evaluated_counts_no_call():
    """All but one text of the batch are given."""
    process = PROCESSES["masks"]
    prompt = torch.zeros(3, LENGTH, dtype=torch.int64)
    prompt[1] = process.num_states - 1
    for compact in (True, False):
        _, texts = filmed(
            process,
            Ancestral(),
            prompt=prompt,
            controls=[*([] if compact else [dd.controls.WholeBatch()])],
        )
        calls = [text.frames[-1].calls for text in texts]
        assert calls[1] > 0 and calls[0] == calls[2] == (0 if compact else calls[1])


@pytest.mark.parametrize("name", ["masks", "three levels", "uniform"])
@pytest.mark.parametrize("size", [2, 5])
def test_a_text_by_blocks_is_filmed_from_its_first_step_to_its_last(name, size):
    """Blocks of two: the last is shorter, so texts of six; one block is the whole text."""
    process = PROCESSES[name]
    seen = []
    length = 6 if size == 2 else LENGTH
    network = Table(process)
    network.own = network.own.repeat(2, 1)
    network.own_times = True
    answer = lambda z, t: network(z, t.mean(1) if t.ndim == 2 else t)  # noqa: E731
    answer.own_times = True
    prompt = torch.full((3, length), process.num_states - 1)
    prompt[:, 1] = 2
    more = dict(prompt=prompt) if process.num_states > process.vocab_size else {}
    more |= dict(denoiser=answer, pace=dd.paces.Blocks(size))

    def drawn(sampler, **how):
        generator = torch.Generator().manual_seed(5)
        return dd.sample(
            process, how.pop("denoiser"), (3, length), sampler, 4, generator=generator, **how
        )

    film = Filmed(Ancestral(), 2, lambda k, t, z: seen.append(z[:2].tolist()))
    words = drawn(film, on_step=film.on_step, **more)
    texts = film.end(words)
    calls = network.calls
    assert torch.equal(words, drawn(Ancestral(), **more)) and len(texts) == 2
    for row, text in enumerate(texts):
        assert text.given == ([1] if "prompt" in more else [])
        assert [text.states(step) for step in range(len(seen))] == [states[row] for states in seen]
        assert text.states(len(text.frames)) == words[row].tolist()
        counted = [frame.calls for frame in text.frames]
        assert counted == sorted(counted) and 0 < counted[-1] <= calls
        assert [frame.t for frame in text.frames[:4]] == pytest.approx([0.75, 0.5, 0.25, 0.0])
        assert len(text.frames) in (4 * length // size, 4 * length // size + 1)
        come = [
            event for frame in text.frames for event in frame.events if event.chance is not None
        ]
        free = set(range(length)) - set(text.given)
        assert {event.position for event in come} == free or name == "uniform", (
            "there noise may stay as it is"
        )


def by_posterior(process, cavity, text):
    """For each descent: its probability, and the probabilities of the states of its level by Bayes'
    rule.
    """
    times = [1.0, *(frame.t for frame in text.frames)]
    for step, frame in enumerate(text.frames):
        z = torch.tensor([text.states(step)])
        t, s = (torch.tensor([time], dtype=F64) for time in times[step : step + 2])
        probs = process.posterior(cavity(z, t).softmax(-1), z, t, s)[0]
        for event in frame.events:
            level = process.level_of(torch.arange(process.num_states)[None])[0]
            mates = torch.where(level == level[event.state], probs[event.position], 0.0)
            yield event, mates / mates.sum()


CHANCES = [
    (name, meaning)
    for name in ("masks", "three levels", "three levels, xi < 1")
    for meaning in ("cavity", "posterior", "children")
]


@pytest.mark.parametrize(
    ("name", "parameterization"),
    CHANCES,
)
def test_a_chance_is_that_of_bayes_rule(name, parameterization):
    process = PROCESSES[name]
    number = 0
    network = Table(process)
    if parameterization != "cavity":
        columns = process.num_states - 1 if parameterization == "children" else WORDS
        table = torch.randn(
            process.num_states, columns, generator=torch.Generator().manual_seed(2), dtype=F64
        )
        network = lambda z, t: table[z.roll(1, 1)] + table[z.roll(-1, 1)]  # noqa: E731
    _, texts = filmed(process, Ancestral(), denoiser=network, parameterization=parameterization)

    def cavity(z, t):
        return dd.cavity_logits(process, network(z, t.float()), z, t, parameterization)

    for text in texts:
        for event, probs in by_posterior(process, cavity, text):
            number += 1
            assert event.mark == Mark.DOWN
            assert event.chance == pytest.approx(float(probs[event.state]), abs=1e-9)
            best = probs.topk(len(event.others))
            assert [chance for _, chance in event.others] == pytest.approx(
                best.values.tolist(), abs=1e-9
            )
    assert number >= 3 * LENGTH


@settings(max_examples=examples(24))
@given(strategies.hierarchies(max_depth=4, max_words=7), strategies.exact_schedules())
def test_a_chance_is_that_of_bayes_rule_in_any_hierarchy(hierarchy, schedule):
    process = dd.processes.Hierarchical(hierarchy, schedule)
    network = Table(process)
    _, (text,) = filmed(
        process, Ancestral(), rows=1, denoiser=network, steps=torch.linspace(1, 0, 5).double()
    )
    for event, probs in by_posterior(process, lambda z, t: network(z, t.float()), text):
        assert event.chance == pytest.approx(float(probs[event.state]), abs=1e-9)


@pytest.mark.parametrize("name", ["GIDD", "uniform"])
def test_a_word_without_levels_has_the_chance_of_the_word(name):
    process = PROCESSES[name]
    network = Table(process)
    number = 0
    _, texts = filmed(process, Ancestral(), denoiser=network)
    for text in texts:
        for step, frame in enumerate(text.frames):
            z = torch.tensor([text.states(step)])
            t = torch.tensor([1.0 if not step else text.frames[step - 1].t])
            probs = network(z, t).softmax(-1)[0]
            for event in frame.events:
                number += event.chance is not None
                assert (event.chance is None) == (event.mark == Mark.UP)
                if event.chance is not None:
                    assert event.chance == pytest.approx(
                        float(probs[event.position, event.state]), abs=1e-9
                    )
    assert number >= 3 * LENGTH


def test_remasked_tokens_are_marked_and_drawn_anew():
    _, texts = filmed(PROCESSES["three levels"], Remask(0.5))
    marks = [event.mark for text in texts for frame in text.frames for event in frame.events]
    assert marks.count(Mark.UP) > 3 and marks.count(Mark.DOWN) > marks.count(Mark.UP)
    _, texts = filmed(PROCESSES["GIDD"], Corrected(Ancestral(), SelfCorrection(steps=4)))
    ends = [text.frames[STEPS:] for text in texts]
    assert any(
        event.mark == Mark.CHANGED for frames in ends for frame in frames for event in frame.events
    )
    assert all(len(frames) == 1 and frames[0].t == 0 for frames in ends)


def test_temperature_has_no_part_in_a_chance():
    process = PROCESSES["masks"]
    _, texts = filmed(process, FirstHitting(), denoiser=Table(process), temperature=0.0)
    events = [event for text in texts for frame in text.frames for event in frame.events]
    assert all(event.others[0][0] == event.state and 0 < event.chance < 1 for event in events)


def test_early_endings_are_recorded_too():
    """Endings call the network separately, stop the steps, and change tokens at the end."""
    process = PROCESSES["three levels"]
    network = Table(PROCESSES["three levels"])
    network.table.zero_()  # so that it does not change its mind
    endings = [dd.controls.Settled(entropy=10.0, steps=2), dd.controls.EndOfText(2, fill=0)]
    words, (text,) = filmed(process, Confidence(), rows=1, denoiser=network, controls=[*endings])
    calls = network.calls
    assert torch.equal(
        words, sample(process, Confidence(), rows=1, denoiser=network, controls=[*endings])
    )
    assert 0 < len(text.frames) < STEPS and text.states(len(text.frames)) == words[0].tolist()
    assert text.frames[-1].calls == calls > 0
    p = network(words, torch.ones(1)).softmax(-1)
    number = 0
    # children do not depend on them
    t = torch.tensor([0.6], dtype=F64)
    s = torch.tensor([0.3], dtype=F64)
    level = process.level_of(torch.arange(process.num_states)[None])[0]
    for step, frame in enumerate(text.frames):
        before = torch.tensor([text.states(step)])
        probs = process.posterior(p, before, t, s)[0]
        for event in frame.events:
            if (
                level[event.state] == level[before[0, event.position]] - 1
            ):  # one draw, by the sampler or by the ending
                mates = torch.where(level == level[event.state], probs[event.position], 0.0)
                assert event.chance == pytest.approx(
                    float(mates[event.state] / mates.sum()), abs=1e-9
                )
                number += 1
    assert number >= 3


def test_the_wrapper_supports_the_processes_of_its_sampler():
    process = PROCESSES["masks"]
    guidance = dd.guidance.ClassifierFree.examples()[-1]
    particles = dd.samplers.Particles(Ancestral(), lambda z, t: 0.0 * t, 2)
    with pytest.raises(TypeError, match="a row has several sequences"):
        filmed(process, particles, controls=[dd.controls.EndOfText(2)])
    assert guidance.has_step_distribution
    texts = filmed(
        guidance.process, Ancestral(), denoiser=guidance, parameterization=guidance.parameterization
    )[0]
    assert bool((texts < guidance.process.vocab_size).all())


class Twice(Sampler):
    """Draws two texts in place of each, and shows the first."""

    def init(self, run):
        self.both = Ancestral().init(replace(run, free=run.free.repeat_interleave(2, 0)))
        return State(self.both.z[::2], self.both.t[::2])

    def step(self, run, state, k):
        self.both = Ancestral().step(
            replace(run, free=run.free.repeat_interleave(2, 0)), self.both, k
        )
        return State(self.both.z[::2], self.both.t[::2])


def test_samplers_with_several_sequences_per_row_are_filmed_without_chances():
    network = Table(PROCESSES["masks"])
    words, texts = filmed(PROCESSES["masks"], Twice(), denoiser=network)
    for row, text in enumerate(texts):
        assert text.states(len(text.frames)) == words[row].tolist()
        assert 0 < text.frames[-1].calls <= network.calls
        assert all(event.chance is None for frame in text.frames for event in frame.events)
