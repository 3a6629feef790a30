"""Small processes of every kind, on which other parts are verified, tested and shown."""

from collections.abc import Sequence

from ddlib.hierarchies import Tree
from ddlib.processes.base import ForwardProcess
from ddlib.processes.gidd import GIDD
from ddlib.processes.hierarchical import Hierarchical
from ddlib.processes.masked import Masked
from ddlib.processes.noisy import Noisy
from ddlib.processes.per_word import PerWord
from ddlib.processes.rate_matrix import RateMatrix
from ddlib.processes.uniform import Uniform
from ddlib.schedules import Cosine, Linear, Schedule


def levels(schedule: Schedule, xi: float | Sequence[float] = 1.0) -> Hierarchical:
    """Return a process over four tokens with two levels of clusters."""
    return Hierarchical(Tree([[0, 1, 1, 2], [0, 0, 1]], xi=xi, speed=[1.0, 2.0, 0.7]), schedule)


def three() -> dict[str, ForwardProcess]:
    """Return processes over three tokens by name, for which all sequences of two or three states
    can be listed.
    """
    return {
        "masked": Masked(3, Cosine()),
        "tree": Hierarchical(Tree([[0, 1, 1]], xi=0.8, speed=[2.0, 1.0]), Linear()),
        "uniform": Uniform(3, Linear()),
        "gidd": GIDD(3, 0.3),
    }


def four() -> dict[str, ForwardProcess]:
    """Return processes over four tokens by name: no clusters, one or two levels of them, also with
    xi below 1.
    """
    return {
        "masked": Masked(4, Cosine()),
        "tree": Hierarchical(Tree([[0, 0, 1, 1]], speed=[2.0, 1.0]), Linear()),
        "levels": levels(Cosine()),
        "xi": levels(Cosine(), [0.7, 0.8]),
        "uniform": Uniform(4, Linear()),
        "gidd": GIDD(4, 0.2),
    }


def special() -> dict[str, ForwardProcess]:
    """Return processes over four tokens with formulas of another kind.

    They are GIDD without uniform noise; a rate matrix, which has no closed form; a schedule per
    token; and resampling.
    """
    tree = four()["tree"]
    return {
        "masks only": GIDD(4, 0.0),
        "rates": RateMatrix(tree.rate_matrix(0.0), Linear(), 4),
        "per token": PerWord(Linear(), [0.5, 1.0, 1.0, 2.0]),
        "noisy": Noisy(Tree([[0, 0, 1, 1]]), Linear(), 0.2),
    }
