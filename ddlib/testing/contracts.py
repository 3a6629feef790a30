"""Contract checks: one call in a plug-in's tests runs every check of ``dd.verify`` on its
object.
"""

from typing import Any

from ddlib.config.registry import GROUPS, PROVED, get
from ddlib.utils.validation import require
from ddlib.verification import Report, verify


def check(subject: Any, level: str = "quick") -> Report:
    """Raise AssertionError, with the report, unless ``dd.verify`` accepts the object.

    Args:
        subject: object of a kind that ``dd.verify`` checks.
        level: as in ``dd.verify``.

    Raises:
        AssertionError: a check failed.
        TypeError: another kind of object.
    """
    report = verify(subject, level)
    if not report.ok:
        raise AssertionError(f"{subject!r} is not verified\n{report.refutation}")
    return report


def check_registered(kind: str, name: str, level: str = "quick") -> list[Report]:
    """Run ``check`` on every example of a registered class.

    Raises:
        AssertionError: a check failed, or the class has no example.
        ImportError, ValueError: as ``registry.get``; a kind whose classes have no examples, such as
            backbones.
    """
    require(
        kind not in GROUPS or kind in PROVED,
        f"kind is {kind!r}, must be one of {', '.join(PROVED)}",
    )
    cls = get(kind, name)
    try:
        examples = list(cls.examples())
    except TypeError as error:
        raise AssertionError(
            f"{cls.__name__} has no examples, override examples(): {error}"
        ) from error
    if not examples:
        raise AssertionError(f"{cls.__name__}.examples() is empty, must return at least one")
    return [_check_kind(cls, example, level) for example in examples]


def _check_kind(kind: type[Any], subject: Any, level: str = "quick") -> Report:
    if not isinstance(subject, kind):
        raise TypeError(f"{subject!r} is a {type(subject).__name__}, must be a {kind.__name__}")
    return check(subject, level)
