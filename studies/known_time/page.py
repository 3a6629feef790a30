"""Tables of the study, from its result file."""

from collections.abc import Mapping
from typing import Any

from studies.page import Page

SAMPLES = 100_000


def tables(found: Mapping[str, Any]) -> str:
    """Return the two tables of the page."""
    made, seeds = found["exact"], tuple(dict.fromkeys(row["seed"] for row in found["trained"]))
    calls = next(iter(made["processes"].values()))["total_variation"]
    lines = [
        f"Exact networks, two tokens, entropy {made['entropy']:.4f} nats per token:",
        "",
        "| process | bound | part for *when* | "
        + " | ".join(f"{number} calls" for number in calls)
        + " |",
        "| --- |" + " --- |" * (2 + len(calls)),
    ]
    for name, each in made["processes"].items():
        bound, error = each["bound"]["value"], each["bound"]["standard_error"]
        far = " | ".join(f"{value:.3f}" for value in each["total_variation"].values())
        when = f"{each['when']:.4f} ± {each['when_error']:.4f}" if each["when"] else "0"
        lines.append(f"| {name} | {bound:.4f} ± {error:.4f} | {when} | {far} |")
    lines += [
        "",
        f"The last columns are total variations of {made.get('samples', SAMPLES):,} samples from "
        "the distribution of "
        f"the data; that of as many draws of the data is {made['total_variation_of_data']:.3f}.",
        "",
        f"Trained networks, nats per token above the entropy, {found['entropy']:.4f} (seeds "
        f"{seeds}):",
        "",
        "| process | above the entropy | above masks |",
        "| --- | --- | --- |",
    ]
    for name in dict.fromkeys(row["process"] for row in found["trained"]):
        rows = [row for row in found["trained"] if row["process"] == name]
        above = ", ".join(f"{row['above_entropy']:.4f} ± {row['error']:.4f}" for row in rows)
        less = ", ".join(
            f"{row['above_masks']:+.4f} ± {row['above_masks_error']:.4f}" for row in rows
        )
        lines.append(f"| {name} | {above} | {less if name != 'masks' else '-'} |")
    return "\n".join(lines)


PAGE = Page("studies/known_time", "studies/known_time/page.py", tables)
