"""Choice of the family of a model: those of this package and of plug-ins."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ddlib import registry
from ddlib_models.hub import known_families as records
from ddlib_models.hub.family import Config, Family


def families() -> dict[str, Callable[[], Family]]:
    """Return the functions that make each family, by name: those of this package and of installed
    plug-ins.
    """
    records_by_name = {name: getattr(records, name) for name in records.__all__}
    # a checkout may be newer than the installed package: its families are found without an entry
    # point
    plugins = [name for name in registry.available("families") if name not in records_by_name]
    return records_by_name | {name: partial(_plugin, name) for name in plugins}


def _plugin(name: str) -> Family:
    family = registry.find("families", name)()
    if not isinstance(family, Family):
        raise ImportError(
            f"families {name!r} returns {family!r}, must return a ddlib_models.hub.Family"
        )
    return family


def choose_family(name: str, config: Config, family: str | Family | None) -> tuple[str, Family]:
    """Return the family of a model, and its name.

    Raises:
        ValueError: none has that name, or none, or several, fit the configuration.
        ImportError: a plug-in of that name does not load.
    """
    if isinstance(family, Family):
        return "a custom family", family
    makers = families()
    if family is not None:
        if family not in makers:
            raise ValueError(f"family={family!r}: must be one of {', '.join(makers)}, or a Family")
        return family, makers[family]()
    every = {}
    for each, make in makers.items():
        with suppress(ImportError):  # a broken plug-in matters only if it is requested
            every[each] = make()
    fitting = [each for each, one in every.items() if one.fits(config)]
    fitting = fitting or [each for each, one in every.items() if one.resembles(config)]
    kind = config.get("model_type")
    first = next(iter(config.get("architectures") or ()), None)
    info = f"{name}: model_type {kind!r}, architecture {first!r}"
    if not fitting:
        raise ValueError(
            f"{info}: none of the families {', '.join(every)} fits it. If it has the format of one "
            "of them, pass "
            "family=NAME (on the command line --family NAME); else pass your own Family"
        )
    if len(fitting) > 1:
        raise ValueError(
            f"{info}: may be of {' or '.join(fitting)}, choose one: family={fitting[0]!r} (on the "
            "command line "
            f"--family {fitting[0]})"
        )
    return fitting[0], every[fitting[0]]
