"""Learned speeds of the noise, trained beside the network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import ddlib as dd
from ddlib.utils.positive import PositiveParameter
from recipes.config import Recipe, own_times
from recipes.data import Batch
from recipes.engine.objective import Objective
from recipes.engine.parallel import World
from recipes.metrics.conditioned import given_labels

_STREAM = 2**60
"""Added to the index of an example, so that its noise here is independent of that of its loss."""
_DRAWS = 2
"""Draws of noise for each sequence."""


class Speeds:
    """Learned parameters of a process and their optimizer, Adam at a separate rate.

    Args:
        process: the noise.
        recipe: recipe of the run.
    """

    def __init__(self, process: dd.processes.ForwardProcess, recipe: Recipe) -> None:
        self.process = process
        self._lr = recipe.optimizer.speeds_lr
        self.parameters = {
            name: value for name, value in process.named_parameters() if value.requires_grad
        }
        self.optimizer = torch.optim.Adam(
            self.parameters.values(), lr=self._lr, betas=recipe.optimizer.betas
        )

    @classmethod
    def of(cls, process: dd.processes.ForwardProcess, recipe: Recipe) -> "Speeds | None":
        """Create the object for a process with learned parameters.

        Raises:
            ValueError: the text is packed, or its positions have different times.
        """
        if not any(value.requires_grad for value in process.parameters()):
            return None
        if recipe.data.packed:
            raise ValueError(
                "process.learn_speeds: not with data.packed, whose documents share rows"
            )
        if own_times(recipe.order(), recipe.data.length):
            raise ValueError(
                f"process.learn_speeds: not with pace={recipe.order()!r}, whose positions have "
                "separate times"
            )
        return cls(process, recipe)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return a context in which they are constants.

        The reason is that the training loss gives only part of their gradient; ``step`` computes
        all of it.
        """
        for value in self.parameters.values():
            value.requires_grad_(False)
        try:
            yield
        finally:
            for value in self.parameters.values():
                value.requires_grad_(True)

    def step(
        self,
        objective: Objective,
        batches: Sequence[Batch],
        seed: int,
        number: int,
        share: float,
        world: World,
    ) -> None:
        """Take a step down the gradient of the bound at the current network.

        Args:
            objective: the network.
            batches: batches of this process.
            seed: seed of the noise.
            number: number of the step.
            share: share of the learning rate's peak.
            world: the distributed processes.

        Raises:
            ValueError: a speed was learned to 0 or infinity, or its gradient is not finite.
        """
        tokens = torch.stack([batch.mask.sum() for batch in batches]).to(
            world.device, torch.float64
        )
        total = world.sum(tokens.sum())
        objective.eval()
        for batch, count in zip(batches, tokens, strict=True):
            batch = batch.to(world.device)
            noise = dd.KeyedGenerator(seed, number, batch.index + _STREAM)
            predict = torch.no_grad()(given_labels(objective.denoiser, batch.labels, _DRAWS))
            loss = dd.speed_loss(
                self.process,
                predict,
                batch.x,
                noise,
                draws=_DRAWS,
                mask=batch.mask,
                parameterization=objective.parameterization,
            )
            (loss * count / total).backward()
        objective.train()
        for name, value in self.parameters.items():
            value.grad = world.sum(value.grad)
            if not bool(value.grad.isfinite().all()):
                raise ValueError(
                    f"step {number}: the gradient of process.{name} is {value.grad.tolist()[:8]}"
                )
        self.optimizer.param_groups[0]["lr"] = self._lr * share
        self.optimizer.step()
        self.optimizer.zero_grad()
        for module in self._learned():
            module()  # raises at 0 or infinity

    def about(self) -> str:
        """Return their current values as text."""
        return ", ".join(f"{module.name} {module!r}" for module in self._learned())

    def tensors(self) -> dict[str, Any]:
        """Return their state for a checkpoint."""
        values = {name: value.detach() for name, value in self.parameters.items()}
        return {
            "values": values,
            "optimizer": get_optimizer_state_dict(self.process, self.optimizer),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of ``tensors``; the values were read in place."""
        set_optimizer_state_dict(self.process, self.optimizer, state["optimizer"])

    def _learned(self) -> Iterator[PositiveParameter]:
        return (
            module for module in self.process.modules() if isinstance(module, PositiveParameter)
        )
