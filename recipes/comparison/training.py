"""Two processes at one budget: the same network, data order and keyed noise, trained and measured side by side."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

import ddlib as dd
from ddlib_models import DiT
from recipes.comparison.figure import Curve
from recipes.config import IN_STRATA, Loss
from recipes.console import training_progress
from recipes.data import text
from recipes.embeddings import embeddings
from recipes.embeddings.starting import log_probs, state_vectors
from recipes.engine.muon import Muon


@dataclass(frozen=True)
class Config:
    """Everything that decides the numbers."""

    seed: int = 0
    out: Path = Path("runs/quickstart")

    first_year: int = 1934
    held_out: float = 0.05
    vocab_size: int = 2048
    window: int = 64

    num_clusters: int = 64
    cluster_dim: int = 64
    cluster_reach: int = 1  # neighbours next door group words by the part they play, distant ones by topic

    dim: int = 128
    depth: int = 2
    heads: int = 4

    steps: int = 600
    batch_size: int = 32
    learning_rate: float = 6e-3
    warmup: int = 40
    weight_decay: float = 0.1
    weight_clip: float = 2.0
    max_grad_norm: float = 1.0

    curve_points: int = 8
    curve_windows: int = 128
    passes: int = 4
    sample_steps: int = 128
    samples: int = 2
    temperature: float = 1.0
    top_p: float = 0.9


@dataclass(frozen=True)
class Data:
    """Text as the models see it."""

    tokenizer: Tokenizer
    stream: Int[Tensor, " N"]
    train: text.Windows
    validation: text.Windows


@dataclass(frozen=True)
class Trained:
    """A model, its process and what happened."""

    process: dd.processes.Hierarchical
    model: DiT
    curve: Curve


def make_model(config: Config, process: dd.processes.Hierarchical, data: Data) -> DiT:
    """A DiT that starts at the unigram law, with the corpus's own word embeddings."""
    torch.manual_seed(config.seed)
    model = DiT(process.num_states, process.vocab_size, config.dim, config.depth, config.heads)
    counts = data.stream.bincount(minlength=process.vocab_size)
    vectors = embeddings.word_embeddings(data.stream, process.vocab_size, config.dim, reach=2, seed=config.seed)
    model.start_at(log_probs(counts), state_vectors(process, counts, 0.3 * config.dim**0.5 * vectors))
    return model


def make_optimizers(config: Config, model: DiT) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the blocks' matrices, AdamW for all else.

    With AdamW alone a run this short never leaves the unigram plateau.
    """
    matrices = [p for name, p in model.blocks.named_parameters() if p.ndim == 2 and "modulation" not in name]
    held = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in held]
    return [
        Muon(matrices, lr=config.learning_rate, weight_decay=config.weight_decay),
        torch.optim.AdamW(rest, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def fast_matmul() -> torch.autocast | nullcontext:
    """bfloat16 products where the CPU has instructions for them, else float32."""
    has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
    return torch.autocast("cpu", torch.bfloat16) if has_bf16 else nullcontext()


def train(config: Config, name: str, process: dd.processes.Hierarchical, data: Data, console: Console) -> Trained:
    model, curve = make_model(config, process, data), Curve()
    optimizers = make_optimizers(config, model)
    schedules = [
        torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 1 / config.warmup, total_iters=config.warmup),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(config.steps - config.warmup, 1)),
            ],
            [config.warmup],
        )
        for optimizer in optimizers
    ]
    order = data_order(config, len(data.train.tokens))
    few = text.Windows(
        data.validation.tokens[: config.curve_windows], data.validation.num_bytes[: config.curve_windows]
    )
    marks = {round(config.steps * point / config.curve_points) for point in range(1, config.curve_points + 1)}
    curve.bound.append((0, validate(config, process, model, few, passes=1).mean().item()))
    about = Loss(weighting=f"clip:{config.weight_clip}").about(padded=False)
    weighting = dd.weightings.Clip(config.weight_clip)
    with training_progress(console, name, config.steps, config.batch_size * config.window, about) as report:
        for step in range(config.steps):
            position = torch.arange(step * config.batch_size, (step + 1) * config.batch_size)
            noise = dd.KeyedGenerator(seed=config.seed, step=step, index=position)
            x = data.train.tokens[order[position]]
            t = dd.sample_times(len(x), generator=noise)
            z = process.sample(x, t, generator=noise)
            with fast_matmul():
                logits = model(z, t)
            loss = dd.training_loss(process, logits, x, z, t, weighting)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            curve.loss.append(loss.item())
            report(step + 1, loss.item())
            if step + 1 in marks:
                curve.bound.append((step + 1, validate(config, process, model, few, passes=1).mean().item()))
    return Trained(process, model.eval(), curve)


def data_order(config: Config, num_windows: int) -> Int[Tensor, " N"]:
    """Which window stands at each position of the data order: one permutation per epoch, the same for every model."""
    generator = torch.Generator().manual_seed(config.seed)
    epochs = -(-config.steps * config.batch_size // num_windows)
    return torch.cat([torch.randperm(num_windows, generator=generator) for _ in range(epochs)])


@torch.no_grad()
def validate(
    config: Config, process: dd.processes.Hierarchical, model: DiT, windows: text.Windows, passes: int
) -> Float[Tensor, "N L"]:
    """The bound in nats per token, averaged over ``passes`` draws of times and noise, as quiet as they can be."""
    density = process.time_density(config.window, chance=IN_STRATA)
    was_training = model.training
    model.eval()
    rows = []
    for start in range(0, len(windows.tokens), 128):
        x = windows.tokens[start : start + 128]
        index = torch.arange(start, start + len(x))
        draws = [
            dd.bound(
                process,
                model,
                x,
                dd.KeyedGenerator(seed=config.seed + 1, step=step, index=index),
                density=density,
                levels="balanced",
            ).total
            for step in range(passes)
        ]
        rows.append(torch.stack(draws).mean(0))
    model.train(was_training)
    return torch.cat(rows)


def baselines(config: Config, data: Data) -> tuple[float, dd.Tally]:
    """Words drawn independently: entropy of the validation text, in nats; its nats under training frequencies."""
    counts = data.validation.tokens.flatten().bincount(minlength=config.vocab_size).double()
    law = counts / counts.sum()
    learned = data.stream.bincount(minlength=config.vocab_size).double() + 0.5
    nats = -(learned / learned.sum()).log()[data.validation.tokens]
    tally = dd.Tally()
    tally.add(nats, num_bytes=data.validation.num_bytes)
    return float(-torch.xlogy(law, law).sum()), tally


def evaluate(config: Config, trained: dict[str, Trained], data: Data) -> tuple[dict[str, dd.Tally], dd.Tally]:
    """Bounds of both models on all validation windows, and their paired difference, masked minus hierarchical."""
    nats = {
        name: validate(config, run.process, run.model, data.validation, config.passes) for name, run in trained.items()
    }
    tallies = {name: dd.Tally() for name in nats}
    for name, tally in tallies.items():
        tally.add(nats[name], num_bytes=data.validation.num_bytes)
    difference = dd.Tally()
    difference.add(nats["masked"] - nats["hierarchical"], num_bytes=data.validation.num_bytes)
    return tallies, difference
