"""Masked against hierarchical diffusion on real text, in minutes on a laptop's CPU.

    python -m recipes.quickstart

Composes a two-level hierarchy out of word clusters, trains masked and hierarchical diffusion on the State of the Union
addresses at equal budget (same network, same data order, same keyed noise), measures both bounds on the most recent
speeches, samples from both and draws runs/quickstart/quickstart.png.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

import ddlib as dd
from ddlib_models import DiT
from recipes import embeddings, text
from recipes.console import make_console, render, training_progress
from recipes.figure import Curve, write_figure


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
    depth: int = 3
    heads: int = 4

    steps: int = 700
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup: int = 40
    weight_decay: float = 0.1
    weight_clip: tuple[float, float] = (0.0, 2.0)
    max_grad_norm: float = 1.0

    curve_points: int = 8
    curve_windows: int = 128
    passes: int = 4
    sample_steps: int = 128
    samples: int = 2
    temperature: float = 1.0
    top_p: float = 0.9


SMOKE = Config(
    first_year=2000, vocab_size=512, num_clusters=16, cluster_dim=16, dim=32, depth=1, heads=1, steps=12, batch_size=8,
    warmup=2, curve_points=2, curve_windows=8, passes=2, sample_steps=8, samples=1,
)  # fmt: skip
"""The whole pipeline at a size that teaches nothing but runs in seconds."""


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


@dataclass(frozen=True)
class Result:
    """What the quickstart measured."""

    bounds: dict[str, dd.Tally]
    difference: dd.Tally
    entropy: float
    unigram: dd.Tally
    samples: dict[str, list[str]]
    figure: Path


def read_data(config: Config, console: Console) -> Data:
    train, validation = text.hold_out(text.load_speeches(config.first_year), config.held_out)
    tokenizer = text.train_tokenizer(text.join(train), config.vocab_size)
    stream = text.encode(tokenizer, text.join(train))
    spelled = text.token_bytes(tokenizer)
    held_out = text.windows(text.encode(tokenizer, text.join(validation)), config.window, spelled)
    data = Data(tokenizer, stream, text.windows(stream, config.window, spelled), held_out)
    console.print(
        f"text       {len(train)} State of the Union addresses {train[0].year}-{train[-1].year}, {len(stream):,} tokens; "
        f"validation {validation[0].year}-{validation[-1].year}, {held_out.tokens.numel():,} tokens of "
        f"{held_out.num_bytes.sum() / held_out.tokens.numel():.2f} bytes"
    )
    return data


def make_clusters(config: Config, data: Data, console: Console) -> tuple[Int[Tensor, " V"], list[str]]:
    """Parents of the words, and a name for each cluster: its most typical word."""
    vectors = embeddings.word_embeddings(
        data.stream, config.vocab_size, config.cluster_dim, reach=config.cluster_reach, seed=config.seed
    )
    parents = embeddings.cluster(vectors, config.num_clusters, seed=config.seed)
    counts = data.stream.bincount(minlength=config.vocab_size)
    typical = [
        [data.tokenizer.decode([word]).strip() or "¶" for word in words]
        for words in embeddings.typical_words(vectors, parents, counts, num=6)
    ]
    mass = torch.zeros(len(typical)).index_add(0, parents, counts.float())
    console.print(f"hierarchy  {config.vocab_size} words -> {len(typical)} clusters -> 1 mask; some clusters:")
    for cluster in mass.argsort(descending=True)[1::6][:8].tolist():
        console.print("             " + " ".join(typical[cluster]), markup=False)
    return parents, [words[0] for words in typical]


def make_model(config: Config, process: dd.processes.Hierarchical, data: Data) -> DiT:
    """A DiT that starts at the unigram law, with the corpus's own word embeddings."""
    torch.manual_seed(config.seed)
    model = DiT(process.num_states, process.vocab_size, config.dim, config.depth, config.heads)
    counts = data.stream.bincount(minlength=process.vocab_size).float()
    vectors = embeddings.word_embeddings(data.stream, process.vocab_size, config.dim, reach=2, seed=config.seed)
    with torch.no_grad():
        model.head.bias.copy_(((counts + 0.5) / (counts + 0.5).sum()).log())
        model.embedding.weight[: process.vocab_size] = 0.1 * config.dim**0.5 * vectors
    return model


def make_optimizers(config: Config, model: DiT) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the blocks' matrices, AdamW for all else.

    With AdamW alone a run this short never leaves the unigram plateau.
    """
    matrices = [p for name, p in model.blocks.named_parameters() if p.ndim == 2 and "modulation" not in name]
    held = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in held]
    return [
        torch.optim.Muon(
            matrices, lr=config.learning_rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
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
    with training_progress(console, name, config.steps, config.batch_size * config.window) as report:
        for step in range(config.steps):
            position = torch.arange(step * config.batch_size, (step + 1) * config.batch_size)
            noise = dd.KeyedGenerator(seed=config.seed, step=step, index=position)
            x = data.train.tokens[order[position]]
            t = dd.sample_times(len(x), generator=noise)
            z = process.sample(x, t, generator=noise)
            with fast_matmul():
                logits = model(z, t)
            loss = dd.training_loss(process, logits, x, z, t, weight_clip=config.weight_clip)
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
    """The bound in nats per token, averaged over ``passes`` draws of time and noise; the same draws for every model."""
    was_training = model.training
    model.eval()
    rows = []
    for start in range(0, len(windows.tokens), 128):
        x = windows.tokens[start : start + 128]
        index = torch.arange(start, start + len(x))
        draws = [
            dd.bound(process, model, x, dd.KeyedGenerator(seed=config.seed + 1, step=step, index=index)).total
            for step in range(passes)
        ]
        rows.append(torch.stack(draws).mean(0))
    model.train(was_training)
    return torch.cat(rows)


def baselines(config: Config, data: Data) -> tuple[float, dd.Tally]:
    """Words drawn independently: entropy of the validation text in nats per token; nats under the training frequencies."""
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


def report_bounds(
    result_bounds: dict[str, dd.Tally], difference: dd.Tally, entropy: float, unigram: dd.Tally, console: Console
) -> None:
    console.rule("bound on the validation text (lower is better)", align="left")
    for name, tally in result_bounds.items():
        console.print(f"  {name:<14}<= {tally.per_token}   <= {tally.bits_per_byte}")
    console.print(f"  {'unigram model':<14} = {unigram.per_token}    = {unigram.bits_per_byte}")
    console.print(f"  {'entropy':<14} = {entropy:.4f} nats/token of the validation text's own word frequencies")
    gap = difference.per_token
    winner = "hierarchical" if gap.value > 0 else "masked"
    sure = abs(gap.value) > 2 * gap.standard_error
    console.print(
        f"  {winner} is lower by {abs(gap.value):.4f} ± {gap.standard_error:.4f} nats/token "
        f"(paired: same windows, times and noise)" + ("" if sure else "; within two standard errors, so a tie")
    )
    console.print("  ± is one standard error over windows; it does not include that over training runs", style="dim")


@dataclass(frozen=True)
class Samples:
    """Finished text, and one sample's states on the way."""

    texts: list[str]
    trace: list[tuple[float, Int[Tensor, " L"]]]


def draw_samples(config: Config, run: Trained, data: Data) -> Samples:
    trace: list[tuple[float, Tensor]] = []
    tokens = dd.sample(
        run.process,
        run.model,
        (config.samples, config.window),
        sampler=dd.samplers.Ancestral(),
        steps=config.sample_steps,
        top_p=config.top_p,
        generator=torch.Generator().manual_seed(config.seed),
        on_step=lambda step, t, z: trace.append((float(t[0]), z[0].clone())),
    )
    return Samples([data.tokenizer.decode(row.tolist()) for row in tokens], trace)


def show_samples(name: str, samples: Samples, data: Data, names: list[str], console: Console) -> None:
    console.rule(f"{name}: a sample as it denoises", align="left")
    for wanted in (1.0, 0.75, 0.5, 0.25, 0.1, 0.0):
        t, states = min(samples.trace, key=lambda snapshot: abs(snapshot[0] - wanted))
        console.print(f"t = {t:.2f}", style="bold")
        console.print(render(data.tokenizer, states, names))
    for number, sample in enumerate(samples.texts[1:], start=2):
        console.print(f"sample {number}", style="bold")
        console.print(sample, markup=False)


def run(config: Config, console: Console) -> Result:
    """The experiment from the text to the figure."""
    started = time.perf_counter()
    config.out.mkdir(parents=True, exist_ok=True)
    data = read_data(config, console)
    parents, names = make_clusters(config, data, console)

    tree = dd.hierarchies.Tree([parents])
    processes = {
        "masked": dd.presets.mdlm(config.vocab_size),
        "hierarchical": dd.processes.Hierarchical(tree, dd.schedules.Linear()),
    }

    console.rule(f"training: {config.steps} steps of {config.batch_size} x {config.window} tokens each", align="left")
    trained = {name: train(config, name, process, data, console) for name, process in processes.items()}

    bounds, difference = evaluate(config, trained, data)
    entropy, unigram = baselines(config, data)
    report_bounds(bounds, difference, entropy, unigram, console)

    samples = {name: draw_samples(config, model, data) for name, model in trained.items()}
    for name in trained:
        show_samples(name, samples[name], data, names, console)

    figure = config.out / "quickstart.png"
    write_figure(
        figure,
        processes["hierarchical"],
        processes["masked"],
        config.weight_clip[1],
        {name: model.curve for name, model in trained.items()},
        unigram.per_token.value,
        [(t, tree.level_of(states)) for t, states in samples["hierarchical"].trace],
    )
    console.rule(align="left")
    console.print(f"figure {figure}; all of it took {time.perf_counter() - started:.0f} s")
    return Result(bounds, difference, entropy, unigram, {name: s.texts for name, s in samples.items()}, figure)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(prog="python -m recipes.quickstart", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help=f"training steps of each model (default {Config.steps})")
    parser.add_argument("--seed", type=int, help=f"of everything random (default {Config.seed})")
    parser.add_argument("--out", type=Path, help=f"folder for the figure (default {Config.out})")
    parser.add_argument(
        "--smoke", action="store_true", help="the whole pipeline, tiny: seconds, and numbers without meaning"
    )
    given = vars(parser.parse_args(arguments))
    base = SMOKE if given.pop("smoke") else Config()
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("steps", 1) < 1:
        parser.error(f"--steps {chosen['steps']}: must be at least 1")
    return run(replace(base, **chosen), make_console())


if __name__ == "__main__":
    main()
