"""Parts on the command line: their keys as flags of tyro, with the checks of YAML values."""

import inspect
import types
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from itertools import takewhile
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import tyro
from docstring_parser import parse as parse_docstring

from ddlib import parts, registry
from recipes.config.recipe import PARTS, Recipe, part, with_parts
from recipes.config.validation import ELSEWHERE, instead

_OWN = ("", "data", "hardware", "optimizer", "output")
"""Places of flags that are fields of a recipe; a part may have any key."""


def typed(recipe: Recipe) -> Recipe:
    """Return a recipe whose parts have a field for every key, for tyro.

    ``plain`` is the inverse.
    """
    return _typed(recipe, "")


def plain(given: Recipe) -> Recipe:
    """Convert a typed recipe, with the changes of tyro, back into a recipe.

    Raises:
        ValueError: as the constructor of ``Recipe``.
    """
    return _plain(given, "")


def with_kinds(recipe: Recipe, words: Sequence[str]) -> tuple[Recipe, list[str]]:
    """Apply flags like ``--process.schedule cosine`` or ``--model.kind``, which choose the kinds of
    parts.

    The kinds determine which other flags exist, so they are read first; so are keys that have no
    value yet.

    Returns:
        The recipe, and the remaining words.

    Raises:
        ValueError: as the constructor of ``Recipe``; a kind that does not exist.
    """
    changed: dict[str, Any] = {place: deepcopy(part(recipe, place)) for place in PARTS}
    flags = list(_flags(words))
    # the outer kinds first: they say which inner ones there are
    for flag in sorted(flags, key=lambda flag: len(flag.path)):
        if len(flag.values) == 1 and (group := _group(changed, flag.path)):
            value = parts.parse(flag.values[0])
            run = PARTS[flag.path[0]][1]
            _part(changed, flag.path[:-1])[flag.path[-1]] = (
                parts.expand(group, value, run) if isinstance(value, str) else value
            )
            flags.remove(flag)
    for flag in list(flags):
        if len(flag.path) > 1 and (group := _group(changed, flag.path[:-1])):
            holder = _part(changed, flag.path[:-1])
            name = flag.path[-1]
            run = PARTS[flag.path[0]][1]
            if holder is None:
                place = ".".join(flag.path[:-1])
                raise ValueError(
                    f"{flag.words[0]}: the recipe sets no {place}; choose one by --{place}.kind too"
                )
            key = parts.keys(group, holder["kind"], run, holder | {name: flag.read(None)}).get(name)
            value = flag.read(key)
            # tyro is given the type of the value so far, and "run" is of another one
            if key and (name not in holder or holder[name] == parts.RUN or key.filled == name):
                holder[name] = value
                flags.remove(flag)
    return with_parts(recipe, changed), [word for flag in flags for word in flag.words]


def _typed(holder: Any, place: str) -> Any:
    """Return ``typed`` of a recipe, or of a dataclass inside it that holds parts."""
    values = {one.name: getattr(holder, one.name) for one in fields(holder)}
    changed = {}
    for name, value in values.items():
        if (here := place + name) in PARTS:
            group, run = PARTS[here]
            changed[name] = None if value is None else _fields(group, value, run)
        elif any(other.startswith(f"{here}.") for other in PARTS):
            changed[name] = _typed(value, f"{here}.")
    # a subclass, so that tyro finds the docstrings of the other fields
    namespace = {
        "__annotations__": {
            name: type(value) if value else str | None for name, value in changed.items()
        },
        "__post_init__": lambda self: None,
        "__doc__": type(holder).__doc__,
    }
    kind: Any = dataclass(frozen=True, kw_only=True)(
        type(type(holder).__name__, (type(holder),), namespace)
    )
    return kind(**values | changed)


def _plain(given: Any, place: str) -> Any:
    """Invert ``_typed``."""
    values = {one.name: getattr(given, one.name) for one in fields(given)}
    for name, value in values.items():
        if (here := place + name) in PARTS:
            values[name] = None if value is None else _values(value)
        elif any(other.startswith(f"{here}.") for other in PARTS):
            values[name] = _plain(value, f"{here}.")
    return type(given).__base__(**values)


def check_flags(words: Sequence[str]) -> None:
    """Raise if the words of a command line hold another codebase's flag.

    Raises:
        ValueError: a name of ``ELSEWHERE``.
    """
    for word in words:
        name = word.partition("=")[0]
        place, _, last = name.removeprefix("--").replace("-", "_").rpartition(".")
        if name.startswith("--") and place in _OWN and last in ELSEWHERE:
            raise ValueError(
                f"{name}: no such flag; did you mean --{ELSEWHERE[last].replace('_', '-')}?"
            )


def check_unknown(given: Recipe, words: Sequence[str]) -> None:
    """Raise if a flag stands for an option that recipes do not have.

    Tyro finds the nearest flag of any other.

    Args:
        given: a recipe of ``typed``.
        words: the words of a command line that ``with_kinds`` left.

    Raises:
        ValueError: with the option to use in its place.
    """
    known = set(_leaves(given, ""))
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        other = (
            instead(name.rpartition(".")[2])
            if word.startswith("--") and name not in known
            else None
        )
        if other is not None:
            raise ValueError(f"{word.partition('=')[0]}: no such flag; {other}")


def _leaves(given: Any, place: str) -> Iterator[str]:
    """Yield the places of all fields of a typed recipe."""
    for one in fields(given):
        yield place + one.name
        value = getattr(given, one.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{place}{one.name}.")


class _Flag(NamedTuple):
    """A flag with its values; without a path, words that belong to no flag of a part.

    A path begins with the place of a part.
    """

    words: list[str]
    path: list[str]
    values: list[str]

    def read(self, key: parts.Key | None) -> Any:
        values = [parts.parse(value) for value in self.values]
        return _whole(key, values)


def _flags(words: Sequence[str]) -> Iterator[_Flag]:
    rest = list(words)
    while rest:
        word, *rest = rest
        name, sign, value = word.partition("=")
        path = _path(name.removeprefix("--").replace("-", "_").removesuffix(".kind"))
        if not word.startswith("--") or not path:
            yield _Flag([word], [], [])
            continue
        values = (
            [value] if sign else list(takewhile(lambda other: not other.startswith("--"), rest))
        )
        rest = rest if sign else rest[len(values) :]
        yield _Flag([word, *([] if sign else values)], path, values)


def _path(name: str) -> list[str]:
    """Return the place of a part and the keys after it; empty where there is no part."""
    for place in PARTS:
        if name == place or name.startswith(f"{place}."):
            return [place, *name.removeprefix(place).split(".")[1:]]
    return []


def _group(changed: dict[str, Any], path: Sequence[str]) -> str | None:
    """Return the group of plug-ins of the part at a path; None if there is no part."""
    if not path or path[0] not in PARTS:
        return None
    (group, run), values = PARTS[path[0]], changed[path[0]]
    for name in path[1:]:
        if not isinstance(values, dict):
            return None
        key = parts.keys(group, values["kind"], run, values).get(name)
        if key is None or key.group is None:
            return None
        group = key.group
        values = values.get(name)
    return group


def _part(changed: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return the values of the part at a path."""
    for name in path:
        changed = changed[name]
    return changed


def _fields(group: str, values: Any, run: Any) -> Any:
    """Return a frozen dataclass whose fields are the values of a part."""
    kind = values["kind"]
    described = arguments_of(registry.find(group, kind))
    columns: list[Any] = [
        ("kind", Annotated[str, tyro.conf.arg(help="Another kind has other keys.")], kind)
    ]
    for key in parts.keys(group, kind, run, values).values():
        if key.group and isinstance(values.get(key.name), dict):
            inner = _fields(key.group, values[key.name], run)
            columns.append((key.name, type(inner), inner))
        elif key.name in values:
            about = tyro.conf.arg(
                help=described.get(key.name) or f"Filled in by the run: {key.filled}."
            )
            how = bool if key.annotation is bool else Annotated[Any, _flag(key)]
            columns.append((key.name, Annotated[how, about], values[key.name]))
    name = "".join(piece.title() for piece in kind.replace(":", ".").replace("_", ".").split("."))
    made = make_dataclass(
        name, [(n, t, field(default_factory=lambda v=v: v)) for n, t, v in columns], frozen=True
    )
    return made()


def _values(given: Any) -> Any:
    """Return the values of a dataclass that ``_fields`` made."""
    return {
        one.name: _values(value)
        if hasattr(value := getattr(given, one.name), "__dataclass_fields__")
        else value
        for one in fields(given)
    }


def _flag(key: parts.Key) -> Any:
    """Return the rule by which tyro reads and prints a value."""

    def read(words: list[str]) -> Any:
        return parts.check(key, _whole(key, [parts.parse(word) for word in words]))

    def write(value: Any) -> list[str]:
        return [str(one) for one in value] if isinstance(value, list) else [str(value)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=_called(key.annotation),
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=write,
    )


def _whole(key: parts.Key | None, values: list[Any]) -> Any:
    """Return the value of a key from those of its flag.

    a single one is the element of a list if the key has lists.
    """
    if len(values) != 1:
        return values
    if (
        key is not None
        and not key.group
        and not isinstance(values[0], list)
        and not _accepts(key, values[0])
    ):
        return values if _accepts(key, values) else values[0]
    return values[0]


def _accepts(key: parts.Key, value: Any) -> bool:
    try:
        parts.check(key, value)
    except ValueError:
        return False
    return True


def _called(annotation: Any) -> str:
    """Return the name of a type in help texts: INT|STR, FLOAT ..."""
    inner = [
        _called(part) for part in get_args(annotation) if isinstance(part, type) or get_args(part)
    ]
    if get_origin(annotation) in (Union, types.UnionType):
        return "|".join(inner)
    if get_origin(annotation) is not None:
        return f"{inner[0] if inner else 'VALUE'} ..."
    return (
        "VALUE"
        if annotation is Any
        else "None"
        if annotation is type(None)
        else annotation.__name__.upper()
    )


def arguments_of(target: Any) -> dict[str, str]:
    """Return the descriptions of the arguments in the docstring of a class or function."""
    found = parse_docstring(inspect.getdoc(target) or "").params
    return {
        one.arg_name: " ".join((one.description or "").replace("``", "").split()) for one in found
    }
