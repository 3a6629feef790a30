"""The logic of the kernels for child logits in Triton's interpreter.

Run by test_triton_kernels.py, see there.
"""

import os
from functools import partial

import fused_loss_inputs
import pytest
import torch
from cases import examples
from fused_loss_inputs import F64, NESTED, agree_with_float64
from hypothesis import given, settings
from hypothesis import strategies as st

import ddlib as dd
from ddlib.kernels import dispatch as plans
from ddlib.kernels import gpu
from ddlib.kernels.fused import FlatBatch
from ddlib.kernels.gpu import siblings
from ddlib.kernels.gpu.grouped_gemm import Tiles
from ddlib.objective.training import LossOptions
from ddlib.testing import strategies

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_triton_kernels.py"

F32 = torch.float32
TREES = {
    "two": dd.hierarchies.Tree(NESTED[:1]),
    "four": dd.hierarchies.Tree(NESTED),
    "flat": dd.hierarchies.Flat(8),
}
MANY = {
    "masked": (dd.presets.mdlm(8), TREES["four"]),
    "flat": (dd.presets.mdlm(8), TREES["flat"]),
    "clusters": (dd.presets.hdlm(NESTED[0]), TREES["four"]),
    "four-levels": (dd.presets.hdlm_levels(NESTED), TREES["four"]),
    "xi-above": (
        dd.presets.hdlm_levels(NESTED, xi=[1.0, 0.8, 1.0]),
        TREES["four"],
    ),  # the rest by the dense way
    "wide": (
        dd.presets.mdlm(131),
        dd.hierarchies.Tree([torch.arange(131) % 7]),
    ),  # families of several tiles
}
batch = partial(fused_loss_inputs.batch, rows=6, length=3, dim=9, dtype=F32)


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """As if the CPU were a GPU, in tiles that small families fill more than once."""
    monkeypatch.setattr(gpu, "usable", lambda device, dtype: dtype != F64)
    monkeypatch.setattr(siblings, "TILES", Tiles(tokens=4, columns=8, depth=8, warps=4, stages=1))


@pytest.mark.parametrize(
    "name, mode",
    [(name, mode) for name in MANY for mode in ("standard", "hard")],
)
def test_values_and_gradients(name, mode):
    process, tree = MANY[name]
    agree_with_float64(
        process, *batch(process, tree), tree, mode=mode, weighting=dd.weightings.Clip(5.0)
    )


@pytest.mark.parametrize("chunk", [1, 5, 40, 10_000])
def test_however_tokens_are_cut(chunk):
    for name in ("masked", "four-levels"):
        process, tree = MANY[name]
        agree_with_float64(process, *batch(process, tree), tree, chunk=chunk)


def test_siblings_next_to_each_other_and_rows_that_are_no_states():
    process, tree = MANY["wide"]
    order = torch.cat([tree.maps[0].parents.argsort(stable=True), torch.arange(131, 138)])
    agree_with_float64(process, *batch(process, tree), tree, rows=order.argsort())


def test_a_layer_that_lies_across_its_memory():
    process, tree = MANY["clusters"]
    (hidden, weight, bias), noisy = batch(process, tree)
    across = [
        hidden.mT.contiguous().mT,
        weight.T.contiguous().T,
        torch.stack([bias, bias], 1)[:, 0],
    ]
    assert not any(p.is_contiguous() for p in across)
    agree_with_float64(
        process, [p.detach().requires_grad_() for p in across], noisy, tree, chunk=40
    )


@settings(max_examples=examples(8))
@given(
    strategies.hierarchies(max_depth=4, max_words=23),
    st.integers(0, 99),
    st.integers(1, 70),
    st.integers(1, 20),
)
def test_drawn_hierarchies(hierarchy, seed, chunk, dim):
    process = dd.processes.Hierarchical(hierarchy, dd.schedules.Linear())
    layer, noisy = batch(process, hierarchy, seed, rows=3, length=2, dim=dim)
    agree_with_float64(
        process, layer, noisy, hierarchy, chunk=chunk, weighting=dd.weightings.Clip(5.0)
    )


def test_half_precision():
    """Float16, since the interpreter cannot multiply bfloat16; see test_triton_gpu.py."""
    process, tree = MANY["wide"]
    layer, noisy = batch(process, tree, dtype=torch.float16)
    agree_with_float64(
        process, layer, noisy, tree, tolerance=5e-3, weighting=dd.weightings.Clip(5.0)
    )


def test_all_words_and_all_masks():
    process, tree = MANY["four-levels"]
    layer, (x, _, t) = batch(process, tree)
    for z in (x, torch.full_like(x, process.num_states - 1)):
        agree_with_float64(process, layer, (x, z, t), tree)


def test_nan_is_not_lost():
    process, tree = MANY["wide"]
    layer, (x, z, t) = batch(process, tree)
    z = torch.full_like(z, process.num_states - 1)
    with torch.no_grad():
        layer[0][0, 0] = torch.nan
    children = dd.Children(tree)
    values = dd.summed_loss(
        process, dd.Hidden(*layer[:2]), x, z, t, 1.0, parameterization=children
    )[1]
    assert values[0, 0].isnan() and values.isfinite().sum() == values.numel() - 1


def test_the_plan_groups_siblings():
    process, tree = MANY["four-levels"]
    _, (x, z, t) = batch(process, tree)
    rows = FlatBatch(x.flatten(), z.flatten(), t.repeat_interleave(x.shape[1]))
    (part,), _ = plans.plan(process, rows, LossOptions(parameterization="children"), F32)
    assert isinstance(part, siblings.Grouped)
