"""Ratios of two networks' probabilities: where the truth is known, and of a trained network."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

import ddlib as dd
from ddlib_models import DiT
from studies.rewards.training import Sizes, bound_ratio, roll_out, tune

TOKENS = 3
LENGTH = 3
STEPS = 4
SPREAD = 0.5
"""Standard deviation of the difference of the logits of two networks."""
CHUNK = 10_000
KNOWN: Mapping[str, dd.processes.ForwardProcess] = {
    "masks": dd.presets.mdlm(TOKENS),
    "tree, xi = 0.9": dd.presets.hdlm([0, 0, 1], xi=0.9),
    "GIDD": dd.presets.gidd(TOKENS, 0.2),
}


class Table(nn.Module):
    """Network with random logits for every sequence of states."""

    def __init__(self, states: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = (states**LENGTH, LENGTH, TOKENS)
        self.logits = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.place = states ** torch.arange(LENGTH)

    def forward(self, z: Int64[Tensor, "B L"], t: Tensor) -> Tensor:
        return self.logits[(z * self.place).sum(-1)]


def number(tokens: Int64[Tensor, "B L"]) -> Int64[Tensor, "B"]:
    """Return the index of a sequence among all sequences."""
    return (tokens * TOKENS ** torch.arange(LENGTH)).sum(-1)


@torch.no_grad()
def known(process: dd.processes.ForwardProcess, sizes: Sizes) -> dict[str, Any]:
    """Compare both ratios with the frequencies of samples of two networks."""
    old = Table(process.num_states, 0)
    new = Table(process.num_states, 0)
    new.logits = old.logits + SPREAD * Table(process.num_states, 1).logits
    count = TOKENS**LENGTH
    drawn = {name: torch.zeros(count, dtype=torch.float64) for name in ("old", "new")}
    sums = torch.zeros(4, count, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    shape = (min(CHUNK, sizes.enumerated), LENGTH)
    for _ in range(sizes.enumerated // shape[0]):
        tokens, path = dd.sample(process, old, shape, steps=STEPS, generator=generator, record=True)
        log_rho = dd.log_prob(process, new, path) - dd.log_prob(process, old, path)
        rho = log_rho.exp()
        index = number(tokens)
        drawn["old"] += index.bincount(minlength=count)
        for row, values in zip(sums, (rho, rho**2, log_rho, log_rho**2), strict=True):
            row.index_add_(0, index, values)
        other = dd.sample(process, new, shape, steps=STEPS, generator=generator)
        drawn["new"] += number(other).bincount(minlength=count)
    enough = torch.minimum(drawn["old"], drawn["new"]) >= sizes.least
    truth = (drawn["new"] / drawn["old"]).log()
    truth_error = (1 / drawn["old"] + 1 / drawn["new"]).sqrt()
    rho_sum, square_sum = sums[:2]
    log_rho, log_square = sums[2:] / drawn["old"]
    path = (rho_sum / drawn["old"]).log()
    # both have the number of the old network's samples, which cancels in their difference
    path_error = (square_sum / rho_sum**2 + 1 / drawn["new"]).sqrt()
    bounds = bounds_of(process, new, old, sizes)
    result = {
        "sequences": int(enough.sum()),
        "truth": truth[enough],
        "truth_error": truth_error[enough],
        "path": path[enough],
        "path_errors": ((path - truth) / path_error)[enough],
        "path_deviation": (log_square - log_rho**2).clamp_min(0).sqrt()[enough],
        "bound": bounds.mean(0)[enough],
        "bound_error": bounds.std(0)[enough] / math.sqrt(len(bounds)),
        "bound_deviation": bounds.std(0)[enough],
    }
    return {
        name: values.tolist() if isinstance(values, Tensor) else values
        for name, values in result.items()
    }


def bounds_of(
    process: dd.processes.ForwardProcess, new: Table, old: Table, sizes: Sizes
) -> Float64[Tensor, "N 27"]:
    """Return draws of the bound ratio of every sequence."""
    x = torch.arange(TOKENS**LENGTH)[:, None] // TOKENS ** torch.arange(LENGTH) % TOKENS
    draws = [
        dd.bound_log_ratio(process, new, old, x, seed=seed) for seed in range(sizes.bound_draws)
    ]
    return torch.stack(draws)


@torch.no_grad()
def trained(
    process: dd.processes.ForwardProcess, network: DiT, rate: float, seed: int, sizes: Sizes
) -> dict[str, float]:
    """Compare both ratios of a network before and after some batches of rewards."""
    after = copy.deepcopy(network)
    with torch.enable_grad():
        tune(process, after, "path", rate, seed, sizes, sizes.ratio_rollouts)
    samples = roll_out(process, network, torch.Generator().manual_seed(3), sizes)
    path = dd.log_prob(process, after, samples.path) - dd.log_prob(process, network, samples.path)
    draws = torch.stack(
        [
            bound_ratio(process, after, network, samples, 1, noise)
            for noise in range(sizes.ratio_draws)
        ]
    )
    mean = draws.mean(0)
    together = torch.stack([path, mean])
    return {
        "answers": len(path),
        "path_mean": float(path.mean()),
        "path_deviation": float(path.std()),
        "bound_mean": float(mean.mean()),
        "bound_deviation": float(mean.std()),
        "noise_1": float(draws.std(0).mean()),
        "noise_4": float(draws.std(0).mean()) / 2,
        "correlation": float(torch.corrcoef(together)[0, 1]),
    }
