"""Tables of the study of output layers, each row with what is measured or "not yet run"."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from studies.heads.models import ADAPTIVE, AR, FLAT, HDLM, MASKS, Arm
from studies.heads.sizes import Sizes
from studies.heads.text import TREES
from studies.tables import MISSING, interval, table

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "heads.md"
BEGIN = "<!-- tables: python -m studies.heads.run WORK -->"
PROCESSES = (MASKS, AR, HDLM)
HEADS = (FLAT, ADAPTIVE, *TREES)
MARKS = {"steps": "equal steps", "flops": "equal FLOPs", "seconds": "equal seconds"}

Entry = Mapping[str, Any]
Value = Callable[[Entry], float]
Found = Mapping[Arm, Mapping[int, Entry]]
"""Runs by arm and seed."""


def runs_of(result: Entry) -> Found:
    """Return the runs of the comparison by arm and seed."""
    found: dict[Arm, dict[int, Entry]] = {}
    for name, run in result.get("runs", {}).items():
        process, head, _, seed = name.split(" | ")
        found.setdefault(Arm(process, head), {})[int(seed)] = run
    return found


def paired(found: Found, one: Arm, other: Arm, value: Value) -> list[float]:
    """Return the differences of two arms, a value for each seed that both have."""
    runs = found.get(one, {})
    others = found.get(other, {})
    return [value(runs[seed]) - value(others[seed]) for seed in sorted(runs) if seed in others]


def at(mark: str) -> Value:
    """Return the function of a run that is its mean over windows at a mark."""

    def value(run: Entry) -> float:
        return mean(run["marks"][mark]["sources"].values())

    return value


def in_class(place: int) -> Value:
    """Return the function of a run that is its mean over tokens of a class at equal steps.

    0 if the held-out windows have no such token.
    """

    def value(run: Entry) -> float:
        nats, tokens = (part[place] for part in run["marks"]["steps"]["bins"])
        return nats / max(tokens, 1)

    return value


def part_of(place: int) -> Value:
    """Return the function of a run that is the part of a class in its mean over all tokens at equal
    steps.
    """

    def value(run: Entry) -> float:
        nats, tokens = run["marks"]["steps"]["bins"]
        return nats[place] / sum(tokens)

    return value


def classes(sizes: Sizes) -> list[str]:
    """Return the ranks of each class of tokens, the most frequent first."""
    ends = [0, *sizes.bins, sizes.words]
    return [f"{low:,} to {high - 1:,}" for low, high in pairwise(ends)]


def arms(process: str) -> Iterator[Arm]:
    """Yield the arms of a process, the layer over tokens first."""
    for head in HEADS:
        if (process, head) != (HDLM, ADAPTIVE):
            yield Arm(process, head)


def tables(result: Entry, sizes: Sizes) -> str:
    """Return all tables."""
    found = runs_of(result)
    parts = (
        _costs(result),
        _rates(result, sizes),
        _bounds(found, sizes),
        _sealed(result),
        _trees(found),
        _classes(found, sizes),
        _curve(found, sizes),
    )
    return "\n\n".join(parts)


def _costs(result: Entry) -> str:
    rows = []
    for process in PROCESSES:
        for arm in arms(process):
            cost = result.get("costs", {}).get(arm.name)
            shown = [f"{cost['seconds']:.3f}", f"{cost['flops'] / 1e9:.1f}"] if cost else []
            rows.append([process, arm.head, *(shown or [MISSING, MISSING])])
    heading = ["process", "layer", "seconds", "GFLOP"]
    return "**Cost of a training step.**\n\n" + table(heading, rows)


def _rates(result: Entry, sizes: Sizes) -> str:
    searched: dict[tuple[str, float], Entry] = {}
    for name, run in result.get("search", {}).items():
        _, head, factor, _ = name.split(" | ")
        searched[head, float(factor)] = run

    def cell(head: str, factor: float) -> str:
        run = searched.get((head, factor))
        if run is None:
            return MISSING if factor in sizes.factors else "-"
        return f"{at('steps')(run):.4f}"

    factors = sorted({*sizes.factors, *(factor for _, factor in searched)})
    rows = [[head, *(cell(head, factor) for factor in factors)] for head in HEADS]
    title = (
        "**Search of the learning rate**, masks, windows of the search, nats per token. Where the "
        "best rate of a layer was the first or last, the next one was run too."
    )
    heading = ["layer", *(f"{0.003 * factor:g}" for factor in factors)]
    return f"{title}\n\n" + table(heading, rows)


def _bounds(found: Found, sizes: Sizes) -> str:
    rows = []
    for process in PROCESSES:
        flat = Arm(process, FLAT)
        for arm in arms(process):
            seeds = [f"{at('steps')(run):.4f}" for _, run in sorted(found.get(arm, {}).items())]
            row = [process, arm.head, ", ".join(seeds) or MISSING]
            for mark in MARKS:
                values = paired(found, arm, flat, at(mark))
                row.append("-" if arm == flat else interval(values, 4, "+"))
            rows.append(row)
    title = (
        f"**Nats per token** of each seed after {sizes.steps:,} steps, and the difference from the "
        "layer over tokens: mean and half-width of the 95 % t interval over seeds. Equal FLOPs and "
        f"seconds are those of {sizes.compute_steps:,} steps of the layer over tokens."
    )
    return f"{title}\n\n" + table(["process", "layer", "nats", *MARKS.values()], rows)


def _sealed(result: Entry) -> str:
    """Return the table of the sealed text, whose runs have a single mark."""
    sealed = {name: {"marks": {"steps": one}} for name, one in result.get("sealed", {}).items()}
    found = runs_of({"runs": sealed})
    rows = []
    for process in PROCESSES:
        flat = Arm(process, FLAT)
        for arm in arms(process):
            seeds = [f"{at('steps')(run):.4f}" for _, run in sorted(found.get(arm, {}).items())]
            values = paired(found, arm, flat, at("steps"))
            less = "-" if arm == flat else interval(values, 4, "+")
            rows.append([process, arm.head, ", ".join(seeds) or MISSING, less])
    title = "**Sealed text**, equal steps, as above."
    return f"{title}\n\n" + table(["process", "layer", "nats", "less tokens"], rows)


def _trees(found: Found) -> str:
    pairs = [
        (Arm(process, "semantic"), Arm(process, other))
        for process in PROCESSES
        for other in ("random", "frequency", ADAPTIVE)
        if (process, other) != (HDLM, ADAPTIVE)
    ]
    pairs += [(Arm(HDLM, head), Arm(MASKS, head)) for head in (FLAT, *TREES)]
    rows = [
        [
            f"{one.process}, {one.head} less {other.process}, {other.head}",
            interval(paired(found, one, other, at("steps")), 4, "+"),
        ]
        for one, other in pairs
    ]
    title = "**Between layers and processes**, equal steps, as above."
    return f"{title}\n\n" + table(["difference", "nats per token"], rows)


def _classes(found: Found, sizes: Sizes) -> str:
    names = classes(sizes)
    heading = ["process", "layer", *names]
    title = (
        "**By rank of the token** in the training text: difference from the layer over tokens at "
        "equal steps, nats per token of the class."
    )
    part = (
        "**Part of each class** in the difference from the layer over tokens at equal steps, nats "
        "per token: the parts of a row add up to the difference."
    )
    return "\n\n".join(
        f"{about}\n\n" + table(heading, _by_class(found, len(names), of_class))
        for about, of_class in ((title, in_class), (part, part_of))
    )


def _by_class(found: Found, count: int, of_class: Callable[[int], Value]) -> list[list[str]]:
    """Return the differences from the layer over tokens, a column for each class."""
    rows = []
    for process in PROCESSES:
        flat = Arm(process, FLAT)
        for arm in arms(process):
            if arm != flat:
                cells = [
                    interval(paired(found, arm, flat, of_class(place)), 4, "+")
                    for place in range(count)
                ]
                rows.append([process, arm.head, *cells])
    return rows


def _curve(found: Found, sizes: Sizes) -> str:
    steps = [sizes.steps // sizes.points * (place + 1) for place in range(sizes.points)]

    def at_step(step: int) -> Value:
        return lambda run: dict(run["curve"])[step]

    rows = []
    for process in PROCESSES:
        flat = Arm(process, FLAT)
        tree = Arm(process, "semantic")
        cells = [interval(paired(found, tree, flat, at_step(step)), 4, "+") for step in steps]
        rows.append([process, *cells])
    title = (
        "**During the run**: children of the semantic tree less the layer over tokens, every "
        "fifth window of the search, one draw, by step."
    )
    return f"{title}\n\n" + table(["process", *map(str, steps)], rows)
