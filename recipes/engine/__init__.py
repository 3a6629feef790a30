"""Training on one process or many, with checkpoints that survive a kill at any moment."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.engine.divergence import DivergedError
    from recipes.engine.loop import train
    from recipes.engine.memory import estimate
    from recipes.engine.run import NonFiniteError

_MODULES = {
    "DivergedError": "divergence",
    "NonFiniteError": "run",
    "estimate": "memory",
    "train": "loop",
}
"""Names and their modules, imported on demand: commands that do not train use other modules of this
package.
"""

__all__ = ["DivergedError", "NonFiniteError", "estimate", "train"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
