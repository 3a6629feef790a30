"""What an output layer over children is worth: masks and hierarchies under 50,257 words at equal CPU seconds.

    python -m benchmarks.equal_compute prepare TOKENS WORK       # TOKENS as of benchmarks.public_domain
    python -m benchmarks.equal_compute train WORK --part 0 --of 2         # in turn; again to go on after a kill
    python -m benchmarks.equal_compute report WORK --out benchmarks/results/equal_compute.json

The protocol and what was expected stand in docs/children.md, written before the runs. One thread; a run ends when its
training steps have taken ``SECONDS`` of processor time, and its learning rate falls by that clock.
"""

import argparse
import json
import lzma
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ddlib as dd
from benchmarks.measuring import machine
from ddlib.hierarchies import load_clusters, save_clusters, semantic_clusters
from ddlib.processes import ForwardProcess
from ddlib_models import DiT
from recipes.config import Optimizer
from recipes.engine.optimizer import Average, optimizers, rate, update
from recipes.lexicon.grouping import neighbourhoods
from recipes.lexicon.starting import log_law, state_vectors

WORDS, LENGTH, BATCH, WIDTH, SECONDS, SEEDS = 50_257, 128, 16, 128, 800.0, (0, 1)
SOURCES = {
    "poetry": (0, 29_644_930),
    "state of the union": (29_644_930, 2_389_405),
    "spurgeon": (32_034_335, 2_831_749),
    "austen": (34_866_084, 993_308),
    "moby dick": (35_859_392, 317_757),
    "king james": (36_177_149, 1_001_553),
}
"""First token and number of tokens."""
HELD_OUT = "moby dick"
"""The source that nobody trains on; of the others the last tenth is held out."""
GPT2 = "gpt2"
"""In place of a fingerprint: no tokenizer is at hand, the tokens are its."""
TREES = {"224": [224], "1369-37": [1369, 37]}
WINDOWS, DRAWS, POINTS = 100, 4, 8
"""Held-out windows of each source, draws of times and noise for each, and points of a curve."""
OPTIMIZER = Optimizer(lr=3e-3, warmup=20, final=0.05, weight_decay=0.02, muon=True, ema=0.995)
CLIP = (0.0, 2.0)


class Run(NamedTuple):
    """A process, the tree of its noise, and of its output."""

    noise: str | None
    head: str | None
    equal_steps_of: str | None = None
    """The run whose number of steps this one makes, in place of its seconds."""


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
    """The tokens of WORK, to train on and held out."""

    def __init__(self, work: Path) -> None:
        self.tokens = torch.from_numpy(np.load(work / "tokens.npy").astype(np.int64))
        kept = {name: int(count * 0.9) for name, (_, count) in SOURCES.items() if name != HELD_OUT}
        self.training = torch.cat([self.tokens[SOURCES[name][0] :][:count] for name, count in kept.items()])

    def batch(self, seed: int, step: int) -> Int[Tensor, "B L"]:
        """Windows of the training text, the same for every run of a seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        first = torch.randint(len(self.training) - LENGTH, (BATCH, 1), generator=generator)
        return self.training[first + torch.arange(LENGTH)]

    def held_out(self, name: str) -> Int[Tensor, "n L"]:
        """Windows of a source that nobody trained on, evenly spaced."""
        start, count = SOURCES[name]
        start, count = (start, count) if name == HELD_OUT else (start + int(count * 0.9), count - int(count * 0.9))
        first = torch.linspace(0, count - LENGTH, WINDOWS, dtype=torch.float64).long()[:, None]
        return self.tokens[start + first + torch.arange(LENGTH)]


class Model:
    """A network with its process and what its output means."""

    def __init__(self, run: Run, work: Path, seed: int) -> None:
        trees = {name: list(load_clusters(work / f"clusters-{name}", GPT2).parents) for name in TREES}
        self.process: ForwardProcess = dd.presets.hdlm_levels(trees[run.noise]) if run.noise else dd.presets.mdlm(WORDS)
        torch.manual_seed(seed)
        tree = trees[run.head] if run.head else None
        self.net = DiT(self.process.num_states, WORDS, dim=WIDTH, depth=4, heads=4, tree=tree)
        known = torch.load(work / "statistics.pt")
        self.net.start_at(
            log_law(known["counts"]),
            state_vectors(self.process, known["counts"], 0.3 * WIDTH**0.5 * known["vectors"]),
        )
        self.meaning = dd.Children.of(self.net) if run.head else "cavity"

    def noised(self, x: Tensor, noise: dd.KeyedGenerator) -> tuple[Tensor, Tensor, Tensor]:
        """Words, states, times."""
        t = dd.sample_times(len(x), generator=noise)
        return x, self.process.sample(x, t, noise), t

    def layer(self, z: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        """Features, matrix, bias."""
        weight, bias = self.net.siblings()[:2] if isinstance(self.meaning, dd.Children) else self.net.words()
        return self.net.features(z, t), weight, bias

    def loss(self, x: Tensor, noise: dd.KeyedGenerator) -> Tensor:
        """The training loss."""
        x, z, t = self.noised(x, noise)
        features, weight, bias = self.layer(z, t)
        return dd.linear_training_loss(
            self.process, features, weight, x, z, t, bias, CLIP, parameterization=self.meaning
        )

    @torch.no_grad()
    def bound(self, windows: Tensor, draw: int) -> Float[Tensor, " n"]:
        """Nats of each window, by one draw of times and noise that is the same for every run of a process."""
        found = []
        for index in torch.arange(len(windows)).split(20):
            x, z, t = self.noised(windows[index], dd.KeyedGenerator(12345, draw, index))
            features, weight, bias = self.layer(z, t)
            found.append(
                dd.linear_nelbo(self.process, features, weight, x, z, t, bias, parameterization=self.meaning).sum(1)
            )
        return torch.cat(found).double()


def prepare(tokens: Path, work: Path) -> None:
    """The tokens unpacked, the words' neighbourhoods and the clusters: by the training text alone."""
    work.mkdir(parents=True, exist_ok=True)
    np.save(work / "tokens.npy", np.frombuffer(lzma.decompress(tokens.read_bytes()), dtype="<u2"))
    text = Text(work).training
    statistics = {"counts": text.bincount(minlength=WORDS), "vectors": neighbourhoods(text, WORDS, WIDTH)}
    torch.save(statistics, work / "statistics.pt")
    vectors = neighbourhoods(text, WORDS)
    for name, counts in TREES.items():
        found = semantic_clusters(vectors, counts, nested="up", fingerprint=GPT2)
        save_clusters(work / f"clusters-{name}", found)


def train(work: Path, name: str, seed: int) -> dict[str, Any]:
    """One run: its curve over processor seconds, and the nats of every held-out window."""
    run, text = RUNS[name], Text(work)
    model = Model(run, work, seed)
    average, chosen = Average(model.net, OPTIMIZER.ema), optimizers(model.net, OPTIMIZER)
    limit = json.loads(path(work, run.equal_steps_of, seed).read_text())["steps"] if run.equal_steps_of else None
    windows = {source: text.held_out(source) for source in SOURCES}
    few = torch.cat([part[::10] for part in windows.values()])
    spent, step, curve = 0.0, 0, list[dict[str, float]]()

    def done() -> float:
        return spent / SECONDS if limit is None else step / limit

    while done() < 1:
        begin = time.process_time()
        noise = dd.KeyedGenerator(seed, step, torch.arange(BATCH))
        model.loss(text.batch(seed, step), noise).backward()
        nn.utils.clip_grad_norm_(model.net.parameters(), OPTIMIZER.max_grad_norm)
        update(chosen, rate(OPTIMIZER, round(1000 * done()), 1000))
        average.update(step)
        spent, step = spent + time.process_time() - begin, step + 1
        if done() >= (len(curve) + 1) / POINTS and len(curve) + 1 < POINTS:
            average.swap()
            nats = model.bound(few, 0)
            average.swap()
            curve.append({"seconds": spent, "steps": step, "nats_per_token": float(nats.mean()) / LENGTH})
            print(f"{name}, seed {seed}: {spent:.0f} s, {step} steps, {curve[-1]['nats_per_token']:.3f}", flush=True)
    average.swap()
    nats = {s: torch.stack([model.bound(w, draw) for draw in range(DRAWS)]).tolist() for s, w in windows.items()}
    return {"seconds": spent, "steps": step, "curve": curve, "nats": nats, "machine": machine()}


def path(work: Path, name: str, seed: int) -> Path:
    """Where a run's result lies."""
    return work / "runs" / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}.json"


def train_all(work: Path, part: int, of: int, names: Sequence[str]) -> None:
    """Every ``of``-th run that has no result yet; those that need another's steps come last."""
    (work / "runs").mkdir(exist_ok=True)
    wanted = [(name, seed) for seed in SEEDS for name in names]
    for name, seed in sorted(wanted, key=lambda one: RUNS[one[0]].equal_steps_of is not None)[part::of]:
        if not path(work, name, seed).exists():
            told = json.dumps(train(work, name, seed))
            path(work, name, seed).write_text(told)


def nats_per_token(told: dict[str, Any], source: str | None = None) -> Float[Tensor, " n"]:
    """Of every held-out window, or those of one source; the mean over draws."""
    found = told["nats"].values() if source is None else [told["nats"][source]]
    return torch.cat([torch.tensor(draws).mean(0) for draws in found]) / LENGTH


def measured(values: Float[Tensor, " n"]) -> dict[str, float]:
    """Mean over windows and its standard error."""
    return {"value": float(values.mean()), "error": float(values.std() / len(values) ** 0.5)}


def report(work: Path) -> dict[str, Any]:
    """What the result file holds: bounds, their differences over the same windows, times and noise, and curves."""
    found = []
    for seed in SEEDS:
        told = {
            name: json.loads(path(work, name, seed).read_text()) for name in RUNS if path(work, name, seed).exists()
        }
        for name, one in told.items():
            against = {
                other: measured(nats_per_token(one) - nats_per_token(told[other])) for other in told if other != name
            }
            found.append(
                {
                    "run": name, "seed": seed, "bound": measured(nats_per_token(one)), "less": against,
                    "by_source": {source: measured(nats_per_token(one, source)) for source in SOURCES},
                    **{key: one[key] for key in ("seconds", "steps", "curve", "machine")},
                }
            )  # fmt: skip
    return {"command": "python -m benchmarks.equal_compute", "runs": found}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "train", "report"):
        commands.add_parser(name)
    commands.choices["prepare"].add_argument("tokens", type=Path)
    for command in commands.choices.values():
        command.add_argument("work", type=Path)
    commands.choices["train"].add_argument("--part", type=int, default=0)
    commands.choices["train"].add_argument("--of", type=int, default=1)
    commands.choices["train"].add_argument("--only", nargs="+", default=list(RUNS), choices=RUNS, metavar="RUN")
    commands.choices["report"].add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "prepare":
        prepare(options.tokens, options.work)
    elif options.command == "train":
        train_all(options.work, options.part, options.of, options.only)
    else:
        options.out.write_text(json.dumps(report(options.work), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
