"""Philox against its published vectors.

Keyed noise belongs to the example, on every device and rank.
"""

import pytest
import scipy.stats
import torch
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import F64, SIX_TOKENS

import ddlib as dd
from ddlib.utils.philox import philox
from ddlib.utils.random import rand

PROCESSES = SIX_TOKENS | {
    "rates": dd.processes.RateMatrix(torch.ones(7, 7) - 7 * torch.eye(7), dd.schedules.Linear(), 6)
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def keyed(index, seed=3, step=5):
    return dd.KeyedGenerator(seed, step, torch.as_tensor(index))


def noised(process, x, index, **key):
    """Draws of a training step: times first, then noise."""
    generator = keyed(index, **key)
    t = dd.sample_times(len(x), generator=generator, dtype=F64)
    return t, process.sample(x, t, generator)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    out = philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key])
    assert [int(word) for word in out] == words


def test_scrambled_words_share_the_bits_they_shared_and_no_others():
    words = torch.randint(2**32, (4096,), generator=seeded())
    words = torch.cat([words, words ^ 1, words ^ (1 << 20)])
    found = dd.KeyedGenerator(3, 5, torch.arange(4)).scramble(words)
    assert bool(((found >= 0) & (found < 2**32)).all()) and len(found.unique()) == len(
        words.unique()
    )
    assert torch.equal(found, dd.KeyedGenerator(3, 5, torch.arange(9)).scramble(words))
    first, last, middle = found.chunk(3)
    assert torch.equal(
        first ^ last, torch.ones_like(first)
    )  # the last bit of neighbours has one chance for both
    assert bool((((first ^ middle) >> 20) == 1).all())
    below = (first ^ middle) & (2**20 - 1)  # and here each goes its own way
    assert abs(float(below.double().mean()) / 2**19 - 1) < 0.05 and len(below.unique()) > 4000
    for bit in (0, 15, 31):
        assert abs(float(((found >> bit) & 1).double().mean()) - 0.5) < 0.03
    assert not torch.equal(found, dd.KeyedGenerator(3, 6, torch.arange(4)).scramble(words))


def test_keyed_times_are_anywhere_in_their_slices():
    t = dd.sample_times(256, generator=dd.KeyedGenerator(0, 0, torch.arange(256)), dtype=F64)
    assert (t * 256).long().sort().values.tolist() == list(range(256))
    place = t * 256 % 1
    assert abs(float(place.mean()) - 0.5) < 0.06 and abs(float(place.std()) - 12**-0.5) < 0.03


@every_process
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_an_example_meets_the_same_noise_in_any_partition_and_order(process, parts):
    x = torch.randint(0, 6, (8, 5), generator=seeded())
    index = torch.randperm(8, generator=seeded(parts)) + 16
    t, z = noised(process, x, torch.arange(16, 24))
    for chunk in index.chunk(parts):
        t_part, z_part = noised(process, x[chunk - 16], chunk)
        assert torch.equal(t_part, t[chunk - 16]) and torch.equal(z_part, z[chunk - 16])


@every_process
def test_a_resumed_run_draws_the_noise_of_the_uninterrupted_one(process):
    x = torch.zeros(4, 6, dtype=torch.int64)
    straight = [noised(process, x, torch.arange(4) + 4 * step, step=step) for step in range(6)]
    resumed = [noised(process, x, torch.arange(4) + 4 * step, step=step) for step in range(3, 6)]
    for (t, z), (t_again, z_again) in zip(straight[3:], resumed, strict=True):
        assert torch.equal(t, t_again) and torch.equal(z, z_again)
    assert not torch.equal(straight[0][0], straight[1][0])


@every_process
def test_global_state_is_left_alone_by_a_keyed_generator(process):
    state = torch.get_rng_state()
    noised(process, torch.zeros(2, 3, dtype=torch.int64), torch.arange(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_steps_indices_and_draws_all_differ():
    seeds = [0, 1, 2**32, 2**32 + 1, 2**63 - 1]
    rows = [keyed([0], seed=s, step=0).rand((1, 4)) for s in seeds]
    rows += [keyed([0], seed=0, step=s).rand((1, 4)) for s in seeds[1:]]
    rows += [keyed([i], seed=0, step=0).rand((1, 4)) for i in seeds[1:]]
    generator = keyed([0], seed=0, step=0)
    rows += [generator.rand((1, 4)) for _ in range(5)][1:]
    numbers = torch.cat(rows).flatten()
    assert len(numbers.unique()) == len(numbers) == 17 * 4


def test_seed_and_step_are_not_interchangeable():
    assert not torch.equal(
        keyed([0], seed=1, step=2).rand((1, 8)), keyed([0], seed=2, step=1).rand((1, 8))
    )


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 7), (3, 2, 5), (3, 8), (3, 0)])
def test_shapes_and_odd_lengths_and_a_longer_row_starts_alike(shape):
    numbers = keyed([4, 5, 6]).rand(shape)
    assert numbers.shape == shape and numbers.dtype == F64
    longer = keyed([4, 5, 6]).rand((3, 50))
    assert torch.equal(
        numbers.flatten(1) if len(shape) > 1 else numbers[:, None], longer[:, : numbers[0].numel()]
    )


def test_numbers_lie_on_the_53_bit_grid_and_use_all_of_it():
    numbers = keyed(torch.arange(64)).rand((64, 64))
    grid = numbers * 2**53
    assert torch.equal(grid, grid.round()) and bool(((numbers >= 0) & (numbers < 1)).all())
    low_bits = grid.to(torch.int64) & 0x3FFFFFF  # 26 bits below the 27 high ones
    assert len(low_bits.unique()) > 4000 and bool((low_bits % 2 == 1).any())


def are_uniform(numbers):
    """Uniform on [0, 1), neighbours independent."""
    assert scipy.stats.kstest(numbers, "uniform").pvalue > 1e-5
    pairs = torch.from_numpy((numbers * 16).astype("int64"))
    table = torch.bincount(pairs[:-1] * 16 + pairs[1:], minlength=256).view(16, 16)
    assert scipy.stats.chi2_contingency(table).pvalue > 1e-5


AXES = ["within a row", "over examples", "over steps", "over seeds", "over draws"]


@pytest.mark.statistical
@pytest.mark.usefixtures("as_users_call")  # thousands of calls, faster without shape checks
@pytest.mark.parametrize("axis", AXES)
def test_numbers_are_uniform_along_every_axis(axis):
    n = 2048
    one = torch.zeros(1, dtype=torch.int64)
    if axis == "within a row":
        numbers = keyed(one).rand((1, n))
    elif axis == "over examples":
        numbers = keyed(torch.arange(n)).rand((n,))
    elif axis == "over draws":
        generator = keyed(one)
        numbers = torch.cat([generator.rand((1,)) for _ in range(n)])
    else:
        word = {"over steps": "step", "over seeds": "seed"}[axis]
        numbers = torch.cat([keyed(one, **{word: k}).rand((1,)) for k in range(n)])
    numbers = numbers.flatten().numpy()
    are_uniform(numbers)
    bits = (numbers * 2**53).astype("int64")
    for low in (
        bits & 255,
        (bits >> 18) & 255,
        (bits >> 26) & 255,
        bits >> 45,
    ):  # both ends of both words
        assert (
            scipy.stats.chisquare(torch.bincount(torch.from_numpy(low), minlength=256)).pvalue
            > 1e-5
        )


@pytest.mark.statistical
def test_a_keyed_draw_follows_the_marginal():
    process = PROCESSES["levels-xi"]
    n = 20_000
    x = torch.full((n, 1), 3)
    t = torch.full((n,), 0.6, dtype=F64)
    z = process.sample(x, t, keyed(torch.arange(n)))
    expected = n * process.marginal(x[:1], t[:1])[0, 0]
    counts = torch.bincount(z[:, 0], minlength=process.num_states)
    assert not bool((counts[expected == 0] > 0).any())
    present = expected > 0
    assert scipy.stats.chisquare(counts[present], expected[present]).pvalue > 1e-5


@pytest.mark.parametrize("generator", [None, "torch", "keyed"])
def test_rand_serves_every_source_in_float64(generator):
    source = {None: None, "torch": seeded(), "keyed": keyed(torch.arange(4))}[generator]
    numbers = rand((4, 9), source, torch.device("cpu"))
    assert numbers.shape == (4, 9) and numbers.dtype == F64
    assert bool(((numbers >= 0) & (numbers < 1)).all()) and len(numbers.unique()) == 36


def test_a_torch_generator_repeats_and_moves_on():
    a = seeded(1)
    b = seeded(1)
    first, second = (rand((5,), a, torch.device("cpu")) for _ in range(2))
    assert torch.equal(first, rand((5,), b, torch.device("cpu"))) and not torch.equal(first, second)


# copies


def test_copies_have_streams_of_their_own():
    noise = keyed([0, 7, 2**40])
    copies = noise.split(4)
    numbers = torch.cat(
        [copies.rand((12, 3)).flatten(), copies.rand((12,)), noise.rand((3, 5)).flatten()]
    )
    again = torch.cat(
        [noise.split(4).rand((12, 3)).flatten(), noise.split(1).rand((3, 3)).flatten()]
    )
    grand = copies.split(2).rand((24, 2)).flatten()
    everything = torch.cat([numbers, again, grand])
    assert len(everything.unique()) == len(everything) == 36 + 12 + 15 + 36 + 9 + 48
    other = torch.cat(
        [keyed([0], seed=4).split(4).rand((4, 3)), keyed([0], step=6).split(4).rand((4, 3))]
    )
    assert not torch.isin(other, everything).any()
    assert copies.index.tolist() == [0] * 4 + [7] * 4 + [2**40] * 4


@pytest.mark.parametrize("levels", [1, 2])
def test_copies_do_not_depend_on_the_batch_nor_on_their_number(levels):
    def drawn(index, number):
        noise = keyed(index)
        noise.rand((len(index), 3))
        for _ in range(levels):
            noise = noise.split(number)
        noise.rand((len(noise.index),))
        return noise.rand((len(noise.index), 5)).view(len(index), *(number,) * levels, 5)

    whole = drawn([3, 9, 11], 4)
    assert torch.equal(drawn([11, 3], 4), whole[[2, 0]])
    fewer = whole[:, :2] if levels == 1 else whole[:, :2, :2]
    assert torch.equal(drawn([3, 9, 11], 2), fewer)


@pytest.mark.statistical
@pytest.mark.parametrize("axis", ["over copies", "over examples", "within a copy"])
def test_numbers_of_copies_are_uniform(axis):
    copies, examples, columns = {"over copies": (2048, 1, 1), "over examples": (1, 2048, 1)}.get(
        axis, (1, 1, 2048)
    )
    are_uniform(
        keyed(torch.arange(examples))
        .split(copies)
        .rand((copies * examples, columns))
        .flatten()
        .numpy()
    )


test_a_number_of_copies_that_is_none_is_refused = refuses(r"""
    keyed([0]).split(0) | ValueError | number is 0, must be
    keyed([0]).split(1.0) | TypeError | number is 1.0, must be
""")
