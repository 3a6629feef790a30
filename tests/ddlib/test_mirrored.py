"""Mirror pairs: one time, u for the one row and 1 - u for the other, each row as right as alone."""

import math

import pytest
import torch

import ddlib as dd
from ddlib.utils.random import evenly, rand

CPU = torch.device("cpu")
SOURCES = {
    "keyed": lambda: dd.KeyedGenerator(1, 2, torch.arange(8)),
    "plain": lambda: torch.Generator().manual_seed(3),
    "global": lambda: None,
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())


@every_source
def test_neighbours_have_u_and_one_minus_u_on_the_same_grid(source):
    noise = dd.mirrored(source())
    for shape in ((8,), (8, 5), (8, 2, 3)):
        u = rand(shape, noise, CPU)
        assert u.shape == shape and u.dtype == torch.float64
        assert torch.equal(u[0::2] + u[1::2], torch.full_like(u[0::2], 1 - 2**-53))
        assert len(u.unique()) == u.numel()
        assert float(u.min()) >= 0 and float(u.max()) < 1


@every_source
@pytest.mark.parametrize("method", ["iid", "stratified", "antithetic"])
def test_neighbours_share_their_time(source, method):
    t = dd.sample_times(8, method, dd.mirrored(source()), dtype=torch.float64)
    assert torch.equal(t[0::2], t[1::2]) and len(t.unique()) == 4
    if method == "stratified":
        assert sorted((4 * t[0::2]).floor().tolist()) == [0, 1, 2, 3]


def test_pairs_belong_to_the_global_index_whoever_computes_them():
    process, x = dd.presets.hdlm([0, 0, 1, 1, 2, 3], xi=0.7), torch.randint(6, (8, 5))

    def drawn(rows, levels="independent"):
        noise = dd.mirrored(dd.KeyedGenerator(1, 2, torch.arange(8)[rows]))
        t = dd.sample_times(len(x[rows]), generator=noise)
        return t, process.sample(x[rows], t, noise, levels=levels)

    for levels in ("independent", "systematic", "balanced"):
        whole = drawn(slice(0, 8), levels)
        parts = [drawn(rows, levels) for rows in (slice(0, 2), slice(2, 8))]
        crossed = drawn(torch.tensor([3, 0, 6, 5]), levels)  # partners need not be in one batch
        for one, *some, other in zip(whole, *parts, crossed, strict=True):
            assert torch.equal(torch.cat(some), one) and torch.equal(other, one[[3, 0, 6, 5]])


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("levels", ["independent", "systematic"])
def test_each_row_of_a_pair_follows_the_process(row, levels):
    process, rows = dd.presets.gidd(3, 0.3), 20_000
    x, t = torch.tensor([[0, 2]]).repeat(rows, 1), torch.full((rows,), 0.4, dtype=torch.float64)
    z = process.sample(x, t, dd.mirrored(torch.Generator().manual_seed(0)), levels=levels)[row::2]
    chance = process.marginal(x[:1], t[:1])[0]
    for place in range(2):
        found = torch.bincount(z[:, place], minlength=4) / len(z)
        error = (chance[place] * (1 - chance[place]) / len(z)).sqrt()
        assert ((found - chance[place]).abs() < 5 * error).all()


def test_a_pair_of_masked_texts_hides_every_token_once_at_half_time():
    process, x = dd.presets.mdlm(4), torch.randint(4, (10, 16))
    z = process.sample(x, torch.full((10,), 0.5), dd.mirrored(torch.Generator().manual_seed(0)))
    assert torch.equal((z[0::2] == 4) ^ (z[1::2] == 4), torch.ones(5, 16, dtype=torch.bool))


def test_the_bound_keeps_its_mean_and_a_pair_has_less_noise():
    """At equal rows: the mean of two rows, mirrored or not."""
    process, rows = dd.presets.mdlm(8), 8000
    x, zeros = torch.randint(8, (rows, 6)), lambda z, t: torch.zeros(*z.shape, 8)
    spread = {}
    for name, noise in (("alone", lambda g: g), ("pairs", dd.mirrored)):
        found = dd.bound(process, zeros, x, noise(torch.Generator().manual_seed(5))).total.mean(1).double()
        pairs = found.view(-1, 2).mean(1)
        error = float(pairs.std()) / math.sqrt(len(pairs))
        assert float(pairs.mean()) == pytest.approx(math.log(8), abs=4.5 * error)
        t = torch.full((rows,), 0.4)
        z = process.sample(x, t, noise(torch.Generator().manual_seed(6)))
        spread[name] = float((z == 8).double().mean(1).view(-1, 2).mean(1).std())
    assert spread["pairs"] < 0.6 * spread["alone"]


@every_source
def test_odd_numbers_of_rows_are_refused(source):
    inside = dd.KeyedGenerator(1, 2, torch.arange(7)) if source is SOURCES["keyed"] else source()
    noise = dd.mirrored(inside)
    with pytest.raises(ValueError, match="asked for 7 rows, must be an even number"):
        rand((7, 3), noise, CPU)
    with pytest.raises(ValueError, match="asked for 7 rows, must be an even number"):
        dd.sample_times(7, generator=noise)


@pytest.mark.usefixtures("as_users_call")
def test_what_is_no_generator_and_what_is_mirrored_already_are_refused():
    for wrong in (3, dd.mirrored(None)):
        with pytest.raises(TypeError, match=r"generator is .*, must be a torch\.Generator, a KeyedGenerator or None"):
            dd.mirrored(wrong)


def test_even_uniforms_are_uniform_one_by_one_and_evenly_spaced_together():
    u = evenly((4000, 5), torch.Generator().manual_seed(0), CPU)
    gaps = u.sort(-1).values.diff(dim=-1)
    assert torch.allclose(gaps, torch.full_like(gaps, 0.2))
    for place in range(5):
        tenths = torch.bincount((u[:, place] * 10).long(), minlength=10) / 4000
        assert float((tenths - 0.1).abs().max()) < 5 * math.sqrt(0.09 / 4000)
    orders = {tuple(row) for row in u.argsort(-1).tolist()}
    assert len(orders) == 120
