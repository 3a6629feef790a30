"""JSON schemas of ``--json-schema``: every keyword has an effect, or is refused with its path."""

import json
import random
import re

import jsonschema
import pytest

from recipes.generation import schemas
from recipes.generation.constrained import Constraint
from recipes.generation.patterns import OF_BYTES, transitions_of

NULL = {"type": "null"}
OBJECT = {"properties": {"a": NULL}}
EXAMPLES = {
    ("properties", "properties"): (OBJECT | {"type": "object"}, '{"a":null}', '{"b":1}'),
    ("properties", "required"): (OBJECT | {"required": ["a"]}, '{"a":null}', "{}"),
    ("properties", "additionalProperties"): (
        OBJECT | {"additionalProperties": False},
        '{"a":null}',
        '{"b":null}',
    ),
    ("properties", "type"): (OBJECT | {"type": "object"}, "{}", "1"),
    ("anyOf", "anyOf"): ({"anyOf": [NULL, {"type": "boolean"}]}, "true", "1"),
    ("prefixItems", "prefixItems"): (
        {"prefixItems": [NULL, {"type": "boolean"}]},
        "[null,true]",
        "[true,null]",
    ),
    ("prefixItems", "items"): ({"prefixItems": [NULL], "items": False}, "[null]", "[null,null]"),
    ("prefixItems", "type"): ({"prefixItems": [NULL], "type": "array"}, "[null]", "1"),
    ("enum", "enum"): ({"enum": [1, "a", None, [2], {"b": 1.5}]}, '{"b":1.5}', '{"b":1}'),
    ("enum", "type"): ({"enum": [1, 2], "type": "integer"}, "2", '"2"'),
    ("const", "const"): ({"const": 'a"b\\'}, '"a\\"b\\\\"', '"a"'),
    ("const", "type"): ({"const": "a", "type": "string"}, '"a"', "1"),
    ("$ref", "$ref"): ({"$ref": "#/$defs/x", "$defs": {"x": NULL}}, "null", "1"),
    ("string", "minLength"): ({"type": "string", "minLength": 2}, '"ab"', '"a"'),
    ("string", "maxLength"): ({"type": "string", "maxLength": 1}, '"a"', '"ab"'),
    ("string", "pattern"): ({"type": "string", "pattern": "^[a-c]+$"}, '"ab"', '"d"'),
    ("string", "format"): ({"type": "string", "format": "date"}, '"2024-12-31"', '"2024-13-31"'),
    ("integer", "minimum"): ({"type": "integer", "minimum": 0, "maximum": 99}, "0", "-97"),
    ("integer", "maximum"): ({"type": "integer", "minimum": 0, "maximum": 99.5}, "99", "7141700"),
    ("integer", "exclusiveMinimum"): (
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
        "1",
        "0",
    ),
    ("integer", "exclusiveMaximum"): (
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 9},
        "8",
        "9",
    ),
    ("integer", "multipleOf"): (
        {"type": "integer", "minimum": -7, "maximum": 9, "multipleOf": 3},
        "-6",
        "-7",
    ),
    ("array", "items"): ({"type": "array", "items": NULL}, "[null, null]", "[1]"),
    ("array", "minItems"): ({"type": "array", "minItems": 2}, "[1,2]", "[1]"),
    ("array", "maxItems"): (
        {"type": "array", "items": NULL, "maxItems": 1},
        "[null]",
        "[null,null]",
    ),
    ("object", "additionalProperties"): (
        {"type": "object", "additionalProperties": NULL},
        '{"a":null}',
        '{"a":1}',
    ),
    ("", ""): ({"title": "any"}, "null", "nul"),
}


@pytest.fixture
def constraint(tmp_path):
    def written(schema):
        path = tmp_path / "schema.json"
        path.write_text(json.dumps(schema), encoding="utf-8")
        return Constraint(json_schema=path)

    return written


def words(pattern, count, length=40):
    """Return texts of an expression, by random walks over its automaton."""
    transitions, first, accepting = transitions_of("pattern", pattern, OF_BYTES, 256)
    draw = random.Random(0)
    found = []
    while len(found) < count:
        state = first
        text = b""
        while (
            row := {byte: to for byte, to in transitions.get(state, {}).items() if byte < 128}
        ) and (state not in accepting or draw.random() < 0.5):
            byte = draw.choice(sorted(row))
            state = row[byte]
            text = text + bytes([byte])
            if len(text) > length:
                break
        found += [text.decode()] if state in accepting else []
    return found


def test_an_example_for_every_keyword():
    listed = {
        (key, one)
        for table in (schemas.BY_KEYWORD, schemas.BY_TYPE)
        for key in table
        for one in table[key]
    }
    assert listed == EXAMPLES.keys() - {("", "")}


@pytest.mark.parametrize("form, keyword", EXAMPLES)
def test_a_keyword_has_its_effect(constraint, form, keyword):
    schema, valid, invalid = EXAMPLES[form, keyword]
    pattern = constraint(schema).pattern
    assert re.fullmatch(pattern, valid) and not re.fullmatch(pattern, invalid)
    without = {key: value for key, value in schema.items() if key != keyword}
    if set(without) & {*schemas.BY_KEYWORD, "type"} and not without.keys() & {
        "multipleOf",
        *schemas.BOUNDS,
    }:
        after = constraint(
            without
        ).pattern  # the same text, where outlines-core has no other reading of the rest
        assert re.fullmatch(after, invalid) or keyword in ("type", "items", "additionalProperties")


@pytest.mark.parametrize("form, keyword", EXAMPLES)
def test_all_texts_are_valid(constraint, form, keyword):
    schema = EXAMPLES[form, keyword][0]
    nested = {"properties": {"age": schema, "x.y": NULL}, "required": ["age"]}
    nested |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
    pattern = constraint(nested).pattern
    for text in words(pattern, 20, 200):
        jsonschema.validate(json.loads(text), nested)


REFUSED = {
    "#/not: has no effect without type; list the values": {"not": {"const": "x"}},
    "#/properties/b/uniqueItems: has no effect beside type array; write prefixItems": {
        "properties": {
            "b": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "uniqueItems": True}
        }
    },
    "#/propertis: has no effect beside type object; did you mean properties?": {
        "type": "object",
        "propertis": {},
    },
    "#/minimum: has an effect only beside type integer with a bound on both sides": {
        "type": "integer",
        "minimum": 0,
    },
    "#/maximum: has no effect beside type number": {"type": "number", "maximum": 1},
    "#/minimum: leaves 1000001 integers": {"type": "integer", "minimum": 0, "maximum": 10**6},
    "#/minProperties: has no effect": {"type": "object", "minProperties": 2},
    "#/maxDigits: has no effect beside type integer": {"type": "integer", "maxDigits": 1},
    "#/minimum: leaves 0 integers": {"type": "integer", "minimum": 3, "maximum": 2},
    "#/multipleOf is 0.5: must be a positive integer": {
        "type": "integer",
        "minimum": 3,
        "maximum": 4,
        "multipleOf": 0.5,
    },
    "#/minimum is '0': must be a number": {"type": "integer", "minimum": "0", "maximum": 4},
    "#/items/minLength is '2': must be an integer": {
        "type": "array",
        "items": {"type": "string", "minLength": "2"},
    },
    "#/minLength is True: must be an integer": {"type": "string", "minLength": True},
    "#/maxLength: has no effect beside pattern": {"type": "string", "pattern": "a", "maxLength": 2},
    "#/pattern: has no effect beside format": {"type": "string", "pattern": "a", "format": "date"},
    "#/pattern is '.*': allows quotes": {"type": "string", "pattern": ".*"},
    "#/format is 'email': allows quotes": {"type": "string", "format": "email"},
    "#/required: has no effect beside type object": {"type": "object", "required": ["a"]},
    "#/required: 'b' has no effect, as it is not one of the properties": OBJECT
    | {"required": ["a", "b"]},
    "#/maxProperties: has no effect beside type object": {"type": "object", "maxProperties": 1},
    "#/additionalProperties: a schema has no effect beside properties": OBJECT
    | {"additionalProperties": NULL},
    "#/items: has no effect beside prefixItems, must be false": {
        "prefixItems": [NULL],
        "items": NULL,
    },
    "#/minItems: has no effect beside prefixItems": {"prefixItems": [NULL], "minItems": 2},
    "#/type is ['string']: must be 'object' beside properties": OBJECT | {"type": "string"},
    "#/type is ['string'], which the value 1 is not": {"enum": ["a", 1], "type": "string"},
    "#/type is []: must be the name of a type": {"type": []},
    "#/anyOf is []: must not be empty": {"anyOf": []},
    "#/const: has no effect beside enum": {"const": 1, "enum": [2]},
    "#/allOf: has no effect without type; write one schema": {"allOf": [NULL, {"type": "boolean"}]},
    "#/oneOf: has no effect without type; write anyOf": {
        "oneOf": [{"type": "integer"}, {"type": "number"}]
    },
    "#/$defs/x/if: has no effect beside type integer": {
        "$ref": "#/$defs/x",
        "$defs": {"x": {"type": "integer", "if": {}}},
    },
    "#/anyOf/1/patternProperties: has no effect": {
        "anyOf": [NULL, {"type": "object", "patternProperties": {}}]
    },
    "#: the name 'a\"' of a property has '\"'": {"properties": {'a"': NULL}},
    "#: the name 'a.b' of a property has '.'": {"const": [{"a.b": 1}]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_keyword_without_effect_is_refused(constraint, message):
    with pytest.raises(ValueError, match=r"json_schema=.*schema.json: " + re.escape(message)):
        constraint(REFUSED[message]).check()
