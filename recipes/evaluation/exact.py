"""Exact likelihood of the validation text in the results of an evaluation."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ddlib.samplers import Sampler
from ddlib.samplers.likelihood import check_likelihood
from recipes.data import Batch, Prepared
from recipes.engine.parallel import World
from recipes.engine.validation import over
from recipes.metrics import Estimate, Terms, in_units, read
from recipes.model_io import LoadedModel, make_sampler


def reader(saved: LoadedModel, name: str) -> Sampler:
    """Return the order with this name and options.

    Raises:
        ValueError: no such sampler; or it defines no exact likelihood, with the reason.
    """
    order = make_sampler(saved, name, "likelihood")
    try:
        check_likelihood(saved.process, order)
    except (TypeError, ValueError) as error:
        raise ValueError(f"likelihood={name!r}: {error}") from error
    return order


def exact(
    saved: LoadedModel,
    data: Prepared,
    order: Sampler,
    steps: int | None,
    sequences: int | None,
    batch: int,
    world: World,
    length: int | None = None,
) -> dict[str, Any]:
    """Return the likelihood of the first validation sequences in its units, and the method.

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
    """
    packed, free = saved.rows != "padded", saved.rows == "free"
    count = min(sequences or len(data.validation), len(data.validation))
    ways = saved.parameterization, free
    calls: list[int] = []

    def measured(batches: Iterable[Batch]) -> Terms:
        terms, most = read(saved.process, saved.denoiser, batches, order, steps, count, packed, *ways)
        calls.append(most)
        return terms

    terms = over(data, length or saved.length, world, count, min(batch, -(-count // world.size)), measured)
    found = in_units(Estimate.of(terms.per_token, []), data, int(free))
    return {name: asdict(estimate) for name, estimate in found.items()} | {
        "protocol": {
            "order": repr(order),
            "steps": steps or "one per edge",
            "calls": max(part for own in world.gather(calls) for part in own),
            "sequences": len(terms.index),
            "tokens": int(terms.tokens.sum()),
            "padding": "none" if packed else "given",
        }
    }


def how_exact(likely: dict[str, Any]) -> str:
    """Return the note below the table."""
    setup = likely["protocol"]
    return (
        f"likelihood: exact, over {setup['sequences']:,} texts, {setup['tokens']} tokens, by {setup['order']}; "
        f"{setup['calls']} network calls per batch, padding: {setup['padding']}"
    )
