"""Masked against hierarchical diffusion on real text, in minutes on a laptop's CPU.

    python -m recipes.quickstart

Composes a two-level hierarchy of token clusters, trains masked and hierarchical diffusion on the
State of the Union addresses at equal budget (same network, same data order, same keyed noise),
measures both bounds on the most recent speeches, samples from both and draws
runs/quickstart/quickstart.png.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from rich.console import Console
from torch import Tensor

import ddlib as dd
from ddlib.hierarchies import save_clusters
from ddlib.vocabulary import fingerprint
from recipes.comparison.figure import write_figure
from recipes.comparison.training import Config, Data, Trained, baselines, documents, evaluate, train
from recipes.console import command, make_console, on_its_way, plain_errors, render
from recipes.data import Prepared, text
from recipes.embeddings import embeddings
from recipes.embeddings.grouping import given_clusters
from recipes.metrics import basis

CLUSTERS = "clusters"
"""Name of the files of the clusters, in the folder of the run."""

SMOKE = Config(
    first_year=2000,
    vocab_size=512,
    num_clusters=16,
    cluster_dim=16,
    dim=32,
    depth=1,
    heads=1,
    steps=12,
    batch_size=8,
    warmup=2,
    curve_points=2,
    curve_windows=8,
    passes=2,
    sample_steps=8,
    samples=1,
)
"""The whole pipeline at a size that teaches nothing but runs in seconds."""


@dataclass(frozen=True)
class Result:
    """Everything that the quickstart measured."""

    bounds: dict[str, dd.Tally]
    difference: dd.Tally
    entropy: float
    unigram: dd.Tally
    samples: dict[str, list[str]]
    figure: Path


def read_data(config: Config, console: Console) -> Data:
    """Read the speeches, learn the tokenizer from all but the newest, and cut both parts into
    windows.
    """
    past, newest = text.hold_out(text.load_speeches(config.first_year), config.held_out)
    tokenizer = text.train_tokenizer(text.join(past), config.vocab_size)
    stream = text.encode(tokenizer, text.join(past))
    spelled = text.token_bytes(tokenizer)
    held_out = text.windows(text.encode(tokenizer, text.join(newest)), config.window, spelled)
    train, validation = (
        documents(part, config.vocab_size)
        for part in (text.windows(stream, config.window, spelled), held_out)
    )
    # windows are full and run on into each other: no token stands for padding or for an end
    prepared = Prepared(
        config.out, tokenizer, 0, 0, 0, train, validation, fingerprint(tokenizer.get_vocab()), {}
    )
    console.print(
        f"text       {len(past)} State of the Union addresses {past[0].year}-{past[-1].year}, "
        f"{len(stream):,} tokens; validation {newest[0].year}-{newest[-1].year}, "
        f"{held_out.tokens.numel():,} tokens of "
        f"{held_out.num_bytes.sum() / held_out.tokens.numel():.2f} bytes"
    )
    return Data(prepared, stream, held_out)


def word_vectors(config: Config, data: Data) -> Float[Tensor, "V dim"]:
    """Return the vectors of the words that are clustered."""
    return embeddings.word_embeddings(
        data.stream,
        config.vocab_size,
        config.cluster_dim,
        reach=config.cluster_reach,
        seed=config.seed,
    )


def make_clusters(
    config: Config, data: Data, console: Console
) -> tuple[Int[Tensor, " V"], list[str]]:
    """Return the parents of the words, and for each cluster its most typical word.

    Write the clusters to a file.
    """
    vectors = word_vectors(config, data)
    tokenizer = data.prepared.tokenizer
    parents = embeddings.cluster(vectors, config.num_clusters, seed=config.seed)
    counts = data.stream.bincount(minlength=config.vocab_size)
    typical = [
        [tokenizer.decode([word]).strip() or "¶" for word in words]
        for words in embeddings.typical_words(vectors, parents, counts, num=6)
    ]
    mass = torch.zeros(len(typical)).index_add(0, parents, counts.float())
    console.print(
        f"hierarchy  {config.vocab_size} tokens -> {len(typical)} clusters -> 1 mask; some "
        "clusters:"
    )
    for cluster in mass.argsort(descending=True)[1::6][:8].tolist():
        console.print("             " + " ".join(typical[cluster]), markup=False)
    save_clusters(
        config.out / CLUSTERS, given_clusters(vectors, [parents], data.prepared.fingerprint)
    )
    return parents, [words[0] for words in typical]


def report_bounds(
    result_bounds: dict[str, dd.Tally],
    difference: dd.Tally,
    entropy: float,
    unigram: dd.Tally,
    rests_on: str,
    console: Console,
) -> None:
    console.rule(f"bound on the validation text, over {rests_on} (lower is better)", align="left")
    for name, tally in result_bounds.items():
        console.print(f"  {name:<14}<= {tally.per_token}   <= {tally.bits_per_byte}")
    console.print(f"  {'unigram model':<14} = {unigram.per_token}    = {unigram.bits_per_byte}")
    console.print(
        f"  {'entropy':<14} = {entropy:.4f} nats/token of the validation text's token frequencies"
    )
    gap = difference.per_token
    winner = "hierarchical" if gap.value > 0 else "masked"
    sure = abs(gap.value) > 2 * gap.standard_error
    console.print(
        f"  {winner} is lower by {abs(gap.value):.4f} ± {gap.standard_error:.4f} nats/token "
        f"(paired: same windows)" + ("" if sure else "; within two standard errors, so a tie")
    )
    console.print(
        "  ± is one standard error over windows; it does not include that over training runs",
        style="dim",
    )


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
        temperature=config.temperature,
        top_p=config.top_p,
        generator=torch.Generator().manual_seed(config.seed),
        on_step=lambda step, t, z: trace.append((float(t[0]), z[0].clone())),
    )
    return Samples([data.prepared.tokenizer.decode(row.tolist()) for row in tokens], trace)


def show_samples(
    name: str, samples: Samples, data: Data, names: list[str], console: Console
) -> None:
    console.rule(f"{name}: a sample as it denoises", align="left")
    for wanted in (1.0, 0.75, 0.5, 0.25, 0.1, 0.0):
        t, states = min(samples.trace, key=lambda snapshot: abs(snapshot[0] - wanted))
        console.print(on_its_way(t, render(data.prepared.tokenizer, states, names)))
    for number, sample in enumerate(samples.texts[1:], start=2):
        console.print(f"sample {number}", style="bold")
        console.print(sample, markup=False)


def run(config: Config, console: Console) -> Result:
    """The experiment from the text to the figure."""
    started = time.perf_counter()
    config.out.mkdir(parents=True, exist_ok=True)
    data = read_data(config, console)
    _, names = make_clusters(config, data, console)
    processes = {
        "masked": "mdlm",
        "hierarchical": {"kind": "hdlm", "clusters": str(config.out / CLUSTERS)},
    }

    size = f"{config.steps} steps of {config.batch_size} x {config.window} tokens each"
    console.rule(f"training: both at the same time, {size}", align="left")
    trained = train(config, processes, data, console)

    bounds, difference = evaluate(config, trained, data)
    entropy, unigram = baselines(config, data)
    rests_on = basis(len(data.validation.tokens), config.passes)
    report_bounds(bounds, difference, entropy, unigram, rests_on, console)

    samples = {name: draw_samples(config, model, data) for name, model in trained.items()}
    for name in trained:
        clusters = names if trained[name].process.hierarchy.depth > 1 else []
        show_samples(name, samples[name], data, clusters, console)

    figure = config.out / "quickstart.png"
    write_figure(
        figure,
        hierarchical := trained["hierarchical"].process,
        trained["masked"].process,
        config.weight_clip,
        {name: model.curve for name, model in trained.items()},
        unigram.per_token.value,
        [
            (t, hierarchical.level_of(states[None])[0])
            for t, states in samples["hierarchical"].trace
        ],
    )
    console.rule(align="left")
    console.print(f"figure {figure}; all of it took {time.perf_counter() - started:.0f} s")
    return Result(
        bounds, difference, entropy, unigram, {name: s.texts for name, s in samples.items()}, figure
    )


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.quickstart", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--steps", type=int, help=f"training steps of each model (default {Config.steps})"
    )
    parser.add_argument("--seed", type=int, help=f"of everything random (default {Config.seed})")
    parser.add_argument("--out", type=Path, help=f"folder for the figure (default {Config.out})")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="the whole pipeline, tiny: seconds, and numbers without meaning",
    )
    given = vars(parser.parse_args(arguments))
    base = SMOKE if given.pop("smoke") else Config()
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("steps", 1) < 1:
        parser.error(f"--steps {chosen['steps']}: must be at least 1")
    with plain_errors():
        return run(replace(base, **chosen), make_console())


if __name__ == "__main__":
    command(main)
