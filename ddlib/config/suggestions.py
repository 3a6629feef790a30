"""Suggestions for misspelled attributes of ``ddlib``."""

import sys
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from types import ModuleType

from ddlib.config import registry

ALIASES = {
    "absorbing": ("Masked",),
    "antithetic": ("sample_times",),
    "bd3lm": ("paces.Blocks",),
    "blockdiffusion": ("paces.Blocks",),
    "cfg": ("ClassifierFree",),
    "crossentropy": ("training_loss",),
    "d3pm": ("RateMatrix",),
    "elbo": ("bound", "nelbo"),
    "generate": ("sample",),
    "loglinear": ("Linear",),
    "loss": ("training_loss", "reward_loss", "preference_loss"),
    "lowconfidence": ("Confidence",),
    "lowdiscrepancy": ("sample_times",),
    "maskgit": ("Confidence",),
    "md4": ("Masked",),
    "nll": ("bound", "nelbo"),
    "perplexity": ("Tally",),
    "ppl": ("Tally",),
    "remdm": ("Remask",),
    "sedd": ("RateMatrix",),
    "smc": ("Particles",),
    "udlm": ("processes.Uniform",),
    "vlb": ("bound", "nelbo"),
}
"""Common terms of the field, lower case without underscores, and their names in ddlib."""

_MOST = 3
"""Largest number of suggestions."""


def missing(name: str, module: str = "ddlib") -> str:
    """Return the error message for an attribute that a module lacks, with suggestions.

    Candidates are the public names of ddlib and of its packages, and the registered names.
    """
    message = f"module {module!r} has no attribute {name!r}"
    if "__path__" in vars(sys.modules[module]) and find_spec(f"{module}.{name}") is not None:
        return f"{message} before it is imported: import {module}.{name}"
    places: dict[str, list[str]] = {}
    for public, place in _places(sys.modules[module.partition(".")[0]]):
        places.setdefault(_plain(public), []).append(place)
    meant = ALIASES.get(_plain(name), ())
    near = [
        place
        for public in meant
        for place in places[_plain(public.rpartition(".")[2])]
        if place.endswith(f".{public}")
    ]
    near = near or [place for plain in _near(_plain(name), places) for place in places[plain]]
    listed = " or ".join(list(dict.fromkeys(near))[:_MOST])
    return f"{message}; " + (
        f"did you mean {listed}?" if near else f"dir({module}) lists its attributes"
    )


def _places(ddlib: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield every public name and its qualified name: first of ddlib, then of its packages, then
    registered names.
    """
    yield from ((name, f"dd.{name}") for name in ddlib.__all__)
    for package in ddlib.__all__:
        module = getattr(ddlib, package)
        if isinstance(module, ModuleType):
            names = [name for name in module.__all__ if name not in ddlib.__all__]
            yield from ((name, f"dd.{package}.{name}") for name in names)
    for kind in registry.GROUPS:
        for name, point in registry.available(kind).items():
            home = point.module.replace("ddlib.", "dd.", 1)
            yield from ((called, f"{home}.{point.attr}") for called in (name, point.attr))


def _near(name: str, known: Collection[str]) -> list[str]:
    """Return the name itself if known, else names that end in it, else the closest match."""
    if name in known or len(name) < 3:
        return [name] * (name in known)
    return sorted((plain for plain in known if plain.endswith(name)), key=len) or get_close_matches(
        name, known, 1
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
