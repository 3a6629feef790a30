"""Self-conditioning: a first pass, whose features the second takes as those of its previous
call.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import ddlib as dd
from recipes.config import Recipe
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.objectives.bound import Bound
from recipes.engine.objectives.noising import NoisyBatch
from recipes.metrics.conditioned import takes_memory

_STREAM = 2**59
"""Added to the index of an example, so that its chance is independent of its noise."""


@dataclass(frozen=True, kw_only=True)
class Recalling(NoisyBatch):
    """A batch at its times, and its sequences that get the features of a first pass as memory."""

    recalls: Bool[Tensor, " B"]


@dataclass(kw_only=True, repr=False)
class Memory(Bound):
    """Bound of a network that takes its own features of a first pass, which has no gradient.

    For a network that takes them, such as ``model.memory: true``.

    Args:
        share: share of the sequences that get them.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share}: must lie in (0, 1]")

    def check_network(self, model: nn.Module, recipe: Recipe) -> None:
        """Raise ValueError unless the network takes the features of its previous call exactly where
        training gives them.
        """
        pace = recipe.order()
        if not takes_memory(model):
            raise ValueError(
                f"loss.kind=memory: not with {type(model).__name__}, which does not set "
                "takes_memory = True; a DiT does with model.memory=True"
            )
        if pace.block is not None:
            raise ValueError(
                f"loss.kind=memory: not with pace={pace!r}, whose finished blocks are not called "
                "again"
            )

    def ahead(self, batches: list[Batch], step: int) -> list[Any]:
        noisy = super().ahead(batches, step)
        return [self.recalling(*each, step) for each in zip(noisy, batches, strict=True)]

    def recalling(self, noisy: NoisyBatch, batch: Batch, step: int) -> Recalling:
        """Draw the sequences that get the features of a first pass, by (seed, step, example) alone;
        in packed rows each document is one.
        """
        seed = self.setting.recipe.seed
        keyed = dd.KeyedGenerator(seed, step, batch.index + _STREAM, scattered=True)
        recalls = keyed.rand((len(batch.index),)) < self.share
        if batch.cu_seqlens is not None:
            lengths = batch.cu_seqlens.diff()
            recalls = recalls.repeat_interleave(lengths, output_size=batch.x.numel())
        return Recalling(**vars(noisy), recalls=recalls)

    def loss(self, noisy: NoisyBatch, network: Network, scale: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(noisy, Recalling)
        # before the autocast region of the second pass: in one region some versions of torch reuse
        # weights that were cast without gradient
        memory = self.features(noisy, network)
        if noisy.cu_seqlens is not None:
            memory = memory.transpose(0, 1)
        with network.autocast(noisy.z.device):
            raw = network.evaluate(noisy, memory=memory)
            lost = network.lost(raw)
            return self.losses(raw, noisy, network, scale) if lost is None else lost

    def features(self, noisy: Recalling, network: Network) -> Float[Tensor, "B L D"]:
        """Compute the features of a first pass without gradient, 0 at sequences that get none.

        All sequences make the pass: which of them need it is not known on the host. The random
        numbers are those of the second pass, so that both drop the same units and labels.
        """
        device = noisy.z.device
        devices = [device] if device.type != "cpu" else []
        same = torch.random.fork_rng(devices, device_type=device.type)
        with torch.no_grad(), same, network.autocast(device):
            features = network.evaluate(noisy)
        return torch.where(noisy.recalls[:, None, None], features, 0.0)

    def terms(self) -> list[str]:
        return [*super().terms(), f"memory from a first pass in {self.share:g} of the rows"]
