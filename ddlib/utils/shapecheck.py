"""Run-time checks of shapes and types by jaxtyping and beartype; off by default, never in compiled code.

``DDLIB_SHAPECHECK=1`` in the environment checks all of ddlib and ddlib_models, ``checked`` one function or class,
``install`` another package. Annotations may be jaxtyping's, torchtyping's, or both in one signature.
"""

import ast
import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import AbstractDtype, Shaped, config, jaxtyped
from torch import Tensor

T = TypeVar("T")
_MARK = "__ddlib_checked__"
_Axes = type(Shaped[Tensor, "..."])


def checked(target: T) -> T:
    """Check annotated arguments and results at every call; for a class, those of the methods it defines.

    Axes of the same name must have the same size within one call. Compiled code runs the function without checks. As
    usual in beartype, one item of a list is checked per call. String annotations are evaluated at the first call at the
    latest.

    Args:
        target: a function, a class (changed in place), or a classmethod, staticmethod or property.

    Raises:
        TypeError: ``target`` is of another type, or has a torchtyping annotation that cannot be checked.
        ModuleNotFoundError: beartype is not installed.
        NameError: at the first call, a string annotation that still cannot be evaluated.
    """
    if isinstance(target, type):
        for name, member in list(vars(target).items()):
            # not __new__: that of a NamedTuple is generated, and torch.compile special-cases it
            if name != "__new__" and isinstance(member, FunctionType | classmethod | staticmethod | property):
                setattr(target, name, checked(member))
        return target
    if isinstance(target, classmethod | staticmethod):
        return cast(T, type(target)(checked(target.__func__)))
    if isinstance(target, property):
        parts: list[Any] = [target.fget, target.fset, target.fdel]
        fget, fset, fdel = (part and checked(part) for part in parts)
        return cast(T, property(fget, fset, fdel, target.__doc__))
    if not isinstance(target, FunctionType):
        raise TypeError(f"checked got {target!r}, must be a function or a class")
    if not target.__annotations__ or hasattr(target, _MARK):
        return cast(T, target)
    return cast(T, _checked_function(target))


def _checked_function(function: FunctionType) -> Callable[..., Any]:
    _typechecker()
    with contextlib.suppress(NameError):  # a string annotation that refers to a later definition, such as its class
        _hints(function)
    strict: Callable[..., Any] | None = None  # created at the first call: most functions are never called

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal strict
        # torch.compile traces this condition as a constant, so the checks, which it does not support, are never traced
        if torch.compiler.is_compiling() or config.jaxtyping_disable:
            return function(*args, **kwargs)
        if strict is None:
            strict = _strict(function)
        return strict(*args, **kwargs)

    result = cast(FunctionType, wrapper)
    # a separate code object: torch.compile limits recompilations per code object to eight
    result.__code__ = result.__code__.replace()
    vars(result)[_MARK] = True
    return result


def _hints(function: FunctionType) -> dict[str, Any]:
    return {name: _hint(function, name, annotation) for name, annotation in function.__annotations__.items()}


def _strict(function: FunctionType) -> Callable[..., Any]:
    @functools.wraps(function)
    def translated(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    translated.__annotations__ = hints = _hints(function)
    if not any(map(_has_axes, hints.values())):
        return cast(Callable[..., Any], _typechecker()(translated))  # six times as fast without jaxtyped
    signature = inspect.signature(function)
    parts = [p.replace(annotation=hints.get(p.name, p.empty)) for p in signature.parameters.values()]
    whole = signature.replace(parameters=parts, return_annotation=hints.get("return", signature.empty))
    vars(translated)["__signature__"] = whole
    return jaxtyped(translated, typechecker=_typechecker())


def _has_axes(hint: Any) -> bool:
    return isinstance(hint, _Axes | _NamedAndSized) or any(map(_has_axes, typing.get_args(hint)))


@functools.cache
def _typechecker() -> Callable[..., Any]:
    try:
        from beartype import BeartypeConf, beartype
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("checking shapes and types needs beartype: pip install beartype") from error
    return beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))  # an int is a float


def _hint(function: FunctionType, name: str, annotation: Any) -> Any:
    """Return the annotation for jaxtyping and beartype: strings evaluated, torchtyping translated."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    where = f"{function.__module__}.{function.__qualname__}, annotation of {name!r}"
    try:
        hint = typing.get_type_hints(holder, inspect.unwrap(function).__globals__, include_extras=True)["it"]
    except Exception as reason:  # evaluating an arbitrary string may raise anything
        raise NameError(f"{where}: {reason}") from reason
    try:
        return _translated(hint)
    except TypeError as reason:
        raise TypeError(f"{where}: {reason}") from None


# torchtyping: its checks broke when torch 2.13 removed named tensors. But ``TensorType["B", 3, float]`` still is
# ``Annotated[Tensor, {"__torchtyping__": True, "details": (ShapeDetail, DtypeDetail)}]``, which is read here without
# importing torchtyping.


def _translated(hint: Any) -> Any:
    """Replace each torchtyping annotation in ``hint``, at any depth, by its jaxtyping equivalent."""
    if hint is typing.Self:
        return Any  # a method is decorated before its class exists
    if typing.get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, dict) and "__torchtyping__" in extra:
                return _tensor(hint.__origin__, extra["details"])
        return Annotated[_translated(hint.__origin__), *hint.__metadata__]
    arguments = typing.get_args(hint)
    inner = tuple(map(_translated, arguments))
    if all(new is old for new, old in zip(inner, arguments, strict=True)):
        return hint
    origin: Any = typing.get_origin(hint)
    return typing.Union[inner] if origin in (typing.Union, types.UnionType) else origin[inner]  # noqa: UP007


def _tensor(base: type[Tensor], details: Sequence[Any]) -> Any:
    """Translate one ``TensorType[...]``; details are recognised by the names of torchtyping's classes.

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
                raise TypeError(f"{detail!r} cannot be checked: jaxtyping checks shapes and dtypes, not memory layouts")
            case other:
                raise TypeError(f"a detail of class {other} cannot be checked: only shapes and dtypes are supported")
    kind: Any = Shaped
    if dtypes is not every:
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        kind = type(names[0] if len(names) == 1 else "Float", (AbstractDtype,), {"dtypes": names})
    return kind[base, "..."] if dims is None else _shape(base, kind, dims)


def _shape(base: type[Tensor], kind: Any, dims: Sequence[Any]) -> Any:
    axes, sizes = zip(*map(_axis, dims), strict=True) if dims else ((), ())
    if sum(axis[0] in "*." for axis in axes) > 1:
        raise TypeError(f"{' '.join(axes)} has more than one '...', of which jaxtyping allows one per tensor")
    twice = {i - len(dims): size for i, size in enumerate(sizes) if size}
    if not twice:
        return kind[base, " ".join(axes)]
    shown = " ".join(f"{axis}={size}" if size else axis for axis, size in zip(axes, sizes, strict=True))
    return _NamedAndSized(
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
            raise TypeError(f"axis {word!r} cannot be checked: an axis in jaxtyping must have a name like 'batch'")
    if size is ...:
        return (f"*{name}" if named else "..."), None
    if not named:
        return ("_" if size == -1 or isinstance(size, str) else str(size)), None
    return name, (None if size == -1 else str(size))


class _Seen(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype


class _NamedAndSized(type):
    """Type of tensors with an axis like ``"a": 4``, repeated since jaxtyping's ``a=4`` does not bind the name.

    A (2, 4) tensor under ``"b", "a": 4`` is checked as one of shape (4, 2, 4) under ``"4 b a"``. This is one check,
    which binds all names or none.
    """

    base: type[Tensor]
    twice: tuple[int, ...]
    least: int
    axes: Any

    def __instancecheck__(cls, value: Any) -> bool:
        if not isinstance(value, cls.base) or value.ndim < cls.least:
            return False
        return isinstance(_Seen((*(value.shape[i] for i in cls.twice), *value.shape), value.dtype), cls.axes)


def install(*packages: str) -> None:
    """Apply ``checked`` to every function and class of ``packages``, which must not be imported yet.

    Raises:
        RuntimeError: a package is already imported; its functions would not be checked.
        ModuleNotFoundError: beartype is not installed.
    """
    _typechecker()
    for name in packages:
        # ddlib calls this on its first line, when it is partially imported
        if name in sys.modules and not getattr(sys.modules[name].__spec__, "_initializing", False):
            raise RuntimeError(f"{name} is imported already: call shapecheck.install({name!r}) before its import")
    sys.meta_path.insert(0, _Finder(packages))


class _Finder(MetaPathFinder):
    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(f"{fullname}.".startswith(f"{package}.") for package in self.packages):
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # not from the bytecode cache, which contains the module without checks
        path = self.get_filename(fullname)
        tree = _Decorate().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class _Decorate(ast.NodeTransformer):
    """Adds ``checked`` below a function's decorators (which may hide its annotations) and above those of a class."""

    # an expression, since a module run by `python -m` starts with an empty namespace
    checked = f"__import__({__name__!r}, fromlist=['checked']).checked"

    def decorate(self, node: ast.FunctionDef | ast.ClassDef, at: int) -> ast.AST:
        decorator = ast.parse(self.checked, mode="eval").body
        for part in ast.walk(decorator):
            ast.copy_location(part, node)
        node.decorator_list.insert(at, decorator)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.decorate(node, len(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.decorate(node, 0)
