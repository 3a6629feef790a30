"""Cost of sampling with jump times drawn first, against an ancestral step over all positions and
states.

    python -m benchmarks.sampling masked
    python -m benchmarks.sampling hdlm --device cuda --sequences 32

512 tokens in 512 steps by a 12 x 768 DiT with random weights; one sequence on one thread of a CPU
in float32, or many on a GPU with bfloat16 products. ``papers`` is the step in the papers' code: the
network at every position in every step, softmax in float64, the posterior over all states, one
exponential per state (a race: the cheapest exact draw, Gumbel noise takes two logarithms).

The steps that need the network do not depend on it, as jump times are drawn first. So ``ours`` is a
whole sequence with every step of it, but the blocks run at every ``every``-th call only, spread
over time; the other calls reuse the last features (on a CPU, where the network is evaluated at
jumping positions only, those of one of them). The blocks' time is the median of those calls times
the number of all calls; everything else is measured in full. A step of the papers is taken and
timed at the same calls, on the same states; its median counts for every step. With several
sequences all stay in the network's batch while one of them jumps, so that all calls cost the same.

``outside`` is the time outside of the blocks over that in them. The output layer at jumping rows
belongs to it.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ddlib as dd
from benchmarks.head import GPT2, TINY, Sizes, parents
from benchmarks.measuring import REPEATS, now
from ddlib.processes import ForwardProcess, Hierarchical
from ddlib.samplers import Ancestral, FirstHitting, Sampler
from ddlib_models import DiT
from ddlib_models.dit.presets import small

PROCESSES: Mapping[str, Callable[[Sizes], Hierarchical]] = {
    "masked": lambda sizes: dd.presets.mdlm(sizes.words),
    "hdlm": lambda sizes: dd.presets.hdlm(parents(sizes)),
}


SAMPLERS: Mapping[str, Sampler] = {"ancestral": Ancestral(), "first_hitting": FirstHitting()}


class Text(NamedTuple):
    """Sequences to sample, network and device."""

    vocabulary: Sizes = GPT2
    network: Mapping[str, int] = small()
    sequences: int = 1
    length: int = 512
    steps: int = 512
    every: int = 32
    device: str = "cpu"


TEXT = Text()
TINY_TEXT = Text(TINY, dict(dim=16, depth=2, heads=2), 2, 8, 16, 2)


class Sometimes:
    """A split denoiser whose blocks run, and are timed, at every ``every``-th call.

    Other calls reuse the features.

    Args:
        model: the network.
        text: frequency of calls, and device.
        beside: called with the same arguments after the blocks have run.
    """

    def __init__(self, model: DiT, text: Text, beside: Callable[[Tensor, Tensor], Any]) -> None:
        self.model = model
        self.output_weights = model.output_weights
        self.beside = beside
        self.every = text.every
        self.device = text.device
        self.calls = 0
        self.last = torch.empty(0)
        self.blocks: list[float] = []
        self.others: list[float] = []

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        raise AssertionError("the sampler computed logits at every position")

    def features(self, z: Tensor, t: Tensor) -> Tensor:
        """Compute the head's input."""
        return self._sometimes(z, t, lambda: _half(self.model.features, z, t))

    def features_at(self, z: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """Compute the head's input at some positions."""
        last = self._sometimes(z, t, lambda: _half(self.model.features_at, z, t, positions))
        return last[:, :1].expand(-1, positions.shape[1], -1)

    def _sometimes(self, z: Tensor, t: Tensor, features: Callable[[], Tensor]) -> Tensor:
        if self.calls % self.every == 0:
            begin = now(self.device)
            self.last = features()
            between = now(self.device)
            self.beside(z, t)
            self.blocks.append(between - begin)
            self.others.append(now(self.device) - between)
        self.calls += 1
        return self.last


class Papers(NamedTuple):
    """A step over all positions and states in float64, for the mask and one level of plain clusters
    above tokens.
    """

    process: Hierarchical
    model: Callable[[Tensor, Tensor], Tensor]

    def step(self, z: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Draw z_s from the posterior."""
        probs = self.posterior(z, t, s)
        noise = 1e-10 - (torch.rand_like(probs) + 1e-10).log()
        return torch.where(z < self.process.vocab_size, z, (probs / noise).argmax(-1))

    def posterior(self, z: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Return the posterior of every position that is not a token yet, (B, L, S)."""
        hierarchy = self.process.hierarchy
        words = self.process.vocab_size
        p = _half(self.model, z, t.float()).to(torch.float64).softmax(-1)
        probs = p.new_zeros(*z.shape, self.process.num_states)
        jumps = self.process.level_posterior(self.process.level_of(z), t.double(), s.double())
        to_words, rest = probs.split([words, probs.shape[-1] - words], -1)
        if hierarchy.depth == 2:
            of = hierarchy.maps[0].parents
            cluster = hierarchy.local(z, 1)[..., None]
            masses = p.new_zeros(*z.shape, hierarchy.levels[1]).scatter_add_(-1, of.expand_as(p), p)
            in_cluster = self.process.level_of(z)[..., None] == 1
            p = torch.where(in_cluster, (of == cluster) * p / masses.gather(-1, cluster), p)
            rest[..., :-1] = torch.where(in_cluster, 0.0, masses) * jumps[..., 1:2]
            rest[..., :-1].scatter_add_(-1, cluster, in_cluster * jumps[..., 1:2])
        to_words.copy_(p * jumps[..., :1])
        rest[..., -1] = jumps[..., -1]
        return probs


def network(process: ForwardProcess, text: Text, tree: list[Tensor] | None = None) -> DiT:
    """Build a DiT with random weights; with a tree it returns logits of children."""
    torch.manual_seed(0)
    model = DiT(process.num_states, process.vocab_size, **text.network, tree=tree)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model = model.eval().to(text.device)
    if text.device == "cuda":  # for both methods
        model.compile_trunk()
    return model


@torch.no_grad()
def measure(name: str, text: Text = TEXT, sampler: Sampler = Ancestral()) -> dict[str, Any]:
    """Return seconds of a sequence by both methods, the speedup, and the time outside the
    blocks.
    """
    process = PROCESSES[name](text.vocabulary).to(text.device)
    model = network(process, text)
    papers = Papers(process, model)

    def beside(z: Tensor, t: Tensor) -> Tensor:
        return papers.step(z, t.double(), (t.double() - 1 / text.steps).clamp_min(0))

    mask = torch.full((text.sequences, text.length), process.num_states - 1, device=text.device)
    beside(mask, torch.ones(text.sequences, device=text.device))  # first touch of the memory
    split = Sometimes(model, text, beside)
    generator = torch.Generator(text.device).manual_seed(0)
    begin = now(text.device)
    dd.sample(
        process,
        split,
        tuple(mask.shape),
        sampler,
        text.steps,
        generator=generator,
        controls=[dd.controls.WholeBatch()],
    )
    outside = now(text.device) - begin - sum(split.blocks) - sum(split.others)
    if len(split.blocks) < REPEATS:
        raise ValueError(
            f"every={text.every}: the blocks ran {len(split.blocks)} times, must run {REPEATS} "
            "times"
        )
    blocks = statistics.median(split.blocks) * split.calls
    theirs = statistics.median(split.others) * text.steps
    return {
        "ratios": {"papers time": theirs / (blocks + outside), "outside": outside / blocks},
        "seconds": {
            "ours": blocks + outside,
            "papers": theirs,
            "blocks": blocks,
            "outside": outside,
        },
        "measured": {"blocks": split.blocks, "papers": split.others},
        "tokens_per_second": {
            "ours": mask.numel() / (blocks + outside),
            "papers": mask.numel() / theirs,
        },
        "calls": split.calls,
        "steps": text.steps,
    }


def first_hitting(text: Text) -> dict[str, Any]:
    """Measure ``FirstHitting`` and ``Ancestral`` in as many steps.

    Every step of the first needs the network.
    """
    results = {name: measure("hdlm", text, sampler) for name, sampler in SAMPLERS.items()}
    speed = {name: one["tokens_per_second"]["ours"] for name, one in results.items()}
    return {"ratios": {"ancestral time": speed["first_hitting"] / speed["ancestral"]}, **results}


def _half(model: Callable[..., Tensor], z: Tensor, *rest: Tensor) -> Tensor:
    with torch.autocast(z.device.type, torch.bfloat16, enabled=z.device.type == "cuda"):
        return model(z, *rest)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("process", choices=PROCESSES)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument(
        "--every", type=int, default=TEXT.every, help="calls between two at which the blocks run"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tiny", action="store_true", help="8 tokens, 2 x 16: a test run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = TINY_TEXT if options.tiny else Text(sequences=options.sequences, every=options.every)
    print(json.dumps(measure(options.process, text._replace(device=options.device)), indent=1))


if __name__ == "__main__":
    main()
