"""Contract kits: one call in a plug-in's own tests puts its object through every check of its kind."""

from typing import Any

from ddlib.guidance import Guidance
from ddlib.hierarchies import Hierarchy
from ddlib.paces import Pace
from ddlib.plugins.registry import GROUPS, PROVED, get
from ddlib.processes import ForwardProcess
from ddlib.samplers import Corrector, Sampler
from ddlib.schedules import Schedule
from ddlib.times import TimeDensity
from ddlib.utils.validation import require
from ddlib.verification import Report, verify
from ddlib.weightings import Weighting


def check_schedule(schedule: Schedule, level: str = "quick") -> Report:
    """Raises AssertionError, with the report, unless ``dd.verify`` accepts the schedule.

    Raises:
        AssertionError: a check failed.
        TypeError: not a schedule.
    """
    return _check(Schedule, schedule, level)


def check_hierarchy(hierarchy: Hierarchy, level: str = "quick") -> Report:
    """As ``check_schedule``, for a hierarchy."""
    return _check(Hierarchy, hierarchy, level)


def check_process(process: ForwardProcess, level: str = "quick") -> Report:
    """As ``check_schedule``, for a process with its schedule and hierarchy, if it has them."""
    return _check(ForwardProcess, process, level)


def check_sampler(sampler: Sampler, level: str = "quick") -> Report:
    """As ``check_schedule``, for a sampler, on a process of every kind that it serves."""
    return _check(Sampler, sampler, level)


def check_corrector(corrector: Corrector, level: str = "quick") -> Report:
    """As ``check_schedule``, for a corrector, on a process of every kind that it serves."""
    return _check(Corrector, corrector, level)


def check_guidance(guidance: Guidance, level: str = "quick") -> Report:
    """As ``check_schedule``, for a guidance, on its process and with its parts."""
    return _check(Guidance, guidance, level)


def check_time_density(density: TimeDensity, level: str = "quick") -> Report:
    """As ``check_schedule``, for a density of times."""
    return _check(TimeDensity, density, level)


def check_pace(pace: Pace, level: str = "quick") -> Report:
    """As ``check_schedule``, for a pace."""
    return _check(Pace, pace, level)


def check_weighting(weighting: Weighting, level: str = "quick") -> Report:
    """As ``check_schedule``, for a weighting, on processes of every kind that it serves."""
    return _check(Weighting, weighting, level)


def check_registered(kind: str, name: str, level: str = "quick") -> list[Report]:
    """As ``check_schedule``, for every example that a registered class gives of itself.

    Raises:
        AssertionError: a check failed, or the class gives no example.
        ImportError, ValueError: as ``registry.get``; a kind whose objects give no examples, such as backbones.
    """
    require(kind not in GROUPS or kind in PROVED, f"kind is {kind!r}, must be one of {', '.join(PROVED)}")
    cls = get(kind, name)
    try:
        examples = list(cls.examples())
    except TypeError as error:
        raise AssertionError(f"{cls.__name__} gives no examples, override examples(): {error}") from error
    if not examples:
        raise AssertionError(f"{cls.__name__}.examples() is empty, must give at least one")
    return [_check(cls, example, level) for example in examples]


def _check(kind: type[Any], subject: Any, level: str) -> Report:
    if not isinstance(subject, kind):
        raise TypeError(f"{subject!r} is a {type(subject).__name__}, must be a {kind.__name__}")
    report = verify(subject, level)
    if not report.ok:
        raise AssertionError(f"{subject!r} is not verified\n{report.refutation}")
    return report
