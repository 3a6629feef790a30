"""Command line ``ddlib``, or ``python -m ddlib``: what is registered, ``show``, ``verify``, and the
recipes.

``ddlib train mine.yaml`` is ``python -m recipes.train mine.yaml`` without a checkout, and so for
every recipe. ``ddlib recipes FOLDER`` copies them into a folder, to be changed there.
"""

import argparse
import importlib
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import ddlib
from ddlib import presets
from ddlib.config import registry
from ddlib.plot import inspection
from ddlib.verification.framework.blame import locate_error

SIZED: dict[str, tuple[int, Callable[..., Any]]] = {
    "mdlm": (1, presets.mdlm),
    "gidd": (1, lambda vocab_size: presets.gidd(vocab_size, 0.2)),
    "hdlm": (
        2,
        lambda *sizes: presets.hdlm_levels([torch.arange(n) * m // n for n, m in pairwise(sizes)]),
    ),
}
"""Presets by sizes, e.g. hdlm:12x4 for 12 tokens in 4 clusters: minimum number of sizes, and
constructor.
"""


DRAWN = frozenset(("processes", "schedules", "hierarchies", "presets"))
"""Kinds of parts that ``show`` has tables and pictures of."""


def table() -> str:
    """Format a table of all registered classes by kind, with arguments and the first line of the
    docstring.
    """
    lines = [
        (
            f"ddlib {ddlib.__version__}: schedule x hierarchy = process, then one bound and "
            "every sampler"
        )
    ]
    summaries = dict[str, str]()  # what other packages are, by their name
    for kind in registry.GROUPS:
        lines += ["", kind]
        for name, point in registry.available(kind).items():
            try:
                cls = registry.get(kind, name)
            except ImportError as error:
                lines.append(f"  {name:<14} broken: {error}")
                continue
            arguments = ", ".join(
                str(p).split(":")[0] for p in inspect.signature(cls).parameters.values()
            )
            summary = (inspect.getdoc(cls) or "no description").splitlines()[0]
            package = registry.origin(kind, name).package
            if package != "ddlib" and point.dist is not None:
                # a message; [] of a name that it lacks is deprecated
                about: Any = point.dist.metadata
                summaries[package] = about.get("Summary") or "no description"
            lines.append(
                f"  {name:<14} {point.value.split(':')[1]}({arguments})"
                + f"  [{package}]" * (package != "ddlib")
            )
            lines.append(f"  {'':<14} {summary}")
    lines += [""] * bool(summaries) + [
        f"[{package}]: {summary}" for package, summary in summaries.items()
    ]
    return "\n".join(lines)


def load(path: str) -> Any:
    """Load a registered part or the object at ``package.module:object``.

    A class or function is called.

    A class that requires arguments is replaced by the first of its ``examples()``. ``mdlm:16``,
    ``gidd:16``, ``hdlm:12x4`` and ``hdlm:12x6x3`` are presets with these numbers of tokens and
    clusters.

    Raises:
        ValueError: no such name, module or object; a name of several parts; a function that
            requires arguments.
    """
    module, _, name = path.partition(":")
    if module in SIZED and re.fullmatch(r"\d+(x\d+)*", name):
        least, make = SIZED[module]
        sizes = [int(size) for size in name.split("x")]
        if len(sizes) < least or (least == 1 and len(sizes) > 1):
            raise ValueError(
                f"{path!r} must be "
                + ("hdlm:12x4, tokens x clusters" if least > 1 else f"{module}:16")
            )
        return make(*sizes)
    part = registry.at(path) if name else _look_up(path)
    if not (inspect.isclass(part) or inspect.isfunction(part)):
        return part
    parameters = inspect.signature(part).parameters.values()
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind < parameter.VAR_POSITIONAL
    ]
    if required and hasattr(part, "examples"):
        return part.examples()[0]
    if required:
        raise ValueError(
            f"{path!r} requires {', '.join(required)}, must be callable without arguments: "
            "write a function in a "
            "module of your own, or take one of " + ", ".join(f"{preset}:SIZES" for preset in SIZED)
        )
    return part()


def _look_up(name: str) -> Any:
    """Return the registered class or preset of a name.

    Raises:
        ValueError: no such name, or one that several kinds have.
    """
    plain = name.replace("-", "_")
    kinds = [kind for kind in (*registry.PROVED, "presets") if plain in registry.available(kind)]
    if len(kinds) > 1:
        paths = " or ".join(registry.available(kind)[plain].value for kind in kinds)
        raise ValueError(
            f"{name!r} is in {' and '.join(kinds)}, must be one of them: write {paths}"
        )
    others = [kind for kind in registry.GROUPS if plain in registry.available(kind)]
    if not kinds and others:
        raise ValueError(
            f"{name!r} is in {' and '.join(others)}, must be in {', '.join(registry.PROVED)} or "
            f"presets: there is no mathematics of it to check; ddlib show {name} describes it"
        )
    if not kinds:
        names = {
            candidate
            for kind in (*registry.PROVED, "presets")
            for candidate in registry.available(kind)
        }
        raise ValueError(
            f"{name!r} must be a name that ddlib lists, package.module:object or one of "
            f"{', '.join(SIZED)} with "
            f"sizes, hdlm:12x4{_nearest(plain, names)}"
        )
    return registry.get(kinds[0], plain)


def _nearest(name: str, names: Collection[str]) -> str:
    """Return a suggestion for a misspelt name; empty if none is near."""
    matches = get_close_matches(name, names, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, show or verify an object, copy the recipes, or run one of them.

    The exit status is 1 if an object fails verification or its plot cannot be drawn, and 2 if there
    is no such object or command, or the recipes cannot be copied.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    folder = _recipes_folder()
    names = sorted(path.stem for path in folder.glob("[!_]*.py")) if folder else []
    if folder and arguments and arguments[0] in names:
        return _run_recipe(folder, arguments[0], arguments[1:])
    recipes = f"recipes, each with its --help: {', '.join(names)}" if names else None
    parser = argparse.ArgumentParser(
        prog="ddlib", description="Without a command: print all registered names.", epilog=recipes
    )
    commands = parser.add_subparsers(metavar="{show,verify,recipes}")
    for add in (_add_show, _add_verify, _add_recipes):
        added = add(commands)
        added.set_defaults(command=added)
    known_commands = [*commands.choices, *names]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known_commands:
        suggestion = _nearest(arguments[0], known_commands)
        parser.error(
            f"{arguments[0]!r} is not one of the commands {', '.join(known_commands)}{suggestion}"
        )
    options = parser.parse_args(arguments)
    if "run" not in options:
        print(table())
        return 0
    try:
        return options.run(options)
    except (TypeError, ValueError) as error:
        command: argparse.ArgumentParser = options.command
        place, _ = locate_error(error)  # in the code of the object's constructor
        command.error(f"{error}" + (f" (in {place})" if place else ""))


def _recipes_folder() -> Path | None:
    """Return the recipes of the wheel, or of the checkout that ddlib is installed from."""
    package = Path(ddlib.__file__).parent
    places = package / "_data" / "recipes", package.parent / "recipes"
    return next((place for place in places if (place / "train.py").is_file()), None)


def _run_recipe(folder: Path, name: str, arguments: Sequence[str]) -> int:
    """Run a recipe of this installation.

    A copy that was changed runs as ``python -m recipes.NAME``.
    """
    sys.path.insert(0, str(folder.parent))
    try:
        module = importlib.import_module(f"recipes.{name}")
    except ModuleNotFoundError as error:
        print(f"ddlib {name}: {error}; run: pip install 'ddlib[recipes,eval]'", file=sys.stderr)
        return 2
    sys.argv[1:] = arguments  # harness hands them to lm_eval, which reads those of the process
    module.main()
    return 0


def lay_recipes(folder: Path) -> Path:
    """Copy the recipes to ``folder/recipes``, where they run as ``python -m recipes.train`` from
    ``folder``.

    The source is the checkout if ddlib is installed from one, otherwise the wheel.

    Raises:
        FileExistsError: the target already exists; nothing is written.
        FileNotFoundError: this installation does not contain the recipes.
        OSError: the folder is not writable.
    """
    source = _recipes_folder()
    if source is None:
        raise FileNotFoundError(
            f"no recipes in {Path(ddlib.__file__).parent}: install ddlib from a wheel or "
            "use a clone of its repository"
        )
    target = folder / "recipes"
    if target.exists():
        raise FileExistsError(
            f"folder {folder} holds recipes already, must not: nothing was written"
        )
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def _add_recipes(commands: Any) -> argparse.ArgumentParser:
    text = "copy the recipes into a folder, to run and to change them there"
    command: argparse.ArgumentParser = commands.add_parser("recipes", help=text, description=text)
    command.add_argument(
        "folder", type=Path, help="the copy is FOLDER/recipes, which must not exist"
    )
    command.set_defaults(run=_recipes)
    return command


def _recipes(options: argparse.Namespace) -> int:
    try:
        laid = lay_recipes(options.folder)
    except OSError as error:
        raise ValueError(str(error)) from error
    print(f"recipes:       {laid}")
    print('dependencies:  pip install "ddlib[recipes]"')
    print(f"first run:     cd {options.folder} && python -m recipes.owt hdlm --smoke")
    return 0


def _add_object(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "object",
        help="a registered name; package.module:object (a function is called, and so is a "
        "class, or its first example "
        "if it requires arguments); or mdlm:16, gidd:16, hdlm:12x4 (tokens x clusters), "
        "hdlm:12x6x3",
    )


def _add_show(commands: Any) -> argparse.ArgumentParser:
    text = "print a process, schedule or hierarchy, and draw it with --out; or describe a part"
    command: argparse.ArgumentParser = commands.add_parser("show", help=text, description=text)
    command.add_argument(
        "--out",
        type=Path,
        help="also draw it into this file, such as show.png; requires matplotlib",
    )
    command.add_argument(
        "--tokens",
        nargs="+",
        metavar="TOKEN",
        help="a name for each token, after the object",
    )
    _add_object(command)
    command.set_defaults(run=_show)
    return command


def _add_verify(commands: Any) -> argparse.ArgumentParser:
    text = (
        "check the mathematics of a process, schedule, hierarchy, sampler, corrector, guidance "
        "or weighting"
    )
    command: argparse.ArgumentParser = commands.add_parser("verify", help=text, description=text)
    command.add_argument(
        "--level", choices=("quick", "full"), default="quick", help="default: quick"
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the claim, tolerance and largest error of every check",
    )
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_object(command)
    command.set_defaults(run=_verify)
    return command


def describe_parts(name: str) -> str:
    """Describe the registered parts of a name that have no tables: arguments and docstring of each.

    The result is empty for a process, a schedule, a hierarchy or a preset, and for other names.
    """
    plain = name.replace("-", "_")
    kinds = [kind for kind in registry.GROUPS if plain in registry.available(kind)]
    if not DRAWN.isdisjoint(kinds):
        return ""
    described = []
    for kind in kinds:
        part = registry.get(kind, plain)
        heading = f"{kind} {plain}: {registry.available(kind)[plain].value}"
        described.append(
            f"{heading}{inspect.signature(part)}\n\n{inspect.getdoc(part) or 'no description'}"
        )
    return "\n\n".join(described)


def _show(options: argparse.Namespace) -> int:
    if description := describe_parts(options.object):
        if options.out is not None:
            raise ValueError(f"--out {options.out}: {options.object} has no picture")
        print(description)
        return 0
    subject = load(options.object)
    print(inspection.describe(subject, options.tokens))
    print(f"\nverify it:  python -m ddlib verify {options.object}")
    if options.out is None:
        print(f"draw it:    python -m ddlib show {options.object} --out show.png")
        return 0
    try:
        inspection.draw(subject, options.out, options.tokens)
    except (ModuleNotFoundError, OSError) as error:
        print(f"no picture: {error}", file=sys.stderr)
        return 1
    print(f"picture: {options.out}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    report = ddlib.verify(load(options.object), options.level)
    print(report.to_json() if options.json else report.text(options.verbose))
    return 0 if report.ok else 1


def console(run: Callable[[], object] = main) -> int:
    """Run a command of this process, and return its exit status: that of ``run`` if it returns one,
    else 0.

    As with ``python -m``, modules of the current folder can be imported, so that parts are named by
    ``module:object``. It is 1, without a message, if the reader of the output has exited, as
    ``head`` does.
    """
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        try:
            status = run()
        finally:
            sys.stdout.flush()  # also of a SystemExit, after --help
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    raise SystemExit(console())
