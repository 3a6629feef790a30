"""From nats per token to what is reported: each number, its unit and its standard error."""

import math

import numpy as np
import pytest
import torch
from refusals import refused_with
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.objective.training import mean_per_token


def batch(rows, length, seed=0):
    """Nats, a mask with at least one token a row, and bytes."""
    generator = seeded(seed)
    nats = torch.rand(rows, length, generator=generator, dtype=F64) * 5
    mask = torch.rand(rows, length, generator=generator) < 0.6
    mask[:, 0] = True
    return nats, mask, torch.randint(3, 40, (rows,), generator=generator)


def ratio_error(amount, size):
    """The textbook error of a ratio of means (Cochran, 1977, section 2.11)."""
    n = len(amount)
    ratio = amount.sum() / size.sum()
    return np.sqrt(((amount - ratio * size) ** 2).sum() / (n - 1) / n) / size.mean()


def test_every_measure_agrees_with_numpy():
    nats, mask, size = batch(9, 7)
    tally = dd.Tally()
    tally.add(nats, mask, size)
    kept = np.where(mask.numpy(), nats.numpy(), 0).sum(1)
    tokens = mask.numpy().sum(1)
    size = size.numpy()
    expected = {
        "per_token": (kept.sum() / tokens.sum(), ratio_error(kept, tokens), "nats/token"),
        "per_sequence": (kept.mean(), kept.std(ddof=1) / 3, "nats/sequence"),
        "bits_per_byte": (
            kept.sum() / np.log(2) / size.sum(),
            ratio_error(kept / np.log(2), size),
            "bits/byte",
        ),
    }
    for name, (value, error, unit) in expected.items():
        measure = getattr(tally, name)
        assert measure.value == pytest.approx(value, rel=1e-12) and measure.unit == unit
        assert measure.standard_error == pytest.approx(error, rel=1e-12)
    perplexity = tally.perplexity
    assert perplexity.value == pytest.approx(math.exp(expected["per_token"][0]), rel=1e-12)
    assert perplexity.standard_error == pytest.approx(
        perplexity.value * expected["per_token"][1], rel=1e-12
    )
    assert perplexity.unit == "perplexity/token"


def test_batches_of_different_lengths_add_up_to_one_corpus():
    """Token by token, not batch by batch: a mean of batch means would weigh short batches
    too much.
    """
    parts = [batch(3, 10, 1), batch(5, 2, 2), batch(1, 30, 3)]
    one = dd.Tally()
    for nats, mask, size in parts:
        one.add(nats, mask, size)
    whole = dd.Tally()
    padded = [
        [torch.nn.functional.pad(v, (0, 30 - v.shape[1])) for v in (nats, mask)]
        for nats, mask, _ in parts
    ]
    whole.add(
        *(torch.cat(v) for v in zip(*padded, strict=True)), torch.cat([size for *_, size in parts])
    )
    for name in ("per_token", "per_sequence", "bits_per_byte", "perplexity"):
        a = getattr(one, name)
        b = getattr(whole, name)
        assert a.value == pytest.approx(b.value, rel=1e-12)
        assert a.standard_error == pytest.approx(b.standard_error, rel=1e-12)
    means = [float(nats[mask].mean()) for nats, mask, _ in parts]
    assert one.per_token.value != pytest.approx(sum(means) / 3, rel=1e-3)


def test_masked_positions_do_not_count_not_even_nan():
    nats, mask, _ = batch(4, 6)
    clean = dd.Tally()
    dirty = dd.Tally()
    clean.add(nats, mask)
    dirty.add(nats.masked_fill(~mask, math.nan), mask)
    assert dirty.per_token == clean.per_token
    empty = dd.Tally()
    empty.add(
        torch.cat([nats, nats + 100]), torch.cat([mask, torch.zeros_like(mask)])
    )  # rows of padding only
    assert empty.per_token.value == pytest.approx(clean.per_token.value, rel=1e-12)


def test_one_sequence_has_a_value_but_no_error():
    tally = dd.Tally()
    tally.add(torch.tensor([[1.0, 2.0, 4.5]]))
    assert tally.per_token.value == 2.5 and tally.per_sequence.value == 7.5
    assert math.isnan(tally.per_token.standard_error) and math.isnan(
        tally.perplexity.standard_error
    )


def test_constant_nats_have_no_error_and_float32_sums_in_float64():
    tally = dd.Tally()
    for _ in range(50):
        tally.add(torch.full((40, 100), 0.1))
    exact = float(torch.tensor(0.1))
    assert tally.per_token.value == pytest.approx(exact, rel=1e-13)
    assert tally.per_token.standard_error < 1e-13


def test_bits_per_byte_of_a_byte_model_with_256_equal_bytes_is_eight():
    tally = dd.Tally()
    tally.add(torch.full((3, 5), math.log(256)), num_bytes=torch.tensor([5, 5, 5]))
    assert tally.bits_per_byte.value == pytest.approx(8, rel=1e-7)
    assert tally.perplexity.value == pytest.approx(256, rel=1e-6)


def test_a_measure_prints_value_error_and_unit():
    assert str(dd.Measure(1.23456, 0.05, "nats/token")) == "1.2346 ± 0.0500 nats/token"


def corpus(n, rng):
    """Sequences whose lengths and nats per token vary together, as real texts' do."""
    tokens = rng.integers(1, 30, n)
    nats = tokens * (3 + rng.normal(0, 0.5, n)) + rng.normal(0, 2, n) + 0.02 * tokens**2
    return torch.tensor(nats), torch.tensor(tokens, dtype=F64)


@pytest.mark.statistical
def test_the_standard_error_is_the_spread_over_corpora_and_that_of_a_bootstrap():
    rng = np.random.default_rng(0)
    measures = [dd.Measure.ratio(*corpus(200, rng), "") for _ in range(2000)]
    spread = np.std([m.value for m in measures], ddof=1)
    assert np.mean([m.standard_error for m in measures]) == pytest.approx(spread, rel=0.06)
    nats, tokens = corpus(200, rng)
    again = rng.integers(0, 200, (2000, 200))
    bootstrap = np.std(nats.numpy()[again].sum(1) / tokens.numpy()[again].sum(1), ddof=1)
    assert dd.Measure.ratio(nats, tokens, "").standard_error == pytest.approx(bootstrap, rel=0.1)


@pytest.mark.statistical
def test_ninety_five_percent_intervals_hold_the_truth_that_often():
    rng = np.random.default_rng(1)
    big = dd.Measure.ratio(*corpus(400_000, rng), "").value
    measures = [dd.Measure.ratio(*corpus(100, rng), "") for _ in range(1000)]
    hits = np.mean([abs(m.value - big) < 1.96 * m.standard_error for m in measures])
    assert 0.92 < hits < 0.97


@pytest.mark.statistical
def test_the_error_of_a_tally_covers_the_noise_of_time_and_state():
    """The same texts evaluated again and again differ by the standard error of the tally, with
    independent times.
    """
    process = dd.presets.mdlm(4)
    x = torch.arange(4).repeat(64, 1)
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    results = []
    for seed in range(120):
        generator = seeded(seed)
        t = dd.sample_times(64, "iid", generator, dtype=F64)
        z = process.sample(x, t, generator)
        tally = dd.Tally()
        tally.add(dd.nelbo(process, logits.expand(64, 4, 4), x, z, t))
        results.append(tally.per_token)
    spread = np.std([m.value for m in results], ddof=1)
    assert np.median([m.standard_error for m in results]) == pytest.approx(spread, rel=0.35)
    truth = -float(logits.log_softmax(0).mean())
    assert abs(np.mean([m.value for m in results]) - truth) < 4 * spread / len(results) ** 0.5


def test_mean_per_token_and_its_gradient():
    nats, mask, _ = batch(3, 4)
    for keep in (None, mask):
        leaf = nats.clone().requires_grad_()
        mean = mean_per_token(leaf, keep)
        mean.backward()
        kept = torch.ones_like(mask) if keep is None else mask
        assert mean.item() == pytest.approx(nats[kept].mean().item(), rel=1e-12)
        torch.testing.assert_close(leaf.grad, kept.double() / kept.sum())


def test_masked_positions_give_no_gradient_not_even_nan():
    nats, mask, _ = batch(3, 4)
    leaf = nats.masked_fill(~mask, math.inf).requires_grad_()
    mean_per_token(leaf, mask).backward()
    torch.testing.assert_close(leaf.grad, mask.double() / mask.sum())


ONES = torch.ones(2, 3)
BYTES = torch.tensor([4, 5])


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("nats", "mask", "num_bytes", "error", "message"),
    [
        (ONES * math.nan, None, BYTES, ValueError, r"nats holds NaN or infinity, must be finite"),
        (ONES * math.inf, None, BYTES, ValueError, r"nats holds NaN or infinity"),
        (ONES, ONES, BYTES, TypeError, r"mask has dtype torch.float32.*torch.bool"),
        (ONES, ONES[:, :2] > 0, BYTES, ValueError, r"mask has shape \(2, 2\), must be \(2, 3\)"),
        (ONES, ONES > 2, BYTES, ValueError, r"mask is False everywhere"),
        (ONES[:0], None, BYTES[:0], ValueError, r"must keep at least one token|nats is empty"),
        (ONES[0], None, torch.tensor([1, 2, 3]), ValueError, r"nats has shape \(3,\).*\(B, L\)"),
        (ONES, None, BYTES[:1], ValueError, r"num_bytes has shape \(1,\), must be \(B,\) = \(2,\)"),
        (ONES, None, BYTES * 0, ValueError, r"num_bytes must be positive"),
        (ONES, None, -BYTES, ValueError, r"num_bytes must be positive"),
        (ONES, None, None, ValueError, r"num_bytes must be given for every batch or for none"),
    ],
)
def test_a_refused_batch_leaves_the_tally_as_it_was(nats, mask, num_bytes, error, message):
    tally = dd.Tally()
    untouched = dd.Tally()
    for one in (tally, untouched):
        one.add(ONES, num_bytes=BYTES)
    with pytest.raises(error, match=message):
        tally.add(nats, mask, num_bytes)
    for name in ("per_token", "per_sequence", "bits_per_byte"):
        assert getattr(tally, name) == getattr(untouched, name)


def test_the_error_names_missing_numbers():
    tally = dd.Tally()
    tally.add(ONES)
    refused_with(tally=tally)(r"""
        dd.Tally().per_token | ValueError | tally is empty
        dd.Tally().per_sequence | ValueError | tally is empty
        dd.Tally().perplexity | ValueError | tally is empty
        tally.bits_per_byte | ValueError | bits per byte require num_bytes
        tally.add(ONES, num_bytes=BYTES) | ValueError
            | num_bytes must be given for every batch or for none
    """)
