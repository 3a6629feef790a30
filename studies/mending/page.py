"""Table of the study, from its result file."""

from typing import Any

from studies.page import Page

WAYS = ("as drawn", "self-correction", "Gibbs")
"""Ways to draw samples, in the order of the table."""
KEYS = ("nats", "entropy")


def tables(results: dict[str, Any]) -> str:
    """Return the page's table: a row for every way, each seed, and held-out text."""

    def cells(name: str, found: list[dict[str, Any]], calls: str) -> str:
        values = (
            ", ".join(f"{one[key]['value']:.3f} ± {one[key]['error']:.3f}" for one in found)
            for key in KEYS
        )
        return f"| {name} | {' | '.join(values)} | {calls} |"

    lines = [
        "| texts | judge, nats per token, each seed | entropy, nats, each seed | calls |",
        "| --- |" + " --- |" * 3,
    ]
    for way in WAYS:
        found = [cell for cell in results["cells"] if cell["cell"]["way"] == way]
        lines.append(cells(way, found, ", ".join(f"{cell['calls']:.0f}" for cell in found)))
    return "\n".join([*lines, cells("held out", results["held-out"][:1], "-")])


PAGE = Page("studies/mending", "studies/mending/page.py", tables)
