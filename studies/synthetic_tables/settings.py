"""Sizes of the study, and the names of what it compares."""

from collections.abc import Sequence
from dataclasses import dataclass, field

EDGES = {"masks": 1, "blur": 3, "intervals": 2}
"""Jumps of an ordered column, by the noise."""
NOISES = tuple(EDGES)
ARMS = (*NOISES, "CTGAN", "Gaussian copula", "independent columns")
EPOCHS = "CTGAN, 300 epochs"
AS_LONG = "masks, as many seconds"
AS_OFTEN = "masks, as many steps"
"""Masks with the seconds, or the steps, of CTGAN's 300 epochs for the same table and seed."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Network:
    """Size and training of a network."""

    dim: int = 64
    depth: int = 2
    heads: int = 4
    batch: int = 128
    rate: float = 2e-3


@dataclass(frozen=True)
class Stage:
    """Runs that belong together: by seed, then table, then generator."""

    tables: Sequence[str]
    arms: Sequence[str]
    seeds: Sequence[int] = SEEDS


LONG = (EPOCHS, AS_LONG, AS_OFTEN)
STAGES = (
    Stage(("diamonds", "bikes"), ARMS),
    Stage(("bikes",), LONG, seeds=(0,)),
    Stage(("health",), ARMS, seeds=(0,)),
    Stage(("diamonds",), (EPOCHS, AS_LONG), seeds=(0,)),
    Stage(("health",), ARMS, seeds=(1, 2)),
    Stage(("health",), LONG, seeds=(0,)),
    Stage(("bikes",), LONG, seeds=(1, 2)),
)


def planned(table: str) -> Sequence[str]:
    """Return the generators that the study runs on a table."""
    arms = [arm for stage in STAGES if table in stage.tables for arm in stage.arms]
    return [*dict.fromkeys(arms)]


def key_of(table: str, arm: str, seed: int) -> str:
    """Return the name of a run in the result file."""
    return f"{table} | {arm} | {seed}"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    seconds: float = 30.0
    """CPU time of a network's training."""
    epochs: int = 300
    """Epochs of CTGAN where they are stated in place of seconds."""
    stages: Sequence[Stage] = STAGES
    """Runs, in their order."""
    halvings: int = 20
    classifiers: int = 4
    """Halvings for the classifier."""
    held_out: int = 4000
    network: Network = field(default_factory=Network)


TINY = Sizes(
    seconds=0.3,
    stages=(Stage(("bikes",), (*NOISES, "independent columns"), seeds=(0, 1)),),
    halvings=2,
    classifiers=2,
    held_out=60,
    network=Network(8, 1, 1, 8),
)
"""Sizes of a test; without the generators of other packages."""
