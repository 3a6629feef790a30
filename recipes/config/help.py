"""Pages of help: the recipe fields marked as most often changed, and every value."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from recipes.config.flags import ALIASES, arguments_of, entries, type_name
from recipes.config.recipe import FIRST, PARTS, Recipe

WIDTH = 100
DIFFERS = "by variant"
"""Placeholder of a value that differs between variants."""

ALL = "--help-all"


def first_page(
    prog: str, variants: Mapping[str, Recipe], described: Mapping[str, str], note: str
) -> str:
    """Return the text of ``--help``.

    Args:
        prog: name of the program in the usage line.
        variants: the recipes whose values are shown.
        described: description of every variant; empty where a file is read.
        note: further notes besides values, one sentence per line.
    """
    names = " VARIANT" if described else " FILE"  # the variants are listed below
    lines = [f"usage: {prog}{names} [--smoke] [--NAME VALUE ...]", ""]
    lines += _table([(name, text) for name, text in described.items()]) + (
        [""] if described else []
    )
    of = f" Values are those of {next(iter(variants))}." if len(variants) == 1 and described else ""
    lines += textwrap.wrap(f"Most often changed values; {ALL} lists every value.{of}", WIDTH)
    return "\n".join(
        [*lines, "", *_table(list(rows(list(variants.values())))), "", *note.splitlines()]
    )


def every_value(prog: str, text: str, recipe: Recipe, note: str) -> str:
    """Return the text of ``--help-all``: every flag with its type, meaning and value.

    Args:
        prog: name of the program in the usage line.
        text: description of the recipe.
        recipe: the recipe whose values are shown.
        note: as in ``first_page``.
    """
    lines = [f"usage: {prog} [--NAME VALUE ...]", "", *textwrap.wrap(text, WIDTH)]
    section = None
    short = {place: name for name, place in ALIASES.items()}
    for entry in entries(recipe):
        place = entry.place.rpartition(".")[0]
        if place != section:
            lines += ["", f"{place or 'run'}:"]
            section = place
        names = [entry.flag, *([f"--{short[entry.place]}"] if entry.place in short else [])]
        if entry.key.annotation is bool:
            head, dot, last = entry.flag.removeprefix("--").rpartition(".")
            lines.append(f"  {', '.join([*names, f'--{head}{dot}no-{last}'])}")
        else:
            lines.append(f"  {', '.join(names)} {type_name(entry.key.annotation)}")
        about = f"{entry.about} (default: {_show([entry.value])})".strip()
        indent = " " * 6
        lines += textwrap.wrap(
            about, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
    return "\n".join([*lines, "", *note.splitlines()])


def rows(recipes: Sequence[Recipe]) -> Iterator[tuple[str, str]]:
    """Yield a flag with its value, and its meaning, for every field of a recipe that is marked as
    ``FIRST``.
    """
    yield from _mark(Recipe, recipes, "--")


def _mark(kind: type, holders: Sequence[Any], prefix: str) -> Iterator[tuple[str, str]]:
    descriptions = arguments_of(kind)
    for field in fields(kind):
        values = [getattr(holder, field.name) for holder in holders]
        name = prefix + field.name.replace("_", "-")
        if is_dataclass(field.type):
            yield from _mark(field.type, values, f"{name}.")
        elif FIRST.items() <= field.metadata.items():
            text = descriptions.get(field.name, "")
            if field.name in PARTS:
                yield f"{name}.kind {_show([value['kind'] for value in values])}", text
                yield from _keys(name, values)
            else:
                yield f"{name} {_show(values)}", text


def _keys(name: str, values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a part in one row: they are those of its kind, not fields of a recipe."""
    if any(value != values[0] for value in values):
        yield "", "The help of a variant lists its keys."
        return
    keys = [f"{name}.{key.replace('_', '-')}" for key in values[0] if key != "kind"]
    if keys:
        yield "", f"Its keys: {', '.join(keys)}."


def _show(values: Sequence[Any]) -> str:
    if any(value != values[0] for value in values):
        return f"({DIFFERS})"
    value = values[0]
    if isinstance(value, bool):
        return "(on)" if value else "(off)"
    return " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Format two columns, the second wrapped."""
    width = max((len(left) for left, _ in rows), default=0) + 4
    lines = []
    for left, right in rows:
        first, *rest = textwrap.wrap(right, WIDTH - width, break_on_hyphens=False) or [""]
        lines += [f"  {left:<{width - 2}}{first}".rstrip(), *(" " * width + line for line in rest)]
    return lines
