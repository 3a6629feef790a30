"""Registry of plug-ins: the entry points of all installed packages, loaded on demand."""

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, packages_distributions, version
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ddlib.config.plain import declarations
from ddlib.utils.validation import require

__all__ = ["available", "find", "trusting"]

_BASES = {
    "schedules": "ddlib.schedules:Schedule",
    "hierarchies": "ddlib.hierarchies:Hierarchy",
    "processes": "ddlib.processes:ForwardProcess",
    "times": "ddlib.times:TimeDensity",
    "paces": "ddlib.paces:Pace",
    "samplers": "ddlib.samplers:Sampler",
    "correctors": "ddlib.samplers:Corrector",
    "lengths": "ddlib.samplers.controls:Control",
    "weightings": "ddlib.weightings:Weighting",
}
"""Base class of each kind whose plug-ins are classes.

By its path, since these packages import this one.
"""

_MADE = {
    "presets": "ddlib.processes:ForwardProcess",
    "sources": "ddlib.config.registry:Source",
    "metrics": "ddlib.config.registry:Metrics",
    "objectives": "ddlib.config.registry:Objective",
}
"""Class of the objects of each kind whose plug-ins are functions or classes that return them."""

GROUPS = (*_BASES, "backbones", "presets", "families", "sources", "metrics", "objectives")
"""Kinds of plug-ins; the entry-point group of each is ``ddlib.<kind>``.

A backbone is a class or function that returns
a callable ``(z, t) -> logits``, a preset a function that returns a process, a family a function
that returns a record of ``ddlib_models.hub``, a source a class or function that returns a
``Source``, metrics and training objectives likewise."""

PROVED = tuple(_BASES)
"""Kinds with ``examples()``, on which ``dd.verify`` checks registered classes."""


@runtime_checkable
class Source(Protocol):
    """Source of training sequences; the recipes build and read it (``recipes.data.sources``)."""

    def load(self) -> Any:
        """Return the sequences, ``recipes.data.Sequences``."""
        ...

    def identity(self) -> dict[str, str]:
        """Return hashes of the content, by name: equal if and only if the sequences are."""
        ...


@runtime_checkable
class Objective(Protocol):
    """Training objective of a recipe, ``recipes.engine.objectives.base.Objective``."""

    def prepare(self, batches: Any, step: int) -> Any:
        """Return the micro-batches of a step as the network takes them."""
        ...

    def loss(self, noisy: Any, network: Any, scale: Any) -> Any:
        """Return ``scale`` times the sum of the loss, and the loss of each token."""
        ...


@runtime_checkable
class Metrics(Protocol):
    """Metrics of samples that are not text.

    Those with the name of a source are the default for its data.
    """

    def check(self, data: Any) -> None:
        """Raise ValueError if samples cannot be compared to ``data``, before anything is drawn."""
        ...

    def measure(self, samples: Any, data: Any, labels: Any = None) -> dict[str, float]:
        """Return metrics by name.

        Args:
            samples: ids of each sample, arrays (L,).
            data: ``recipes.data.Prepared`` with the training and held-out sequences.
            labels: (N,) class that each sample was drawn for; None for samples of no class.
        """
        ...


class Origin(NamedTuple):
    """Package that a part comes from."""

    kind: str
    """The value of ``kind``: a registered name or ``package.module:object``."""
    package: str
    version: str | None
    """None for a module outside installed packages."""


_trusted: ContextVar[Collection[str] | None] = ContextVar("trusted", default=None)


@contextmanager
def trusting(modules: Collection[str]) -> Iterator[None]:
    """Context manager that restricts ``package.module:object`` to given modules, for files from
    untrusted sources.
    """
    token = _trusted.set(tuple(modules))
    try:
        yield
    finally:
        _trusted.reset(token)


def available(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of a kind by name, without loading them.

    ``DDLIB_PLUGINS=0`` hides all but ddlib's.

    If two packages claim a name, one entry point is returned here; ``get`` raises for it.

    Raises:
        ValueError: unknown kind.
    """
    return {name: points[0] for name, points in sorted(_claims(kind).items())}


def built_in(kind: str) -> list[str]:
    """Return the names of a kind that are part of ddlib, without those of plug-ins.

    Raises:
        ValueError: unknown kind.
    """
    return [name for name, point in available(kind).items() if point.value.startswith("ddlib.")]


def get(kind: str, name: str) -> Any:
    """Load and return the class registered under ``name``.

    For presets, backbones and families the function.

    Raises:
        ValueError: unknown kind or name.
        ImportError: two packages claim the name; the entry point does not load or is not a class of
            its kind. The message has the packages and the reason.
    """
    return _load(kind, name, _claims(kind))


def _load(kind: str, name: str, registered: dict[str, list[EntryPoint]]) -> Any:
    points = registered.get(name.replace("-", "_"))
    if points is None:
        raise ValueError(_missing(kind, name, list(registered)))
    point, *others = points
    kind = point.group.removeprefix("ddlib.")
    if others:
        packages = " and ".join(f"{_package(p)} ({p.value})" for p in points)
        raise ImportError(
            f"{kind} {point.name!r} is registered by {packages}: uninstall all but one, or set "
            "DDLIB_PLUGINS=0 to use that "
            "of ddlib"
        )
    origin = f"{kind} {point.name!r} = {point.value}, from {_package(point)},"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # a third-party module may raise anything on import
        raise ImportError(f"{origin} does not load: {type(error).__name__}: {error}") from error
    base = _base(kind)
    if base is None and not callable(loaded):
        raise ImportError(f"{origin} is {loaded!r}, must be a class or a function")
    if base is not None and not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ImportError(
            f"{origin} is {loaded!r}, must be a subclass of {package_of(kind)}.{base.__name__}"
        )
    return loaded


def find(kind: str, name: str) -> Callable[..., Any]:
    """Return the callable for a kind and name: a registered class, a preset of processes, or
    ``package.module:object``.

    Dashes in a registered name count as underscores. For an existing object the callable returns
    copies of it.

    Raises:
        ValueError, ImportError: as ``get`` and ``at``.
    """
    if ":" not in name:
        return _load(kind, name, claims(kind))
    target: Callable[..., Any] = at(name)
    base = base_of(kind)
    if base is not None and isinstance(target, base) and not isinstance(target, type):
        return lambda: deepcopy(target)
    require(callable(target), f"{name!r} is {target!r}, must be a class or a function")
    return target


def base_of(kind: str) -> type[Any] | None:
    """Return the base class of the objects of a kind.

    None for backbones, which are arbitrary callables.

    Raises:
        ValueError: unknown kind.
    """
    require(kind in GROUPS, f"kind is {kind!r}, must be one of {', '.join(GROUPS)}")
    path = (_BASES | _MADE).get(kind)
    return None if path is None else EntryPoint(kind, path, "").load()  # by its path: no circle


def _base(kind: str) -> type[Any] | None:
    """Return the base class of the registered classes of a kind; None for functions."""
    return base_of(kind) if kind in _BASES else None


def package_of(kind: str) -> str:
    """Return the package of a kind's classes: ``ddlib.<kind>``; ``ddlib.samplers`` for correctors
    and lengths.
    """
    base = _base(kind)
    return f"ddlib.{kind}" if base is None else ".".join(base.__module__.split(".")[:2])


def origin(kind: str, name: str) -> Origin:
    """Return the package of ``find(kind, name)`` and its version."""
    if ":" not in name:
        point = claims(kind)[name.replace("-", "_")][0]
        return Origin(point.name, _package(point), point.dist.version if point.dist else None)
    top = name.partition(":")[0].partition(".")[0]
    packages = packages_distributions().get(top)
    return Origin(name, packages[0], version(packages[0])) if packages else Origin(name, top, None)


def at(path: str) -> Any:
    """Import the object at ``package.module:object``.

    Raises:
        ValueError: not of that form; the module or the object does not exist.
        PermissionError: within ``trusting``, a module that is not trusted.
    """
    module, _, name = path.partition(":")
    require(bool(module) and bool(name), f"{path!r} must be package.module:object")
    trusted = _trusted.get()
    if trusted is not None and module not in trusted:
        raise PermissionError(
            f"{path!r} is named by files from elsewhere, and importing a module executes it: read "
            f"{module}, then pass "
            f"--trust {module}, or trust=[{module!r}] in Python"
        )
    try:
        target: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        near = f"write {module.removesuffix('.py')}:{name}, or " if module.endswith(".py") else ""
        raise ValueError(
            f"{path!r}: {error}; {near}install its package, or add its folder to PYTHONPATH"
        ) from error
    for part in name.split("."):
        require(hasattr(target, part), f"{path!r}: {target!r} has no {part!r}")
        target = getattr(target, part)
    return target


def claims(kind: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points by the names that ``find`` takes: those of presets are processes."""
    also = [other for other, path in _MADE.items() if path == _BASES.get(kind)]
    return {name: points for group in (*also, kind) for name, points in _claims(group).items()}


def _claims(kind: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points by name, several if packages disagree."""
    base_of(kind)
    claims: dict[str, list[EntryPoint]] = {}
    for point in declarations(f"ddlib.{kind}", tuple(sys.path)):
        if (_plugins() and _package(point) != "ddlib") or (
            _package(point) == "ddlib" and _is_here(point)
        ):
            same = claims.setdefault(point.name, [])
            if point.value not in (other.value for other in same):
                same.append(point)
    return claims


def _is_here(point: EntryPoint) -> bool:
    """Return whether the package of an entry point can be imported: the wheel does not contain the
    recipes.
    """
    top = point.module.partition(".")[0]
    return top in sys.modules or find_spec(top) is not None


def _plugins() -> bool:
    return os.environ.get("DDLIB_PLUGINS") != "0"


def _missing(kind: str, name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, 1)
    others = [group for group in GROUPS if name in _claims(group)]
    hint = (
        f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names)) or 'none'}"
    )
    hint = f"which is one of {' and '.join(others)}; {hint}" if others else hint
    return f"nothing in {kind} is called {name!r}, {hint}" + (
        "" if _plugins() else " (DDLIB_PLUGINS=0 hides plug-ins)"
    )


def _package(point: EntryPoint) -> str:
    return _name(point.dist) if point.dist else "an unknown package"


@lru_cache(maxsize=4096)
def _name(package: Distribution) -> str:
    # the name is parsed from a file at every access, and each use of a part asks for the packages
    # of all entry points
    return package.name
