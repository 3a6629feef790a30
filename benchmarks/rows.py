"""Rows of the performance table: compared methods, target, and location of the result."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import sampler_costs
from ddlib import registry

RUNS = 3
"""Number of consecutive runs in which a target must be met."""


class Row(NamedTuple):
    """One ratio and its target."""

    what: str
    against: str
    file: str
    """Name of the result file, results/FILE.json."""
    ratio: str
    """Name of the ratio in each run."""
    target: float | None
    """Target; None if there is none."""
    unit: str = "x faster"
    at_most: bool = False
    percent: bool = False
    """Whether it is shown times 100."""

    def holds(self, value: float) -> bool:
        """Return whether a run is within the target."""
        if self.target is None:
            return True
        return value <= self.target if self.at_most else value >= self.target


class Measured(NamedTuple):
    """A row and its values, one per run."""

    row: Row
    values: list[float]

    @property
    def verdict(self) -> str:
        """Describe whether the target is met: only in all of at least ``RUNS`` runs."""
        if not self.values:
            return "unmeasured"
        if self.row.target is None:
            return "measured"
        if not all(map(self.row.holds, self.values)):
            return "missed"
        return (
            "met"
            if len(self.values) >= RUNS
            else f"met in {len(self.values)} of {len(self.values)} runs"
        )


def read(row: Row, results: Path) -> Measured:
    """Return the row with the content of ``results``.

    Without values if the file or the ratio is missing.
    """
    path = results / f"{row.file}.json"
    if not path.exists():
        return Measured(row, [])
    runs: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return Measured(row, [run["ratios"][row.ratio] for run in runs if row.ratio in run["ratios"]])


def middle(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


PAPERS = "the papers' formula on all logits"
LESS = "x less memory"
CE = "`F.linear` and `F.cross_entropy`, all rows"
PEER = "ancestral step over all states"
MATRIX_EXP = "`torch.linalg.matrix_exp` in every function"
ALONE = "ours beside a gradient"
OF_BLOCKS = dict[str, Any](unit=" of their time", at_most=True, percent=True)
OF_WHOLE = dict[str, Any](unit=" of their time", at_most=True, percent=True)
FORMULA = "the papers' formula"
OURS = "our fused loss on logits of tokens"
CPU = (
    Row(
        "HDLM, children, loss and gradients, 1,024 tokens",
        CE,
        "head_hdlm_children_1024",
        "cross_entropy time",
        25,
    ),
    Row(
        "HDLM, children, loss and gradients, 2,048 tokens",
        CE,
        "head_hdlm_children_2048",
        "cross_entropy time",
        25,
    ),
    Row(
        "HDLM, children, loss and gradients, 1,024 tokens",
        OURS,
        "head_hdlm_children_1024",
        "words time",
        6,
    ),
    Row(
        "HDLM, children, loss and gradients, 2,048 tokens",
        OURS,
        "head_hdlm_children_2048",
        "words time",
        6,
    ),
    Row(
        "The same: memory beside the layer's gradient",
        "-",
        "head_hdlm_children_2048",
        ALONE,
        40,
        " MB",
        True,
    ),
    Row(
        "MDLM, children, loss and gradients, 1,024 tokens",
        CE,
        "head_mdlm_children_1024",
        "cross_entropy time",
        15,
    ),
    Row(
        "MDLM, children, loss and gradients, 2,048 tokens",
        CE,
        "head_mdlm_children_2048",
        "cross_entropy time",
        15,
    ),
    Row("HDLM loss and gradients, 1,024 tokens", PAPERS, "head_hdlm_1024", "papers time", None),
    Row(
        "HDLM loss and gradients, 1,024 tokens", PAPERS, "head_hdlm_1024", "papers memory", 9, LESS
    ),
    Row("HDLM loss and gradients, 2,048 tokens", PAPERS, "head_hdlm_2048", "papers time", None),
    Row(
        "HDLM loss and gradients, 2,048 tokens", PAPERS, "head_hdlm_2048", "papers memory", 15, LESS
    ),
    Row("HDLM loss and gradients, 1,024 tokens", CE, "head_hdlm_1024", "cross_entropy time", 3.2),
    Row("HDLM loss and gradients, 2,048 tokens", CE, "head_hdlm_2048", "cross_entropy time", 3.2),
    Row(
        "HDLM loss and gradients, 1,024 tokens",
        "`F.linear_cross_entropy`, chunks of 128",
        "head_hdlm_1024",
        "linear_cross_entropy time",
        3,
    ),
    Row("HDLM with xi = 0.9, 1,024 tokens", PAPERS, "head_hdlm_xi_1024", "papers time", 2.1),
    Row("GIDD, 1,024 tokens", PAPERS, "head_gidd_1024", "papers time", 1.2),
    Row("GIDD, 2,048 tokens", PAPERS, "head_gidd_2048", "papers memory", 15, LESS),
    Row("MDLM, 1,024 tokens", CE, "head_mdlm_1024", "cross_entropy time", 1.7),
    Row(
        "Noising, 64 x 512 tokens",
        "one-hot distributions and a categorical draw",
        "noising",
        "dense time",
        1000,
    ),
    Row(
        "Dense process, 256 states: Gaussian steps",
        MATRIX_EXP,
        "dense",
        "gaussian: matrix_exp time",
        7,
    ),
    Row(
        "Dense process, 256 states: steps to neighbours",
        MATRIX_EXP,
        "dense",
        "walk: matrix_exp time",
        8,
    ),
    Row("Sampling, masked, 12 x 768, 512 steps", PEER, "sampling_masked", "papers time", 2.8),
    Row("Sampling, HDLM, 12 x 768, 512 steps", PEER, "sampling_hdlm", "papers time", 2.4),
    Row(
        "Sampling, masked: outside the blocks",
        "the blocks",
        "sampling_masked",
        "outside",
        0.05,
        **OF_BLOCKS,
    ),
    Row(
        "Sampling, HDLM: outside the blocks",
        "the blocks",
        "sampling_hdlm",
        "outside",
        0.05,
        **OF_BLOCKS,
    ),
    Row(
        "Training step, 12 x 768, 8 x 512 tokens, HDLM, children",
        FORMULA,
        "training",
        "papers time",
        2.2,
    ),
    Row(
        "Training step, 12 x 768, 8 x 512 tokens, HDLM",
        FORMULA,
        "training",
        "papers over words",
        1.25,
    ),
    Row(
        "Training step, 4 x 128, 16 x 128 tokens, MDLM, children",
        OURS,
        "training_laptop_mdlm",
        "words time",
        2.5,
    ),
    Row(
        "Training step, 4 x 128, 16 x 128 tokens, HDLM, children",
        OURS,
        "training_laptop_hdlm",
        "words time",
        1.5,
    ),
    *(
        Row(
            f"Training step, 4 x 128, 16 x 128 tokens, vocabulary of 4,096, along the order {name}",
            "random masks",
            "training_along_orders",
            f"{name} time",
            1.05,
            " of their time",
            True,
            True,
        )
        for name in ("left to right", "probability", "margin")
    ),
    *(
        row
        for tokens in (32, 128, 512)
        for row in (
            Row(
                f"Product of masks, uniform noise and a tree, {tokens} tokens each: loss, 64 x 128 "
                "positions",
                "the mean of the three, each at all positions",
                "fields",
                f"three kinds, {tokens} tokens",
                1.5,
                **OF_WHOLE,
            ),
            Row(
                "The three at a third of the positions each",
                "the same",
                "fields",
                f"apart, {tokens} tokens",
                None,
                **OF_WHOLE,
            ),
            Row(
                f"Product of 12 columns of masks, {tokens} to {tokens - 11} tokens: loss, 64 x 128 "
                "positions",
                "masks at all positions",
                "fields",
                f"12 columns, {tokens} tokens",
                1.3,
                **OF_WHOLE,
            ),
        )
    ),
    Row(
        "Text of 8,192 tokens beside a label, loss from hidden states",
        "all logits",
        "fields",
        "logits memory",
        10,
        LESS,
    ),
    Row(
        "Logits of 128 rows by stripes",
        "one product",
        "products",
        "stripes: one_product time",
        None,
    ),
)
SAMPLERS = tuple(
    Row(
        f"`{name}`, logits of {'tokens' if kind == 'words' else kind}",
        "the blocks",
        "samplers",
        f"{name}, {kind}",
        0.05,
        **OF_BLOCKS,
    )
    for name in registry.built_in("samplers")
    for kind in sampler_costs.KINDS
)
OF = " of their time"
SPEED = " tokens/s"
OF_PEAK = dict[str, Any](unit=" of it, all logits counted", percent=True)
COMPILED = "compiled `F.linear` and `F.cross_entropy`"
ALL = "hdlm, all levels, training"
MASKS = "hdlm, masks, training"
GPU = (
    Row(
        "HDLM loss and gradients, 64 x 512 tokens",
        "compiled, all logits",
        "gpu_head",
        f"{ALL}: compiled time",
        3,
    ),
    Row("The same", "compiled in chunks", "gpu_head", f"{ALL}: compiled_in_chunks time", 3),
    Row("The same", COMPILED, "gpu_head", f"{ALL}: compiled_cross_entropy time", 3),
    Row(
        "The same",
        "Liger's `F.linear` and cross-entropy",
        "gpu_head",
        f"{ALL}: liger_cross_entropy time",
        None,
    ),
    Row(
        "The same: memory beside its inputs", "-", "gpu_head", f"{ALL}: triton GiB", 1, " GiB", True
    ),
    Row(
        "The same, children",
        "our kernels on logits of tokens",
        "gpu_head",
        f"{ALL}: children time",
        None,
        OF,
        True,
        True,
    ),
    Row("The same, masks alone", COMPILED, "gpu_head", f"{MASKS}: compiled_cross_entropy time", 1),
    Row(
        "The same, masks alone",
        COMPILED,
        "gpu_head",
        f"{MASKS}: compiled_cross_entropy memory",
        8,
        LESS,
    ),
    Row(
        "Training step, 12 x 768, 32 x 512 tokens",
        "the papers' formula",
        "training_gpu",
        "papers time",
        1.25,
    ),
    Row("Sampling, HDLM, 32 sequences, 12 x 768", PEER, "sampling_hdlm_gpu", "papers time", 5),
    Row(
        "First hitting, HDLM, 32 sequences",
        "ancestral, as many steps",
        "first_hitting_gpu",
        "ancestral time",
        None,
    ),
    Row(
        "Training, SMALL, 64 x 512 tokens",
        "the device's peak",
        "training_small_gpu",
        "nominal",
        0.52,
        **OF_PEAK,
    ),
    Row(
        "Training, SMALL, 64 x 512 tokens",
        "-",
        "training_small_gpu",
        "tokens per second",
        645_000,
        SPEED,
    ),
    Row(
        "Training, BASE, 32 x 512 tokens",
        "the device's peak",
        "training_base_gpu",
        "nominal",
        0.5,
        **OF_PEAK,
    ),
    Row(
        "Training, BASE, 32 x 512 tokens",
        "-",
        "training_base_gpu",
        "tokens per second",
        220_000,
        SPEED,
    ),
    Row(
        "Attention by xformers, 64 x 512 tokens",
        "SDPA",
        "attention_gpu",
        "even: xformers time",
        None,
    ),
    Row(
        "Attention by xformers, packed sentences",
        "SDPA",
        "attention_gpu",
        "packed: xformers time",
        1,
    ),
    Row("Attention by Flex, packed sentences", "SDPA", "attention_gpu", "packed: flex time", 1),
    Row(
        "Attention by torch's varlen, packed sentences",
        "SDPA",
        "attention_gpu",
        "packed: varlen time",
        1,
    ),
    Row(
        "Packing sentences into rows of 128", "padding", "packing_gpu", "gain", 2.5, "x real tokens"
    ),
)
