"""Recipes on the command line and on disk: every field is a flag and a key of YAML, and nothing else passes."""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import tyro
import yaml
from pydantic import TypeAdapter, ValidationError

from recipes.config import Recipe

APART = ("output.", "hardware.", "data.folder")
"""Parts of a recipe that decide no number: on what machine it runs, where its text lies and where its results go."""

Shrink = Callable[[Recipe], Recipe]


def choose(
    variants: Mapping[str, tuple[str, Recipe]], smoke: Shrink, prog: str, arguments: Sequence[str] | None = None
) -> tuple[Recipe, argparse.Namespace]:
    """The recipe that a command line asks for: a variant, or a file, and single values that differ.

    Args:
        variants: description and recipe by name.
        smoke: makes a recipe small enough to run in seconds on local text.
        prog: how the program is called.
        arguments: in place of those of the process.

    Returns:
        The recipe, and the switches that are no part of it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=prog, add_help=False, allow_abbrev=False)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--accept-changes", action="store_true")
    parser.add_argument("--recipe", type=Path)
    switches, rest = parser.parse_known_args(words)
    if switches.recipe is not None:
        variants = {"file": (f"as {switches.recipe} says", read_recipe(switches.recipe))}
        rest = ["file", *rest]
    if switches.smoke:
        variants = {name: (text, smoke(recipe)) for name, (text, recipe) in variants.items()}
    note = (
        "--smoke: the same recipe, tiny, on text that is here, in seconds. --recipe FILE: a saved recipe in place of a "
        "variant. --accept-changes: resume although recipe, vocabulary or number of processes changed."
    )
    recipe = tyro.extras.overridable_config_cli(dict(variants), args=rest, prog=prog, description=note)
    return recipe, switches


def recipe_yaml(recipe: Recipe) -> str:
    """A recipe with all its values as YAML."""
    values = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def read_recipe(path: Path) -> Recipe:
    """Reads what ``recipe_yaml`` gave, or what was written by hand.

    Raises:
        ValueError: no YAML; a key that does not exist, with the nearest that does; a value of another type.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    try:
        return TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        raise ValueError(f"{path}: " + "; ".join(dict.fromkeys(map(_explain, error.errors())))) from error


def numbers(recipe: Recipe) -> dict[str, Any]:
    """All values that decide what a run computes, by name."""
    values = _leaves(TypeAdapter(Recipe).dump_python(recipe, mode="json"))
    return {name: value for name, value in values if not name.startswith(APART)}


def differences(before: Recipe, now: Recipe) -> list[str]:
    """The values that differ, each by name."""
    old, new = numbers(before), numbers(now)
    return [
        f"{name} is {new.get(name)!r}, was {old.get(name)!r}"
        for name in dict.fromkeys((*new, *old))
        if new.get(name) != old.get(name)
    ]


def _leaves(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{place}{name}.")
        else:
            yield place + name, value


def _explain(error: Mapping[str, Any]) -> str:
    """What is wrong, where, and the nearest name if it is the name."""
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{place}: is missing"
    if error["type"] != "unexpected_keyword_argument":
        return f"{place}: {error['msg']}, got {error.get('input')!r}"
    near = difflib.get_close_matches(str(error["loc"][-1]), sorted(_names(Recipe)), n=1)
    return f"{place}: no such key" + (f"; did you mean {near[0]}?" if near else "")


def _names(kind: Any) -> Iterator[str]:
    """The names of all fields of a dataclass, of those inside it, and of those in its unions."""
    for inner in (kind, *get_args(kind)):
        if is_dataclass(inner):
            for field in fields(inner):
                yield field.name
                yield from _names(field.type)
