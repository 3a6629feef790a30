"""What sampling costs when jumps are drawn first: our sampler against an ancestral step over all positions and states.

    python benchmarks/sampling.py > benchmarks/results/sampling.json

512 tokens, one at a time, on one thread, by a 12 x 768 DiT with random weights; seconds are CPU time. ``full`` is the
step as the papers' codes have it: logits at every position, their softmax in float64, the posterior over all states,
one exponential per state. All its steps cost the same, so a few are measured, spread over time, and count for all.
``network`` is what is spent in ``features``; the output layer at jumping rows belongs to the rest.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import ddlib as dd
from ddlib.processes import Hierarchical
from ddlib.samplers import Ancestral, FirstHitting, Sampler
from ddlib_models import DiT

CLUSTERS = 64


class Split:
    """A DiT in two halves, the first with a stopwatch and a counter."""

    def __init__(self, model: DiT) -> None:
        self.model, self.words = model, model.words
        self.calls, self.seconds = 0, 0.0

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        return self.model(z, t)

    def features(self, z: Tensor, t: Tensor) -> Tensor:
        """What the head reads."""
        features, taken = timed(lambda: self.model.features(z, t))
        self.calls, self.seconds = self.calls + 1, self.seconds + taken
        return features


class Full(NamedTuple):
    """A step over all positions and states in float64, for the mask and one level of plain clusters above words."""

    process: Hierarchical
    model: DiT

    def step(self, z: Tensor, t: float, s: float) -> Tensor:
        """z_s drawn from the posterior."""
        law = self.law(z, t, s)
        noise = 1e-10 - (torch.rand_like(law) + 1e-10).log()
        return torch.where(z < self.process.vocab_size, z, (law / noise).argmax(-1))

    def law(self, z: Tensor, t: float, s: float) -> Tensor:
        """The posterior of every position that is no word yet, (B, L, S)."""
        hierarchy, now, then = self.process.hierarchy, *(torch.tensor([v], dtype=torch.float64) for v in (t, s))
        p = self.model(z, now.float()).to(torch.float64).softmax(-1)
        law = torch.zeros(*z.shape, self.process.num_states, dtype=torch.float64)
        jumps = self.process.level_posterior(self.process.level_of(z), now, then)
        words, rest = law.split([self.process.vocab_size, law.shape[-1] - self.process.vocab_size], -1)
        if hierarchy.depth == 2:
            parents, cluster = hierarchy.maps[0].parents, hierarchy.local(z, 1)[..., None]
            masses = torch.zeros(*z.shape, hierarchy.levels[1], dtype=torch.float64)
            masses.scatter_add_(-1, parents.expand_as(p), p)
            in_cluster = self.process.level_of(z)[..., None] == 1
            inside = (parents == cluster) * p / masses.gather(-1, cluster)
            p = torch.where(in_cluster, inside, p)
            rest[..., :-1] = torch.where(in_cluster, 0.0, masses) * jumps[..., 1:2]
            rest[..., :-1].scatter_add_(-1, cluster, in_cluster * jumps[..., 1:2])
        words.copy_(p * jumps[..., :1])
        rest[..., -1] = jumps[..., -1]
        return law


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Its result and its CPU time in seconds."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def full(process: Hierarchical, model: DiT, given: argparse.Namespace) -> dict[str, float]:
    """Seconds per step of the plain sampler."""
    generator, sampler, taken = torch.Generator().manual_seed(0), Full(process, model), []
    x = torch.randint(process.vocab_size, (1, given.length), generator=generator)
    for k in torch.linspace(0, given.steps - 1, given.measured).round().tolist():
        t, s = 1 - k / given.steps, 1 - (k + 1) / given.steps
        z = process.sample(x, torch.tensor([t]), generator)
        taken.append(timed(lambda z=z, t=t, s=s: sampler.step(z, t, s))[1])
    per_step = sorted(taken)[len(taken) // 2]
    return {"steps_measured": len(taken), "seconds_per_step": per_step, "seconds": per_step * given.steps}


def ours(process: Hierarchical, model: DiT, sampler: Sampler, given: argparse.Namespace) -> dict[str, float]:
    """Seconds of a whole text by one of our samplers, and how much of it the network takes."""
    split, generator = Split(model), torch.Generator().manual_seed(0)
    shape = (1, given.length)
    _, taken = timed(lambda: dd.sample(process, split, shape, sampler, given.steps, generator=generator))
    rest = taken - split.seconds
    return {
        "calls": split.calls,
        "seconds": taken,
        "seconds_per_step": taken / given.steps,
        "network_seconds": split.seconds,
        "rest_over_network": rest / split.seconds,
    }


def measure(process: Hierarchical, given: argparse.Namespace) -> dict[str, object]:
    """The plain sampler and ours on one process."""
    torch.manual_seed(0)
    model = DiT(process.num_states, process.vocab_size, given.dim, given.depth, given.dim // 64).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    with torch.no_grad():
        model(torch.zeros(1, given.length, dtype=torch.int64), torch.ones(1))  # memory is touched for the first time
        plain = full(process, model, given)
        samplers = {"ancestral": Ancestral(), "first_hitting": FirstHitting()}
        found = {name: ours(process, model, samplers[name], given) for name in given.samplers}
    gains = {name: plain["seconds"] / sampler["seconds"] for name, sampler in found.items()}
    return {"full": plain, **found, "gain": gains}


def main() -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=50257)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--measured", type=int, default=7, help="steps of the plain sampler that are measured")
    parser.add_argument("--samplers", nargs="+", default=["ancestral"], choices=["ancestral", "first_hitting"])
    parser.add_argument("--quick", action="store_true", help="a text of 64 tokens in 64 steps by 2 x 128")
    given = parser.parse_args()
    if given.quick:
        given.dim, given.depth, given.length, given.steps, given.measured = 128, 2, 64, 64, 3
    torch.set_num_threads(1)
    processes = {
        "masked": dd.presets.mdlm(given.words),
        "hdlm": dd.presets.hdlm(torch.arange(given.words) % CLUSTERS),
    }
    measured = {name: measure(process, given) for name, process in processes.items()}
    machine = f"{platform.machine()}, {torch.get_num_threads()} thread"
    settings = {**vars(given), "clusters": CLUSTERS}
    print(
        json.dumps(
            {"device": machine, "torch": torch.__version__, "settings": settings, "measured": measured}, indent=2
        )
    )


if __name__ == "__main__":
    main()
