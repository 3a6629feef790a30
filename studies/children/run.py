"""Benefit of an output layer over children.

Masks and hierarchies under 50,257 tokens at equal CPU seconds.

Protocol and expectations were written before the runs. One thread. The cost of
a step is measured once, side by side; every run then makes the number of steps that 800 seconds of
processor time allow at that cost, so its result does not depend on other load on the machine.

A record of the code: it ran at commit e19c7eeb, and protocol.md has the commands.
"""

import json
import lzma
import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ddlib as dd
from benchmarks.measuring import in_its_own_process, machine, medians, seconds
from benchmarks.run import KEEP
from ddlib.hierarchies import load_clusters, save_clusters, semantic_clusters
from ddlib.processes import ForwardProcess
from ddlib_models import DiT
from recipes.config import Optimizer
from recipes.embeddings.neighbours import neighbourhoods
from recipes.embeddings.starting import log_probs, state_vectors
from recipes.engine.optimizer import Average, optimizers, rate, update
from studies import smoke
from studies.children import page as equal_page
from studies.corpus.build import FILE, spans
from studies.study import Study

HELD_OUT = (
    "moby dick"  # the source outside of the training text; of the others the last tenth is held out
)
GPT2 = "gpt2"  # in place of a fingerprint: no tokenizer is available, the tokens are GPT-2's
OPTIMIZER = Optimizer(lr=3e-3, warmup=20, final=0.05, weight_decay=0.02, muon=True, ema=0.995)
CLIP = dd.weightings.Clip(2.0)


class Run(NamedTuple):
    """A process, the tree of its noise, and that of its output."""

    noise: str | None
    head: str | None
    equal_steps_of: str | None = None
    """The run with the same number of steps, whatever the cost."""


RUNS = {
    "MDLM, token logits": Run(None, None),
    "MDLM, child logits": Run(None, "224"),
    "HDLM, token logits": Run("224", None),
    "HDLM, child logits": Run("224", "224"),
    "HDLM, three levels, child logits": Run("1369-37", "1369-37"),
    "MDLM, child logits, as many steps": Run(None, "224", "MDLM, token logits"),
    "HDLM, child logits, as many steps": Run("224", "224", "HDLM, token logits"),
}


FLAGS: dict[str, dict[str, Any]] = {
    "--tokens": {"type": Path, "help": "tokens of the corpus; by default the file in WORK"},
    "--here": {"action": "store_true", "help": "speed: print the costs, measured in this process"},
    "--only": {"nargs": "+", "default": list(RUNS), "choices": RUNS, "metavar": "RUN"},
}


class Text:
    """Tokens of WORK, for training and held out."""

    def __init__(self, work: Path, study: "EqualCompute") -> None:
        self.study = study
        self.tokens = torch.from_numpy(np.load(work / "tokens.npy").astype(np.int64))
        kept = {
            name: int(count * 0.9) for name, (_, count) in study.sources.items() if name != HELD_OUT
        }
        self.training = torch.cat(
            [self.tokens[study.sources[name][0] :][:count] for name, count in kept.items()]
        )

    def batch(self, seed: int, step: int) -> Int[Tensor, "B L"]:
        """Return windows of the training text, the same for every run of a seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        length = self.study.length
        first = torch.randint(
            len(self.training) - length, (self.study.batch, 1), generator=generator
        )
        return self.training[first + torch.arange(length)]

    def held_out(self, name: str) -> Int[Tensor, "n L"]:
        """Return held-out windows of a source, evenly spaced."""
        length, (start, count) = self.study.length, self.study.sources[name]
        start, count = (
            (start, count)
            if name == HELD_OUT
            else (start + int(count * 0.9), count - int(count * 0.9))
        )
        first = torch.linspace(0, count - length, self.study.windows, dtype=torch.float64).long()[
            :, None
        ]
        return self.tokens[start + first + torch.arange(length)]


class Model:
    """A network with its process and the parameterization of its output."""

    def __init__(self, run: Run, work: Path, seed: int, study: "EqualCompute") -> None:
        trees = {
            name: list(load_clusters(work / f"clusters-{name}", GPT2).parents)
            for name in study.trees
        }
        self.process: ForwardProcess = (
            dd.presets.hdlm_levels(trees[run.noise]) if run.noise else dd.presets.mdlm(study.words)
        )
        torch.manual_seed(seed)
        tree = trees[run.head] if run.head else None
        self.net = DiT(
            self.process.num_states, study.words, dim=study.width, depth=4, heads=4, tree=tree
        )
        statistics = torch.load(work / "statistics.pt")
        self.net.start_at(
            log_probs(statistics["counts"]),
            state_vectors(
                self.process, statistics["counts"], 0.3 * study.width**0.5 * statistics["vectors"]
            ),
        )
        self.meaning = dd.Children.of(self.net) if run.head else "cavity"

    def noised(self, x: Tensor, noise: dd.KeyedGenerator) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, states, times."""
        t = dd.sample_times(len(x), generator=noise)
        return x, self.process.sample(x, t, noise), t

    def layer(self, z: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        """Return features, matrix, bias."""
        return self.net.features(z, t), *dd.Hidden.layer(self.net, self.meaning)

    def loss(self, x: Tensor, noise: dd.KeyedGenerator) -> Tensor:
        """Compute the training loss."""
        x, z, t = self.noised(x, noise)
        features, weight, bias = self.layer(z, t)
        return dd.training_loss(
            self.process,
            dd.Hidden(features, weight, bias),
            x,
            z,
            t,
            CLIP,
            parameterization=self.meaning,
        )

    @torch.no_grad()
    def bound(self, windows: Tensor, draw: int) -> Float[Tensor, " n"]:
        """Return the nats of each window, by one draw of times and noise, the same for every run of
        a process.
        """
        found = []
        for index in torch.arange(len(windows)).split(20):
            x, z, t = self.noised(windows[index], dd.KeyedGenerator(12345, draw, index))
            features, weight, bias = self.layer(z, t)
            found.append(
                dd.nelbo(
                    self.process,
                    dd.Hidden(features, weight, bias),
                    x,
                    z,
                    t,
                    parameterization=self.meaning,
                ).sum(1)
            )
        return torch.cat(found).double()


class Training:
    """Network, optimizers and text of a run."""

    def __init__(self, name: str, work: Path, seed: int, text: Text) -> None:
        study = text.study
        self.model, self.text, self.seed, self.steps = (
            Model(RUNS[name], work, seed, study),
            text,
            seed,
            0,
        )
        self.average = Average(self.model.net, OPTIMIZER.ema)
        self.optimizers = optimizers(self.model.net, OPTIMIZER)

    def step(self, of: int) -> None:
        """Take one of ``of`` steps."""
        noise = dd.KeyedGenerator(self.seed, self.steps, torch.arange(self.text.study.batch))
        self.model.loss(self.text.batch(self.seed, self.steps), noise).backward()
        gradients = [p.grad for p in self.model.net.parameters() if p.grad is not None]
        excess = (nn.utils.get_total_norm(gradients) / OPTIMIZER.max_grad_norm).clamp(min=1)
        broken = torch.zeros(())
        now = rate(OPTIMIZER, round(1000 * self.steps / of), 1000)
        update(self.optimizers, now, broken, excess)
        self.average.update(self.average.decay_at(self.steps), broken)
        self.steps += 1


def path(work: Path, name: str, seed: int) -> Path:
    """Return the path of a run's result."""
    return work / "runs" / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}.json"


def measured(values: Float[Tensor, " n"]) -> dict[str, float]:
    """Return the mean over windows and its standard error."""
    return {"value": float(values.mean()), "error": float(values.std() / len(values) ** 0.5)}


@dataclass(frozen=True)
class EqualCompute(Study):
    """Outputs over tokens and over children at equal CPU seconds and at equal steps."""

    results = equal_page.PAGE
    commands = ("prepare", "speed", "train", "report", "page")
    flags = FLAGS
    words: int = 50_257
    length: int = 128  # of a window
    batch: int = 16
    width: int = 128
    seconds: float = equal_page.SECONDS
    seeds: tuple[int, ...] = (0, 1)
    sources: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {name.replace("_", " "): span for name, span in spans().items()}
    )
    """First token and number of tokens."""
    trees: Mapping[str, list[int]] = field(
        default_factory=lambda: {"224": [224], "1369-37": [1369, 37]}
    )
    windows: int = 100  # that are held out of each source
    draws: int = 4  # of times and noise for each window
    points: int = 8  # of a curve
    apart: bool = True
    """Whether the cost of a step is measured in a process with its own heap."""

    @classmethod
    def tiny(cls) -> Self:
        """Return bytes of speeches in place of the tokens, and a tenth of a second."""
        sources = {
            name.replace("_", " "): (5000 * place, 5000) for place, name in enumerate(spans())
        }
        trees = {"224": [16], "1369-37": [64, 8]}
        return cls(257, 16, 4, 16, 0.1, (0,), sources, trees, 20, 1, 2, False)

    def inputs(self, work: Path) -> None:
        """Write the bytes of a few speeches in place of the tokens."""
        work.mkdir(exist_ok=True)
        tokens = [[*text.encode()[:4999], self.words - 1] for text in smoke.sources().values()]
        (work / FILE).write_bytes(lzma.compress(np.array(tokens, dtype="<u2").tobytes()))

    def prepare(self, options: Namespace) -> None:
        """Prepare the unpacked tokens, the tokens' neighbourhoods and the clusters, from the
        training text alone.
        """
        work, packed = options.work, options.tokens or options.work / FILE
        np.save(
            work / "tokens.npy", np.frombuffer(lzma.decompress(packed.read_bytes()), dtype="<u2")
        )
        text = Text(work, self).training
        vectors = neighbourhoods(text, self.words, self.width)
        torch.save(
            {"counts": text.bincount(minlength=self.words), "vectors": vectors},
            work / "statistics.pt",
        )
        vectors = neighbourhoods(text, self.words)
        for name, counts in self.trees.items():
            found = semantic_clusters(vectors, counts, nested="up", fingerprint=GPT2)
            save_clusters(work / f"clusters-{name}", found)

    def speed(self, options: Namespace) -> None:
        """Measure the CPU seconds of one training step of every run, in turns."""
        if self.apart and not options.here:
            os.environ.update(KEEP)
            found = in_its_own_process("equal_compute", "speed", str(options.work), "--here")
        else:
            text = Text(options.work, self)
            runs = {
                n: Training(n, options.work, 0, text)
                for n, run in RUNS.items()
                if not run.equal_steps_of
            }
            turns = {name: partial(run.step, 1000) for name, run in runs.items()}
            seconds(turns, 2)
            taken = seconds(turns, 15)
            found = json.dumps(
                {"seconds_per_step": medians(taken), "taken": taken, "machine": machine()}
            )
        print(found) if options.here else (options.work / "speed.json").write_text(found)

    def train(self, options: Namespace) -> None:
        """Train every ``--of``-th run that has no result yet."""
        work, every = options.work, [(name, seed) for seed in self.seeds for name in options.only]
        (work / "runs").mkdir(exist_ok=True)
        for name, seed in every[options.part :: options.of]:
            if not path(work, name, seed).exists():
                path(work, name, seed).write_text(json.dumps(self.trained(work, name, seed)))

    def trained(self, work: Path, name: str, seed: int) -> dict[str, Any]:
        """Train one run; return its curve, and the nats of every held-out window."""
        prices = json.loads((work / "speed.json").read_text())["seconds_per_step"]
        steps = round(self.seconds / prices[RUNS[name].equal_steps_of or name])
        text = Text(work, self)
        run, curve = Training(name, work, seed, text), list[dict[str, float]]()
        windows = {source: text.held_out(source) for source in self.sources}
        few = torch.cat([part[::10] for part in windows.values()])
        points = {steps * point // self.points for point in range(1, self.points)}
        while run.steps < steps:
            run.step(steps)
            if run.steps in points:
                run.average.swap()
                nats = run.model.bound(few, 0)
                run.average.swap()
                curve.append(
                    {"steps": run.steps, "nats_per_token": float(nats.mean()) / self.length}
                )
                print(
                    f"{name}, seed {seed}: {run.steps} of {steps}, "
                    f"{curve[-1]['nats_per_token']:.3f}",
                    flush=True,
                )
        run.average.swap()
        draws = range(self.draws)
        nats = {
            s: torch.stack([run.model.bound(part, draw) for draw in draws]).tolist()
            for s, part in windows.items()
        }
        return {"steps": steps, "curve": curve, "nats": nats, "machine": machine()}

    def nats_per_token(
        self, results: dict[str, Any], source: str | None = None
    ) -> Float[Tensor, " n"]:
        """Return nats per token of every held-out window, or those of one source.

        The mean over draws.
        """
        found = results["nats"].values() if source is None else [results["nats"][source]]
        return torch.cat([torch.tensor(draws).mean(0) for draws in found]) / self.length

    def report(self, options: Namespace) -> None:
        """Write bounds, differences over the same windows, times and noise, and curves."""
        work, found, nats = options.work, [], self.nats_per_token
        for seed in self.seeds:
            results = {
                n: json.loads(path(work, n, seed).read_text())
                for n in RUNS
                if path(work, n, seed).exists()
            }
            for name, one in results.items():
                against = {
                    other: measured(nats(one) - nats(results[other]))
                    for other in results
                    if other != name
                }
                found.append(
                    {
                        "run": name,
                        "seed": seed,
                        "bound": measured(nats(one)),
                        "less": against,
                        "by_source": {
                            source: measured(nats(one, source)) for source in self.sources
                        },
                        **{key: one[key] for key in ("steps", "curve", "machine")},
                    }
                )
        content: dict[str, Any] = {
            "command": "python -m studies.children.run",
            "seconds": self.seconds,
        }
        content["speed"] = json.loads((work / "speed.json").read_text())
        options.out.write_text(
            json.dumps(content | {"runs": found}, indent=1) + "\n", encoding="utf-8"
        )


STUDY = EqualCompute()

if __name__ == "__main__":
    STUDY.main(__doc__)
