"""Kernels of adaptive normalisation without a GPU: in the interpreter, and compiled for one."""

from pathlib import Path

import torch
from interpreter import count_passed, python
from tiny import inputs, trained

from ddlib_models.dit import adaptive_norm
from ddlib_models.dit.adaptive_norm import WIDEST, unsupported

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ddlib_models.dit import norm_kernels

numbers = ("L", "D")
half = ("X", "Y", "GATE", "SHIFT", "SCALE", "NEXT", "H", "DNEXT", "DH", "DX", "DY")
for kernel in (norm_kernels._forward, norm_kernels._backward):
    for gated in (False, True):
        for width in (1024, 4096):
            constants = dict(GATED=gated, SUM=norm_kernels.tl.float32, BD=width)
            if kernel is norm_kernels._backward:
                constants["ROWS"] = norm_kernels.ROWS
            types = {
                name: "constexpr" if name in constants
                else "fp32" if name == "eps"
                else "i32" if name in numbers or name.islower()
                else "*bf16" if name in half else "*fp32"
                for name in kernel.arg_names
            }
            source = ASTSource(kernel, types, constants)
            options = dict(num_warps=norm_kernels._warps(width), enable_fp_fusion=True)
            print(len(compile(source, GPUTarget("cuda", 90, 32), options).asm["cubin"]) > 0)
"""


def test_logic_in_the_interpreter(pytestconfig):
    assert count_passed(Path(__file__).with_name("interpreted_norms.py"), pytestconfig) > 15


def test_kernels_compile_for_a_gpu(tmp_path):
    output = python("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert output.split() == ["True"] * 8


def test_what_the_kernels_do_not_support_is_named(monkeypatch):
    class OnGpu:
        device = torch.device("cuda", 0)
        dtype = torch.float32
        shape = (2, 3, 8)

    x = OnGpu()
    vector, per_position = torch.zeros(2, 1, 8), torch.zeros(2, 3, 8)
    assert unsupported(x, vector) == ""
    assert unsupported(torch.zeros(2, 3, 8), vector).startswith("device cpu")
    assert unsupported(x, vector, per_position).startswith("vectors per position")
    x.dtype = torch.float64
    assert unsupported(x, vector).startswith("dtype torch.float64")
    x.dtype = torch.bfloat16
    x.shape = (2, 3, WIDEST + 1)
    assert unsupported(x, vector).startswith(f"width {WIDEST + 1}")
    monkeypatch.setattr(adaptive_norm, "INSTALLED", False)
    assert "Triton" in unsupported(x, vector)


def test_without_a_gpu_nothing_changes():
    z, t = inputs()
    assert torch.equal(trained(fused_norms=True)(z, t), trained()(z, t))
