"""Recipe files: every field is a key of YAML, and unknown keys are errors."""

import difflib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

import ddlib as dd
from ddlib import parts
from recipes.config.recipe import PARTS, Recipe, part, read_part
from recipes.config.validation import ELSEWHERE, instead
from recipes.data import Corpus, SymbolCorpus
from recipes.data.yaml_text import load_yaml

APART = ("output.", "hardware.", "data.folder")
"""Parts of a recipe that do not affect results: the machine, the folder of its text and the folder
of its output.
"""

CORPORA = (Corpus.__name__, SymbolCorpus.__name__)

PLUGINS = "plugins"
"""Key of a file for the packages of its plug-ins."""


def recipe_yaml(recipe: Recipe) -> str:
    """Return a recipe with all its values as YAML, and the package and version of every plug-in in
    it.
    """
    values = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    if origins := plugins(recipe):
        values[PLUGINS] = origins
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def plugins(recipe: Recipe) -> dict[str, dict[str, str | None]]:
    """Return package and version of every part that is not in ddlib, by its kind."""
    named = ((group, part(recipe, place), run) for place, (group, run) in PARTS.items())
    packages = (
        parts.origins(group, value, run) for group, value, run in named if value is not None
    )
    return {
        one.kind: {"package": one.package, "version": one.version}
        for many in packages
        for one in many
    }


def read_recipe(path: Path) -> Recipe:
    """Read a file of ``recipe_yaml``, or a hand-written one.

    Warns if the version of a plug-in differs from that in the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a folder; no YAML; a key that occurs twice; an unknown key, with the nearest
            known one; a value of another type; a plug-in that is not installed, with the command
            that installs it.
        PermissionError: see ``ddlib.config.registry.trusting``.
    """
    if path.is_dir():
        raise ValueError(
            f"recipe={path}: is a folder, must be a YAML file; prepared data is the key "
            "data.folder of the file, or "
            "--data.folder of another recipe"
        )
    if not path.exists():
        raise FileNotFoundError(f"recipe={path}: there is no such file, must be a YAML file")
    try:
        with path.open(encoding="utf-8") as file:  # whose name its errors have
            values = load_yaml(file)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {values!r}, must hold the keys of a recipe")
    _check_plugins(path, values.pop(PLUGINS, None) or {})
    return recipe_of(values, str(path))


def recipe_of(values: dict[str, Any], place: str = "recipe") -> Recipe:
    """Return the recipe of plain values, as in a file.

    Args:
        values: the keys of a recipe.
        place: name of the values for messages.

    Raises:
        ValueError: as ``read_recipe``.
    """
    try:
        return TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        faults = [*map(_explain, error.errors()), *_faults_of_parts(values)]
        raise ValueError(f"{place}: " + "; ".join(dict.fromkeys(faults))) from error


def numbers(recipe: Recipe) -> dict[str, Any]:
    """Return all values that affect the results of a run, by name."""
    values = _leaves(TypeAdapter(Recipe).dump_python(recipe, mode="json"))
    return {name: value for name, value in values if not name.startswith(APART)}


def differences(before: Recipe, now: Recipe) -> list[str]:
    """Return the values that differ, each by name."""
    old = numbers(before)
    new = numbers(now)
    return [
        f"{name} is {new.get(name)!r}, was {old.get(name)!r}"
        for name in dict.fromkeys((*new, *old))
        if new.get(name) != old.get(name)
    ]


def _check_plugins(path: Path, named: Mapping[str, Mapping[str, str | None]]) -> None:
    """Raise or warn about packages named in a file that are missing or of another version."""
    for kind, expected in named.items():
        package = expected["package"]
        before = expected["version"]
        try:
            now = version(package)
        except PackageNotFoundError:
            if before is not None:
                raise ValueError(
                    f"{path}: {kind} comes from {package} {before}, which is not installed: "
                    f"pip install {package}=={before}"
                ) from None
            continue  # a module outside of any package; its import reports where it is missing
        if before is not None and now != before:
            warnings.warn(
                f"{path}: {kind} was made with {package} {before}, here is {now}", stacklevel=3
            )


def about_loss(recipe: Path) -> str:
    """Return the recipe's description of the loss alone.

    Other parts may need packages that are not installed.
    """
    if not recipe.is_file():
        return ""
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    try:
        loss = read_part("loss", values.get("loss", {}))
        objective = dd.build("objectives", loss, place="loss")
        return objective.about(_has_padding(values.get("data", {})))
    except (ImportError, ValueError):  # a weighting of a package that is not installed
        return ""


def _has_padding(data: Mapping[str, Any]) -> bool:
    """Return whether rows have padding, from the plain values of a recipe's data: as ``Watch`` does
    in training.
    """
    corpus = data.get("corpus") or {}
    symbols = isinstance(corpus, Mapping) and "source" in corpus
    return not data.get("wrap", False) and (not symbols or bool(corpus.get("ends", False)))


def _leaves(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{place}{name}.")
        else:
            yield place + name, value


def _faults_of_parts(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the parts of a recipe, which are read only where no field of it is
    missing.
    """
    for place in PARTS:
        value: Any = values
        for name in place.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            try:
                read_part(place, value)
            except (ValueError, ImportError) as error:
                yield str(error)


def _explain(error: Mapping[str, Any]) -> str:
    """Return the problem, its place, and the nearest name if the name is unknown."""
    # pydantic names the class of a corpus too
    place = ".".join(str(part) for part in error["loc"] if part not in CORPORA)
    if error["type"] == "missing":
        return f"{place}: is missing"
    if error["type"] == "value_error":  # raised in ddlib, with a complete message
        message = str(error["ctx"]["error"])
        return f"{place}: {message}" if place and not message.startswith(f"{place}.") else message
    if error["type"] != "unexpected_keyword_argument":
        return f"{place}: {error['msg']}, got {error.get('input')!r}"
    name = str(error["loc"][-1])
    if (other := instead(name)) is not None:
        return f"{place}: no such key; {other}"
    near = (
        [ELSEWHERE[name]]
        if name in ELSEWHERE
        else difflib.get_close_matches(name, sorted(_names(Recipe)), n=1)
    )
    return f"{place}: no such key" + (f"; did you mean {near[0]}?" if near else "")


def _names(kind: Any) -> Iterator[str]:
    """Yield the names of all fields of a dataclass, of those inside it, and of those in its
    unions.
    """
    for inner in get_args(kind):
        yield from _names(inner)
    if is_dataclass(kind):
        for field in fields(kind):
            yield field.name
            yield from _names(field.type)
