"""Objects from plain values: ``{kind: tree, xi: 0.9}`` is one language for Python, YAML and the command line.

``kind`` is a name that ``python -m ddlib`` lists, or ``package.module:object``, a class or a function. The other keys
are the arguments of its constructor, whose annotations say what they may be; where an argument is a part itself, its
value is again such a mapping. A part with one argument or none is a string: ``cosine``, ``polynomial:2``,
``ancestral:force_transition=true``, ``my_package.noise:make``.

What only a run knows, the number of words for one, is filled in by name: see ``run`` of ``build``.
"""

import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor

from ddlib import registry
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

    @property
    def plain(self) -> bool:
        """Whether the default can be written down."""
        return self.default is not REQUIRED and isinstance(self.default, str | int | float | bool | list | tuple | None)


def read(group: str, given: Any, run: Any = None, place: str = "") -> dict[str, Any]:
    """The values of a part as a mapping that says all of it: short strings written out, defaults filled in, all checked.

    Nothing is built; modules that ``kind`` names are imported.

    Args:
        group: of plug-ins, one of ``registry.GROUPS``.
        given: a mapping with ``kind``, or a string.
        run: as in ``build``; its class is enough.
        place: what errors call it.

    Raises:
        ValueError: everything that is wrong, each by its place: a key that does not exist with the nearest that does,
            one that is missing, a value of another type.
        ImportError: a plug-in that does not load.
    """
    faults: list[str] = []
    values = _read(group, given, run, place or group, faults)
    if faults:
        raise ValueError("; ".join(dict.fromkeys(faults)))
    return values


def build(group: str, given: Any, run: Any = None, place: str = "") -> Any:
    """The object that plain values describe.

    Args:
        group: of plug-ins, one of ``registry.GROUPS``.
        given: a mapping with ``kind``, a string, or an object of the kind, which is returned; so may be its arguments.
        run: an object whose methods are what a run knows. An argument of the name of a method, without a default or
            with the default None, is filled in by its result unless it is given; one with another default if its value
            is the word ``run``. The method's own arguments are keys of the part in its place.
        place: what errors call it.

    Raises:
        ValueError: as ``read``; what the constructor refuses, with the place.
        TypeError: the function gives something else than an object of the kind.

    Example:
        >>> build("schedules", {"kind": "polynomial", "power": 2})
        Polynomial(power=2.0)
        >>> build("schedules", "cosine")
        Cosine()
    """
    if _is_one(group, given):
        return given
    return _build(group, read(group, given, run, place), run, place or group)


def keys(group: str, kind: str, run: Any = None, asked: Mapping[str, Any] | None = None) -> dict[str, Key]:
    """The keys of a part besides ``kind``, by name.

    Args:
        group: of plug-ins.
        kind: a registered name or ``package.module:object``.
        run: as in ``build``.
        asked: the values, as far as they decide which keys there are.
    """
    asked, found = asked or {}, {}
    for parameter in _parameters(registry.find(group, kind)):
        name = parameter.name
        if not _fills(parameter, run, asked):
            found[name] = parameter
            continue
        if name in asked:
            found[name] = Key(name, Literal["run"], REQUIRED, filled=name)
        own = _parameters(getattr(run, name))
        found |= {key.name: replace(key, filled=name) for key in own}
    return found


def origins(group: str, values: Mapping[str, Any], run: Any = None) -> list[registry.Origin]:
    """Where a part and those in it come from, each once, but for ddlib's own."""
    found = [registry.origin(group, values["kind"])]
    for key in keys(group, values["kind"], run, values).values():
        if key.group and isinstance(values.get(key.name), Mapping):
            found += origins(key.group, values[key.name], run)
    return [one for one in dict.fromkeys(found) if one.package != "ddlib"]


def parse(text: str) -> Any:
    """A value from the command line: JSON if it is some, else the text itself."""
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


def _read(group: str, given: Any, run: Any, place: str, faults: list[str]) -> Any:
    if _is_one(group, given):
        return given
    try:
        values = expand(group, given, run) if isinstance(given, str) else dict(given)
    except (TypeError, ValueError):
        faults.append(f"{place}: must be a name or a mapping with the key kind, got {given!r}")
        return {}
    if not isinstance(values.get("kind"), str):
        faults.append(f"{place}.kind: is missing, must be a name that `python -m ddlib` lists or package.module:object")
        return {}
    try:
        allowed = keys(group, values["kind"], run, values)
    except ValueError as error:
        faults.append(f"{place}.kind: {error}")
        return {}
    name = values["kind"] if ":" in values["kind"] else values["kind"].replace("-", "_")
    for key in values.keys() - allowed.keys() - {"kind"}:
        near = get_close_matches(str(key), allowed, 1)
        hint = f"did you mean {near[0]}?" if near else f"{name} has {', '.join(allowed) or 'none'}"
        faults.append(f"{place}.{key}: no such key; {hint}")
    result = {"kind": name}
    for key in allowed.values():
        here = f"{place}.{key.name}"
        if key.name in values:
            result[key.name] = _value(key, values[key.name], run, here, faults)
        elif key.default is REQUIRED:
            faults.append(f"{here}: is missing")
        elif key.plain:
            result[key.name] = list(key.default) if isinstance(key.default, tuple) else key.default
    return result


def _value(key: Key, value: Any, run: Any, place: str, faults: list[str]) -> Any:
    if key.group and not (value is None and key.default is None):
        return _read(key.group, value, run, place, faults)
    try:
        checked = check(key, value)
    except ValueError as error:
        faults.append(f"{place}: {error}")
        return None
    return list(checked) if isinstance(checked, tuple) else checked


def _build(group: str, values: Any, run: Any, place: str) -> Any:
    if _is_one(group, values):
        return values
    target, arguments = registry.find(group, values["kind"]), {}
    allowed = keys(group, values["kind"], run, values)
    for name, key in allowed.items():
        if key.filled is None and name in values:
            value = values[name]
            arguments[name] = _build(key.group, value, run, f"{place}.{name}") if key.group and value else value
    for parameter in _parameters(target):
        if parameter.name not in arguments and _fills(parameter, run, values):
            names = (name for name, key in allowed.items() if key.filled == parameter.name != name)
            own = {name: values[name] for name in names}
            arguments[parameter.name] = getattr(run, parameter.name)(**own)
    try:
        found = target(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error
    if not _is_one(group, found):
        wanted = registry.made(group)
        what = "callable" if wanted is None else f"a ddlib.{group}.{wanted.__name__}"
        raise TypeError(f"{place}: {values['kind']} gives {found!r}, must be {what}")
    return found


def _fills(parameter: Key, run: Any, values: Mapping[str, Any]) -> bool:
    """Whether a run fills an argument in."""
    if parameter.name not in _names(run):
        return False
    if parameter.name in values:
        return bool(values[parameter.name] == RUN)
    return parameter.default is REQUIRED or parameter.default is None


def _names(run: Any) -> list[str]:
    kind = run if isinstance(run, type) or run is None else type(run)
    return [name for name in dir(kind) if not name.startswith("_")] if kind is not None else []


def _is_one(group: str, given: Any) -> bool:
    kind = registry.made(group)
    if kind is not None:
        return isinstance(given, kind)
    return callable(given) and not isinstance(given, str)


@cache
def _parameters(target: Callable[..., Any]) -> tuple[Key, ...]:
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
        said = Any if group else _plain(annotation)
        if said is None and parameter.default is not REQUIRED:
            continue  # such as a function, which only Python can give
        yield Key(name, Any if said is None else said, parameter.default, group)


def _mentions(annotation: Any, kind: type[Any] | None) -> bool:
    """Whether an annotation is a class of parts, or a union with one."""
    if kind is None:
        return annotation is Denoiser
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_mentions(part, kind) for part in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, kind)


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
