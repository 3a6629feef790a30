"""Recipes on the command line.

Every field, and every key of a part, is a flag; unknown flags are errors.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import tyro

from recipes.config.files import read_recipe
from recipes.config.flags import check_flags, check_unknown, plain, typed, with_kinds
from recipes.config.help import ALL, first_page
from recipes.config.recipe import Recipe

FILE = "file"
"""Name of the only variant where a file is read; optional on the command line."""

NOTE = """\
--smoke: the same recipe, tiny, on local text, in seconds.
--recipe FILE: your own recipe, or a saved one, in place of a variant.
--estimate DEVICES: print the memory of the run on this number of devices, and do not train.
--accept-changes: resume although recipe, vocabulary or number of processes changed.
--process.kind, --model.kind, --loss.weighting.kind and other kinds take any name that `python -m ddlib` lists, or
package.module:object; the flags of a part are the keys of its kind."""

Shrink = Callable[[Recipe], Recipe]


def choose(
    variants: Mapping[str, tuple[str, Recipe]],
    smoke: Shrink,
    prog: str,
    arguments: Sequence[str] | None = None,
) -> tuple[Recipe, argparse.Namespace]:
    """Return the recipe of a command line: a variant or a file, with single values replaced.

    Args:
        variants: description and recipe by name.
        smoke: reduces a recipe so that it runs in seconds on local text.
        prog: name of the program in the usage line.
        arguments: in place of those of the process.

    Returns:
        The recipe, and the switches that are not part of it, except ``folder``: the prepared text,
        if given.

    Raises:
        FileNotFoundError, ValueError: no prepared text in the given folder.
        ValueError: invalid values of a recipe.
        SystemExit: no variant, or an unknown one; unknown flags; each with the nearest known one; a
            request for help.
    """
    line = list(sys.argv[1:] if arguments is None else arguments)
    check_flags(line)
    usage = f"{prog} VARIANT [--smoke] [--NAME VALUE ...]; {prog} --help lists both"
    parser = argparse.ArgumentParser(prog=prog, usage=usage, add_help=False, allow_abbrev=False)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--accept-changes", action="store_true")
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--estimate", type=int)
    parser.add_argument(
        "--data.folder", type=Path, dest="folder"
    )  # first, as it determines the corpus
    switches, rest = parser.parse_known_args(line)
    if switches.recipe is not None:
        variants = {FILE: (f"from {switches.recipe}", read_recipe(switches.recipe))}
        rest = [FILE, *rest]
    if switches.smoke:
        variants = {name: (text, smoke(recipe)) for name, (text, recipe) in variants.items()}
    helped = not {"-h", "--help"}.isdisjoint(rest)
    variants = {
        name: (text, _of_folder(recipe, switches.folder, read=not helped))
        for name, (text, recipe) in variants.items()
    }
    name = rest[0] if rest and rest[0] in variants else None
    if name is not None:
        text, recipe = variants[name]
        recipe, rest = with_kinds(recipe, rest[1:])
        variants = {name: (text, recipe)}
    if helped:
        described = {name: text for name, (text, _) in variants.items() if name != FILE}
        print(
            first_page(
                prog, {name: recipe for name, (_, recipe) in variants.items()}, described, NOTE
            )
        )
        raise SystemExit(0)
    if ALL in rest:
        rest = [*(word for word in rest if word != ALL), "--help"]
        # without a variant, the keys of the first one: others have other keys of their process
        name = next(iter(variants)) if name is None else name
    if name is None:
        near = get_close_matches(rest[0], variants, 1) if rest else []
        parser.error(
            f"the first argument must be a variant, one of {', '.join(variants)}; got "
            f"{rest[0] if rest else 'none'}" + (f", did you mean {near[0]}?" if near else "")
        )
    # no subcommands: tyro would put the first word of ``prog``, python, before their names
    text, recipe = variants[name]
    alone = name == FILE
    given = typed(recipe)
    check_unknown(given, rest)
    prog, text = (prog, " ".join(NOTE.split())) if alone else (f"{prog} {name}", text)
    return plain(
        tyro.cli(type(given), default=given, args=rest, prog=prog, description=text)
    ), switches


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
