"""Standard errors of times in strata: as wide as the estimates spread, whatever the bound does over
time.
"""

import math

import pytest
import torch
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.objective.metrics import _blocks

pytestmark = pytest.mark.usefixtures("as_users_call")


def uniforms(texts, draws, generator):
    """One time in each of ``texts`` slices, in another order for each draw."""
    slots = torch.stack([torch.randperm(texts, generator=generator) for _ in range(draws)], 1)
    return (slots + torch.rand(texts, draws, generator=generator, dtype=F64)) / texts


def corpus(texts, draws, generator, text=0.5, noise=1.0):
    """Nats that hold 3 and a slope over time, each text's own, each draw's own.

    The sum's truth; tokens; times.
    """
    t = uniforms(texts, draws, generator)
    size = torch.randint(5, 30, (texts,), generator=generator).double()
    own = text * torch.randn(texts, 1, generator=generator, dtype=F64)
    nats = (
        3
        - 4 * (1 - t).log()
        + own
        + noise * torch.randn(texts, draws, generator=generator, dtype=F64)
    )
    return nats * size[:, None], size, t


TRUTH = 3 + 4  # the integral of -4 log(1 - t) is 4


def coverage(measures, truth, width=1.96):
    return sum(abs(m.value - truth) < width * m.standard_error for m in measures) / len(measures)


@pytest.mark.statistical
@pytest.mark.parametrize(("texts", "draws"), [(64, 1), (48, 4)])
def test_intervals_have_their_nominal_coverage(texts, draws):
    generator = seeded()
    drawn = [corpus(texts, draws, generator) for _ in range(400)]
    knowing = [dd.Measure.ratio(nats, size, "", times) for nats, size, times in drawn]
    blind = [dd.Measure.ratio(nats, size, "") for nats, size, _ in drawn]
    assert 0.92 <= coverage(knowing, TRUTH) <= 0.98
    assert coverage(blind, TRUTH) > 0.99  # three times too wide, or nearly
    assert {m.method for m in knowing} == {"stratified"} and {m.method for m in blind} == {
        "independent"
    }
    spread = torch.tensor([m.value for m in knowing]).std().item()
    mean = torch.tensor([m.standard_error for m in knowing]).mean().item()
    assert (
        0.9 * spread < mean < 1.25 * spread
    )  # with few texts the steep end counts a little too much


@pytest.mark.statistical
@pytest.mark.parametrize(("text", "noise"), [(2.0, 0.2), (0.0, 2.0)])
def test_variance_between_texts_and_within_their_draws_is_separated(text, noise):
    """With eight draws the noise is divided by eight, the variance between sequences is not."""
    generator = seeded(1)
    measures = []
    for _ in range(60):
        nats, size, times = corpus(64, 8, generator, text, noise)
        measures.append(dd.Measure.ratio(nats / size[:, None], torch.ones_like(size), "", times))
    expected = math.sqrt((text**2 + noise**2 / 8) / 64)
    mean = torch.tensor([m.standard_error for m in measures]).mean().item()
    assert 0.95 * expected < mean < 1.25 * expected


PROCESSES = {
    "masked": dd.presets.mdlm(8),
    "two levels": dd.presets.hdlm(torch.arange(8) // 3),
    "GIDD": dd.presets.gidd(8, 0.2),
}
PROBS = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02], dtype=F64)
GUESS = torch.tensor([0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]).log()
BOUND = -float((PROBS * GUESS).sum())
"""The bound of a constant network is a cross-entropy, for every process."""


def repeated(process, density, texts, repeats, length=16):
    found = []
    for number in range(repeats):
        generator = seeded(number)
        x = torch.multinomial(PROBS, texts * length, replacement=True, generator=generator).view(
            texts, length
        )
        key = dd.KeyedGenerator(number, 0, torch.arange(texts))
        found.append(
            dd.bound(process, lambda z, t: GUESS.expand(*z.shape, -1), x, key, density=density)
        )
    return found


def drawn(process, number, texts, length):
    """A bound as evaluation draws it, of the best network: balanced levels, so that times make half
    of its noise.
    """
    generator = seeded(number)
    x = torch.multinomial(PROBS, texts * length, replacement=True, generator=generator).view(
        texts, length
    )
    key = dd.KeyedGenerator(number, 0, torch.arange(texts))
    density = process.time_density(length, chance=0.2)
    return dd.bound(
        process,
        lambda z, t: PROBS.log().expand(*z.shape, 8),
        x,
        key,
        density=density,
        levels="balanced",
    )


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "texts", "length"),
    [
        ("masked", 64, 16),
        ("two levels", 100, 64),
        ("masked", 64, 64),
        ("masked", 100, 256),
        ("GIDD", 64, 64),
    ],
)
def test_intervals_of_keyed_balanced_draws_hold_the_truth(name, texts, length):
    """Times that share a shift have an error that no two of them show: coverage of 0.78 at a
    nominal 0.95.
    """
    measures = [drawn(PROCESSES[name], number, texts, length).per_token for number in range(400)]
    assert 0.92 <= coverage(measures, -float((PROBS * PROBS.log()).sum())) <= 0.98


KNOWN = [("masked", True), ("two levels", True), ("GIDD", True), ("two levels", False)]
"""With times of their own density, and one with uniform times: of the others rare draws decide the
variance.
"""


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "own"), KNOWN)
def test_bounds_of_400_corpora_lie_within_their_intervals(name, own):
    process = PROCESSES[name]
    density = process.time_density(16, chance=0.2) if own else None
    measures = [bound.per_token for bound in repeated(process, density, 256, 400)]
    assert 0.92 <= coverage(measures, BOUND) <= 0.98
    mean = torch.tensor([m.value for m in measures]).mean().item()
    assert mean == pytest.approx(BOUND, abs=4 * measures[0].standard_error / 20)


@pytest.mark.statistical
@pytest.mark.parametrize("name", PROCESSES)
def test_the_error_at_equal_texts_is_smaller_under_the_processes_own_density(name):
    process = PROCESSES[name]
    (uniform,), (own,) = (
        repeated(process, density, 8192, 1)
        for density in (None, process.time_density(16, chance=0.2))
    )
    share = own.per_token.standard_error / uniform.per_token.standard_error
    assert share < {"masked": 0.8, "two levels": 0.95, "GIDD": 0.6}[name]


def test_a_tally_uses_the_strata_of_its_batches():
    process = PROCESSES["two levels"]
    density = PROCESSES["two levels"].time_density(16)
    bounds = repeated(process, density, 32, 4)
    knowing = dd.Tally()
    blind = dd.Tally()
    for bound in bounds:
        knowing.add(bound.total, num_bytes=torch.full((32,), 50), times=bound.times)
        blind.add(bound.total, num_bytes=torch.full((32,), 50))
    for name in ("per_token", "per_sequence", "bits_per_byte", "perplexity"):
        ours = getattr(knowing, name)
        theirs = getattr(blind, name)
        assert ours.value == theirs.value and (ours.method, theirs.method) == (
            "stratified",
            "independent",
        )
        assert ours.standard_error < theirs.standard_error
    one = dd.Tally()
    one.add(bounds[0].total, times=bounds[0].times)
    assert one.per_token.standard_error == bounds[0].per_token.standard_error


def test_neighbours_in_time_by_hand():
    """Times 2, 0, 1: differences 5 - 1, 1 - 3 and, for the last, 3 - 1 once more."""
    nats = torch.tensor([3.0, 5.0, 1.0], dtype=F64)
    times = torch.tensor([0.9, 0.1, 0.5], dtype=F64)
    measure = dd.Measure.ratio(nats, torch.ones(3, dtype=F64), "nats", times)
    variance = (4**2 + 2**2 + 2**2) / 2 / 3
    assert measure.standard_error == pytest.approx(math.sqrt(variance / 3))
    # batches of two and of one: the one has no neighbour
    measure = dd.Measure.ratio(
        nats, torch.ones(3, dtype=F64), "nats", times, torch.tensor([0, 0, 1])
    )
    assert measure.standard_error == pytest.approx(math.sqrt(2**2 / 2 / 3))


def test_neighbours_are_sought_within_blocks_of_rows_too():
    """Six rows are four and two: keyed times of six leave half of the time to two, which show the
    effect.
    """
    nats = torch.tensor([0.0, 1.0, 3.0, 6.0, 1.0, 9.0], dtype=F64)
    times = torch.tensor([0.0, 2.0, 3.0, 4.0, 1.0, 5.0], dtype=F64) / 6
    near = (1 + 0 + 4 + 9 + 9 + 9) / 2 / 6
    wide = (1 + 4 + 9 + 9 + 64 + 64) / 2 / 6
    measure = dd.Measure.ratio(nats, torch.ones(6, dtype=F64), "nats", times)
    assert measure.standard_error == pytest.approx(math.sqrt((near + (wide - near) / 7) / 6))
    blocks = [
        _blocks(torch.zeros(n).long()).unique_consecutive(return_counts=True)[1]
        for n in (1, 2, 3, 100, 101)
    ]
    assert [block.tolist() for block in blocks] == [
        [1],
        [2],
        [3],
        [64, 32, 4],
        [64, 32, 5],
    ]  # none is left alone
    several = torch.tensor([5, 2, 5, 2, 5, 9])
    assert (
        len(_blocks(several).unique()) == 3
        and len(torch.stack([_blocks(several), several]).unique(dim=1)[0]) == 3
    )


def test_without_informative_neighbours_draws_count_as_independent():
    nats = torch.tensor([1.0, 2.0, 4.0], dtype=F64)
    size = torch.ones(3, dtype=F64)
    times = torch.rand(3, dtype=F64)
    blind = dd.Measure.ratio(nats, size, "nats")
    assert dd.Measure.ratio(nats, size, "nats", times, torch.arange(3)) == blind
    assert blind.method == "independent"
    alone = dd.Measure.ratio(nats[:1], size[:1], "nats", times[:1])
    assert math.isnan(alone.standard_error) and alone.method == "independent"


def test_bad_times_are_refused_and_leave_the_tally_as_it_was():
    nats = torch.ones(2, 3)
    times = torch.tensor([0.2, 0.7])
    tally = dd.Tally()
    tally.add(nats, times=times)
    for bad, error, message in (
        (None, ValueError, "times must be given for every batch or for none"),
        (times[:1], ValueError, r"times has shape \(1,\), must be \(B,\) = \(2,\)"),
        (times + 1, ValueError, r"times holds 1.2\d*, must lie in \[0, 1\]"),
        (torch.tensor([0, 1]), TypeError, "times has type torch.int64"),
    ):
        before = tally.per_token
        with pytest.raises(error, match=message):
            tally.add(nats, times=bad)
        assert tally.per_token == before
    with pytest.raises(
        ValueError, match=r"times has shape \(2, 1\), must be that of amount, \(3, 1\)"
    ):
        dd.Measure.ratio(torch.ones(3), torch.ones(3), "", times)
