"""AdamW, the learning rate over the steps, and the running average of the weights."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from recipes.config import Optimizer


def adamw(parameters: Iterable[nn.Parameter], config: Optimizer) -> torch.optim.AdamW:
    """The optimizer; its rate is set before every step by ``set_rate``."""
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
    )


def rate(config: Optimizer, step: int, steps: int) -> float:
    """The learning rate of step 0, 1, ..., steps - 1: a linear rise, then a cosine down to ``final`` of the peak."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(steps - config.warmup, 1)
    return config.lr * (config.final + (1 - config.final) * (1 + math.cos(math.pi * done)) / 2)


def set_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Makes ``value`` the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = value


class Average:
    """The exponential moving average of a model's weights: a <- decay a + (1 - decay) w after every step.

    The decay rises with the steps, (1 + k) / (10 + k), so that a short run is not averaged with its start. Sharded
    weights have sharded averages.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = {name: p for name, p in model.named_parameters()}
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after step 0, 1, ..."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.weights.values()), list(self._weights.values()), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges average and weights; a second call exchanges them back."""
        for name, weight in self._weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.weights[name])
            self.weights[name].copy_(kept)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over saved averages."""
        for name, value in weights.items():
            self.weights[name].copy_(value)
