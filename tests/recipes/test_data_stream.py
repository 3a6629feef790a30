from collections import Counter
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
import torch
from refusals import refuses

from recipes.data import Documents, examples

PAD = 0
LENGTH = 8


def documents(lengths):
    """Document d is the ids 100 d + 1, 100 d + 2, ...: every token identifies its place."""
    tokens = [
        np.arange(length, dtype=np.int32) + 100 * number + 1
        for number, length in enumerate(lengths)
    ]
    halves = (tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :])
    column = pa.chunked_array([pa.array(half, type=pa.list_(pa.int32())) for half in halves])
    return Documents(
        column, pa.chunked_array([pa.array([3 * length for length in lengths])]), 2**17
    )


TEXT = documents([3, 20, 8, 5, 40, 1, 9, 30, 2, 7, 12])


MANY = documents([5 + number % 7 for number in range(600)] + [3] * 600)  # grain's own shuffle


def stream(text=TEXT, batch_size=1, seed=0, **options):
    return examples(text, length=LENGTH, pad_id=PAD, batch_size=batch_size, seed=seed, **options)


def rows(batches):
    """Position -> (tokens, mask), of unpacked batches."""
    found = {}
    for batch in batches:
        assert batch.x.dtype == batch.index.dtype == torch.int64 and batch.mask.dtype == torch.bool
        for position, x, mask in zip(
            batch.index.tolist(), batch.x.tolist(), batch.mask.tolist(), strict=True
        ):
            found[position] = (x, mask)
    return found


def pieces(batches):
    """Index -> tokens, of packed batches; padding pieces are empty."""
    found = {}
    for batch in batches:
        x = batch.x.flatten()
        mask = batch.mask.flatten()
        ends = batch.cu_seqlens.tolist()
        assert ends[0] == 0 and ends[-1] == x.numel() and len(ends) == len(batch.index) + 1
        for index, begin, end in zip(batch.index.tolist(), ends, ends[1:], strict=False):
            assert begin < end and index not in found
            assert mask[begin:end].all() or not mask[begin:end].any()
            found[index] = x[begin:end][mask[begin:end]].tolist()
    return found


def owner(tokens):
    return {(token - 1) // 100 for token in tokens}


def contents(batches, packed):
    return (pieces if packed else rows)(batches)


def test_short_documents_are_padded_and_long_ones_give_a_window():
    for x, mask in rows(islice(stream(), 50)).values():
        real = [token for token, kept in zip(x, mask, strict=True) if kept]
        assert x == real + [PAD] * (LENGTH - len(real))
        (number,) = owner(real)
        assert len(real) == min(len(TEXT[number]), LENGTH)
        assert real == list(range(real[0], real[0] + len(real)))


@pytest.mark.parametrize("packed", [False, True])
def test_every_epoch_has_each_document_once_in_another_order(packed):
    count = len(list(pieces_of_an_epoch(packed, 0)))
    orders = [list(pieces_of_an_epoch(packed, epoch)) for epoch in range(4)]
    assert count == len(TEXT)
    assert all(sorted(order) == list(range(len(TEXT))) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def pieces_of_an_epoch(packed, epoch):
    size = epoch_rows() if packed else len(TEXT)
    found = contents(islice(stream(packed=packed, start=epoch * size), size), packed)
    for tokens in found.values() if packed else (x for x, _ in found.values()):
        yield from owner([token for token in tokens if token != PAD])


def epoch_rows():
    from recipes.data import pack

    return len(pack(TEXT.lengths, LENGTH, 0))


def test_windows_differ_between_epochs_and_reach_both_ends():
    begins = Counter()
    for x, _ in rows(islice(stream(batch_size=110, threads=0), 40)).values():
        if owner([x[0]]) == {6}:  # of 9 tokens: two windows
            begins[x[0]] += 1
    assert set(begins) == {601, 602}
    assert abs(begins[601] - 200) < 50  # five standard deviations


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("world", "batch_size"), [(1, 8), (2, 4), (4, 2), (4, 1), (8, 1)])
def test_ranks_and_batches_read_the_same_examples(packed, world, batch_size):
    def steps(world, batch_size):
        micro = 8 // (world * batch_size)
        ranks = [
            stream(rank=rank, world=world, batch_size=batch_size, packed=packed)
            for rank in range(world)
        ]
        return [contents([b for r in ranks for b in islice(r, micro)], packed) for _ in range(5)]

    assert steps(world, batch_size) == steps(1, 8)


@pytest.mark.parametrize("packed", [False, True])
def test_resuming_anywhere_goes_on_exactly(packed):
    whole = contents(islice(stream(packed=packed), 40), packed)
    for start in range(30):
        rest = contents(
            islice(stream(packed=packed, start=start, batch_size=2, threads=1), 5), packed
        )
        assert rest == {index: whole[index] for index in rest}
        assert min(rest) == start * (LENGTH if packed else 1)


@pytest.mark.parametrize("packed", [False, True])
def test_threads_change_nothing(packed):
    runs = [
        [
            (b.x.tolist(), b.index.tolist())
            for b in islice(stream(packed=packed, batch_size=2, threads=threads), 30)
        ]
        for threads in (0, 1, 7)
    ]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("packed", [False, True])
def test_seeds_differ(packed):
    one, again, other = (
        contents(islice(stream(packed=packed, seed=s), 11), packed) for s in (0, 0, 1)
    )
    assert one == again != other
    # the second epoch of a seed is not the first of the next
    assert contents(islice(stream(packed=packed, seed=0, start=11), 11), packed) != other


def test_the_order_is_pinned():
    # what a run reads must not change with a release of grain or numpy
    for text, pinned in ((TEXT, FEW_PINNED), (MANY, MANY_PINNED)):
        assert [x[0] for x, _ in rows(islice(stream(text, batch_size=4), 3)).values()] == pinned


FEW_PINNED = [501, 901, 801, 707, 111, 1003, 424, 601, 301, 201, 1, 1]
MANY_PINNED = [
    100901,
    81501,
    96201,
    24601,
    40701,
    42801,
    119501,
    113301,
    94501,
    14402,
    37004,
    100801,
]


def test_many_documents_are_shuffled_too():
    epochs = [
        rows(islice(stream(MANY, batch_size=100, start=epoch * 1200), 12)).values()
        for epoch in range(2)
    ]
    orders = [[x[0] // 100 for x, _ in epoch] for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(1200))
    assert orders[0] != orders[1] != sorted(orders[1])


def test_a_packed_token_has_a_number_of_its_own():
    seen = set()
    for batch in islice(stream(packed=True, batch_size=2), 20):
        lengths = batch.cu_seqlens.diff()
        numbers = batch.index.repeat_interleave(lengths) + torch.cat(
            [torch.arange(n) for n in lengths]
        )
        assert seen.isdisjoint(numbers.tolist())
        seen.update(numbers.tolist())
    assert seen == set(range(20 * 2 * LENGTH))


def test_one_document_is_read_again_and_again():
    found = rows(islice(stream(documents([5])), 4))
    assert [x for x, _ in found.values()] == [[1, 2, 3, 4, 5, 0, 0, 0]] * 4


def test_a_batch_moves():
    batch = next(stream())
    assert batch.to(torch.device("cpu")).cu_seqlens is None
    moved = next(stream(packed=True)).to(torch.device("meta"))
    assert {part.device.type for part in vars(moved).values() if part is not None} == {"meta"}


test_bad_arguments_are_refused_before_anything_is_read = refuses(r"""
    stream(batch_size=0) | ValueError | batch_size=0: must be at least 1
    stream(seed=-1) | ValueError | seed=-1: must be at least 0
    stream(start=-1) | ValueError | start=-1: must be at least 0
    stream(rank=2, world=2) | ValueError | rank=2: must be below world=2
    stream(world=12) | ValueError | world=12: must be at most 11, the number of rows
    stream(threads=-1) | ValueError | threads=-1: must be at least 0
""")


def test_a_row_has_at_least_one_token():
    with pytest.raises(ValueError, match="length=0: must be at least 1"):
        examples(TEXT, length=0, pad_id=PAD, batch_size=1, seed=0)


def test_documents_are_read_by_number():
    assert len(TEXT) == 11 and TEXT[3].tolist() == [301, 302, 303, 304, 305]
    assert TEXT.lengths.tolist() == [len(document) for document in TEXT]
    assert sum(len(document) for document in TEXT) == TEXT.lengths.sum() == 137
    with pytest.raises(IndexError, match="document 11: there are 11"):
        TEXT[11]


def test_bits_per_byte():
    # three bytes per token: ln 2 nats per token are a bit per token, a third of a bit per byte
    assert TEXT.bits_per_byte(np.log(2.0)) == pytest.approx(1 / 3)
