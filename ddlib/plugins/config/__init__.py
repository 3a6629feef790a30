"""Objects from plain values: ``{kind: tree, xi: 0.9}`` is one language for Python, YAML and the command line.

``kind`` is a name that ``python -m ddlib`` lists, or ``package.module:object``, a class or a function. The other keys
are the arguments of its constructor, whose annotations say what they may be; where an argument is a part itself, its
value is again such a mapping. A part with one argument or none is a string: ``cosine``, ``polynomial:2``,
``ancestral:force_transition=true``, ``my_package.noise:make``. An argument that is a function, such as a reward, is
``package.module:object`` too, and is not called.

What only a run knows, the number of tokens for one, is filled in by name: see ``run`` of ``build``.
"""

from ddlib.plugins.config.building import build, origins, read
from ddlib.plugins.config.signature import REQUIRED, RUN, Key, check, expand, keys, parse

__all__ = ["REQUIRED", "RUN", "Key", "build", "check", "expand", "keys", "origins", "parse", "read"]
