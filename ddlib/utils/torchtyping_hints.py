"""Annotations of torchtyping as annotations of jaxtyping.

The checks of torchtyping broke when torch 2.13 removed named tensors. But ``TensorType["B", 3,
float]`` still is ``Annotated[Tensor, {"__torchtyping__": True, "details": (ShapeDetail,
DtypeDetail)}]``, which is read here without importing torchtyping.
"""

import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import AbstractDtype, Shaped
from torch import Tensor


def translated_hint(hint: Any) -> Any:
    """Replace each torchtyping annotation in ``hint``, at any depth, by its jaxtyping
    equivalent.
    """
    if hint is typing.Self:
        return Any  # a method is decorated before its class exists
    if typing.get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, dict) and "__torchtyping__" in extra:
                return _tensor(hint.__origin__, extra["details"])
        return Annotated[translated_hint(hint.__origin__), *hint.__metadata__]
    arguments = typing.get_args(hint)
    inner = tuple(map(translated_hint, arguments))
    if all(new is old for new, old in zip(inner, arguments, strict=True)):
        return hint
    origin: Any = typing.get_origin(hint)
    return typing.Union[inner] if origin in (typing.Union, types.UnionType) else origin[inner]  # noqa: UP007


def _tensor(base: type[Tensor], details: Sequence[Any]) -> Any:
    """Translate one ``TensorType[...]``.

    Details are recognised by the names of torchtyping's classes.

    Raises:
        TypeError: a detail that is neither a shape nor a dtype.
    """
    dims: Sequence[Any] | None = None
    dtypes = every = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    for detail in details:
        match type(detail).__name__:
            case "ShapeDetail" if detail.check_names:
                raise TypeError("is_named cannot be checked: torch 2.13 removed named tensors")
            case "ShapeDetail":
                dims = detail.dims
            case "DtypeDetail":
                dtypes = {detail.dtype}
            case "_FloatDetail":
                dtypes = {d for d in dtypes if d.is_floating_point}
            case "LayoutDetail":
                raise TypeError(
                    f"{detail!r} cannot be checked: jaxtyping checks shapes and dtypes, not memory "
                    "layouts"
                )
            case other:
                raise TypeError(
                    f"a detail of class {other} cannot be checked: only shapes and dtypes are "
                    "supported"
                )
    kind: Any = Shaped
    if dtypes is not every:
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        kind = type(names[0] if len(names) == 1 else "Float", (AbstractDtype,), {"dtypes": names})
    return kind[base, "..."] if dims is None else _shape(base, kind, dims)


def _shape(base: type[Tensor], kind: Any, dims: Sequence[Any]) -> Any:
    axes, sizes = zip(*map(_axis, dims), strict=True) if dims else ((), ())
    if sum(axis[0] in "*." for axis in axes) > 1:
        raise TypeError(
            f"{' '.join(axes)} has more than one '...', of which jaxtyping allows one per tensor"
        )
    twice = {i - len(dims): size for i, size in enumerate(sizes) if size}
    if not twice:
        return kind[base, " ".join(axes)]
    shown = " ".join(
        f"{axis}={size}" if size else axis for axis, size in zip(axes, sizes, strict=True)
    )
    return NamedAndSized(
        f"{kind.__name__}[{base.__name__}, '{shown}']",
        (),
        {
            "__module__": "builtins",  # left out of what errors print
            "base": base,
            "twice": tuple(twice),
            "least": len(dims) - any(axis[0] in "*." for axis in axes),
            "axes": kind[Any, " ".join([*twice.values(), *axes])],
        },
    )


def _axis(dim: tuple[Any, Any]) -> tuple[str, str | None]:
    """Return one axis in jaxtyping's notation, and its size if it has both a name and a size."""
    name, size = dim
    named = isinstance(name, str)  # otherwise None or a sentinel: any name
    for word in (name, size):
        if isinstance(word, str) and (word.startswith("_") or not word.isidentifier()):
            raise TypeError(
                f"axis {word!r} cannot be checked: an axis in jaxtyping must have a name like "
                "'batch'"
            )
    if size is ...:
        return (f"*{name}" if named else "..."), None
    if not named:
        return ("_" if size == -1 or isinstance(size, str) else str(size)), None
    return name, (None if size == -1 else str(size))


class _Seen(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype


class NamedAndSized(type):
    """Type of tensors with an axis like ``"a": 4``, repeated since jaxtyping's ``a=4`` does not
    bind the name.

    A (2, 4) tensor under ``"b", "a": 4`` is checked as one of shape (4, 2, 4) under ``"4 b a"``.
    This is one check, which binds all names or none.
    """

    base: type[Tensor]
    twice: tuple[int, ...]
    least: int
    axes: Any

    def __instancecheck__(cls, value: Any) -> bool:
        if not isinstance(value, cls.base) or value.ndim < cls.least:
            return False
        return isinstance(
            _Seen((*(value.shape[i] for i in cls.twice), *value.shape), value.dtype), cls.axes
        )
