"""What plain values a part takes: the arguments of its constructor, and how one is written down."""

import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor

from ddlib.plugins import registry
from ddlib.typing import Denoiser

RUN = "run"
"""In place of a value that is optional: what the run knows of this name."""

REQUIRED = inspect.Parameter.empty
_COMMA = re.compile(r",(?![^\[{(]*[\]})])")


@dataclass(frozen=True)
class Key:
    """An argument that a part takes by a plain value."""

    name: str
    annotation: Any
    """What pydantic holds values to; ``Any`` where plain values are only an approximation, as for a tensor."""
    default: Any
    """``REQUIRED`` if there is none."""
    group: str | None = None
    """The kind of plug-in, if the argument is a part."""
    filled: str | None = None
    """The argument that a run makes of it; the part itself does not take it."""
    function: bool = False
    """Whether it is a function, which ``package.module:object`` names."""

    @property
    def plain(self) -> bool:
        """Whether the default can be written down."""
        return self.default is not REQUIRED and isinstance(self.default, str | int | float | bool | list | tuple | None)


def keys(group: str, kind: str, run: Any = None, asked: Mapping[str, Any] | None = None) -> dict[str, Key]:
    """The keys of a part besides ``kind``, by name.

    Args:
        group: of plug-ins.
        kind: a registered name or ``package.module:object``.
        run: as in ``build``.
        asked: the values, as far as they decide which keys there are.
    """
    asked, found = asked or {}, {}
    for parameter in parameters(registry.find(group, kind)):
        name = parameter.name
        if not fills(parameter, run, asked):
            found[name] = parameter
            continue
        if name in asked:
            found[name] = Key(name, Literal["run"], REQUIRED, filled=name)
        own = parameters(getattr(_class(run), name))
        found |= {key.name: replace(key, filled=name) for key in own}
    return found


def parse(text: str) -> Any:
    """A value from the command line: JSON if it is some, else the sequence itself."""
    try:
        return json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text


def expand(group: str, text: str, run: Any = None) -> dict[str, Any]:
    """The mapping that a short string stands for: ``kind``, ``kind:value`` or ``kind:key=value,key=value``.

    What stands before the colon must be registered; ``package.module:object`` takes no arguments this way.
    """
    name, _, rest = text.partition(":")
    if not rest or not registry.knows(group, name):
        return {"kind": text.removesuffix(":")}
    pairs = [piece.partition("=") for piece in _COMMA.split(rest)]
    if all(key.strip().isidentifier() and sign for key, sign, _ in pairs):
        return {"kind": name} | {key.strip(): parse(value.strip()) for key, _, value in pairs}
    first = next(iter(keys(group, name, run).values()), None)
    if first is None:
        raise ValueError(f"{text!r}: {name} takes no argument")
    return {"kind": name, first.name: rest if first.annotation is str else parse(rest)}


def check(key: Key, value: Any) -> Any:
    """The value as the annotation of a key has it.

    Raises:
        ValueError: it does not fit; says what would.
    """
    try:
        return TypeAdapter(key.annotation).validate_python(value)
    except ValidationError as error:
        reasons = dict.fromkeys(fault["msg"] for fault in error.errors())
        raise ValueError(f"{' or '.join(reasons)}, got {value!r}") from error


def fills(parameter: Key, run: Any, values: Mapping[str, Any]) -> bool:
    """Whether a run fills an argument in."""
    if parameter.name not in _names(run):
        return False
    if parameter.name in values:
        given = values[parameter.name]
        return isinstance(given, str) and given == RUN
    return parameter.default is REQUIRED or parameter.default is None


def _names(run: Any) -> list[str]:
    """What a run knows."""
    return [] if run is None else [name for name in dir(_class(run)) if not name.startswith("_")]


def _class(run: Any) -> type[Any]:
    return run if isinstance(run, type) else type(run)


@cache
def parameters(target: Callable[..., Any]) -> tuple[Key, ...]:
    """The arguments of a class or function that plain values can say, and those that have no default."""
    return tuple(_declared(target))


def _declared(target: Callable[..., Any]) -> Iterator[Key]:
    code = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        hints = get_type_hints(inspect.unwrap(code))
    except (NameError, TypeError):  # an annotation that its module cannot evaluate any more
        hints = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = hints.get(name, Any)
        group = next((kind for kind in registry.GROUPS if _mentions(annotation, registry.made(kind))), None)
        function = not group and _is_function(annotation)
        said = Any if group or function else _plain(annotation)
        if said is None and parameter.default is not REQUIRED:
            continue  # such as a random generator, which only Python can give
        yield Key(name, Any if said is None else said, parameter.default, group, function=function)


def _mentions(annotation: Any, kind: type[Any] | None) -> bool:
    """Whether an annotation is a class of parts, or a union with one."""
    if kind is None:
        return annotation is Denoiser
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_mentions(part, kind) for part in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, kind)


def _is_function(annotation: Any) -> bool:
    """Whether an annotation is a callable, or None beside one."""
    if get_origin(annotation) in (Union, types.UnionType):
        return all(part is types.NoneType or _is_function(part) for part in get_args(annotation))
    return annotation is Callable or get_origin(annotation) is Callable


def _plain(annotation: Any) -> Any:
    """An annotation as far as plain values go; None if they do not go there."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [said for part in get_args(annotation) if (said := _plain(part)) is not None]
        return Union[tuple(parts)] if parts else None  # noqa: UP007 # of a list
    if "Tensor" in repr(annotation) or (isinstance(annotation, type) and issubclass(annotation, Tensor)):
        return Any  # lists of numbers; the constructor says which
    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        return None
    return annotation
