"""DiT by blocks under samplers: the same tokens with and without its keys and values, for all
options.
"""

import pytest
import torch
from cases import caches, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import WORDS, trained

import ddlib as dd
from ddlib.samplers import controls as C
from ddlib.utils.validation import UsageWarning


@pytest.mark.filterwarnings("ignore:pace is .*, and the denoiser .* has blocks")
@settings(max_examples=examples(24))
@given(
    st.sampled_from([(2, 2), (2, 4), (3, 3)]),
    st.sampled_from([dd.samplers.Ancestral(), dd.contrib.Psi(0.5)]),
    st.sampled_from([[], [C.WholeBatch()], [C.RepetitionPenalty(2.0)], [C.EndOfText(0)]]),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_same_words_with_and_without_keys_and_values(sizes, sampler, knobs, timed, seed):
    own, size = sizes
    model = (
        trained(num_states=WORDS + 1, block_size=own, depth=2, time_conditioned=timed)
        .double()
        .eval()
    )
    process = dd.processes.Masked(WORDS, dd.schedules.Linear())

    def drawn(keep, rows=slice(None)):
        seeds = list(range(seed, seed + 4))[rows]
        return dd.sample(
            process,
            model,
            (len(seeds), 12),
            sampler,
            3,
            pace=dd.paces.Blocks(size),
            controls=[*caches(keep), *knobs],
            generator=seeds,
        )

    tokens = drawn(True)
    assert torch.equal(tokens, drawn(False)) and torch.equal(drawn(True, slice(1, 3)), tokens[1:3])


@pytest.mark.parametrize(
    "pace", [dd.paces.Blocks(8), None, dd.paces.Together(), dd.paces.RandomOrder()], ids=str
)
def test_noise_in_earlier_blocks_is_warned_of(pace):
    """Blocks(2) are parts of the network's: what stands before a position is clean, as in
    training.
    """
    model = trained(num_states=WORDS + 1, block_size=4, depth=2).eval()
    process = dd.processes.Masked(WORDS, dd.schedules.Linear())
    for right in (dd.paces.Blocks(4), dd.paces.Blocks(2), dd.paces.LeftToRight()):
        dd.sample(process, model, (2, 8), None, 2, pace=right)
    dd.sample(process, model, (2, 4), None, 2)  # one block
    with pytest.warns(
        UsageWarning,
        match=r"pace is .*, and the denoiser DiT has blocks of 4: .* Use pace=Blocks\(4\)",
    ):
        dd.sample(process, model, (2, 8), None, 2, pace=pace)


def test_a_window_is_all_that_is_computed():
    model = trained(num_states=WORDS + 1, block_size=4, depth=2).eval()
    process = dd.processes.Masked(WORDS, dd.schedules.Linear())
    widths = []
    model.embedding.register_forward_hook(
        lambda module, given, result: widths.append(result.shape[1])
    )
    noise = torch.Generator().manual_seed(0)
    dd.sample(process, model, (2, 24), None, 3, pace=dd.paces.Blocks(4), generator=noise)
    assert set(widths) <= {0, 4}
    widths.clear()
    dd.sample(
        process,
        model,
        (2, 24),
        None,
        3,
        pace=dd.paces.Blocks(4),
        controls=[dd.contrib.Cache("none")],
        generator=noise,
    )
    assert set(widths) == {4, 8, 12, 16, 20, 24}
