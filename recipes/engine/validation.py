"""Bound on the validation text, the same in training and in evaluation, on one process and on
many.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat

from jaxtyping import Float
from torch import Tensor

import ddlib as dd
from ddlib.typing import Denoiser
from recipes.config import at_once, own_times
from recipes.data import Batch, Prepared, examples
from recipes.engine.parallel import World
from recipes.metrics import Alphabets, References, Terms, measure, unigram
from recipes.metrics.bound import by_length

WINDOWS = 0
"""Seed of the windows cut from long documents, in every evaluation and in validation during
training.
"""

NOISE = 0
"""Seed of times and noise of validation in training, whatever the recipe's; and the default of an
evaluation.

So runs of several seeds have the same validation noise, and the first draw of an evaluation equals
the validation.
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
    parameterization: str | dd.Children,
    steps: int | None = None,
    levels: str | None = None,
    pace: dd.paces.Pace | None = None,
    alone: bool = False,
    leads: bool = False,
    packed: bool = False,
) -> Terms:
    """Draw time and noise once for the first validation sequences; the same terms in every process.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        data: the prepared text.
        length: tokens of a sequence.
        world: the distributed processes; each measures its part.
        sequences: number of sequences; all if there are fewer.
        batch: sequences per call on one process.
        seed: seed of times and noise.
        replicate: number of the draw; others are independent.
        density: density of the times within a part of the pace; None is uniform.
        parameterization: meaning of the logits.
        steps: steps of the bound in discrete time; None for continuous time.
        levels: coupling of the noise between tokens of a sequence, as ``ddlib.bound``; by default
            that of ``quietest``.
        pace: the schedule of positions; None: all together. All blocks in one call where the
            network supports it.
        alone: see ``measure``.
        leads: see ``measure``.
        packed: whether the network was trained on packed rows: each sequence is evaluated at its
            length, without padding.

    Raises:
        TypeError, ValueError: as in ``coupling_of``, ``check_pace`` and ``ddlib.bound``.
    """
    pace = dd.paces.Together() if pace is None else pace
    coupling = coupling_of(process, pace, length, levels)
    check_pace(pace, length, data, packed)
    blocks = at_once(pace, denoiser)
    ragged = data.ragged or packed

    def measure_batches(batches: Iterable[Batch]) -> Terms:
        if ragged:
            batches = split_by_length(batches, world)
        return measure(
            process,
            denoiser,
            batches,
            seed,
            replicate,
            parameterization,
            density,
            steps,
            coupling,
            pace,
            blocks,
            alone,
            leads,
            ragged,
        )

    return over(data, length, world, sequences, batch, measure_batches)


def references(
    data: Prepared,
    length: int,
    world: World,
    *,
    sequences: int,
    batch: int,
    given: bool = False,
) -> References:
    """Measure the models that a bound of ``validate`` is compared with, on the same tokens.

    Frequencies are those of the predicted tokens of the training sequences, or of about 20 million
    of their tokens.

    Args:
        data: the prepared text.
        length: tokens of a sequence.
        world: the distributed processes.
        sequences: number of sequences.
        batch: sequences at a time.
        given: whether the first token of a sequence is given, and not measured.
    """
    alphabets = Alphabets.of(data)
    terms = of_tokens(
        alphabets.costs(data), alphabets, data, length, world, sequences, batch, given
    )
    return References(alphabets.uniform(terms), terms.per_token.value)


def of_tokens(
    costs: Float[Tensor, "F V"],
    alphabets: Alphabets,
    data: Prepared,
    length: int,
    world: World,
    sequences: int,
    batch: int,
    given: bool = False,
) -> Terms:
    """Sum the costs of the tokens of validation sequences; other arguments as ``references``."""
    measure_batches = partial(unigram, costs, alphabets.of_position, given=given)
    return over(data, length, world, sequences, batch, measure_batches)


def check_sequences(argument: str, value: int | None, data: Prepared, processes: int = 1) -> int:
    """Return the number of validation sequences that are measured, at least two.

    Args:
        argument: name of the option that limits the number, for messages.
        value: its value; None for all sequences.
        data: the prepared text.
        processes: number of processes, each of which measures some.

    Raises:
        ValueError: one sequence, whose mean has no standard error; fewer documents than processes.
    """
    count = len(data.validation)
    if count < 2:
        raise ValueError(
            f"{data.folder}: holds {count} document for validation, must hold at least 2: the mean "
            "over one has no "
            "standard error. Prepare it again with more: --held-out NUMBER, or --validation FILES"
        )
    if count < processes:
        raise ValueError(
            f"{data.folder}: holds {count} documents for validation, must hold at least "
            f"{processes}, one for each "
            "process. Prepare it again with more: --held-out NUMBER, or --validation FILES; or "
            "start fewer processes"
        )
    if value is not None and value < 2:
        raise ValueError(
            f"{argument}={value}: must be at least 2, the mean over one sequence has no standard "
            "error"
        )
    return count if value is None else min(value, count)


def quietest(
    process: dd.processes.ForwardProcess, pace: dd.paces.Pace | None = None, length: int = 1
) -> str:
    """Return the noise coupling with the smallest error: balanced, if supported and tokens share
    one time.
    """
    if pace is not None and own_times(pace, length):
        return "independent"
    try:
        process.check_levels("balanced")
    except TypeError:
        return "independent"
    return "balanced"


def coupling_of(
    process: dd.processes.ForwardProcess, pace: dd.paces.Pace, length: int, levels: str | None
) -> str:
    """Return the noise coupling of the tokens of a sequence: ``levels`` if given, else that of
    ``quietest``.

    Raises:
        ValueError: the bound does not support it.
    """
    coupling = quietest(process, pace, length) if levels is None else levels
    try:
        process.check_levels(coupling)
    except (TypeError, ValueError) as error:
        raise ValueError(f"bound_{error}") from error
    if coupling != "independent" and own_times(pace, length):
        rule = "positions have separate times; must be 'independent'"
        raise ValueError(f"bound_levels={coupling!r}: not with pace={pace!r}, whose {rule}")
    return coupling


def check_pace(pace: dd.paces.Pace, length: int, data: Prepared, packed: bool) -> None:
    """Raise ValueError for separate times of positions where sequences are evaluated at their
    lengths; arguments as ``validate``.
    """
    if (data.ragged or packed) and own_times(pace, length):
        rows = "packed rows" if packed else "sequences"
        raise ValueError(
            f"pace={pace!r}: not with the {rows} of {data.folder}, which have different lengths "
            "and no padding"
        )


def split_by_length(batches: Iterable[Batch], world: World) -> Iterator[Batch]:
    """Yield the sequences of each batch without their padding, equally long ones together.

    A process with fewer lengths than another repeats the last: sharded weights are gathered in
    every pass, so all processes must make as many.
    """
    for batch in batches:
        parts = list(by_length(batch, given=False))
        passes = max(world.gather(len(parts)))
        yield from islice(chain(parts, repeat(parts[-1])), passes)


def over(
    data: Prepared,
    length: int,
    world: World,
    sequences: int,
    batch: int,
    measure_batches: Callable[[Iterable[Batch]], Terms],
) -> Terms:
    """Distribute the first validation sequences over all processes and join the results of
    ``measure_batches`` in each.
    """
    count = min(sequences, len(data.validation))
    stream = examples(
        data.validation,
        length=length,
        pad_id=data.fill_id,
        batch_size=batch,
        seed=WINDOWS,
        rank=world.rank,
        world=world.size,
    )
    with closing(stream):
        # equal numbers of batches everywhere: sharded weights are gathered in every pass
        share = measure_batches(
            part.to(world.device) for part in islice(stream, -(-count // (batch * world.size)))
        )
    return Terms.join(world.gather(share)).first(count)
