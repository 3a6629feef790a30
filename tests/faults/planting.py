"""The list of planted faults: what each breaks, and how to make the broken object."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import ddlib as dd

WORDS, ABOVE = [0, 0, 1, 1, 2, 3], [0, 1, 1, 0]


@dataclass(frozen=True)
class Fault:
    name: str
    breaks: str
    plant: Callable[[pytest.MonkeyPatch], Any]


FAULTS: list[Fault] = []


def fault(breaks: str) -> Callable[[Callable[[pytest.MonkeyPatch], Any]], Callable[[pytest.MonkeyPatch], Any]]:
    """Enters a function that returns the broken object; its name says what is wrong, ``breaks`` which formula."""

    def enter(plant: Callable[[pytest.MonkeyPatch], Any]) -> Callable[[pytest.MonkeyPatch], Any]:
        FAULTS.append(Fault(plant.__name__.replace("_", " "), breaks, plant))
        return plant

    return enter


def tree(cls: type = dd.hierarchies.Tree, xi: float = 0.8) -> Any:
    """Words, four clusters, the mask."""
    return cls([WORDS], xi=xi, speed=[2.0, 1.0])


def deep(cls: type = dd.hierarchies.Tree, xi: tuple[float, float] = (0.8, 0.6)) -> Any:
    """Words, four clusters, two superclusters, the mask."""
    return cls([WORDS, ABOVE], xi=xi, speed=[0.7, 1.3, 2.0])


def hierarchical(cls: type, hierarchy: Any = None) -> Any:
    """A process of the class over ``tree()``, on the linear clock."""
    return cls(tree() if hierarchy is None else hierarchy, dd.schedules.Linear())
