"""The kernels of adaptive normalisation in Triton's interpreter, on a CPU.

test_norm_kernels.py runs it in its own process, see tests/ddlib/test_triton_kernels.py.
"""

import os

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import features_of, inputs, trained

from ddlib_models.dit import adaptive_norm as norms
from ddlib_models.dit import norm_kernels
from ddlib_models.dit.adaptive_norm import AdaptiveNorm, FusedNorm, LayerNorm, Residual
from ddlib_models.dit.norm_kernels import adaptive_norm, adaptive_norm_backward

assert os.environ.get("TRITON_INTERPRET") == "1", "run test_norm_kernels.py"

F64 = torch.float64


@pytest.fixture(autouse=True)
def supported(monkeypatch):
    """As if the CPU were a GPU, in tiles that a short sequence fills more than once."""
    all_but_device = norms.unsupported

    def reason(x, *vectors):
        return "" if (why := all_but_device(x, *vectors)).startswith("device") else why

    monkeypatch.setattr(norms, "unsupported", reason)
    monkeypatch.setattr(norm_kernels, "ROWS", 2)


def drawn(rows, length, width, shared, dtype=F64, seed=0):
    """Activations, a branch, gate, weight, shift and scale."""
    generator = torch.Generator().manual_seed(seed)
    many = [(rows, length, width)] * 2
    vector = (1 if shared else rows, 1, width)
    sizes = [*many, vector, (width,), vector, vector]
    tensors = [torch.randn(size, generator=generator, dtype=F64).to(dtype) for size in sizes]
    return [tensor.requires_grad_() for tensor in tensors]


def fused(x, y, gate, weight, shift, scale):
    return adaptive_norm(x, y, gate, weight, shift, scale, x.dtype)[:2]


def by_torch(x, y, gate, weight, shift, scale):
    norm = LayerNorm(x.shape[-1]).to(weight.dtype)
    del norm.weight
    norm.weight = weight
    return AdaptiveNorm().normalise(norm, Residual(x, gate, y), shift, scale)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 2, 5), (3, 1, 1)])
def test_gradients_are_the_derivatives(shape, shared):
    tensors = drawn(*shape, shared)
    assert torch.autograd.gradcheck(fused, tensors)
    x, _, _, *rest = tensors
    assert torch.autograd.gradcheck(lambda x, *rest: fused(x, None, None, *rest)[1], [x, *rest])


@settings(max_examples=examples(20))
@given(
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([torch.float32, F64]),
    st.integers(0, 99),
)
def test_results_and_gradients_of_torch(rows, length, width, shared, dtype, seed):
    tensors = drawn(rows, length, width, shared, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    slopes = [torch.randn(rows, length, width, generator=generator, dtype=dtype) for _ in range(2)]
    results = []
    for function in (fused, by_torch):
        values = function(*tensors)
        results.append([*values, *torch.autograd.grad(values, tensors, slopes)])
    # a deviation of two equal entries of a row is rounding, which the inverse deviation multiplies
    factor = 1e3 if width < 3 else 1.0
    tolerance = factor * 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("vectors", [torch.bfloat16, torch.float32])
def test_half_precision_is_rounded_once(vectors):
    """Against float64, within the 2^-7 of the interpreter, which truncates."""
    tensors = [tensor.detach().to(torch.bfloat16) for tensor in drawn(2, 5, 24, False)]
    tensors = [t.to(vectors) if t.shape[1:2] == (1,) else t for t in tensors]
    wide = by_torch(*(tensor.double() for tensor in tensors))
    total, h = fused(*tensors)
    assert total.dtype == h.dtype == torch.bfloat16
    exact = by_torch(total.double(), torch.zeros_like(wide[0]), *(t.double() for t in tensors[2:]))
    for ours, theirs in ((total, wide[0]), (h, exact[1])):
        assert ((ours.double() - theirs).abs() <= 2**-7 * theirs.abs() + 1e-5).all()


def test_vectors_may_be_parts_of_one_product():
    x, y, *_ = drawn(3, 4, 6, False)
    weight = torch.ones(6, dtype=F64)
    parts = torch.randn(3, 1, 18, dtype=F64).chunk(3, dim=-1)
    torch.testing.assert_close(
        fused(x, y, parts[0], weight, *parts[1:]), by_torch(x, y, parts[0], weight, *parts[1:])
    )


def test_operators_are_what_a_compiler_requires():
    tensors = drawn(2, 3, 4, False, torch.float32)
    torch.library.opcheck(adaptive_norm, (*tensors, torch.bfloat16))
    x, _, _, *rest = tensors
    torch.library.opcheck(adaptive_norm, (x, None, None, *rest, torch.float32))
    with torch.no_grad():
        following, h, mean, rstd = adaptive_norm(*tensors, torch.float32)
        _, y, gate, weight, _, scale = (tensor.detach() for tensor in tensors)
        given = (following, h, following, y, gate, weight, scale, mean, rstd)
        torch.library.opcheck(adaptive_norm_backward, given)


CASES = "plain", "own_times", "packed", "some_positions", "no_time"


@pytest.mark.parametrize(
    ("case", "compiled"),
    [*((name, None) for name in CASES), ("plain", "trunk"), ("plain", "blocks")],
)
def test_a_network_with_the_kernels_has_the_same_features_and_gradients(case, compiled):
    results = []
    for change in (False, True):
        model = trained(fused_norms=change, time_conditioned=case != "no_time").eval()
        assert isinstance(model.adaptive, FusedNorm) == change
        if compiled == "trunk" and change:
            model.compile_trunk(backend="aot_eager", fullgraph=True)
        for block in model.blocks:
            if compiled == "blocks" and change:
                block.compile(backend="aot_eager", fullgraph=True)
        features = features_of(model, case)
        features.square().sum().backward()
        results.append([features, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_kernels_run_in_blocks_unless_vectors_are_those_of_positions(monkeypatch):
    calls = []
    kernel = norm_kernels.adaptive_norm
    monkeypatch.setattr(
        norm_kernels, "adaptive_norm", lambda *given: calls.append(given) or kernel(*given)
    )
    model = trained(fused_norms=True)
    z, t = inputs(2, 4)
    model(z, t)
    assert len(calls) == 2 * len(model.blocks)
    model(z, torch.rand(2, 4))
    assert len(calls) == 2 * len(model.blocks)
