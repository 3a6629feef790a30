"""Networks of the study: pretraining, updates by rewards, and the share of solved puzzles."""

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

import ddlib as dd
from ddlib_models import DiT
from studies.rewards.puzzles import CELLS, SIDE, part, puzzles, solved

PROCESSES: Mapping[str, dd.processes.ForwardProcess] = {
    "masks": dd.presets.mdlm(SIDE),
    "tree, xi = 0.9": dd.presets.hdlm([0, 0, 1, 1], xi=0.9),
}
CLIP = 0.2


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study."""

    width: int = 64
    pretraining_steps: int = 300
    pretraining_rows: int = 64
    pretraining_rate: float = 2e-3
    steps: int = 4
    """Steps of a sample."""
    puzzles: int = 8
    group: int = 16
    rollouts: int = 150
    updates: int = 2
    """Updates on each batch of samples."""
    tested: int = 192
    samples: int = 8
    """Samples of a tested puzzle."""
    rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    seeds: tuple[int, ...] = (0, 1, 2)
    ratio_rollouts: int = 10
    ratio_draws: int = 200
    enumerated: int = 400_000
    """Samples of each network where the truth is known."""
    bound_draws: int = 4000
    least: int = 500
    """Samples that a sequence needs."""


TINY = Sizes(
    width=8,
    pretraining_steps=3,
    pretraining_rows=4,
    puzzles=2,
    group=2,
    rollouts=2,
    tested=4,
    samples=2,
    rates=(1e-3,),
    seeds=(0, 1),
    ratio_rollouts=1,
    ratio_draws=3,
    enumerated=2000,
    bound_draws=40,
    least=20,
)


@dataclass(frozen=True)
class Rollouts:
    """Samples of puzzles, consecutive rows for each, with what their update needs."""

    tokens: Int64[Tensor, "B 16"]
    clues: Bool[Tensor, "B 16"]
    path: dd.samplers.Trajectory
    rewards: Float64[Tensor, "B"]


def prompt_of(
    process: dd.processes.ForwardProcess, x: Int64[Tensor, "B 16"], clues: Bool[Tensor, "B 16"]
) -> Int64[Tensor, "B 16"]:
    """Return a prompt with gaps, which have the state of pure noise."""
    return torch.where(clues, x, process.num_states - 1)


def pretrain(process: dd.processes.ForwardProcess, seed: int, sizes: Sizes) -> DiT:
    """Train a network on whole grids."""
    torch.manual_seed(seed)
    network = DiT(
        process.num_states,
        process.vocab_size,
        sizes.width,
        2,
        4,
        positions="learned",
        shape=(SIDE, SIDE),
    )
    optimizer = torch.optim.AdamW(network.parameters(), sizes.pretraining_rate)
    grids = part("pretraining")
    weighting = dd.weightings.Clip(10.0)
    for _ in range(sizes.pretraining_steps):
        x = grids[torch.randint(len(grids), (sizes.pretraining_rows,))]
        t = dd.sample_times(len(x))
        z = process.sample(x, t)
        loss = dd.training_loss(process, network(z, t), x, z, t, weighting)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def roll_out(
    process: dd.processes.ForwardProcess, network: DiT, generator: torch.Generator, sizes: Sizes
) -> Rollouts:
    """Sample answers to puzzles of the part for rewards."""
    grids, clues = puzzles("rewards", sizes.puzzles, generator)
    grids, clues = (values.repeat_interleave(sizes.group, 0) for values in (grids, clues))
    tokens, path = dd.sample(
        process,
        network,
        tuple(grids.shape),
        steps=sizes.steps,
        prompt=prompt_of(process, grids, clues),
        generator=generator,
        record=True,
    )
    return Rollouts(tokens, clues, path, solved(tokens).to(torch.float64))


Loss = Callable[[dd.processes.ForwardProcess, DiT, DiT, Rollouts, int, Sizes], Tensor]
"""From process, network, the network that sampled, samples and a seed of noise."""


def path_loss(
    process: dd.processes.ForwardProcess,
    network: DiT,
    behaviour: DiT,
    rollouts: Rollouts,
    seed: int,
    sizes: Sizes,
) -> Tensor:
    """Compute the loss with the exact ratio of every draw."""
    terms = dd.log_prob(process, network, rollouts.path, per_draw=True)
    return dd.reward_loss(terms, rollouts.path, rollouts.rewards, group=sizes.group, clip=CLIP)


@dataclass(frozen=True)
class BoundLoss:
    """Loss with one ratio for each answer, from the difference of two bounds."""

    draws: int

    def __call__(
        self,
        process: dd.processes.ForwardProcess,
        network: DiT,
        behaviour: DiT,
        rollouts: Rollouts,
        seed: int,
        sizes: Sizes,
    ) -> Tensor:
        ratio = bound_ratio(process, network, behaviour, rollouts, self.draws, seed)
        ratio = (ratio / (~rollouts.clues).sum(-1)).exp()
        groups = rollouts.rewards.view(-1, sizes.group)
        others = (groups.sum(1, keepdim=True) - groups) / (sizes.group - 1)
        advantage = (groups - others).flatten()
        limited = ratio.clamp(1 - CLIP, 1 + CLIP)
        return -torch.minimum(ratio * advantage, limited * advantage).mean()


def bound_ratio(
    process: dd.processes.ForwardProcess,
    network: DiT,
    behaviour: DiT,
    rollouts: Rollouts,
    draws: int,
    seed: int,
) -> Float64[Tensor, "B"]:
    """Compute the difference of two bounds of the answers, given the clues."""
    return dd.bound_log_ratio(
        process, network, behaviour, rollouts.tokens, draws=draws, seed=seed, given=rollouts.clues
    )


METHODS: Mapping[str, Loss] = {
    "path": path_loss,
    "bound, 1 draw": BoundLoss(1),
    "bound, 4 draws": BoundLoss(4),
}


def tune(
    process: dd.processes.ForwardProcess,
    network: DiT,
    method: str,
    rate: float,
    seed: int,
    sizes: Sizes,
    rollouts: int,
) -> list[float]:
    """Train a network by rewards; return the mean reward of every batch of samples."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.0)
    rewards = []
    for number in range(rollouts):
        behaviour = copy.deepcopy(network)
        samples = roll_out(process, behaviour, generator, sizes)
        rewards.append(float(samples.rewards.mean()))
        for update in range(sizes.updates):
            noise = number * sizes.updates + update
            loss = METHODS[method](process, network, behaviour, samples, noise, sizes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return rewards


@torch.no_grad()
def measure(
    process: dd.processes.ForwardProcess, network: DiT, name: str, sizes: Sizes
) -> dict[str, float]:
    """Return the share of puzzles of a part that are solved by one sample and by any of several."""
    generator = torch.Generator().manual_seed(1)
    grids, clues = puzzles(name, sizes.tested, generator)
    grids, clues = (values.repeat_interleave(sizes.samples, 0) for values in (grids, clues))
    tokens = dd.sample(
        process,
        network,
        (len(grids), CELLS),
        steps=sizes.steps,
        prompt=prompt_of(process, grids, clues),
        generator=generator,
    )
    right = solved(tokens).view(-1, sizes.samples)
    return {"one": float(right.double().mean()), "any": float(right.any(1).double().mean())}


def seeded(seed: int) -> None:
    """Set all generators that are not passed."""
    random.seed(seed)
    torch.manual_seed(seed)


def describe(sizes: Sizes) -> dict[str, Any]:
    """Return the sizes as values of JSON."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(sizes).items()}
