"""Tables of the study, from its result file."""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.page import Page


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page: bounds, and the texts' quality and variety by calls of the
    network.
    """
    columns = list(dict.fromkeys((run["millions"], run["seed"]) for run in found["runs"]))
    names = list(dict.fromkeys(run["process"] for run in found["runs"]))
    by = {(run["process"], run["millions"], run["seed"]): run for run in found["runs"]}
    head = " | ".join(f"{millions} million, seed {seed}" for millions, seed in columns)
    lines = [
        "Bound in nats per token, and the difference to masks with its standard error over "
        "documents:",
        "",
        f"| model | {head} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in names:
        cells = []
        for column in columns:
            run = by.get((name, *column))
            if run is None:
                cells.append("-")
                continue
            less, bound = run["above_masks"], run["all_sources"]["value"]
            difference = (
                f" ({less['value']:+.4f} ± {less['standard_error']:.4f})" if name != "masks" else ""
            )
            cells.append(f"{bound:.4f}{difference}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if found["cells"]:
        lines += ["", *drawn_table(found, names)]
    return "\n".join(lines)


def drawn_table(found: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the table of the texts' quality and variety, the mean over the seeds."""
    cells = found["cells"]
    steps, millions = (
        sorted({cell["cell"]["steps"] for cell in cells}),
        cells[0]["cell"]["millions"],
    )
    lines = [
        f"Texts of the models of {millions:g} million tokens, {found['texts']} for each seed: nats "
        "per token of the "
        "judge, and the entropy of a text's tokens in nats, by steps of `Ancestral`:",
        "",
        "| model | " + " | ".join(f"{calls} calls" for calls in steps) + " |",
        "| --- |" + " --- |" * len(steps),
    ]
    for name in names:
        shown = []
        for calls in steps:
            every = [
                c for c in cells if c["cell"]["process"] == name and c["cell"]["steps"] == calls
            ]
            nats = [c["nats"]["value"] for c in every]
            error = sum(c["nats"]["error"] ** 2 for c in every) ** 0.5 / max(len(every), 1)
            entropy = sum(c["entropy"]["value"] for c in every) / max(len(every), 1)
            shown.append(
                f"{sum(nats) / len(nats):.3f} ± {error:.3f}, {entropy:.3f}" if every else "-"
            )
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


PAGE = Page("studies/scales", "studies/scales/page.py", tables)
