"""Tables and pictures of the study, each cell with what is measured or "not yet run"."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from studies.synthetic_tables.settings import EPOCHS, NOISES, SEEDS, key_of, planned
from studies.tables import MISSING, interval, table

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "studies" / "synthetic_tables.md"
IMAGES = DOCS / "images"
BEGIN = "<!-- tables: python -m studies.synthetic_tables.run -->"
MEASURES: Mapping[str, tuple[str, int]] = {
    "marginals": ("marginals", 3),
    "worst_marginal": ("worst marginal", 3),
    "pairs": ("pairs", 3),
    "associations": ("Cramér's V", 3),
    "accuracy": ("accuracy", 3),
    "classifier_bits": ("classifier, bits", 3),
    "closest": ("closest record", 4),
    "copies": ("copies", 4),
}
"""Measures of the result file: heading and digits."""
SHOWN = ("masks", "CTGAN", EPOCHS, "Gaussian copula", "independent columns")
"""Generators in the pictures."""

Result = Mapping[str, Any]


def of_seeds(result: Result, name: str, arm: str) -> dict[int, Result]:
    """Return the runs of a generator by seed."""
    runs = result.get("runs", {})
    keys = {seed: key_of(name, arm, seed) for seed in SEEDS}
    return {seed: runs[key] for seed, key in keys.items() if key in runs}


def measured_table(result: Result, name: str) -> str:
    """Return the table of all measures of the generators of one table."""
    rows = []
    for arm in planned(name):
        runs = [*of_seeds(result, name, arm).values()]
        cells = [
            interval([run[key]["value"] for run in runs], digits)
            for key, (_, digits) in MEASURES.items()
        ]
        rows.append([arm, *cells])
    least = result["floors"][name]
    rows.append(
        [
            "**floor**: held-out rows",
            *(
                f"{least[key]['value']:.{digits}f} ± {least[key]['error']:.{digits}f}"
                for key, (_, digits) in MEASURES.items()
            ),
        ]
    )
    return table(["generator", *(heading for heading, _ in MEASURES.values())], rows)


def bits_table(result: Result) -> str:
    """Return the table of bits per row, and of what was spent."""
    rows = []
    for name in result.get("tables", {}):
        for arm in planned(name):
            runs = [*of_seeds(result, name, arm).values()]
            bits = MISSING if not runs else "none"
            if runs and runs[0]["bits"] is not None:
                bits = interval([run["bits"]["value"] for run in runs], 3)
            rows.append([name, arm, bits, *_spent(runs)])
    return table(["table", "generator", "bits per row", "seconds", "steps or epochs"], rows)


def _spent(runs: Sequence[Result]) -> Sequence[str]:
    facts = [run["facts"] for run in runs]
    if not facts:
        return [MISSING] * 2
    turns = [fact.get("epochs", fact.get("steps")) for fact in facts]
    number = "" if None in turns else f"{mean(turns):.0f}"
    return [f"{mean(fact['seconds'] for fact in facts):.1f}", number]


def process_table(result: Result) -> str:
    """Return the differences of the composed processes to masks, between runs of one seed."""
    rows = []
    for name in result.get("tables", {}):
        masks = of_seeds(result, name, "masks")
        for arm in NOISES[1:]:
            runs = of_seeds(result, name, arm)
            seeds = [seed for seed in runs if seed in masks]
            bits = [runs[seed]["bits"]["value"] - masks[seed]["bits"]["value"] for seed in seeds]
            cells = [
                interval(
                    [runs[seed][key]["value"] - masks[seed][key]["value"] for seed in seeds], 4, "+"
                )
                for key in ("marginals", "pairs", "accuracy", "closest")
            ]
            rows.append([name, arm, interval(bits, 3, "+"), *cells])
    heading = ["table", "minus masks", "bits per row", "marginals", "pairs", "accuracy"]
    return table([*heading, "closest record"], rows)


def columns_table(result: Result) -> str:
    """Return the bits of each column."""
    rows = []
    for name, facts in result.get("tables", {}).items():
        parts = {}
        for arm in (*NOISES, "independent columns"):
            runs = of_seeds(result, name, arm).values()
            parts[arm] = np.mean([run["bits"]["columns"] for run in runs], 0) if runs else None
        for i, column in enumerate(facts["names"]):
            kind = "ordered" if facts["ordered"][i] else "category"
            cells = [MISSING if part is None else f"{part[i]:.2f}" for part in parts.values()]
            rows.append([name, column, f"{kind}, {facts['sizes'][i]}", *cells])
    return table(["table", "column", "codes", *NOISES, "independent columns"], rows)


def tables(result: Result) -> str:
    """Return all tables."""
    parts = []
    for name, facts in result.get("tables", {}).items():
        title = (
            f"**{name}**: {facts['training']:,} training rows, {facts['held_out']:,} held out, "
            f"{len(facts['names'])} columns; ± is the 95 % interval over seeds, of the "
            "floor the deviation over halves."
        )
        parts += [title, measured_table(result, name)]
    parts += ["Composed processes minus masks, between runs of one seed, likewise."]
    parts += [process_table(result)]
    parts += ["Bits per row, and what was spent.", bits_table(result)]
    parts += ["Bits of each column, mean of the seeds.", columns_table(result)]
    return "\n\n".join(parts)


def draw(result: Result, folder: Path) -> None:
    """Draw marginals and associations of the first seed of each table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, facts in result.get("tables", {}).items():
        runs = {arm: result["runs"].get(key_of(name, arm, SEEDS[0])) for arm in SHOWN}
        present = {arm: run for arm, run in runs.items() if run is not None}
        if not present:
            continue
        sets = {"held-out rows": result["floors"][name]} | present
        _marginals(facts, sets, folder / f"synthetic_tables_{name}_marginals.png")
        _associations(facts, sets, folder / f"synthetic_tables_{name}_associations.png")


def _marginals(facts: Result, sets: Mapping[str, Result], path: Path) -> None:
    """Draw the share of each code: a row of panels a generator, the data as a grey area."""
    from matplotlib.figure import Figure

    drawn = {arm: run for arm, run in sets.items() if arm != "held-out rows"}
    width = len(facts["names"])
    figure = Figure(figsize=(1.25 * width + 1.2, 1.25 * len(drawn) + 0.5), dpi=110)
    panels = figure.subplots(len(drawn), width, squeeze=False)
    for row, (arm, run) in zip(panels, drawn.items(), strict=True):
        for i, panel in enumerate(row):
            data = sets["held-out rows"]["shares"][i]
            panel.stairs(data, fill=True, color="0.8")
            panel.stairs(run["shares"][i], color="C0", linewidth=1)
            panel.set_ylim(0, 1.15 * max(*data, *run["shares"][i]))
            panel.set_xticks([])
            panel.set_yticks([])
            for side in ("top", "left", "right"):
                panel.spines[side].set_visible(False)
        row[0].set_ylabel(arm.replace(" ", "\n"), rotation=0, ha="right", va="center", fontsize=9)
    for panel, column in zip(panels[0], facts["names"], strict=True):
        panel.set_title(column, fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


def _associations(facts: Result, sets: Mapping[str, Result], path: Path) -> None:
    """Draw Cramér's V of all pairs, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 * len(sets) + 1.6, 3.4), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    names = facts["names"]
    for panel, (arm, run) in zip(panels, sets.items(), strict=True):
        image = panel.imshow(run["cramers_v"], vmin=0, vmax=1, cmap="viridis")
        panel.set_title(arm, fontsize=10)
        panel.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        panel.set_yticks([])
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    figure.colorbar(image, ax=panels, shrink=0.7, label="Cramér's V")
    figure.savefig(path)
