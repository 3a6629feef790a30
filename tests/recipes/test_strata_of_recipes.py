"""Times of packed pieces and of the harness's questions are stratified too, on any number of
processes.
"""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import ddlib as dd
from recipes.data import Batch
from recipes.engine.objectives.noising import add_noise

LENGTH = 128
ROWS = 64
PROCESS = dd.presets.mdlm(6)


def packed(step, rank=0, world=1):
    """A batch of rows of several documents, as the stream has them."""
    begins = []
    index = []
    for number, position in enumerate(range(step * ROWS + rank, (step + 1) * ROWS, world)):
        random = np.random.default_rng(position)
        begin = 0
        while begin < LENGTH:
            begins.append(number * LENGTH + begin)
            index.append(position * LENGTH + begin)
            begin += int(random.integers(13, 39))
    rows = ROWS // world
    x = torch.zeros(rows, LENGTH, dtype=torch.int64)
    return Batch(x, x == 0, x == 0, torch.tensor(index), torch.tensor([*begins, rows * LENGTH]))


def times(step, **share):
    batch = packed(step, **share)
    return batch.index, add_noise(PROCESS, batch, 0, step).piece_t


@pytest.mark.statistical
def test_times_of_packed_pieces_are_in_strata():
    """Each at its place in time by the number of its first token, all first pieces of a step had
    one time.
    """
    errors = []
    for step in range(60):
        _, t = times(step)
        errors.append(float(t.mean() - 0.5) * math.sqrt(12 * len(t)))
    assert float(torch.tensor(errors).std()) < 0.4  # of independent times 1, of those by token 3.4
    index, t = times(3)
    first = t[index % LENGTH == 0]
    assert sorted((first * ROWS).long().tolist()) == list(range(ROWS))
    second = t[torch.cat([torch.zeros(1, dtype=torch.bool), (index % LENGTH == 0)[:-1]])]
    assert sorted((second * ROWS).long().tolist()) == list(range(ROWS))
    assert float((first - second).abs().min()) > 1 / ROWS


def test_packed_pieces_have_the_same_times_on_any_number_of_processes():
    index, t = times(2)
    parts = [times(2, rank=rank, world=4) for rank in range(4)]
    joined, found = (torch.cat(of) for of in zip(*parts, strict=True))
    order = joined.argsort()
    assert torch.equal(joined[order], index) and torch.equal(found[order], t)


def test_questions_of_the_harness_do_not_share_their_times():
    pytest.importorskip("lm_eval")
    from recipes.harness import key

    def drawn(number, samples):
        start = key(SimpleNamespace(task_name="task", doc_id=number), "")
        index = torch.arange(start, start + samples)
        return dd.sample_times(
            samples, generator=dd.KeyedGenerator(0, 0, index), dtype=torch.float64
        )

    alone = torch.cat([drawn(number, 1) for number in range(150)])
    assert abs(float(alone.mean()) - 0.5) < 0.08 and abs(float(alone.std()) - 12**-0.5) < 0.04
    firsts = torch.stack([drawn(number, 16).sort().values[0] for number in range(50)])
    assert float(firsts.std() * 16) == pytest.approx(12**-0.5, rel=0.35)  # anywhere in its slice
    starts = sorted(
        key(SimpleNamespace(task_name="task", doc_id=number), "") for number in range(5000)
    )
    assert min(b - a for a, b in pairwise(starts)) > 2**20
