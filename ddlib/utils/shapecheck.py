"""Run-time checks of shapes and types by jaxtyping and beartype.

Off by default, never in compiled code.

``DDLIB_SHAPECHECK=1`` in the environment checks all of ddlib and ddlib_models, ``checked`` one
function or class, ``install`` another package. Annotations may be jaxtyping's, torchtyping's, or
both in one signature.
"""

import ast
import contextlib
import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Shaped, config, jaxtyped
from torch import Tensor

from ddlib.utils.torchtyping_hints import NamedAndSized, translated_hint

T = TypeVar("T")
_MARK = "__ddlib_checked__"
_Axes = type(Shaped[Tensor, "..."])


def checked(target: T) -> T:
    """Check annotated arguments and results at every call.

    For a class, those of the methods it defines.

    Axes of the same name must have the same size within one call. Compiled code runs the function
    without checks. As usual in beartype, one item of a list is checked per call. String annotations
    are evaluated at the first call at the latest.

    Args:
        target: a function, a class (changed in place), or a classmethod, staticmethod or property.

    Raises:
        TypeError: ``target`` is of another type, or has a torchtyping annotation that cannot be
            checked.
        ModuleNotFoundError: beartype is not installed.
        NameError: at the first call, a string annotation that still cannot be evaluated.
    """
    if isinstance(target, type):
        for name, member in list(vars(target).items()):
            # not __new__: that of a NamedTuple is generated, and torch.compile special-cases it
            if name != "__new__" and isinstance(
                member, FunctionType | classmethod | staticmethod | property
            ):
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
    with contextlib.suppress(
        NameError
    ):  # a string annotation that refers to a later definition, such as its class
        _hints(function)
    strict: Callable[..., Any] | None = (
        None  # created at the first call: most functions are never called
    )

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal strict
        # torch.compile traces this condition as a constant, so the checks, which it does not
        # support, are never traced
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
    return {
        name: _hint(function, name, annotation)
        for name, annotation in function.__annotations__.items()
    }


def _strict(function: FunctionType) -> Callable[..., Any]:
    @functools.wraps(function)
    def translated(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    translated.__annotations__ = hints = _hints(function)
    if not any(map(_has_axes, hints.values())):
        return cast(
            Callable[..., Any], _typechecker()(translated)
        )  # six times as fast without jaxtyped
    signature = inspect.signature(function)
    parts = [
        p.replace(annotation=hints.get(p.name, p.empty)) for p in signature.parameters.values()
    ]
    whole = signature.replace(
        parameters=parts, return_annotation=hints.get("return", signature.empty)
    )
    vars(translated)["__signature__"] = whole
    return jaxtyped(translated, typechecker=_typechecker())


def _has_axes(hint: Any) -> bool:
    return isinstance(hint, _Axes | NamedAndSized) or any(map(_has_axes, typing.get_args(hint)))


@functools.cache
def _typechecker() -> Callable[..., Any]:
    try:
        from beartype import BeartypeConf, beartype
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "checking shapes and types needs beartype: pip install beartype"
        ) from error
    return beartype(
        conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
    )  # an int is a float


def _hint(function: FunctionType, name: str, annotation: Any) -> Any:
    """Return the annotation for jaxtyping and beartype.

    Strings evaluated, torchtyping translated.
    """

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    where = f"{function.__module__}.{function.__qualname__}, annotation of {name!r}"
    try:
        hint = typing.get_type_hints(
            holder, inspect.unwrap(function).__globals__, include_extras=True
        )["it"]
    except Exception as reason:  # evaluating an arbitrary string may raise anything
        raise NameError(f"{where}: {reason}") from reason
    try:
        return translated_hint(hint)
    except TypeError as reason:
        raise TypeError(f"{where}: {reason}") from None


def install(*packages: str) -> None:
    """Apply ``checked`` to every function and class of ``packages``, which must not be imported
    yet.

    Raises:
        RuntimeError: a package is already imported; its functions would not be checked.
        ModuleNotFoundError: beartype is not installed.
    """
    _typechecker()
    for name in packages:
        # ddlib calls this on its first line, when it is partially imported
        if name in sys.modules and not getattr(sys.modules[name].__spec__, "_initializing", False):
            raise RuntimeError(
                f"{name} is imported already: call shapecheck.install({name!r}) before its import"
            )
    sys.meta_path.insert(0, _Finder(packages))


class _Finder(MetaPathFinder):
    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(f"{fullname}.".startswith(f"{package}.") for package in self.packages):
            return None
        others = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if finder is not self
        )
        spec = next(filter(None, others), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    # the cached bytecode contains the checks: a file of its own, and another one when this module
    # changes
    suffix = f".checked{os.stat(__file__).st_mtime_ns}.pyc"

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._apart(path))

    def set_data(self, path: str, data: Any, **options: Any) -> None:
        super().set_data(self._apart(path), data, **options)

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        return compile(_Decorate().visit(ast.parse(data, path)), path, "exec", dont_inherit=True)

    def _apart(self, path: str) -> str:
        return path.removesuffix(".pyc") + self.suffix if path.endswith(".pyc") else path


class _Decorate(ast.NodeTransformer):
    """Adds ``checked`` below a function's decorators (which may hide its annotations) and above
    those of a class.
    """

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
