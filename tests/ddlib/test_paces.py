"""Paces: every pace with every process bounds the same likelihood."""

import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.joints import joint
from zoo.networks import with_own_times
from zoo.processes import F64, THREE_TOKENS

import ddlib as dd
from ddlib.contrib import Checkerboard, Halton, Lanes
from ddlib.paces import Blocks, Draw, LeftToRight, Pace, Patches, Ramp, RandomOrder, Together
from ddlib.testing.oracle import exact_cavity, integrate_bound
from ddlib.times import Beta

PROCESSES = THREE_TOKENS | {
    "per word": dd.processes.PerWord(dd.schedules.Linear(), [0.6, 2.0, 1.0])
}
PACES = [Together(), LeftToRight(), Blocks(2), RandomOrder(), Ramp(1.0), Ramp(3.0)]


def entropy(probs):
    return float(-torch.xlogy(probs, probs).sum())


@pytest.mark.parametrize("pace", PACES, ids=str)
@pytest.mark.parametrize("name", PROCESSES)
def test_the_bound_of_the_best_denoiser_is_the_entropy_of_two_words(name, pace):
    process = PROCESSES[name]
    probs = joint(3, 2)
    chance = torch.tensor([0.7, 0.2], dtype=F64)
    best = exact_cavity(process, probs)
    cells = 4 if isinstance(pace, Ramp) else 1
    got = integrate_bound(process, probs, best, points=60, pace=pace, chance=chance, cells=cells)
    got = got + sum(probs.sum(1 - i) @ process.prior_kl(torch.arange(3)[None])[0] for i in range(2))
    assert float(got) == pytest.approx(entropy(probs), rel=1e-6)


@pytest.mark.parametrize("pace", [LeftToRight(), RandomOrder(), Ramp(1.0)], ids=str)
@pytest.mark.parametrize("name", ["masks", "GIDD", "two levels"])
def test_the_bound_of_the_best_denoiser_is_the_entropy_of_three_words(name, pace):
    process = PROCESSES[name]
    probs = joint(3, 3, 1)
    chance = torch.tensor([0.7, 0.2, 0.5], dtype=F64)
    best = exact_cavity(process, probs)
    cells = 4 if isinstance(pace, Ramp) else 1
    got = integrate_bound(process, probs, best, points=40, pace=pace, chance=chance, cells=cells)
    assert float(got) == pytest.approx(entropy(probs), rel=1e-6)


def test_four_words_in_blocks_of_two_and_in_random_pairs():
    process = dd.presets.mdlm(2)
    probs = joint(2, 4, 2)
    chance = torch.tensor([0.7, 0.2, 0.5, 0.1], dtype=F64)
    for pace in (Blocks(2), RandomOrder(2), Patches((2, 2), (2, 1))):
        got = integrate_bound(
            process, probs, exact_cavity(process, probs), points=40, pace=pace, chance=chance
        )
        assert float(got) == pytest.approx(entropy(probs), rel=1e-6)


@given(st.tuples(*[st.integers(1, 4)] * 4), st.integers(0, 99))
def test_patches_move_one_after_the_other(sides, seed):
    (rows, columns, height, width), draw = sides, seeded(seed)
    shape = rows * height, columns * width
    pace = Patches(shape, (height, width))
    length = shape[0] * shape[1]
    u = torch.rand(5, dtype=F64, generator=draw)
    chance = torch.zeros(5, length, dtype=F64)
    times = pace.times(u, chance).view(5, rows, height, columns, width)
    assert torch.equal(times, times[:, :, :1, :, :1].expand_as(times)), (
        "the pixels of a patch share their time"
    )
    in_turn = LeftToRight().times(u, torch.zeros(5, rows * columns, dtype=F64))
    torch.testing.assert_close(times[:, :, 0, :, 0].flatten(1), in_turn)
    assert pace.parts(length) == rows * columns and pace.block is None
    turns = pace.turns(chance)[0].view(shape).long()
    assert turns.flatten().sort().values.tolist() == list(range(length))
    assert turns[:height, :width].flatten().tolist() == list(range(height * width)), (
        "raster order in a patch"
    )
    if columns == 1:
        assert torch.equal(pace.times(u, chance), Blocks(height * width).times(u, chance))


def test_patches_are_drawn_in_turn_and_made_of_plain_values():
    pace = dd.build("paces", {"kind": "ddlib.paces:Patches", "shape": [2, 4], "patch": [2, 2]})
    assert repr(pace) == "Patches(shape=(2, 4), patch=(2, 2))"
    process = dd.presets.mdlm(3)
    seen = []

    def look(k, t, z):
        seen.append(z.view(3, 2, 4).clone())

    uniform = with_own_times(lambda z, t: torch.zeros(*z.shape, 3))
    dd.sample(process, uniform, (3, 8), steps=2, pace=pace, generator=seeded(), on_step=look)
    middle = seen[2]  # after the start and the two steps of the first patch
    assert (middle[:, :, :2] < 3).all() and (middle[:, :, 2:] == 3).all()


def groups(pace, length):
    """Positions that move together, in the order of generation."""
    turns = pace.turns(torch.zeros(1, length, dtype=F64))[0].long()
    assert turns.sort().values.tolist() == list(range(length)), "every position once"
    return [sorted(group) for group in turns.argsort().view(-1, pace.size).tolist()]


def nearest(group, columns):
    places = torch.tensor([divmod(pixel, columns) for pixel in group], dtype=F64)
    return float((torch.cdist(places, places) + 1e9 * torch.eye(len(group), dtype=F64)).min())


@given(st.integers(1, 6), st.integers(1, 6))
def test_lanes_move_a_part_of_the_sequence_apart(lanes, each):
    together = groups(Lanes(lanes), lanes * each)
    assert together == [[lane * each + k for lane in range(lanes)] for k in range(each)]


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_halton_order_has_every_pixel_once_and_spreads_every_beginning(rows, columns):
    together = [
        pixel for group in groups(Halton((rows, columns)), rows * columns) for pixel in group
    ]
    points = [(_radical(n, 2), _radical(n, 3)) for n in range(1, 20 * rows * columns)]
    met = dict.fromkeys(int(rows * a) * columns + int(columns * b) for a, b in points)
    assert list(met) == together[: len(met)], "the order in which exact points meet pixels"


@cache
def _radical(number, base):
    digits = Fraction(0)
    place = Fraction(1, base)
    while number:
        digits = digits + number % base * place
        number = number // base
        place = place / base
    return digits


def test_a_quarter_of_a_halton_order_is_in_all_quarters_of_the_picture():
    first = [divmod(pixel, 16) for (pixel,) in groups(Halton((16, 16)), 256)[:64]]
    quarters = [(row // 8, column // 8) for row, column in first]
    assert {quarters.count(quarter) for quarter in set(quarters)} <= {15, 16, 17} and len(
        set(quarters)
    ) == 4
    apart = [nearest(group, 16) for group in groups(Halton((16, 16), 8), 256)]
    chance = torch.randperm(256, generator=seeded()).view(-1, 8).tolist()
    assert sum(apart) > 1.5 * sum(nearest(group, 16) for group in chance)


@pytest.mark.parametrize(
    ("shape", "colors"), [((3, 4), 2), ((6, 10), 4), ((4, 6), 8), ((12, 20), 16), ((5, 2), 1)]
)
def test_pixels_of_a_color_are_apart_and_all_colors_as_many(shape, colors):
    together = groups(Checkerboard(shape, colors), shape[0] * shape[1])
    assert len(together) == colors and all(
        nearest(group, shape[1]) >= math.sqrt(colors) - 1e-9 for group in together
    )
    if colors == 2:
        assert all(
            sum(divmod(pixel, shape[1])) % 2 == k
            for k, group in enumerate(together)
            for pixel in group
        )


def test_a_checkerboard_is_the_dither_of_bayer():
    bayer = torch.zeros(1, 1, dtype=torch.int64)
    for _ in range(3):
        bayer = torch.cat(
            [
                torch.cat([4 * bayer, 4 * bayer + 2], 1),
                torch.cat([4 * bayer + 3, 4 * bayer + 1], 1),
            ],
            0,
        )
    assert torch.equal(Checkerboard((8, 8)).ranks.view(8, 8), bayer)


class Wrong(torch.nn.Module):
    """Not the best denoiser: it looks at all states and no time, as networks for masks do."""

    own_times = True

    def __init__(self, states, words, length):
        super().__init__()
        self.looks = torch.randn(length, states, length, words, dtype=F64, generator=seeded(4))

    def forward(self, z, t):
        seen = self.looks[torch.arange(z.shape[1]), z]  # (B, L, L, tokens)
        return seen.sum(1)


def test_blocks_of_one_with_masks_are_the_autoregressive_likelihood():
    process = dd.presets.mdlm(3)
    denoiser = Wrong(4, 3, 3)
    length = 3
    texts = torch.cartesian_prod(*[torch.arange(3)] * length)
    probs = joint(3, 3, 5)
    chain = torch.zeros(len(texts), dtype=F64)
    for i in range(length):
        z = texts.clone()
        z[:, i:] = 3
        chain += denoiser(z, None).log_softmax(-1)[torch.arange(len(texts)), i, texts[:, i]]
    for pace in (LeftToRight(), Blocks(1)):
        got = integrate_bound(process, probs, denoiser, points=60, pace=pace)
        assert float(got) == pytest.approx(float(-(probs.flatten() * chain).sum()), abs=1e-10)
    exact = dd.likelihood(process, denoiser, texts, order=dd.samplers.LeftToRight(), steps=length)
    torch.testing.assert_close(exact.log_likelihood, chain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["masks", "two levels", "GIDD"])
@pytest.mark.parametrize("steps", [None, 5])
def test_one_block_has_the_bound_without_a_pace(name, steps):
    process = PROCESSES[name]
    x = torch.randint(3, (16, 4))
    denoiser = with_own_times(
        lambda z, t: torch.zeros(*z.shape, 3, dtype=F64) + torch.arange(3.0) * 0.3
    )
    options = {"steps": steps, "density": Beta(2.0, 1.0)}
    want, block, together = (
        dd.bound(process, denoiser, x, seeded(), pace=pace, **options).total
        for pace in (None, Blocks(4), Together())
    )
    torch.testing.assert_close(block, want, rtol=1e-6, atol=1e-10)  # times are float32
    assert torch.equal(together, want)


def test_orders_of_masks_at_random_are_masks_at_random_times():
    """The mean over the 6 orders of three tokens is the bound of diffusion, for a network without
    times.
    """
    process = dd.presets.mdlm(3)
    denoiser = Wrong(4, 3, 3)
    probs = joint(3, 3, 6)
    together = integrate_bound(process, probs, denoiser, points=24)
    orders = (
        torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]], dtype=F64)
        / 3
    )
    each = [
        integrate_bound(process, probs, denoiser, points=24, pace=RandomOrder(), chance=order)
        for order in orders
    ]
    assert float(torch.stack(each).mean()) == pytest.approx(float(together), abs=1e-9)


def mean_of_draws(process, probs, pace, denoiser, rows, **options):
    """Bound of sequences drawn from their distribution, and its standard error."""
    noise = seeded(8)
    flat = torch.multinomial(probs.flatten(), rows, True, generator=noise)
    x = torch.stack(torch.unravel_index(flat, probs.shape), 1)
    found = dd.bound(process, denoiser, x, noise, pace=pace, **options).total.sum(1)
    return float(found.mean()), float(found.std() / math.sqrt(rows))


@pytest.mark.parametrize("pace", [*PACES[1:], RandomOrder(2)], ids=str)
@pytest.mark.parametrize("name", ["masks", "two levels", "uniform"])
def test_draws_of_the_bound_have_its_mean(name, pace):
    process = PROCESSES[name]
    probs = joint(3, 2, 3)
    best = with_own_times(exact_cavity(process, probs))
    got, error = mean_of_draws(process, probs, pace, best, 20_000, density=Beta(0.8, 1.0))
    assert got == pytest.approx(entropy(probs), abs=5 * error) and error < 0.2


def blockwise(process, probs, size):
    """The best denoiser that sees its own noisy block and, clean, those before it."""
    best = exact_cavity(process, probs)

    def logits(z, t, clean=None):
        if clean is None:
            return best(z, t)
        result = []
        for start in range(0, z.shape[1], size):
            seen = process.sample_prior(z.shape, seeded(start))
            times = torch.ones_like(t)
            seen[:, :start] = clean[:, :start]
            times[:, :start] = 0.0
            seen[:, start : start + size], times[:, start : start + size] = (
                v[:, start : start + size] for v in (z, t)
            )
            result.append(best(seen, times)[:, start : start + size])
        return torch.cat(result, 1)

    return with_own_times(logits, size)


@pytest.mark.parametrize("name", ["masks", "two levels"])
@pytest.mark.parametrize("steps", [None, 400])
def test_all_blocks_at_once_have_the_mean_of_one_block_at_a_time_and_less_noise(name, steps):
    process = PROCESSES[name]
    probs = joint(3, 2, 3)
    denoiser = blockwise(process, probs, 1)
    options = {"steps": steps, "density": process.time_density(1)}
    one, error = mean_of_draws(process, probs, Blocks(1), denoiser, 20_000, **options)
    all_of_them, smaller = mean_of_draws(
        process, probs, Blocks(1), denoiser, 20_000, at_once=True, **options
    )
    assert one == pytest.approx(entropy(probs), abs=5 * error)
    assert all_of_them == pytest.approx(entropy(probs), abs=5 * smaller) and smaller < 0.8 * error


def test_earlier_blocks_are_clean_in_the_reconstruction_of_all_blocks_at_once():
    """So the bound of the exact network is tight for an interval that begins after 0, too."""
    process = PROCESSES["two levels"]
    probs = joint(3, 2, 3)
    denoiser = blockwise(process, probs, 1)
    options = {"interval": (0.3, 1.0), "density": process.time_density(1), "at_once": True}
    value, error = mean_of_draws(process, probs, Blocks(1), denoiser, 20_000, **options)
    assert value == pytest.approx(entropy(probs), abs=5 * error)


class Quick(Pace):
    """Pace whose last steps are shorter than the float32 spacing at 1."""

    def times(self, u, chance):
        return (1 - (1 - u) ** 4)[:, None].expand_as(chance)


@pytest.mark.parametrize("pace", [Quick(), Together(), Blocks(3)], ids=str)
@pytest.mark.parametrize("gamma", [0.5, 0.1])
def test_moving_times_are_below_one_and_the_bound_ends_at_the_last_time(pace, gamma):
    """Weights grow without end there: it was 3.3 for log 4; and what is left at the last time
    counts but once.
    """
    process = dd.presets.hdlm([0, 0, 1, 1], gamma=gamma)
    x = torch.arange(4).repeat(4096)[:, None].repeat(1, 3)
    density = process.time_density(1)
    noise = seeded()
    network = with_own_times(lambda z, t: torch.zeros(*z.shape, 4))
    found = dd.bound(process, network, x, noise, density=density, pace=pace)
    assert found.per_token.value == pytest.approx(math.log(4), abs=0.04)
    assert found.per_token.standard_error < 0.02
    drawn = pace.draw(len(x), 3, noise, density=density)
    assert bool((drawn.t < 1)[drawn.measure > 0].all()) and drawn.t.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_positions_that_do_not_move_are_at_time_zero_or_one(dtype):
    torch.set_default_dtype(dtype)
    try:
        drawn = Blocks(1).draw(64, 4, seeded())
    finally:
        torch.set_default_dtype(torch.float32)
    assert drawn.t.dtype == dtype
    still = drawn.measure == 0
    assert bool(((drawn.t == 0) | (drawn.t == 1))[still].all()) and bool((drawn.t == 1).any())


@given(st.sampled_from([*PACES, RandomOrder(2)]), st.integers(0, 2**31), st.sampled_from([None, 3]))
def test_keyed_draws_belong_to_the_example(pace, seed, steps):
    def drawn(index):
        noise = dd.KeyedGenerator(seed, 5, torch.tensor(index))
        return pace.draw(len(index), 4, noise, steps=steps, density=Beta(2.0, 1.0))

    whole = drawn([3, 1, 8, 6])
    parts = (drawn([3, 1]), drawn([8, 6]))
    assert (whole.s is None) == (steps is None)
    for column, halves in zip(whole, zip(*parts, strict=True), strict=True):
        assert column is None or torch.equal(column, torch.cat(halves))


@given(
    st.sampled_from(PACES), st.sampled_from([(0.0, 1.0), (0.1, 0.7)]), st.sampled_from([None, 6])
)
def test_times_of_another_interval_lie_inside_and_have_its_measure(pace, interval, steps):
    rows = 4096
    drawn = pace.draw(rows, 2, seeded(), interval=interval, steps=steps, density=Beta(2.0, 1.0))
    t, s, measure = (
        v[:, None].expand(-1, 2) if v.ndim == 1 else v
        for v in (drawn.t, drawn.t if drawn.s is None else drawn.s, drawn.measure)
    )
    assert (t >= interval[0] - 1e-6).all() and (t <= interval[1] + 1e-6).all()
    counts = measure if steps is None else measure * (t - s)
    assert float(counts[:, 0].mean()) == pytest.approx(interval[1] - interval[0], rel=0.1)
    assert (t == s).all() if steps is None else ((t == s) == (measure == 0)).all()


@pytest.mark.parametrize("mode", ["standard", "edges"])
def test_losses_count_the_measure(mode):
    process = dd.presets.hdlm([0, 0, 1, 1])
    pace = Blocks(2)
    noise = seeded()
    x = torch.randint(4, (8, 6), generator=noise)
    draw = pace.draw(8, 6, noise)
    t = draw.t
    measure = draw.measure
    z = process.sample(x, t, noise)
    hidden = torch.randn(8, 6, 5, dtype=F64, generator=noise)
    layer = torch.randn(4, 5, dtype=F64, generator=noise)
    each = dd.training_loss(process, hidden @ layer.T, x, z, t, mode=mode, reduction="none")
    want = (each * measure).mean()
    assert torch.allclose(dd.training_loss(process, hidden @ layer.T, x, z, draw, mode=mode), want)
    for reduction in ("mean", "none"):
        options = {"mode": mode, "reduction": reduction}
        fused = dd.training_loss(process, dd.Hidden(hidden, layer), x, z, draw, **options)
        assert torch.allclose(fused.mean(), want)


class Halves(Pace):
    def times(self, u, chance):
        late = torch.arange(chance.shape[1]) >= chance.shape[1] / 2
        return (2 * u[:, None] - 1 + late.double()).clamp(0, 1)


def test_a_custom_pace_is_verified():
    assert dd.verify(Halves()).ok


def test_the_pace_with_faster_forms_has_no_subclasses():
    """They would apply to other times."""
    with pytest.raises(TypeError, match="Late derives from Together, must derive from ddlib"):

        class Late(Together):
            def times(self, u, chance):
                return u**2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_speeds_are_differentiated_where_gradients_are_off(mode):
    with mode():
        assert Halves().speeds(
            torch.tensor([0.2, 0.8], dtype=F64), torch.zeros(2, 2, dtype=F64)
        ).tolist() == [[0.0, 2.0], [2.0, 0.0]]


class Mine(Pace):
    """Pace with given times and speeds."""

    def __init__(self, times=lambda u, chance: u, speeds=lambda u, chance: torch.ones_like(u)):
        self.when = times
        self.fast = speeds

    def times(self, u, chance):
        return self.when(u, chance)

    def speeds(self, u, chance):
        return self.fast(u, chance)

    def __repr__(self):
        return "Mine()"


def path(**kwargs):
    return Mine(**kwargs).draw(4, 3)


test_times_and_speeds_that_are_none_are_named = refuses(r"""
    path(speeds=lambda u, chance: torch.full_like(u, math.inf)) | ValueError
        | Mine\(\): speeds hold inf, must be finite
    path(speeds=lambda u, chance: u * math.nan) | ValueError | Mine\(\): speeds hold nan
    path(speeds=lambda u, chance: chance + 1) | ValueError
        | Mine\(\): speeds have shape \(4, 3\), must be that of times
    path(times=lambda u, chance: 0.5) | TypeError
        | Mine\(\): times have type float, must be a floating-point tensor
    path(times=lambda u, chance: chance.long()) | TypeError
        | Mine\(\): times have type torch.int64, must be a floating
""")


def test_a_pace_with_a_parameter_is_drawn_without_a_warning():
    power = torch.ones((), dtype=F64, requires_grad=True)
    drawn = Mine(lambda u, chance: (u**power)[:, None].expand_as(chance)).draw(4, 3)
    assert drawn.t.shape == drawn.measure.shape == (4, 3)  # of speeds (B,) too


@pytest.mark.parametrize("size", [math.inf, math.nan])
def test_a_pace_without_an_end_to_its_speeds_is_refuted(size):
    report = dd.verify(Mine(speeds=lambda u, chance: torch.full_like(u, size)))
    assert not report.ok and "speed" in str(report)


X = torch.zeros(2, 6, dtype=torch.int64)


def flat(z, t, clean=None):
    return torch.zeros(*z.shape, 3)


def one_time(z, t):
    return flat(z, t)


one_time.own_times = False


class Late(Pace):
    def times(self, u, chance):
        return (1.5 * u)[:, None].expand_as(chance)


def bound_along(**options):
    denoiser = with_own_times(flat, options.pop("size", 2))
    denoiser = options.pop("denoiser", denoiser)
    return dd.bound(dd.presets.mdlm(3), denoiser, X, seeded(), **options)


def measured(measure, **options):
    t = torch.full((2, 6), 0.5)
    return dd.training_loss(dd.presets.mdlm(3), flat(X, t), X, X, Draw(t, measure), **options)


test_bad_paces_and_measures_are_refused = refuses(r"""
    dd.paces.FieldsInTurn(["a", "b"], ["a", "c"]) | ValueError
        | order has 'c', must be a field: 'a', 'b'
    dd.paces.FieldsInTurn(["a", "b"], ["a", ["b", "a"]]) | ValueError | order has 'a' twice
    dd.paces.FieldsInTurn(["a", "b"], ["a"]) | ValueError | order lacks the field 'b'
    dd.paces.FieldsInTurn(["a", "b"], "ab") | TypeError | order is 'ab', must be a sequence
    bound_along(pace=dd.paces.FieldsInTurn(["a", "b"], ["a", "b"])) | ValueError
        | sequences have length 6, must have that of fields, 2
    bound_along(pace=Blocks(4)) | ValueError | size is 4, must divide the length of the sequence, 6
    bound_along(pace=Blocks(2), denoiser=lambda z, t: flat(z, t)) | TypeError
        | <lambda> takes one time per sequence
    bound_along(pace=Blocks(2), denoiser=one_time) | TypeError
        | one_time takes one time per sequence
    bound_along(pace=Ramp(), at_once=True) | TypeError
        | at_once is True, which Ramp.lag=1.0. does not support
    bound_along(pace=Blocks(2), at_once=True, size=3) | TypeError | block_size 3, must be 2
    bound_along(pace=Blocks(2), levels="balanced") | ValueError
        | levels is 'balanced', pace Blocks.size=2.
    bound_along(pace=Late()) | ValueError | Late.*: times hold 1.*, must be at most 1
    bound_along(pace=RandomOrder(4)) | ValueError | size is 4, must divide
    bound_along(pace=Patches((2, 2), (1, 2))) | ValueError
        | shape is \(2, 2\), must have as many pixels .*positions, 6
    Patches((4, 6), (2, 4)) | ValueError
        | patch is \(2, 4\), must divide the rows and columns of shape \(4, 6\)
    Patches((4, 0), (2, 1)) | ValueError | shape\[1\] is 0, must be
    Patches((4, 4.0), (2, 1)) | TypeError | shape\[1\] is 4.0, must be
    bound_along(pace=Lanes(4)) | ValueError | lanes is 4, must divide the length of the sequence, 6
    bound_along(pace=Halton((2, 2))) | ValueError
        | shape is \(2, 2\), must have as many pixels .*positions, 6
    Lanes(0) | ValueError | lanes is 0, must be at least 1
    Lanes(2.0) | TypeError | lanes is 2.0, must be an int
    Halton((4, 4), 3) | ValueError | size is 3, must divide the pixels of shape \(4, 4\), 16
    Halton("44") | TypeError | shape is '44', must be two numbers, of rows and of columns
    Checkerboard((4, 4), 3) | ValueError | colors is 3, must be a power of 2
    Checkerboard((3, 3)) | ValueError
        | shape is \(3, 3\), must have sides that are multiples of 1, one of them of 2: 2
    Checkerboard((6, 6), 8) | ValueError
        | must have sides that are multiples of 2, one of them of 4: 8 colors
    Checkerboard((6, 3), 4) | ValueError | must have sides that are multiples of 2: 4 colors
    Patches(16, (2, 1)) | TypeError | shape is 16, must be two numbers, of rows and of columns
    Patches((4, 4), (2,)) | TypeError | patch is \(2,\), must be two numbers
    Blocks(0) | ValueError | size
    Blocks(2.5) | TypeError | size
    Ramp(-1) | ValueError | lag
    Ramp(math.inf) | ValueError | lag
    measured(torch.ones(2)) | ValueError | measure has shape
    measured(-torch.ones(2, 6)) | ValueError | measure holds -1
    measured(torch.full((2, 6), math.inf)) | ValueError | measure holds inf, must be finite
    measured("a") | TypeError | measure has type str, must be a tensor of numbers
    dd.bound(dd.presets.mdlm(3), flat, X, pace="blocks") | TypeError
        | pace is .blocks., must be a ddlib\.paces\.Pace
""")


@pytest.mark.parametrize(
    "process", [dd.processes.Uniform(4, dd.schedules.Linear()), dd.presets.mdlm(4)]
)
def test_a_network_takes_time_zero_at_the_prompt_along_a_pace(process):
    seen = []

    def network(z, t):
        seen.append(t[:, :2])
        assert t.shape == z.shape
        return torch.zeros(*z.shape, 4)

    network.own_times = True
    tokens = dd.sample(
        process, network, (5, 6), steps=3, prompt=torch.tensor([3, 1]), pace=dd.paces.RandomOrder()
    )
    assert tokens[:, :2].tolist() == [[3, 1]] * 5 and not torch.cat(seen).any()


def test_a_network_takes_time_zero_behind_the_end_of_a_text_along_a_pace():
    """Those positions are fixed, and the ones before the end are drawn later."""
    seen = []

    def network(z, t):
        seen.append((z.clone(), t))
        return torch.eye(4)[1].mul(3.0).expand(*z.shape, 4)

    network.own_times = True
    process = dd.presets.mdlm(4)
    ending = dd.controls.EndOfText(1, fill=3)
    dd.sample(
        process,
        network,
        (20, 6),
        steps=12,
        pace=dd.paces.RandomOrder(),
        controls=[ending],
        generator=seeded(),
    )
    fixed = 0
    for z, t in seen:
        behind = (z == 3).flip(1).int().cumprod(1).flip(1).bool()
        fixed += int(behind.sum())
        assert not t[behind].any()
    assert fixed > 0
