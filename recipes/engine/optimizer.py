"""Optimizers, learning-rate schedule and moving average of the weights."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recipes.config import Optimizer
from recipes.engine.model_protocols import HasBlocks, able
from recipes.engine.muon import Muon


def optimizers(model: nn.Module, config: Optimizer) -> list[torch.optim.Optimizer]:
    """Return AdamW for all weights, or Muon for the matrices of the blocks and AdamW for the rest.

    Raises:
        ValueError: Muon for a network without blocks.
    """
    matrices = []
    if config.muon:
        blocks = able(model, HasBlocks, "optimizer.muon=True", "blocks").blocks
        matrices = [
            p for name, p in blocks.named_parameters() if p.ndim == 2 and "modulation" not in name
        ]
    held = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in held]
    decay = config.weight_decay
    adamw = torch.optim.AdamW(
        rest, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=decay, fused=True
    )
    if not config.muon:
        return [adamw]
    return [Muon(matrices, lr=config.lr, weight_decay=decay), adamw]


def rate(config: Optimizer, step: int, steps: int) -> float:
    """Return the learning rate of step 0, 1, ..., steps - 1: a linear rise, then a cosine to
    ``final`` of the peak.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(steps - config.warmup, 1)
    return config.lr * (config.final + (1 - config.final) * (1 + math.cos(math.pi * done)) / 2)


def check_decay(config: Optimizer, steps: int) -> list[str]:
    """Return a message if the learning rate rises until the last step, so that the cosine never
    begins.
    """
    if config.warmup < steps:
        return []
    return [
        f"optimizer.warmup={config.warmup}: not below steps={steps}, so the learning rate only "
        "rises, to "
        f"{rate(config, steps - 1, steps):.3g} of lr={config.lr:g}"
    ]


def update(
    optimizers: Iterable[torch.optim.Optimizer],
    rate: float | Tensor,
    broken: Float[Tensor, ""],
    excess: Float[Tensor, ""],
) -> None:
    """Take a step of all optimizers at a learning rate, and clear the gradients.

    Args:
        optimizers: AdamW and Muon. They divide gradients by their attribute ``grad_scale``, and
            leave weights and states as they are where ``found_inf`` is 1; both are read on the
            device, in the optimizer's own pass over the gradients.
        rate: the learning rate, on the device where AdamW is a part of a CUDA graph.
        broken: 1 where a gradient is not finite, else 0.
        excess: norm of the gradients over its maximum, at least 1.
    """
    for optimizer in optimizers:
        optimizer.found_inf = broken  # type: ignore[attr-defined]
        optimizer.grad_scale = excess.float()  # type: ignore[attr-defined]
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()


class Average:
    """Exponential moving average of a model's weights: a <- decay a + (1 - decay) w after every
    step.

    The decay rises with the steps, (1 + k) / (10 + k), so that a short run is not averaged with its
    start. Sharded weights have sharded averages.

    An update is a step of fused gradient ascent on the average with gradient w and decay 1, a <- a
    + (1 - decay) (w - a): one pass over all weights, which reads ``found_inf`` on the device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = {name: p for name, p in model.named_parameters()}
        self.weights: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in self._weights.items()
        }
        self._shards = {name: _shard(average) for name, average in self.weights.items()}
        self._ascent = torch.optim.SGD(
            self._shards.values(), weight_decay=1.0, maximize=True, fused=True
        )

    def decay_at(self, step: int) -> float:
        """Return the decay after step 0, 1, ...."""
        return min(self.decay, (1 + step) / (10 + step))

    def update(self, decay: float | Tensor, broken: Float[Tensor, ""]) -> None:
        """Update the average with the present weights, unless ``broken`` is 1."""
        share = 1 - decay
        if isinstance(share, Tensor) and share.is_cuda:
            share = share.float()  # the dtype in which the pass reads it
        for name, average in self._shards.items():
            average.grad = _shard(self._weights[name].detach())
        self._ascent.found_inf = broken  # type: ignore[attr-defined]
        self._ascent.param_groups[0]["lr"] = share
        self._ascent.step()
        self._ascent.zero_grad()  # else a copy of an average has a copy of the weight

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange average and weights; a second call exchanges them back."""
        for name, weight in self._weights.items():
            last = weight.detach().clone()
            weight.copy_(self.weights[name])
            self.weights[name].copy_(last)

    @torch.no_grad()
    def restart(self) -> None:
        """Set the average to the current weights."""
        for name, weight in self._weights.items():
            self.weights[name].copy_(weight)


def _shard(weight: Tensor) -> Tensor:
    """Return this process's part of a sharded weight."""
    return weight.to_local() if hasattr(weight, "to_local") else weight
