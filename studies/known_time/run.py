"""The study of docs/studies/known_time.md.

The same structured noise with and without the number of its events in the state.

Protocol and expectations were written before the runs. A run that is finished is not
made again.

A record of the code: it ran at commit 93cc170f, and protocol.md has the commands.
"""

import json
import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

import ddlib as dd
from ddlib.hierarchies import Blur, Dense, Kernels
from ddlib.parameterization.logits import posterior_logits
from ddlib.testing.oracle import exact_cavity
from ddlib_models import DiT
from recipes.engine.provenance import provenance
from studies.known_time.page import PAGE, SAMPLES
from studies.study import Study, written

VALUES, EVENTS = 16, 32
"""Size of the ordered alphabet; number of events after which the counted process has lost its
token.
"""
LEAST, MOST = 1e-3, 300.0
"""Expected number of events at the clean and at the noisy end, between which it grows
geometrically.
"""
BATCH, LENGTH = 64, 16
Network = Callable[..., Tensor]


def events() -> Tensor:
    """Return the kernel of one event: a step to a neighbour, each with probability 1/2, or none at
    a border.
    """
    index = torch.arange(VALUES)
    kernel = torch.zeros(VALUES, VALUES, dtype=torch.float64)
    for step in (-1, 1):
        kernel[index, (index + step).clamp(0, VALUES - 1)] += 0.5
    return kernel


def shuffled(kernel: Tensor) -> Tensor:
    """Return the same kernel for values in a random order: structure that has no relation to the
    data.
    """
    order = torch.randperm(VALUES, generator=torch.Generator().manual_seed(0))
    return kernel[order][:, order]


def counted(kernel: Tensor) -> dd.processes.Hierarchical:
    """Return the process with a level per event: its state is the value and the number of
    events.
    """
    return dd.processes.Hierarchical(Kernels([Dense(kernel)] * EVENTS), schedule())


def schedule() -> dd.schedules.Geometric:
    """Return the schedule of the processes of events: minus its logarithm is their expected
    number.
    """
    return dd.schedules.Geometric(LEAST, MOST)


def per_level() -> Tensor:
    """Return the shared rows of the counted process: a vector per value and one per number of
    events.
    """
    state = torch.arange(VALUES * (EVENTS + 1))
    rows = torch.stack([state % VALUES, VALUES + state // VALUES], 1)
    return torch.cat([rows, torch.tensor([[VALUES + EVENTS + 1, -1]])])


def processes() -> Mapping[str, tuple[dd.processes.ForwardProcess, Tensor | tuple[()]]]:
    """Return the processes and the shared rows of their networks, () for a vector per state."""
    kernel = events()
    blur = Blur(VALUES, [1.0, 2.0, 4.0])
    return {
        "masks": (dd.presets.mdlm(VALUES), ()),
        "uniform": (dd.processes.Uniform(VALUES, schedule()), ()),
        "birth-death": (dd.processes.RateMatrix(kernel - torch.eye(VALUES), schedule()), ()),
        "birth-death, counted": (counted(kernel), ()),
        "birth-death, counted, shared rows": (counted(kernel), per_level()),
        "shuffled, counted, shared rows": (counted(shuffled(kernel)), per_level()),
        "blur of 3 levels, shared rows": (
            dd.processes.Hierarchical(blur, dd.schedules.Linear()),
            blur.shared_rows(),
        ),
    }


EXACT = ("masks", "uniform", "birth-death", "birth-death, counted", "blur of 3 levels, shared rows")


def steps() -> Tensor:
    """Return the transition matrix of the data: a walk that stays or moves to a neighbour, and in 2
    % jumps anywhere.

    Jumps make every sequence possible, so that the exact network has an answer to every state of a
    sampler.
    """
    walk = 0.5 * torch.eye(VALUES, dtype=torch.float64) + 0.5 * events()
    return 0.98 * walk + 0.02 / VALUES


def entropy(length: int) -> float:
    """Return the entropy of the data in nats per token: the first value is uniform, which the walk
    preserves.
    """
    step = float(torch.special.entr(steps()).sum(1).mean())
    return (math.log(VALUES) + (length - 1) * step) / length


def data(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Draw sequences of the walk, (count, length)."""
    x = [torch.randint(VALUES, (count,), generator=generator)]
    for _ in range(length - 1):
        x.append(torch.multinomial(steps()[x[-1]], 1, generator=generator).squeeze(1))
    return torch.stack(x, 1)


def parts(
    process: dd.processes.ForwardProcess, network: Network, x: Tensor, z: Tensor, t: Tensor
) -> Tensor:
    r"""Return the part of the bound's integrand that is spent on *when*, (B, L): a KL of rates of
    leaving z backwards.

    With r_y the rates of the reversed jumps of z to y given x, and h_y those of the network, the
    integrand is :math:`\sum_y r_y \log(r_y / h_y) - r_y + h_y`. With totals R and H it is the sum
    of :math:`R \log(R / H) - R + H`, the KL of the jump times, and R times the KL of the
    destinations. (The decomposition is that of SCUD, arXiv 2506.08316.)
    """
    into = process.rates_into(z, t)
    into = into.scatter(-1, z[..., None], 0.0)
    given = process.marginal(x, t)
    post = posterior_logits(process, network(z, t), z, t).softmax(-1)
    tokens = torch.arange(process.vocab_size)[None].expand(len(t), -1)
    likelihood = process.marginal(tokens, t)  # (B, V, S)
    at_z = likelihood.gather(-1, z[:, None].expand(-1, process.vocab_size, -1))  # (B, V, L)
    ratio = torch.einsum("blv,bvl,bvs->bls", post, 1 / at_z, likelihood)
    true = (into * given / given.gather(-1, z[..., None])).sum(-1)
    model = (into * ratio).sum(-1)
    return true * (true / model).log() - true + model


def distance(drawn: Tensor, joint: Tensor) -> float:
    """Return the total variation between the frequencies of pairs, (N, 2), and their
    distribution.
    """
    count = torch.bincount(drawn[:, 0] * VALUES + drawn[:, 1], minlength=VALUES**2)
    return float(0.5 * (count / len(drawn) - joint.flatten()).abs().sum())


@dataclass(frozen=True)
class KnownTime(Study):
    """Exact networks on two tokens, trained networks on sequences."""

    results = PAGE
    commands = ("exact", "train", "report", "page")
    without: tuple[str, ...] = ()
    """Processes that are left out."""
    steps: int = 3000
    seeds: tuple[int, ...] = (0, 1)
    held_out: int = 2048
    draws: int = 4
    calls: tuple[int, ...] = (2, 4, 8, 16, 32)
    samples: int = SAMPLES
    pairs: int = 40_000
    """Sequences of two tokens from which the exact bound is estimated."""

    @classmethod
    def tiny(cls) -> Self:
        """Return the processes of few states, two steps, one seed and few sequences."""
        return cls(
            tuple(name for name in processes() if "counted" in name),
            2,
            (0,),
            16,
            1,
            (2, 4),
            100,
            100,
        )

    def exact(self, options: Namespace) -> None:
        """Measure bounds, shares of *when* and errors of samples with exact networks, on sequences
        of two tokens.
        """
        joint = steps() / VALUES
        found: dict[str, Any] = {}
        for name in (name for name in EXACT if name not in self.without):
            process = processes()[name][0]
            network, generator = exact_cavity(process, joint), torch.Generator().manual_seed(0)
            x, density = data(self.pairs, 2, generator), process.time_density(2, chance=0.2)
            bound = dd.bound(process, network, x, generator, density=density)
            t = dd.sample_times(
                self.pairs, "stratified", generator, density=density, dtype=torch.float64
            )
            z = process.sample(x, t, generator)
            when = torch.zeros(self.pairs, dtype=torch.float64)
            if not isinstance(process, dd.processes.Hierarchical):
                when = parts(process, network, x, z, t).sum(1) * density.weight(t)
            noise = {}
            for calls in self.calls:
                grid = density.inverse(torch.linspace(1, 0, calls + 1, dtype=torch.float64))
                grid[0], grid[-1] = 1.0, 0.0
                drawn = dd.sample(
                    process,
                    network,
                    (self.samples, 2),
                    dd.samplers.Ancestral(),
                    times=grid,
                    generator=generator,
                )
                noise[calls] = distance(drawn, joint)
            error = float(when.std()) / math.sqrt(self.pairs) / 2
            found[name] = {
                "bound": asdict(bound.per_token),
                "when": float(when.mean()) / 2,
                "when_error": error,
            }
            found[name]["total_variation"] = noise
            print(name, found[name], flush=True)
        floor = distance(data(self.samples, 2, torch.Generator().manual_seed(1)), joint)
        result = {"entropy": entropy(2), "total_variation_of_data": floor, "samples": self.samples}
        written(options.work / "exact.json", result | {"processes": found})

    def trained(self, name: str, seed: int) -> dict[str, Any]:
        """Train a network from scratch and return its bound on held-out sequences, in nats for
        each.
        """
        process, rows = processes()[name]
        torch.manual_seed(seed)
        network = DiT(process.num_states, VALUES, dim=64, depth=2, heads=4, shared_rows=rows)
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, self.steps, pct_start=0.05)
        generator, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        density = process.time_density(LENGTH, chance=1.0)
        for step in range(self.steps):
            x = data(BATCH, LENGTH, generator)
            t = dd.sample_times(BATCH, "stratified", noise, density=density, dtype=torch.float64)
            z = process.sample(x, t, noise)
            nats = dd.nelbo(process, network(z, t.float()), x, z, t.float())
            loss = (density.weight(t).float() * nats.mean(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            rate.step()
            if step % 500 == 499:
                print(f"{name}, seed {seed}, step {step + 1}: {float(loss):.4f}", flush=True)
        network.eval()
        x = data(self.held_out, LENGTH, torch.Generator().manual_seed(1000))
        density, generator = (
            process.time_density(LENGTH, chance=0.2),
            torch.Generator().manual_seed(1001),
        )
        total = torch.zeros(self.held_out, dtype=torch.float64)
        with torch.no_grad():
            for _ in range(self.draws):
                total += (
                    dd.bound(process, network, x, generator, density=density).total.double().sum(1)
                    / self.draws
                )
        return {
            "process": name,
            "seed": seed,
            "nats": [round(value, 5) for value in total.tolist()],
        }

    def train(self, options: Namespace) -> None:
        """Train this process's share of the networks that are not there."""
        every = [
            (name, seed) for seed in self.seeds for name in processes() if name not in self.without
        ]
        for number, (name, seed) in list(enumerate(every))[options.part :: options.of]:
            path = options.work / f"run-{number}.json"
            if not path.exists():
                written(path, self.trained(name, seed))

    def report(self, options: Namespace) -> None:
        """Write the result file: bounds, and differences to masks with errors over sequences."""
        work = options.work
        runs = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("run-*.json"))
        ]
        by = {
            (run["process"], run["seed"]): torch.tensor(run["nats"], dtype=torch.float64) / LENGTH
            for run in runs
        }
        rows = []
        for name in processes():
            for seed in self.seeds:
                if (name, seed) in by:
                    nats, less = by[name, seed], by[name, seed] - by["masks", seed]
                    root = math.sqrt(len(nats))
                    rows.append(
                        {
                            "process": name,
                            "seed": seed,
                            "above_entropy": float(nats.mean()) - entropy(LENGTH),
                            "error": float(nats.std()) / root,
                            "above_masks": float(less.mean()),
                            "above_masks_error": float(less.std()) / root,
                        }
                    )
        made = json.loads((work / "exact.json").read_text(encoding="utf-8"))
        result = {
            "provenance": provenance(),
            "entropy": entropy(LENGTH),
            "exact": made,
            "trained": rows,
        }
        written(options.out, result)


STUDY = KnownTime()

if __name__ == "__main__":
    STUDY.main(__doc__)
