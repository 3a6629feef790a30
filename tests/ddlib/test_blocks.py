"""Texts drawn block by block: the same law, the same words with what is kept, prompts, endings and knobs."""

import pytest
import torch
from blocking import F64, NETWORKS, ByBlocks
from cases import examples, slow_but
from hypothesis import given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.paces import Blocks, LeftToRight, Pace, Ramp, RandomOrder, Together
from ddlib.samplers import Ancestral, Confidence, EndOfText, Euler, FirstHitting, Particles, Psi, Remask, Settled
from ddlib.testing.oracle import exact_cavity
from ddlib.verification.cases import frequencies, tally

PROCESSES = {
    "masks": dd.presets.mdlm(3),
    "two levels": dd.presets.hdlm([0, 0, 1], gamma=1.5, xi=0.8),
    "uniform": dd.processes.Uniform(3, dd.schedules.Cosine()),
    "GIDD": dd.presets.gidd(3, 0.3),
    "noisy": dd.processes.Noisy(dd.hierarchies.Flat(3), dd.schedules.Linear(), 0.2),
}
DRAWS = 3000


def joint(length, words=3, seed=0):
    noise = torch.randn(words**length, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return noise.softmax(0).view([words] * length)


def told(denoiser):
    denoiser.own_times = True
    return denoiser


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def follows(texts, law, draws=DRAWS):
    """Whether counts of texts are those of the joint law, by exact binomial bounds."""
    flat = torch.zeros(len(texts), dtype=torch.int64)
    for column in texts.unbind(1):
        flat = flat * law.shape[0] + column
    counts = tally(flat[:, None], law.numel())[0]
    found = frequencies("texts", ("text",), counts, law.flatten(), draws)
    return bool(((found.got - found.expected).abs() <= found.allowed).all())


ALONG = [
    (LeftToRight(), Ancestral(), 2), (LeftToRight(), Psi(0.5), 3), (LeftToRight(), FirstHitting(), 1),
    (LeftToRight(), Remask(0.5), 3), (RandomOrder(), Ancestral(), 2), (RandomOrder(), Psi(0.5), 3),
    (Ramp(1.0), Ancestral(), 120), (Ramp(3.0), Psi(0.5), 160), (Blocks(2), Ancestral(), 120),
]  # fmt: skip
CASES = [(name, *case) for name in PROCESSES for case in ALONG]


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "pace", "sampler", "steps"), slow_but(CASES, CASES[0], CASES[13], CASES[20], CASES[32])
)
def test_two_words_follow_their_joint_law_at_any_pace(name, pace, sampler, steps):
    process, law = PROCESSES[name], joint(2)
    if isinstance(sampler, FirstHitting | Remask) and name not in ("masks", "two levels"):
        sampler = Ancestral()  # those serve processes with levels
    best = told(exact_cavity(process, law))
    words = dd.sample(process, best, (DRAWS, 2), sampler, steps, pace=pace, generator=noise(1))
    assert follows(words, law)


@pytest.mark.statistical
def test_three_words_in_blocks_of_one_follow_theirs_in_one_step_each():
    process, law = PROCESSES["two levels"], joint(3, seed=2)
    words = dd.sample(process, told(exact_cavity(process, law)), (DRAWS, 3), None, 1, pace=LeftToRight())
    assert follows(words, law)


@pytest.mark.statistical
def test_words_behind_a_block_are_seen():
    process, law = PROCESSES["GIDD"], joint(3, seed=2)
    prompt = torch.tensor([4, 4, 1]).clamp_max(process.num_states - 1)
    words = dd.sample(
        process, told(exact_cavity(process, law)), (DRAWS, 3), None, 2, prompt, infill=True, pace=LeftToRight(),
        generator=noise(3),
    )  # fmt: skip
    assert (words[:, 2] == 1).all() and follows(words[:, :2], law[:, :, 1] / law[:, :, 1].sum())


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("sampler", [Ancestral(), Psi(0.5)], ids=str)
def test_one_block_and_together_are_today_s_words(name, sampler):
    process = PROCESSES[name]
    denoiser = told(exact_cavity(process, joint(2)))
    for make in (lambda: noise(4), lambda: dd.KeyedGenerator(1, 2, torch.arange(64))):
        want = dd.sample(process, denoiser, (64, 2), sampler, 7, generator=make())
        for pace in (Together(), Blocks(2)):
            assert torch.equal(dd.sample(process, denoiser, (64, 2), sampler, 7, pace=pace, generator=make()), want)


class Squared(Pace):
    """All at one time, that runs another way."""

    def times(self, u, chance):
        return u**2


def test_a_pace_of_one_time_per_text_is_a_grid():
    process, grid = PROCESSES["two levels"], torch.linspace(1, 0, 6, dtype=F64)
    denoiser = exact_cavity(process, joint(2))  # it need not be told times of positions
    words = dd.sample(process, denoiser, (32, 2), Euler(), 5, pace=Squared(), generator=noise(5))
    assert torch.equal(words, dd.sample(process, denoiser, (32, 2), Euler(), times=grid**2, generator=noise(5)))


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, lambda t: 0.5 + t]), "top_p": st.just(0.8), "top_k": st.just(2),
        "forbidden": st.just([1]), "repetition_penalty": st.just(3.0), "compact": st.booleans(),
        "endings": st.sampled_from([(EndOfText(0, least=3),), (Settled(2.0),), (EndOfText(2), Settled(1.0))]),
    },
)  # fmt: skip


@settings(max_examples=examples(60))
@given(
    st.sampled_from(list(PROCESSES)), st.sampled_from(list(NETWORKS)), st.sampled_from([(1, 2), (2, 2), (2, 4), (3, 3)]),
    st.sampled_from([Ancestral(), Psi(0.5), Confidence()]), KNOBS, st.integers(0, 3), st.integers(0, 99),
)  # fmt: skip
def test_the_same_words_with_and_without_what_is_kept(name, network, sizes, sampler, knobs, given_words, seed):
    process, (own, size) = PROCESSES[name], sizes
    if isinstance(sampler, Confidence) and process.from_anywhere(torch.zeros(1, 1, dtype=torch.int64)).any():
        sampler = Ancestral()
    denoiser, length = NETWORKS[network](process.num_states, 3, own), 12
    prompt = torch.randint(3, (5, given_words), generator=noise(seed))
    if "forbidden" in knobs and name == "two levels":
        knobs = {**knobs, "forbidden": []}

    def drawn(keep, rows=slice(None)):
        return dd.sample(
            process, denoiser, (len(prompt[rows]), length), sampler, 3, prompt[rows], pace=Blocks(size), keep=keep,
            seeds=list(range(seed, seed + 5))[rows], **knobs,
        )  # fmt: skip

    words = drawn(True)
    assert torch.equal(words, drawn(False)) and torch.equal(words[:, :given_words], prompt)
    assert torch.equal(words[1:3], drawn(True, slice(1, 3)))
