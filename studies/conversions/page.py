"""Tables of docs/studies/conversions.md, from the result file of ``studies.conversions.run``."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from studies.page import Page, measure, ruler

CAUSAL, MASKS, BLOCKS = "causal", "bidirectional", "by blocks"
BLOCK = 32
"""Positions of a block."""
FIXED, RULES = "fixed", ("fixed", "rho_eos:start=32", "daedal:start=32")
"""A fixed length; rules for lengths, as ``--length`` of recipes.generate."""


class Way(NamedTuple):
    """A model, and how it is sampled."""

    model: str
    title: str
    sampling: Mapping[str, Any] = {}
    """Options of ``Sampling``, none for the causal model."""

    @property
    def file(self) -> str:
        """Name of its files."""
        return f"{self.model}-{self.title}".replace(" ", "_").replace(",", "")


CONFIDENCE = "confidence:score=probability"
SURE = f"{CONFIDENCE},threshold=0.9"
PACE = f"blocks:{BLOCK}"
WAYS = (
    Way(CAUSAL, "transformers' generate, its cache"),
    *(
        Way(MASKS, f"confidence, {n} steps", {"sampler": CONFIDENCE, "steps": n})
        for n in (128, 32, 16)
    ),
    Way(MASKS, "entropy bounded", {"sampler": "entropy_bounded", "steps": 128}),
    Way(MASKS, "lanes, 16 steps", {"sampler": "in_order:lanes:16", "steps": 16}),
    *(
        Way(
            MASKS,
            f"blocks, {n} steps each, {keep or 'no'} cache",
            {"sampler": CONFIDENCE, "pace": PACE, "steps": n, "keep": keep},
        )
        for n, keep in ((8, None), (8, "dual"), (32, "dual"))
    ),
    *(
        Way(BLOCKS, f"blocks, {n} steps each, exact cache", {"sampler": CONFIDENCE, "steps": n})
        for n in (32, 8)
    ),
    Way(BLOCKS, "blocks, probability above 0.9, exact cache", {"sampler": SURE, "steps": 32}),
)


def tables(found: dict[str, Any]) -> str:
    """Return the tables: bounds, speed and quality of samples, lengths."""
    per = f"nats per token of {found['windows']} held-out windows"
    lines = [f"| model | {per} |", "| --- | --- |"]
    lines += [f"| {name} | {measure(value)} |" for name, value in found["nats"].items()]
    head = "| model | sampling | calls | tokens/s | judge's nats per token | entropy |"
    lines += [
        "",
        f"Samples of {found['length']} tokens, one at a time, by the CPU time of one thread:",
        "",
        head,
        ruler(head),
    ]
    for cell in found["cells"]:
        nats, entropy = (measure(cell[name]) if cell[name] else "-" for name in ("nats", "entropy"))
        costs = f"{cell['calls']:.0f} | {cell['tokens_per_second']:.1f}"
        lines.append(f"| {cell['model']} | {cell['title']} | {costs} | {nats} | {entropy} |")
    head = "| length | tokens found, true | mean absolute difference | steps |"
    lines += ["", f"Lengths of {found['paragraphs']} held-out paragraphs:", "", head, ruler(head)]
    for name, row in found["lengths"].items():
        true, sizes = (torch.tensor(row[key], dtype=torch.float64) for key in ("true", "found"))
        off = (sizes - true).abs()
        cells = (
            f"{sizes.mean():.1f}, {true.mean():.1f}",
            f"{off.mean():.1f} ± {off.std() / len(off) ** 0.5:.1f}",
        )
        lines.append(f"| {' | '.join((name, *cells))} | {sum(row['steps']) / len(off):.0f} |")
    where = found["machine"]
    lines += [
        "",
        f"{where['processor']}, {where['cores']} cores, torch {where['torch']}, Python "
        f"{where['python']}.",
    ]
    return "\n".join(lines)


PAGE = Page("studies/conversions", "studies/conversions/page.py", tables)
