"""Checks of the arguments of a process's constructor: hierarchy, schedules and device."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from ddlib.hierarchies import Hierarchy
from ddlib.schedules import Schedule
from ddlib.utils.validation import require


def check_schedule(schedule: object) -> Schedule:
    """Return the argument; raise TypeError unless it is a schedule, ValueError unless alpha
    decreases all the time from 1 to 0.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
    schedule.check()
    start, end = schedule.support
    require(
        (start, end) == (0, 1),
        f"schedule acts from t = {start:g} to {end:g}, must act from 0 to 1: windows require a "
        "schedule for each edge",
    )
    return schedule


def check_tree(
    hierarchy: Hierarchy, schedule: Schedule | Sequence[Schedule]
) -> tuple[Schedule, ...]:
    """Return the schedules: one that resolves the slowest edge of a hierarchy, or one for each
    edge.

    Raises:
        TypeError: arguments of another kind.
        ValueError: alpha not decreasing from 1 to 0, or 0 in float64 before the slowest edge has
            ended; another number of schedules than of edges; supports that leave an edge no time or
            a time without a jump.
    """
    if not isinstance(hierarchy, Hierarchy):
        raise TypeError(f"hierarchy is {hierarchy!r}, must be a ddlib.hierarchies.Hierarchy")
    one: object = schedule
    if isinstance(schedule, list | tuple):
        if (len(schedule), hierarchy.depth) != (1, 1):
            check_schedules(hierarchy.depth, schedule)
            return tuple(schedule)
        (one,) = schedule
    checked = check_schedule(one)
    slowest = min(hierarchy.speeds)
    checked.check_resolves(f"speed {slowest:g}", lambda duration: math.exp(-slowest * duration))
    return (checked,)


def check_schedules(edges: int, schedules: Sequence[Schedule]) -> None:
    """Raise unless the schedules are one per edge, and every level empties before or as the next
    one does.

    Raises:
        TypeError: one that is not a schedule, or has parameters.
        ValueError: see ``check_tree``; a schedule without exact ends, or that is 0 in float64
            before its end.
    """
    require(
        len(schedules) == edges,
        f"schedule holds {len(schedules)} schedules, must be one schedule, or hold one for each of "
        f"the {edges} edges",
    )
    for i, schedule in enumerate(schedules):
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule[{i}] is {schedule!r}, must be a ddlib.schedules.Schedule")
        schedule.check()
        if learns(schedule):
            raise TypeError(
                f"schedule[{i}] is {schedule!r}, which has parameters, must have none: transitions "
                "of schedules for each edge are tabulated once. One schedule for all edges may "
                "be learned"
            )
        require(
            schedule.exact_ends,
            f"schedule[{i}] is {schedule!r}, must be 1 at its start and 0 at its end: with a "
            "schedule for each edge, "
            "jumps at t = 0 have no order",
        )
        last = torch.tensor([schedule.support[1]], dtype=torch.float64).nextafter(
            torch.zeros(1, dtype=torch.float64)
        )
        require(
            bool(schedule.hazard(last).isfinite()),
            f"schedule[{i}] is {schedule!r}, which is 0 in float64 before its end: tokens that "
            f"enter level {i} after "
            "that could not leave it. Use a schedule that overrides hazard",
        )
    check_supports(schedules)


def learns(schedule: Schedule) -> bool:
    """Return whether a schedule, or one within it, has parameters."""
    own = isinstance(schedule, nn.Module) and any(True for _ in schedule.parameters())
    return own or any(
        learns(part) for part in vars(schedule).values() if isinstance(part, Schedule)
    )


def check_supports(schedules: Sequence[Schedule]) -> None:
    """Raise ValueError unless supports end in order, the last at 1, and some edge acts at every
    time.
    """
    for i, (lower, upper) in enumerate(pairwise(schedules)):
        require(
            lower.support[1] <= upper.support[1] + 1e-9,
            f"schedule[{i + 1}] ends at {upper.support[1]:g}, must end no earlier than "
            f"schedule[{i}] at "
            f"{lower.support[1]:g}: states that enter level {i + 1} after that could not leave it",
        )
    end = schedules[-1].support[1]
    require(
        end == 1,
        f"schedule[{len(schedules) - 1}] ends at {end:g}, must end at 1, where all tokens are "
        "noise",
    )
    reached = 0.0
    for start, end in sorted(schedule.support for schedule in schedules):
        require(
            start <= reached + 1e-9,
            f"no schedule acts from t = {reached:g} to {start:g}, must be at least one",
        )
        reached = max(reached, end)
