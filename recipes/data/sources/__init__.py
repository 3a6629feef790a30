"""Sources of sequences of symbols, the plug-in group ``ddlib.sources``: one class per module.

A source is a class or function whose object has two methods: ``load()`` returns ``Sequences``,
``identity()`` hashes of the content, by name, equal if and only if the sequences are. Arguments of
its constructor are keys of YAML and flags of ``python -m recipes.prepare``. An argument ``files``
is a path: it is not part of the identity, as files may be moved.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "Array",
    "Chat",
    "Chorales",
    "Digits",
    "Fasta",
    "Images",
    "Lines",
    "Molecules",
    "Patches",
    "Peptides",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.lower()}"), name)
