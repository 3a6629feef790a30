"""The first page of help: the values of a recipe that people change first, as its fields mark themselves."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from docstring_parser import parse_from_object

from recipes.config.recipe import FIRST, PARTS, Recipe

WIDTH = 100
DIFFERS = "by variant"
"""What stands for a value that is not the same in all variants."""

ALL = "--help-all"


def first_page(prog: str, variants: Mapping[str, Recipe], described: Mapping[str, str], note: str) -> str:
    """What ``--help`` prints.

    Args:
        prog: how the program is called.
        variants: the recipes whose values are shown.
        described: every variant that can be asked for, and what it is; none where a file is read.
        note: what there is besides values, a sentence a line.
    """
    names = " VARIANT" if described else " FILE"  # which there are is told below
    lines = [f"usage: {prog}{names} [--smoke] [--NAME VALUE ...]", ""]
    lines += _table([(name, text) for name, text in described.items()]) + ([""] if described else [])
    of = f" Values are those of {next(iter(variants))}." if len(variants) == 1 and described else ""
    lines += textwrap.wrap(f"What people change first; {ALL} lists every value.{of}", WIDTH)
    return "\n".join([*lines, "", *_table(list(rows(list(variants.values())))), "", *note.splitlines()])


def rows(recipes: Sequence[Recipe]) -> Iterator[tuple[str, str]]:
    """A flag with its value, and what it means, for every field of a recipe that is marked as ``FIRST``."""
    yield from _marked(Recipe, recipes, "--")


def _marked(kind: type, holders: Sequence[Any], prefix: str) -> Iterator[tuple[str, str]]:
    said = {one.arg_name: one.description or "" for one in parse_from_object(kind).params}
    for field in fields(kind):
        values = [getattr(holder, field.name) for holder in holders]
        name = prefix + field.name.replace("_", "-")
        if is_dataclass(field.type):
            yield from _marked(field.type, values, f"{name}.")
        elif FIRST.items() <= field.metadata.items():
            text = said.get(field.name, "").replace("``", "")
            if field.name in PARTS:
                yield f"{name}.kind {_shown([value['kind'] for value in values])}", text
                yield from _keys(name, values)
            else:
                yield f"{name} {_shown(values)}", text


def _keys(name: str, values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The keys of a part, in one row: they are those of its kind, and no fields of a recipe."""
    if any(value != values[0] for value in values):
        yield "", "Its keys are shown behind a variant."
        return
    keys = [f"{name}.{key.replace('_', '-')}" for key in values[0] if key != "kind"]
    if keys:
        yield "", f"Its keys: {', '.join(keys)}."


def _shown(values: Sequence[Any]) -> str:
    if any(value != values[0] for value in values):
        return f"({DIFFERS})"
    value = values[0]
    if isinstance(value, bool):
        return "(on)" if value else "(off)"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Two columns, the second wrapped."""
    width = max((len(left) for left, _ in rows), default=0) + 4
    lines = []
    for left, right in rows:
        first, *rest = textwrap.wrap(right, WIDTH - width, break_on_hyphens=False) or [""]
        lines += [f"  {left:<{width - 2}}{first}".rstrip(), *(" " * width + line for line in rest)]
    return lines
