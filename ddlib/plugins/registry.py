"""What is there to compose: the entry points of every installed package, loaded only when asked for."""

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from difflib import get_close_matches
from importlib.metadata import EntryPoint, packages_distributions, version
from typing import Any, NamedTuple

from ddlib.arguments import declared
from ddlib.hierarchies import Hierarchy
from ddlib.paces import Pace
from ddlib.processes import ForwardProcess
from ddlib.samplers import Corrector, Sampler
from ddlib.schedules import Schedule
from ddlib.times import TimeDensity
from ddlib.utils.validation import require
from ddlib.weightings import Weighting

_BASES: dict[str, type[Any] | None] = {
    "schedules": Schedule,
    "hierarchies": Hierarchy,
    "processes": ForwardProcess,
    "times": TimeDensity,
    "paces": Pace,
    "samplers": Sampler,
    "correctors": Corrector,
    "weightings": Weighting,
    "backbones": None,
    "presets": None,
    "families": None,
}

GROUPS = tuple(_BASES)
"""Kinds of plug-ins; the entry-point group of each is ``ddlib.<kind>``. A backbone is a class or function that gives a
``(z, t) -> logits``, a preset a function that gives a process, a family one that gives a record of
``ddlib_models.hub``."""

PROVED = tuple(kind for kind, base in _BASES.items() if base is not None)
"""Those whose classes have ``examples()``, on which ``dd.verify`` proves them right."""

_MADE = {"presets": ForwardProcess}


class Origin(NamedTuple):
    """Where a part comes from."""

    kind: str
    """As it stands in values: a registered name or ``package.module:object``."""
    package: str
    version: str | None
    """None of a module that no package installed."""


_trusted: ContextVar[Collection[str] | None] = ContextVar("trusted", default=None)


@contextmanager
def trusting(modules: Collection[str]) -> Iterator[None]:
    """A context in which ``package.module:object`` is imported from these modules only: for files of strangers."""
    token = _trusted.set(tuple(modules))
    try:
        yield
    finally:
        _trusted.reset(token)


def available(kind: str) -> dict[str, EntryPoint]:
    """Entry points of a kind by name, none of them loaded. ``DDLIB_PLUGINS=0`` hides all but ddlib's own.

    Of a name that two packages claim, one entry point is given here; ``get`` refuses it.

    Raises:
        ValueError: unknown kind.
    """
    return {name: points[0] for name, points in sorted(_claims(kind).items())}


def own(kind: str) -> list[str]:
    """The names of a kind that come with ddlib, not with a plug-in.

    Raises:
        ValueError: unknown kind.
    """
    return [name for name, point in available(kind).items() if point.value.startswith("ddlib.")]


def get(kind: str, name: str) -> Any:
    """Loads the class registered under ``name``, and no other; of presets and their like the function.

    Raises:
        ValueError: unknown kind or name.
        ImportError: two packages claim the name, or the entry point does not load or is no class of its kind; names
            the packages and the reason.
    """
    claims = _claims(kind)
    require(name in claims, _missing(kind, name, list(claims)))
    point, *others = claims[name]
    if others:
        packages = " and ".join(f"{_package(p)} ({p.value})" for p in (point, *others))
        raise ImportError(
            f"{kind} {name!r} is claimed by {packages}: uninstall all but one, or set DDLIB_PLUGINS=0 for ddlib's own"
        )
    origin = f"{kind} {name!r} = {point.value}, from {_package(point)},"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when imported
        raise ImportError(f"{origin} does not load: {type(error).__name__}: {error}") from error
    base = _BASES[kind]
    if base is None and not callable(loaded):
        raise ImportError(f"{origin} is {loaded!r}, must be a class or a function")
    if base is not None and not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ImportError(f"{origin} is {loaded!r}, must be a subclass of {room(kind)}.{base.__name__}")
    return loaded


def find(kind: str, name: str) -> Callable[..., Any]:
    """What makes an object of a kind: a registered class, a preset of processes, or ``package.module:object``.

    Dashes in a registered name are underscores. An object that is made already gives copies of itself.

    Raises:
        ValueError, ImportError: as ``get`` and ``at``.
    """
    if ":" in name:
        found: Callable[..., Any] = at(name)
        base = made(kind)
        if base is not None and isinstance(found, base):
            return lambda: deepcopy(found)
        require(callable(found), f"{name!r} is {found!r}, must be a class or a function")
        return found
    group, plain = _place(kind, name)
    return get(group, plain)


def knows(kind: str, name: str) -> bool:
    """Whether ``find`` has a registered class or preset of this name."""
    return any(name.replace("-", "_") in _claims(group) for group in (kind, *_also(kind)))


def made(kind: str) -> type[Any] | None:
    """The class that objects of a kind are of; None for backbones, which are anything that can be called."""
    return _BASES[kind] or _MADE.get(kind)


def room(kind: str) -> str:
    """The package that a kind's own classes are in: ``ddlib.<kind>``, but for correctors, who live with samplers."""
    base = _BASES[kind]
    return f"ddlib.{kind}" if base is None else ".".join(base.__module__.split(".")[:2])


def origin(kind: str, name: str) -> Origin:
    """The package that ``find(kind, name)`` comes from, and its version."""
    if ":" not in name:
        group, plain = _place(kind, name)
        point = available(group)[plain]
        return Origin(plain, _package(point), point.dist.version if point.dist else None)
    top = name.partition(":")[0].partition(".")[0]
    packages = packages_distributions().get(top)
    return Origin(name, packages[0], version(packages[0])) if packages else Origin(name, top, None)


def at(path: str) -> Any:
    """The object at ``package.module:object``.

    Raises:
        ValueError: not of that form, or the module or the object is not there.
        PermissionError: within ``trusting``, another module.
    """
    module, _, name = path.partition(":")
    require(bool(module) and bool(name), f"{path!r} must be package.module:object")
    trusted = _trusted.get()
    if trusted is not None and module not in trusted:
        raise PermissionError(
            f"{path!r} stands in files that were not made here, and to import a module is to run it: read {module}, "
            f"then say --trust {module}"
        )
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path!r}: {error}") from error
    for part in name.split("."):
        require(hasattr(found, part), f"{path!r}: {found!r} has no {part!r}")
        found = getattr(found, part)
    return found


def _place(kind: str, name: str) -> tuple[str, str]:
    """The group and the name under which ``find`` looks a name up."""
    plain = name.replace("-", "_")
    names: list[str] = []
    for group in (kind, *_also(kind)):
        if plain in (claims := _claims(group)):
            return group, plain
        names += claims
    raise ValueError(_missing(kind, name, names))


def _also(kind: str) -> Sequence[str]:
    """The other kinds whose entry points give objects of this one."""
    return [other for other, base in _MADE.items() if base is _BASES.get(kind)]


def _claims(kind: str) -> dict[str, list[EntryPoint]]:
    """Entry points by name, several where packages disagree."""
    require(kind in GROUPS, f"kind is {kind!r}, must be one of {', '.join(GROUPS)}")
    claims: dict[str, list[EntryPoint]] = {}
    for point in declared(f"ddlib.{kind}", tuple(sys.path)):
        if _plugins() or _package(point) == "ddlib":
            same = claims.setdefault(point.name, [])
            if point.value not in (other.value for other in same):
                same.append(point)
    return claims


def _plugins() -> bool:
    return os.environ.get("DDLIB_PLUGINS") != "0"


def _missing(kind: str, name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names)) or 'none'}"
    return f"nothing in {kind} is called {name!r}, {hint}" + ("" if _plugins() else " (DDLIB_PLUGINS=0 hides plug-ins)")


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
