"""Sequences drawn block by block: distribution, tokens with a cache, prompts, endings and
options.
"""

from itertools import pairwise

import pytest
import torch
from cases import caches, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.block_networks import F64, NETWORKS, ByBlocks, Forgetful, Sparse
from zoo.calls import seeded
from zoo.joints import follows, joint
from zoo.networks import with_own_times
from zoo.processes import THREE_TOKENS

import ddlib as dd
from ddlib.contrib import Psi
from ddlib.paces import Blocks, LeftToRight, Pace, Ramp, RandomOrder, Together
from ddlib.samplers import Ancestral, Confidence, Euler, FirstHitting, Remask
from ddlib.samplers.controls import (
    EndOfText,
    Forbidden,
    RepetitionPenalty,
    Settled,
    Truncation,
    WholeBatch,
)
from ddlib.testing.oracle import exact_cavity

DRAWS = 3000


ALONG = [
    (LeftToRight(), Ancestral(), 2),
    (LeftToRight(), Psi(0.5), 3),
    (LeftToRight(), FirstHitting(), 1),
    (LeftToRight(), Remask(0.5), 3),
    (RandomOrder(), Ancestral(), 2),
    (RandomOrder(), Psi(0.5), 3),
    (Ramp(1.0), Ancestral(), 120),
    (Ramp(3.0), Psi(0.5), 160),
    (Blocks(2), Ancestral(), 120),
    (RandomOrder(), Remask(0.5), 3),
    (Ramp(1.0), Remask(0.5), 150),
]
CASES = [(name, *case) for name in THREE_TOKENS for case in ALONG]
NOW = [CASES[i] for i in (0, 13, 20, 26, 38)]
EACH = CASES


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "pace", "sampler", "steps"), EACH)
def test_two_tokens_follow_their_joint_distribution_at_any_pace(name, pace, sampler, steps):
    process = THREE_TOKENS[name]
    probs = joint(3, 2)
    if isinstance(sampler, FirstHitting | Remask) and name not in ("masks", "two levels"):
        sampler = Ancestral()  # those of processes with levels
    best = with_own_times(exact_cavity(process, probs))
    tokens = dd.sample(process, best, (DRAWS, 2), sampler, steps, pace=pace, generator=seeded(1))
    assert follows(tokens, probs)


@pytest.mark.statistical
def test_three_tokens_in_blocks_of_one_follow_theirs_in_one_step_each():
    process = THREE_TOKENS["two levels"]
    probs = joint(3, 3, seed=2)
    tokens = dd.sample(
        process,
        with_own_times(exact_cavity(process, probs)),
        (DRAWS, 3),
        None,
        1,
        pace=LeftToRight(),
    )
    assert follows(tokens, probs)


@pytest.mark.statistical
def test_tokens_behind_a_block_are_seen():
    process = THREE_TOKENS["GIDD"]
    probs = joint(3, 3, seed=2)
    prompt = torch.tensor([4, 4, 1]).clamp_max(process.num_states - 1)
    best = with_own_times(exact_cavity(process, probs))
    options = {"pace": LeftToRight(), "generator": seeded(3)}
    tokens = dd.sample(process, best, (DRAWS, 3), None, 2, prompt, **options)
    assert (tokens[:, 2] == 1).all() and follows(
        tokens[:, :2], probs[:, :, 1] / probs[:, :, 1].sum()
    )


TODAY = [Ancestral(), Psi(0.5)]


@pytest.mark.parametrize("name", THREE_TOKENS)
@pytest.mark.parametrize("sampler", TODAY, ids=str)
def test_one_block_and_together_draw_the_tokens_without_a_pace(name, sampler):
    process = THREE_TOKENS[name]
    denoiser = with_own_times(exact_cavity(process, joint(3, 2)))
    for make in (lambda: seeded(4), lambda: dd.KeyedGenerator(1, 2, torch.arange(64))):
        want = dd.sample(process, denoiser, (64, 2), sampler, 7, generator=make())
        for pace in (Together(), Blocks(2)):
            assert torch.equal(
                dd.sample(process, denoiser, (64, 2), sampler, 7, pace=pace, generator=make()), want
            )


class Squared(Pace):
    """All at one time, that runs another way."""

    def times(self, u, chance):
        return u**2


def test_a_pace_of_one_time_per_text_is_a_grid():
    process = THREE_TOKENS["two levels"]
    grid = torch.linspace(1, 0, 6, dtype=F64)
    denoiser = exact_cavity(process, joint(3, 2))  # it need not take times per position
    tokens = dd.sample(process, denoiser, (32, 2), Euler(), 5, pace=Squared(), generator=seeded(5))
    assert torch.equal(
        tokens, dd.sample(process, denoiser, (32, 2), Euler(), steps=grid**2, generator=seeded(5))
    )


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "truncation": st.sampled_from(
            [Truncation(t, 0.8, 2) for t in (0.0, 0.7, lambda t: 0.5 + t)]
        ),
        "forbidden": st.just(Forbidden([1])),
        "penalty": st.just(RepetitionPenalty(3.0)),
        "batch": st.just(WholeBatch()),
        "end": st.sampled_from([EndOfText(0, least=3), EndOfText(2)]),
        "settled": st.sampled_from([Settled(2.0), Settled(1.0)]),
    },
)


@settings(max_examples=examples(24))
@given(
    st.sampled_from(list(THREE_TOKENS)),
    st.sampled_from(list(NETWORKS)),
    st.sampled_from([(1, 2), (2, 2), (2, 4), (3, 3)]),
    st.sampled_from([Ancestral(), Psi(0.5), Confidence()]),
    KNOBS,
    st.integers(0, 3),
    st.integers(0, 99),
)
@pytest.mark.filterwarnings(
    "ignore:pace is Blocks"
)  # also of larger blocks than those of the network
def test_the_same_tokens_with_and_without_a_cache(
    name, network, sizes, sampler, knobs, given_words, seed
):
    process = THREE_TOKENS[name]
    (own, size) = sizes
    if (
        isinstance(sampler, Confidence)
        and process.reachable_from_all_tokens(torch.tensor([[0]])).any()
    ):
        sampler = Ancestral()
    denoiser = NETWORKS[network](process.num_states, 3, own)
    length = 12
    prompt = torch.randint(3, (5, given_words), generator=seeded(seed))
    if "forbidden" in knobs and name == "two levels":
        knobs.pop("forbidden")

    def drawn(keep, rows=slice(None)):
        return dd.sample(
            process,
            denoiser,
            (len(prompt[rows]), length),
            sampler,
            3,
            prompt[rows],
            pace=Blocks(size),
            controls=[*caches(keep), *knobs.values()],
            generator=list(range(seed, seed + 5))[rows],
        )

    tokens = drawn(True)
    assert torch.equal(tokens, drawn(False)) and torch.equal(tokens[:, :given_words], prompt)
    assert torch.equal(tokens[1:3], drawn(True, slice(1, 3)))


def short(size=2, words=4, **more):
    """Masks over few tokens, and a network that sees by blocks."""
    process = dd.presets.mdlm(words)
    return process, Sparse(process.num_states, words, size)


def seen_by(denoiser, length=8, **options):
    """Shapes of the calls of a denoiser."""
    process = dd.presets.mdlm(3)
    network = denoiser(process.num_states, 3, 2)
    tokens = dd.sample(
        process, network, (3, length), None, 2, pace=Blocks(2), generator=seeded(0), **options
    )
    return tokens, network


def test_cached_blocks_are_not_computed_again():
    tokens, network = seen_by(Sparse)
    assert {n for _, n in network.seen} == {2} and network.prefilled == 3 * 6
    again, network = seen_by(Sparse, controls=[dd.contrib.Cache("none")])
    assert {n for _, n in network.seen} == {2, 4, 6, 8} and network.prefilled == 0
    assert torch.equal(tokens, again)
    again, network = seen_by(Forgetful)
    assert {n for _, n in network.seen} == {2, 4, 6, 8} and torch.equal(tokens, again)


def test_blocks_of_another_size_show_later_positions():
    process = dd.presets.mdlm(3)
    network = ByBlocks(process.num_states, 3, 4)
    dd.sample(process, network, (3, 8), None, 2, pace=Blocks(2), generator=seeded(0))
    assert {n for _, n in network.seen} == {8}


def listened(process, network, prompt=None, length=6, steps=2, size=2, rows=2, **options):
    """The tokens, and what ``on_step`` was shown."""
    steps_seen = []
    tokens = dd.sample(
        process,
        network,
        (rows, length),
        None,
        steps,
        prompt,
        pace=Blocks(size),
        generator=seeded(2),
        on_step=lambda k, t, z: steps_seen.append((k, t.clone(), z.clone())),
        **options,
    )
    return tokens, steps_seen


def test_steps_show_the_whole_text_and_count_over_blocks():
    process, network = short()
    tokens, steps_seen = listened(process, network)
    assert [k for k, _, _ in steps_seen] == list(range(-1, 6))
    assert all(t.shape == z.shape == (2, 6) for _, t, z in steps_seen)
    assert steps_seen[1][1][0].tolist() == [0.5, 0.5, 1, 1, 1, 1]
    assert steps_seen[3][1][0].tolist() == [0, 0, 0.5, 0.5, 1, 1]
    for _, t, z in steps_seen:
        assert (z[t == 1] == 4).all() and torch.equal(z[t == 0], tokens[t == 0])


def test_blocks_of_the_prompt_are_not_drawn_and_others_are_filled_in():
    process, network = short()
    prompt = torch.tensor([[0, 1, 2, 4, 4, 3, 1, 0]] * 2)
    tokens, steps_seen = listened(process, network, prompt, length=8)
    stands = prompt < 4
    assert torch.equal(tokens[stands], prompt[stands]) and tokens.max() < 4
    assert len(steps_seen) == 1 + 2 * 2  # two blocks of four hold masks
    assert (steps_seen[0][1][:, 6:] == 0).all() and torch.equal(
        steps_seen[0][2][:, 6:], prompt[:, 6:]
    )


def test_no_block_is_computed_behind_the_ends_of_all_texts():
    process, network = short()
    probs = torch.tensor([0.0, 0.0, 30.0, 0.0]).double()

    class Ends(ByBlocks):
        def __call__(self, z, t, *, clean=None, cache=None):
            first = 0 if cache is None else cache.tokens.shape[1]
            sign = torch.where(first + torch.arange(z.shape[1]) >= 3, 1, -1)
            return super().__call__(z, t, cache=cache) + sign[:, None] * probs

    network = Ends(5, 4, 2, length=40)
    ending = EndOfText(2, fill=1)
    tokens = dd.sample(
        process, network, (3, 40), None, 2, controls=[ending], pace=Blocks(2), generator=seeded(1)
    )
    assert (tokens[:, 3] == 2).all() and (tokens[:, 4:] == 1).all() and (tokens[:, :3] != 2).all()
    assert network.prefilled == 3 * 2  # the second block is the last that is evaluated
    several = EndOfText(2, last=False)
    tokens = dd.sample(
        process, network, (3, 40), None, 2, controls=[several], pace=Blocks(2), generator=seeded(1)
    )
    assert (tokens[:, 3:] == 2).all() and network.prefilled == 3 * (2 + 38)


def test_a_text_that_has_ended_waits_for_the_others():
    process = dd.presets.mdlm(4)
    network = Sparse(5, 4, 2)
    options = {"controls": [EndOfText(2)], "pace": Blocks(2)}
    tokens = dd.sample(process, network, (16, 12), None, 3, generator=range(16), **options)
    for row in range(16):
        assert torch.equal(
            dd.sample(process, network, (1, 12), None, 3, generator=[row], **options)[0],
            tokens[row],
        )
    lengths = (tokens == 2).int().argmax(1)
    assert len(lengths.unique()) > 2


def test_repetition_looks_at_the_whole_text():
    process = dd.presets.mdlm(6)

    class Flat:
        own_times = True

        def __call__(self, z, t):
            return torch.zeros(*z.shape, 6)

    for length, given_words in (6, {}), (4, {"prompt": torch.tensor([6, 6, 6, 1])}):
        options = given_words | {
            "controls": [RepetitionPenalty(1e20)],
            "pace": LeftToRight(),
            "generator": seeded(0),
        }
        tokens = dd.sample(process, Flat(), (50, length), None, 1, **options)
        assert all(len(row.unique()) == length for row in tokens)


def test_ends_come_no_earlier_than_they_may():
    process, network = short()
    ending = EndOfText(2, least=5)
    tokens = dd.sample(
        process, network, (64, 8), None, 2, controls=[ending], pace=Blocks(2), generator=seeded(1)
    )
    assert (tokens[:, :5] != 2).all() and (tokens[:, 5:] == 2).any()


class Unasked(ByBlocks):
    """A network that must not be called."""

    def features(self, z, t, *, cache=None):
        raise AssertionError


class Early(Pace):
    """A path that leaves the interval."""

    def times(self, u, chance):
        return (1.5 * u)[:, None].expand_as(chance)


def at_pace(pace, sampler=None, denoiser=Unasked(4, 3, 6)):  # noqa: B008
    return dd.sample(dd.presets.mdlm(3), denoiser, (2, 6), sampler, 2, pace=pace)


test_unsupported_models_are_refused = refuses(r"""
    at_pace(Blocks(4)) | ValueError | size is 4, must divide the length of the sequence, 6
    at_pace(RandomOrder(4)) | ValueError | size is 4, must divide
    at_pace("blocks") | TypeError | pace is 'blocks', must be a ddlib.paces.Pace object
    at_pace(Early(), None, ByBlocks(4, 3, 6)) | ValueError
        | Early.*times hold 1\.5, must be at most 1
""")


@pytest.mark.parametrize("sampler", [Ancestral(), Psi(0.3)], ids=str)
def test_positions_at_a_fixed_time_keep_their_state(sampler):
    process = THREE_TOKENS["uniform"]
    seen = []
    dd.sample(
        process,
        ByBlocks(3, 3, 4),
        (20, 4),
        sampler,
        4,
        pace=RandomOrder(2),
        generator=seeded(0),
        on_step=lambda k, t, z: seen.append((t.clone(), z.clone())),
    )
    for (t, z), (s, after) in pairwise(seen):
        assert (t > s).any() and torch.equal(z[t == s], after[t == s])


@pytest.mark.parametrize("pace", [RandomOrder(), RandomOrder(2), Ramp(1.0)], ids=str)
def test_times_of_positions_are_keyed_by_the_text(pace):
    process = THREE_TOKENS["two levels"]
    network = ByBlocks(6, 3, 4)
    tokens = dd.sample(process, network, (6, 4), None, 3, pace=pace, generator=range(6))
    assert torch.equal(
        dd.sample(process, network, (2, 4), None, 3, pace=pace, generator=[2, 3]), tokens[2:4]
    )
    steps_seen, options = [], {"on_step": lambda k, t, z: steps_seen.append(t.clone())}
    dd.sample(process, network, (2, 4), None, 3, pace=pace, generator=[2, 3], **options)
    assert len(steps_seen) == 3 * pace.parts(4) + 1 and steps_seen[0].shape == (2, 4)
    path = torch.stack(steps_seen)
    assert (path[0] == 1).all() and (path[-1] == 0).all() and (path.diff(dim=0) <= 0).all()


def test_behind_the_block_no_token_is_present_for_a_control():
    """Of uniform noise every state is a token: the number that stands for an unknown one is none.

    A penalty of tokens that are present forbids them; nothing stands behind the first position.
    """
    process = dd.processes.Uniform(5, dd.schedules.Linear())
    network = with_own_times(lambda z, t: torch.zeros(*z.shape, 5))
    drawn, path = dd.sample(
        process,
        network,
        (4000, 2),
        steps=1,
        pace=LeftToRight(),
        controls=[RepetitionPenalty(1e6)],
        generator=seeded(),
        record=True,
    )
    assert (path.states[0][:, 1] >= 5).all()
    shares = torch.bincount(drawn[:, 0], minlength=5) / 4000
    torch.testing.assert_close(shares, torch.full((5,), 0.2), rtol=0, atol=0.03)
