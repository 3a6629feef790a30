"""Flags of a recipe: ``--a.b value`` for every key ``a: {b: value}`` of its YAML file."""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse as parse_docstring
from docstring_parser import parse_from_object

from ddlib import parts, registry
from recipes.config.recipe import PARTS, Recipe, part, with_parts
from recipes.config.validation import ELSEWHERE, instead

_OWN = ("", "data", "hardware", "optimizer", "output")
"""Places of flags that are fields of a recipe; a part may have any key."""

ALIASES = {"profile": "output.profile"}
"""Short names of flags."""


class Entry(NamedTuple):
    """A value of a recipe that a flag sets."""

    place: str
    """Keys of the YAML file, such as ``process.hierarchy.xi``."""
    key: parts.Key
    """Its type."""
    value: Any
    about: str
    """Description; empty where there is none."""

    @property
    def flag(self) -> str:
        return f"--{self.place.replace('_', '-')}"


class Flag(NamedTuple):
    """A flag of a command line."""

    word: str
    """As typed, without a value after ``=``."""
    values: list[str]

    @property
    def place(self) -> str:
        return self.word.removeprefix("--").replace("-", "_")

    def read(self, key: parts.Key | None) -> Any:
        """Parse the values, as a single one or a list, and check them.

        Without a key they are not checked.

        Raises:
            ValueError: no value, or one of another type.
        """
        if not self.values and key is not None and key.annotation is bool:
            return True
        if not self.values:
            raise ValueError(f"{self.word}: has no value")
        value = _whole(key, [parts.parse(word) for word in self.values])
        if key is None or key.group:
            return value
        alone = self.values if len(self.values) == 1 else []
        for other in (value, *alone):  # a name that looks like a number is a string
            if _accepts(key, other):
                return other if key.function else key.check(other)
        try:
            return key.check(value)
        except ValueError as error:
            raise ValueError(f"{self.word}: {error}") from None


def split(words: Sequence[str], lone: Mapping[str, int]) -> tuple[list[str], list[Flag]]:
    """Split a command line into words and flags with their values, all words up to the next flag.

    Args:
        words: the words of the command line.
        lone: number of values of flags that do not take all words, by name without dashes.
    """
    rest = list(words)
    alone: list[str] = []
    flags: list[Flag] = []
    while rest:
        word, *rest = rest
        if not word.startswith("--"):
            alone.append(word)
            continue
        name, sign, value = word.partition("=")
        values = list(takewhile(lambda other: not other.startswith("--"), rest))
        values = [value] if sign else values[: lone.get(name.removeprefix("--"), len(values))]
        rest = rest if sign else rest[len(values) :]
        flags.append(Flag(name, values))
    return alone, flags


def entries(holder: Any, place: str = "") -> Iterator[Entry]:
    """Yield every value of a recipe, or of a dataclass inside it, the keys of its parts
    included.
    """
    hints = get_type_hints(type(holder))
    described = arguments_of(type(holder))
    for one in fields(holder):
        here = f"{place}{one.name}"
        value = getattr(holder, one.name)
        if here in PARTS:
            yield from _part_entries(here, *PARTS[here], value)
        elif is_dataclass(value):
            yield from entries(value, f"{here}.")
        elif isinstance(value, dict):
            for name, item in value.items():
                yield Entry(f"{here}.{name}", parts.Key(name, Any, item), item, "")
        else:
            about = described.get(one.name, "")
            yield Entry(here, parts.Key(one.name, hints[one.name], value), value, about)


def _part_entries(place: str, group: str, run: Any, values: Any) -> Iterator[Entry]:
    about = "Another kind has other keys."
    kind = parts.Key("kind", str, inspect.Parameter.empty)
    if not isinstance(values, dict):
        yield Entry(f"{place}.kind", kind, values, about)
        return
    yield Entry(f"{place}.kind", kind, values["kind"], about)
    described = arguments_of(registry.find(group, values["kind"]))
    for key in parts.keys(group, values["kind"], run, values).values():
        here = f"{place}.{key.name}"
        value = values.get(key.name)
        if key.named and isinstance(value, dict):
            for name, one in value.items():
                yield from _part_entries(f"{here}.{name}", key.group or "", run, one)
        elif key.group and isinstance(value, dict):
            yield from _part_entries(here, key.group, run, value)
        elif key.name in values:
            text = described.get(key.name) or f"Filled in by the run: {key.filled}."
            yield Entry(here, key, value, text)


def with_flags(recipe: Recipe, flags: Sequence[Flag]) -> Recipe:
    """Return a recipe with the values of flags.

    The kinds of parts are set first, since they determine which other keys there are.

    Raises:
        ValueError: an unknown flag, with the nearest known one; a value of a wrong type; as the
            constructor of ``Recipe``.
    """
    for flag in flags:
        place, _, last = flag.place.rpartition(".")
        if place in _OWN and last in ELSEWHERE:
            name = ELSEWHERE[last].replace("_", "-")
            raise ValueError(f"{flag.word}: no such flag; did you mean --{name}?")
    known = {entry.place: entry.key for entry in entries(recipe)}
    changed: dict[str, Any] = {place: deepcopy(part(recipe, place)) for place in PARTS}
    # by the number of keys: the outer kinds determine which inner keys there are
    for flag in sorted(flags, key=lambda flag: len(_path(flag))):
        path = _path(flag)
        if path:
            _set_part(changed, path, "", *PARTS[path[0]], flag, known)
        else:
            place, value = _value(known, ALIASES.get(flag.place, flag.place), flag)
            changed[place] = value
    return with_parts(recipe, changed)


def _path(flag: Flag) -> list[str]:
    """Return the place of a part and the keys after it; empty where there is no part."""
    name = flag.place.removesuffix(".kind")
    for place in PARTS:
        if name == place or name.startswith(f"{place}."):
            return [place, *name.removeprefix(place).split(".")[1:]]
    return []


def _set_part(
    holder: dict[str, Any],
    path: Sequence[str],
    place: str,
    group: str,
    run: Any,
    flag: Flag,
    known: Mapping[str, parts.Key],
) -> None:
    """Set a part among values of parts by name, or a key inside it.

    Args:
        holder: values of parts by name.
        path: name of the part, and the keys after it.
        place: keys in front of the path, each followed by a dot.
        group: group of the part.
        run: class of the run context.
        flag: the flag.
        known: keys of the recipe before any flag, by place.
    """
    name, *rest = path
    if not rest:
        value = flag.read(None)
        holder[name] = parts.expand(group, value, run) if isinstance(value, str) else value
        return
    if not isinstance(holder.get(name), dict):
        raise ValueError(
            f"{flag.word}: the recipe sets no {place}{name}; choose one by --{place}{name}.kind too"
        )
    _set_key(holder[name], rest, f"{place}{name}.", group, run, flag, known)


def _set_key(
    values: dict[str, Any],
    path: Sequence[str],
    place: str,
    group: str,
    run: Any,
    flag: Flag,
    known: Mapping[str, parts.Key],
) -> None:
    """Set a key of a part, or of a part inside it; arguments as ``_set_part``."""
    name, *rest = path
    trial = values if rest else values | {name: flag.read(None) if flag.values else True}
    allowed = parts.keys(group, values["kind"], run, trial)
    key = allowed.get(name)
    if key is not None and key.group is not None:
        if key.named and rest:
            inner = values.setdefault(name, {})
            _set_part(inner, rest, f"{place}{name}.", key.group, run, flag, known)
        else:
            _set_part(values, path, place, key.group, run, flag, known)
        return
    within = {f"{place}{each}": other for each, other in allowed.items()}
    # not the keys of the kind before, which are no flags of this one
    others = {each: known[each] for each in known if not each.startswith(place)}
    if rest:
        raise ValueError(_unknown(flag, [*within, *others]))
    where, value = _value({**others, **within}, f"{place}{name}", flag)
    values[where.rpartition(".")[2]] = value


def _value(known: Mapping[str, parts.Key], place: str, flag: Flag) -> tuple[str, Any]:
    """Return the place that a flag sets, and its value; ``--a.no-b`` sets ``a.b`` to False.

    Raises:
        ValueError: an unknown place; a value of a wrong type.
    """
    head, dot, last = place.rpartition(".")
    opposite = f"{head}{dot}{last.removeprefix('no_')}"
    if place not in known and opposite in known and known[opposite].annotation is bool:
        if flag.values:
            raise ValueError(f"{flag.word}: takes no value, got {' '.join(flag.values)}")
        return opposite, False
    if place not in known:
        raise ValueError(_unknown(flag, known))
    return place, flag.read(known[place])


def _unknown(flag: Flag, known: Iterable[str]) -> str:
    """Return the message for a flag that stands for no value."""
    other = instead(flag.place.rpartition(".")[2])
    near = get_close_matches(flag.place, known, 1)
    if other is None and near:
        other = f"did you mean --{near[0].replace('_', '-')}?"
    return f"{flag.word}: no such flag; {other or '--help-all lists every one'}"


def _whole(key: parts.Key | None, values: list[Any]) -> Any:
    """Return the value of a key from those of its flag.

    A single one is the element of a list if the key has lists.
    """
    if len(values) != 1 or key is None or key.group or isinstance(values[0], list):
        return values[0] if len(values) == 1 else values
    return values if not _accepts(key, values[0]) and _accepts(key, values) else values[0]


def _accepts(key: parts.Key, value: Any) -> bool:
    try:
        key.check(value)
    except ValueError:
        return False
    return True


def type_name(annotation: Any) -> str:
    """Return the name of a type in help texts: INT|STR, FLOAT ..."""
    if get_origin(annotation) is Literal:
        return "{" + ",".join(map(str, get_args(annotation))) + "}"
    inner = [type_name(each) for each in get_args(annotation) if each is not Ellipsis]
    if get_origin(annotation) in (Union, types.UnionType):
        return "|".join(dict.fromkeys(inner))
    if get_origin(annotation) is not None:
        return f"{inner[0] if inner else 'VALUE'} ..."
    if annotation is types.NoneType:
        return "None"
    named = isinstance(annotation, type) and annotation is not Any
    return annotation.__name__.upper() if named else "VALUE"


def arguments_of(target: Any) -> dict[str, str]:
    """Return the descriptions of arguments in the docstring of a class or function, and those
    below the fields of a dataclass.
    """
    if is_dataclass(target):
        described = parse_from_object(target).params
    else:
        described = parse_docstring(inspect.getdoc(target) or "").params
    return {
        one.arg_name: " ".join((one.description or "").replace("``", "").split())
        for one in described
    }
