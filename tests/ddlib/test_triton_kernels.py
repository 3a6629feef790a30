"""The Triton kernels without a GPU: their logic in the interpreter, their code compiled for GPUs
that are not here.
"""

from pathlib import Path

import pytest
import torch
from interpreter import count_passed, python

from ddlib.kernels import gpu
from ddlib.utils import triton_kernels

COMPILE = """
import re, subprocess, sys, torch, ddlib
assert "triton" not in sys.modules
from triton import compile, knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ddlib.kernels.gpu import forward_kernel, grouped_gemm, inplace_softmax
from ddlib.utils import philox_kernel

forward_kernel.SHARED_MEMORY = 227 * 1024
tiles = forward_kernel.default_tiles(torch.empty(1, 1, dtype=torch.bfloat16))
constants = dict(
    HAS_BIAS=True, EVEN=True, PRECISION="ieee", SPLITS=4, BT=tiles.rows, BV=tiles.columns, BD=tiles.depth
)
wide = dict.fromkeys(("WORDS", "INDEX", "WORD"), "*i64") | dict.fromkeys(("H", "W", "BIAS", "Z"), "*bf16")
wide |= dict.fromkeys(("OUT", "FACTOR"), "*fp32")
row = dict(BV=inplace_softmax.HELD, BR=inplace_softmax.REST, BI=inplace_softmax.INNER)
warps = {forward_kernel._sums: tiles.warps, inplace_softmax._row: 32}
for kernel, constant in (
    (forward_kernel._sums, constants),
    (inplace_softmax._row, row | dict(WHOLE=True)),
    (inplace_softmax._row, row | dict(WHOLE=False)),
):
    types = {
        name: "constexpr" if name in constant else wide.get(name, "*i32" if name.isupper() and len(name) > 1 else "i32")
        for name in kernel.arg_names
    }
    found = [(i,) for i, kind in enumerate(types.values()) if kind.startswith("*")]
    source = ASTSource(kernel, types, constant, dict.fromkeys(found, [["tt.divisibility", 16]]))
    options = dict(num_warps=warps[kernel], num_stages=tiles.stages, enable_fp_fusion=True)
    made = compile(source, GPUTarget("cuda", 90, 32), options)
    open(sys.argv[1], "wb").write(made.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", sys.argv[1]]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (stack,) = re.findall(r"STACK:(\\d+)", usage)
    print(kernel.__name__, stack, made.metadata.shared, "wgmma" in made.asm["ptx"])
cut = grouped_gemm.Tiles()
constants = dict(
    HAS_BIAS=True, PRECISION="ieee", BT=cut.tokens, BV=cut.columns, BD=cut.depth
)
long = ("COLUMNS", "TOKEN", "TILE_FAMILY", "TILE_TOKEN", "START", "FIRST")
wide = dict.fromkeys(long, "*i64") | dict.fromkeys(("H", "W"), "*bf16")
for kernel in (grouped_gemm._logits, grouped_gemm._by_hidden, grouped_gemm._by_weight):
    given = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {
        name: "constexpr" if name in given else wide.get(name, "i32" if name == "D" or name.islower() else "*fp32")
        for name in kernel.arg_names
    }
    options = dict(num_warps=cut.warps, num_stages=cut.stages)
    made = compile(ASTSource(kernel, types, given), GPUTarget("cuda", 90, 32), options)
    print(kernel.__name__, len(made.asm["cubin"]) > 0, made.metadata.shared, "mma" in made.asm["ptx"])
for kernel in (philox_kernel._words, philox_kernel._uniforms, philox_kernel._scrambled):
    for of_row in (False, True):
        constants = dict(B=philox_kernel.BLOCK, R=philox_kernel.ROWS, OF_ROW=of_row, REVERSE=of_row)
        given = {name: value for name, value in constants.items() if name in kernel.arg_names}
        types = {
            name: "constexpr" if name in given else "i64" if name.islower() else "*i64"
            for name in kernel.arg_names
        }
        if kernel is philox_kernel._uniforms:
            types["OUT"] = "*fp64"
        made = compile(ASTSource(kernel, types, given), GPUTarget("cuda", 90, 32))
        print(kernel.__name__, len(made.asm["cubin"]) > 0)
"""


@pytest.mark.parametrize(("of", "least"), [("kernels", 120), ("children", 21)])
def test_logic_in_the_interpreter(pytestconfig, of, least):
    tests = Path(__file__).with_name(f"interpreted_{of}.py")
    assert count_passed(tests, pytestconfig) > least


def test_kernels_compile_for_a_gpu(tmp_path):
    """To machine code of an H200, on its tensor cores, in the shared memory and registers it has.

    Ddlib alone imports no Triton.
    """
    arguments = ("-c", COMPILE, str(tmp_path / "cubin"))
    output = python(*arguments, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0").split("\n")
    (_, _, shared, tensor_cores), *rows = (line.split() for line in output[:3])
    assert tensor_cores == "True" and 0 < int(shared) <= 227 * 1024
    assert [(name, stack) for name, stack, _, _ in rows] == [("_row", "0")] * 2  # nothing spilt
    for name, made, shared, tensor_cores in (line.split() for line in output[3:6]):
        assert made == tensor_cores == "True" and int(shared) <= 227 * 1024, name
    philox = [f"{name} True" for name in ("_words", "_uniforms", "_scrambled") for _ in range(2)]
    assert output[6:12] == philox


def test_conditions_for_the_kernels(monkeypatch):
    monkeypatch.delenv("DDLIB_TRITON", raising=False)
    monkeypatch.setattr(triton_kernels, "_is_installed", lambda: True)
    assert gpu.usable(torch.device("cuda", 1), torch.float32) and not gpu.usable(
        torch.device("cpu"), torch.float32
    )
    assert not gpu.usable(torch.device("cuda"), torch.float64)
    monkeypatch.setenv("DDLIB_TRITON", "0")
    assert not gpu.usable(torch.device("cuda"), torch.float32)
    monkeypatch.setenv("DDLIB_TRITON", "1")
    monkeypatch.setattr(triton_kernels, "_is_installed", lambda: False)
    assert not gpu.usable(torch.device("cuda"), torch.float32)
