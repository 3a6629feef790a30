"""Waits of the host for the device in a training step: only in the places listed here.

There is no device in these tests, see ``pretended_device``.
"""

from dataclasses import replace

import pytest
import torch
from zoo.pretended_device import Pretended

from benchmarks.profile import TINY_PROFILE, batches, run


def waits(trained):
    """Places where the launch of a step waits, after one that does not count, and how often.

    The numbers of a step are read later, once.
    """
    stream = batches(trained)
    given = [next(stream) for _ in range(2)]
    stream.close()
    with Pretended():  # computes the tables of the hierarchy
        trained.step(given[:1], False)
    with Pretended() as pretended:
        launched = trained.launch(trained.ready(given[1:], 1), False)
    with Pretended() as later:
        trained.finish(launched)
    # the tensor of the levels is one of the host
    assert later.waits == {READING: 1, "recipes/engine/run.py: Run.finish": 1}
    return dict(pretended.waits)


READING = "recipes/engine/launched.py: HostCopy.read"
GROUPING = {
    "ddlib/kernels/dispatch.py: _hierarchical",
    "ddlib/kernels/subset_logsumexp.py: blocks",
    "ddlib/kernels/subset_logsumexp.py: blocks.<locals>.<genexpr>",
    "ddlib/parameterization/tree_softmax.py: Grouping.pad_children",
}
"""Rows that need the same columns share products, whose sizes the host needs.

This is the way without Triton; with
it the host waits once a step (``ddlib.kernels.gpu.vocab_order``)."""
MASKS = {place for place in GROUPING if "Grouping" not in place}  # one level: tokens, no clusters
SELECTING = {"ddlib/kernels/dispatch.py: _hierarchical"}  # all rows of a level need all columns
FAMILIES = {
    "ddlib/kernels/sibling_loss.py: parts",
    "ddlib/kernels/sibling_loss.py: _add_siblings",
}
"""The same with logits of children, without Triton."""
EXPECTED = {"hdlm": GROUPING, "hdlm_xi": SELECTING, "gidd": set(), "mdlm": MASKS}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_training_step_waits_only_in_known_places(kind, monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    found = waits(run(TINY_PROFILE._replace(kind=kind)))
    assert set(found) == EXPECTED[kind]


def test_factors_of_levels_and_edges_are_no_wait(monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    weighting = dict(kind="per_level", factors=[2.0, 3.0])
    trained = run(TINY_PROFILE, {"loss.mode": [2.0, 0.5], "loss.weighting": weighting})
    assert set(waits(trained)) <= EXPECTED["hdlm"]


def test_a_training_step_with_logits_of_children_waits_only_in_known_places(monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    assert set(waits(run(TINY_PROFILE, {"model.head": "children"}))) == FAMILIES


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_consistency_loss_does_not_wait(kind, monkeypatch):
    monkeypatch.setenv("DDLIB_TRITON", "0")
    trained = run(TINY_PROFILE._replace(kind=kind))
    objective = replace(trained.recipe, loss=dict(kind="consistency")).objective()
    objective.begin(trained.setting)
    trained.state = replace(trained.state, objective=objective)
    assert set(waits(trained)) == EXPECTED[kind]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: float(x[0]),
        lambda x: x.repeat_interleave(x),
        lambda x: torch.tensor(1, device=x.device),
        lambda x: 1 if x.sum() > 0 else 0,
        lambda x: x.new_tensor(1),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.device("cpu"), torch.float64),
    ],
)
def test_every_kind_of_wait_is_seen(work):
    with Pretended() as pretended:
        work(torch.arange(3))
    assert sum(pretended.waits.values()) == 1


def test_work_on_the_device_alone_is_no_wait():
    with Pretended() as pretended:
        x = torch.arange(3, device=torch.device("cuda")).double()
        x = x.to(torch.device("cpu"), non_blocking=True).to(torch.float32).to(x)
        assert x.device.type == "cuda"
        x[x > 1] = 0.0
        torch.where(x > 0, x, 1.0).softmax(0).index_add_(
            0, torch.zeros(3, dtype=torch.int64), x
        ).sum()
        x.repeat_interleave(torch.ones(3, dtype=torch.int64), output_size=3)
    assert not pretended.waits
