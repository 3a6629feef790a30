"""Exact likelihood of the validation text in the results of an evaluation."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ddlib.paces import Pace
from ddlib.samplers import Sampler
from recipes.data import Batch, Prepared
from recipes.engine.parallel import World
from recipes.engine.validation import over
from recipes.metrics import Estimate, Terms, in_units, read
from recipes.model_io import LoadedModel, blocks_of, check_sampler

COSTS = ("drawing_in_parallel", "order")
"""Names of the costs of an order in the results, see ``ddlib.contrib.OrderCosts``."""


HOW = (
    "drawing_in_parallel: extra nats per token over the same order with one position at a time; "
    "order: extra nats per "
    "token of that order over left to right; ± of the differences over sequences"
)
"""Explanation of the costs."""


def check_order(name: str | None, steps: int | None, group: int | None) -> None:
    """Check the options of a likelihood, but for what depends on the model.

    Raises:
        ValueError: no such sampler; steps or a group and no order, or both.
    """
    if name is not None:
        check_sampler(name, "likelihood")
    for option, value in (("likelihood_steps", steps), ("likelihood_group", group)):
        if name is None and value is not None:
            raise ValueError(f"{option}={value}: requires an order, given by likelihood")
    if steps is not None and group is not None:
        raise ValueError(f"likelihood_group={group}: not with likelihood_steps={steps}")


def exact(
    saved: LoadedModel,
    data: Prepared,
    order: Sampler,
    steps: int | None,
    sequences: int | None,
    batch: int,
    world: World,
    length: int | None = None,
    group: int | None = None,
    pace: Pace | None = None,
) -> dict[str, Any]:
    """Return the likelihood of the first validation sequences in its units, and the method.

    With a group also ``drawing_in_parallel`` and ``order``, what these cost in nats per token:
    differences of the same sequences, with the standard error of the difference.

    Padding is given, as in infilling; a network that was trained on packed rows gets none.

    Args:
        saved: the model.
        data: the prepared text.
        order: the order of positions.
        steps: maximum number of network calls of a sequence; None for one per edge.
        sequences: number of sequences; None for all.
        batch: sequences per call on one process.
        world: the distributed processes.
        length: tokens of a sequence; by default the model's.
        group: edges per call, in place of ``steps``.
        pace: the pace of the model; its blocks are drawn one after the other.
    """
    blocks = blocks_of(saved, pace)
    packed = saved.rows != "padded"
    free = saved.rows == "free"
    count = min(sequences or len(data.validation), len(data.validation))
    ways = saved.parameterization, free
    calls: list[int] = []

    def measure_batches(batches: Iterable[Batch]) -> Terms:
        terms, most = read(
            saved.process,
            saved.denoiser,
            batches,
            order,
            steps,
            count,
            packed,
            *ways,
            group,
            blocks,
        )
        calls.append(most)
        return terms

    terms = over(
        data,
        length or saved.length,
        world,
        count,
        min(batch, -(-count // world.size)),
        measure_batches,
    )
    units = in_units(Estimate.of(terms.term(0), []), data, int(free))
    if group is not None:
        for number, name in enumerate(COSTS, start=1):
            units[name] = Estimate.of(terms.term(number), [])
    return {name: asdict(estimate) for name, estimate in units.items()} | {
        "protocol": {
            "order": repr(order),
            "steps": steps or ("one per edge" if group is None else f"one per {group} edges"),
            "pace": "none" if blocks is None else repr(blocks),
            "calls": max(call for ranks in world.gather(calls) for call in ranks),
            "sequences": len(terms.index),
            "tokens": int(terms.tokens.sum()),
            "padding": "none" if packed else "given",
            **({} if group is None else {"costs": HOW}),
        }
    }


def how_exact(likely: dict[str, Any]) -> str:
    """Return the note below the table."""
    setup = likely["protocol"]
    blocks = "" if setup["pace"] == "none" else f" in each block of {setup['pace']}"
    costs = f"; costs: {setup['costs']}" if "costs" in setup else ""
    return (
        f"likelihood: exact, over {setup['sequences']:,} sequences, {setup['tokens']} tokens, "
        f"by {setup['order']}{blocks}; "
        f"{setup['calls']} network calls per batch, padding: {setup['padding']}{costs}"
    )
