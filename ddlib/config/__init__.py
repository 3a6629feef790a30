"""Configuration: objects as plain values such as ``{kind: tree, xi: 0.9}``, and back.

The same values work in Python, YAML and on the command line. ``kind`` is a name that ``python -m
ddlib`` lists, or the path ``package.module:object`` of a class or function. The other keys are the
arguments of the constructor; their annotations determine the allowed values. An argument that is a
part itself has such a mapping as its value. A part can also be a string: ``cosine``,
``polynomial:2``, ``ancestral:force_transition=true``, ``my_package.noise:make``. An argument that
is a function, such as a reward, is a path ``package.module:object`` too, and is not called.

Values that depend on the run, such as the number of tokens, are filled in by name: see ``run`` of
``build``.
"""

from ddlib.config.building import origins, read
from ddlib.config.comparison import difference
from ddlib.config.part import Part
from ddlib.config.plain import kind_of
from ddlib.config.signature import RUN, Key, expand, keys, parse

__all__ = [
    "RUN",
    "Key",
    "Part",
    "difference",
    "expand",
    "keys",
    "kind_of",
    "origins",
    "parse",
    "read",
]
