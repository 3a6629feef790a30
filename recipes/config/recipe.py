"""What a run is: typed, frozen, plain values; checked when it is built, before any work.

The papers' numbers stand in the recipes (``recipes.owt``, ``recipes.lm1b``), not here.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ddlib import parts
from recipes.config.knowledge import Beside, Knowledge
from recipes.data import Corpus, corpus_of
from recipes.data.source import STRICT


def at_least(least: float, **values: float) -> None:
    """Raises ValueError naming the first value below ``least``."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def share(**values: float) -> None:
    """Raises ValueError naming the first value outside [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value}: must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The text, and how sequences are cut from it."""

    corpus: Annotated[Corpus | None, tyro.conf.AvoidSubcommands] = None
    """Text and tokenizer; none: those that ``folder`` was prepared from. What is said must agree with it."""
    folder: Path
    """Where ``python -m recipes.prepare`` put the tokens."""
    length: int = 512
    """Tokens of a sequence: longer documents give a random window, shorter ones are padded."""
    packed: bool = False
    """Fill every row with several short documents instead of padding; attention stays inside each."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        at_least(1, length=self.length)

    def whole(self) -> "Data":
        """The same with the corpus that the folder was prepared from, if none is said.

        Raises:
            FileNotFoundError, ValueError: as ``recipes.data.corpus_of``.
        """
        return self if self.corpus is not None else replace(self, corpus=corpus_of(self.folder))


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What is minimised; arguments as ``ddlib.training_loss``."""

    weight_clip: tuple[float, float] = (0.0, 2.0)
    """Lowest and highest weight of a token's loss; evaluation never clips."""
    mode: Literal["standard", "hard"] = "standard"
    """"hard": the paper's ablation, in which masks predict words instead of clusters."""
    auxiliary: float = 0.0
    """Weight of the paper's auxiliary cross-entropy of a second head over clusters, 0 for none."""
    count_padding: bool = True
    """Whether padding counts in the training loss (the paper's choice); in the bound it never does."""
    parameterization: Literal["cavity", "posterior"] = "cavity"
    """What the network's output means: without the evidence of the token itself, or with it."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        low, high = self.weight_clip
        if not 0 <= low <= high or high <= 0:
            raise ValueError(f"weight_clip={self.weight_clip}: must be 0 <= low <= high, high > 0")
        at_least(0, auxiliary=self.auxiliary)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW, with Muon beside it if asked for, the learning rate over the steps, and the average of the weights."""

    lr: float
    """Peak of the learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Of Adam's averages of the gradient and of its square."""
    eps: float = 1e-9
    """Added to Adam's denominator."""
    weight_decay: float = 0.02
    """Of all weights."""
    max_grad_norm: float = 1.0
    """Longer gradients are shortened to it."""
    warmup: int = 10_000
    """Steps over which the rate rises linearly."""
    final: float = 0.1
    """Where the cosine ends, as a share of ``lr``; 1 keeps the rate constant."""
    muon: bool = False
    """Train the blocks' matrices by Muon (Jordan et al. 2024), at the same rate: short runs get further."""
    ema: float = 0.9999
    """Decay of the exponential moving average of the weights; 0 for none."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        at_least(0, lr=self.lr, eps=self.eps, weight_decay=self.weight_decay, warmup=self.warmup)
        share(beta1=self.betas[0], beta2=self.betas[1], ema=self.ema)
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm}: must be positive")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final={self.final}: must lie in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """How the work is laid out; it changes no number but by rounding, and which units dropout drops."""

    micro_batch: int | None = None
    """Sequences that one device takes at a time; None takes its share of the batch at once."""
    shard: bool = False
    """Shard weights, gradients and optimizer over the ranks (FSDP2) instead of copying them (DDP)."""
    bf16: bool = False
    """Products in bfloat16; weights, optimizer and loss stay float32."""
    compile: bool = False
    """Compile the blocks."""
    recompute: bool = False
    """Keep no activations inside blocks: less memory, a third more work."""
    threads: int = 4
    """Threads that read data."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        at_least(1, threads=self.threads, micro_batch=1 if self.micro_batch is None else self.micro_batch)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a run leaves behind, and how often."""

    folder: Path
    """Of the run."""
    log_every: int = 10
    """Steps between records of the loss."""
    validate_every: int = 2000
    """Steps between validation bounds."""
    validate_sequences: int = 1024
    """Sequences of a validation bound."""
    sample_every: int = 10_000
    """Steps between samples."""
    sample_steps: int = 128
    """Steps of the sampler."""
    samples: int = 4
    """Texts that are drawn."""
    save_every: int = 2000
    """Steps between checkpoints."""
    keep: int = 2
    """Newest checkpoints that are kept, besides the one of the best validation bound."""
    tensorboard: bool = True
    """Whether TensorBoard's files are written."""
    wandb: str | None = None
    """Project to which Weights & Biases logs."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        numbers = ("log_every", "validate_every", "validate_sequences", "sample_every", "sample_steps", "samples")
        at_least(1, **{name: getattr(self, name) for name in (*numbers, "save_every", "keep")})


Values = dict[str, Any]
"""Of a part, with its ``kind``: see ``ddlib.parts``."""

PARTS = {"process": ("processes", Knowledge), "model": ("backbones", Beside)}
"""The parts of a recipe: the group of plug-ins of each, and what a run fills in."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run from the text to the weights."""

    data: Data
    process: Values | str
    """The noise, any that is registered or at ``package.module:object``; ``recipes.config.Knowledge`` is filled in."""
    model: Values | str
    """The network, likewise; ``recipes.config.Beside`` is filled in."""
    optimizer: Optimizer
    output: Output
    loss: Loss = field(default_factory=Loss)
    hardware: Hardware = field(default_factory=Hardware)
    batch: int
    """Sequences of a step, over all devices."""
    steps: int
    """Of the optimizer."""
    start: Literal["random", "text"] = "random"
    """"text": begin at the words' frequencies, with embeddings of their neighbourhoods; for short runs."""
    seed: int = 0
    """Of the weights, the order of the text, times, noise and dropout."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        # written out, so that equal recipes are equal and a file says all
        for name, (group, run) in PARTS.items():
            object.__setattr__(self, name, parts.read(group, getattr(self, name), run, name))
        at_least(1, batch=self.batch, steps=self.steps)
        at_least(0, seed=self.seed)
        if self.optimizer.muon and self.hardware.shard:
            raise ValueError("optimizer.muon: not with hardware.shard, it needs whole matrices")
        if self.loss.auxiliary and "num_clusters" not in parts.keys("backbones", self.model["kind"]):
            raise ValueError(
                f"loss.auxiliary={self.loss.auxiliary}: not with {self.model['kind']}, which has no head over clusters "
                "(no argument num_clusters)"
            )
        if self.data.packed and self.loss.auxiliary:
            raise ValueError("loss.auxiliary: not with data.packed")

    @property
    def network(self) -> Values:
        """The values that the network is built from: with the auxiliary loss, they ask for its head."""
        return self.model | ({"num_clusters": parts.RUN} if self.loss.auxiliary else {})
