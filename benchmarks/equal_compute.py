"""Benefit of an output layer over children: masks and hierarchies under 50,257 tokens at equal CPU seconds.

    python -m benchmarks.equal_compute prepare TOKENS WORK       # the .xz file of benchmarks.corpus
    python -m benchmarks.equal_compute speed WORK                # on an idle machine: the cost of a step
    python -m benchmarks.equal_compute train WORK --part 0 --of 2         # in turn; repeat to resume after a kill
    python -m benchmarks.equal_compute report WORK --out benchmarks/results/equal_compute.json

Protocol and expectations are in docs/children.md, written before the runs. One thread. The cost of a step is measured
once, side by side; every run then makes the number of steps that ``SECONDS`` of processor time allow at that cost, so
its result does not depend on other load on the machine.
"""

import argparse
import json
import lzma
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ddlib as dd
from benchmarks.corpus import spans
from benchmarks.measuring import in_its_own_process, machine, medians, seconds
from benchmarks.run import KEEP
from ddlib.hierarchies import load_clusters, save_clusters, semantic_clusters
from ddlib.parameterization.logits import output_layer
from ddlib.processes import ForwardProcess
from ddlib_models import DiT
from recipes.config import Optimizer
from recipes.embeddings.neighbours import neighbourhoods
from recipes.embeddings.starting import log_probs, state_vectors
from recipes.engine.optimizer import Average, optimizers, rate, update

WORDS, LENGTH, BATCH, WIDTH, SECONDS, SEEDS = 50_257, 128, 16, 128, 800.0, (0, 1)
SOURCES = {name.replace("_", " "): span for name, span in spans().items()}
"""First token and number of tokens."""
HELD_OUT = "moby dick"
"""The source outside of the training text; of the others the last tenth is held out."""
GPT2 = "gpt2"
"""Name in place of a fingerprint: no tokenizer is available, the tokens are GPT-2's."""
TREES = {"224": [224], "1369-37": [1369, 37]}
WINDOWS, DRAWS, POINTS = 100, 4, 8
"""Held-out windows of each source, draws of times and noise for each, and points of a curve."""
OPTIMIZER = Optimizer(lr=3e-3, warmup=20, final=0.05, weight_decay=0.02, muon=True, ema=0.995)
CLIP = dd.weightings.Clip(2.0)


class Run(NamedTuple):
    """A process, the tree of its noise, and that of its output."""

    noise: str | None
    head: str | None
    equal_steps_of: str | None = None
    """The run with the same number of steps, whatever the cost."""


RUNS = {
    "MDLM, words": Run(None, None),
    "MDLM, children": Run(None, "224"),
    "HDLM, words": Run("224", None),
    "HDLM, children": Run("224", "224"),
    "HDLM, three levels, children": Run("1369-37", "1369-37"),
    "MDLM, children, as many steps": Run(None, "224", "MDLM, words"),
    "HDLM, children, as many steps": Run("224", "224", "HDLM, words"),
}


class Text:
    """Tokens of WORK, for training and held out."""

    def __init__(self, work: Path) -> None:
        self.tokens = torch.from_numpy(np.load(work / "tokens.npy").astype(np.int64))
        kept = {name: int(count * 0.9) for name, (_, count) in SOURCES.items() if name != HELD_OUT}
        self.training = torch.cat([self.tokens[SOURCES[name][0] :][:count] for name, count in kept.items()])

    def batch(self, seed: int, step: int) -> Int[Tensor, "B L"]:
        """Return windows of the training text, the same for every run of a seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        first = torch.randint(len(self.training) - LENGTH, (BATCH, 1), generator=generator)
        return self.training[first + torch.arange(LENGTH)]

    def held_out(self, name: str) -> Int[Tensor, "n L"]:
        """Return held-out windows of a source, evenly spaced."""
        start, count = SOURCES[name]
        start, count = (start, count) if name == HELD_OUT else (start + int(count * 0.9), count - int(count * 0.9))
        first = torch.linspace(0, count - LENGTH, WINDOWS, dtype=torch.float64).long()[:, None]
        return self.tokens[start + first + torch.arange(LENGTH)]


class Model:
    """A network with its process and the parameterization of its output."""

    def __init__(self, run: Run, work: Path, seed: int) -> None:
        trees = {name: list(load_clusters(work / f"clusters-{name}", GPT2).parents) for name in TREES}
        self.process: ForwardProcess = dd.presets.hdlm_levels(trees[run.noise]) if run.noise else dd.presets.mdlm(WORDS)
        torch.manual_seed(seed)
        tree = trees[run.head] if run.head else None
        self.net = DiT(self.process.num_states, WORDS, dim=WIDTH, depth=4, heads=4, tree=tree)
        statistics = torch.load(work / "statistics.pt")
        self.net.start_at(
            log_probs(statistics["counts"]),
            state_vectors(self.process, statistics["counts"], 0.3 * WIDTH**0.5 * statistics["vectors"]),
        )
        self.meaning = dd.Children.of(self.net) if run.head else "cavity"

    def noised(self, x: Tensor, noise: dd.KeyedGenerator) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, states, times."""
        t = dd.sample_times(len(x), generator=noise)
        return x, self.process.sample(x, t, noise), t

    def layer(self, z: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        """Return features, matrix, bias."""
        return self.net.features(z, t), *output_layer(self.net, self.meaning)

    def loss(self, x: Tensor, noise: dd.KeyedGenerator) -> Tensor:
        """Compute the training loss."""
        x, z, t = self.noised(x, noise)
        features, weight, bias = self.layer(z, t)
        return dd.linear_training_loss(
            self.process, features, weight, x, z, t, bias, CLIP, parameterization=self.meaning
        )

    @torch.no_grad()
    def bound(self, windows: Tensor, draw: int) -> Float[Tensor, " n"]:
        """Return the nats of each window, by one draw of times and noise, the same for every run of a process."""
        found = []
        for index in torch.arange(len(windows)).split(20):
            x, z, t = self.noised(windows[index], dd.KeyedGenerator(12345, draw, index))
            features, weight, bias = self.layer(z, t)
            found.append(
                dd.linear_nelbo(self.process, features, weight, x, z, t, bias, parameterization=self.meaning).sum(1)
            )
        return torch.cat(found).double()


def prepare(tokens: Path, work: Path) -> None:
    """Prepare the unpacked tokens, the tokens' neighbourhoods and the clusters, from the training text alone."""
    work.mkdir(parents=True, exist_ok=True)
    np.save(work / "tokens.npy", np.frombuffer(lzma.decompress(tokens.read_bytes()), dtype="<u2"))
    text = Text(work).training
    statistics = {"counts": text.bincount(minlength=WORDS), "vectors": neighbourhoods(text, WORDS, WIDTH)}
    torch.save(statistics, work / "statistics.pt")
    vectors = neighbourhoods(text, WORDS)
    for name, counts in TREES.items():
        found = semantic_clusters(vectors, counts, nested="up", fingerprint=GPT2)
        save_clusters(work / f"clusters-{name}", found)


class Training:
    """Network, optimizers and text of a run."""

    def __init__(self, name: str, work: Path, seed: int, text: Text) -> None:
        self.model, self.text, self.seed, self.steps = Model(RUNS[name], work, seed), text, seed, 0
        self.average = Average(self.model.net, OPTIMIZER.ema)
        self.optimizers = optimizers(self.model.net, OPTIMIZER)

    def step(self, of: int) -> None:
        """Take one of ``of`` steps."""
        noise = dd.KeyedGenerator(self.seed, self.steps, torch.arange(BATCH))
        self.model.loss(self.text.batch(self.seed, self.steps), noise).backward()
        nn.utils.clip_grad_norm_(self.model.net.parameters(), OPTIMIZER.max_grad_norm)
        update(self.optimizers, rate(OPTIMIZER, round(1000 * self.steps / of), 1000))
        self.average.update(self.steps)
        self.steps += 1


def speed(work: Path) -> dict[str, Any]:
    """Return the CPU seconds of one training step of every run, in turns, with all measurements."""
    text = Text(work)
    runs = {name: Training(name, work, 0, text) for name, run in RUNS.items() if not run.equal_steps_of}
    turns = {name: partial(run.step, 1000) for name, run in runs.items()}
    seconds(turns, 2)
    taken = seconds(turns, 15)
    return {"seconds_per_step": medians(taken), "taken": taken, "machine": machine()}


def steps_of(work: Path, name: str) -> int:
    """Return the number of steps that ``SECONDS`` allow at the measured cost."""
    prices = json.loads((work / "speed.json").read_text())["seconds_per_step"]
    return round(SECONDS / prices[RUNS[name].equal_steps_of or name])


def train(work: Path, name: str, seed: int) -> dict[str, Any]:
    """Train one run; return its curve, and the nats of every held-out window."""
    text, steps = Text(work), steps_of(work, name)
    run, curve = Training(name, work, seed, text), list[dict[str, float]]()
    windows = {source: text.held_out(source) for source in SOURCES}
    few = torch.cat([part[::10] for part in windows.values()])
    points = {steps * point // POINTS for point in range(1, POINTS)}
    while run.steps < steps:
        run.step(steps)
        if run.steps in points:
            run.average.swap()
            nats = run.model.bound(few, 0)
            run.average.swap()
            curve.append({"steps": run.steps, "nats_per_token": float(nats.mean()) / LENGTH})
            print(f"{name}, seed {seed}: {run.steps} of {steps}, {curve[-1]['nats_per_token']:.3f}", flush=True)
    run.average.swap()
    nats = {s: torch.stack([run.model.bound(w, draw) for draw in range(DRAWS)]).tolist() for s, w in windows.items()}
    return {"steps": steps, "curve": curve, "nats": nats, "machine": machine()}


def path(work: Path, name: str, seed: int) -> Path:
    """Return the path of a run's result."""
    return work / "runs" / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}.json"


def train_all(work: Path, part: int, of: int, names: Sequence[str]) -> None:
    """Train every ``of``-th run that has no result yet."""
    (work / "runs").mkdir(exist_ok=True)
    for name, seed in [(name, seed) for seed in SEEDS for name in names][part::of]:
        if not path(work, name, seed).exists():
            content = json.dumps(train(work, name, seed))
            path(work, name, seed).write_text(content)


def nats_per_token(results: dict[str, Any], source: str | None = None) -> Float[Tensor, " n"]:
    """Return nats per token of every held-out window, or those of one source; the mean over draws."""
    found = results["nats"].values() if source is None else [results["nats"][source]]
    return torch.cat([torch.tensor(draws).mean(0) for draws in found]) / LENGTH


def measured(values: Float[Tensor, " n"]) -> dict[str, float]:
    """Return the mean over windows and its standard error."""
    return {"value": float(values.mean()), "error": float(values.std() / len(values) ** 0.5)}


def report(work: Path) -> dict[str, Any]:
    """Return the content of the result file: bounds, differences over the same windows, times and noise, curves."""
    found = []
    for seed in SEEDS:
        results = {
            name: json.loads(path(work, name, seed).read_text()) for name in RUNS if path(work, name, seed).exists()
        }
        for name, one in results.items():
            against = {
                other: measured(nats_per_token(one) - nats_per_token(results[other]))
                for other in results
                if other != name
            }
            found.append(
                {
                    "run": name, "seed": seed, "bound": measured(nats_per_token(one)), "less": against,
                    "by_source": {source: measured(nats_per_token(one, source)) for source in SOURCES},
                    **{key: one[key] for key in ("steps", "curve", "machine")},
                }
            )  # fmt: skip
    prices = json.loads((work / "speed.json").read_text())
    return {"command": "python -m benchmarks.equal_compute", "speed": prices, "runs": found}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "speed", "train", "report"):
        commands.add_parser(name)
    commands.choices["prepare"].add_argument("tokens", type=Path)
    for command in commands.choices.values():
        command.add_argument("work", type=Path)
    commands.choices["speed"].add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    commands.choices["train"].add_argument("--part", type=int, default=0)
    commands.choices["train"].add_argument("--of", type=int, default=1)
    commands.choices["train"].add_argument("--only", nargs="+", default=list(RUNS), choices=RUNS, metavar="RUN")
    commands.choices["report"].add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "prepare":
        prepare(options.tokens, options.work)
    elif options.command == "speed":
        if options.here:
            print(json.dumps(speed(options.work)))
            return
        os.environ.update(KEEP)
        found = in_its_own_process("equal_compute", "speed", str(options.work), "--here")
        (options.work / "speed.json").write_text(found)
    elif options.command == "train":
        train_all(options.work, options.part, options.of, options.only)
    else:
        options.out.write_text(json.dumps(report(options.work), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
