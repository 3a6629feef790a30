"""What somebody may have meant who asks ``ddlib`` for a name that it does not have."""

import inspect
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from types import ModuleType

import ddlib
from ddlib.plugins import registry

ALIASES = {
    "absorbing": ("Masked",),
    "crossentropy": ("training_loss",),
    "d3pm": ("RateMatrix",),
    "elbo": ("bound", "nelbo"),
    "generate": ("sample",),
    "loglinear": ("Linear",),
    "md4": ("Masked",),
    "nll": ("bound", "nelbo"),
    "perplexity": ("Tally",),
    "ppl": ("Tally",),
    "sedd": ("RateMatrix",),
    "smc": ("Particles",),
    "udlm": ("processes.Uniform",),
    "vlb": ("bound", "nelbo"),
}
"""What the field says, in small letters without underscores, and what it is called here."""

_MOST = 3
"""Names that one answer offers."""


def missing(name: str) -> str:
    """What to tell whoever asks ``ddlib`` for ``name``, which it lacks: where that is, or what is called alike.

    Names are looked up where there are any: on ddlib's surface, in its rooms, among what packages have registered.
    """
    told = f"module 'ddlib' has no attribute {name!r}"
    if find_spec(f"ddlib.{name}") is not None:
        return f"{told} before it is imported: import ddlib.{name}"
    places: dict[str, list[str]] = {}
    for public, place in _places():
        places.setdefault(_plain(public), []).append(place)
    meant = ALIASES.get(_plain(name), ())
    near = [
        place for public in meant for place in places[_plain(public.rpartition(".")[2])] if place.endswith(f".{public}")
    ]
    near = near or [place for plain in _near(_plain(name), places) for place in places[plain]]
    listed = " or ".join(list(dict.fromkeys(near))[:_MOST])
    return f"{told}; " + (f"did you mean {listed}?" if near else "dir(ddlib) lists what it has")


def _places() -> Iterator[tuple[str, str]]:
    """Every public name and what to write for it: those of ddlib first, then of its rooms, then registered ones."""
    yield from ((name, f"dd.{name}") for name in ddlib.__all__)
    for room in ddlib.__all__:
        module = getattr(ddlib, room)
        if isinstance(module, ModuleType):
            known = [name for name in _public(module) if name not in ddlib.__all__]
            yield from ((name, f"dd.{room}.{name}") for name in known)
    for kind in registry.GROUPS:
        room = registry.room(kind)
        for name, point in registry.available(kind).items():
            home = room.replace("ddlib", "dd", 1) if point.module == room else point.module
            yield from ((called, f"{home}.{point.attr}") for called in (name, point.attr))


def _public(module: ModuleType) -> list[str]:
    """What a room's ``__all__`` says, else the classes and functions that are written in it."""
    own = (name for name, found in vars(module).items() if inspect.getmodule(found) is module and callable(found))
    return getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]


def _near(asked: str, known: Collection[str]) -> list[str]:
    """The name itself, else names that end in it, else the one that is spelled most alike."""
    if asked in known or len(asked) < 3:
        return [asked] * (asked in known)
    return sorted((plain for plain in known if plain.endswith(asked)), key=len) or get_close_matches(asked, known, 1)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
