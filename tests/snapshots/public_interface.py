"""Public interface of the three packages as plain values.

Names, signatures, YAML keys, flags.

Each function of ``SUBJECTS`` returns one subject; ``NAME.json`` in this folder has its recorded
values.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import tempfile
import tomllib
from pathlib import Path
from unittest import mock

import yaml

import ddlib as dd
from ddlib.config import keys
from recipes import (
    adapt,
    clusters,
    evaluate,
    frontier,
    generate,
    lm1b,
    owt,
    plot,
    prepare,
    quickstart,
    train,
)
from recipes.config import RunContext, recipe_yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXTRA = (
    "ddlib.testing",
    "ddlib.testing.strategies",
    "ddlib.verification",
    "ddlib_models",
    "ddlib_models.hub",
)
EXTRA += ("ddlib_models.official", "ddlib.integrations")
FOREIGN = ("builtins.", "torch.", "typing.", "abc.", "enum.", "jaxtyping.", "functools.")


def path_of(name):
    return HERE / f"{name}.json"


def as_text(values):
    """Format values as JSON with one value per line, so that a renewed file has a readable diff."""
    return json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def namespaces():
    """Public modules by the names under which users import them."""
    found = {"dd": dd} | {
        f"dd.{name}": m for name in dd.__all__ if inspect.ismodule(m := getattr(dd, name))
    }
    return found | {name: importlib.import_module(name) for name in EXTRA}


def names_of(module):
    """Names in ``__all__``, or of the public classes and functions that the module defines."""
    own = (
        n
        for n, v in vars(module).items()
        if callable(v) and getattr(v, "__module__", None) == module.__name__
    )
    return sorted(
        getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    )


def public_names():
    return {place: names_of(module) for place, module in namespaces().items()}


def signature(found):
    """Parameters with their defaults. Annotations are left out: they name internal types."""
    try:
        given = inspect.signature(found)
    except (TypeError, ValueError):
        return "no signature"
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values()]
    shown = str(given.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    shown = re.sub(r"<module '([\w.]+)' [^>]*>", r"\1", shown)
    return re.sub(r"<(\w+) ([\w.<>]+) at 0x\w+>", r"<\1>", shown)


def members(cls):
    """Constructor, public methods and properties that differ from those of a public base class."""
    public = {
        getattr(m, n)
        for place, m in namespaces().items()
        for n in names_of(m)
        if inspect.isclass(getattr(m, n))
    }
    inherited = {}
    for base in reversed([base for base in cls.__mro__[1:] if base in public]):
        inherited |= described(base)
    return {name: text for name, text in described(cls).items() if inherited.get(name) != text}


def described(cls):
    found = {"(constructor)": signature(cls)}
    for base in reversed(cls.__mro__):
        if not f"{base.__module__}.".startswith(FOREIGN):
            for name, value in vars(base).items():
                if name.startswith("_") or isinstance(value, type):
                    continue
                if isinstance(value, property) or callable(getattr(cls, name)):
                    found[name] = (
                        "property" if isinstance(value, property) else signature(getattr(cls, name))
                    )
    return found


def signatures():
    found = {}
    for place, module in namespaces().items():
        for name in names_of(module):
            value = getattr(module, name)
            if inspect.isclass(value):
                found[f"{place}.{name}"] = members(value)
            elif callable(value):
                found[f"{place}.{name}"] = signature(value)
    return found


def declared():
    """Targets of the entry points in pyproject.toml, by group and name."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


def flat(values, place=""):
    """Dotted keys of nested mappings."""
    for name, value in values.items():
        yield from (
            flat(value, f"{place}{name}.")
            if isinstance(value, dict) and value
            else [f"{place}{name}"]
        )


def variants():
    """Recipes of the papers by the command that trains them."""
    return {
        f"{m.__name__} {name}": recipe
        for m in (owt, lm1b)
        for name, (_, recipe) in m.recipes().items()
    }


def shared(place, values):
    """Move the items that all values have in common to one list under ``place``."""
    every = set.intersection(*map(set, values.values()))
    return {place: sorted(every)} | {
        name: sorted(set(value) - every) for name, value in values.items()
    }


def yaml_keys():
    """Keys of the recipes of the papers, and keys of every registered class."""
    found = shared(
        "recipes", {n: list(flat(yaml.safe_load(recipe_yaml(r)))) for n, r in variants().items()}
    )
    for group, points in declared().items():
        kind = group.removeprefix("ddlib.")
        for name, target in points.items():
            if kind != "families":
                found[f"{kind}: {name}"] = sorted(keys(kind, target, RunContext, {"kind": target}))
    return found


def flags(main, *words):
    """Options that a command adds to its parsers, and options in its help."""
    options = set()
    add = argparse.ArgumentParser.add_argument

    def recorded(self, *names, **options_of_it):
        options.update(name for name in names if name.startswith("--"))
        return add(self, *names, **options_of_it)

    with (
        mock.patch.object(argparse.ArgumentParser, "add_argument", recorded),
        mock.patch.dict(os.environ, COLUMNS="400"),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.suppress(SystemExit),
    ):
        main([*words])
    # help prints boxes side by side, in columns that depend on the heights of the boxes
    starts = [cell for cell in re.split(r"\n|│| {2,}", out.getvalue()) if cell.startswith("-")]
    return sorted(
        options.union(*(re.findall(r"(?<![\w-])--[a-z][\w.-]*", start) for start in starts))
    )


def command_flags():
    found = {
        f"recipes.{m.__name__.rpartition('.')[2]}": flags(m.main, "--help")
        for m in (clusters, evaluate, generate)
    }
    found |= {
        f"recipes.{m.__name__.rpartition('.')[2]}": flags(m.main, "--help")
        for m in (frontier, plot, prepare, quickstart)
    }
    trains = {"recipes.owt": owt.main, "recipes.lm1b": lm1b.main}
    words = {name: name.split() for name in variants()}
    found |= shared(
        "recipes.owt, recipes.lm1b",
        {n: flags(trains[m], v, "--help-all") for n, (m, v) in words.items()},
    )
    found["recipes.adapt"] = flags(adapt.main, "--help-all")
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(recipe_yaml(owt.recipes()["hdlm"][1]), encoding="utf-8")
        found["recipes.train"] = flags(train.main, str(recipe), "--help-all")
    main = importlib.import_module("ddlib.__main__").main
    found |= {
        f"ddlib {command}": flags(main, command, "--help")
        for command in ("show", "verify", "recipes")
    }
    # parsed, not imported: the import of lm_eval takes seconds
    tree = ast.parse((ROOT / "recipes" / "harness.py").read_text())
    (adapter,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "DiffusionLM")
    (made,) = (n for n in adapter.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    return found | {
        "recipes.harness --model_args": [a.arg for a in (*made.args.args, *made.args.kwonlyargs)][
            1:
        ]
    }


SUBJECTS = {
    "public_names": public_names,
    "signatures": signatures,
    "yaml_keys": yaml_keys,
    "flags": command_flags,
}
