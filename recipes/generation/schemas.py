"""JSON schemas for outlines-core: every keyword restricts the text as in the standard, or is
refused by name.

outlines-core 0.2.14 drops keywords without a message: those that it lacks, and those beside one
that it reads first.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any

ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$id",
        "$comment",
    )
)
"""Keywords that restrict no value."""
DEFINITIONS = ("$defs", "definitions")
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
LISTED = 10_000
"""Maximum number of integers within bounds: they are converted to a list of values."""

BY_KEYWORD: Mapping[str, frozenset[str]] = {
    "properties": frozenset(("properties", "required", "additionalProperties", "type")),
    "anyOf": frozenset(("anyOf",)),
    "prefixItems": frozenset(("prefixItems", "items", "type")),
    "enum": frozenset(("enum", "type")),
    "const": frozenset(("const", "type")),
    "$ref": frozenset(("$ref",)),
}
"""Keywords with an effect beside the first of these in a schema, in the order in which
outlines-core reads them.
"""
BY_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "integer": frozenset(BOUNDS),
    "number": frozenset(),
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("additionalProperties",)),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""Keywords with an effect beside ``type`` alone."""
KEYWORDS = frozenset().union(*BY_KEYWORD.values(), *BY_TYPE.values())
"""All keywords that may have an effect."""
ADVICE = {
    "oneOf": "write anyOf, if no value fits two of its schemas",
    "allOf": "write one schema with the keywords of all",
    "not": "list the values that are allowed, by enum",
    "uniqueItems": "write prefixItems with a schema for each item",
}
VALUES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(BOUNDS, ((int, float), "a number")),
    **dict.fromkeys(("pattern", "format", "$ref"), (str, "a string")),
    **dict.fromkeys(("anyOf", "prefixItems", "enum", "required"), (list, "a list")),
    **dict.fromkeys((*DEFINITIONS, "properties"), (dict, "an object")),
}
"""Type of the value of a keyword; of the others that begin with min or max it is an integer."""
JSON: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def adapt_schema(schema: Any, quotable: Callable[[dict[str, Any]], bool], place: str) -> Any:
    """Return a schema as outlines-core must read it, so that every text of its expression is valid.

    Args:
        schema: the JSON schema. What is not an object is returned unchanged: outlines-core refuses
            it.
        quotable: whether all texts of a schema of strings are strings of JSON.
        place: name of the argument and path of the schema in it, for messages.

    Raises:
        ValueError: naming the path of a keyword without an effect, or with a value that would be
            misread.
    """
    if not isinstance(schema, dict):
        return schema
    if not schema.keys() - ANNOTATIONS - {*DEFINITIONS}:
        schema = schema | {
            "type": list(JSON)
        }  # outlines-core puts no brackets around the alternatives of {}
    first = next((key for key in BY_KEYWORD if key in schema), None)
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or ("type" in schema and not types):
        raise ValueError(
            f"{place}/type is {types!r}: must be the name of a type, or a list of them"
        )
    allowed = (
        frozenset(("type",)).union(*(BY_TYPE.get(kind, ()) for kind in types))
        if first is None
        else ()
    )
    allowed = allowed or BY_KEYWORD[first]
    for key, value in schema.items():
        if key not in ANNOTATIONS:
            _check_keyword(
                place, key, value, allowed, first or f"type {' or '.join(map(str, types))}"
            )
    _check_together(place, schema, first, types)
    result = dict(schema)
    if first is None and not result.keys().isdisjoint(BOUNDS):
        return {"enum": integers(result, types, place)} | {
            key: result[key] for key in DEFINITIONS if key in result
        }
    for key in ("pattern", "format"):
        if key in result and not quotable({"type": "string", key: result[key]}):
            raise ValueError(
                f"{place}/{key} is {result[key]!r}: allows quotes, backslashes or control "
                "characters, which end or "
                r'break a string of JSON; in a pattern write [^"\\\x00-\x1f] in place of a dot'
            )
    for key in result.keys() & {*DEFINITIONS, "properties"}:
        result[key] = {
            name: adapt_schema(one, quotable, f"{place}/{key}/{name}")
            for name, one in result[key].items()
        }
    for key in result.keys() & {"anyOf", "prefixItems"}:
        result[key] = [
            adapt_schema(one, quotable, f"{place}/{key}/{number}")
            for number, one in enumerate(result[key])
        ]
    for key in result.keys() & {"items", "additionalProperties"}:
        result[key] = adapt_schema(result[key], quotable, f"{place}/{key}")
    return result


def _check_keyword(place: str, key: str, value: Any, allowed: frozenset[str], what: str) -> None:
    """Raise ValueError for a keyword without an effect, or for its value."""
    if key not in allowed and key not in DEFINITIONS:
        near = () if key in KEYWORDS else get_close_matches(key, KEYWORDS, 1)
        advice = (
            f"did you mean {near[0]}?"
            if near
            else f"those with one are {', '.join(sorted(allowed))}"
        )
        where = "without type" if what == "type " else f"beside {what}"
        raise ValueError(f"{place}/{key}: has no effect {where}; {ADVICE.get(key, advice)}")
    kind, description = VALUES.get(
        key, (int, "an integer") if key.startswith(("min", "max")) else (object, "")
    )
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not object):
        raise ValueError(f"{place}/{key} is {value!r}: must be {description}")
    if kind is list and not value and key != "required":
        raise ValueError(f"{place}/{key} is []: must not be empty, as no value is valid")


def _check_together(
    place: str, schema: Mapping[str, Any], first: str | None, types: list[Any]
) -> None:
    """Raise ValueError for keywords of which outlines-core reads only one, and for names that it
    misreads.
    """
    if strings := sorted(schema.keys() & {"pattern", "format"}):
        others = sorted(schema.keys() & BY_TYPE["string"] - {strings[0]})
        if others:
            raise ValueError(
                f"{place}/{others[0]}: has no effect beside {strings[0]}, write one of them"
            )
    for key, kind in (("properties", "object"), ("prefixItems", "array")):
        if first == key and types not in ([], [kind]):
            raise ValueError(
                f"{place}/type is {types}: must be {kind!r} beside {key}; write anyOf for several "
                "types"
            )
    if first == "properties" and not isinstance(schema.get("additionalProperties", False), bool):
        raise ValueError(
            f"{place}/additionalProperties: a schema has no effect beside properties, must be a "
            "boolean"
        )
    if first == "prefixItems" and schema.get("items", False) is not False:
        raise ValueError(f"{place}/items: has no effect beside prefixItems, must be false")
    for name in schema.get("required", ()):
        if name not in schema["properties"]:
            raise ValueError(
                f"{place}/required: {name!r} has no effect, as it is not one of the properties"
            )
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    for value in values:
        if types and not any(JSON[kind](value) for kind in types if kind in JSON):
            raise ValueError(
                f"{place}/type is {types}, which the value {value!r} is not: would have no effect"
            )
    for names, special in (
        (schema.get("properties", ()), ""),
        (chain(*map(_names, values)), "^$.|?*+()[]{}"),
    ):
        for name in names:
            if bad := [c for c in name if c in f'"\\{special}' or c < " "]:
                raise ValueError(
                    f"{place}: the name {name!r} of a property has {bad[0]!r}, which outlines-core "
                    "misreads"
                )


def _names(value: Any) -> Iterator[str]:
    """Yield the names of properties in a value."""
    if isinstance(value, dict):
        yield from value
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _names(one)


def integers(schema: Mapping[str, Any], types: list[Any], place: str) -> list[int]:
    """Return the integers within the bounds of a schema, at most ``LISTED``.

    Raises:
        ValueError: bounds of several types, on one side alone, of more or of no integers.
    """
    least = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    least += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    most = [math.floor(schema["maximum"])] if "maximum" in schema else []
    most += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    step = schema.get("multipleOf", 1)
    key = next(key for key in BOUNDS if key in schema)
    if types != ["integer"] or not least or not most:
        raise ValueError(
            f"{place}/{key}: has an effect only beside type integer with a bound on both sides, "
            "minimum and maximum, "
            "as the values between them are listed"
        )
    if step <= 0 or step != int(step):
        raise ValueError(f"{place}/multipleOf is {step}: must be a positive integer")
    within = range(-(-max(least) // int(step)) * int(step), min(most) + 1, int(step))
    if not 0 < len(within) <= LISTED:
        raise ValueError(
            f"{place}/{key}: leaves {len(within)} integers, must be 1 to {LISTED}, which are listed"
        )
    return list(within)
