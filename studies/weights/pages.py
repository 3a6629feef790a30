"""Tables of docs/studies/weights.md."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from recipes.hdlm_tables import FORCED
from studies.page import page
from studies.tables import END, MISSING, interval, table
from studies.weights.arms import (
    NOISY,
    RATE,
    TUNED,
    UNTUNED,
    Sizes,
    Tuning,
    chosen,
    chosen_weights,
)
from studies.weights.measurement import Cell

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "weights.md"
BEGIN = "<!-- tables: python -m studies.weights.run pages -->"
TEXTS = {
    "test": "test text",
    "sealed": "sealed",
    "moby_dick": "Moby Dick",
    "faq": "Anarchist FAQ",
}
MASKS = "masks"
EDGES = "HDLM-64, all edges"
COMPARED = {
    MASKS: [*TUNED, *UNTUNED][1:],
    EDGES: ["HDLM-64", *UNTUNED],
}
"""Processes whose differences to a base, the key, are shown."""
EQUAL = 0.02
"""Distance in nats up to which a cell's entropy may lie outside those of masks."""
Result = Mapping[str, Any]


def page_of(path: Path, result: Result, sizes: Sizes) -> str:
    """Return the page with the tables of a result."""
    return page(path.read_text(encoding="utf-8"), tables(result, sizes), BEGIN, END)


def tables(result: Result, sizes: Sizes) -> str:
    """Return all tables; a cell that is not measured yet says so."""
    parts = [
        f"**Weights**: bound of the search text in nats per token, {sizes.searched:g} million "
        f"tokens, learning rate {RATE:g}, one seed; **the lowest** is chosen, ± is over documents.",
        table(["process", *sizes.weights], [grid_row(result, sizes, process) for process in TUNED]),
        "**Learning rates** with the chosen weights:",
        table(
            ["process", "weights", *(f"{rate:g}" for rate in all_rates(sizes))],
            [rates_row(result, sizes, process) for process in TUNED],
        ),
        f"**Bounds** at {sizes.budget:g} million tokens, nats per token, mean of the seeds:",
        table(
            ["process", "weights, rate", *TEXTS.values()],
            [bounds_row(result, sizes, process, "bound") for process in (*TUNED, *UNTUNED)],
        ),
        "**Exact likelihoods** from left to right, nats per token, mean of the seeds:",
        table(
            ["process", "weights, rate", *list(TEXTS.values())[1:]],
            [bounds_row(result, sizes, process, "chain") for process in (*TUNED, *UNTUNED)],
        ),
        "**Differences** between runs of one seed, mean over the seeds; ± is the half-width of the "
        "95 % t interval over seeds:",
        table(
            ["processes", "number", *TEXTS.values()],
            [
                gaps_row(result, sizes, process, base, kind)
                for base, processes in COMPARED.items()
                for process in processes
                for kind in ("bound", "chain")
            ],
        ),
        *samples_tables(result, sizes),
    ]
    return "\n\n".join(parts)


def grid_row(result: Result, sizes: Sizes, process: str) -> list[str]:
    """Return the bounds of a process with all weights."""
    best = chosen_weights(result, process, sizes)
    tunings = [Tuning(weights, RATE) for weights in sizes.weights]
    shown = [searched(result, process, one, one.weights == best) for one in tunings]
    return [process, *shown]


def rates_row(result: Result, sizes: Sizes, process: str) -> list[str]:
    """Return the bounds of a process with all learning rates."""
    weights = chosen_weights(result, process, sizes)
    if weights is None:
        return [process, *[MISSING] * (1 + len(all_rates(sizes)))]
    best = chosen(result, process, sizes)
    planned = {*sizes.rates, *sizes.further.get(process, ())}
    tunings = [Tuning(weights, rate) for rate in all_rates(sizes)]
    shown = [
        searched(result, process, one, one == best) if one.rate in planned else "-"
        for one in tunings
    ]
    return [process, weights, *shown]


def all_rates(sizes: Sizes) -> list[float]:
    """Return the learning rates that the search has for some process, in ascending order."""
    return sorted({*sizes.rates, *itertools.chain(*sizes.further.values())})


def searched(result: Result, process: str, tuning: Tuning, best: bool) -> str:
    """Return the bound of a run of the search, in bold if it is chosen."""
    run = result["search"].get(process, {}).get(tuning.name)
    if run is None:
        return MISSING
    bound = run["bound"]
    text = f"{bound['value']:.4f} ± {bound['standard_error']:.4f}"
    return f"**{text}**" if best else text


def value(result: Result, process: str, seed: int, text: str, kind: str) -> float | None:
    """Return the bound or the exact likelihood of a text, None where it is not measured."""
    run = result["compared"].get(f"{process}, {seed}")
    if run is None:
        return None
    measured = run["texts"][text]
    return (measured["bound"] if kind == "bound" else measured["chain"]["nats_per_token"])["value"]


def bounds_row(result: Result, sizes: Sizes, process: str, kind: str) -> list[str]:
    """Return the means over seeds of a process."""
    tuning = chosen(result, process, sizes)
    shown = []
    for text in TEXTS:
        if (text, kind) == ("test", "chain"):
            continue
        values = [value(result, process, seed, text, kind) for seed in sizes.seeds]
        shown.append(mean_of(values))
    return [process, MISSING if tuning is None else tuning.name, *shown]


def mean_of(values: Sequence[float | None]) -> str:
    """Return the mean of the measured values, with their number while some are missing."""
    measured = [one for one in values if one is not None]
    if not measured:
        return MISSING
    return f"{statistics.mean(measured):.4f}{of_seeds(measured, values)}"


def of_seeds(measured: Sequence[float], planned: Sequence[object]) -> str:
    """Return the number of measured seeds as text while some are missing."""
    if len(measured) in (0, len(planned)):
        return ""
    return f" ({len(measured)} of {len(planned)} seeds)"


def gaps_row(result: Result, sizes: Sizes, process: str, base: str, kind: str) -> list[str]:
    """Return the differences between a process and a base with their t intervals."""
    shown = []
    for text in TEXTS:
        if (text, kind) == ("test", "chain"):
            shown.append("-")
            continue
        pairs = [
            (value(result, process, seed, text, kind), value(result, base, seed, text, kind))
            for seed in sizes.seeds
        ]
        gaps = [one - other for one, other in pairs if one is not None and other is not None]
        missing = of_seeds(gaps, sizes.seeds) if len(gaps) > 1 else ""
        shown.append(interval(gaps, 4, "+") + missing)
    return [f"{process} less {base}", kind, *shown]


def samples_tables(result: Result, sizes: Sizes) -> list[str]:
    """Return the tables of the xi arm, one for each judge."""
    cells = result["cells"]
    judges = sorted({judge for cell in cells.values() for judge in cell["judged"]}) or ["corpus"]
    parts = []
    for judge in judges:
        name = "the autoregressive network" if judge == "corpus" else judge
        count = sizes.samples if judge == "corpus" else sizes.rescored
        parts += [
            f"**Samples**, {count} a cell and seed, judged by {name}: nats per token, "
            "entropy of a sample's tokens, share of distinct 2-grams.",
            table(
                ["network", "sampler", "temperature", *(f"{calls} calls" for calls in sizes.calls)],
                [sampled_row(result, sizes, judge, *row) for row in sampled(sizes)],
            ),
            "**At equal entropy**: nats above masks with at most as many calls, whose temperatures "
            f"are interpolated linearly; up to {EQUAL:g} beyond their entropies the last one "
            "counts. ± is half the distance between the two seeds; -: beyond that in one seed or "
            "both.",
            table(
                ["network", "sampler", "temperature", *(f"{calls} calls" for calls in sizes.calls)],
                [
                    equal_row(result, sizes, judge, *row)
                    for row in sampled(sizes)
                    if row[0] != MASKS
                ],
            ),
        ]
    return [*parts, *(agreement(cells, *pair) for pair in itertools.combinations(judges, 2))]


def agreement(cells: Mapping[str, Any], first: str, second: str) -> str:
    """Return the rank correlation of the nats of all cells that both judges scored."""
    measured = [
        [(cell["judged"].get(judge) or {}).get("nats") for judge in (first, second)]
        for cell in cells.values()
    ]
    both = [(one["value"], other["value"]) for one, other in measured if one and other]
    correlation = spearmanr(both).statistic
    return (
        f"**Agreement of the judges**: Spearman's rank correlation of the nats of {len(both)} "
        f"cells is {correlation:.3f}."
    )


def sampled(sizes: Sizes) -> list[tuple[str, str, float]]:
    """Return network, sampler and temperature of the rows of the tables of samples."""
    rows = [(MASKS, "ancestral", one) for one in sizes.mask_temperatures]
    for network in ("HDLM-64", *sizes.noisy):
        for sampler in ("ancestral", FORCED) if network in NOISY else ("ancestral",):
            rows += [(network, sampler, one) for one in sizes.temperatures]
    return rows


def _shown(sampler: str) -> str:
    return "forced" if sampler == FORCED else sampler


def sampled_row(
    result: Result, sizes: Sizes, judge: str, network: str, sampler: str, temperature: float
) -> list[str]:
    """Return quality and variety of the samples of a row, means over the seeds."""
    shown = []
    for calls in sizes.calls:
        cells = cells_of(result, sizes, judge, network, sampler, temperature, calls)
        if cells is None:
            shown.append(MISSING)
            continue
        nats = statistics.mean(cell["nats"]["value"] for cell in cells)
        entropy = statistics.mean(cell["entropy"]["value"] for cell in cells)
        distinct = statistics.mean(cell["distinct"]["2"] for cell in cells)
        shown.append(f"{nats:.3f}, {entropy:.3f}, {distinct:.2f}")
    return [network, _shown(sampler), f"{temperature:g}", *shown]


def cells_of(
    result: Result,
    sizes: Sizes,
    judge: str,
    network: str,
    sampler: str,
    temperature: float,
    calls: int,
) -> list[Any] | None:
    """Return what a judge measured of the cells of all seeds, None while one is missing or has no
    such tokens.
    """
    found = []
    for seed in sizes.noisy_seeds:
        cell = result["cells"].get(Cell(network, seed, sampler, calls, temperature).name)
        measured = None if cell is None else cell["judged"].get(judge)
        if measured is None or None in measured.values():
            return None
        found.append(measured)
    return found


def equal_row(
    result: Result, sizes: Sizes, judge: str, network: str, sampler: str, temperature: float
) -> list[str]:
    """Return the nats of a row above those of masks with the same entropy, means over the seeds."""
    shown = []
    for calls in sizes.calls:
        cells = cells_of(result, sizes, judge, network, sampler, temperature, calls)
        curves = [
            cells_of(result, sizes, judge, MASKS, "ancestral", one, calls)
            for one in sizes.mask_temperatures
        ]
        if cells is None or None in curves:
            shown.append(MISSING)
            continue
        gaps = []
        for place, cell in enumerate(cells):
            points = [
                (curve[place]["entropy"]["value"], curve[place]["nats"]["value"])
                for curve in curves
                if curve is not None
            ]
            masks = interpolated(points, cell["entropy"]["value"])
            gaps.append(cell["nats"]["value"] - masks)
        mean = statistics.mean(gaps)
        spread = (max(gaps) - min(gaps)) / 2
        shown.append("-" if math.isnan(mean) else f"{mean:+.3f} ± {spread:.3f}")
    return [network, _shown(sampler), f"{temperature:g}", *shown]


def interpolated(points: Sequence[tuple[float, float]], place: float) -> float:
    """Interpolate linearly between sorted points; NaN farther than ``EQUAL`` outside of them."""
    ordered = sorted(points)
    if not ordered[0][0] - EQUAL <= place <= ordered[-1][0] + EQUAL:
        return math.nan
    if place <= ordered[0][0]:
        return ordered[0][1]
    for (low, first), (high, second) in itertools.pairwise(ordered):
        if place <= high:
            return first + (second - first) * (place - low) / (high - low)
    return ordered[-1][1]
