"""Recipes on the command line: every field, and every key of a part, is a flag; unknown flags are
errors.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ddlib import parts
from recipes.config.files import read_recipe
from recipes.config.flags import Flag, split, with_flags
from recipes.config.help import ALL, every_value, first_page
from recipes.config.recipe import Recipe

FILE = "file"
"""Name of the only variant where a file is read; optional on the command line."""

NOTE = """\
--help, --help-all: the values most often changed; every value.
--smoke: the same recipe, tiny, on local text, in seconds.
--recipe FILE: your own recipe, or a saved one, in place of a variant.
--estimate DEVICES: print the memory of the run on this number of devices, and do not train.
--accept-changes: resume although recipe, vocabulary, data, noise or number of processes changed.
--process.kind, --model.kind, --loss.weighting.kind and other kinds take any name that
`python -m ddlib` lists, or package.module:object; the flags of a part are the keys of its kind."""

LONE = {"smoke": 0, "accept-changes": 0, "recipe": 1, "estimate": 1, "help": 0, "help-all": 0}
"""Number of values of each flag that is not part of the recipe."""

Shrink = Callable[[Recipe], Recipe]


class Switches(NamedTuple):
    """Flags of a command that are not part of the recipe."""

    smoke: bool
    accept_changes: bool
    recipe: Path | None
    """File in place of a variant."""
    estimate: int | None
    """Number of devices whose memory is estimated."""
    folder: Path | None
    """The prepared text, if given: ``data.folder``, which determines the corpus."""


def choose(
    variants: Mapping[str, tuple[str, Recipe]],
    smoke: Shrink,
    prog: str,
    arguments: Sequence[str] | None = None,
) -> tuple[Recipe, Switches]:
    """Return the recipe of a command line: a variant or a file, with single values replaced.

    Args:
        variants: description and recipe by name.
        smoke: reduces a recipe so that it runs in seconds on local text.
        prog: name of the program in the usage line.
        arguments: in place of those of the process.

    Raises:
        FileNotFoundError, ValueError: no prepared text in the given folder.
        ValueError: invalid values of a recipe; unknown flags, each with the nearest known one.
        SystemExit: no variant, or an unknown one, with the nearest known one; a request for help.
    """
    line = sys.argv[1:] if arguments is None else arguments
    words, flags = split(["--help" if word == "-h" else word for word in line], LONE)
    switches = _switches({flag.place: flag for flag in flags})
    helped = any(flag.word in ("--help", ALL) for flag in flags)
    flags = [flag for flag in flags if flag.word.removeprefix("--") not in LONE]
    if switches.recipe is not None:
        variants = {FILE: (f"from {switches.recipe}", read_recipe(switches.recipe))}
        words = [FILE, *words]
    if switches.smoke:
        variants = {name: (text, smoke(recipe)) for name, (text, recipe) in variants.items()}
    variants = {
        name: (text, _of_folder(recipe, switches.folder, read=not helped))
        for name, (text, recipe) in variants.items()
    }
    name = words[0] if words and words[0] in variants else None
    if name is not None:
        text, recipe = variants[name]
        variants = {name: (text, with_flags(recipe, flags))}
    if helped:
        print(_help(prog, variants, name, short=ALL not in line))
        raise SystemExit(0)
    if name is None:
        first = [*words, *line, "none"][0]
        near = get_close_matches(first, variants, 1)
        suggestion = f", did you mean {near[0]}?" if near else ""
        print(f"usage: {prog} VARIANT [--smoke] [--NAME VALUE ...]; {prog} --help lists both")
        raise SystemExit(
            f"{prog}: error: the first argument must be a variant, one of {', '.join(variants)}; "
            f"got {first}{suggestion}"
        )
    if len(words) > 1:
        raise ValueError(f"{words[1]}: must be a flag, such as --steps 1000, or the value of one")
    return variants[name][1], switches


def _switches(given: Mapping[str, Flag]) -> Switches:
    def value(name: str, kind: Any) -> Any:
        return given[name].read(parts.Key(name, kind, None)) if name in given else None

    return Switches(
        "smoke" in given,
        "accept_changes" in given,
        value("recipe", Path),
        value("estimate", int),
        value("data.folder", Path),
    )


def _help(
    prog: str, variants: Mapping[str, tuple[str, Recipe]], name: str | None, short: bool
) -> str:
    if short:
        described = {name: text for name, (text, _) in variants.items() if name != FILE}
        recipes = {name: recipe for name, (_, recipe) in variants.items()}
        return first_page(prog, recipes, described, NOTE)
    # without a variant, the keys of the first one: others have other keys of their process
    name = next(iter(variants)) if name is None else name
    text, recipe = variants[name]
    return every_value(f"{prog} {'FILE' if name == FILE else name}", text, recipe, NOTE)


def _of_folder(recipe: Recipe, folder: Path | None, read: bool) -> Recipe:
    """Return the recipe on the text of the given folder, or on that of its default folder if it has
    no corpus.
    """
    data = recipe.data if folder is None else replace(recipe.data, folder=folder)
    if (
        not read or not data.folder.is_dir()
    ):  # the run raises later: parsing and help work without the folder
        return replace(recipe, data=data)
    return replace(
        recipe, data=data.whole() if folder is None else replace(data, corpus=None).whole()
    )
