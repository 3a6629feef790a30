"""Keys of a part in plain values: names, types and defaults of its constructor's arguments."""

import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from torch import Tensor

from ddlib.config import registry
from ddlib.typing import Denoiser

RUN = "run"
"""Placeholder for an optional value that the run provides under the argument's name."""

REQUIRED = inspect.Parameter.empty
_ARGUMENTS = re.compile(r"\s*(?:\w+\s*=|[-+.\d\[{])")


@dataclass(frozen=True)
class Key:
    """An argument of a part that a plain value can set."""

    name: str
    annotation: Any
    """Type that pydantic validates; ``Any`` if plain values only approximate it, e.g. for
    tensors.
    """
    default: Any
    """``REQUIRED`` if there is none."""
    group: str | None = None
    """The kind of plug-in, if the argument is a part."""
    filled: str | None = None
    """The argument that the run computes from this key, if the part itself does not take
    the key.
    """
    function: bool = False
    """True if the argument is a function, given as ``package.module:object``."""
    many: bool = False
    """True if the argument may be a list of parts."""
    named: bool = False
    """True if the argument is a mapping of names to parts."""

    @property
    def plain(self) -> bool:
        """True if the default is a plain value."""
        return isinstance(self.default, str | int | float | bool | list | tuple | None)

    def check(self, value: Any) -> Any:
        """Validate a value and convert it to the annotated type.

        Raises:
            ValueError: a value of a wrong type; the message has the expected type.
        """
        # here: it takes a quarter of the time of import ddlib
        from pydantic import TypeAdapter, ValidationError

        if isinstance(value, bool) and not _takes_bool(self.annotation):  # pydantic takes 0 or 1
            raise ValueError(f"Input should not be a boolean, got {value!r}")
        try:
            return TypeAdapter(self.annotation).validate_python(value)
        except ValidationError as error:
            reasons = dict.fromkeys(fault["msg"] for fault in error.errors())
            raise ValueError(f"{' or '.join(reasons)}, got {value!r}") from error


def keys(
    group: str, kind: str, run: Any = None, given: Mapping[str, Any] | None = None
) -> dict[str, Key]:
    """Return the keys of a part besides ``kind``, by name.

    Args:
        group: group of plug-ins.
        kind: a registered name or ``package.module:object``.
        run: as in ``build``.
        given: given values, which determine which keys the run fills in.
    """
    given = given or {}
    result = {}
    for parameter in parameters(registry.find(group, kind)):
        name = parameter.name
        if not fills(parameter, run, given):
            result[name] = parameter
            continue
        if name in given:
            result[name] = Key(name, Literal["run"], REQUIRED, filled=name)
        options = parameters(getattr(_class(run), name))
        result |= {key.name: replace(key, filled=name) for key in options}
    return result


def parse(text: str) -> Any:
    """Parse a value from the command line: as JSON if possible, else as a string."""
    try:
        return json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text


def expand(group: str, text: str, run: Any = None) -> dict[str, Any]:
    """Expand a short string to a mapping: ``kind``, ``kind:value`` or ``kind:key=value,key=value``.

    The part before the colon must be a registered name; ``package.module:object`` takes no
    arguments in this form.
    """
    name, _, rest = text.partition(":")
    if not rest or name.replace("-", "_") not in registry.claims(group):
        # arguments behind a misspelled name would hide which name is meant; else it is the path of
        # an object
        return {"kind": name if _ARGUMENTS.match(rest) else text.removesuffix(":")}
    pairs = [piece.partition("=") for piece in _pieces(rest)]
    if all(key.strip().isidentifier() and sign for key, sign, _ in pairs):
        return {"kind": name} | {key.strip(): parse(value.strip()) for key, _, value in pairs}
    known = keys(group, name, run)
    first = next(iter(known.values()), None)
    if first is None:
        raise ValueError(f"{text!r}: {name} takes no argument")
    if any(sign and key.strip() in known for key, sign, _ in pairs):
        bare = next(key for key, sign, _ in pairs if not sign or not key.strip().isidentifier())
        raise ValueError(
            f"{text!r}: {bare!r} has no key, write {first.name}={bare.strip()} beside other keys"
        )
    return {"kind": name, first.name: rest if first.annotation is str else parse(rest)}


def _pieces(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    depth = 0
    pieces = [""]
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _takes_bool(annotation: Any) -> bool:
    return annotation in (bool, Any, object) or any(map(_takes_bool, get_args(annotation)))


def fills(parameter: Key, run: Any, values: Mapping[str, Any]) -> bool:
    """Return whether the run fills in an argument."""
    if not hasattr(_class(run), parameter.name):
        return False
    if parameter.name in values:
        value = values[parameter.name]
        return isinstance(value, str) and value == RUN
    return parameter.default is REQUIRED or parameter.default is None


def _class(run: Any) -> type[Any]:
    return run if isinstance(run, type) else type(run)


@cache
def parameters(target: Callable[..., Any]) -> tuple[Key, ...]:
    """Return the arguments of a class or function that plain values can set, and those without a
    default.
    """
    return tuple(_keys(target))


def _keys(target: Callable[..., Any]) -> Iterator[Key]:
    try:
        signature = inspect.signature(target, eval_str=True)
    except (NameError, TypeError):  # an annotation that its module cannot evaluate any more
        signature = inspect.signature(target)
    for parameter in signature.parameters.values():
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if variable or parameter.name == "self":  # of a method of a run's class
            continue
        annotation = parameter.annotation
        if annotation is REQUIRED or isinstance(annotation, str):
            annotation = Any
        named = get_origin(annotation) is Mapping
        member = get_args(annotation)[1] if named else annotation
        group = next(
            (kind for kind in registry.GROUPS if _mentions(member, registry.base_of(kind))),
            None,
        )
        function = not group and _is_function(annotation)
        plain = Any if group or function else _plain(annotation)
        if plain is None and parameter.default is not REQUIRED:
            continue  # not a plain value, e.g. a random generator
        many = any(get_origin(part) is Sequence for part in _options(annotation))
        yield Key(
            parameter.name,
            Any if plain is None else plain,
            parameter.default,
            group,
            function=function,
            many=bool(group) and many,
            named=bool(group) and named,
        )


def _options(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _mentions(annotation: Any, kind: type[Any] | None) -> bool:
    """Return whether an annotation is a class of parts, or a union that contains one."""
    if kind is None:
        return annotation is Denoiser
    return any(isinstance(one, type) and issubclass(one, kind) for one in _options(annotation))


def _is_function(annotation: Any) -> bool:
    """Return whether an annotation is a callable, or a union of callables and None."""
    functions = [one for one in _options(annotation) if one is not types.NoneType]
    return bool(functions) and all(Callable in (one, get_origin(one)) for one in functions)


def _plain(annotation: Any) -> Any:
    """Reduce an annotation to the types of plain values; None if there are none."""
    options = _options(annotation)
    if len(options) > 1:
        parts = [plain for part in options if (plain := _plain(part)) is not None]
        return Union[tuple(parts)] if parts else None  # noqa: UP007 # of a list
    if "Tensor" in repr(annotation) or (
        isinstance(annotation, type) and issubclass(annotation, Tensor)
    ):
        return Any  # lists of numbers; the constructor checks them
    from pydantic import PydanticUserError, TypeAdapter

    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        return None
    return annotation
