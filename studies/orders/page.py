"""Tables of the study, from its result file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from studies.page import Page, measure

Run = dict[str, Any]
CONFIDENCE, LEFT = "confidence", "left_to_right"
READ = ((CONFIDENCE, 1), (CONFIDENCE, 4), (CONFIDENCE, 16), (LEFT, 1))
"""Orders of the exact likelihood, and the edges of each network call."""


def column(order: str, group: int) -> str:
    """Return the title of a likelihood."""
    return f"{order.replace('_', ' ')}, {group} a call"


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page: bounds and likelihoods, then quality and variety of samples,
    by budget.
    """
    parts = list[Iterator[str]]()
    for millions in dict.fromkeys(run["millions"] for run in found["runs"]):
        runs = [run for run in found["runs"] if run["millions"] == millions]
        parts += [likelihood_table(runs, millions), frontier_table(runs, millions)]
    return "\n\n".join(filter(None, map("\n".join, parts)))


def likelihood_table(runs: Sequence[Run], millions: float) -> Iterator[str]:
    """Yield the lines of a budget's table: a row for each model and seed."""
    orders = [column(*one) for one in READ]
    yield f"{millions:g} million tokens, in nats per token; in brackets the difference to masks with random noise:"
    yield ""
    yield "| model | seed | bound | " + " | ".join(orders) + " |"
    yield "| --- |" + " --- |" * (2 + len(orders))
    for name in dict.fromkeys(run["process"] for run in runs):
        for run in (run for run in runs if run["process"] == name):
            values = {"bound": run["all_sources"] | {"above_masks": run["above_masks"]}} | run[
                "likelihood"
            ]
            shown = {
                order: f"{one['value']:.3f}"
                + ("" if name == "masks" else f" ({measure(one['above_masks'], '+')})")
                for order, one in values.items()
            }
            cells = [shown.get(order, "-") for order in ("bound", *orders)]
            yield f"| {name} | {run['seed']} | {' | '.join(cells)} |"


def frontier_table(runs: Sequence[Run], millions: float) -> Iterator[str]:
    """Yield the lines of a budget's table of samples."""
    cells = {(run["process"], run["seed"]): run["frontier"] for run in runs if run["frontier"]}
    if not cells:
        return
    calls = sorted({cell["budget"] for each in cells.values() for cell in each})
    yield f"Samples after {millions:g} million tokens: the judge's nats per token, the entropy of a sample's tokens:"
    yield ""
    yield "| model | seed | sampler | " + " | ".join(f"{one} calls" for one in calls) + " |"
    yield "| --- |" + " --- |" * (2 + len(calls))
    for (name, seed), each in sorted(cells.items()):
        for sampler in dict.fromkeys(cell["sampler"] for cell in each):
            by = {cell["budget"]: cell for cell in each if cell["sampler"] == sampler}
            shown = [quality(by[one]) if one in by else "-" for one in calls]
            yield f"| {name} | {seed} | {sampler} | {' | '.join(shown)} |"


def quality(cell: Mapping[str, Any]) -> str:
    """Format the quality and the variety of a cell."""
    nats, entropy = cell["nats"], cell["entropy"]
    return f"{nats['value']:.3f} ± {nats['error']:.3f}, {entropy['value']:.3f}"


PAGE = Page("studies/orders", "studies/orders/page.py", tables)
