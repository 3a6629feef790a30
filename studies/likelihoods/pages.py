"""Tables of the study of likelihoods."""

from pathlib import Path
from typing import Any

from recipes.estimators import ESTIMATORS
from studies.likelihoods import trained
from studies.page import page
from studies.tables import END, MISSING, table

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "likelihoods.md"
BEGIN = "<!-- tables: python -m studies.likelihoods.run -->"
TRAINED = "<!-- tables: python -m studies.likelihoods.run --trained WORK -->"
PROCESSES = ("masks", "tree", "tree, xi = 0.8", "GIDD")


def tables(result: dict[str, Any]) -> str:
    """Return all tables of the page."""
    verdicts = result["verdicts"]
    found = result["cells"]
    names = [each.name for each in ESTIMATORS]

    def row(name: str, cell: Any) -> list[str]:
        return [name, *(cell(f"{kind} | {name}") for kind in PROCESSES)]

    def kraft(key: str) -> str:
        one = verdicts.get(key)
        return "-" if one is None else f"{one['verdict']}, {one['largest']:.3f}"

    def bias(size: str) -> Any:
        def cell(key: str) -> str:
            one = found.get(f"{size} | {key}")
            if one is None:
                return "-"
            return f"{one['bias']:+.4f} ± {one['bias_error']:.4f}"

        return cell

    def cost(key: str) -> str:
        one = found.get(f"12 | {key}")
        if one is None:
            return "-"
        covers = f"{100 * one['covers_entropy']:.0f} / {100 * one['covers_mean']:.0f} %"
        return f"{one['calls']:,.0f}; {covers}"

    heading = ["estimator", *PROCESSES]
    parts = [
        "**Verdict** of Kraft's test, and the largest sum over all sequences; - where the process "
        "is not supported.\n",
        table(heading, [row(name, kraft) for name in names]),
    ]
    for size, entropy in result["entropy"].items():
        counts = sorted(
            {one["sequences"] for key, one in found.items() if key.startswith(f"{size} |")}
        )
        drawn = f"{counts[-1]:,} sequences" + (
            f", {counts[0]:,} along orders" if len(counts) > 1 else ""
        )
        title = f"**Bias** with the exact network, V = {size}, entropy {entropy:.4f}, {drawn}."
        parts += [
            f"\n{title} In nats per token.\n",
            table(heading, [row(name, bias(size)) for name in names]),
        ]
    parts += [
        "\n**Network calls** of a sequence for a standard error of 1 % of the entropy, V = 12; "
        "then "
        "the share of intervals that contain the entropy / the estimator's own mean. Nominal: "
        "95 %.\n",
        table(heading, [row(name, cost) for name in names]),
    ]
    return "\n".join(parts)


def trained_tables(networks: dict[str, Any]) -> str:
    """Return the tables of trained networks."""
    named = [*trained.WHOLE, *(f"blocks of {size}" for size in trained.BLOCKS)]

    def rows(shown: Any) -> list[list[str]]:
        return [
            [each.name, *(cell_of(networks.get(name), each.name, shown) for name in named)]
            for each in trained.AUDITED
        ]

    def difference(cell: dict[str, Any]) -> str:
        return f"{cell['difference']:+.4f} ± {cell['error']:.4f}"

    def cost(cell: dict[str, Any]) -> str:
        covers = f"{100 * cell['covers_reference']:.0f} / {100 * cell['covers_mean']:.0f} %"
        return f"{cell['calls']:,.0f}; {covers}"

    def reference(name: str) -> str:
        if name not in networks:
            return MISSING
        network = networks[name]
        cell = network["cells"][network["reference"]]
        return f"{cell['mean']:.4f}, {network['reference']}"

    heading = ["estimator", *named]
    parts = [
        "**Difference** from the reference of the first row, nats per token; - where the process "
        "is "
        "not supported.\n",
        table(heading, [["*reference*", *map(reference, named)], *rows(difference)]),
        "\n**Network calls** of a row for a standard error of 1 % of the reference; then the share "
        "of "
        "intervals of 32 draws that contain the reference / the estimator's own mean. Nominal: "
        "95 %.\n",
        table(heading, rows(cost)),
    ]
    return "\n".join(parts)


def cell_of(network: dict[str, Any] | None, name: str, shown: Any) -> str:
    """Return the text of an estimator's cell."""
    if network is not None and name in network["refused"]:
        return "-"
    if network is None or name not in network["cells"]:
        return MISSING
    return shown(network["cells"][name])


def page_of(path: Path, result: dict[str, Any]) -> str:
    """Return the page with all tables of the results."""
    text = page(path.read_text(encoding="utf-8"), tables(result), BEGIN, END)
    return page(text, trained_tables(result.get("trained", {})), TRAINED, END)
