"""Configuration of a run: typed, frozen, plain values; checked when it is built, before any work.

The papers' numbers stand in the recipes (``recipes.owt``, ``recipes.lm1b``), not here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

import ddlib as dd
from ddlib import parts
from recipes.config.paces import TOGETHER, Pace, make_pace
from recipes.config.run_context import ModelContext, RunContext
from recipes.config.times import check_times
from recipes.config.validation import at_least, share
from recipes.data import Corpus, SymbolCorpus
from recipes.data.source import STRICT

FIRST = {"first": True}
"""Metadata of a field that people change first: ``--help`` shows it, ``--help-all`` all."""

WARM_UP = 3
"""Steps before those of a trace."""


def _corpus_kind(corpus: Any) -> str:
    """Return the name of the class of a corpus, or of its values."""
    is_symbols = isinstance(corpus, SymbolCorpus) or (
        isinstance(corpus, Mapping) and "source" in corpus
    )
    return (SymbolCorpus if is_symbols else Corpus).__name__


AnyCorpus = Annotated[
    Annotated[Corpus, Tag(Corpus.__name__)] | Annotated[SymbolCorpus, Tag(SymbolCorpus.__name__)],
    Discriminator(_corpus_kind),
]
"""A corpus; the key ``source`` is that of symbols."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The text, and how sequences are cut from it."""

    corpus: AnyCorpus | None = None
    """Text and tokenizer, or symbols; None: those of ``folder``.

    An explicit corpus must agree with the folder.
    """
    folder: Path = field(metadata=FIRST)
    """Folder of the tokens from ``python -m recipes.prepare``."""
    length: int = field(default=512, metadata=FIRST)
    """Tokens of a sequence: longer documents give a random window, shorter ones are padded."""
    packed: bool = field(default=False, metadata=FIRST)
    """Fill every row with several short documents instead of padding; attention stays
    inside each.
    """
    wrap: bool = False
    """Cut rows from the concatenation of all documents, as MDLM does: no padding, attention over
    the whole row. A row is the token of the beginning, ``length - 2`` tokens, the token of the end;
    in validation too."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        at_least(2, length=self.length)  # a token alone has nothing to be predicted from
        if self.wrap and self.packed:
            raise ValueError(
                "data.wrap: not with data.packed, choose one: rows are cut, or contain whole "
                "documents"
            )

    def whole(self) -> "Data":
        """Return the same with the corpus that the folder was prepared from, if none is given.

        Raises:
            FileNotFoundError, ValueError: as ``recipes.data.corpus_of``.
        """
        if self.corpus is not None:
            return self
        from recipes.data import (
            corpus_of,
        )  # not above: it imports for seconds, which --help need not wait for

        return replace(self, corpus=corpus_of(self.folder))


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW, optionally with Muon, the learning rate over the steps, and the average of the
    weights.
    """

    lr: float = field(default=3e-4, metadata=FIRST)
    """Peak of the learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decays of Adam's averages of the gradient and of its square."""
    eps: float = 1e-9
    """Added to Adam's denominator."""
    weight_decay: float = 0.02
    """Weight decay of all weights."""
    max_grad_norm: float = 1.0
    """Maximum norm of the gradient, which is clipped to it."""
    warmup: int = field(default=10_000, metadata=FIRST)
    """Steps over which the rate rises linearly."""
    final: float = 0.1
    """Final value of the cosine schedule, as a share of ``lr``; 1 keeps the rate constant."""
    muon: bool = False
    """Train the blocks' matrices by Muon (Jordan et al. 2024), at the same rate: short runs reach a
    lower loss.
    """
    ema: float = 0.9999
    """Decay of the exponential moving average of the weights; 0 for none."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        at_least(
            0,
            lr=self.lr,
            eps=self.eps,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
        )
        share(beta1=self.betas[0], beta2=self.betas[1], ema=self.ema)
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm}: must be positive")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final={self.final}: must lie in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Distribution of the work; it changes numbers only by rounding, and by the units that dropout
    drops.
    """

    micro_batch: int | None = field(default=None, metadata=FIRST)
    """Sequences that one device takes at a time; None takes its share of the batch at once."""
    shard: bool = False
    """Shard weights, gradients and optimizer over the ranks (FSDP2) instead of copying them
    (DDP).
    """
    bf16: bool = False
    """Matrix products in bfloat16; weights, optimizer and loss stay in float32."""
    compile: bool = False
    """Compile the network, see ``graph``."""
    graph: Literal["blocks", "trunk", "step"] = "blocks"
    """With ``compile``: one graph for each block, which are alike and compiled once; or one for all
    blocks and the last normalisation, with fewer calls of the host and a longer compilation. With
    or without it, "step": forward and backward pass, optimizer and average are one CUDA graph, for
    small networks on one device. The loss then computes all logits at all positions."""
    ahead: bool = True
    """Compute the data and noise of a step while the device computes the step before."""
    wait: bool = False
    """Wait for the device at the end of each step: slower, for measurements."""
    recompute: bool = False
    """Keep no activations inside blocks: less memory, a third more work."""
    threads: int = 4
    """Threads that read data."""
    peak: float | None = None
    """Peak of one device in TFLOP/s, for the utilisation (MFU) in the log; None: that of an A100,
    H100 or H200, and no utilisation on other devices."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        at_least(
            1, threads=self.threads, micro_batch=1 if self.micro_batch is None else self.micro_batch
        )
        if self.graph == "trunk" and not self.compile:
            raise ValueError("graph='trunk': has no effect without compile=True")
        if self.graph != "blocks" and (self.shard or self.recompute):
            raise ValueError(
                f"graph={self.graph!r}: not with shard={self.shard}, recompute={self.recompute}, "
                "which treat blocks one by one"
            )
        if self.peak is not None and not 0 < self.peak < math.inf:
            raise ValueError(f"peak={self.peak}: must be positive")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Files that a run writes, and how often."""

    folder: Path = field(metadata=FIRST)
    """Folder of the run."""
    log_every: int = 10
    """Steps between records of the loss."""
    validate_every: int = 2000
    """Steps between validation bounds."""
    validate_sequences: int = 1024
    """Sequences of a validation bound."""
    validate_times: str = "optimal"
    """Density that their times are drawn from, as ``loss.times``.

    It changes the standard error of the bound, not its
    mean."""
    sample_every: int = 10_000
    """Steps between samples."""
    sample_steps: int = 128
    """Steps of the sampler."""
    samples: int = 4
    """Number of samples."""
    untrained: bool = False
    """Measure the bound and draw samples before the first step too, for networks with trained
    initial weights.
    """
    save_every: int = 2000
    """Steps between checkpoints."""
    keep: int = 2
    """Newest checkpoints that are kept, besides the one of the best validation bound."""
    tensorboard: bool = True
    """Whether TensorBoard's files are written."""
    wandb: str | None = None
    """Project to which Weights & Biases logs."""
    profile: int = 0
    """Steps whose trace of torch's profiler is written, after a few to warm up; 0 for none."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        numbers = (
            "log_every",
            "validate_every",
            "validate_sequences",
            "sample_every",
            "sample_steps",
            "samples",
        )
        at_least(1, **{name: getattr(self, name) for name in (*numbers, "save_every", "keep")})
        at_least(0, profile=self.profile)
        check_times("validate_times", self.validate_times)


Values = dict[str, Any]
"""Of a part, with its ``kind``: see ``ddlib.parts``."""

PARTS: dict[str, tuple[str, Any]] = {
    "process": ("processes", RunContext),
    "pace": ("paces", None),
    "model": ("backbones", ModelContext),
    "loss": ("objectives", None),
}
"""The parts of a recipe by their place: the group of plug-ins of each, and what a run fills in."""


def read_part(name: str, value: Any) -> Values:
    """Return the value of a part of a recipe as one mapping; a loss without ``kind`` is the bound.

    Raises:
        ValueError, ImportError: as ``ddlib.parts.read``.
    """
    group, run = PARTS[name]
    if isinstance(value, parts.Part):
        value = dd.values(value)
    if name == "loss" and isinstance(value, Mapping):
        value = {"kind": "bound"} | dict(value)
    return parts.read(group, value, run, name)


def part(holder: Any, place: str) -> Any:
    """Return the value of a recipe at a place such as ``loss.weighting``."""
    return reduce(getattr, place.split("."), holder)


def with_parts(holder: Any, values: Mapping[str, Any]) -> Any:
    """Return a recipe, or a part of one, with other values at some places, all at once.

    They may only fit each other.
    """
    changes = dict[str, Any]()
    inner = dict[str, dict[str, Any]]()
    for place, value in values.items():
        name, _, rest = place.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    for name, rest in inner.items():
        held = holder[name] if isinstance(holder, dict) else getattr(holder, name)
        changes[name] = with_parts(held, rest)
    return holder | changes if isinstance(holder, dict) else replace(holder, **changes)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run from the text to the weights."""

    data: Data
    process: Values | str = field(metadata=FIRST)
    """The noise: any that is registered, or ``package.module:object``; arguments of
    ``recipes.config.RunContext`` are filled in."""
    pace: Values | str = TOGETHER
    """Schedule of the positions, of ``ddlib.paces``: together, blocks:size=16, left_to_right, or
    your own.
    """
    model: Values | str = field(metadata=FIRST)
    """The network, likewise; arguments of ``recipes.config.ModelContext`` are filled in."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    output: Output
    loss: Values | str = field(default_factory=dict)
    """The training objective: bound, with weights and modes of the loss, or another ``kind``."""
    hardware: Hardware = field(default_factory=Hardware)
    batch: int = field(metadata=FIRST)
    """Sequences of a step, over all devices."""
    steps: int = field(metadata=FIRST)
    """Steps of the optimizer."""
    start: str = "random"
    """Initial weights: random; "text", from the frequencies and neighbourhoods of the tokens, for
    short runs; or the
    folder of a run, with its weights."""
    seed: int = field(default=0, metadata=FIRST)
    """Seed of the weights, the order of the text, times, noise and dropout."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        # written out, so that equal recipes are equal and a file says all
        for name in PARTS:
            object.__setattr__(self, name, read_part(name, getattr(self, name)))
        self.order()  # refused here, not after the text is read
        self.objective().check(self)
        at_least(1, batch=self.batch, steps=self.steps)
        at_least(0, seed=self.seed)
        if self.output.profile and self.output.profile > self.steps - WARM_UP:
            raise ValueError(
                f"output.profile={self.output.profile}: must be at most {self.steps - WARM_UP}, "
                f"the {self.steps} steps "
                f"of the run without {WARM_UP} to warm up"
            )
        if self.optimizer.muon and self.hardware.shard:
            raise ValueError(
                "optimizer.muon: not with hardware.shard, as it requires whole matrices"
            )

    def objective(self) -> Any:
        """Build the training objective.

        Raises:
            ValueError: bad values.
        """
        return dd.build("objectives", self.loss, place="loss")

    def order(self) -> Pace:
        """Build the pace.

        Raises:
            ValueError: bad values.
        """
        return make_pace(self.pace)

    @property
    def starts_trained(self) -> bool:
        """Whether the initial weights are those of a run or of a pretrained network."""
        return self.start not in ("random", "text") or "name_or_path" in self.model

    @property
    def network(self) -> Values:
        """Values from which the network is built.

        They include those of the training objective, such as a second head. If the network has an
        argument block_size that is unset or 0, it is set to the pace's. For full attention set it
        to the sequence length.
        """
        values = self.model | self.objective().network_values
        block = self.order().block
        can = "block_size" in parts.keys("backbones", self.model["kind"])
        return values | (
            {"block_size": block} if block and can and not values.get("block_size") else {}
        )
