"""The bound of the validation text, the same in training and in evaluation, on one process and on many."""

from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import islice

import ddlib as dd
from ddlib.parameterization.logits import Parameterization
from ddlib.typing import Denoiser
from recipes.config import at_once, own_times
from recipes.data import Batch, Prepared, examples
from recipes.engine.parallel import World
from recipes.metrics import Terms, measure

WINDOWS = 0
"""Seed of the windows that are cut from long documents: those of every evaluation, and of validation in training."""

NOISE = 0
"""Seed of times and noise of validation in training, whatever the recipe's; and of an evaluation that names no other.

So runs of several seeds are validated alike, and the first draw of an evaluation is the validation, text by text.
"""


def validate(
    process: dd.processes.ForwardProcess,
    denoiser: Denoiser,
    data: Prepared,
    length: int,
    world: World,
    *,
    sequences: int,
    batch: int,
    seed: int,
    replicate: int,
    density: dd.times.TimeDensity | None,
    parameterization: Parameterization,
    steps: int | None = None,
    levels: str | None = None,
    pace: dd.paces.Pace | None = None,
    alone: bool = False,
    leads: bool = False,
) -> Terms:
    """One draw of time and noise for the first validation sequences; the same terms in every process.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        data: the prepared text.
        length: tokens of a sequence.
        world: this process among others; each measures its share.
        sequences: how many; all if there are fewer.
        batch: sequences that one process takes at a time.
        seed: of times and noise.
        replicate: number of the draw; others are independent.
        density: of the times within a part of the pace; None is uniform.
        parameterization: what the logits mean.
        steps: of the bound in discrete time; None for continuous time.
        levels: how the tokens of a text share its noise, as ``ddlib.bound``; by default as ``quietest`` says.
        pace: which position when; None is all together. All blocks in one call where the network can.
        alone: see ``measure``.
        leads: see ``measure``.

    Raises:
        TypeError, ValueError: as ``shared`` and ``ddlib.bound``.
    """
    pace = dd.paces.Together() if pace is None else pace
    how = shared(process, pace, length, levels)
    blocks = at_once(pace, denoiser)

    def measured(batches: Iterable[Batch]) -> Terms:
        ways = density, steps, how, pace, blocks, alone, leads
        return measure(process, denoiser, batches, seed, replicate, parameterization, *ways)

    return over(data, length, world, sequences, batch, measured)


def check_sequences(argument: str, asked: int | None, data: Prepared) -> int:
    """The number of validation sequences that are measured, at least two.

    Args:
        argument: name of the option that limits the number, for messages.
        asked: its value; None for all sequences.
        data: the prepared text.

    Raises:
        ValueError: one sequence, whose mean has no standard error.
    """
    count = len(data.validation)
    if count < 2:
        raise ValueError(
            f"{data.folder}: holds {count} document for validation, must hold at least 2: the mean over one has no "
            "standard error. Prepare it again with more: --held-out NUMBER, or --validation FILES"
        )
    if asked is not None and asked < 2:
        raise ValueError(f"{argument}={asked}: must be at least 2, the mean over one sequence has no standard error")
    return count if asked is None else min(asked, count)


def quietest(process: dd.processes.ForwardProcess, pace: dd.paces.Pace | None = None, length: int = 1) -> str:
    """How the tokens of a text share its noise with the smallest error: balanced, where they have one time and can."""
    if pace is not None and own_times(pace, length):
        return "independent"
    try:
        process.check_levels("balanced")
    except TypeError:
        return "independent"
    return "balanced"


def shared(process: dd.processes.ForwardProcess, pace: dd.paces.Pace, length: int, levels: str | None) -> str:
    """How the tokens of a text share its noise: as ``levels`` asks for, else as ``quietest`` says.

    Raises:
        ValueError: no bound can be measured so.
    """
    how = quietest(process, pace, length) if levels is None else levels
    try:
        process.check_levels(how)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bound_{error}") from error
    if how != "independent" and own_times(pace, length):
        rule = "positions have times of their own; must be 'independent'"
        raise ValueError(f"bound_levels={how!r}: not with pace={pace!r}, whose {rule}")
    return how


def over(
    data: Prepared,
    length: int,
    world: World,
    sequences: int,
    batch: int,
    measured: Callable[[Iterable[Batch]], Terms],
) -> Terms:
    """What is ``measured`` of the first validation sequences by all processes together; the same in each."""
    wanted = min(sequences, len(data.validation))
    stream = examples(
        data.validation,
        length=length,
        pad_id=data.pad_id,
        batch_size=batch,
        seed=WINDOWS,
        rank=world.rank,
        world=world.size,
    )
    with closing(stream):
        # equally many batches everywhere: sharded weights are gathered in every pass
        own = measured(part.to(world.device) for part in islice(stream, -(-wanted // (batch * world.size))))
    return Terms.join(world.gather(own)).first(wanted)
