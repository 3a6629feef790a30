"""Checks of shapes and types at every call of ddlib and ddlib_models, by jaxtyping and beartype."""

from contextlib import contextmanager
from functools import cache
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import config, install_import_hook

CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float


def check_shapes():
    """Check all functions and data classes of ddlib and ddlib_models, if neither is imported yet.

    The tests do so with the option ``--shapes``. torch cannot compile functions that are checked.
    """
    install_import_hook(["ddlib", "ddlib_models"], "shapes.checked")


def checked(function):
    """Return a function that checks its arguments by beartype.

    A checker takes milliseconds to build, and most functions are never called.
    """

    @cache
    def checker():
        # beartype takes Self only where it decorates the class
        function.__annotations__ = {
            name: Any if "typing.Self" in repr(hint) else hint
            for name, hint in function.__annotations__.items()
        }
        return beartype(function, conf=CONF)

    return lambda *args, **kwargs: checker()(*args, **kwargs)


@contextmanager
def unchecked():
    """Disable the checks of jaxtyping."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
