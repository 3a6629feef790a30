"""Checks of shapes in test runs: what they catch, and the legend of the axes."""

import ast
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest

import ddlib
import ddlib_models
from ddlib.typing import AXES

HERE = Path(__file__).parent
ROTATE = "rotate(torch.ones(1, {positions}, 2, 4), torch.ones(2, 5, 2))"
LINEAR = "Linear().rate({time})"


@pytest.mark.parametrize(
    ("right", "wrong", "messages"),
    [
        (
            ROTATE.format(positions=5),
            ROTATE.format(positions=3),
            ["layers.rotate", "parameter 'rotation'", "f32[2,5,2]", "L=3"],
        ),
        (
            LINEAR.format(time="torch.zeros(1)"),
            LINEAR.format(time="'now'"),
            ["Linear.rate", "parameter 't'"],
        ),
        (
            "dd.processes.GIDD(3, 0).small_copy(2)",
            "dd.processes.GIDD(3, 'half')",
            ["GIDD.__init__", "parameter 'p_uniform'"],
        ),
    ],
)
def test_a_wrong_shape_or_type_is_caught(right, wrong, messages):
    code = f"""
from shapes import check_shapes
check_shapes()
import ddlib as dd, torch
from ddlib.schedules import Linear
from ddlib_models.dit.layers import rotate
{right}
{wrong}
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE)
    for part in ("Type-check error", *messages):
        assert part in ended.stderr


def axes(path):
    """Yield every axis named in a jaxtyping annotation of the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Subscript(ast.Name(kind), ast.Tuple([_, ast.Constant(str(shape))])) if hasattr(
                jaxtyping, kind
            ):
                yield from (
                    axis.strip("#?") for axis in shape.split() if axis.strip("#?*").isidentifier()
                )


def test_the_legend_lists_every_axis_and_no_other():
    files = [
        path
        for package in (ddlib, ddlib_models)
        for path in Path(package.__file__).parent.rglob("*.py")
    ]
    used = {axis for path in files for axis in axes(path)}
    assert used == set(AXES), (
        "left: axes in annotations, right: axes in the legend, ddlib.typing.AXES"
    )
