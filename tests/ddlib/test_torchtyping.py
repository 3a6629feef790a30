"""The bridge to torchtyping, compared with the real package.

Same annotation, same tensors, same verdict.

On torch >= 2.13 torchtyping's checks fail on ``tensor.names``. A tensor that has the attribute
brings them back.
"""
# ruff: noqa: UP007, UP037, UP045 (Union, Optional, and the quotes around axes are meant)

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Annotated, Any, Optional, Union

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Float32, Float64, Int64, Shaped
from torch import Tensor
from torchtyping import TensorDetail, TensorType, is_float, is_named
from torchtyping.typechecker import _check_memo, _check_tensor

from ddlib.utils.shapecheck import checked


class Unnamed(Tensor):
    """A tensor as it was before torch 2.13."""

    names = property(lambda self: (None,) * self.ndim)


def accepts(annotations, values):
    """True if a function with one argument for each annotation takes ``values``."""
    namespace = {f"T{i}": annotation for i, annotation in enumerate(annotations)}
    exec(
        f"def function({', '.join(f'x{i}: T{i}' for i in range(len(annotations)))}): ...", namespace
    )
    try:
        checked(namespace["function"])(*values)
    except TypeError as error:
        assert "Type-check error" in str(error) or "violates type hint" in str(error), error
        return False
    return True


def torchtyping_accepts(annotations, values):
    """Verdict of ``@typechecked`` under ``patch_typeguard()``, on torch 2.12."""
    memo = SimpleNamespace(value_info=[], name_to_size={}, name_to_shape={})
    try:
        for i, (annotation, value) in enumerate(zip(annotations, values, strict=True)):
            (metadata,) = annotation.__metadata__
            value = value.as_subclass(Unnamed)
            _check_tensor(f"x{i}", value, annotation.__origin__, metadata)
            shapes = [d for d in metadata["details"] if type(d).__name__ == "ShapeDetail"]
            memo.value_info += [(f"x{i}", value, "TensorType", shape) for shape in shapes]
        _check_memo(memo)
    except TypeError:
        return False
    return True


AXES = [
    1,
    2,
    3,
    -1,
    None,
    Any,
    "a",
    "b",
    slice("a", 2),
    slice("a", 3),
    slice("a", "b"),
    slice("b", "a"),
]
AXES += [slice("b", -1), slice(None, 2), slice(None, "a")]
VARIADIC = [(), (...,), (slice("x", ...),), (slice("y", ...),)]
DTYPES = [
    (),
    (float,),
    (int,),
    (bool,),
    (torch.float64,),
    (torch.bfloat16,),
    (is_float,),
    (torch.half, is_float),
]


@st.composite
def signatures(draw: Any) -> tuple[list[Any], list[Tensor]]:
    """Annotations, and tensors that mostly fit them.

    One world of sizes, then perhaps one axis is spoilt.
    """
    size = st.integers(1, 3)
    world = {name: draw(size) for name in ("a", "b")}
    groups = {name: draw(st.lists(size, max_size=2)) for name in ("x", "y")}
    annotations = []
    values = []
    for _ in range(draw(st.integers(1, 3))):
        front = draw(st.sampled_from(VARIADIC))
        axes = draw(st.lists(st.sampled_from(AXES), max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        shape = [
            n
            for part in front
            for n in (draw(st.lists(size)) if part is ... else groups[part.start])
        ]
        for axis in axes:
            bound = axis.stop if isinstance(axis, slice) else axis
            name = axis.start if isinstance(axis, slice) else axis
            fixed = bound if isinstance(bound, int) and bound > 0 else draw(size)
            shape.append(world[name] if isinstance(name, str) else fixed)
        if draw(st.integers(0, 3)) == 0 and shape:
            shape[draw(st.integers(0, len(shape) - 1))] = draw(size)
        if draw(st.integers(0, 9)) == 0:
            shape.insert(0, draw(size))
        fitting = {
            (): torch.int8,
            (float,): torch.float32,
            (int,): torch.int64,
            (bool,): torch.bool,
        }
        kind = fitting.get(
            dtype, dtype[0] if isinstance((*dtype, 0)[0], torch.dtype) else torch.float16
        )
        if draw(st.integers(0, 5)) == 0:
            kind = draw(
                st.sampled_from([torch.float32, torch.float64, torch.bool, torch.float8_e4m3fn])
            )
        annotations.append(TensorType[(*front, *axes, *dtype) or ((),)])
        values.append(torch.zeros(shape, dtype=kind))
    return annotations, values


@given(signatures())
def test_every_verdict_is_torchtypings_own(signature):
    assert accepts(*signature) == torchtyping_accepts(*signature)


@given(signatures(), st.sampled_from(["a b", "*x a", "b 2", "b", "*y", ""]), st.data())
def test_axes_bind_across_both_kinds_of_annotation(signature, shape, data):
    annotations, values = signature
    last = [slice(t[1:], ...) if t[0] == "*" else int(t) if t == "2" else t for t in shape.split()]
    value = torch.zeros(data.draw(st.lists(st.integers(1, 3), max_size=3)))
    where = data.draw(st.integers(0, len(values)))
    native = Float[Tensor, shape]
    foreign = TensorType[(*last, is_float)] if last else TensorType[(), is_float]
    values = [*values[:where], value, *values[where:]]
    mixed = accepts([*annotations[:where], native, *annotations[where:]], values)
    assert mixed == torchtyping_accepts(
        [*annotations[:where], foreign, *annotations[where:]], values
    )


def ones(*shape, dtype=None):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("foreign", "native", "fit", "unfit"),
    [
        (
            TensorType["b", 3],
            Shaped[Tensor, "b 3"],
            [ones(2, 3), ones(1, 3)],
            [ones(3, 2), ones(3), ones(2, 2, 3)],
        ),
        (TensorType["b", "b"], Shaped[Tensor, "b b"], [ones(2, 2)], [ones(2, 3)]),
        (TensorType[()], Shaped[Tensor, ""], [ones()], [ones(1)]),
        (TensorType[-1, 2], Shaped[Tensor, "_ 2"], [ones(5, 2)], [ones(2, 5), ones(2)]),
        (TensorType[Any, 2], Shaped[Tensor, "_ 2"], [ones(5, 2)], [ones(2, 5), ones(2)]),
        (TensorType[..., "a"], Shaped[Tensor, "... a"], [ones(2), ones(4, 3, 2)], [ones()]),
        (
            TensorType["x":..., 2],
            Shaped[Tensor, "*x 2"],
            [ones(2), ones(4, 3, 2)],
            [ones(), ones(2, 3)],
        ),
        (
            TensorType["a":4, "a"],
            Shaped[Tensor, "4 4"],
            [ones(4, 4)],
            [ones(3, 3), ones(4, 3), ones(4), ones(4, 4, 4)],
        ),
        (
            TensorType["a":2, "b":3],
            Shaped[Tensor, "2 3"],
            [ones(2, 3)],
            [ones(3, 2), ones(2, 2), ones(2)],
        ),
        (TensorType[None:"a", "a"], Shaped[Tensor, "_ a"], [ones(2, 3)], [ones(2)]),
        (TensorType["a":"b", "b"], Shaped[Tensor, "b b"], [ones(3, 3)], [ones(4, 3)]),
        (TensorType[..., "a":4], Shaped[Tensor, "... 4"], [ones(4), ones(2, 4)], [ones(3), ones()]),
        (
            TensorType[torch.float64],
            Float64[Tensor, "..."],
            [ones(2, dtype=torch.float64)],
            [ones(2)],
        ),
        (
            TensorType["b", float],
            Float32[Tensor, "b"],
            [ones(2)],
            [ones(2, dtype=torch.float64), ones(2, 2)],
        ),
        (
            TensorType["b", int],
            Int64[Tensor, "b"],
            [ones(2, dtype=torch.int64)],
            [ones(2, dtype=torch.int32), ones(2)],
        ),
        (TensorType["b", bool], Bool[Tensor, "b"], [ones(2, dtype=torch.bool)], [ones(2)]),
        (
            TensorType["b", is_float],
            Float[Tensor, "b"],
            [ones(2, dtype=torch.bfloat16)],
            [ones(2, dtype=torch.int64)],
        ),
        (
            TensorType[is_float],
            Float[Tensor, "..."],
            [ones(2).to(torch.float8_e5m2)],
            [ones(2, dtype=torch.int8)],
        ),
        (
            TensorType["a":2, is_float],
            Float[Tensor, "2"],
            [ones(2)],
            [ones(2, dtype=torch.int64), ones(3)],
        ),
        (
            Optional[TensorType["b", 3]],
            Shaped[Tensor, "b 3"] | None,
            [None, ones(2, 3)],
            [ones(3, 2), 3],
        ),
        (
            TensorType["b", 3] | None,
            Shaped[Tensor, "b 3"] | None,
            [None, ones(2, 3)],
            [ones(3, 2), 3],
        ),
        (
            Union[TensorType["b", 3], TensorType["a":2], int],
            Shaped[Tensor, "b 3"] | Shaped[Tensor, "2"] | int,
            [7, ones(2, 3), ones(2)],
            [ones(3), "7", None],
        ),
        (
            tuple[TensorType["b"], TensorType["b", "a":2]],
            tuple[Shaped[Tensor, "b"], Shaped[Tensor, "b 2"]],
            [(ones(3), ones(3, 2))],
            [(ones(3), ones(2, 2)), (ones(3), ones(3, 3)), (ones(3),), [ones(3), ones(3, 2)]],
        ),
        (
            tuple[TensorType[2], ...],
            tuple[Shaped[Tensor, "2"], ...],
            [(), (ones(2),)],
            [(ones(3),), (ones(3), ones(3))],
        ),
        (
            list[TensorType[2]],
            list[Shaped[Tensor, "2"]],
            [[], [ones(2), ones(2)]],
            [[ones(3)], ones(2)],
        ),
        (
            dict[str, TensorType[2]],
            dict[str, Shaped[Tensor, "2"]],
            [{"a": ones(2)}],
            [{"a": ones(3)}, {1: ones(2)}],
        ),
        (
            list[TensorType[2]] | int,
            list[Shaped[Tensor, "2"]] | int,
            [3, [ones(2)]],
            [[ones(3)], ones(2)],
        ),
        (
            list[TensorType[2] | None],
            list[Shaped[Tensor, "2"] | None],
            [[None], [ones(2)]],
            [[ones(3)], [2]],
        ),
        (Annotated[TensorType[2], "why"], Shaped[Tensor, "2"], [ones(2)], [ones(3)]),
        (
            Annotated[list[TensorType[2]], "why"],
            list[Shaped[Tensor, "2"]],
            [[ones(2)]],
            [[ones(3)]],
        ),
        (TensorType, Tensor, [ones(2, 3)], [3, None]),
    ],
)
def test_a_translation_is_the_jaxtyping_annotation(foreign, native, fit, unfit):
    for value in fit:
        assert accepts([foreign], [value]) and accepts([native], [value])
    for value in unfit:
        assert not accepts([foreign], [value]) and not accepts([native], [value])


@checked
def by_string(
    x: TensorType["b", "a":4], y: Float[Tensor, "b c"], z: TensorType["a", "c"] | None = None
) -> list[TensorType["c", "b"]]:
    """Every annotation of this file is a string."""
    return [y.mT if z is None else y]


@checked
def by_item(*args: TensorType["b"], **kwargs: TensorType["b", 2]): ...


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: by_string(ones(2, 4), ones(2, 3)), None),
        (lambda: by_string(ones(2, 4), ones(3, 3)[:2, :2], ones(4, 2)), None),
        (
            lambda: by_string(ones(2, 5), ones(2, 3)),
            "by_string.\\s.*parameter 'x'|parameter 'x' of .*by_string",
        ),
        (
            lambda: by_string(ones(2, 4), ones(3, 3)),
            "by_string.\\s.*parameter 'y'|parameter 'y' of .*by_string",
        ),
        (
            lambda: by_string(ones(2, 4), ones(2, 2), ones(3, 2)),
            "by_string.\\s.*parameter 'z'|'z' of .*by_string",
        ),
        (lambda: by_string(ones(2, 4), ones(2, 3), ones(4, 3)), "return value of .*by_string"),
        (lambda: by_item(ones(3), ones(3), x=ones(3, 2)), None),
        (lambda: by_item(ones(3), ones(2)), "args"),
        (lambda: by_item(ones(3), x=ones(3, 2), y=ones(3, 3)), "kwargs"),
    ],
)
def test_all_parameters_and_results_are_checked(call, named):
    with nullcontext() if named is None else pytest.raises(TypeError, match=named):
        call()


def test_the_message_shows_the_axes_wanted_and_the_tensor_given():
    with pytest.raises(TypeError) as caught:
        by_string(ones(2, 5), ones(2, 3))
    for part in ("test_torchtyping.by_string", "'x'", "Tensor, 'b a=4'", "f32[2,5]"):
        assert part in str(caught.value)


class ParameterType(TensorType):
    base_cls = torch.nn.Parameter


torch.set_default_dtype(torch.float64)
DOUBLE = TensorType[float]
"""``float`` is the default dtype at the time when the annotation was made."""
torch.set_default_dtype(torch.float32)
MAYBE = Optional[TensorType["a":4]]
EITHER = Union[TensorType["a":4, "b"], TensorType["b", "a":5]]
PARAMETER = torch.nn.Parameter(ones(3, 2))


@pytest.mark.parametrize(
    ("annotations", "values", "verdict"),
    [
        (
            [MAYBE, TensorType["a"]],
            [None, ones(5)],
            True,
        ),  # a sized name that is not given binds nothing
        ([MAYBE, TensorType["a"]], [ones(4), ones(5)], False),
        (
            [EITHER, Float[Tensor, "b"]],
            [ones(3, 5), ones(3)],
            True,
        ),  # nor does a first alternative that does not fit
        (
            [Union[TensorType["a":4, "b"], TensorType["b"]]],
            [ones(3)],
            True,
        ),  # or that has more axes
        ([DOUBLE], [ones(2, dtype=torch.float64)], True),
        ([DOUBLE], [ones(2, dtype=torch.float32)], False),
        ([ParameterType["a", 2]], [PARAMETER], True),
        ([ParameterType["a", 2]], [ones(3, 2)], False),
        ([ParameterType["a":3, 2]], [PARAMETER], True),
        ([ParameterType["a":3, 2]], [ones(3, 2)], False),
    ],
)
def test_the_verdict(annotations, values, verdict):
    assert accepts(annotations, values) == verdict


class Contiguous(TensorDetail):
    check = tensor_repr = __repr__ = lambda *_: "contiguous"


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (TensorType["b", is_named], "is_named cannot be checked: torch 2.13 removed named tensors"),
        (
            TensorType["b", torch.sparse_coo],
            "torch.sparse_coo cannot be checked: .*not memory layouts",
        ),
        (TensorType[torch.strided], "torch.strided cannot be checked: .*not memory layouts"),
        (TensorType["b", Contiguous()], "a detail of class Contiguous cannot be checked"),
        (TensorType["time steps"], "axis 'time steps' cannot be checked"),
        (TensorType["_b"], "axis '_b' cannot be checked"),
        (TensorType["a":"b+1"], r"axis 'b\+1' cannot be checked"),
        (TensorType["x":..., "y":...], "more than one '...'"),
    ],
)
@pytest.mark.parametrize("inside", [lambda a: a, lambda a: a | None, lambda a: list[tuple[a, int]]])
def test_uncheckable_annotations_are_refused_when_the_function_is_defined(
    annotation, reason, inside
):
    def function(x, y): ...

    for name in ("y", "return"):
        function.__annotations__ = {name: inside(annotation)}
        with pytest.raises(TypeError, match=rf"function, annotation of '{name}': .*{reason}"):
            checked(function)


def test_compiled_code_is_not_checked():
    @checked
    def double(x: TensorType["b", "a":2]) -> TensorType["b", "a"]:
        return 2 * x

    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert torch.equal(compiled(ones(3, 2)), 2 * ones(3, 2))
    compiled(ones(3, 5))
    with pytest.raises(TypeError):
        double(ones(3, 5))
